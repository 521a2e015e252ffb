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
_LINES_PER_S = 8  # without stamps a cell is this many lines for each second of its width


def thin(batch: pl.DataFrame, step_s: int) -> pl.DataFrame:
    """Return the rows of `batch` merged to cells of `step_s` seconds.

    Args:
        batch: BATCH columns (`lines` included), in (source, line_no) order. Rows that differ
            in `stream` or `_era`, where there are such columns, are never merged.
        step_s: cell width, one of STEPS.

    Returns:
        Rows of the same columns, in the same order; `lines` sums to what it summed to.
    """
    names = ("source", "stream", "_era", *(c.name for c in schema.RANKS))
    # Each column costs in every grouping, and few logs have several values in more than one.
    ranks = [k for k in names if k in batch.columns and batch[k].n_unique() > 1]
    keys = [*ranks, "phase"]
    batch = _with_silences(_with_last_prefills(batch, ranks), ranks)
    cell = pl.coalesce(
        pl.col("time").dt.epoch("s") // step_s, -(pl.col("line_no") // (step_s * _LINES_PER_S)) - 1
    )
    rows = batch.with_columns(
        _row=pl.int_range(pl.len()),
        _cell=cell,
        _usage=pl.max_horizontal(*derive.POOLS),
        _before=_over(pl.int_range(pl.len()).shift(1), ranks),
    ).with_columns(_group=pl.col("_row").first().over(*keys, "_cell"))
    # A row that only marks an extreme may win again, but never stands for its cell.
    cells = rows.group_by("_group").agg(
        pl.col("_row").filter(pl.col("lines") > 0).last().alias("_stands"),
        pl.col("lines").sum().alias("_lines"),
        *(pl.col(c).max().alias(f"{c}/max") for c in _EXTREMES),
        *(pl.col(c).min().alias(f"{c}/min") for c in _EXTREMES),
        *(pl.col(c).sum().alias(f"_{c}") for c in _SUMS),
    )
    standing = cells.filter(pl.col("_stands").is_not_null()).select(
        pl.col("_stands").alias("_row"), "_lines", *(f"_{c}" for c in _SUMS)
    )
    best = rows.select("_row", "_group", *_EXTREMES).join(
        cells, on="_group", maintain_order="left"
    )
    silences = (
        rows.filter(pl.col("quiet_s") > derive.SILENCE_S)
        .group_by(*ranks, "_cell")
        .agg(pl.col("_row", "_before").get(pl.col("quiet_s").arg_max()))
    )
    extreme = [
        _first(pl.col(c) == pl.col(f"{c}/{end}")) for c in _EXTREMES for end in ("max", "min")
    ]
    marked = pl.concat(
        [
            best.filter(pl.any_horizontal(extreme)).select("_row"),
            silences.select("_row"),
            silences.select(_row="_before"),
        ]
    ).drop_nulls()
    kept = (
        pl.concat([standing.select("_row"), marked])
        .unique()
        .join(standing, on="_row", how="left")
        .sort("_row")
    )
    is_state = pl.col("_lines").is_null()
    return (
        rows[kept["_row"]]
        .hstack(kept.drop("_row"))
        .with_columns(
            pl.col("_lines").fill_null(0).cast(batch["lines"].dtype).alias("lines"),
            *(
                pl.when((pl.col("phase") == "prefill") & is_state)
                .then(None)
                .when(pl.col("phase") == "prefill")
                .then(pl.when(pl.col(c).is_not_null()).then(f"_{c}"))
                .otherwise(c)
                .alias(c)
                for c in _SUMS
            ),
        )
        .select(batch.columns)
    )


def _first(holds: pl.Expr) -> pl.Expr:
    """Return the first row of each group for which something holds."""
    of = pl.when(holds).then("_group")
    return of.is_not_null() & of.is_first_distinct()


def _over(value: pl.Expr, ranks: list[str]) -> pl.Expr:
    """Return a value of each rank for itself; `over` takes no empty list."""
    return value.over(ranks) if ranks else value


def _with_silences(batch: pl.DataFrame, ranks: list[str]) -> pl.DataFrame:
    """Fill `quiet_s` of the rows that do not have it yet: those were never reduced.

    A writer's first line stays without, until it is reduced together with what came before it.
    """
    since = _over(pl.col("time").diff(), ranks).dt.total_milliseconds() / 1000
    return batch.with_columns(quiet_s=pl.coalesce("quiet_s", since))


def _with_last_prefills(batch: pl.DataFrame, ranks: list[str]) -> pl.DataFrame:
    """Fill `last_prefill` and `last_new_token` of the decode lines that do not have them yet.

    A writer's first decode line stays without: what came before it is not known.
    """
    prefill = pl.col("phase") == "prefill"
    line = (pl.col("phase") == "decode") & (pl.col("lines") > 0)
    totals = batch.select(
        *ranks,
        line=line,
        last_prefill=_over(pl.when(prefill).then("lines").otherwise(0).cum_sum(), ranks),
        last_new_token=_over(pl.when(prefill).then("new_token").fill_null(0).cum_sum(), ranks),
        row=pl.int_range(pl.len()),
    ).filter("line")
    since = totals.select(
        "row",
        _over(pl.col("last_prefill", "last_new_token").diff(), ranks).name.suffix("_since"),
    )
    rows = batch.select(row=pl.int_range(pl.len()))
    found = rows.join(since, on="row", how="left", maintain_order="left")
    return batch.with_columns(
        pl.coalesce(name, found[f"{name}_since"].cast(batch[name].dtype)).alias(name)
        for name in ("last_prefill", "last_new_token")
    )
