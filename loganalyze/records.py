"""Records of several lines: where a traceback, or an allocation failure, ends.

Its first line is found by its words. What stands before them shows how this writer begins a
record, and whether a wrapper stands before each line or a logger's prefix before each record:
the line below begins like the wrapper, or not. The record ends before the next line that begins
one, or that another writer wrote.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from loganalyze import formats, stamps
from loganalyze.prefixes import MAX_REST, is_request, string_end, unwrap

#: A record is kept up to this size: the exception stands at a traceback's end.
MAX_RECORD = 1 << 13
#: Of what a wrapper puts before lines, a longer number is a clock or counts the lines.
LONG_NUMBER = 8

_DATE = rb"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}"
_CLOCK = rb"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_OWN = re.compile(rb"\[(?:%b )?%b(?:\.[0-9]{3})?(?: [A-Z_]+-?[0-9]+)*\] " % (_DATE, _CLOCK))
_START = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*"
    rb"(?:\[?(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[ T])?[0-9]{2}:[0-9]{2}:[0-9]{2}|\[gpu(?:_id)?="
    rb"|INFO: +[0-9( ]|(?:Prefill|Decode) (?:bootstrap|handshake|transfer) failed for request"
    rb"|Exception in (?:Model|Controller|Tokenizer|run_tp_server)\w*:"
    rb"|Rank [0-9]+: (?:load weight|max_total)"
    rb"|server_args=|The server is fired up)"
)
_MAYBE_START = re.compile(rb"\n[\x1b\[0-9DEIPRTs]")
_COLOUR = re.compile(rb"(?:\x1b|\\+u001b)\[[0-9;?]*[A-Za-z]")
#: A stamp of SGLang's or statistics end the record before them, whatever some unknown wrapper
#: put in front.
_ANOTHER = re.compile(
    rb"\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}(?:\.[0-9]{3})?(?: [A-Z_]+-?[0-9]+)*\] "
    rb"|(?:Decode|Prefill?) batch[^\n]{0,40}#(?:running-req|new-seq): ?[0-9]"
    rb"|new fill batch\. #seq: [0-9]|#running-req: [0-9]+, #token: -?[0-9]"
    rb"|#retracted_reqs: ?[0-9]"
)
#: What Python, or an old release, says before a traceback that belongs to the record above.
_CHAINED = re.compile(
    rb"^(?:During handling of the above|The above exception was the)"
    rb"|(?:Exception in (?:Model|Controller|Tokenizer|run_tp_server)\w*|hit an exception): ?\r?$"
)
#: What the second line of a record looks like.
_SECOND = re.compile(rb"\s|$|Traceback |File \"|Try to allocate ")
#: How it begins where the first line ended with the words of a traceback.
_FRAME = re.compile(rb"  File \\*\"|Try to allocate ")
_OPEN_TRACEBACK = re.compile(rb"Traceback \(most recent call last\):\s*$")

#: How a traceback's first line ends, as Python prints it.
_OPENED = b"recent call last):"
#: What others put behind each line: more cells of a table, the end of an element of HTML.
_BEHIND = re.compile(
    rb"(?<=recent call last\):)(?!\\+[nr]|\\*\"|'|%b)[^\r\n]*[^\s][^\r\n]*$" % _COLOUR.pattern
)

_STAMP = rb"(?:%b|%b(?:[.,][0-9]+)?)(?:Z|[+-][0-9]{2}:?[0-9]{2})?" % (
    stamps.DATED.encode(),
    _CLOCK,
)
_LEVEL = (
    rb"(?:DEBUG|DEBG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|debug|info|warning|error|critical)"
)
_TOKEN = re.compile(
    rb"(?P<stamp>%b)|(?P<level>\s*\b%b\b\s*)|(?P<hex>[0-9a-f]{8,})"
    rb"|(?P<number>[0-9]+(?:\.[0-9]+)*)|(?P<name>[A-Za-z_]\w*(?:[./:-]\w+)*)|(?P<blank>\s+)|."
    % (_STAMP, _LEVEL),
    re.DOTALL,
)
_QUOTE = re.compile(r'\\*"+(?=[^"]*$)')
#: A key of JSON and the quote before its value, in which a message stands.
_KEYED = re.compile(rb'\\*"+[\w@. -]{1,64}\\*"+\s*:\s*\\*"+(?=[^"]*$)')
#: The quote of a cell of a table, in which a message stands.
_CELL = re.compile(r'(?:^|[,;\t])"[^"]*$')
_QUOTES = re.compile(r'\\*"+')
_LINE_END = re.compile(r"(?:\\+[nrt])+$")


def read(data: bytes, start: int, stop: int, anchors: re.Pattern[bytes]) -> tuple[int, bytes]:
    """Read a record without what stands behind its lines: see `_read`."""
    end, record = _read(data, start, stop, anchors)
    first, newline, rest = record.partition(b"\n")
    behind = None if first.endswith(_OPENED) else _BEHIND.search(first)
    if behind is None:
        return end, record
    tokens = _TOKEN.finditer(behind[0].lstrip())
    same = re.compile(rb"[ \t]*%b(?m:$)" % b"".join(map(_same, tokens)))
    return end, first[: behind.start()] + newline + same.sub(b"", rest)


def _read(data: bytes, start: int, stop: int, anchors: re.Pattern[bytes]) -> tuple[int, bytes]:
    """Read the record that starts with the line from `start` to `stop`.

    Args:
        data: lines of a log.
        start: where its first line starts.
        stop: where that line ends.
        anchors: where the message of such a record begins.

    Returns:
        Where the record's last line ends, and its text without what wrappers put before its
        lines but the first. Of lines that were strings of JSON or cells of a table, one string
        or cell is made.
    """
    own = _OWN.match(data, start, stop)
    if anchors.match(data, own.end() if own else start, stop):  # as the server prints it
        end = _plain_end(data, stop)
        return end, data[start : end - 1]
    head = data[start:stop]
    clean = _COLOUR.sub(b"", head)
    stream, message = _unwrap(clean)
    found = anchors.search(message)
    before = message[: found.start()] if found else b""
    wrapped = len(clean) - len(message) if clean.endswith(message) else None  # None: in JSON
    plain = not before or _OWN.fullmatch(before) or len(before) > MAX_REST
    if wrapped == 0 and (plain or is_request(before.decode("utf-8", "replace"))):
        end = _plain_end(data, stop)
        return end, data[start : end - 1]
    string = _String(head, anchors)
    if string.is_whole or b"\n" in message.rstrip():
        return stop + 1, head
    style = _Style(clean[: wrapped + len(before)] if wrapped else before)
    lines, said, size = list[bytes](), message, 0
    while stop + 1 < len(data) and size < MAX_RECORD:
        next_stop = data.find(b"\n", stop + 1)
        if next_stop < 0:
            break
        raw = _COLOUR.sub(b"", data[stop + 1 : next_stop])
        writer, said_in_json = _unwrap(raw) if wrapped is None else (stream, raw)
        line = style.rest_of(said_in_json) if writer == stream else None
        if line is None or style.begins(line) or _is_new_traceback(line, said):
            break
        if not size and _OPEN_TRACEBACK.search(said) and not _SECOND.match(line):
            break
        said = line or said
        lines.append(line)
        size += len(line) + 1
        stop = next_stop
    return stop + 1, string.with_lines(lines, decoded=wrapped is None)


class _Part(NamedTuple):
    """A part of what stands before a message: a known wrapper, or text as tokens."""

    wrapper: re.Pattern[str] | None
    stream: str | None
    tokens: list[re.Match[bytes]]

    def end_in(self, line: bytes, at: int) -> int | None:
        """Return where this part ends in a line that has it at `at`; None where it has not."""
        if self.wrapper is not None:
            m = self.wrapper.match(line.decode("latin-1"), at)
            if m and m.end() > at and m.groupdict().get("stream") == self.stream:
                return m.end()
        found = re.compile(b"".join(map(_same, self.tokens))).match(line, at)
        return found.end() if found and self.tokens else None


class _Style:
    """How one writer begins lines and records, by what stands before a message of its."""

    def __init__(self, before: bytes) -> None:
        parts, at = _wrappers(before)
        keys = list(_KEYED.finditer(before))
        if keys:
            any_fields = re.compile(r".{0,4096}?" + re.escape(keys[-1][0].decode("latin-1")))
            parts, at = [_Part(any_fields, None, [])], keys[-1].end()
        stamps = [m.start() for m in _OWN.finditer(before, at) if m.end() == len(before)]
        self._rest = list(_TOKEN.finditer(before[stamps[-1] if stamps else at :]))
        if stamps and stamps[-1] > at:
            parts.append(_Part(None, None, list(_TOKEN.finditer(before[at : stamps[-1]]))))
        self._has_stamp = bool(stamps)
        self._in_json = bool(keys)
        self._before = before
        self._parts = parts
        self._again: re.Pattern[bytes] | None = None
        self._learned = False

    def rest_of(self, line: bytes) -> bytes | None:
        """Return a line without its wrapper; None where another writer wrote it."""
        if not self._learned and not self._learn(line):
            return None
        at = 0
        for part in self._parts:
            end = part.end_in(line, at)
            if end is None and part is self._parts[-1]:
                end = part.end_in(line + b" ", at)
            if end is None:
                return None
            at = end
        return line[at:]

    def begins(self, line: bytes) -> bool:
        """Whether a line without its wrapper begins a record."""
        again = self._again is not None and self._again.match(line)
        return bool(again or _START.match(line) or _ANOTHER.search(line))

    def _learn(self, line: bytes) -> bool:
        """Tell by the second line what stands before every line, and what before records.

        Returns:
            False where another writer wrote that line.
        """
        self._learned = True
        at, every = 0, list[_Part]()
        for part in self._parts:
            end = part.end_in(line, at)
            if end is None:
                break
            at = end
            every.append(part)
        if self._in_json and not every:
            return False
        others = [t for part in self._parts[len(every) :] for t in part.tokens]
        told = [part.stream for part in self._parts[len(every) :] if part.stream]
        if told and any(part.stream for part in _wrappers(line[at:])[0]):
            return False
        if not others and not self._has_stamp:  # an unknown wrapper, and a logger's own prefix
            shared = list[re.Match[bytes]]()
            for token in self._rest:
                m = re.compile(_same(token)).match(line, at)
                if m is None:
                    break
                at = m.end()
                shared.append(token)
            ends = len(shared) < len(self._rest) or _SECOND.match(line, at)
            telling = any(t["name"] or t["number"] or t["stamp"] or t["hex"] for t in shared)
            text = b"".join(t[0] for t in shared)
            if ends and (telling or text.endswith((b"} ", b"+ ", b"> ", b'"'))):
                every.append(_Part(None, None, shared))
                self._rest = self._rest[len(shared) :]
        tokens = [*others, *self._rest]
        frame = _FRAME.search(line)
        if frame and line[_end_of(every, line) : frame.start()].strip():  # it is around each line
            every = _around(line[: frame.start()], self._before)
            tokens = list(_TOKEN.finditer(self._before[_end_of(every, self._before) :]))
        self._parts = every
        if any(t[0].strip() for t in tokens):
            sure = any(t["stamp"] or t["level"] for t in tokens)
            self._again = re.compile(b"".join(_alike(t, sure) for t in tokens))
        return True


def _wrappers(text: bytes) -> tuple[list[_Part], int]:
    """Return the known wrappers at the start of a text, and where they end."""
    parts, at, said = list[_Part](), 0, text.decode("latin-1")
    while at < len(said):
        _, m = next(formats.wrappers_at(said, at, transport=True), (None, None))
        if m is None:
            break
        tokens = list(_TOKEN.finditer(text[at : m.end()]))
        parts.append(_Part(m.re, m.groupdict().get("stream"), tokens))
        at = m.end()
    return parts, at


def _end_of(parts: list[_Part], line: bytes) -> int:
    """Return where parts end at the start of a line; the whole length where it lacks one."""
    at = 0
    for part in parts:
        end = part.end_in(line, at)
        at = len(line) if end is None else end
    return at


def _around(before: bytes, first: bytes) -> list[_Part]:
    """Return what stands before each line of a traceback.

    Args:
        before: what stands before its first frame.
        first: what stands before its first words, a logger's prefix included.
    """
    parts, at, said = list[_Part](), 0, before.decode("latin-1")
    while at < len(said):
        found = formats.wrappers_at(said, at)
        m = next((m for w, m in found if w.loose or w.transport), None)
        if m is None:
            break
        parts.append(_Part(m.re, m.groupdict().get("stream"), []))
        at = m.end()
    if rest := before[at:]:
        tokens = list(_TOKEN.finditer(rest))
        others = list(_TOKEN.finditer(first[at:]))[: len(tokens)]
        parts.append(_Part(_like(tokens, others), None, []))
    return parts


def _like(tokens: list[re.Match[bytes]], others: list[re.Match[bytes]]) -> re.Pattern[str]:
    """Return a pattern for text that differs where two texts of the same shape do."""
    alike = [t.lastgroup for t in tokens] == [t.lastgroup for t in others]
    same = {t for t, other in zip(tokens, others, strict=False) if alike and t[0] == other[0]}
    same -= {t for t in tokens if t["stamp"] or t["level"] or t["hex"]}
    pattern = [re.escape(t[0]) if t in same else _alike(t, sure=True) for t in tokens]
    return re.compile(b"".join(pattern).decode("latin-1"))


def _same(token: re.Match[bytes]) -> bytes:
    """Return a pattern for what a wrapper puts in this place on every line of a writer."""
    if token["number"] and (b"." in token[0] or len(token[0]) >= LONG_NUMBER):
        return rb"[0-9.]+"
    blank = token["blank"]  # what stands behind it may be indented
    return re.escape(blank) if blank else _varies(token) or re.escape(token[0])


def _alike(token: re.Match[bytes], sure: bool) -> bytes:
    """Return a pattern for what a logger puts in this place on every record."""
    if token["number"]:
        return rb"[0-9.]+"
    if token["name"] and (sure or b"." in token[0]):
        return rb"[\w./:-]+"
    return _varies(token) or re.escape(token[0])


def _varies(token: re.Match[bytes]) -> bytes | None:
    if token["stamp"]:
        return _STAMP
    if token["level"]:
        return rb"\s*%b\s*" % _LEVEL
    if token["hex"]:
        return rb"[0-9a-f]+"
    return rb"\s+" if token["blank"] else None


class _String:
    """The first line of a record, and the string or cell in it that holds the message.

    Attributes:
        is_whole: that string holds line ends, and so the whole record.
    """

    def __init__(self, head: bytes, anchors: re.Pattern[bytes]) -> None:
        found = anchors.search(head)
        at = found.start() if found else len(head)
        before, text = (part.decode("utf-8", "replace") for part in (head[:at], head[at:]))
        quote = _QUOTE.search(before)
        if quote and [m[0] for m in _QUOTES.finditer(before)].count(quote[0]) % 2 == 0:
            quote = None  # it is closed
        self._quote = quote[0] if quote else ""
        self._is_cell = self._quote == '"' and _CELL.search(before) is not None
        end = string_end(text, 0, self._quote, inclusive=False) if quote else len(text)
        inside = _LINE_END.sub("", text[:end]) if quote else text
        self._head, self._tail = (before + inside).encode(), text[end:].encode()
        self.is_whole = bool(quote) and re.search(r"\\+n", inside) is not None

    def with_lines(self, lines: list[bytes], *, decoded: bool) -> bytes:
        """Return the first line with further ones in its string, decoded from theirs or not."""
        slashes = self._quote.count("\\")
        end = b"\n"
        if self._quote and not self._is_cell:
            end = b"\\" * (slashes + 1) + b"n"
        out = [self._head]
        for line in lines:
            text = line.decode("utf-8", "replace")
            if decoded:
                for _ in range(slashes.bit_length() + 1):
                    text = json.dumps(text, ensure_ascii=False)[1:-1]
            elif self._quote:
                text = _LINE_END.sub("", text[: string_end(text, 0, self._quote, inclusive=False)])
            out.append(text.encode())
        return end.join(out) + self._tail


def _plain_end(data: bytes, stop: int) -> int:
    """Return where the record ends whose first line ends at `stop`, in a log without wrappers."""
    end = _stamped_end(data, stop)
    if data.find(b"#", stop, end) < 0 and data.find(b"[2", stop, end) < 0:
        return end
    other = _ANOTHER.search(data, stop, end)
    return data.rfind(b"\n", 0, other.start()) + 1 if other else end


def _stamped_end(data: bytes, stop: int) -> int:
    """Return where the next stamp, or the next traceback, begins."""
    at = stop
    while m := _MAYBE_START.search(data, at, stop + MAX_RECORD):
        at = m.start() + 1
        if _START.match(data, at):
            return at
        said = data[data.rfind(b"\n", 0, at - 1) + 1 : at - 1]
        if not said:
            said = data[data.rfind(b"\n", 0, at - 2) + 1 : at - 2]
        if _is_new_traceback(data[at : at + 40], said):
            return at
    if len(data) <= stop + MAX_RECORD:
        return data.rfind(b"\n") + 1
    return data.rfind(b"\n", stop, stop + MAX_RECORD) + 1


def _is_new_traceback(line: bytes, said: bytes) -> bool:
    return line.startswith(b"Traceback (most recent") and not _CHAINED.search(said)


def _unwrap(line: bytes) -> tuple[str | None, bytes]:
    stream, message = unwrap(line.decode("utf-8", "surrogateescape"))
    return stream, _COLOUR.sub(b"", message.encode("utf-8", "surrogateescape"))
