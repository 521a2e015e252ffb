from __future__ import annotations

import re
from dataclasses import replace

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from loganalyze.model import Severity, Unreadable
from loganalyze.report import to_markdown

SPAN = re.compile(r"(?<!\\)`[^`]*`")


@pytest.mark.parametrize("name", samples.ALL)
def test_the_block_stays_under_60_lines(name: str) -> None:
    text = to_markdown.render(samples.ALL[name]())
    assert len(text.splitlines()) < 60
    assert len(text) < 20_000


def test_it_says_the_verdict_the_first_action_and_the_lines() -> None:
    text = to_markdown.render(samples.founding())
    lines = text.splitlines()
    assert lines[0].startswith("### ■ Saturated: The KV pool was full from 11:32:17")
    assert "`--mem-fraction-static 0.88 → 0.93`" in text
    assert "`server.log:118-1526`" in text
    assert "- `server.log:612` `[2026-02-24 12:03:07 TP0] Decode batch, #running-req: 35" in text
    assert "159,277 KV tokens, 4,290 a request, 37 requests fit the KV pool, " in text
    assert "decode rate 17.34 token/s each" in text
    assert "KV004" in text
    assert "follows from KV001" in text


def test_tables_have_the_same_number_of_cells_in_each_row() -> None:
    for name in ("founding", "restarts", "hostile"):
        rows = [
            row
            for row in to_markdown.render(samples.ALL[name]()).splitlines()
            if row.startswith("|")
        ]
        assert rows
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}


def test_log_text_stays_text() -> None:
    text = to_markdown.render(samples.hostile())
    outside = SPAN.sub("", text)
    assert "<" not in re.sub(r"\\<", "", outside)
    assert not re.search(r"@\w", outside)
    assert not re.search(r"(?<!\\)\[[^\]]*(?<!\\)\]\(", outside)
    assert "://" not in outside
    assert all(c.isprintable() or c in "\n\u200b" for c in text)
    starts = ("#", "-", "|", "*", "C", "M", "R")
    assert all(line.startswith(starts) for line in text.splitlines() if line)


@given(st.text(max_size=60))
def test_no_text_ends_its_code_span_or_starts_markup(text: str) -> None:
    report = samples.excerpt()
    finding = replace(
        report.findings[0],
        summary=text,
        evidence=(replace(report.findings[0].evidence[0], quote="x" + text),),
    )
    out = to_markdown.render(replace(report, findings=(finding,)))
    shape = [line[:1] for line in out.splitlines()]
    base = [line[:1] for line in to_markdown.render(report).splitlines()]
    assert shape == base
    quote = next(line for line in out.splitlines() if line.startswith("- `standard input:1`"))
    assert quote.count("`") == 4
    claim = SPAN.sub("", out)
    assert not re.search(r"(?<!\\)[<\[\]`*_]", claim.replace("**", "").replace("| --- ", ""))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@root", "@\u200broot"),
        ("fixes #12", "fixes #\u200b12"),
        ("#running-req", "#running-req"),
        ("a_b*c", r"a\_b\*c"),
        ("http://x.y", "http:\u200b//x.y"),
        ("x | y", r"x \| y"),
    ],
)
def test_prose(text: str, said: str) -> None:
    assert to_markdown.prose(text) == said


def test_code_breaks_macros_and_mentions_of_jira() -> None:
    assert to_markdown.code("{code}x [~user] `y` | z") == "`{\u200bcode}x [\u200b~user] 'y' ¦ z`"


def test_the_longest_block_stays_under_60_lines_and_keeps_its_foot() -> None:
    report = samples.founding()
    one = replace(
        report.findings[0],
        explained_by=None,
        episodes=report.findings[0].episodes * 2,
        actions=report.findings[0].actions * 3,
        evidence=[
            replace(report.findings[0].evidence[0], line_no=i, quote=f"line {i}") for i in range(9)
        ],
        competing="something else",
    )
    many = [replace(one, code=f"KV{i:03}", severity=Severity.CRITICAL) for i in range(20)]
    full = replace(
        report,
        findings=many,
        sources=report.sources * 9,
        sessions=report.sessions * 9,
        unreadable=[Unreadable("x", "y")] * 9,
    )
    lines = to_markdown.render(full).splitlines()
    assert len(lines) == 59
    assert "- and more: in the HTML and JSON forms" in lines
    assert lines[-1].startswith("Made by loganalyze")
