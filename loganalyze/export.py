"""Write a frame of a log to a file, row by row as it is read.

The rows go to Parquet, CSV or NDJSON with every column of the frame's schema, the same for
every log, in (source, line_no) order. Memory does not grow with the log.

A first reading finds the sessions, for which of all statistics lines only a thin selection is
kept (store.py); the second one writes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from polars.io.plugins import register_io_source

from loganalyze import derive, duplicates, filters, reading, schema, sessions
from loganalyze.duplicates import Marker
from loganalyze.errors import InputError, UsageError
from loganalyze.filters import Filters
from loganalyze.frames import Frames
from loganalyze.model import Unreadable
from loganalyze.parse import Parser
from loganalyze.redact import Redactor
from loganalyze.schema import Column
from loganalyze.sources import Source
from loganalyze.store import Store

Frame = Literal["batch", "event", "startup", "request"]
Format = Literal["parquet", "csv", "ndjson"]

#: Statistics lines held to find the sessions; some between any two starts are enough.
_PLAN_ROWS = 20_000
#: Rows written at once: NDJSON of four times as many takes 60 MB more, and no less time.
_SLICE = 2048
#: A spreadsheet would run these as formulas.
_FORMULA = r"^([=+\-@\t])"
#: A terminal would obey these, or show the rest of the line in another order.
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


def write(
    paths: Sequence[str],
    target: Path,
    *,
    frame: Frame,
    form: Format,
    columns: Sequence[str] = (),
    chosen: Filters | None = None,
    redact: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> list[Unreadable]:
    """Export one frame of logs.

    Args:
        paths: log files; `-` is standard input.
        target: file to write.
        frame: which frame; see schema.py for its columns.
        form: parquet, csv or ndjson. In the latter two, text is as `readable` and `csv_text`
            give it, and times are ISO 8601; Parquet has both as they were logged.
        columns: names of the columns to write, in this order; all by default.
        chosen: rows to keep; all by default.
        redact: whether hosts, addresses, keys and user names are taken out of texts.
        on_progress: called with the number of bytes read since the last call.

    Returns:
        Inputs that could not be read; the others are in the file.

    Raises:
        InputError: no input could be used, or one went away between the two readings.
        UsageError: the frame has no such column.
        OSError: the target cannot be written.
    """
    declared = schema.FRAMES[frame]
    for name in columns:
        if name not in {column.name for column in declared}:
            raise UsageError(f"{frame} has no column {name}", hint=_near(name, declared))
    store, redactor = _Planned(_PLAN_ROWS), Redactor(keep=not redact)
    read, unreadable = reading.read_all(Parser(), store, paths, on_progress)
    frames = Frames(**store.frames())
    found = sessions.plan(frames, reading.rotated(read))
    end = derive.time_span(*(getattr(frames, name) for name in schema.FRAMES))[1]
    keep = filters.expression(chosen or Filters(), end)
    marker = None
    copies = {name: n for name, head in store.heads.items() if (n := duplicates.copies(head)) > 1}
    if frame in ("batch", "event") and (copies or duplicates.possible(getattr(frames, frame))):
        marker = Marker(declared, several_files=bool(found.servers.by_time), copies=copies)
    del store, frames  # the second reading needs the room

    def rows(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        for chunk in _finished(read, frame, found, marker):
            part = redactor.frame(schema.conform(chunk, declared).filter(keep))
            if predicate is not None:
                part = part.filter(predicate)
            part = part.select_seq(with_columns) if with_columns else part
            yield from part.iter_slices(_SLICE)  # a sink holds several at once

    lazy = register_io_source(rows, schema=schema.dtypes(declared))
    if columns:
        lazy = lazy.select_seq(*dict.fromkeys(columns))
    try:
        if form == "parquet":
            lazy.sink_parquet(target)
        elif form == "csv":
            lazy.with_columns_seq(csv_text(), times()).sink_csv(target)
        else:
            lazy.with_columns_seq(readable(), times()).sink_ndjson(target)
    except pl.exceptions.ComputeError as error:
        # How Polars says that the disk is full, for some forms.
        if told := re.search(r"([^:]+) \(os error (\d+)\)", str(error)):
            raise OSError(int(told[2]), told[1].strip()) from error
        raise
    return unreadable


def _near(name: str, declared: Sequence[Column]) -> str:
    """Say which columns may have been meant, or what there is."""
    known = [column.name for column in declared]
    near = difflib.get_close_matches(name, known, n=3) or known
    return f"columns: {', '.join(near)}"


def times() -> pl.Expr:
    """Return all times as reports write them, to the millisecond: ISO 8601 without a zone."""
    return pl.col(pl.Datetime).dt.strftime("%Y-%m-%dT%H:%M:%S%.3f")


def readable() -> pl.Expr:
    """Return all text columns with U+FFFD for control characters but tab and newline."""
    return pl.col(pl.String).str.replace_all(_CONTROL, "\ufffd")


def csv_text() -> pl.Expr:
    """Return all text columns as a spreadsheet may open them: readable, and no formula.

    What a spreadsheet would run gets a leading apostrophe.
    """
    return readable().str.replace(_FORMULA, "'$1")


class _Planned(Store):
    """Holds what tells the sessions, and the first decode lines of each log as printed."""

    def __init__(self, max_rows: int) -> None:
        super().__init__(max_rows)
        self.heads: dict[str, pl.DataFrame] = {}

    def add(self, frames: Frames) -> None:
        """Take one chunk."""
        super().add(frames)
        for (name,), lines in duplicates.compared(frames.batch).group_by("source"):
            head = pl.concat([self.heads.get(str(name), lines.clear()), lines])
            self.heads[str(name)] = duplicates.compared(head)


def _finished(
    read: Sequence[Source], frame: Frame, found: sessions.Plan, marker: Marker | None
) -> Iterator[pl.DataFrame]:
    """Yield the frame's chunks with sessions, duplicates and derived columns."""
    parser = Parser(requests="all" if frame == "request" else "errors")
    for source in read:
        lines = source.lines
        for chunk in parser.read(source):
            table = found.assign(getattr(chunk, frame))
            if table.height:
                table = marker.mark(table) if marker else table
                yield derive.add_columns(table) if frame == "batch" else table
        if source.lines < lines:
            raise InputError(
                f"{source.name}: became shorter while it was read",
                hint="was it rotated? export a copy of it",
            )
