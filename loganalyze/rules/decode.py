"""Rules on decode speed: is a step slower than its batch and context explain?"""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from loganalyze.capacity.steps import MIN_LINES
from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Action, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    minimum,
    severity,
    shown,
    spell,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "GRF001",
    "cuda-graph-off",
    severity=Severity.WARNING,
    needs=("cuda_graph", "running_req"),
    limits={
        "report_s": Limit(15.0, "s", "shortest spell"),
        "share": Limit(0.5, "fraction", "share of decode lines without a graph"),
        "join_s": Limit(10.0, "s", "holes up to this long are closed"),
    },
    explains=("THR002",),
)
def cuda_graph_off(case: Case, limits: Limits) -> Finding | Clear:
    """Decode steps run without a CUDA graph.

    What it flags:
        Two or more decode lines that print `cuda graph: False`, for `report_s` or longer.
        Prefill lines print it too from 0.5.9 and are False as a rule: they do not count, and
        neither do lines next to another DP rank's prefill, unless more requests run than ever
        with a graph.
    Why it is slow:
        Without a captured graph each kernel of each step is launched from Python.
    Not this rule:
        A DP rank that waits for another rank's prefill runs without a graph for single steps.
    What to do:
        Capture graphs up to the batch size that is reached, or cap running requests at the
        largest captured size.
    Source:
        CudaGraphRunner.can_run: batch size beyond cuda_graph_max_bs, or a mixed DP step.
    """

    def judge(rank: Rank) -> list[Span]:
        without = rank.select(pl.col("graph_off") > 0.5) & ~_others_prefill(case, rank)
        off = rank.holds(without, limits["share"], 5.0)
        found = at_least(
            joined(spans(off), rank.cells(limits["join_s"])),
            minimum(case, limits["report_s"]) / rank.step_s,
        )
        return found if Held(rank, found).decode.height > 1 else []

    if case.arg("disable_cuda_graph"):
        return Clear("CUDA graphs are disabled by --disable-cuda-graph")
    found = hold(case.ranks, judge)
    if not found:
        return Clear("decode steps ran with a graph")
    worst = found[0]
    said = spell(case, found, ~pl.col("cuda_graph"), of="decode")
    off = worst.decode.filter(~pl.col("cuda_graph"))
    on = worst.rank.lines.filter(pl.col("decode") & pl.col("cuda_graph"))
    least_off, most_on = as_float(off["running_req"].min()), as_float(on["running_req"].max())
    where = Held.at(off, 0) if off.height else (None, None)
    evidence = [
        shown("fewest running requests without a graph", least_off, "requests", where),
        shown("most running requests with a graph", most_on, "requests", (None, None)),
    ]
    slow = off["residual"].drop_nulls()
    if slow.len() >= 3 and on.height >= MIN_LINES:
        evidence.append(
            shown(
                "step time without a graph against the model with one",
                math.exp(as_float(slow.median(), 0.0)),
                "x",
                where,
                "median of measured / modelled time",
                2,
            )
        )
    need = int(as_float(off["running_req"].max(), 0.0))
    by_size = most_on is not None and least_off is not None and least_off > most_on
    actions: list[Action] = []
    for flag in ("cuda-graph-max-bs-decode", "cuda-graph-max-bs"):
        actions += (
            []
            if actions
            else act(
                case,
                "Capture graphs up to the batch size that is reached",
                flag,
                need,
                "about 2 MB of GPU memory per batch size",
            )
        )
    cap = case.arg("cuda_graph_max_bs") or case.arg("cuda_graph_max_bs_decode")
    if isinstance(cap, int):
        actions += act(
            case,
            "Or cap running requests at the largest captured batch size",
            "max-running-requests",
            cap,
            present=worst.rank.cap,
        )
    return Finding(
        summary=f"Decode steps run without a CUDA graph {said}: "
        + (
            f"more than {most_on:.0f} requests run"
            if by_size
            else f"{worst.mean('running') or 0:.0f} requests run"
        ),
        episodes=all_episodes(found),
        evidence=evidence,
        actions=actions,
        severity=Severity.WARNING,
        confidence=confidence(case, found, config=True),
        competing=""
        if by_size
        else "graphs disabled or failed to capture, or other DP ranks in prefill",
    )


