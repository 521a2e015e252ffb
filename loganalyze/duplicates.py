"""Find records that several ranks printed: one event on eight ranks is one event.

A duplicate is the same record of another TP, PP or CP rank: same session, DP rank, second
and values. The n-th such record of one rank is matched with the n-th of another; all but the
first printed are duplicates. Two equal records of one rank are two records, but in a log that
holds every line twice, as two collectors or two handlers leave it: there one of two is a
duplicate.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from loganalyze import schema

_OTHER_RANKS = [c.name for c in schema.RANKS if c.name != "dp_rank"]
_PLACE = {c.name for c in (*schema.PLACE, *schema.RANKS, *schema.DERIVED)}
#: Differ between ranks, or say nothing about the record.
_NO_VALUE = {"duplicate", "time_has_date", "iter", "gpu_id"}

#: Records are compared with those at most this far away, and this many without stamps.
_BUCKET_S = 600
_UNSTAMPED_ROWS = 50_000

#: So many decode lines at the head of a session, of at least so many different ones, tell
#: whether each stands there several times: such a share of them must.
_SAMPLE, _FEWEST, _SHARE = 1000, 8, 0.9

#: All that a statistics line says.
_LINE = ["time", *(c.name for c in schema.BATCH if c.name not in _PLACE | {"duplicate"})]
_LINE += [c.name for c in schema.RANKS]
_RECORD = ("session", "dp_rank", "second", "values")


class Marker:
    """Sets `duplicate` on the chunks of one frame, in the order in which they come.

    Args:
        columns: the frame's schema.
        several_files: whether ranks of one server write to different files, so that a record's
            double may come a whole file later.
        copies: how often each line stands in a log, where that is more than once.
    """

    def __init__(
        self,
        columns: tuple[schema.Column, ...],
        *,
        several_files: bool,
        copies: Mapping[str, int] | None = None,
    ) -> None:
        self._values = [c.name for c in columns if c.name not in _PLACE | _NO_VALUE]
        self._several_files = several_files
        self._copies = copies or {}
        self._seen: dict[int, pl.DataFrame] = {}

    def mark(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the chunk with `duplicate` set; rows and order stay."""
        new = table.select_seq(
            "session",
            "dp_rank",
            pl.col("time").dt.truncate("1s").alias("second"),
            pl.struct(self._values).hash().alias("values"),
            pl.struct(_other_ranks(table)).hash().alias("rank"),
            (pl.col("time").dt.epoch("s") // _BUCKET_S).fill_null(-1).alias("bucket"),
            pl.col("source")
            .replace_strict(self._copies, default=1, return_dtype=pl.Int64)
            .alias("copies"),
        )
        buckets = new["bucket"].unique().sort().to_list()
        known = [self._seen[b] for b in buckets if b in self._seen]
        rows = pl.concat([*known, new]).with_columns_seq(
            nth=pl.int_range(pl.len()).over(*_RECORD, "rank") // pl.col("copies")
        )
        later = pl.int_range(pl.len()).over(*_RECORD, "nth") > 0
        self._remember(new, buckets)
        return table.with_columns_seq(
            rows.select_seq(duplicate=later)["duplicate"].tail(table.height).alias("duplicate")
        )

    def _remember(self, new: pl.DataFrame, buckets: list[int]) -> None:
        if not self._several_files:
            self._seen = {b: t for b, t in self._seen.items() if b >= buckets[-1] - 1 or b == -1}
        for bucket in buckets:
            rows = new.filter(pl.col("bucket") == bucket)
            both = pl.concat([self._seen[bucket], rows]) if bucket in self._seen else rows
            self._seen[bucket] = both.tail(_UNSTAMPED_ROWS) if bucket == -1 else both


def _other_ranks(table: pl.DataFrame) -> list[str]:
    """Return the columns that tell ranks of one DP rank apart.

    Releases up to 0.2.13 print the GPU instead of ranks. Of batch lines only the first rank of
    a replica prints any, so that there another GPU is another replica.
    """
    return [*_OTHER_RANKS, "gpu_id"] if "kind" in table.columns else _OTHER_RANKS


def possible(table: pl.DataFrame) -> bool:
    """Whether some DP rank's rows come from more than one TP, PP or CP rank."""
    others = _other_ranks(table)
    if table.select_seq(others).n_unique() == 1:
        return False
    each = table.select_seq("session", "dp_rank")
    return table.select_seq("session", "dp_rank", *others).n_unique() > each.n_unique()


def mark(
    table: pl.DataFrame, columns: tuple[schema.Column, ...], n_copies: int = 1
) -> pl.DataFrame:
    """Return all rows of a frame with `duplicate` set.

    Args:
        table: the rows.
        columns: the frame's schema.
        n_copies: how often each line stands in the log.
    """
    if n_copies == 1 and not possible(table):
        return table.with_columns_seq(duplicate=pl.lit(False))
    copies = dict.fromkeys(table["source"].unique(), n_copies)
    return Marker(columns, several_files=True, copies=copies).mark(table)


def compared(batch: pl.DataFrame) -> pl.DataFrame:
    """Return the decode lines by which `copies` tells how often each stands in a log."""
    return batch.filter((pl.col("phase") == "decode") & pl.col("time").is_not_null()).head(_SAMPLE)


def copies(batch: pl.DataFrame) -> int:
    """Tell how often each line of a log stands in it: as a rule once.

    A rank that decodes several times in a second does not print the same throughput again and
    again, nor each so many times.
    """
    lines = compared(batch).select_seq(_LINE)
    times = lines.group_by(pl.all()).len()["len"].sort()
    if len(times) < _FEWEST:
        return 1
    n = int(times[len(times) // 2])
    share = (times % n == 0).mean()
    return n if isinstance(share, float) and share >= _SHARE else 1


def once(request: pl.DataFrame, n_copies: int) -> pl.DataFrame:
    """Return the requests of a log that holds each line so many times, each of them once."""
    if n_copies == 1:
        return request
    said = [c.name for c in schema.REQUEST if c.name not in ("line_no", "session")]
    return request.filter(pl.int_range(pl.len()).over(said) % n_copies == 0)
