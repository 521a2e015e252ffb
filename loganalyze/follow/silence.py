"""A silence that still lasts: the rule of silences (HNG001) sees one only once it is over.

A log that stopped may be that of a server that hangs, of one that was killed without a word, or
of one that has nothing to do: requests that end before the next decode line is due leave no
line. The last is ruled out where requests wait, or where more of them ran than this server ever
finished from one line to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import polars as pl

from loganalyze import rules, signals, timeline
from loganalyze.follow.alerts import HANG
from loganalyze.lengths import duration
from loganalyze.model import Action, Episode, Finding, SessionData, Severity
from loganalyze.rules.held import shown
from loganalyze.rules.lifecycle.remedies import see_the_ranks
from loganalyze.rules.registry import Case, Run
from loganalyze.timeline import Timeline, as_float

#: How many requests end from one line to the next is not known from fewer lines.
_KNOWN_LINES = 20


def limits(overrides: Mapping[str, float]) -> dict[str, float]:
    """Return the limits of the rule of silences."""
    known = rules.all_rules()[HANG].limits
    return {name: overrides.get(f"{HANG}.{name}", one.value) for name, one in known.items()}


def due_s(data: SessionData, limits: Mapping[str, float]) -> float | None:
    """Return after how many seconds without a line the last session of a log stands still.

    None where idleness can explain any silence.
    """
    session = data.session
    if session.ended_by != "end_of_log" or session.role == "prefill":
        return None  # it said that it ends; a PD prefill server is idle without a line
    ranks = _ranks(data)
    if not any(_owes(one) for one in ranks):
        return None
    spacing = max(as_float(one.lines["spacing_s"].median(), 0.0) for one in ranks)
    return max(limits["report_s"], limits["spacings"] * spacing)


def _ranks(data: SessionData) -> list[Timeline]:
    return [one for one in timeline.of(data) if one.clock == "stamps" and one.lines.height]


def find(data: SessionData, quiet_s: float, limits: Mapping[str, float]) -> Finding:
    """Return what a silence says that lasts, and is due.

    Args:
        data: the last session of a log.
        quiet_s: seconds without a line, by the clock of who waits.
        limits: see `limits`.
    """
    session, ranks = data.session, _ranks(data)
    rows = [one.lines.row(-1, named=True) for one in ranks]
    last = max(rows, key=lambda row: row["time"] or datetime.min)
    where = last["source"], last["line_no"]
    running = sum(row["running"] or 0 for row in rows)
    waiting = sum(row["queue_req"] or 0 for row in rows)
    work = f"{running} running" + (f" and {waiting} waiting" if waiting else "")
    compiling = _may_compile(data, ranks, where)
    case = Case(signals.build(data), {}, Run([data]))
    return Finding(
        summary=f"No line for {duration(quiet_s)} with {work}: stuck, killed, or its log ended"
        + (", or kernels are being compiled" if compiling else ""),
        episodes=[Episode(last["time"], None, where[1], where[1], None, where[0])],
        evidence=[
            shown("silence so far", quiet_s, "s", where, "by the clock of this machine", 0),
            shown("running requests at the last line", running, "requests", where),
            shown("waiting requests at the last line", waiting, "requests", where),
        ],
        actions=[
            Action("See whether the process still runs and answers, and still writes this log"),
            *see_the_ranks(case, {}),
        ],
        severity=Severity.WARNING if compiling else Severity.CRITICAL,
        confidence="low" if compiling else "medium",
        competing="all requests were aborted by their clients; lines are held back on their way",
        code=HANG,
        name=rules.all_rules()[HANG].name,
        session=session.id,
        limits=dict(limits),
    )


def _owes(one: Timeline) -> bool:
    """Whether a rank would have printed a line by now, had it not stood still."""
    last = one.lines.row(-1, named=True)
    if (last["queue_req"] or 0) > 0:
        return True
    single = (pl.col("lines") == 1) & (pl.col("lines").shift(1) == 1)
    ended = (
        one.lines.filter(single).height
        and one.lines.select(
            (pl.col("running").shift(1) - pl.col("running_req")).filter(single).max()
        ).item()
    )
    known = one.lines.height >= _KNOWN_LINES
    return known and (last["running"] or 0) > max(as_float(ended, 0.0), 0.0)


def _may_compile(data: SessionData, ranks: list[Timeline], where: tuple[str, int]) -> bool:
    """Whether kernels may be compiled: nothing was decoded yet, or the server said so."""
    said = data.event.filter(
        (pl.col("kind") == "jit_compile")
        & (pl.col("source") == where[0])
        & (pl.col("line_no") > where[1])
    )
    return said.height > 0 or not any(one.lines["decode"].any() for one in ranks)