def _others_prefill(case: Case, rank: Rank) -> pl.Series:
    """Return where another rank's prefill may have kept a step of this rank from its graph.

    Ranks step together: while one is in prefill, all run without a graph. More requests than
    ran with a graph at any time are a reason of their own.
    """
    cells = rank.grid["cell"]
    busy = pl.repeat(False, cells.len(), eager=True, dtype=pl.Boolean)
    for other in case.ranks:
        if other is not rank:
            near = other.grid.filter(pl.col("n_prefill") > 0)["cell"]
            beside = pl.concat([near - 1, near, near + 1]).unique()
            busy = busy | cells.is_in(beside.implode())
    on = rank.lines.filter(pl.col("decode") & pl.col("cuda_graph"))["running_req"].max()
    if on is not None:
        busy = busy & (rank.grid["running"] <= as_float(on, 0.0)).fill_null(True)
    return busy


@rule(
    "SPC001",
    "low-accept-length",
    severity=Severity.WARNING,
    needs=("accept_len", "running_req"),
    limits={
        "share_of_early": Limit(0.7, "x", "accept length over the session's early median"),
        "floor": Limit(1.3, "tokens", "accept length below which drafting hardly pays"),
        "early_s": Limit(120.0, "s", "time that sets the early median"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(30.0, "s", "shortest spell"),
    },
    explains=("THR002",),
)
def low_accept_length(case: Case, limits: Limits) -> Finding | Clear:
    """Speculative decoding drafts tokens that are not accepted.

    What it flags:
        Accept length below `share_of_early` of the session's early median, or below `floor`,
        for `report_s` or longer.
    Why it is slow:
        Each step pays for drafting and verifying. With an accept length of 1.0 (the bonus token
        alone) a step yields what plain decoding yields, at a higher price.
    Not this rule:
        A slower GPU (THR002): rates are compared per accepted token there.
    What to do:
        Fewer draft steps, another draft model, or none. Exactly 1.00 all the time points to a
        draft out of step with its target: test without the prefix cache.
    Source:
        accept len counts the bonus token; break-even: 1 + draft cost / step time.
    """

    def judge(rank: Rank) -> list[Span]:
        accept = rank.grid["accept"]
        early = as_float(accept.drop_nulls().head(rank.cells(limits["early_s"])).median())
        if early is None:
            return []
        limit = max(limits["share_of_early"] * early, limits["floor"])
        low = rank.holds(pl.col("accept") < limit, 0.6, limits["window_s"])
        return at_least(joined(spans(low), rank.cells(20)), rank.cells(limits["report_s"]))

    if case.excerpt:
        raise NotApplicable(f"{case.length} is too little to compare accept lengths")
    found = hold(case.ranks, judge)
    if not found:
        low = as_float(case.data.batch["accept_len"].min(), 0.0)
        return Clear(
            f"accept length never fell for {limits['report_s']:.0f} s; lowest line {low:.2f}"
        )
    worst = found[0]
    first = worst.rank.grid["accept"].drop_nulls().head(worst.rank.cells(limits["early_s"]))
    early = as_float(first.median(), 0.0)
    now = worst.mean("accept") or 0.0
    dead = worst.decode.filter(pl.col("accept_len") == 1.0).height > 0.9 * max(
        worst.decode.height, 1
    )
    steps_now = case.arg("speculative_num_steps")
    actions = act(
        case,
        "Fewer draft steps",
        "speculative-num-steps",
        max(1, steps_now // 2) if isinstance(steps_now, int) else "lower",
        "less work for drafts that are thrown away",
    )
    if dead:
        actions += act(
            case,
            "An accept length of exactly 1.00 points to a draft out of step: test "
            "without the prefix cache",
            "disable-radix-cache",
            True,
        )
    actions += act(case, "Compare with speculative decoding off at this load")
    return Finding(
        summary=f"Few drafted tokens are accepted {spell(case, found)}: accept length "
        f"{now:.2f}, early {early:.2f}",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "accept length",
                now,
                "tokens",
                worst.line("accept_len", least=True),
                "time-weighted mean, bonus token included",
                2,
            ),
            shown(
                "accept length, early",
                early,
                "tokens",
                (None, None),
                f"median of the first {limits['early_s']:.0f} s",
                2,
            ),
        ],
        actions=actions,
        severity=severity(case, found),
        confidence=confidence(case, found, config=True),
        competing="requests of another kind draft less well; the log does not show their content",
    )


