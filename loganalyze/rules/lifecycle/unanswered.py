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
#: Failures so far apart are told as two episodes.
_JOIN_S = 600.0
#: What makes any output wait for a long time.
_PREFILLS = ("PRE001", "PRE003")


def while_computing(case: Case, checks: pl.DataFrame) -> pl.DataFrame:
    """Return the failed checks around which batches went on, with the phases of these.

    A batch was logged in the second half of the check's wait, and, unless none ever is again,
    within the same time after it. A hang leaves no such lines.

    Returns:
        Rows of `checks` with `decoded`: whether a decode batch was logged during the wait.
    """
    if not checks.height:
        return checks.with_columns(decoded=pl.lit(False))
    times = (
        case.data.batch.filter(~pl.col("duplicate").fill_null(False))
        .select("time", "phase", seen="time")
        .drop_nulls("time")
        .sort("time")
    )
    decodes = times.filter(pl.col("phase") == "decode").select("time", decode="seen")
    found = (
        checks.drop_nulls("time")
        .sort("time", maintain_order=True)
        .join_asof(times.select("time", before="seen"), on="time")
        .join_asof(decodes, on="time")
        .join_asof(
            times.select("time", after="seen"),
            on="time",
            strategy="forward",
            allow_exact_matches=False,
        )
    )
    went_on = (pl.col("time") - pl.col("before") <= _WAITED / 2) & (
        (pl.col("after") - pl.col("time") <= _WAITED).fill_null(True)
    )
    return (
        found.filter(went_on)
        .with_columns(decoded=(pl.col("time") - pl.col("decode") <= _WAITED).fill_null(False))
        .drop("before", "decode", "after")
    )


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
    cause = next((code for code in _PREFILLS if code in case.earlier), None)
    return Finding(
        summary=summary[0].upper() + summary[1:],
        episodes=spells_of(checks, _JOIN_S),
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
