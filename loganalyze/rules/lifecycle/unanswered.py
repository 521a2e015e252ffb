"""Health checks that failed on a server that did not hang: its batches went on meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl

from loganalyze.model import Finding, Severity
from loganalyze.rules.held import act, shown, spells_of
from loganalyze.rules.registry import Case

#: A failed check has waited this long for any output (default of SGLANG_HEALTH_CHECK_TIMEOUT).
_WAITED = timedelta(seconds=20)
#: What makes any output wait for a long time.
_PREFILLS = ("PRE001", "PRE003")


def while_computing(case: Case, checks: pl.DataFrame) -> pl.DataFrame:
    """Return the failed checks around which batches went on, with the phases of these.

    A batch was logged in the second half of the check's wait, and, unless none ever is again,
    within the same time after it. A hang leaves no such lines.

    Returns:
        Rows of `checks` with `decoded`: whether a decode batch was logged during the wait.
    """
    checks = checks.drop_nulls("time").sort("time", maintain_order=True)
    if not checks.height or not case.ranks:
        return checks.clear().with_columns_seq(decoded=pl.lit(False))
    every, decoding = list[pl.DataFrame](), list[pl.DataFrame]()
    for rank in case.ranks:
        every.append(printed_around(checks["time"], rank.lines))
        decoding.append(_decoded_before(checks["time"], rank.lines.filter("decode")))
    before, after, decode = (
        pl.DataFrame([one[name].alias(str(i)) for i, one in enumerate(of)]).select_seq(
            which(pl.all())
        )
        for of, name, which in (
            (every, "before", pl.max_horizontal),
            (every, "after", pl.min_horizontal),
            (decoding, "before", pl.max_horizontal),
        )
    )
    found = checks.with_columns_seq(
        _before=before.to_series(), _after=after.to_series(), _decode=decode.to_series()
    )
    went_on = (pl.col("time") - pl.col("_before") <= _WAITED / 2) & (
        (pl.col("_after") - pl.col("time") <= _WAITED).fill_null(True)
    )
    return (
        found.filter(went_on)
        .with_columns_seq(decoded=(pl.col("time") - pl.col("_decode") <= _WAITED).fill_null(False))
        .drop("_before", "_after", "_decode")
    )


def printed_around(times: pl.Series, lines: pl.DataFrame) -> pl.DataFrame:
    """Return when a rank printed its last line up to some times, and its next one.

    Of merged rows (thin.py) the lines between two are gone, but not that there were some, nor
    any silence of theirs: where lines stand on both sides of a time, it is as if one was printed
    then.

    Args:
        times: sorted, without nulls.
        lines: those of a rank (`Rank.lines`).

    Returns:
        One row for each time: `before`, `after`; null where there is none.
    """
    rows = _by_stamp(lines).select_seq(
        "time",
        before="time",
        after="time",
        since=pl.col("time").shift(1),
        last=pl.col("time") - pl.duration(milliseconds=pl.col("quiet_s") * 1000),
    )
    at = times.alias("time").to_frame()
    later = at.join_asof(
        rows.drop("before"), on="time", strategy="forward", allow_exact_matches=False
    )
    gone = pl.col("last") > pl.col("since")
    inside = gone & (pl.col("last") > pl.col("time"))
    return later.with_columns_seq(
        at.join_asof(rows.select_seq("time", "before"), on="time")
    ).select_seq(
        before=pl.when(inside).then("time").when(gone).then("last").otherwise("before"),
        after=pl.when(inside).then("time").otherwise("after"),
    )


def _by_stamp(lines: pl.DataFrame) -> pl.DataFrame:
    return lines.drop_nulls("time").sort("time", maintain_order=True)


def _decoded_before(times: pl.Series, decode: pl.DataFrame) -> pl.DataFrame:
    """Return `before`: when a rank printed its last decode line up to some times.

    The lines that a merged row stands for are spread evenly over the time since the row before
    if their intervals add up to most of it; else a long prefill may stand before them.
    """
    decode = _by_stamp(decode)
    rows = decode.filter(pl.col("lines") > 0).select_seq(
        "time",
        "lines",
        took="dt_s",
        step=pl.col("time").diff() / pl.col("lines"),
    )
    at = times.alias("time").to_frame()
    found = at.join_asof(decode.select_seq("time", before="time"), on="time").hstack(
        at.join_asof(rows, on="time", strategy="forward", allow_exact_matches=False).drop("time")
    )
    most_s = pl.col("step").dt.total_milliseconds() / 2000
    even = (pl.col("lines") > 1) & (pl.col("took") > most_s)
    spread = pl.when(even).then(pl.col("time") - pl.col("step"))
    return found.select_seq(before=pl.max_horizontal("before", spread))


def unanswered(case: Case, checks: pl.DataFrame) -> Finding:
    """Say health checks that failed although the server computed."""
    first: dict[str, Any] = checks.row(0, named=True)
    times = "a health check" if checks.height == 1 else f"{checks.height:,} health checks"
    since = (
        f" from {first['time']:%H:%M:%S}" if checks.height > 1 else f" at {first['time']:%H:%M:%S}"
    )
    passed_on = bool(checks["decoded"].any())
    if passed_on:
        summary = (
            f"{times} failed{since} although decoding went on: its outputs did not come back to "
            "the HTTP server"
        )
        actions = act(
            case,
            "Look at the detokenizer and the HTTP server (their CPU time, py-spy dump), not at "
            "the GPUs: a check passes on the first output of any request",
        )
    else:
        summary = (
            f"{times} failed{since} while prefills went on: a check waits for the next output "
            "of any request, and there is none before a long prefill is done"
        )
        actions = act(
            case,
            "Give the checks more time than the longest prefill takes, in the server's "
            "environment (SGLANG_HEALTH_CHECK_TIMEOUT, 20 s if unset) and in the probe, so that "
            "nobody restarts a server that works",
        )
    prefill = next((case.earlier[code] for code in _PREFILLS if code in case.earlier), None)
    cause = (prefill.explained_by or prefill.code) if prefill else None
    return Finding(
        summary=summary[0].upper() + summary[1:],
        episodes=spells_of(checks),
        evidence=[
            shown(
                "failed health checks",
                checks.height,
                "checks",
                (first["source"], first["line_no"]),
                "with batches logged during the wait and after it",
            )
        ],
        actions=actions,
        severity=Severity.CRITICAL if passed_on else Severity.WARNING,
        confidence="medium",
        competing="a front end that was busy for a moment"
        if passed_on
        else "a detokenizer that hangs, which shows once requests decode",
        explained_by=None if passed_on else cause,
    )
