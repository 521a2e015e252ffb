"""Lines as servers print them, with values and an order that no server would give."""

import json
import re
from datetime import datetime, timedelta

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
VALUES = st.sampled_from(NUMBERS) | st.sampled_from(
    ["0.01", "0.50", "0.97", "3", "5", "40", "900"]
)
#: Fields as they are printed, in the order of the lines that have them.
NAMES = st.sampled_from(
    list(
        dict.fromkeys(
            name for line in LINES for name in re.findall(r"[,.:] ([#\w][^:,]*): ", line)
        )
    )
)


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


#: Logs whose lines come in any order, each with any stamp.
JUMBLED = st.lists(st.tuples(odd_lines(), st.integers(1, 30)), min_size=1, max_size=12).map(
    lambda drawn: [line for line, n in drawn for _ in range(n)]
)

RANK = re.compile(r"(?<=\d\d:\d\d:\d\d)(?: (?:DP|TP|PP|EP|CP)-?\d+)*(?=\])")
RANKS = ["", " TP0", " TP7", " DP0 TP0", " DP1 TP4", " DP-1 TP0", " PP1", " DP1 TP1 EP9", " TP999"]


@st.composite
def clocked(draw):
    """Draw a log whose clock goes on, so that conditions hold and episodes begin and end.

    A few lines take turns, on a few ranks; what differs from turn to turn is drawn once.
    """
    turn = draw(st.lists(odd_lines(), min_size=1, max_size=6))
    ranks = draw(st.lists(st.sampled_from(RANKS), min_size=1, max_size=3))
    steps = draw(
        st.lists(st.sampled_from([0, 1, 1, 5, 40, 700, -3, 86_400]), min_size=1, max_size=4)
    )
    swings = draw(st.lists(st.tuples(NAMES, st.lists(VALUES, min_size=1, max_size=3)), max_size=4))
    time, lines = datetime(2026, 3, 29, 1, 50), []
    for k in range(draw(st.integers(2, 120))):
        time += timedelta(seconds=steps[k % len(steps)])
        line = turn[k % len(turn)]
        for name, values in swings:
            found = re.compile(rf"(?<={re.escape(name)}: )[^,\s]+")
            line = found.sub(values[k // len(turn) % len(values)], line)
        line = STAMP.sub(f"{time:%Y-%m-%d %H:%M:%S}", line, count=1)
        lines.append(RANK.sub(ranks[k % len(ranks)], line, count=1))
    return lines


def numbered(line):
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-03-29T01:00:00.5Z"})


#: What collectors make of a line.
WRAPPERS = [
    lambda line: line,
    lambda line: re.sub(r"^\[[^\]]*\] ?", "", line),  # a server that prints no stamps
    lambda line: re.sub(r"^\[\S+ ", "[", line),  # times of day alone
    lambda line: f"2026-03-29T01:59:59.123456789Z stderr F {line}",
    lambda line: f"Mar 29 01:59:59 host sglang[7]: {line}",
    lambda line: f"rank0  | \x1b[32m{line}\x1b[0m",
    lambda line: f"(Worker pid=7, ip=10.0.0.7) {line}\r",
    numbered,
]


@st.composite
def logs(draw):
    """Draw a log: its lines in one wrapper, or each in one of two."""
    lines = draw(JUMBLED | clocked())
    wrappers = draw(st.lists(st.sampled_from(WRAPPERS), min_size=1, max_size=2))
    worn = (wrappers[k % len(wrappers)](line) for k, line in enumerate(lines))
    return "".join(f"{line}\n" for line in worn).encode()


LOGS = logs()


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
