"""Hold the records of a run in bounded memory.

Batch rows beyond a bound are merged to a time grid (thin.py); of requests only those that
failed are kept, and the last one, whose stamp is the log's end; the text of tracebacks is kept
for the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from loganalyze import sessions, thin

if TYPE_CHECKING:
    from loganalyze.frames import Frames

#: Batch rows held as printed: a day of one server. At most twice this many are in memory.
MAX_ROWS = 160_000

#: Rows that are reduced at once; a cell that is cut between two parts stays two cells.
_HANDY_ROWS = 40_000

#: Rows of other frames, and tracebacks with their text.
MAX_OTHER = 100_000
MAX_TRACEBACKS = 200


class StoreState(NamedTuple):
    """What a store holds: its frames, how far they are merged, and what was counted."""

    frames: dict[str, pl.DataFrame]
    level: int
    tracebacks: int
    begun: int
    notes: tuple[str, ...]


class Store:
    """Collects frames chunk by chunk.

    Args:
        max_rows: batch rows held as printed; None for `MAX_ROWS`.
    """

    def __init__(self, max_rows: int | None = None) -> None:
        self._max_rows = MAX_ROWS if max_rows is None else max_rows
        self._parts: dict[str, list[pl.DataFrame]] = {}
        self._rows = 0
        self._level = -1
        self._tracebacks = 0
        self._begun = 0
        self.notes: list[str] = []

    def add(self, frames: Frames) -> None:
        """Take one chunk, and make room if there are too many rows."""
        batch = frames.batch.with_columns_seq(lines=pl.lit(1, pl.Int32), _era=self._eras(frames))
        if self._level >= 0:
            batch = thin.thin(batch, thin.STEPS[self._level])
        self._keep("batch", batch)
        self._rows += batch.height
        self._keep("event", self._short(frames.event))
        self._keep("startup", frames.startup)
        failed = (pl.col("kind") == "access") & (pl.col("status") >= 400)
        last = pl.col("line_no") == pl.col("line_no").max()
        self._keep("request", frames.request.filter(failed | last))
        while self._rows > self._max_rows and self._level + 1 < len(thin.STEPS):
            self._level += 1
            step = thin.STEPS[self._level]
            self._parts["batch"] = [thin.thin(part, step) for part in self._handy_parts()]
            self._rows = sum(part.height for part in self._parts["batch"])

    def state(self) -> StoreState:
        """Return what is held, so that a log that grows later can be read from its end."""
        whole = {name: pl.concat(parts) for name, parts in self._parts.items()}
        return StoreState(whole, self._level, self._tracebacks, self._begun, tuple(self.notes))

    @classmethod
    def resumed(cls, state: StoreState) -> Store:
        """Return a store that goes on where another one stood."""
        store = cls()
        store._parts = {name: [rows] for name, rows in state.frames.items()}
        store._rows = sum(rows.height for rows in store._parts.get("batch", []))
        store._level, store._tracebacks = state.level, state.tracebacks
        store._begun = state.begun
        store.notes = list(state.notes)
        return store

    def frames(self) -> dict[str, pl.DataFrame]:
        """Hand over everything taken, each frame in the order in which it came.

        The store is empty then: what is made of the rows needs the room.
        """
        if self._level >= 0:
            step = thin.STEPS[self._level]
            self.notes.append(
                f"statistics lines were merged to one per {step} s of each rank and phase; "
                "extremes were kept"
            )
        parts, self._parts = self._parts, {}
        return {name: pl.concat(rows) for name, rows in parts.items()}

    def _handy_parts(self) -> Iterator[pl.DataFrame]:
        """Yield the batch rows in parts of a size that is reduced in little memory."""
        held: list[pl.DataFrame] = []
        for part in self._parts["batch"]:
            if held and sum(p.height for p in held) + part.height > _HANDY_ROWS:
                yield pl.concat(held)
                held = []
            held.append(part)
        if held:
            yield pl.concat(held)

    def _eras(self, frames: Frames) -> pl.Series:
        """Return how many start-up records stand before each batch row.

        Rows from before and after a restart must never be merged.
        """
        starts = pl.col("kind").is_in(sessions.START_KINDS)
        begun = frames.startup.select_seq(pl.col("line_no").filter(starts)).to_series()
        eras = self._begun + begun.sort().search_sorted(frames.batch["line_no"])
        self._begun += begun.len()
        return eras.cast(pl.Int32)

    def _keep(self, name: str, rows: pl.DataFrame) -> None:
        parts = self._parts.setdefault(name, [])
        held = sum(part.height for part in parts)
        if name != "batch" and held + rows.height > MAX_OTHER:
            rows = rows.head(MAX_OTHER - held)
            note = f"{name} records beyond the first {MAX_OTHER:,} were left out of rules"
            if note not in self.notes:
                self.notes.append(note)
        if rows.height or not parts:
            parts.append(rows)

    def _short(self, event: pl.DataFrame) -> pl.DataFrame:
        """Drop the text of tracebacks beyond the first ones."""
        has = pl.col("traceback").is_not_null()
        before = self._tracebacks
        self._tracebacks += event["traceback"].len() - event["traceback"].null_count()
        if self._tracebacks <= MAX_TRACEBACKS:
            return event
        return event.with_columns_seq(
            traceback=pl.when(has.cum_sum() + before <= MAX_TRACEBACKS).then("traceback")
        )
