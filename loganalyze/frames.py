"""Texts to typed frames: what was read from lines, in the columns that `schema` declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import reduce, wraps
from math import isfinite
from operator import and_
from typing import TypeVar
from weakref import WeakKeyDictionary

import polars as pl

from loganalyze import schema
from loganalyze.lines import Cells, Layout, Reading
from loganalyze.prefixes import STAMP_END
from loganalyze.schema import Column
from loganalyze.stamps import TRANSLATIONS, has_date

_RELEASE = (
    Column("release_lo", pl.Int16, "", "First of `releases.RELEASES` that prints this."),
    Column("release_hi", pl.Int16, "", "Last of `releases.RELEASES` that prints this."),
)
_WRITER = (
    Column("stream", pl.String, "", "What the wrapper says about the writer."),
    Column("group", pl.String, "", "Name of the rotated set that the log belongs to."),
)
_ARGS = Column("args_text", pl.String, "", "Text after `server_args=`, secrets included.")
#: Every column of the parser's frames: the declared schema, and what `sessions.py` needs.
COLUMNS = {
    "batch": (*schema.BATCH, *_WRITER, *_RELEASE),
    "event": (*schema.EVENT, *_WRITER, *_RELEASE),
    "startup": (*schema.STARTUP, *_WRITER, *_RELEASE, _ARGS),
    "request": (*schema.REQUEST, *_WRITER),
}
_T = TypeVar("_T")
_BY_NAME = {frame: {c.name: c for c in columns} for frame, columns in COLUMNS.items()}
#: Every column without a value. Building an expression costs more than what it does to a few
#: thousand lines, so those that never change are built once.
_NULLS = {c: pl.lit(None, dtype=c.dtype).alias(c.name) for cs in COLUMNS.values() for c in cs}

#: How stamps are written -> the form of the text that `_time` makes of them.
_FORMS = {
    "date": "%Y-%m-%d %H:%M:%S",
    "fraction": "%Y-%m-%d %H:%M:%S%.f",
    "clock": "%Y-%m-%d %H:%M:%S%.f",
    "syslog": "%Y %b %e %H:%M:%S%.f",
}
#: Of stamps without a year, until that is known; it has a 29th of February.
_NO_YEAR = 1972
#: A stamp outside of these years is damage: no log of the server's is older, or yet to come.
_FIRST, _LAST = datetime(2000, 1, 1), datetime(2100, 1, 1)
_YEARS = tuple(pl.lit(time, dtype=pl.Datetime("ms")) for time in (_FIRST, _LAST))
#: A clock without a date that falls back by more than this has passed midnight: less is
#: another writer, or the end of summer time.
_FALL_S = 2 * 3600
#: One that jumps forth by more than this is a writer still before midnight.
_JUMP_S = 22 * 3600


@dataclass(frozen=True, slots=True)
class Frames:
    """The records of one stretch of a log, in line order.

    Every frame has the columns of `COLUMNS`; `session` and the derived columns are null,
    `duplicate` is false.
    """

    batch: pl.DataFrame
    event: pl.DataFrame
    startup: pl.DataFrame
    request: pl.DataFrame


@dataclass(slots=True)
class Clock:
    """What the stamps of a log lack.

    Attributes:
        day: of a clock without a date: days since the log's start; last_s: last second seen.
        until: gives the latest time that a stamp without a year can mean; now by default.
    """

    day: int = 0
    last_s: int | None = None
    until: Callable[[], datetime] = datetime.now


class Rows:
    """Records as they are read, in any order.

    Attributes:
        kinds: number of records of each kind.
        partial: batch records with text that no field explains.
        more: lines of records beyond their first.
        cut: numbers of lines with a statistics record that could not be read.
        echoes: of lines with one in somebody's text: the number, and what may be shown.
        several: whether a line may hold more than one record.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[pl.DataFrame]] = {name: [] for name in COLUMNS}
        self._read: dict[tuple[str, str | None], list[dict[str, object]]] = {}
        self.kinds: Counter[str] = Counter()
        self.partial = 0
        self.more = 0
        self.cut: set[int] = set()
        self.echoes: dict[int, str] = {}
        self.several = False
        self._yearless = False

    def add_layout(self, layout: Layout, place: pl.DataFrame, values: pl.DataFrame) -> None:
        """Add the records of lines of one layout.

        Args:
            layout: their layout.
            place: line_no, and seq and more where they are not 0.
            values: what `read_layout` made of the lines.
        """
        fixed = [c for c in _fixed(layout) if c.name not in values.columns]
        rows = place.hstack(values).hstack([c.new_from_index(0, len(place)) for c in fixed])
        self._parts[layout.format.frame].append(rows)
        self._yearless |= _lacks_year(layout.clock)
        self._count(layout.format.kind, len(rows), layout.partial)
        if "more" in place.columns:
            self.more += int(place["more"].sum())

    def add_reading(self, reading: Reading, line_no: int, seq: int, more: int) -> None:
        """Add a record that was read field by field."""
        row = {**reading.values, "line_no": line_no, "seq": seq, "more": more}
        key = (reading.format.frame, reading.prefix.clock)
        self._read.setdefault(key, []).append(row)
        self._yearless |= _lacks_year(reading.prefix.clock)
        self._count(reading.format.kind, 1, reading.partial)
        self.more += more
        self.several |= seq > 0

    def _count(self, kind: str, n: int, partial: bool) -> None:
        self.kinds[kind] += n
        self.partial += n * partial

    def line_nos(self) -> pl.Series:
        """Return the lines of all records but requests, in order."""
        parts = [p["line_no"] for f, ps in self._parts.items() if f != "request" for p in ps]
        read = [
            row["line_no"]
            for (frame, _), rows in self._read.items()
            if frame != "request"
            for row in rows
        ]
        return pl.concat([*parts, pl.Series(read, dtype=pl.Int64)]).sort()

    def frames(self, source: str, group: str, clock: Clock) -> Frames | None:
        """Return the records in line order; None where there are none.

        Args:
            source: name of the log.
            group: name of the rotated set that it belongs to.
            clock: state of the log's clock, which is put forth.
        """
        for (frame, form), rows in self._read.items():
            names = dict.fromkeys(k for row in rows for k in row)
            places = {"line_no", "seq", "more"}
            texts = pl.DataFrame(
                rows, schema={n: pl.Int64 if n in places else pl.String for n in names}
            )
            typed = texts.select_seq(*places, *_values(frame, set(names) - places, form))
            self._parts[frame].append(typed.with_columns_seq(_dated(form)))
        self._read = {}
        if not any(self._parts.values()):
            return None
        days = _days([p for parts in self._parts.values() for p in parts], clock)
        given = {
            "source": pl.lit(source).alias("source"),
            "group": pl.lit(group).alias("group"),
            "duplicate": pl.lit(value=False).alias("duplicate"),
        }
        until = clock.until() if self._yearless else None
        return Frames(
            *(
                _assemble(self._parts[f.name], COLUMNS[f.name], given, days, until, self.several)
                for f in fields(Frames)
            )
        )