@rule(
    "LNG001",
    "long-context",
    severity=Severity.INFO,
    needs=("token|full_token", "gen_throughput"),
    limits={
        "share": Limit(0.5, "fraction", "share of the step that reads KV"),
        "window_s": Limit(21.0, "s", "window"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "join_s": Limit(30.0, "s", "holes up to this long are closed"),
    },
    after=("PRE001",),
)
def long_context(case: Case, limits: Limits) -> Finding | Clear:
    """Reading KV takes most of a decode step: contexts are long.

    What it flags:
        More than `share` of the modelled step time spent on KV tokens (b x tokens), for
        `report_s` or longer.
    Why it is slow:
        Attention reads all KV of all running requests in every step. As contexts grow, the rate
        per request falls although nothing else changed.
    Not this rule:
        A slower GPU (THR002): here the model explains the rate.
    What to do:
        fp8 KV halves the bytes; DP attention or DCP for MLA models; shorter contexts.
    Source:
        The fitted step model, t0 + a R + b T.
    """
    if not any(rank.model for rank in case.ranks):
        raise NotApplicable("it has too few decode lines to fit the step model (12 are needed)")
    known = case.signals.capacity.bytes_per_token is not None

    def judge(rank: Rank) -> list[Span]:
        if rank.model is None or not (rank.model.identified or known):
            return []
        high = (rank.mean("attention", limits["window_s"]) > limits["share"]) & ~rank.grid["gap"]
        high = high & (rank.grid["running"].fill_null(0) > 0)
        return at_least(
            joined(spans(high), rank.cells(limits["join_s"])), rank.cells(limits["report_s"])
        )

    found = hold(case.ranks, judge)
    if not found:
        top = max(as_float(rank.grid["attention"].max(), 0.0) for rank in case.ranks)
        return Clear(f"reading KV took at most {top:.0%} of a step, by the fitted model")
    worst = found[0]
    model = worst.rank.model
    share = worst.mean("attention") or 0.0
    return Finding(
        summary=f"Reading KV takes {share:.0%} of each decode step {spell(case, found)}: "
        "contexts are long",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "share of the step that reads KV",
                share,
                "",
                worst.line("t_mean"),
                "b x #token / modelled step",
                3,
            ),
            shown(
                "time per KV token and step",
                (model.b_s if model else 0.0) * 1e9,
                "ns",
                (None, None),
                "b of the fitted model",
                2,
            ),
            shown(
                "KV tokens held",
                worst.mean("token"),
                "tokens",
                worst.line("t_mean"),
                "time-weighted mean",
                0,
            ),
        ],
        actions=[
            *(
                act(case, "Store KV in fp8: half the bytes to read", "kv-cache-dtype", "fp8_e4m3")
                if "fp8" not in str(case.arg("kv_cache_dtype"))
                else []
            ),
            *act(case, "Shorter contexts, where the task allows"),
        ],
        severity=Severity.INFO,
        confidence=confidence(case, found, inferred=model is None or not model.identified),
        competing=model.note if model and not model.identified else "",
    )


