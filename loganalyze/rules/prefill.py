"""Rules on prefill: how much of the time it takes, and what it does to decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Action, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    outside,
    severity,
    shown,
    spell,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "PRE001",
    "prefill-bound",
    severity=Severity.CRITICAL,
    needs=("new_token",),
    limits={
        "duty": Limit(0.5, "fraction", "share of the time spent on prefill"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(30.0, "s", "shortest spell"),
        "join_s": Limit(20.0, "s", "holes up to this long are closed"),
    },
    explains=(
        "PRE002",
        "PRE003",
        "PRE005",
        "QUE001",
        "KV001",
        "ADM001",
        "ADM002",
        "OVR001",
        "LNG001",
    ),
    after=("PRE003",),
)
def prefill_bound(case: Case, limits: Limits) -> Finding | Clear:
    """Prefill takes most of the time, and decoding starves.

    What it flags:
        More than `duty` of the time spent on prefill, averaged over `window_s`. The share comes
        from the fitted step model; a long stretch of prefill lines without a decode line counts
        as well, as do prefill batches with a queue and no decode line among them. There need not
        be a queue otherwise.
    Why it is slow:
        Prefill has priority over decoding. With long prompts and short answers the GPU computes
        prompts nearly all the time, so tokens come slowly for everyone.
    Not this rule:
        Waiting for KV room (KV001): more KV does not help here.
    What to do:
        Reuse prefixes (prefix cache, --schedule-policy lpm), larger chunks if memory allows,
        prefill capacity of its own (PD disaggregation), fewer or shorter prompts.
    Source:
        Joint regression of the decode intervals (step model); Scheduler: prefill first.
    """
    if case.excerpt:
        raise NotApplicable(
            f"{case.length} is too little to split the time into prefill and decode"
        )
    case.need_all_lines()
    if not any(rank.grid["duty"].drop_nulls().len() for rank in case.ranks):
        raise NotApplicable("it has too few decode lines to fit the step model (12 are needed)")

    def judge(rank: Rank) -> list[Span]:
        duty = rank.mean("duty", limits["window_s"])
        high = (duty > limits["duty"]) & ~rank.grid["gap"]
        return at_least(
            joined(spans(high), rank.cells(limits["join_s"])), rank.cells(limits["report_s"])
        )

    found = hold(case.ranks, judge)
    if not found:
        top = max(
            (_max(rank.mean("duty", limits["window_s"])) for rank in case.ranks), default=0.0
        )
        return Clear(f"prefill took at most {top:.0%} of the time over {limits['window_s']:.0f} s")
    worst = found[0]
    cells = worst.cells.select(
        pl.col("new_token", "cached_token", "new_seq", "decoded").sum()
    ).row(0, named=True)
    prompt = (cells["new_token"] + cells["cached_token"]) / max(cells["new_seq"], 1.0)
    rate = cells["new_token"] / max(worst.seconds, 1.0)
    model = worst.rank.model
    giant = _giant(case, found)
    evidence = [
        shown(
            "share of time spent on prefill",
            worst.mean("duty"),
            "",
            worst.line("new_token"),
            "(p0 x prefill batches + p1 x new tokens) / time, fitted"
            if model is not None
            else "no step model: prefill batches over all passes, each no shorter than a decode "
            "step; without any decode line among them 0.8",
            3,
        ),
        shown("prompt tokens computed", rate, "token/s", (None, None), "sum #new-token / time", 0),
        shown(
            "tokens decoded",
            cells["decoded"] / max(worst.seconds, 1.0),
            "token/s",
            (None, None),
            "",
            0,
        ),
        shown(
            "tokens per prefill entry",
            prompt,
            "tokens",
            worst.line("new_token"),
            "(#new-token + #cached-token) / #new-seq",
            0,
        ),
    ]
    if model is not None and model.p1_s > 0:
        evidence.append(
            shown(
                "prefill speed",
                1 / model.p1_s,
                "token/s",
                (None, None),
                "1 / p1 of the fitted model",
                0,
            )
        )
    return Finding(
        summary=f"Prefill takes {worst.mean('duty') or 0:.0%} of the time {spell(case, found)}: "
        f"{rate:,.0f} prompt tokens a second, {worst.mean('queue') or 0:.0f} waiting",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=[
            *act(case, "Compute fewer prompt tokens: share prefixes, trim prompts"),
            *(
                act(case, "Serve requests with cached prefixes first", "schedule-policy", "lpm")
                if cells["cached_token"]
                else []
            ),
            *([] if giant else _larger_chunk(case)),
            *act(case, "Give prefill its own servers (PD disaggregation), or add replicas"),
        ],
        severity=severity(case, found),
        confidence=confidence(case, found, competing=model is None),
        competing="a full KV pool (KV001) would need more KV; here KV levers do not help",
        explained_by="PRE003" if giant else None,
    )


#: Chunks of a prompt from which it alone makes others wait.
_GIANT_CHUNKS = 8


def _giant(case: Case, found: Sequence[Held]) -> bool:
    """Whether most of these spells is a few giant prompts (PRE003), and not many prompts."""
    finding = case.earlier.get("PRE003")
    if finding is None or not isinstance(finding.evidence[0].value, int):
        return False
    if finding.evidence[0].value < _GIANT_CHUNKS:
        return False
    held = sum(int(one.mask.sum()) for one in found)
    inside = sum(int((one.mask & ~outside(case, one.rank, "PRE003")).sum()) for one in found)
    return 2 * inside >= held


def _larger_chunk(case: Case) -> list[Action]:
    chunk = case.signals.session.config.chunked_prefill_size
    if not chunk or chunk <= 0 or chunk >= 16384:
        return []
    return act(
        case,
        "Larger prefill chunks, if GPU memory allows",
        "chunked-prefill-size",
        2 * chunk,
        "fewer passes for the same prompts",
        chunk,
    )


def _max(series: pl.Series) -> float:
    return as_float(series.max(), 0.0)


@rule(
    "PRE002",
    "prefill-interference",
    severity=Severity.WARNING,
    needs=("new_token", "gen_throughput"),
    limits={
        "duty": Limit(0.35, "fraction", "share of the time spent on prefill"),
        "stall_s": Limit(
            1.0, "s", "a run of prefills this long makes every running request stutter"
        ),
        "per_minute": Limit(4.0, "stalls", "such runs in a minute"),
        "report_s": Limit(60.0, "s", "shortest spell"),
    },
    after=("PRE001",),
)
def prefill_interference(case: Case, limits: Limits) -> Finding | Clear:
    """Prefills interrupt decoding: running requests stutter.

    What it flags:
        Prefill takes more than `duty` of the time (but not most of it) in runs of `stall_s` or
        longer, several a minute, while requests are decoding.
    Why it is slow:
        During a run of prefill batches no running request gets a token; the time between tokens
        jumps by the length of the run, and throughput falls by the share of time.
    Not this rule:
        Short prefills between decode steps, which are normal, and prefill taking most of the
        time (PRE001).
    What to do:
        --enable-mixed-chunk, with smaller chunks if need be, or PD disaggregation.
    Source:
        Scheduler: prefill has priority, and chunks of one prompt run back to back.
    """
    if case.excerpt:
        raise NotApplicable(f"{case.length} is too little")
    case.need_all_lines()
    models = [rank.model for rank in case.ranks if rank.model]
    if not models:
        raise NotApplicable("it has too few decode lines to fit the step model (12 are needed)")
    if case.arg("enable_mixed_chunk"):
        return Clear("mixed chunks are on: prefill and decode share their passes")
    if any(as_float(rank.lines["lines"].max(), 1.0) > 1 for rank in case.ranks):
        raise NotApplicable(
            "it is so long that its lines were merged, and runs of prefills cannot be told from "
            "single ones"
        )

    def judge(rank: Rank) -> list[Span]:
        runs = _runs(rank)
        if runs is None:
            return []
        long = runs.filter(pl.col("length") >= limits["stall_s"])
        stalls = pl.Series([0.0]).extend_constant(0.0, rank.grid.height - 1)
        counted = long.group_by(cell=(pl.col("t") / rank.step_s).floor().cast(pl.Int64)).len()
        stalls = (
            rank.grid.select("cell")
            .join(counted, on="cell", how="left", maintain_order="left")["len"]
            .fill_null(0)
        )
        many = rank.past_sum(stalls, 60.0) >= limits["per_minute"]
        duty = rank.mean("duty", 31.0)
        high = many & (duty > limits["duty"]) & (duty <= 0.5) & ~rank.grid["gap"]
        return at_least(joined(spans(high), rank.cells(30)), rank.cells(limits["report_s"]))

    found = hold(case.ranks, judge)
    if not found:
        return Clear("no runs of prefills long enough to be felt, several a minute")
    worst = found[0]
    runs = _runs(worst.rank)
    longest = runs.sort("length").row(-1, named=True) if runs is not None and runs.height else None
    evidence = [
        shown(
            "share of time spent on prefill",
            worst.mean("duty"),
            "",
            worst.line("new_token"),
            "fitted",
            3,
        ),
        shown(
            "throughput lost to prefill",
            worst.mean("duty"),
            "",
            (None, None),
            "throughput x (1 - share)",
            3,
        ),
    ]
    if longest:
        evidence.append(
            shown(
                "longest run of prefills",
                longest["length"],
                "s",
                (longest["source"], longest["line_no"]),
                "modelled time of consecutive prefill batches",
                1,
            )
        )
    chunk = case.signals.session.config.chunked_prefill_size
    return Finding(
        summary=f"Prefills interrupt decoding {spell(case, found)}: they take "
        f"{worst.mean('duty') or 0:.0%} of the time in runs of a second or more",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=[
            *act(
                case,
                "Run prefill chunks and decodes in one pass",
                "enable-mixed-chunk",
                True,
                "no stutters; gen throughput then under-reports",
            ),
            *(
                act(
                    case,
                    "With mixed chunks, smaller ones: each pass gets shorter",
                    "chunked-prefill-size",
                    chunk // 2,
                    "alone it does not help: all chunks of a prompt come before the next decode",
                    chunk,
                )
                if chunk and chunk > 2048
                else []
            ),
            *act(case, "Give prefill its own servers (PD disaggregation)"),
        ],
        severity=Severity.WARNING,
        confidence=confidence(case, found),
    )


def _runs(rank: Rank) -> pl.DataFrame | None:
    """Return runs of consecutive prefill lines while requests decode: t, line, modelled length."""
    model = rank.model
    if model is None or model.p0_s + model.p1_s <= 0:
        return None
    lines = rank.lines.with_columns(run=pl.col("prefill").rle_id())
    return (
        lines.filter(pl.col("prefill") & (pl.col("running_req") > 0))
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("t", "source", "line_no").first(),
            length=(model.p0_s + model.p1_s * pl.col("new_token")).sum(),
        )
    )


@rule(
    "PRE003",
    "giant-prompt",
    severity=Severity.WARNING,
    needs=("new_token", "new_seq"),
    limits={
        "chunks": Limit(3.0, "chunks", "consecutive full chunks of one prompt"),
        "stall_s": Limit(10.0, "s", "decoding stands still for this long"),
    },
    explains=("ADM001", "ADM002", "ADM003", "QUE001"),
)
def giant_prompt(case: Case, limits: Limits) -> Finding | Clear:
    """A very long prompt stops decoding while its chunks are computed.

    What it flags:
        At least `chunks` prefill lines in a row that fill the chunk with one or two requests,
        lasting `stall_s` or longer while others are running.
    Why it is slow:
        The chunks of one prompt run back to back, and no running request gets a token meanwhile.
    Not this rule:
        Many prompts at once (PRE001).
    What to do:
        A server of its own for such prompts, PD disaggregation, or mixed chunks, which let others
        decode meanwhile. The chunk size does not help: all chunks of a prompt are computed before
        anything else.
    Source:
        Scheduler: one chunked request at a time, prefill first.
    """
    chunk = case.signals.session.config.chunked_prefill_size
    if not chunk or chunk <= 0:
        raise NotApplicable(
            "the chunk size is unknown: the max_total_num_tokens= line with "
            "chunked_prefill_size= is missing, or chunking is off"
        )
    case.need_all_lines()
    pieces: list[Held] = []
    worst: dict[str, Any] | None = None
    for rank in case.ranks:
        full = (
            pl.col("prefill")
            & pl.col("cut")
            & (pl.col("new_seq") <= 2)
            & (pl.col("running_req") > 0)
        )
        runs = (
            rank.lines.with_columns(ends=pl.col("t").shift(-1), full=full.fill_null(False))
            .with_columns(run=pl.col("full").rle_id())
            .filter("full")
            .group_by("run", maintain_order=True)
            .agg(
                pl.len(),
                pl.col("t", "source", "line_no").first(),
                pl.col("ends").last(),
                pl.col("new_token").sum(),
            )
            .filter(
                (pl.col("len") >= limits["chunks"])
                & (pl.col("ends") - pl.col("t") >= limits["stall_s"])
            )
        )
        if rank.clock != "stamps" or not runs.height:
            continue
        row = runs.sort(pl.col("ends") - pl.col("t")).row(-1, named=True)
        if worst is None or row["ends"] - row["t"] > worst["ends"] - worst["t"]:
            worst = row
        pieces.append(
            Held(
                rank,
                joined(
                    [
                        (int(a / rank.step_s), int(b / rank.step_s) + 1)
                        for a, b in runs.select("t", "ends").iter_rows()
                    ],
                    0,
                ),
            )
        )
    if worst is None:
        return Clear(f"no prompt stopped decoding for {limits['stall_s']:.0f} s")
    length = worst["ends"] - worst["t"]
    longest = case.signals.session.config.context_len
    one = not longest or worst["new_token"] <= longest
    what = (
        f"A prompt of at least {worst['new_token']:,} tokens"
        if one
        else f"Long prompts one after the other, {worst['new_token']:,} tokens together,"
    )
    return Finding(
        summary=f"{what} stopped decoding for {length:.0f} s {spell(case, pieces)}",
        episodes=all_episodes(pieces),
        evidence=[
            shown(
                "chunks computed back to back",
                worst["len"],
                "chunks",
                (str(worst["source"]), int(worst["line_no"])),
                f"#new-token at the chunk size of {chunk}",
            )
        ],
        actions=[
            *act(case, "Send very long prompts to a server of their own"),
            *act(
                case,
                "Run prefill chunks and decodes in one pass",
                "enable-mixed-chunk",
                True,
                "running requests go on decoding; waiting ones still wait",
            ),
            *act(case, "Give prefill its own servers (PD disaggregation)"),
        ],
        severity=Severity.WARNING,
        confidence="medium",
        competing="many long prompts in a row are prefill-bound (PRE001)",
    )


@rule(
    "PRE004",
    "cache-hits-fell",
    severity=Severity.WARNING,
    needs=("new_token", "cached_token"),
    limits={
        "window_s": Limit(600.0, "s", "window of the hit rate"),
        "drop": Limit(0.2, "fraction", "fall of the hit rate"),
        "same_prompts": Limit(0.3, "fraction", "prompt length may change by this much"),
        "min_tokens": Limit(20000.0, "tokens", "prompt tokens in a window to judge it"),
    },
)
def cache_hits_fell(case: Case, limits: Limits) -> Finding | Clear:
    """The prefix cache finds less than it used to, with prompts as long as before.

    What it flags:
        The share of prompt tokens found in the cache, over `window_s`, falling by `drop` or
        more while the mean prompt stays about as long.
    Why it is slow:
        Every token not found is computed again, which takes time from decoding.
    Not this rule:
        A low hit rate as such: the log does not show how much could be shared.
    What to do:
        If the pool is not full of running requests, distinct sessions push each other out:
        hierarchical cache or routing by session helps. Beyond 128 waiting requests the longest-
        prefix-first policy is off.
    Source:
        cached / (cached + new) tokens of prefill lines, without those of retracted requests.
    """
    if case.signals.span_s < 2 * limits["window_s"]:
        raise NotApplicable(
            f"it covers less than {2 * limits['window_s'] / 60:.0f} min, two windows of "
            "the hit rate"
        )
    seen = 0.0
    for rank in case.ranks:
        w = limits["window_s"]
        # Retracted requests are computed again without hits: such times are left out.
        calm = rank.past_sum("retracted", 60.0) == 0
        new = rank.past_sum(rank.grid["new_token"] * calm, w)
        hit = rank.past_sum(rank.grid["cached_token"] * calm, w)
        seqs = rank.past_sum(rank.grid["new_seq"] * calm, w)
        size = rank.cells(w)
        frame = (
            pl.DataFrame({"new": new, "hit": hit, "seq": seqs})
            .with_columns(
                rate=pl.when(pl.col("new") + pl.col("hit") >= limits["min_tokens"]).then(
                    pl.col("hit") / (pl.col("new") + pl.col("hit"))
                ),
                prompt=(pl.col("new") + pl.col("hit")) / pl.col("seq"),
            )
            .with_columns(
                before=pl.col("rate").shift(size),
                prompt_before=pl.col("prompt").shift(size),
            )
        )
        seen = max(seen, _max(frame["rate"]))
        fell = frame.select(
            (
                (pl.int_range(pl.len()) >= 2 * size - 1)
                & (pl.col("before") - pl.col("rate") >= limits["drop"])
                & (
                    (pl.col("prompt") / pl.col("prompt_before")).log().abs()
                    <= limits["same_prompts"]
                )
            ).fill_null(False)
        ).to_series()
        found = joined(spans(fell), size)
        if not found:
            continue
        held = Held(rank, [(max(0, first - size), end) for first, end in found])
        worst = frame.filter(fell).sort(pl.col("before") - pl.col("rate")).row(-1, named=True)
        usage = held.mean("usage") or 0.0
        roomy = usage < 0.6
        return Finding(
            summary=f"The prefix cache found {worst['rate']:.0%} of the prompt tokens, down "
            f"from {worst['before']:.0%}, with prompts as long as before, "
            f"{spell(case, [held])}",
            episodes=held.episodes,
            evidence=[
                shown(
                    "hit rate before",
                    worst["before"],
                    "",
                    held.line("cached_token"),
                    "cached / (cached + new), 10 min",
                    3,
                ),
                shown(
                    "hit rate after",
                    worst["rate"],
                    "",
                    held.line("cached_token", least=True),
                    "cached / (cached + new), 10 min",
                    3,
                ),
                shown(
                    "mean usage", usage, "", held.line("kv_usage"), "without evictable cache", 2
                ),
            ],
            actions=[
                *(
                    act(
                        case,
                        "Keep evicted prefixes in host memory: sessions push each "
                        "other out of the GPU cache",
                        "enable-hierarchical-cache",
                        True,
                    )
                    if roomy and not case.arg("enable_hierarchical_cache")
                    else []
                ),
                *act(case, "Route requests of one session to the same server"),
            ],
            severity=Severity.WARNING,
            confidence=confidence(case, [held]),
            competing="prompts that share less look the same",
        )
    return Clear(f"the hit rate did not fall with prompts of the same length; highest {seen:.0%}")


@rule(
    "PRE005",
    "chunk-too-small",
    severity=Severity.WARNING,
    needs=("new_token", "gen_throughput"),
    limits={
        "chunk": Limit(2048.0, "tokens", "chunk size up to which it is called small"),
        "share": Limit(0.8, "fraction", "share of prefill lines that fill the chunk"),
    },
    after=("PRE001",),
)
def chunk_too_small(case: Case, limits: Limits) -> Finding | Clear:
    """Prefill is the limit and its chunks are small.

    What it flags:
        A prefill-bound server (PRE001) with a queue, whose prefill lines nearly all fill a chunk
        of `chunk` tokens or less. DP attention divides the chunk size by the DP size.
    Why it is slow:
        Each chunk pays for a pass over the weights; small chunks do not fill the GPU.
    Not this rule:
        Small chunks on a server that decodes most of the time: they keep it smooth.
    What to do:
        A larger --chunked-prefill-size.
    Source:
        ServerArgs: chunked_prefill_size // dp_size with DP attention.
    """
    chunk = case.signals.session.config.chunked_prefill_size
    if not chunk or chunk <= 0:
        raise NotApplicable(
            "the chunk size is unknown: the max_total_num_tokens= line with "
            "chunked_prefill_size= is missing, or chunking is off"
        )
    bound = case.earlier.get("PRE001")
    if bound is None or chunk > limits["chunk"]:
        return Clear(f"chunks of {chunk} tokens" + ("" if bound is None else ", large enough"))
    lines = case.data.batch.filter(
        (pl.col("phase") == "prefill") & (pl.col("queue_req").fill_null(0) > 0)
    )
    if lines.height < 10:
        return Clear("prefill was the limit, but nothing waited")
    full = lines.filter(pl.col("new_token") >= chunk)
    if full.height < limits["share"] * lines.height:
        return Clear(f"{full.height / lines.height:.0%} of the prefill lines fill the chunk")
    return Finding(
        summary=f"{full.height / lines.height:.0%} of the prefill batches fill the small chunk "
        f"of {chunk} tokens while prefill is the limit",
        episodes=bound.episodes,
        evidence=[
            shown(
                "chunk size",
                chunk,
                "tokens",
                (str(full["source"][0]), int(full["line_no"][0])),
                "chunked_prefill_size, per DP rank",
            )
        ],
        actions=act(
            case,
            "Larger prefill chunks",
            "chunked-prefill-size",
            4 * chunk,
            "fewer passes for the same prompts",
            chunk,
        ),
        severity=Severity.WARNING,
        confidence="medium",
    )
