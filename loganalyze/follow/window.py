"""The records of a live log in little memory: the last hour as printed, the past merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import polars as pl

from loganalyze import thin
from loganalyze.frames import Frames
from loganalyze.store import Store

#: Batch rows held; a row takes about 600 bytes.
MAX_ROWS = 30_000
#: Rows of each other frame; the oldest go.
MAX_OTHERS = 20_000
#: What is older than this is merged first; less of it where lines come very fast.
RECENT_S = (3600, 900, 300, 60)
#: What is older than this is forgotten.
KEEP_S = 86_400


class Window(Store):
    """A store that forgets.

    Attributes:
        pending: records that are only read for now, by source; part of `frames`.
        until: (source, line) from which on records are not to be seen yet; None for all.
        order: names of the sources, in the order in which sessions shall see them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pending: dict[str, Frames] = {}
        self.until: tuple[str, int] | None = None
        self.order: list[str] = []

    def add(self, frames: Frames) -> None:
        """Take one chunk; merge and forget what is old if there is too much."""
        super().add(frames)
        for name in ("event", "startup", "request"):
            if sum(part.height for part in self._parts[name]) > MAX_OTHERS:
                self._parts[name] = [pl.concat(self._parts[name]).tail(MAX_OTHERS // 2)]
        if self._rows > MAX_ROWS:
            self._shrink()

    def _shrink(self) -> None:
        batch = pl.concat(self._parts["batch"])
        newest = batch["time"].max()
        if isinstance(newest, datetime):
            keep = pl.col("time").is_null() | (pl.col("time") > newest - timedelta(seconds=KEEP_S))
            for name in ("event", "request"):
                self._parts[name] = [pl.concat(self._parts[name]).filter(keep)]
            batch = batch.filter(keep)
        batch = self._merged(batch, newest)
        self._parts["batch"], self._rows = [batch.rechunk()], batch.height

    @staticmethod
    def _merged(batch: pl.DataFrame, newest: object) -> pl.DataFrame:
        """Merge old rows, more and more of them and coarser, to half of what is allowed."""
        for recent in RECENT_S:
            old = (
                (pl.col("time") < newest - timedelta(seconds=recent)).fill_null(False)
                if isinstance(newest, datetime)
                else pl.int_range(pl.len()) < pl.len() - MAX_ROWS // 4
            )
            for step in (16, 64, 256):
                past, present = batch.filter(old), batch.filter(~old)
                batch = pl.concat([thin.thin(past, step), present])
                if batch.height <= MAX_ROWS // 2:
                    return batch
        return batch.tail(MAX_ROWS // 2)

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return what is held and may be seen, sources in their order, lines in theirs."""
        out = {name: pl.concat(parts) for name, parts in self._parts.items()}
        for frames in self.pending.values():
            for name in ("batch", "event", "startup", "request"):
                rows = getattr(frames, name)
                parts = [out[name], rows] if name in out else [rows]
                out[name] = pl.concat(parts, how="diagonal")
        return {name: self._visible(rows) for name, rows in out.items()}

    def _visible(self, rows: pl.DataFrame) -> pl.DataFrame:
        if self.until is not None:
            source, line = self.until
            rows = rows.filter((pl.col("source") != source) | (pl.col("line_no") < line))
        if len(self.order) < 2:
            return rows
        return rows.sort(_place(self.order), "line_no", maintain_order=True)


def _place(order: Sequence[str]) -> pl.Expr:
    places: Mapping[str, int] = {name: i for i, name in enumerate(order)}
    return pl.col("source").replace_strict(places, default=len(order), return_dtype=pl.Int32)