# -- THR ----------------------------------------------------------------------------------


def _clean(rank: Rank) -> pl.DataFrame:
    """Return the decode lines whose residual can be compared: t, z, line."""
    return rank.lines.filter(
        pl.col("decode")
        & pl.col("residual").is_not_null()
        & pl.col("cuda_graph").fill_null(True)
        & (pl.col("r_change") < 0.3)
        & ((pl.col("n_prefill") <= 6 * pl.max_horizontal("lines", 1)) | (pl.col("duty") <= 0.4))
        & ~pl.col("after_gap").fill_null(True)
        & ~pl.col("emptied").fill_null(True)
        & ~pl.col("first").fill_null(True)
    ).select("t", "source", "line_no", "r_mean", "t_mean", z="residual")


@rule(
    "THR002",
    "step-time-jump",
    severity=Severity.CRITICAL,
    needs=("gen_throughput", "running_req"),
    limits={
        "step": Limit(0.18, "log", "jump of log step time: 0.18 is 20 % slower"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "before_s": Limit(60.0, "s", "shortest time before it"),
    },
    after=("GRF001", "SPC001", "CRS001"),
)
def step_time_jump(case: Case, limits: Limits) -> Finding | Clear:
    """Decode steps suddenly take longer, with the same batch and context.

    What it flags:
        A lasting jump of measured over modelled step time by `step` or more, in the median and
        in the lower quartile, that running requests, KV tokens, accept length, prefill and CUDA
        graphs do not explain.
    Why it is slow:
        Something outside the scheduler: clocks lowered by heat or power, another process on the
        GPU, a slow link, a failing part.
    Not this rule:
        Long contexts (LNG001), steps without a graph (GRF001), few accepted drafts (SPC001).
    What to do:
        nvidia-smi -q -d CLOCK,PERFORMANCE,ECC; other processes on the GPU; the links.
    Source:
        Change point of log(measured / modelled time) of clean decode intervals.
    """
    if not any(rank.model for rank in case.ranks):
        raise NotApplicable("it has too few decode lines to fit the step model (12 are needed)")
    if case.signals.span_s < limits["report_s"] + limits["before_s"]:
        raise NotApplicable(f"it covers less than {limits['report_s'] + limits['before_s']:.0f} s")
    jumps: dict[int, float] = {}

    def judge(rank: Rank) -> list[Span]:
        found = _slow_stretch(rank, limits)
        if found is None:
            return []
        span, size = found
        jumps[id(rank)] = size
        return [span]

    found = hold(case.ranks, judge)
    if not found:
        return Clear("step times followed batch and context throughout")
    worst = found[0]
    size = math.exp(jumps[id(worst.rank)])
    rows = _clean(worst.rank).filter(pl.col("t") >= worst.spans[0][0] * worst.rank.step_s)
    where = Held.at(rows, 0) if rows.height else (None, None)
    return Finding(
        summary=f"Decode steps take {size:.2f} times as long as before, with the same batch and "
        f"context, {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "step time against before",
                size,
                "x",
                where,
                "median of measured / modelled time, after over before",
                2,
            ),
            shown(
                "running requests",
                worst.mean("running"),
                "requests",
                where,
                "time-weighted mean",
                1,
            ),
        ],
        actions=[
            *act(
                case,
                "Look at GPU clocks, throttle reasons and ECC errors: nvidia-smi -q -d "
                "CLOCK,PERFORMANCE,ECC",
            ),
            *act(case, "Look for other processes on the GPUs and for slow links (NCCL)"),
        ],
        severity=severity(case, found),
        confidence=confidence(case, found, config=True),
        competing="a slow rank elsewhere (TPS001): the log of one rank cannot tell"
        if _tp(case) > 1
        else "",
    )


def _tp(case: Case) -> int:
    tp = case.arg("tp_size", 1)
    return tp if isinstance(tp, int) else 1


