"""KV009: a request waits that is larger than the KV pool."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import act, all_episodes, confidence, hold, pool_evidence, shown, spell
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank


@rule(
    "KV009",
    "never-admissible",
    severity=Severity.CRITICAL,
    needs=("kv_usage", "queue_req", "running_req"),
    limits={
        "usage": Limit(0.1, "fraction", "usage below which the pool counts as empty"),
        "report_s": Limit(30.0, "s", "shortest silence or spell"),
    },
    explains=("HNG001", "ADM001", "ADM002", "QUE001"),
)
def never_admissible(case: Case, limits: Limits) -> Finding | Clear:
    """A request waits that can never be admitted: it is larger than the pool.

    What it flags:
        A queue with (almost) nothing running and an almost empty pool, for `report_s`, or until
        the lines stop.
    Why it is slow:
        Admission needs prompt + min(max_new_tokens, 4096) free tokens. A request that asks for
        more than the whole pool waits forever, and everything behind it with it.
    Not this rule:
        A queue with KV in use (ADM001, KV001).
    What to do:
        A larger pool, a lower max_new_tokens, or a larger sliding-window pool.
    Source:
        PrefillAdder.add_one_req; #37610 (the scheduler spins without a forward pass).
    """
    if case.excerpt:
        raise NotApplicable("it is an excerpt; this needs half a minute of log")

    def judge(rank: Rank) -> list[Span]:
        stuck = rank.holds(
            (pl.col("queued") == 1)
            & (pl.col("running") == 0)
            & (pl.col("usage") < limits["usage"])
            & (pl.col("new_token") == 0),
            0.9,
            10.0,
        )
        out = at_least(spans(stuck), rank.cells(limits["report_s"]))
        for gap in rank.gaps:
            before = rank.lines.row(gap.before, named=True)
            if (
                gap.duration_s >= limits["report_s"]
                # A prefill line has just admitted something: what follows it is a hang.
                and before["decode"]
                and (before["queue_req"] or 0) > 0
                and (before["running"] or 0) <= 1
                and before["kv_usage"] is not None
                and before["kv_usage"] < limits["usage"]
            ):
                out.append((int(gap.start_s / rank.step_s), int(gap.end_s / rank.step_s)))
        return joined(sorted(out), 0)  # a silence begins in the cell of the line before it

    found = hold(case.ranks, judge)
    if not found:
        return Clear("the queue never stood still over an empty pool")
    return Finding(
        summary=f"Requests wait with nothing running and an empty KV pool {spell(case, found)}: "
        "the first of them may be larger than the pool",
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            shown(
                "waiting requests",
                found[0].mean("queue"),
                "requests",
                found[0].line("queue_req"),
                "",
                0,
            ),
        ],
        actions=[
            *act(
                case,
                "Lower max_new_tokens or the prompt length of the waiting requests: "
                "prompt + min(max_new_tokens, 4096) must be below the pool",
            ),
            *act(case, "Enlarge the KV pool", "mem-fraction-static", "higher"),
        ],
        severity=Severity.CRITICAL,
        confidence=confidence(case, found, competing=True),
        competing="a hang (HNG001) looks the same when the lines stop",
    )
