"""From a condition that holds or not, cell by cell, to episodes with line numbers.

A *span* is a half-open range of cells `(first, end)` of one rank's time grid (signals.py).
Spans are joined over short holes, kept only if long enough, and then become episodes: the
lines printed within them, with the stamps of the first and the last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import polars as pl

from loganalyze.model import Episode
from loganalyze.signals import Rank

Span = tuple[int, int]


_NO, _YES = pl.Series("in", [False]), pl.Series("in", [True])


def spans(mask: pl.Series) -> list[Span]:
    """Return the stretches of cells in which `mask` is true; null counts as false."""
    if mask.is_empty() or not mask.any():
        return []
    known = mask.fill_null(False) if mask.null_count() else mask
    out: list[Span] = []
    end = 0
    for n, holds in known.rle().struct.unnest().iter_rows():
        end += n
        if holds:
            out.append((end - n, end))
    return out


def joined(found: Sequence[Span], hole: float, within: pl.Series | None = None) -> list[Span]:
    """Join neighbours that are at most `hole` cells apart.

    Args:
        found: spans in order.
        hole: the longest hole to close, in cells.
        within: where given, a hole is closed only if this is true all through it.
    """
    out: list[Span] = []
    for first, end in found:
        if (
            out
            and first - out[-1][1] <= hole
            and (within is None or bool(within[out[-1][1] : first].all()))
        ):
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((first, end))
    return out


def at_least(found: Sequence[Span], cells: float) -> list[Span]:
    """Keep the spans of at least `cells` cells."""
    return [(first, end) for first, end in found if end - first >= cells]


def within(at: pl.Series, found: Sequence[tuple[Any, Any]]) -> pl.Series:
    """Return which values lie in one of the ranges, their ends included; null lies in none."""
    starts, ends = list[Any](), list[Any]()
    for start, end in sorted(found):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    if at.null_count() == at.len():
        return pl.repeat(False, at.len(), dtype=pl.Boolean, eager=True)
    of = pl.Series(starts, dtype=at.dtype).search_sorted(at.fill_null(strategy="max"), "right")
    before = pl.Series([None, *ends], dtype=at.dtype).gather(of)
    return (at.is_not_null() & (at <= before)).fill_null(False)


def overlap(a: Sequence[Span], b: Sequence[Span]) -> int:
    """Return the number of cells that lie in both."""
    return sum(max(0, min(p[1], q[1]) - max(p[0], q[0])) for p in a for q in b)


def mask_of(found: Sequence[Span], height: int) -> pl.Series:
    """Return the boolean series that is true within the spans."""
    parts, at = [_NO.clear()], 0
    for first, end in found:
        parts += [_NO.new_from_index(0, first - at), _YES.new_from_index(0, end - first)]
        at = end
    return pl.concat([*parts, _NO.new_from_index(0, height - at)])


def hysteresis(
    enter: pl.Series, keep: pl.Series, patience: int, ends: Iterable[tuple[pl.Series, int]] = ()
) -> list[Span]:
    """Return the spans of a state that is easier to keep than to enter.

    The state begins at a cell where `enter` is true, and ends at the last cell in which it or
    `keep` was true before one of these was seen since it began:

    Args:
        enter: where it begins.
        keep: where it goes on.
        patience: so many cells in a row without `keep` or `enter`.
        ends: (mask, cells) pairs: so many cells in a row in which the mask is true.

    Why: under steady saturation usage saw-tooths between 0.65 and 1.00 as waves of requests
    finish together; a threshold on each line would cut one saturation into forty.
    """
    good = (keep | enter).fill_null(False)
    kept, height = spans(good), good.len()
    long = [(at_least(spans(mask), n), n) for mask, n in [(~good, patience), *ends]]
    out: list[Span] = []
    reached = 0
    for first, _ in spans(enter):
        if first < reached:
            continue
        # Where each of the ends was seen, and since where.
        seen = [(height, height)]
        for found, n in long:
            k = bisect_left(found, first + n, key=itemgetter(1))
            if k < len(found):
                since = max(found[k][0], first)
                seen.append((since + n, since))
        reached, since = min(seen)
        k = bisect_left(kept, since, key=itemgetter(0)) - 1
        last = min(kept[k][1], since) if k >= 0 else first
        if last > first:
            out.append((first, last))
    return out


def between(rank: Rank, first: int, last: int) -> Episode:
    """Return the episode from one line of the rank to another, by their rows."""
    (source, last_source), (line, last_line), (start, end) = (
        (column[first], column[last])
        for column in map(rank.lines.get_column, ("source", "line_no", "time"))
    )
    other = last_source if last_source != source else None
    return Episode(start, end, line, last_line, rank.label, source, other)


def episodes(rank: Rank, found: Sequence[Span]) -> list[Episode]:
    """Return the lines and stamps of some spans of one rank's cells.

    A span without a line of its own (a silence) goes from the line before it to the line
    after it.
    """
    edges = pl.Series([edge * rank.step_s for span in found for edge in span], dtype=pl.Float64)
    rows = rank.lines["t"].search_sorted(edges).to_list()
    out: list[Episode] = []
    for first, end in zip(rows[::2], rows[1::2], strict=True):
        if first < end:
            out.append(between(rank, first, end - 1))
        else:
            out.append(between(rank, max(0, first - 1), min(rank.lines.height - 1, first)))
    return out


def point(row: Mapping[str, Any], rank: str | None = None) -> Episode:
    """Return the episode of one record, such as a message."""
    line = int(row["line_no"])
    return Episode(row["time"], row["time"], line, line, rank, row["source"])
