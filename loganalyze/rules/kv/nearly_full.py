"""KV003: the KV pool is nearly full, and when it would be full."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Evidence, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    minimum,
    outside,
    pool_evidence,
    shown,
    spell,
    waiting,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule
from loganalyze.signals import Rank
from loganalyze.timeline import slope


@rule(
    "KV003",
    "near-saturation",
    severity=Severity.INFO,
    needs=("kv_usage", "queue_req"),
    limits={
        "usage": Limit(0.85, "fraction", "usage that counts as nearly full"),
        "share": Limit(0.70, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(10.0, "s", "window"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "slope_s": Limit(120.0, "s", "time over which the growth is measured"),
    },
    after=("KV001",),
)
def near_saturation(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool is nearly full and nothing waits.

    What it flags:
        Usage at or above `usage` with an empty queue and no retraction, for at least
        `report_s`.
    Why it is slow:
        Nothing is slow: usage above 0.9 without a queue is good use of the pool. More load would
        make requests wait.
    Not this rule:
        A full pool with a queue (KV001) or with retractions (KV004).
    What to do:
        Nothing now. Add headroom before the load grows.
    Source:
        SGLang docs, "Hyperparameter Tuning": token usage above 0.9 is good utilisation.
    """

    def judge(rank: Rank) -> list[Span]:
        near = (
            (pl.col("full_usage") >= limits["usage"])
            & (waiting(case) == 0)
            & (pl.col("running") > 0)
            & (pl.col("retracted") == 0)
        )
        calm = rank.select(near) & outside(case, rank, "KV001")
        held = rank.holds(calm, limits["share"], limits["window_s"])
        found = joined(spans(held), rank.cells(15))
        return at_least(found, minimum(case, limits["report_s"]) / rank.step_s)

    found = hold(case.ranks, judge)
    if not found:
        return Clear(
            f"usage was never at {limits['usage']:.2f} without a queue for "
            f"{limits['report_s']:.0f} s"
        )
    worst = found[0]
    evidence = [
        *pool_evidence(case),
        worst.averaged("mean usage", "full_usage", "kv_usage", "fraction", 2),
    ]
    evidence += _forecast(worst, limits)
    return Finding(
        summary=f"KV pool nearly full but nothing waits {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=act(case, "Nothing now; plan more KV room before the load grows"),
        severity=Severity.INFO,
        confidence=confidence(case, found),
        competing="KV saturation (KV001) excluded: nothing waits for long",
    )


def _forecast(held: Held, limits: Limits) -> list[Evidence]:
    """When the pool would be full if usage went on as in the last minutes of the last spell."""
    rank, n = held.rank, held.rank.kv_tokens
    first, end = held.spans[-1]
    tail = rank.grid[max(first, end - rank.cells(limits["slope_s"])) : end].drop_nulls("token")
    if not n or tail.height < 10:
        return []
    growth = slope(tail["t"], tail["token"])
    if growth is None or growth <= 0:
        return []
    left = (n - float(tail["token"][-1])) / growth
    if not 0 < left < 3600:
        return []
    return [
        shown(
            "time until full at this growth",
            left,
            "s",
            (None, None),
            "(pool - tokens) / growth of the last 120 s",
            0,
        )
    ]
