from __future__ import annotations

import unicodedata
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from loganalyze.model import Action, Episode
from loganalyze.report import words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m text", "red text"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("a\x00b\x08c\x7fd", "abcd"),
        ("tab\there\r\nnext\u2028line", "tab here next line"),
        ("\u202eright\u202c \u2066x\u2069 a\u200bb\ufeff", "right x ab"),
        ("tag\U000e0041 private\ue000", "tag private"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("keeps ünïcode 日本 ✓", "keeps ünïcode 日本 ✓"),
        ("  many   spaces  ", "many spaces"),
    ],
)
def test_clean_takes_out_what_steers_or_hides(text: str, shown: str) -> None:
    assert words.clean(text) == shown


@given(st.text())
def test_clean_text_holds_no_control_or_format_character(text: str) -> None:
    out = words.clean(text)
    assert not [c for c in out if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}]
    assert words.clean(out) == out


def test_long_text_is_cut_and_says_how_much() -> None:
    assert words.clean("A" * 10_000) == "A" * 1_000 + " … (+9,000 characters)"


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if is_dataclass(value):
        return [s for f in fields(value) for s in _strings(getattr(value, f.name))]
    if isinstance(value, dict):
        return [s for pair in value.items() for v in pair for s in _strings(v)]
    if isinstance(value, tuple | list):
        return [s for v in value for s in _strings(v)]
    return []


def test_safe_cleans_every_string_of_a_report() -> None:
    found = _strings(words.safe(samples.hostile()))
    assert len(found) > 300
    assert all(s.isprintable() and len(s) < 1_050 for s in found)


def test_safe_leaves_an_honest_report_as_it_is() -> None:
    assert words.safe(samples.excerpt()) == samples.excerpt()


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (None, "", "not in the log"),
        (float("nan"), "", "not in the log"),
        (True, "", "yes"),
        (1_526, "lines", "1,526 lines"),
        (150_158, "tokens", "150,158 tokens"),
        (0.94, "fraction", "0.94"),
        (1.0, "fraction", "1.00"),
        (0, "fraction", "0.00"),
        (0.0213, "fraction", "0.021"),
        (17.339, "token/s", "17.34 token/s"),
        (606.88, "token/s", "606.88 token/s"),
        (4_290.23, "tokens", "4,290.2 tokens"),
        (43.9, "", "43.9"),
        (4.1, "percent", "4.1%"),
        ("auto", "", "auto"),
        (1, "requests", "1 request"),
        (1.0, "tokens", "1 token"),
        (1, "ms", "1 ms"),
        (1.3, "requests", "1.3 requests"),
    ],
)
def test_numbers_are_said_as_people_read_them(value: Any, unit: str, said: str) -> None:
    assert words.number(value, unit) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.034, "0.034 s"),
        (2.5, "2.5 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (2_561, "42 min 41 s"),
        (3_600, "1 h 00 min"),
        (22_320, "6 h 12 min"),
        (86_400, "1 d 00 h"),
        (187_000, "2 d 03 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    """In a claim, beside its lines, and as the value of an evidence with the unit s."""
    assert words.duration(seconds) == words.number(seconds, "s") == said


def test_times_without_a_date_say_the_day_they_count() -> None:
    assert words.moment(datetime(1970, 1, 1, 12, 3, 7)) == "12:03:07"
    assert words.moment(datetime(1970, 1, 2, 0, 1, 2)) == "day 2, 00:01:02"
    assert words.moment(datetime(2026, 2, 24, 12, 3, 7)) == "2026-02-24 12:03:07"
    assert words.moment(None) == "no time stamp"


def test_a_span_names_the_day_once() -> None:
    a, b = datetime(2026, 2, 24, 11, 32, 17), datetime(2026, 2, 24, 12, 14, 58)
    assert words.span(a, b) == "2026-02-24 11:32:17 to 12:14:58 (42 min 41 s)"
    assert (
        words.span(a, datetime(2026, 2, 25, 11, 32, 17))
        == "2026-02-24 11:32:17 to 2026-02-25 11:32:17 (1 d 00 h)"
    )
    assert words.span(a, a) == "2026-02-24 11:32:17"
    assert words.span(None, None) == "no time stamps"


def test_places_can_be_pasted_into_an_editor() -> None:
    assert words.place("logs/server.log", 123) == "server.log:123"
    assert words.place("server.log", 12, 40) == "server.log:12-40"
    assert words.place("-", 7) == "standard input:7"
    assert words.place("server.log", None) == ""


def test_an_episode_of_a_rotated_set_ends_in_another_log() -> None:
    one = Episode(None, None, 62, 500, source="logs/s.log.1")
    assert words.place_of(one) == "s.log.1:62-500"
    two = Episode(None, None, 62, 14, source="logs/s.log.1", last_source="logs/s.log")
    assert words.place_of(two) == "s.log.1:62 to s.log:14"


def test_the_longest_episodes_stay_in_log_order() -> None:
    def episode(start: int, length: int) -> Episode:
        return Episode(samples.at(start), samples.at(start + length), start, start + 1)

    many = [episode(0, 5), episode(100, 50), episode(200, 1), episode(300, 60)]
    assert words.longest(many, 2) == [many[1], many[3]]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (
            Action("", "--mem-fraction-static", 0.88, 0.93),
            "--mem-fraction-static 0.88 → 0.93",
        ),
        (
            Action("", "mem_fraction_static", None, 0.93),
            "--mem-fraction-static 0.93 (now: not in this log)",
        ),
        (Action("", "--hicache-size", 48), "--hicache-size (now 48)"),
        (Action("", "--hicache-size"), "--hicache-size (now: not in this log)"),
        (Action("", "--enable-dp-attention", False, True), "--enable-dp-attention"),
        (Action("Add replicas."), ""),
    ],
)
def test_a_change_shows_the_present_value_beside_the_proposed(action: Action, said: str) -> None:
    assert words.change(action) == said
