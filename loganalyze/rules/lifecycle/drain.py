"""DRN001: the last requests of a job finish and no new ones come."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from loganalyze.episodes import Span, joined, spans
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import (
    Held,
    all_episodes,
    cells_of,
    confidence,
    shown,
    spell,
    waiting,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule
from loganalyze.signals import Rank


@rule(
    "DRN001",
    "drain-tail",
    severity=Severity.INFO,
    needs=("running_req", "queue_req"),
    limits={
        "lines": Limit(5.0, "lines", "fewest decode lines of falling running requests"),
        "start": Limit(4.0, "requests", "fewest running requests at its start"),
    },
)
def drain_tail(case: Case, limits: Limits) -> Finding | Clear:
    """The last requests of a job finish and no new ones come.

    What it flags:
        At the end of the log or before an idle time: no queue (on a PD decode server none before
        or in transfer either), no prefill, and running requests that only fall, over at least
        `lines` decode lines. Of a DP rank only once no other lets requests in or has any waiting.
    Why it is slow:
        Nothing is slow: throughput falls with the number of requests, not with the server.
    Not this rule:
        Throughput that falls with requests still coming (THR002, KV006), or with requests that
        come to other DP ranks only (DPI001, DPI002).
    What to do:
        Nothing; leave this time out when measuring.
    Source:
        #running-req, #queue-req and the absence of prefill lines.
    """
    pieces: list[Held] = []
    earliest: tuple[float, pl.DataFrame] | None = None
    comes = [rank.select((waiting(case) > 0) | (pl.col("started") > 0)) for rank in case.ranks]
    for k, rank in enumerate(case.ranks):
        elsewhere = _elsewhere(rank, [*comes[:k], *comes[k + 1 :]])
        ends = [rank.lines.height - 1, *(gap.before for gap in rank.gaps if gap.idle)]
        found: list[Span] = []
        for end in sorted(ends):
            since = _last_true(elsewhere[: int(rank.lines["t"][end] / rank.step_s) + 1])
            rows = rank.lines[_drain_start(rank, end) : end + 1].filter(
                pl.col("decode") & (pl.col("t") >= since * rank.step_s)
            )
            if rows.height < limits["lines"] or (rows["running_req"][0] or 0) < limits["start"]:
                continue
            if (rows["running_req"][-1] or 0) > 0.5 * rows["running_req"][0]:
                continue
            start = rows["t"][0]
            found.append((int(start / rank.step_s), int(rows["t"][-1] / rank.step_s) + 1))
            if earliest is None or start < earliest[0]:
                earliest = start, rows
        if found:
            pieces.append(Held(rank, joined(found, 0)))
    if earliest is None:
        return Clear("no time in which the last requests only finished")
    rows = earliest[1]
    before, after = int(rows["running_req"][0]), int(rows["running_req"][-1])
    return Finding(
        summary=f"The last requests finish and no new ones come {spell(case, pieces)}: running "
        f"falls from {before} to {after}",
        episodes=all_episodes(pieces),
        evidence=[
            shown("running requests at its start", before, "requests", Held.at(rows, 0)),
        ],
        severity=Severity.INFO,
        confidence=confidence(case, pieces, config=True),
        competing="a slower server (THR002) excluded: the running requests fall, and none follow",
    )


def _elsewhere(rank: Rank, others: Iterable[pl.Series]) -> pl.Series:
    """Return where a condition holds on any of the other ranks, in the cells of this one."""
    anywhere = rank.never
    for holds in others:
        anywhere = anywhere | cells_of(rank, holds).fill_null(False)
    return anywhere


def _last_true(cells: pl.Series) -> int:
    """Return the cell after the last one that is true; 0 if none is."""
    return cells.len() - int(cells.reverse().arg_max() or 0) if cells.any() else 0


def _drain_start(rank: Rank, end: int) -> int:
    """Return the first row of the run of falling decode lines without a queue up to `end`."""
    rows = rank.lines[max(0, end - 2000) : end + 1]
    steady = (
        pl.col("decode")
        & (pl.col("queue_req") == 0)
        & ~(pl.col("prealloc_req") > 0).fill_null(False)
        & ~(pl.col("transfer_req") > 0).fill_null(False)
        & (pl.col("running_req") <= pl.col("running_req").shift(1).fill_null(1 << 40))
        & ~pl.col("after_gap").fill_null(False)
    ).fill_null(False)
    run = spans(rows.select_seq(steady).to_series())
    if not run or run[-1][1] != rows.height:
        return end
    return int(rows["row"][run[-1][0]])
