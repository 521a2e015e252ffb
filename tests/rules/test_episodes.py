"""Spans, joins and hysteresis on short series."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loganalyze.episodes import (
    at_least,
    hysteresis,
    joined,
    mask_of,
    overlap,
    spans,
    within,
)


def series(text):
    return pl.Series([c == "#" for c in text])


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("", []), ("....", []), ("####", [(0, 4)]), (".##.#", [(1, 3), (4, 5)])],
)
def test_spans(mask, expected):
    assert spans(series(mask)) == expected


def test_null_is_not_true():
    assert spans(pl.Series([True, None, True])) == [(0, 1), (2, 3)]


def test_joined_closes_short_holes_only():
    assert joined([(0, 2), (4, 6), (9, 10)], 2) == [(0, 6), (9, 10)]


def test_joined_only_within():
    within = series("####.#####")
    assert joined([(0, 3), (6, 8)], 5, within) == [(0, 3), (6, 8)]
    assert joined([(5, 6), (8, 10)], 5, within) == [(5, 10)]


def test_at_least_and_overlap():
    assert at_least([(0, 2), (4, 9)], 3) == [(4, 9)]
    assert overlap([(0, 5), (8, 10)], [(3, 9)]) == 3


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=60))
def test_mask_of_inverts_spans(values):
    mask = pl.Series(values, dtype=pl.Boolean)
    assert mask_of(spans(mask), mask.len()).to_list() == values


def test_hysteresis_keeps_through_a_dip():
    enter, keep = series("..##..........."), series("..####..####...")
    assert hysteresis(enter, keep, 3) == [(2, 12)]
    assert hysteresis(enter, keep, 2) == [(2, 6)]


def test_hysteresis_ends_before_the_queue_is_empty():
    enter, keep, empty = series("##........"), series("##########"), series("....##....")
    assert hysteresis(enter, keep, 9, [(empty, 2)]) == [(0, 4)]


def test_hysteresis_ends_in_retrospect():
    enter, keep, low = series("##........"), series("##########"), series("...#######")
    assert hysteresis(enter, keep, 9, [(low, 4)]) == [(0, 3)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=80), st.integers(1, 6))
def test_spans_are_ordered_disjoint_and_inside(values, patience):
    enter = pl.Series([a for a, _ in values], dtype=pl.Boolean)
    keep = pl.Series([b for _, b in values], dtype=pl.Boolean)
    found = hysteresis(enter, keep, patience)
    assert all(0 <= a < b <= len(values) for a, b in found)
    assert all(one[1] <= two[0] for one, two in pairwise(found))


def cell_by_cell(enter, keep, patience, mask, n):
    """The same as `hysteresis`, told from one cell to the next."""
    out, cell = [], 0
    while cell < len(enter):
        if not enter[cell] or (cell and enter[cell - 1]):
            cell += 1
            continue
        first = last = cell
        bad = seen = 0
        while cell < len(enter):
            good = enter[cell] or keep[cell]
            bad, seen = 0 if good else bad + 1, seen + 1 if mask[cell] else 0
            last = cell + 1 if good else last
            cell += 1
            if seen >= n:
                last = min(last, cell - n)
            if seen >= n or bad >= patience:
                break
        out += [(first, last)] if last > first else []
    return out


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.booleans()] * 3), max_size=60), st.integers(1, 6), st.integers(1, 6)
)
def test_hysteresis_is_as_told_cell_by_cell(values, patience, n):
    enter, keep, mask = (pl.Series([v[k] for v in values], dtype=pl.Boolean) for k in range(3))
    found = hysteresis(enter, keep, patience, [(mask, n)])
    assert found == cell_by_cell(
        *(s.to_list() for s in (enter, keep)), patience, mask.to_list(), n
    )


def test_values_within_any_of_some_ranges():
    at = pl.Series([0, 5, None, 10, 11, 20])
    assert within(at, [(8, 11), (5, 10)]).to_list() == [False, True, False, True, True, False]
    assert within(at, []).to_list() == [False] * 6
    assert within(at.filter(at.is_null()), [(5, 10)]).to_list() == [False]
