"""The time of a run that says something about the server: without start, end and pauses.

Warm-up, drain and idle time are those of the rules WRM001, DRN001 and IDL001. Left out too
are the first moments of every log that shows a start (cold graphs and caches), and silences:
what a server did then, its log does not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from loganalyze import episodes
from loganalyze.model import Finding, Stretch
from loganalyze.signals import Rank, Signals

#: A server that has just started is not judged for this long, or this share of a short log.
START_S = 30.0
START_SHARE = 0.1

#: Some pool is full and requests wait for it.
SATURATED = ("KV001", "KV002", "SWA001", "MAM001", "PDD001")

#: Columns of the server's grid that add up over its ranks.
_SUMS = (
    "rate",
    "running",
    "waiting",
    "token",
    "retracted",
    "started",
    "completed",
    "decoded",
    "new_token",
    "cached_token",
)


@dataclass(frozen=True, slots=True)
class Settled:
    """The settled time of a session.

    Attributes:
        cells: one row per settled cell, in order: `cell`, `rate` (decoded token/s),
            `running`, `waiting` (queue and the queues of disaggregation), `in_system` (both),
            `usage` (mean over ranks), `retracted`, `started`, `completed` (requests),
            `decoded`, `new_token`, `cached_token` (tokens), `saturated` (share of ranks), and
            `d_waiting` (change of `waiting` since the cell before). Over all ranks.
        step_s: width of a cell.
        left_out: seconds by reason.
        stretches: the settled time in pieces.
    """

    cells: pl.DataFrame
    step_s: float
    left_out: Mapping[str, float]
    stretches: Sequence[Stretch]

    @property
    def seconds(self) -> float:
        """Settled seconds."""
        return self.cells.height * self.step_s


def find(signals: Signals, findings: Iterable[Finding]) -> Settled | None:
    """Return the settled time of a session; None where its log has no clock or no lines."""
    ranks = [rank for rank in signals.ranks if rank.lines.height]
    if not ranks or any(rank.clock == "none" for rank in ranks):
        return None
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    step = ranks[0].step_s
    grid = _server(ranks, [f for code in SATURATED for f in by_code.get(code, ())])
    height = grid.height
    begin = _begin(signals, grid)
    reasons = {
        "warm-up": _covered(ranks, by_code.get("WRM001", ()), height) | begin,
        "drain": _covered(ranks, by_code.get("DRN001", ()), height),
        "idle": grid["idle"],
        "silence": grid["gap"],
    }
    left_out: dict[str, float] = {}
    out = grid["before"]
    for reason, mask in reasons.items():
        fresh = mask & ~out
        if fresh.any():
            left_out[reason] = float(fresh.sum()) * step
        out = out | mask
    spans = episodes.spans(~out)
    stretches = [_stretch(ranks, span) for span in spans]
    return Settled(grid.filter(~out), step, left_out, stretches)


def _server(ranks: Sequence[Rank], saturated: Sequence[Finding]) -> pl.DataFrame:
    """Return one row per cell of the whole server: sums over its ranks."""
    parts = []
    for rank in ranks:
        # An idle rank prints nothing: it runs nothing, and nothing waits for it.
        state = pl.when("idle").then(0.0)
        mask = _covered([rank], saturated, rank.grid.height)
        parts.append(
            rank.grid.select(
                "cell",
                state.otherwise("rate").alias("rate"),
                state.otherwise("running").alias("running"),
                state.otherwise(
                    pl.when(pl.col("queue").is_not_null()).then(
                        pl.col("queue")
                        + pl.col("prealloc").fill_null(0)
                        + pl.col("bootstrap").fill_null(0)
                    )
                ).alias("waiting"),
                "token",
                "usage",
                "retracted",
                "started",
                "completed",
                "decoded",
                "new_token",
                "cached_token",
                mask.cast(pl.Float64).alias("saturated"),
                "idle",
                silent=pl.col("gap") & ~pl.col("idle"),
            )
        )
    # A state that one rank does not tell is not known for the server.
    return (
        pl.concat(parts)
        .group_by("cell", maintain_order=True)
        .agg(
            *(
                pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name)
                for name in _SUMS
            ),
            pl.col("usage", "saturated").mean(),
            pl.col("idle").all(),
            gap=pl.col("silent").any(),
            n=pl.len(),
        )
        .sort("cell")
        .with_columns(
            before=pl.col("n") < len(ranks),
            in_system=pl.col("running") + pl.col("waiting").fill_null(0),
            d_waiting=pl.col("waiting").diff().fill_null(0),
        )
        .with_columns(
            idle=pl.col("idle")
            | ((pl.col("in_system") == 0) & (pl.col("started") == 0)).fill_null(False)
        )
    )


def _begin(signals: Signals, grid: pl.DataFrame) -> pl.Series:
    """Return the first moments of a session whose log shows its start."""
    if not signals.data.startup.height:
        return pl.repeat(False, grid.height, eager=True, dtype=pl.Boolean)
    first = int((grid["running"].fill_null(0) > 0).arg_max() or 0)
    step = signals.ranks[0].step_s
    length = min(START_S / step, START_SHARE * (grid.height - first))
    return pl.int_range(grid.height, eager=True) < first + length


def _covered(ranks: Sequence[Rank], findings: Iterable[Finding], height: int) -> pl.Series:
    """Return the cells that lie in an episode of the findings, of any of the ranks."""
    found: list[episodes.Span] = []
    for finding in findings:
        for one in finding.episodes:
            for rank in ranks:
                if one.rank not in (None, rank.label):
                    continue
                t = rank.lines.filter(
                    (pl.col("source") == one.source)
                    & pl.col("line_no").is_between(one.first_line, one.last_line)
                )["t"]
                if t.len():
                    lo, hi = float(t[0]) / rank.step_s, float(t[-1]) / rank.step_s
                    found.append((int(lo), min(int(hi) + 1, height)))
    return episodes.mask_of(episodes.joined(sorted(found), 0), height)


def _stretch(ranks: Sequence[Rank], span: episodes.Span) -> Stretch:
    """Return a span of cells with the stamps and lines of its first rank's log."""
    one = episodes.episodes(ranks[0], [span])[0]
    seconds = (span[1] - span[0]) * ranks[0].step_s
    return Stretch(one.start, one.end, one.first_line, one.last_line, seconds)
