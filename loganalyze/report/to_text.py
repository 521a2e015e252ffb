"""The report for a terminal: findings, then capacity and coverage, and the verdict last.

The last lines are the ones that stay on the screen. Colour repeats what words and shapes
already say. No line is wider than the terminal or 100 columns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace

from loganalyze.model import Action, Report, Session
from loganalyze.report import tree, words

MAX_WIDTH = 100
_MIN_WIDTH = 40
_LABEL = 10
#: Evidence, actions, quoted lines and episodes of one finding that a terminal shows.
_SHOWN, _QUOTES, _SPELLS = 6, 2, 3
_QUOTE_CHARS = 240
#: Findings, logs, sessions, notes of one session and lines not understood that it shows.
_FINDINGS, _LOGS, _SESSIONS, _NOTES, _REMARKS, _SAMPLES = 12, 5, 8, 2, 3, 2
#: Where the rest is: the page has more of it, the JSON form all.
_REST, _ALL = "in the HTML report, and with --json", "with --json"
_TONES = {
    "critical": "1;31",
    "saturated": "1;31",
    "warning": "1;33",
    "degraded": "1;33",
    "healthy": "1;32",
    "info": "1;34",
    "undetermined": "1;34",
}


def render(report: Report, color: bool = False, width: int = MAX_WIDTH) -> str:
    """Return the report as text.

    Args:
        report: any report.
        color: whether to write ANSI colours; nothing is said by colour alone.
        width: columns of the terminal; more than 100 are not used.
    """
    page = _Page(color, max(_MIN_WIDTH, min(width, MAX_WIDTH)))
    pool = words.pool_name(report)
    report = _drawable(report)
    _head(page, report)
    top = tree.grow(report.findings)
    for node in top[:_FINDINGS]:
        page.gap()
        _finding(page, node, several=len(report.sessions) > 1)
    if len(top) > _FINDINGS:
        page.gap()
        page.put(words.more(len(top) - _FINDINGS, "finding", _REST))
    page.gap()
    _checks(page, report)
    _capacity(page, report, pool)
    _coverage(page, report)
    page.gap()
    _verdict(page, report)
    return page.text()


def render_verdict(report: Report, color: bool = False, width: int = MAX_WIDTH) -> str:
    """Return the verdict alone, as at the end of `render`."""
    page = _Page(color, max(_MIN_WIDTH, min(width, MAX_WIDTH)))
    _verdict(page, _drawable(report))
    return page.text()


def _drawable(report: Report) -> Report:
    """Return the report cleaned, without its series, which no text draws."""
    return words.safe(replace(report, series=()))


class _Page:
    """Lines of text, wrapped and indented."""

    def __init__(self, color: bool, width: int) -> None:
        self._color = color
        self._width = width
        self._lines: list[str] = []

    def gap(self) -> None:
        """Leave one line empty."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def put(
        self, text: str, indent: int = 0, *, label: str = "", tone: str = "", right: str = ""
    ) -> None:
        """Write wrapped text.

        Args:
            text: what to say.
            indent: columns before it.
            label: stands before the first line; the others keep its width free.
            tone: severity or status whose colour the first two words take.
            right: a short text for the right edge, or for the next line if it does not fit.
        """
        start = indent + (_LABEL if label else 0)
        lines = wrap(text, self._width - start)
        if right:
            room = self._width - start - columns(lines[-1]) - columns(right)
            if room >= 2:
                lines[-1] += " " * room + right
            else:
                lines += wrap(right, self._width - start)
        for i, line in enumerate(lines):
            head = (" " * indent + label.ljust(_LABEL)) if label and i == 0 else " " * start
            self._lines.append((head + (self._tinted(line, tone) if i == 0 else line)).rstrip())

    def _tinted(self, line: str, tone: str) -> str:
        """Colour a line's first two words: the shape and the word it stands for."""
        if not (tone and self._color):
            return line
        shape, _, rest = line.partition(" ")
        word, _, rest = rest.partition(" ")
        return f"\x1b[{_TONES[tone]}m{shape} {word}\x1b[0m {rest}".rstrip()

    def text(self) -> str:
        """Return everything written so far."""
        return "\n".join(self._lines).rstrip("\n") + "\n"


def columns(text: str) -> int:
    """Return the terminal columns of a text: wide characters take two, marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, at spaces where there are any."""
    width = max(width, 8)
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while columns(line) > width:
            cut = width if line.isascii() else _cut(line, width)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line or not lines else lines


def _cut(line: str, width: int) -> int:
    """Return how many characters fill `width` columns."""
    used = 0
    for i, char in enumerate(line):
        used += columns(char)
        if used > width:
            return max(1, i)
    return len(line)


def _head(page: _Page, report: Report) -> None:
    for s in report.sources[:_LOGS]:
        tz = f", {s.tz}" if s.tz else ""
        page.put(f"{words.name(s.name)}: {words.plural(s.lines, 'line')}, {s.kind}{tz}")
    _left_out(page, len(report.sources) - _LOGS, "log")
    for u in report.unreadable:
        hint = f" ({u.hint})" if u.hint else ""
        page.put(f"not analysed: {u.name}: {u.message}{hint}")


