"""Reduce the rows of a very long log to a time grid that keeps every extreme.

A log of 4 GiB holds some 20 million statistics lines, and a rule that looks for minutes
needs no more than a few lines a second. Beyond a bound the rows of each writer, rank and
phase are merged by time:

* decode: the last line of a cell stays and stands for all of them (`lines`); lines with the
  highest or lowest usage, queue, running requests or throughput stay too, with `lines` 0. It
  keeps what was prefilled since the decode line before it (`last_prefill`, `last_new_token`):
  its throughput tells the time of that interval, and only both together tell decoding and
  prefill apart;
* prefill: one row a cell carries the sums of new requests and tokens, and `lines`; the lines
  with the highest usage and queue stay as states, without sums;
* both keep the time since the printed line before (`quiet_s`), and of each cell the lines
  around its longest silence stay: the time between two rows of a grid is none.

Reducing what was reduced gives what reducing the whole would have given, so chunks can be
reduced as they come.
"""

from __future__ import annotations

import polars as pl

from loganalyze import derive, schema

#: Cell widths, each a multiple of the one before, so that cells merge whole.
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

_EXTREMES = ("_usage", "queue_req", "running_req", "gen_throughput")
_SUMS = ("new_seq", "new_token", "cached_token")
_INTERVALS = ("quiet_s", "last_prefill", "last_new_token")
_LINES_PER_S = 8  # without stamps a cell is this many lines for each second of its width
_CELLS = 1 << 33  # more than there are, with and without stamps


def thin(batch: pl.DataFrame, step_s: int) -> pl.DataFrame:
    """Return the rows of `batch` merged to cells of `step_s` seconds.

    Args:
        batch: BATCH columns (`lines` included), in (source, line_no) order. Rows that differ
            in `stream` or `_era`, where there are such columns, are never merged.
        step_s: cell width, one of STEPS.

    Returns:
        Rows of the same columns, in the same order; `lines` sums to what it summed to.
    """
    rows = _with_intervals(_narrow(batch, step_s))
    # A row that only marks an extreme may win again, but never stands for its cell.
    cells = rows.group_by("group").agg(
        pl.col("row").filter(pl.col("lines") > 0).last().alias("stands"),
        *(pl.col("row").get(pl.col(c).arg_max()).alias(f"{c}/max") for c in _EXTREMES),
        *(pl.col("row").get(pl.col(c).arg_min()).alias(f"{c}/min") for c in _EXTREMES),
        pl.col("lines", *_SUMS).sum().name.suffix("/sum"),
    )
    silences = (
        rows.filter(pl.col("quiet_s") > derive.SILENCE_S)
        .group_by("writer", "cell")
        .agg(pl.col("row", "before").get(pl.col("quiet_s").arg_max()))
    )
    marked = [cells[f"{c}/{end}"] for c in _EXTREMES for end in ("max", "min")]
    every = [cells["stands"], *marked, silences["row"], silences["before"]]
    none = pl.Series([False]).new_from_index(0, batch.height)
    stays = none.scatter(pl.concat(every).drop_nulls(), True)
    kept = stays.arg_true().alias("row")
    sums = pl.DataFrame([kept]).join(
        cells.select_seq(pl.col("stands").alias("row"), pl.col("^.*/sum$")),
        on="row",
        how="left",
        maintain_order="left",
    )
    since = rows.select_seq("row", *_INTERVALS).sort("row")[kept].drop("row")
    prefill, is_state = pl.col("phase") == "prefill", pl.col("lines/sum").is_null()
    return (
        batch.drop(_INTERVALS)
        .filter(stays)
        .hstack(since)
        .hstack(sums.drop("row"))
        .with_columns_seq(
            *(
                pl.when(prefill & is_state)
                .then(None)
                .when(prefill & pl.col(c).is_not_null())
                .then(f"{c}/sum")
                .otherwise(c)
                .alias(c)
                for c in _SUMS
            ),
            lines=pl.col("lines/sum").fill_null(0).cast(batch["lines"].dtype),
        )
        .select_seq(batch.columns)
    )


def _narrow(batch: pl.DataFrame, step_s: int) -> pl.DataFrame:
    """Return what tells which rows stay, one writer after the other, each in its order.

    Columns: `row` of the batch, `writer` and `group` (a writer's cell and phase) as numbers,
    `cell`, and what they are told by.
    """
    names = ("source", "stream", "_era", *(c.name for c in schema.RANKS))
    # Each column costs, and few logs have several values in more than one.
    ranks = [k for k in names if k in batch.columns and batch[k].n_unique() > 1]
    cell = pl.coalesce(
        pl.col("time").dt.epoch("s") // step_s, -(pl.col("line_no") // (step_s * _LINES_PER_S)) - 1
    )
    rows = batch.with_columns_seq(row=pl.int_range(pl.len())).select_seq(
        "row",
        "time",
        "lines",
        *_INTERVALS,
        *_SUMS,
        *_EXTREMES[1:],
        pl.max_horizontal(*derive.POOLS).alias(_EXTREMES[0]),
        writer=pl.col("row").first().over(ranks) if ranks else pl.lit(0, pl.Int64),
        prefill=pl.col("phase") == "prefill",
        cell=cell,
    )
    group = (2 * pl.col("writer") + pl.col("prefill").cast(pl.Int64)) * _CELLS + pl.col("cell")
    return rows.with_columns_seq(group=group).sort("writer", maintain_order=True)


def _with_intervals(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `before`, the writer's row before, and fill the columns of `_INTERVALS`.

    Rows that have a value were reduced before, and keep it. A writer's first line stays without
    `quiet_s`, and its first decode line without the others, until they are reduced together with
    what came before them.
    """
    own = pl.col("writer") == pl.col("writer").shift(1)
    gap = pl.col("time").diff().dt.total_milliseconds() / 1000
    line, prefill = ~pl.col("prefill") & (pl.col("lines") > 0), pl.col("prefill")
    of_line = pl.when(line).then("writer").forward_fill().shift(1)
    totals = {
        "last_prefill": pl.when(prefill).then("lines").otherwise(0).cum_sum(),
        "last_new_token": pl.when(prefill).then("new_token").fill_null(0).cum_sum(),
    }
    before = {name: pl.when(line).then(total).forward_fill() for name, total in totals.items()}
    since = {
        name: pl.when(line & (of_line == pl.col("writer"))).then(total - before[name].shift(1))
        for name, total in totals.items()
    }
    return rows.with_columns_seq(
        before=pl.when(own).then(pl.col("row").shift(1)),
        quiet_s=pl.coalesce("quiet_s", pl.when(own).then(gap)),
        **{n: pl.coalesce(n, value.cast(rows[n].dtype)) for n, value in since.items()},
    )
