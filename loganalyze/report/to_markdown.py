"""The report as a Markdown block for a ticket: under 60 lines, the same in each tracker.

GitHub, GitLab and Jira differ in everything but headings, bold, lists, tables and code, so
nothing else is used. Text from a log can end no code span, open no tag or link, call nobody
and close no issue: what would is escaped, or broken by a space of no width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from loganalyze.model import Action, Report, Session, Severity
from loganalyze.report import tree, words

MAX_LINES = 59
_TEXT = 300
_QUOTE = 200
#: Findings in full and in one line, their quoted lines and actions, logs, sessions, and inputs
#: not analysed that the block shows.
_FULL, _SHORT, _QUOTES, _ACTIONS, _LOGS, _SESSIONS, _UNREADABLE = 3, 6, 2, 2, 3, 4, 2
#: Where the rest is.
_REST = "in the HTML and JSON forms"
#: A space of no width: breaks a mention or reference and shows nothing.
_BREAK = "\u200b"
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|~])")
_REFERENCE = re.compile(r"(@|#(?=\d)|!(?=[\d\[])|\bGH-(?=\d)|[$%&](?=\w)|:(?=//)|\bwww(?=\.))")

#: Jira's older markup acts inside our code spans too: macros and mentions.
_JIRA = re.compile(r"\{(?=\w+[}:])|\[(?=~)")


def render(report: Report) -> str:
    """Return the block, without a final blank line."""
    report = words.safe(report)
    lines = [*_verdict(report), "", *_facts(report), ""]
    top = tree.grow(report.findings)
    full = [node for node in top if node.finding.severity > Severity.INFO][:_FULL]
    for node in full:
        lines += [*_finding(node), ""]
    others = [node for node in _every(top) if node not in full]
    if others:
        lines += ["**Also found**", ""]
        lines += [_one(node) for node in others[:_SHORT]]
        lines += [*_left_out(len(others) - _SHORT, "finding"), ""]
    foot = list(_foot(report))
    room = MAX_LINES - len(foot)
    if len(lines) > room:  # the foot stays: it says how the block came about
        lines = [*lines[: room - 2], f"- and more: {_REST}", ""]
    return "\n".join([*lines, *foot]) + "\n"


def prose(text: str, limit: int = _TEXT) -> str:
    """Return a text that shows as it is written, outside code."""
    text = words.shorten(text, limit)
    text = _MARKUP.sub(r"\\\1", text)
    return _REFERENCE.sub(lambda m: m[1] + _BREAK, text)


def code(text: str, limit: int = _QUOTE) -> str:
    """Return a text as a code span that it cannot end, in or out of a table."""
    text = words.shorten(text, limit).replace("`", "'").replace("|", "¦").strip()
    text = _JIRA.sub(lambda m: m[0] + _BREAK, text)
    return f"`{text}`" if text else ""


def _verdict(report: Report) -> Iterator[str]:
    v = report.verdict
    yield f"### {words.SHAPE[v.status]} {v.status.capitalize()}: {prose(v.headline, 500)}"
    yield ""
    first = report.cause
    cause = f", cause **{prose(first.code)}** {prose(first.name)}" if first else ""
    yield f"Confidence {v.confidence}{cause}."
    if first and first.actions:
        yield ""
        yield f"**First:** {_action(first.actions[0])}"


def _facts(report: Report) -> Iterator[str]:
    yield "| What | Value |"
    yield "| --- | --- |"
    for log in report.sources[:_LOGS]:
        size = f"{words.plural(log.lines, 'line')}, SHA-256 {code(log.sha256[:16])}"
        yield f"| Log {code(words.name(log.name))} | {size} |"
    if len(report.sources) > _LOGS:
        yield f"| Further logs | {len(report.sources) - _LOGS}: {_REST} |"
    for s in report.sessions[:_SESSIONS]:
        size = prose(_capacity(report, s) or "no size printed")
        yield f"| {_session(s, len(report.sessions))} | {size} |"
    if len(report.sessions) > _SESSIONS:
        yield f"| Further sessions | {len(report.sessions) - _SESSIONS}: {_REST} |"
    c = report.coverage
    unread = f"{c.lines_unrecognised:,} not understood"
    yield f"| Coverage | {c.lines_total:,} lines, {c.lines_batch:,} statistics, {unread} |"
    for u in report.unreadable[:_UNREADABLE]:
        yield f"| Not analysed: {code(u.name)} | {prose(u.message, 120)} |"
    if len(report.unreadable) > _UNREADABLE:
        yield f"| Further inputs not analysed | {len(report.unreadable) - _UNREADABLE}: {_REST} |"


def _session(s: Session, n: int) -> str:
    which = f"Session {s.id}, " if n > 1 else ""
    return f"{which}{prose(words.span(s.start, s.end))}"


def _capacity(report: Report, s: Session) -> str:
    c = s.capacity
    said = []
    if c.kv_tokens is not None:
        said.append(
            f"{c.kv_tokens:,} KV tokens" + (" (inferred)" if c.kv_tokens_source != "log" else "")
        )
    if c.tokens_per_req is not None:
        said.append(f"{words.number(round(c.tokens_per_req))} a request")
    if c.requests_fit is not None:
        said.append(f"{c.requests_fit:,} requests fit the {words.pool_name(report)}")
    if c.rate_per_req is not None:
        said.append(f"decode rate {words.number(c.rate_per_req)} token/s each")
    return ", ".join(said)


def _every(nodes: Sequence[tree.Node]) -> list[tree.Node]:
    """Return all findings of a tree in the order of the report."""
    below = [one for node in nodes for one in _every(node.children)]
    return sorted([*nodes, *below], key=lambda node: node.index)


def _finding(node: tree.Node) -> Iterator[str]:
    """Write one finding in at most twelve lines."""
    f = node.finding
    yield f"**{words.severity(f.severity)}: {prose(f.code)} {prose(f.name)}**"
    yield ""
    yield f"- {prose(f.summary, 400)}"
    if node.same:
        yield f"- Held in {prose(tree.sessions_said(node))}"
    spans = words.longest(f.episodes, 1)
    if spans:
        e = spans[0]
        more = f"; {len(f.episodes)} spells, this is the longest" if len(f.episodes) > 1 else ""
        where = code(words.place_of(e))
        yield f"- When: {prose(words.span(e.start, e.end))}, {where}{more}"
    quotes = words.quotes(f.evidence)
    for item in quotes[:_QUOTES]:
        yield f"- {code(words.place(item.source, item.line_no))} {code(item.quote or '')}"
    yield from _left_out(len(quotes) - _QUOTES, "quoted line")
    for action in f.actions[:_ACTIONS]:
        yield f"- Do: {_action(action)}"
    yield from _left_out(len(f.actions) - _ACTIONS, "action")
    if f.competing:
        yield f"- Other causes weighed: {prose(f.competing)}"


def _action(action: Action) -> str:
    effect = f"→ {prose(action.effect)}" if action.effect else ""
    return " ".join(filter(None, (prose(action.text), code(words.change(action)), effect)))


def _left_out(n: int, what: str) -> Iterator[str]:
    """Say how much of a list the block leaves out, and where it is."""
    if n > 0:
        yield f"- {words.more(n, what, _REST)}"


def _one(node: tree.Node) -> str:
    f = node.finding
    because = f" (follows from {prose(f.explained_by)})" if f.explained_by else ""
    also = f" (in {prose(tree.sessions_said(node))})" if node.same else ""
    return f"- {words.severity(f.severity)} {prose(f.code)}: {prose(f.summary)}{because}{also}"


def _foot(report: Report) -> Iterator[str]:
    said = code(report.command, 300) or "the library"
    tz = "" if any(s.tz for s in report.sources) else ", the log names no time zone"
    yield prose(words.removed(report), 500)
    yield ""
    yield f"Made by loganalyze {prose(report.tool_version)} with {said}. Times as logged{tz}."
