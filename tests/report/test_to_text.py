from __future__ import annotations

import re
from dataclasses import replace

import pytest
import samples

from loganalyze.report import to_text

PLAIN = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [40, 72, 100, 400])
@pytest.mark.parametrize("name", ["founding", "healthy", "dp8", "excerpt", "restarts", "hostile"])
def test_no_line_is_wider_than_the_terminal_or_100_columns(name: str, width: int) -> None:
    text = to_text.render(samples.ALL[name](), width=width)
    assert max(to_text.columns(line) for line in text.splitlines()) <= min(width, 100)


def test_the_verdict_is_the_last_block() -> None:
    last = to_text.render(samples.founding()).rstrip().split("\n\n")[-1].splitlines()
    assert last[0] == "■ SATURATED KV001 kv-saturation, confidence high"
    assert last[1].startswith("  The KV pool was full from 11:32:17")
    assert last[-3].split() == ["first", *last[-3].split()[1:]]
    assert last[-2].strip() == "--mem-fraction-static 0.88 → 0.93"
    assert last[-1].strip().startswith("→ 231,120 tokens")


def test_findings_come_worst_first_with_their_lines_and_what_to_do() -> None:
    text = to_text.render(samples.founding())
    order = [
        text.index(code) for code in ("KV001 kv-sat", "KV004 retr", "KV008 hic", "CLI002 clo")
    ]
    assert order == sorted(order)
    assert re.search(r"usage, time-weighted mean: 0\.91 +server\.log:612$", text, re.MULTILINE)
    assert "server.log:612 [2026-02-24 12:03:07 TP0] Decode batch, #running-req: 35" in text
    assert "RUN001 (running cap): the cap is 2,048" in text
    assert "159,277 KV tokens (server.log:5), 4,290.2 tokens per running request, 37" in text


@pytest.mark.parametrize(("rows", "said"), [(6, ""), (7, "1 more row"), (15, "9 more rows")])
def test_rows_that_a_terminal_is_spared_are_counted(rows: int, said: str) -> None:
    """Six are shown."""
    first = samples.KV001.evidence[0]
    full = replace(samples.KV001, evidence=[replace(first, label=f"e{i}") for i in range(rows)])
    text = to_text.render(replace(samples.founding(), findings=(full,)))
    assert "e5:" in text
    assert "e6:" not in text
    assert ("more row" in text) == bool(said)
    assert not said or f"and {said}: in the HTML report, and with --json" in text


def test_sessions_logs_and_quoted_lines_beyond_those_shown_are_counted() -> None:
    """Eight sessions, five logs, and of a finding two quoted lines and three spells are shown."""
    one = samples.founding()
    session = replace(one.sessions[0], capacity=replace(one.sessions[0].capacity, notes=()))
    quoted = [replace(samples.KV001.evidence[0], line_no=i, quote=f"q {i}") for i in range(5)]
    text = to_text.render(
        replace(
            one,
            sessions=[replace(session, id=i) for i in range(1, 31)],
            sources=[one.sources[0]] * 7,
            findings=[
                replace(samples.KV001, evidence=quoted, episodes=samples.KV001.episodes * 4)
            ],
        )
    )
    assert text.count("159,277 KV tokens (") == 8
    for said in (
        "and 22 more sessions: with --json",
        "and 2 more logs: in the HTML report, and with --json",
        "and 3 more quoted lines: in the HTML report, and with --json",
        "and 1 more spell: with --json",
    ):
        assert said in text


def test_what_follows_from_a_cause_is_indented_under_it() -> None:
    lines = to_text.render(samples.founding()).splitlines()
    nested = [line for line in lines if "KV004 retraction-storm" in line]
    assert nested == ["  ▲ warning KV004 retraction-storm, confidence high"]


def test_a_healthy_log_has_no_finding_and_says_what_was_looked_at() -> None:
    text = to_text.render(samples.healthy())
    assert text.rstrip().split("\n\n")[-1].startswith("✓ HEALTHY confidence high")
    assert "RUN001" in text
    assert "■" not in text


def test_colour_repeats_words_and_is_off_unless_asked_for() -> None:
    report = samples.founding()
    plain, coloured = to_text.render(report), to_text.render(report, color=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31m■ SATURATED\x1b[0m" in coloured
    assert PLAIN.sub("", coloured) == plain


def test_log_text_cannot_steer_the_terminal() -> None:
    text = to_text.render(samples.hostile())
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "red" in text


def test_wide_characters_count_twice() -> None:
    assert to_text.columns("日本") == 4
    assert to_text.columns("e\u0301") == 1
    report = replace(
        samples.healthy(), verdict=replace(samples.healthy().verdict, headline="日" * 300)
    )
    text = to_text.render(report, width=80)
    assert max(to_text.columns(line) for line in text.splitlines()) <= 80
    assert text.count("日") == 300


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("unbreakable-word", 8, ["unbreaka", "ble-word"]),
        ("", 8, [""]),
        ("日本語日本語", 8, ["日本語日", "本語"]),
    ],
)
def test_wrap(text: str, width: int, lines: list[str]) -> None:
    assert to_text.wrap(text, width) == lines
