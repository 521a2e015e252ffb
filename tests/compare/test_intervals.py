"""Means, intervals and matches, against tables, hand calculations and series of known truth."""

import math
import random

import polars as pl
import pytest

from loganalyze.compare import intervals
from loganalyze.compare.intervals import Mean


def rows(x, w=1.0, stratum=None):
    n = len(x)
    return pl.DataFrame(
        {
            "x": [None if v is None else float(v) for v in x],
            "w": [float(w)] * n,
            "stratum": stratum or [0] * n,
        }
    )


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [  # from printed tables of Student's t
        (0.975, 5, 2.571),
        (0.975, 10, 2.228),
        (0.975, 30, 2.042),
        (0.995, 10, 3.169),
        (0.95, 20, 1.725),
    ],
)
def test_student_agrees_with_tables(probability, freedom, quantile):
    assert intervals.student(probability, freedom) == pytest.approx(quantile, abs=0.003)


def test_a_constant_is_known_exactly():
    found = intervals.mean(rows([7.0] * 100), {0: 1.0})
    assert found.value == 7.0
    assert found.error == 0.0


def test_a_mean_is_counted_per_weight():
    found = intervals.mean(rows([6.0] * 100, w=3.0), {0: 1.0})
    assert found.value == pytest.approx(2.0)


def test_strata_count_by_their_given_weight_not_by_their_size():
    # 90 rows of 1, 10 rows of 11; at equal weight the mean is 6, not 2.
    x = ([1.0] * 9 + [11.0]) * 10
    strata = ([0] * 9 + [1]) * 10
    assert intervals.mean(rows(x, stratum=strata), {0: 0.5, 1: 0.5}).value == pytest.approx(6.0)


def test_rows_that_are_not_known_do_not_count():
    x = [5.0, None] * 60
    assert intervals.mean(rows(x), {0: 1.0}).value == 5.0


def test_too_few_rows_give_nothing():
    assert intervals.mean(rows([1.0] * (2 * intervals.BATCHES - 1)), {0: 1.0}) is None


def test_a_stratum_without_rows_gives_nothing():
    assert intervals.mean(rows([1.0] * 100), {0: 0.5, 1: 0.5}) is None


def missed(phi, length, series=200):
    """Return how often the interval of a mean misses it, for noise of memory `phi`."""
    dice = random.Random(5)
    out = 0
    for _ in range(series):
        v = dice.gauss(0, 1 / math.sqrt(1 - phi * phi))
        x = []
        for _ in range(length):
            v = phi * v + dice.gauss(0, 1)
            x.append(v)
        found = intervals.mean(rows(x), {0: 1.0})
        out += abs(found.value) > intervals.student(0.975, found.freedom) * found.error
    return out / series


def test_intervals_hold_independent_noise_95_times_in_100():
    assert 0.01 <= missed(0.0, 480) <= 0.10


def test_intervals_hold_noise_that_lasts_for_fifty_rows():
    # Taken as independent rows, this noise would be missed in 85 of 100 series.
    assert missed(0.98, 2000) <= 0.12


def test_a_wave_that_cancels_out_is_no_uncertainty_of_the_mean():
    x = [100 + 50 * math.sin(2 * math.pi * k / 500) for k in range(2000)]
    found = intervals.mean(rows(x), {0: 1.0})
    independent = 50 / math.sqrt(2) / math.sqrt(24)
    assert found.value == pytest.approx(100, abs=0.1)
    assert found.error < 0.7 * independent


def test_ratio_and_difference_of_known_means():
    before, after = Mean(10.0, 0.0, 5.0), Mean(12.0, 0.0, 5.0)
    ratio = intervals.ratio(before, after)
    assert (ratio.low, ratio.mid, ratio.high) == (1.2, 1.2, 1.2)
    difference = intervals.difference(before, after)
    assert (difference.low, difference.mid, difference.high) == (2.0, 2.0, 2.0)


def test_the_width_of_a_difference_is_welchs():
    # Both errors 1, five degrees of freedom each: error sqrt(2), ten degrees, t = 2.228.
    found = intervals.difference(Mean(0.0, 1.0, 5.0), Mean(0.0, 1.0, 5.0))
    assert found.high == pytest.approx(2.228 * math.sqrt(2), rel=0.002)
    assert found.low == -found.high


def test_a_ratio_to_nothing_is_none():
    assert intervals.ratio(Mean(0.0, 0.1, 5.0), Mean(1.0, 0.1, 5.0)) is None


def test_events_that_never_happened_are_as_uncertain_as_one():
    found = intervals.at_least_counted(Mean(0.0, 0.0, 5.0), total=0.0, per=40.0)
    assert found.error == pytest.approx(1 / 40)


def matched(before, after, width=1.15):
    frames = [pl.DataFrame({"v": [float(v) for v in x]}) for x in (before, after)]
    return intervals.match(*frames, {"v": width})


@pytest.mark.parametrize("value", [1, 8, 47, 150, 153, 155, 1000])
def test_values_a_hair_apart_match_wherever_the_edges_lie(value):
    found = matched([value] * 50, [value * 1.01] * 50)
    assert found.share == 1.0


def test_values_far_apart_do_not_match():
    found = matched([10] * 50, [20] * 50)
    assert found.share == 0.0
    assert found.weights == {}


def test_the_share_is_what_both_sides_have():
    # Half of one side and a quarter of the other lie at 100: a quarter is common.
    found = matched([100] * 50 + [10] * 50, [100] * 25 + [1000] * 75)
    assert found.share == pytest.approx(0.25)
    assert list(found.weights.values()) == [1.0]
