"""Reduce a session's lines to timelines that a page can draw, keeping every extreme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import polars as pl

from loganalyze import derive, timeline
from loganalyze.model import Band, Series, SessionData

#: Buckets of one series, and of all series of a report together (a page has to carry them).
MAX_BUCKETS = 1_500
MAX_TOTAL = 4_000

#: Bucket widths in seconds (or lines) that a reader can name.
_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200)

#: column -> (phase whose lines count or None for both, decimals kept).
_COLUMNS: dict[str, tuple[str | None, int]] = {
    "kv_usage": (None, 4),
    "full_token_usage": (None, 4),
    "swa_token_usage": (None, 4),
    "mamba_usage": (None, 4),
    "gpu_token_usage": ("decode", 4),
    "pre_allocated_usage": ("decode", 4),
    "running_req": ("decode", 2),
    "queue_req": (None, 2),
    "prealloc_req": (None, 2),
    "transfer_req": ("decode", 2),
    "inflight_req": ("prefill", 2),
    "gen_throughput": ("decode", 2),
    "rate_per_req": ("decode", 3),
    "accept_len": ("decode", 3),
    "new_token": ("prefill", 1),
    "cache_hit_rate": ("prefill", 4),
    "token": ("decode", 0),
}


def reduce(sessions: Sequence[SessionData]) -> list[Series]:
    """Return one series per session and printed rank, duplicates left out.

    Of disaggregated servers those of each phase are apart: where one log holds both phases
    under one name, two servers wrote it, and a mean over both would be that of none.

    All share one bucket width, the smallest of a few round ones that keeps each series
    within MAX_BUCKETS and all of them within MAX_TOTAL. A bucket without a line is absent,
    so a gap in the log stays a gap.
    """
    parts = []
    for data in sessions:
        rows = data.batch.filter(~pl.col("duplicate")).with_columns_seq(
            derive.rank_text(),
            # Of merged lines, those of one prefill batch on average.
            new_token=(pl.col("new_token") / pl.col("lines")).round().cast(pl.Int64, strict=False),
        )
        if data.session.role != "unified" and rows["phase"].n_unique() > 1:
            lines = pl.format("{} lines", "phase")
            rows = rows.with_columns_seq(
                rank=pl.concat_str("rank", lines, separator=" ", ignore_nulls=True)
            )
        if rows.height:
            parts += [(data, group) for group in rows.partition_by("rank", maintain_order=True)]
    spans = [_span(group) for _, group in parts]
    if not spans:
        return []
    need = max(max(spans) / MAX_BUCKETS, sum(spans) / MAX_TOTAL)
    step = next((s for s in _STEPS if s >= need), math.ceil(need / 86_400) * 86_400)
    return [_series(data, group, step) for data, group in parts]


def _stamped(rows: pl.DataFrame) -> bool:
    return rows["time"].null_count() == 0


def _span(rows: pl.DataFrame) -> float:
    """Return the length of a series in seconds, or in lines where stamps are missing."""
    if _stamped(rows):
        first, last = derive.time_span(rows)
        return (last - first).total_seconds() if first and last else 0.0
    return float(rows.height)


def _series(data: SessionData, rows: pl.DataFrame, step: int) -> Series:
    start = derive.time_span(rows)[0] if _stamped(rows) else None
    position = (
        (pl.col("time") - pl.lit(start)).dt.total_milliseconds() // (step * 1_000)
        if start is not None
        else pl.int_range(pl.len()) // step
    )
    printed = [c for c in _COLUMNS if rows[c].null_count() < rows.height]
    bands: list[pl.Expr] = []
    for name in printed:
        phase, decimals = _COLUMNS[name]
        value = pl.col(name) if phase is None else pl.col(name).filter(pl.col("phase") == phase)
        bands += [
            value.min().cast(pl.Float64).round(decimals).alias(f"{name}/min"),
            value.mean().round(decimals).alias(f"{name}/mean"),
            value.max().cast(pl.Float64).round(decimals).alias(f"{name}/max"),
        ]
    table = (
        rows.with_columns_seq(bucket=position.cast(pl.Int64))
        .group_by("bucket", maintain_order=True)
        .agg(pl.col("line_no").first(), *bands)
        .sort("bucket")
    )
    return Series(
        session=data.session.id,
        rank=rows["rank"][0],
        source=rows["source"][0],
        start=start,
        step=float(step),
        x=table["bucket"].to_list(),
        first_line=table["line_no"].to_list(),
        columns={
            name: Band(*(table[f"{name}/{end}"].to_list() for end in ("min", "mean", "max")))
            for name in printed
        },
        gaps=_gaps(rows) if start is not None else (),
    )


def _gaps(rows: pl.DataFrame) -> list[tuple[datetime, datetime]]:
    """Return the silences: longer than a working server's, by the limits of the rules."""
    since = pl.col("time").diff().dt.total_milliseconds() / 1000
    spaced = rows.select_seq(end="time", spacing=pl.coalesce("quiet_s", since))
    usual = spaced["spacing"].median()
    limit = timeline.GAP_S
    if isinstance(usual, float):
        limit = max(limit, timeline.GAP_SPACINGS * usual)
    silence = pl.duration(milliseconds=(pl.col("spacing") * 1000).cast(pl.Int64))
    ends = spaced.filter(pl.col("spacing") > limit).select_seq(
        start=pl.col("end") - silence, end="end"
    )
    return [(start, end) for start, end in ends.iter_rows()]