def _per_layout(make: Callable[[Layout], _T]) -> Callable[[Layout], _T]:
    """Have what is made of a layout made once, and kept for as long as the layout is."""
    kept: WeakKeyDictionary[Layout, _T] = WeakKeyDictionary()

    @wraps(make)
    def made(layout: Layout) -> _T:
        if layout not in kept:
            kept[layout] = make(layout)
        return kept[layout]

    return made


def read_layout(layout: Layout, lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series | None]:
    """Read the `text` of lines by a layout.

    Returns:
        Typed columns, and which lines fit the layout; the values of others mean nothing. None
        where all of them fit.
    """
    if layout.cells is not None:
        return _read_cells(layout, layout.cells, lines)
    groups = lines["text"].str.extract_groups(layout.pattern).struct.unnest()
    groups.columns = list(layout.columns)
    first = groups.to_series(0)
    return groups.select_seq(_typed(layout)), first.is_not_null() if first.null_count() else None


def _read_cells(
    layout: Layout, cells: Cells, lines: pl.DataFrame
) -> tuple[pl.DataFrame, pl.Series | None]:
    n = len(cells.columns) + 1 + (cells.tail is not None)
    values = lines["text"].str.splitn(",", n).struct.unnest().select_seq(_typed(layout))
    checks = [values.drop_in_place(name) for name in values.columns if name.startswith("is ")]
    head = values.drop_in_place("head")
    if repairs := [fix for column in values for fix in _repairs(column)]:  # hardly ever
        values = values.with_columns_seq(repairs)
    checks += [value.is_not_null() for value in values if value.null_count()]
    same = head == cells.head
    if not cells.ranks:
        checks.append(same)
    elif not same.all():
        ranks = head.str.extract_groups(cells.head_pattern).struct.unnest()
        ranks.columns = list(cells.ranks)
        checks.append(ranks.to_series(0).is_not_null())
        values = values.hstack(ranks.select_seq(_values(layout.format.frame, cells.ranks, None)))
    doubts = [check for check in checks if not check.all()]
    return values, reduce(and_, doubts) if doubts else None


