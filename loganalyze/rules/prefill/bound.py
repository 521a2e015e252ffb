"""PRE001: prefill takes most of the time, and decoding starves."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Action, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    largest_prefill,
    outside,
    over,
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
            (as_float(rank.mean("duty", limits["window_s"]).max(), 0.0) for rank in case.ranks),
            default=0.0,
        )
        return Clear(f"prefill took at most {top:.0%} of the time over {limits['window_s']:.0f} s")
    worst = found[0]
    cells = worst.cells.select_seq(
        pl.col("new_token", "cached_token", "started", "decoded").sum()
    ).row(0, named=True)
    prompt = (cells["new_token"] + cells["cached_token"]) / max(cells["started"], 1.0)
    rate = cells["new_token"] / max(worst.seconds, 1.0)
    model = worst.rank.model
    alone = case.signals.session.role == "prefill"
    giant = _giant(case, found)
    share = shown(
        "share of time spent on prefill",
        worst.mean("duty"),
        formula=(
            "(p0 x prefill batches + p1 x new tokens) / time, fitted"
            if model is not None
            else "no step model: prefill batches over all passes, each no shorter than a decode "
            "step; without any decode line among them 0.8"
        )
        + f", {over(worst.lines)}",
        digits=3,
    )
    tokens_per_prompt = shown(
        "tokens per prompt",
        prompt,
        "tokens",
        formula="(#new-token + #cached-token) / #new-seq, chunks that go on with a prompt "
        f"left out, {over(worst.prefill)}",
        digits=0,
    )
    evidence = [
        *([] if alone else [share]),
        *largest_prefill(worst),
        shown(
            "prompt tokens computed",
            rate,
            "token/s",
            formula=f"sum of #new-token / time, {over(worst.prefill)}",
            digits=0,
        ),
        shown(
            "tokens decoded",
            cells["decoded"] / max(worst.seconds, 1.0),
            "token/s",
            formula=f"tokens between decode lines / time, {over(worst.decode)}",
            digits=0,
        ),
        *([tokens_per_prompt] if cells["started"] else []),
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
        summary=(
            f"The prefill server computes one batch after another {spell(case, found)}: "
            if alone
            else f"Prefill takes {worst.mean('duty') or 0:.0%} of the time {spell(case, found)}: "
        )
        + f"{rate:,.0f} prompt tokens a second, {worst.mean('queue') or 0:,.0f} waiting",
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
            *act(
                case,
                "Add prefill servers"
                if alone
                else "Give prefill its own servers (PD disaggregation), or add replicas",
            ),
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
