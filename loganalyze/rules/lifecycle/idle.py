"""IDL001: the server had nothing to do."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import between, spans
from loganalyze.lengths import duration
from loganalyze.model import Episode, Finding, Severity
from loganalyze.rules.held import Held, hold, need_stamps, others_busy, shown
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule


@rule(
    "IDL001",
    "idle",
    severity=Severity.INFO,
    needs=("running_req",),
    limits={"report_s": Limit(12.0, "s", "shortest wait for the first request after start-up")},
)
def idle(case: Case, limits: Limits) -> Finding | Clear:
    """The server had nothing to do for a while.

    What it flags:
        Silences whose neighbours show that no request was running or waiting.
    Why it is slow:
        Nothing is slow. But the first decode line after an idle time divides by that time and
        shows a throughput far too low: it is left out of all numbers here.
    Not this rule:
        Silence with requests running (HNG001).
    What to do:
        Nothing.
    Source:
        An idle scheduler prints nothing; a prefill line with `#running-req: 0` follows.
    """
    need_stamps(case)
    waited = _waited_for_work(case, limits)
    found = hold(case.ranks, lambda rank: spans(rank.grid["idle"]))
    found = [
        Held(held.rank, kept)
        for held in found
        if (
            kept := [
                s
                for s in held.spans
                if not others_busy(
                    case, held.rank, s[0] * held.rank.step_s, s[1] * held.rank.step_s
                )
            ]
        )
    ]
    episodes = ([waited] if waited else []) + [
        between(held.rank, gap.before, gap.before + 1)
        for held in found
        for gap in held.rank.gaps
        if gap.idle and not others_busy(case, held.rank, gap.start_s, gap.end_s)
    ]
    if not episodes:
        return Clear("no idle time")
    worst = max(episodes, key=lambda e: e.duration_s)
    total = sum(e.duration_s for e in episodes)
    pieces = f" in {len(episodes)} spells" if len(episodes) > 1 else ""
    return Finding(
        summary=f"Nothing to do for {duration(total)}{pieces}, the longest "
        f"{duration(worst.duration_s)}",
        episodes=episodes,
        evidence=[
            shown(
                "longest idle time",
                worst.duration_s,
                "s",
                (worst.source, worst.last_line),
                "stamp of this line - stamp of the line before",
                0,
            )
        ],
        severity=Severity.INFO,
        confidence="high",
        competing="a stall (HNG001) excluded: no request was running or waiting",
    )


def _waited_for_work(case: Case, limits: Limits) -> Episode | None:
    """Return the idle time between the start-up's end and the first batch, or None."""
    ready = case.data.event.filter((pl.col("kind") == "ready") & pl.col("time").is_not_null())
    first = [r.lines.row(0, named=True) for r in case.ranks if r.lines.height]
    first = [row for row in first if row["time"] is not None]
    if not ready.height or not first:
        return None
    row, work = ready.row(0, named=True), min(first, key=lambda r: r["time"])
    if not limits["report_s"] <= (work["time"] - row["time"]).total_seconds():
        return None
    return Episode(
        row["time"], work["time"], row["line_no"], work["line_no"], None, work["source"]
    )