def _repairs(column: pl.Series) -> list[pl.Expr]:
    """Return what leaves out the values of a column that cannot be, where it has any."""
    value = pl.col(column.name)
    if column.dtype.is_float():
        return [] if isfinite(column.sum()) else [_finite(value)]
    if column.dtype == pl.Datetime:  # Python's datetime has fewer years than Polars
        sane = ((column >= _FIRST) & (column <= _LAST)).all()
        return [] if sane else [_sane(value)]
    return []


@_per_layout
def _typed(layout: Layout) -> list[pl.Expr]:
    """Return expressions that type the texts of a layout's columns.

    Of cells, they give null for what is no value of its type; and further columns: `head`, the
    first cell behind its stamp, and some named `is `, whether a cell is as it must be.
    """
    if layout.cells is None:
        return _values(layout.format.frame, layout.columns, layout.clock)
    known, first = _BY_NAME[layout.format.frame], pl.col("field_0")
    stamp = first.str.slice(0, STAMP_END)
    time = stamp.str.to_datetime("[%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False, cache=False)
    typed = [time.alias("time"), first.str.slice(STAMP_END).alias("head")]
    for k, (name, label) in enumerate(layout.cells.columns, 1):
        cell = pl.col(f"field_{k}")
        if known[name].dtype == pl.Boolean:
            is_true = cell == f"{label}True"
            typed += [
                is_true.alias(name),
                (is_true | (cell == f"{label}False")).alias(f"is {name}"),
            ]
        else:
            value = cell.str.strip_prefix(label).cast(known[name].dtype, strict=False)
            typed.append(value.alias(name))
    if layout.cells.tail is not None:
        last = pl.col(f"field_{len(layout.cells.columns) + 1}")
        typed.append(last.eq_missing(layout.cells.tail).alias("is tail"))
    return typed


@_per_layout
def _fixed(layout: Layout) -> list[pl.Series]:
    """Return one row of the columns that have the same value on every line of a layout."""
    known = _BY_NAME[layout.format.frame]
    fixed = [_literal(known[n], text) for n, text in layout.fixed.items() if n in known]
    return pl.select(*fixed, _dated(layout.clock)).get_columns()


def _values(frame: str, names: Iterable[str], clock: str | None) -> list[pl.Expr]:
    """Return expressions that type the texts of a frame's columns; `stamp` gives the time."""
    known = _BY_NAME[frame]
    values = [_value(known[name]) for name in names if name in known]
    if clock is not None:
        values.append(_time(clock).alias("time"))
    return values


def _dated(clock: str | None) -> pl.Expr:
    """Return whether stamps have a date; null where there are none."""
    dated = None if clock is None else has_date(clock)
    return pl.lit(dated, dtype=pl.Boolean).alias("time_has_date")


def _value(column: Column) -> pl.Expr:
    value = pl.col(column.name)
    if column.dtype == pl.String:
        return value
    if column.dtype == pl.Boolean:
        return value == "True"
    return _value_of(value, column)


def _value_of(text: pl.Expr, column: Column) -> pl.Expr:
    """Read texts as the numbers of a column; null where they are none."""
    value = text.cast(column.dtype, strict=False)
    return _finite(value) if column.dtype.is_float() else value


def _finite(value: pl.Expr) -> pl.Expr:
    """Leave out `nan`, which says that there is no value; nothing measured is beyond floats."""
    return pl.when(value.is_finite()).then(value)


def _literal(column: Column, text: str) -> pl.Expr:
    value = text == "True" if column.dtype == pl.Boolean else text
    return pl.lit(value).cast(column.dtype, strict=False).alias(column.name)


def _time(clock: str) -> pl.Expr:
    """Read the stamps; a clock without a date counts from 1970-01-01."""
    stamp = pl.col("stamp")
    if clock == "epoch":
        number = stamp.cast(pl.Float64, strict=False)
        ms = pl.when(number < 1e11).then(number * 1000).otherwise(number)
        return _sane(ms.round().cast(pl.Int64).cast(pl.Datetime("ms")))
    if clock != "date":
        stamp = stamp.str.replace(",", ".", literal=True)
    if clock == "fraction":
        date = stamp.str.slice(0, 10).str.replace_all("/", "-", literal=True)
        stamp = date + pl.lit(" ") + stamp.str.slice(11)
    if "%b" in clock or "%P" in clock:
        for words, english in TRANSLATIONS:
            stamp = stamp.str.replace_all(words, english)
    form = _FORMS.get(clock, clock)
    if not has_date(clock):
        stamp = pl.lit("1970-01-01 ") + stamp
        form = "%Y-%m-%d " + form.removeprefix("%Y-%m-%d ")
    if _lacks_year(clock):
        stamp = pl.lit(f"{_NO_YEAR} ") + stamp
    time = stamp.str.to_datetime(form, time_unit="ms", strict=False, cache=False)
    return _sane(time) if has_date(clock) and not _lacks_year(clock) else time


def _sane(time: pl.Expr) -> pl.Expr:
    """Leave out times that no log has."""
    return pl.when(time.is_between(_YEARS[0], _YEARS[1])).then(time)


def _lacks_year(clock: str | None) -> bool:
    """Whether stamps have a day but no year: their form begins with one that is put before."""
    return clock is not None and _FORMS.get(clock, clock).startswith("%Y ")


def _days(parts: list[pl.DataFrame], clock: Clock) -> pl.DataFrame | None:
    """Tell the day of stamps without a date: one more whenever the clock falls back.

    Writers are a few seconds out of step, so that around midnight it also jumps forth.
    """
    timed = [
        p.filter(pl.col("time").is_not_null()).select_seq("line_no", "time")
        for p in parts
        if p["time_has_date"][0] is False
    ]
    stamps = pl.concat(timed).sort("line_no", maintain_order=True) if timed else pl.DataFrame()
    if stamps.is_empty():
        return None
    seconds = (stamps["time"].dt.epoch("s")).cast(pl.Int64)
    before = seconds[0] if clock.last_s is None else clock.last_s
    step = seconds.diff().fill_null(seconds[0] - before)
    turns = (step < -_FALL_S).cast(pl.Int32) - (step > _JUMP_S).cast(pl.Int32)
    day = (turns.cum_sum() + clock.day).clip(lower_bound=0)
    clock.day, clock.last_s = int(day[-1]), int(seconds[-1])
    return stamps.select_seq("line_no", day=day).unique("line_no", keep="first")


def _in_year(until: datetime) -> pl.Expr:
    """Put stamps without a year in the last year in which they are not in the future."""
    time = pl.col("time")
    late = time.dt.offset_by(f"{until.year - _NO_YEAR}y")
    early = time.dt.offset_by(f"{until.year - 1 - _NO_YEAR}y")
    told = pl.when(late <= until + timedelta(days=1)).then(late).otherwise(early)
    yearless = pl.col("time_has_date") & (time.dt.year() == _NO_YEAR)
    return pl.when(yearless).then(told).otherwise(time)


def _assemble(
    parts: list[pl.DataFrame],
    columns: tuple[Column, ...],
    given: Mapping[str, pl.Expr],
    days: pl.DataFrame | None,
    until: datetime | None,
    several: bool,
) -> pl.DataFrame:
    """Put the parts of one frame together, in line order and with every column.

    Args:
        parts: rows of the frame.
        columns: what the frame has.
        given: columns with the same value on every row.
        days: line_no and day of the stamps without a date; None where there are none.
        until: latest time that a stamp without a year can mean; None where there are none.
        several: whether a line may hold more than one record.
    """
    if not parts:
        return schema.empty(columns)
    rows = pl.concat(parts, how="diagonal")
    if days is not None and "time" in rows.columns:
        rows = rows.join(days, on="line_no", how="left", maintain_order="left")
        late = pl.duration(days=pl.col("day"))
        undated = ~pl.col("time_has_date")
        rows = rows.with_columns_seq(
            pl.when(undated).then(pl.col("time") + late).otherwise("time")
        )
    if until is not None and "time" in rows.columns:
        rows = rows.with_columns_seq(_in_year(until))
    if "seq" in rows.columns and several:
        rows = rows.sort("line_no", pl.col("seq").fill_null(0))
    elif not rows["line_no"].is_sorted():
        rows = rows.sort("line_no")
    return rows.select_seq(
        c.name if c.name in rows.columns else given.get(c.name, _NULLS[c]) for c in columns
    )
