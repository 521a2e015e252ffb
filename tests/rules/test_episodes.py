"""Spans, joins and hysteresis on short series."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loganalyze.episodes import (
    Hold,
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
    assert hysteresis(enter, keep, Hold(patience=3)) == [(2, 12)]
    assert hysteresis(enter, keep, Hold(patience=2)) == [(2, 6)]


def test_hysteresis_quits_at_once_when_the_queue_is_empty():
    enter, keep, empty = series("##........"), series("##########"), series("....##....")
    assert hysteresis(enter, keep, Hold(patience=9, quits=[(empty, 2)])) == [(0, 4)]


def test_hysteresis_fades_in_retrospect():
    enter, keep, low = series("##........"), series("##########"), series("...#######")
    assert hysteresis(enter, keep, Hold(patience=9, fades=[(low, 4)])) == [(0, 3)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=80), st.integers(1, 6))
def test_spans_are_ordered_disjoint_and_inside(values, patience):
    enter = pl.Series([a for a, _ in values], dtype=pl.Boolean)
    keep = pl.Series([b for _, b in values], dtype=pl.Boolean)
    found = hysteresis(enter, keep, Hold(patience))
    assert all(0 <= a < b <= len(values) for a, b in found)
    assert all(one[1] <= two[0] for one, two in pairwise(found))


def test_values_within_any_of_some_ranges():
    at = pl.Series([0, 5, None, 10, 11, 20])
    assert within(at, [(8, 11), (5, 10)]).to_list() == [False, True, False, True, True, False]
    assert within(at, []).to_list() == [False] * 6
    assert within(at.filter(at.is_null()), [(5, 10)]).to_list() == [False]
