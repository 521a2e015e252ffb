"""Count what happened besides batches: retractions, failures, exits, HTTP errors.

Zero is counted too where the log could have shown it: "no crash" is a statement.
"""

from __future__ import annotations

import polars as pl

from loganalyze import derive
from loganalyze.model import EventCount, SessionData

#: Always reported, seen or not.
ALWAYS = (
    "retract",
    "retract_abort",
    "kv_oom",
    "exception",
    "watchdog_timeout",
    "health_check_failed",
)

_MAX_TIMES = 200


def count(data: SessionData) -> list[EventCount]:
    """Return the events of a session by kind, duplicates and test retractions left out."""
    real = data.event.filter(
        ~pl.col("duplicate").fill_null(False) & ~pl.col("debug").fill_null(False)
    )
    seen = real["kind"].unique().sort().to_list()
    counts = [
        _one(data, kind, real.filter(pl.col("kind") == kind) if kind in seen else real.clear())
        for kind in (*ALWAYS, *(k for k in seen if k not in ALWAYS))
    ]
    access = data.request.filter(pl.col("kind") == "access")
    for kind, low in (("http_4xx", 400), ("http_5xx", 500)):
        rows = access.filter(pl.col("status").is_between(low, low + 99))
        if rows.height:
            counts.append(_one(data, kind, rows))
    return counts


def _one(data: SessionData, kind: str, rows: pl.DataFrame) -> EventCount:
    if not rows.height:
        return EventCount(kind, 0, data.session.id)
    start, end = derive.time_span(rows)
    times = rows["time"].drop_nulls()
    touched = rows["num_retracted_reqs"].sum() if kind == "retract" else None
    return EventCount(
        kind=kind,
        count=rows.height,
        session=data.session.id,
        source=rows["source"][0],
        first_line=rows["line_no"][0],
        last_line=rows["line_no"][-1],
        start=start,
        end=end,
        times=tuple(times.gather_every(-(-times.len() // _MAX_TIMES) or 1).to_list()),
        total=int(touched) if touched else None,
    )