def _finding(page: _Page, node: tree.Node, indent: int = 0, *, several: bool) -> None:
    """Write one finding, in full at the top level and in short below."""
    f, inner, short = node.finding, indent + 2, indent > 0
    kind = str(f.severity)
    page.put(
        f"{words.severity(f.severity)} {f.code} {f.name}, confidence {f.confidence}"
        + (f", session {f.session}" if several and f.session else ""),
        indent,
        tone=kind,
    )
    page.put(f.summary, inner)
    if node.same:
        page.put(tree.sessions_said(node), inner, label="held in")
    for i, e in enumerate(shown := words.longest(f.episodes, 1 if short else _SPELLS)):
        rank = f", {e.rank}" if e.rank else ""
        where = words.place_of(e)
        label = " " if i else "when"
        page.put(f"{words.span(e.start, e.end)}{rank}", inner, label=label, right=where)
    _left_out(page, len(f.episodes) - len(shown), "spell", inner, _ALL)
    for i, item in enumerate(() if short else f.evidence[:_SHOWN]):
        formula = f" = {item.formula}" if item.formula else ""
        said = f"{item.label}: {words.number(item.value, item.unit)}{formula}"
        where = words.place(item.source, item.line_no)
        page.put(said, inner, label=" " if i else "evidence", right=where)
    if not short:
        _left_out(page, len(f.evidence) - _SHOWN, "row", inner)
    quotes = () if short else words.quotes(f.evidence)
    for item in quotes[:_QUOTES]:
        quote = words.shorten(item.quote or "", _QUOTE_CHARS)
        page.put(f"{words.place(item.source, item.line_no)} {quote}", inner, label="log")
    _left_out(page, len(quotes) - _QUOTES, "quoted line", inner)
    for i, action in enumerate(f.actions[: 1 if short else _SHOWN], start=1):
        _action(page, action, inner, f"do {i}")
    _left_out(page, len(f.actions) - (1 if short else _SHOWN), "action", inner)
    if f.competing and not short:
        page.put(f.competing, inner, label="weighed")
    for child in node.children:
        _finding(page, child, min(inner, 8), several=several)


def _left_out(page: _Page, n: int, what: str, indent: int = 0, where: str = _REST) -> None:
    """Say how much of a list a terminal is spared, and where it is."""
    if n > 0:
        page.put(words.more(n, what, where), indent, label=" ")


def _action(page: _Page, action: Action, indent: int, label: str) -> None:
    page.put(action.text, indent, label=label)
    if words.change(action):
        page.put(words.change(action), indent, label=" ")
    if action.effect:
        page.put(f"→ {action.effect}", indent, label=" ")


def _checks(page: _Page, report: Report) -> None:
    for status, label in (
        ("clear", "clear"),
        ("not_applicable", "unchecked"),
        ("error", "failed"),
    ):
        codes = list(dict.fromkeys(c.code for c in report.checked if c.status == status))
        if codes and status != "error":
            page.put(f"{len(codes)}: {', '.join(codes)}", label=label)
    for c in report.checked:
        if c.status == "error":
            page.put(f"{c.code}: {c.reason}", label="failed")


def _capacity(page: _Page, report: Report, pool: str) -> None:
    for s in report.sessions[:_SESSIONS]:
        said = ", ".join(_capacity_words(s, pool))
        if said:
            which = f"session {s.id}: " if len(report.sessions) > 1 else ""
            page.put(which + said, label="capacity")
        for note in s.capacity.notes[:_NOTES]:
            page.put(note, label=" ")
        _left_out(page, len(s.capacity.notes) - _NOTES, "note")
    _left_out(page, len(report.sessions) - _SESSIONS, "session", where=_ALL)


def _capacity_words(s: Session, pool: str) -> Iterator[str]:
    c = s.capacity
    if c.kv_tokens is not None:
        origin = (
            words.place(s.source, c.kv_tokens_line) if c.kv_tokens_source == "log" else "inferred"
        )
        yield f"{c.kv_tokens:,} KV tokens ({origin or 'from the log'})"
    if c.tokens_per_req is not None:
        yield f"{words.number(round(c.tokens_per_req, 1))} tokens per running request"
    if c.requests_fit is not None:
        yield f"{c.requests_fit:,} requests fit the {pool}"
    if c.rate_per_req is not None:
        yield f"decode rate {words.number(c.rate_per_req)} token/s per request"


def _coverage(page: _Page, report: Report) -> None:
    c = report.coverage
    unread = (
        f"{words.plural(c.lines_unrecognised, 'line')} not understood"
        if c.lines_unrecognised
        else "none that looked like statistics left unread"
    )
    if c.lines_partial:
        unread += f", {c.lines_partial:,} of the statistics read in part"
    page.put(
        f"{words.plural(c.lines_total, 'line')}, {c.lines_batch:,} statistics, "
        f"{c.lines_known - c.lines_batch:,} other known, {unread}",
        label="coverage",
    )
    if report.redacted or not report.redacts:
        page.put(words.removed(report), label=" ")
    for note in c.notes[:_REMARKS]:
        page.put(note, label=" ")
    _left_out(page, len(c.notes) - _REMARKS, "note")
    for s in c.samples[:_SAMPLES]:
        page.put(f"{words.place(s.source, s.line_no)} {words.shorten(s.text, 120)}", label=" ")
    _left_out(page, len(c.samples) - _SAMPLES, "such line")


def _verdict(page: _Page, report: Report) -> None:
    v = report.verdict
    cause = f"{report.cause.code} {report.cause.name}, " if report.cause else ""
    shape = words.SHAPE[v.status]
    page.put(f"{shape} {v.status.upper()} {cause}confidence {v.confidence}", tone=v.status)
    page.put(v.headline, 2)
    if report.cause and report.cause.actions:
        _action(page, report.cause.actions[0], 2, "first")
