"""Lines as servers print them, with values and an order that no server would give."""

import re

import corpus
import pytest
import targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SLOW = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))

#: Every kind of line of some releases, server arguments among them.
LINES = [
    line
    for release in corpus.RELEASES
    for line in (corpus.DATA / "golden" / f"{release}.log").read_text().splitlines()
    if line and len(line) < 4000
]
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
STAMPS = [
    "2026-01-05 10:00:00",
    "2026-01-05 10:00:01",
    "2026-01-05 10:40:00",
    "2026-01-04 23:59:59",
    "2026-03-29 02:30:00",
    "2026-02-30 10:00:00",
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59",
]
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
NUMBERS = ["0", "-1", "1", "0.00", "1.00", "7.50", "99", "4096", "159700", "9" * 18, "9" * 40]
NUMBERS += ["1e308", "nan", "inf", "-inf", "None", ""]


@st.composite
def odd_lines(draw):
    """Draw one printed line with its stamp and some of its numbers exchanged."""
    line = draw(st.sampled_from(LINES))
    keep = draw(st.integers(0, 10))

    def other(found):
        return found[0] if draw(st.integers(0, 9)) < keep else draw(st.sampled_from(NUMBERS))

    stamp = draw(st.sampled_from(STAMPS))
    parts = STAMP.split(line, maxsplit=1)
    return stamp.join(NUMBER.sub(other, part) if len(part) < 600 else part for part in parts)


LOGS = st.lists(st.tuples(odd_lines(), st.integers(1, 30)), min_size=1, max_size=12).map(
    lambda drawn: "".join(f"{line}\n" for line, n in drawn for _ in range(n)).encode()
)


@pytest.fixture(autouse=True)
def small_bombs(monkeypatch):
    monkeypatch.setattr(targets.streams, "MAX_RATIO_FROM", targets.BOMB)


@given(LOGS)
@SLOW
def test_any_values_in_any_order_give_a_report(log):
    targets.fuzz_report(log)


@given(LOGS, st.binary(min_size=4, max_size=4))
@SLOW
def test_any_values_in_any_order_are_counted_and_read(log, recipe):
    targets.fuzz_parser(recipe + log)


@given(LOGS, st.binary(min_size=4, max_size=4))
@SLOW
def test_a_log_in_any_wrapper_is_that_log(log, recipe):
    targets.fuzz_sources(recipe + log)
