"""Join the lines that a container runtime split.

Docker's json-file driver and CRI break a line at 16 KiB. The rest of a logged prompt would then
stand at the start of a line of its own, as a record does; and the rest of the server's
arguments would be lost. So parts are joined before anyone looks at what a line says. The whole
stands on the line of its first part, the others are left empty: line numbers stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loganalyze.sources import KEEP_HEAD, MAX_LINE, Block

#: Docker cuts here; a shorter line is whole.
_PART = 1 << 14
_LONGER = 16
#: A part without an end is waited for over so many bytes.
_HELD = 8 << 20

#: Every line of CRI's names its stream; so does the first of a block, this early.
_NAMED = 1 << 10
_BRACE = ord("{")
_CRI = re.compile(rb"[^\n]{0,200}?(?<!\S)(?P<stream>stdout|stderr) (?P<tag>[PF])(?::\S*)? ")
_SPLIT = (b" stderr P ", b" stdout P ")
_VALUE = re.compile(rb'"(?:log|message|MESSAGE|msg)": ?"')
_VALUE_END = re.compile(rb'(?<!\\)(?:\\\\)*"')
_STREAM = re.compile(rb'"(?:stream|source|partial_id)": ?"([^"]*)"')
#: How shippers mark a part; the last one of Docker's carries both.
_MARKED = re.compile(
    rb'"(?:logtag|_p)": ?"P"|"(?:partial_message|CONTAINER_PARTIAL_MESSAGE)": ?"true"'
)
_LAST = re.compile(rb'"(?:partial_last|CONTAINER_PARTIAL_LAST)": ?"true"')


@dataclass(slots=True)
class _Line:
    """A line that may be a part: what stands before its text, that text, what stands behind."""

    stream: bytes
    before: bytes
    text: bytes
    behind: bytes
    more: bool


class Parts:
    """Joins the parts among the consecutive blocks of one log."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[int, _Line]] = {}
        self._lines: list[bytes] = []
        self._held: list[Block] = []
        self._size = 0

    def feed(self, block: Block) -> list[Block]:
        """Return what is complete: the block, or nothing until the end of a part is there."""
        if not self._open and not _may_have_parts(block.data):
            return [block]
        self._held.append(block)
        self._size += len(block.data)
        for line in block.data.splitlines(keepends=True):
            self._lines.append(self._join(line))
        return [] if self._open and self._size < _HELD else self.finish()

    def finish(self) -> list[Block]:
        """Return what was held back."""
        for at, line in self._open.values():
            self._lines[at] = line.before + line.text + line.behind
        held, data = self._held, b"".join(self._lines)
        self._open, self._lines, self._held, self._size = {}, [], [], 0
        if not held:
            return []
        n_lines, n_read = sum(b.n_lines for b in held), sum(b.n_read for b in held)
        return [Block(data, held[0].first_line, n_lines, n_read)]

    def _join(self, raw: bytes) -> bytes:
        """Take in a line; return what stands in its place."""
        line = _read(raw)
        if line is None:
            return raw
        at, whole = self._open.get(line.stream, (len(self._lines), None))
        if whole is not None:
            whole.text += line.text
            whole.behind = line.behind
            if len(whole.text) > MAX_LINE:
                whole.text = whole.text[:KEEP_HEAD]
            if not line.more:
                self._lines[at] = whole.before + whole.text + whole.behind
                del self._open[line.stream]
            return b"\n"
        if line.more:
            self._open[line.stream] = at, line
        return raw


def join(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a log with the parts of its lines joined."""
    parts = Parts()
    for block in blocks:
        yield from parts.feed(block)
    yield from parts.finish()


def _may_have_parts(data: bytes) -> bool:
    """Whether there is a part of CRI's, or a line of JSON as long as Docker's parts."""
    if b" std" in data[:_NAMED] and any(mark in data for mark in _SPLIT):
        return True
    at, half = 0, _PART // 2
    while at + half < len(data):
        newline = data.rfind(b"\n", at, at + half)
        if newline < 0:
            if data[at] == _BRACE:
                return True
            newline = data.find(b"\n", at + half)
            if newline < 0:
                break
        at = newline + 1
    return False


def _is_full(text: bytes) -> bool:
    """Whether a string of JSON holds as much as Docker writes before it cuts.

    A letter that was cut in two got longer. A shipper that leaves the line end out writes more.
    """
    if len(text) < _PART:
        return False
    try:
        said = json.loads(b'"%b"' % text, strict=False)
    except ValueError:
        return True
    return _PART <= len(said.encode("utf-8", "replace")) <= _PART + _LONGER


def _read(raw: bytes) -> _Line | None:
    """Read a line of a container runtime; None for any other."""
    if raw.startswith(b"{"):
        value = _VALUE.search(raw)
        end = _VALUE_END.search(raw, value.end()) if value else None
        if value is None or end is None:
            return None
        stop = end.end() - 1
        text, behind = raw[value.end() : stop], raw[stop:]
        fields = raw[: value.start()] + behind
        stream = _STREAM.search(fields)
        if stream is None:
            return None
        docker = b'"stream"' in fields and not text.endswith(b"\\n") and _is_full(text)
        more = (docker or _MARKED.search(fields) is not None) and not _LAST.search(fields)
        return _Line(stream[1], raw[: value.end()], text, behind, more)
    m = _CRI.match(raw)
    if m is None:
        return None
    text, more = raw[m.end() :].rstrip(b"\r\n"), m["tag"] == b"P"
    before = raw[: m.start("tag")] + b"F" + raw[m.end("tag") : m.end()]
    return _Line(m["stream"], before, text, b"\n", more)