#: Intervals on each side of a jump that can be compared.
_LEAST_ALIKE = 8


def _slow_stretch(rank: Rank, limits: Limits) -> tuple[Span, float] | None:
    """Return the slow stretch and its jump (log): the split of least spread, then its end."""
    rows = _clean(rank)
    if rows.height < 40:
        return None
    # Medians of blocks are robust and few enough to try every split.
    blocks = max(1, rows.height // 400)
    z = (
        rows.with_columns(block=pl.int_range(pl.len()) // blocks)
        .group_by("block", maintain_order=True)
        .agg(pl.col("z").median(), pl.col("t").first())
    )
    split = _best_split(z["z"])
    if split is None:
        return None
    t0 = float(z["t"][split])
    before = rows.filter(pl.col("t") < t0)
    after = rows.filter(pl.col("t") >= t0)
    if not before.height or not after.height:
        return None
    base = before.filter(pl.col("t") >= t0 - 600)["z"]
    # Where it returns to half the jump it ended.
    size = _difference(after["z"], base, 0.5)
    end_t = float(rows["t"][-1])
    level = as_float(base.median(), 0.0) + 0.5 * size
    smooth = after.with_columns(
        m=pl.col("z").rolling_median(min(15, after.height), min_samples=1, center=True)
    )
    low = smooth.with_columns(low=pl.col("m") < level)
    runs = (
        low.with_columns(run=pl.col("low").rle_id())
        .filter("low")
        .group_by("run", maintain_order=True)
        .agg(a=pl.col("t").first(), b=pl.col("t").last())
    )
    back = runs.filter(pl.col("b") - pl.col("a") >= 30)
    if back.height:
        end_t = float(back["a"][0])
    slow_rows = after.filter(pl.col("t") <= end_t)
    # Only batches that were seen in and outside it tell: the model may bend elsewhere. Where a
    # slow server lets its batch grow beyond all seen so far, those around the jump are compared.
    usual = rows.filter((pl.col("t") < t0) | (pl.col("t") > end_t))
    near = pl.col("t").is_between(t0 - limits["before_s"], t0 + limits["before_s"])
    matched = _alike(usual, slow_rows) or _alike(before.filter(near), slow_rows.filter(near), 0.3)
    if matched is None:
        return None
    base, slow = matched
    long_enough = (
        end_t - t0 >= limits["report_s"] and t0 - float(rows["t"][0]) >= limits["before_s"]
    )
    jump = min(_difference(slow, base, 0.5), _difference(slow, base, 0.25))
    if not long_enough or jump < limits["step"]:
        return None
    return (int(t0 / rank.step_s), int(end_t / rank.step_s) + 1), _difference(slow, base, 0.5)


def _alike(
    before: pl.DataFrame, after: pl.DataFrame, batch: float = 0.15
) -> tuple[pl.Series, pl.Series] | None:
    """Return the residuals before and after of intervals with alike batches and tokens.

    Alike are batches within the margin `batch` of those of the other side.
    """
    for column, margin in (("r_mean", batch), ("t_mean", 0.3)):
        if before[column].null_count() or after[column].null_count():
            continue
        for one, other in ((before, after), (after, before)):
            low, high = other[column].quantile(0.1), other[column].quantile(0.9)
            kept = one.filter(
                pl.col(column).is_between(
                    (1 - margin) * as_float(low, 0.0), (1 + margin) * as_float(high, 0.0)
                )
            )
            if one is before:
                near_before = kept
            else:
                near_after = kept
        before, after = near_before, near_after
        if before.height < _LEAST_ALIKE or after.height < _LEAST_ALIKE:
            return None
    return before["z"], after["z"]


def _difference(after: pl.Series, before: pl.Series, quantile: float) -> float:
    a, b = after.quantile(quantile), before.quantile(quantile)
    return float(a) - float(b) if a is not None and b is not None else 0.0


def _best_split(z: pl.Series) -> int | None:
    """Return the first index of the second part of the split with the largest mean difference.

    The weight sqrt(n m / (n + m)) is that of a two-sample test, so ends do not win by chance.
    """
    frame = pl.DataFrame({"z": z}).with_columns(
        n=pl.int_range(1, pl.len() + 1), head=pl.col("z").cum_sum(), total=pl.col("z").sum()
    )
    n, length = pl.col("n"), z.len()
    frame = frame.filter((n >= 5) & (n <= length - 5)).with_columns(
        score=((pl.col("total") - pl.col("head")) / (length - n) - pl.col("head") / n)
        * (n * (length - n) / length).sqrt()
    )
    if not frame.height:
        return None
    return int(frame["n"][int(frame["score"].arg_max() or 0)])


@rule(
    "THR003",
    "slow-after-event",
    severity=Severity.CRITICAL,
    needs=("gen_throughput", "running_req"),
    limits={
        "within_s": Limit(30.0, "s", "time between the event and the jump"),
        "factor": Limit(2.0, "x", "step time after over before that tells without a long log"),
        "lines": Limit(4.0, "lines", "decode lines needed before and after"),
        "around_s": Limit(120.0, "s", "time around the event that is compared"),
    },
    after=("THR002",),
    explains=("THR002", "TPS001", "KV001", "KV003", "KV004", "KV005", "ADM001", "ADM002"),
)
def slow_after_event(case: Case, limits: Limits) -> Finding | Clear:
    """Decode steps became slow just after an event that the log names.

    What it flags:
        Step times that at least double (`factor`) just after a retraction, a refused flush, or
        another event, beyond what more running requests explain at worst (in proportion); or a
        lasting jump of step time (THR002) within `within_s` after one.
    Why it is slow:
        A known class of faults: after some events decoding stays slow although batch, context and
        graph are the same.
    Not this rule:
        A jump without an event nearby (THR002), and retractions as such (KV004).
    What to do:
        Restart to recover, upgrade, and report it with the lines around the event.
    Source:
        #26248 (decode collapse after a retraction).
    """
    events = case.data.event.filter(
        ~pl.col("duplicate").fill_null(False)
        & ~pl.col("debug").fill_null(False)
        & ~pl.col("kind").is_in(["ready", "health_check_failed", "sigterm", "graceful_exit"])
    ).sort("line_no")
    collapse = _collapse(case, events, limits)
    if collapse is not None:
        row, held, factor = collapse
        name = _event_name(str(row["kind"]))
        return Finding(
            summary=f"Decode steps take {factor:.1f} times as long after {name}, for the number "
            f"of running requests, {spell(case, [held])}",
            episodes=held.episodes,
            evidence=[
                shown("event", str(row["kind"]), "", (row["source"], row["line_no"])),
                shown(
                    "step time after the event over before",
                    factor,
                    "x",
                    held.line("gen_throughput", least=True),
                    "median of running x accepted / throughput; over the growth of the batch",
                    1,
                ),
            ],
            actions=act(
                case, "Restart to recover, upgrade, and report it with the lines around the event"
            ),
            severity=severity(case, [held]) if not case.excerpt else Severity.CRITICAL,
            confidence="medium",
            competing="another change at the same moment",
        )
    jump = case.earlier.get("THR002")
    if jump is None:
        return Clear("step times did not jump after an event")
    first = jump.episodes[0]
    if first.start is None:
        raise NotApplicable("its lines carry no stamps")
    near = events.filter(
        pl.col("time").is_not_null()
        & (pl.lit(first.start) - pl.col("time"))
        .dt.total_seconds()
        .is_between(-2, limits["within_s"])
    )
    if not near.height:
        return Clear(f"no event within {limits['within_s']:.0f} s before the jump of step times")
    row = near.row(-1, named=True)
    return Finding(
        summary=f"{jump.summary}, just after {_event_name(row['kind'])}",
        episodes=jump.episodes,
        evidence=[
            shown("event", row["kind"], "", (row["source"], row["line_no"])),
            *jump.evidence,
        ],
        actions=[
            *act(
                case, "Restart to recover, upgrade, and report it with the lines around the event"
            ),
            *jump.actions,
        ],
        severity=jump.severity,
        confidence="medium" if jump.confidence == "high" else "low",
        competing="chance: THR002 without a link to the event",
    )


def _event_name(kind: str) -> str:
    return {"retract": "a retraction", "flush_refused": "a refused cache flush"}.get(
        kind, f"the event {kind}"
    )


def _collapse(
    case: Case, events: pl.DataFrame, limits: Limits
) -> tuple[dict[str, Any], Held, float] | None:
    """Return (event, spans, factor) of the first event after which steps took far longer."""
    for rank in case.ranks:
        rows = rank.lines.filter(
            pl.col("decode")
            & (pl.col("lines") == 1)
            & (pl.col("gen_throughput") > 0)
            & (pl.col("running_req") > 0)
            & pl.col("cuda_graph").fill_null(True)
            & (pl.col("n_prefill").fill_null(0) == 0)
        ).select(
            "t",
            "line_no",
            r=pl.col("running_req"),
            per_step=pl.col("running_req")
            * pl.col("accept_len").fill_null(1.0)
            / pl.col("gen_throughput"),
        )
        for row in _before_a_jump(events, rows, limits).iter_rows(named=True):
            at = as_float(rank.lines.filter(pl.col("line_no") <= row["line_no"])["t"].max())
            if at is None:
                continue
            before = rows.filter(
                (pl.col("line_no") < row["line_no"]) & (pl.col("t") >= at - limits["around_s"])
            ).tail(40)
            # The first interval after it still holds the event itself.
            after = rows.filter(
                (pl.col("line_no") > row["line_no"]) & (pl.col("t") <= at + limits["around_s"])
            )[1:]
            r0 = as_float(before["r"].median())
            if r0 is None:
                continue
            before = before.filter(pl.col("r").is_between(0.6 * r0, 1.4 * r0))
            # A larger batch takes longer, at worst in proportion to it.
            after = after.filter(pl.col("r").is_between(0.6 * r0, 4 * r0)).with_columns(
                per_step=pl.col("per_step") / (pl.col("r") / r0).clip(lower_bound=1.0)
            )
            if min(before.height, after.height) < limits["lines"]:
                continue
            factor = as_float(after["per_step"].median(), 0.0) / as_float(
                before["per_step"].median(), 1.0
            )
            lower = as_float(after["per_step"].quantile(0.25), 0.0) / as_float(
                before["per_step"].quantile(0.75), 1.0
            )
            if factor >= limits["factor"] and lower >= 0.75 * limits["factor"]:
                span = (int(at / rank.step_s), int(float(after["t"][-1]) / rank.step_s) + 1)
                return row, Held(rank, [span]), factor
    return None


#: Lines on each side of an event for a first look, and how many events are looked at closely.
_GLANCE_LINES = 20
_CLOSE_LOOKS = 100


def _before_a_jump(events: pl.DataFrame, rows: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    """Return the events after which steps look slower: most logs hold many, and few of those.

    One event of a burst tells as much as all of them.
    """
    step = pl.col("per_step")
    ahead = step.reverse().rolling_median(_GLANCE_LINES, min_samples=2).reverse()
    looks = rows.select(
        "line_no",
        jump=ahead.shift(-1) / step.rolling_median(_GLANCE_LINES, min_samples=2),
    )
    return (
        events.with_columns(burst=pl.col("line_no") // 50)
        .unique(["kind", "burst"], keep="last", maintain_order=True)
        .sort("line_no")
        .join_asof(looks.sort("line_no"), on="line_no")
        .filter(pl.col("jump") >= 0.6 * limits["factor"])
        .head(_CLOSE_LOOKS)
    )
