"""Write the entries of a log store, which stand over several lines, on one line each.

`gcloud logging read`, `aws logs filter-log-events`, Elasticsearch, Loki's API and journalctl
answer with a record's text on one line and its writer on another. Read line by line, two servers
would be taken for one. So each entry is written as one record of JSON, on the line of its text,
and its other lines are left empty: line numbers stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from loganalyze.mend import EARLY, TELLING_PATTERN, first_telling
from loganalyze.sources import Block

#: A longer entry is none; the labels of one are shorter.
_MAX, _LABELS = 1 << 20, 1 << 14
#: So much from a log's first record on shows how its entries are written.
_LOOK = 1 << 16
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_CLOSED = {b"{": b"}", b"[": b"]"}

#: Between objects that stand one below the other.
_NEXT_OBJECT = re.compile(rb"\n\}[ \t\r]*\n+\{[ \t\r]*\n")
#: Labels that are said once for many records, their last key, and what a record begins with:
#: Loki's streams, and what OpenTelemetry's collector writes.
_SHARED = (
    (
        re.compile(rb'"stream"\s*:\s*\{[^{}]{0,8192}\}\s*,\s*"values"\s*:\s*\['),
        b'"values"',
        re.compile(rb'\s*\[\s*"[0-9]{16,19}"\s*,\s*"'),
    ),
    (
        re.compile(
            rb'"resource"\s*:\s*\{\s*"attributes"\s*:\s*\[[^][]{0,8192}\][^][]{0,999}'
            rb'"scopeLogs"\s*:\s*\[[^][]{0,999}"logRecords"\s*:\s*\['
        ),
        b'"logRecords"',
        re.compile(rb'\s*\{\s*"(?:timeUnixNano|observedTimeUnixNano|severity|body)'),
    ),
)
_OPENED = re.compile(rb"[ \t\r]*\n([ \t]*[\[{])[ \t\r]*\n")
#: Fields of the journal; one with line ends in it has its length, in bytes, before its value.
_FIELD = re.compile(rb"\s*(_{0,2}[A-Z][A-Z0-9_]{0,63})=(.*)", re.DOTALL)
_SIZED = re.compile(rb"_{0,2}[A-Z][A-Z0-9_]{0,63}")
_CURSOR = re.compile(rb"^__CURSOR=s=", re.MULTILINE)
_JOURNAL = re.compile(
    rb"^\w{3} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? [\w:+-]+ \[s=", re.MULTILINE
)
#: A key of YAML, and what stands behind it.
_KEY = re.compile(rb"([ -]*)([\w./-]{1,128}):(?: (.*)|)$", re.DOTALL)
_GCLOUD = re.compile(rb"---\r?\n(?:[^\n]*\n){0,40}?(?:insertId|logName|textPayload): ")


class Form:
    """How the entries of a log are written; this one is pretty-printed JSON.

    Args:
        start: the line with which an entry begins.

    Attributes:
        begins: matches the line with which an entry begins.
        ends: matches an entry's last line, or where the next one begins.
    """

    def __init__(self, start: bytes) -> None:
        first, last = re.escape(start), re.escape(start[:-1] + _CLOSED[start[-1:]])
        self.begins = re.compile(rb"(?m)^%b[ \t\r]*$" % first)
        self.ends = re.compile(rb"(?m)^(?:%b[^\n]*\n?|(?=%b[ \t\r]*$))" % (last, first))

    def text(self, entry: bytes) -> bytes:
        """Return the lines of an entry as one."""
        return b"".join(map(bytes.strip, entry.split(b"\n")))

    def between(self, text: bytes) -> bytes:
        """Return what is to stand for lines outside of entries."""
        return text


class _Shared(Form):
    """Records with their labels before all of them: see `_SHARED`."""

    def __init__(
        self, start: bytes, labels: re.Pattern[bytes], key: bytes, record: re.Pattern[bytes]
    ) -> None:
        super().__init__(start)
        self._labels, self._key, self._record = labels, key, record
        self._before = self._seen = b""

    def text(self, entry: bytes) -> bytes:
        return self._before + super().text(entry)

    def between(self, text: bytes) -> bytes:
        said = []
        for line in _LINE.findall(text):
            said += [self._before if self._record.match(line) else b"", line]
            self._seen = (self._seen + line.strip())[-_LABELS:]
            if self._key in line and (found := self._labels.search(self._seen)):
                self._before, self._seen = b"{" + found[0], b""
        return b"".join(said)


class _Journal(Form):
    """What `journalctl -o export` and `-o verbose` print: a field on each line."""

    def __init__(self, begins: re.Pattern[bytes]) -> None:
        self.begins = begins
        self.ends = re.compile(rb"(?=%b)" % begins.pattern, re.MULTILINE)

    def text(self, entry: bytes) -> bytes:
        fields: dict[bytes, bytes] = {}
        if (m := self.begins.match(entry)) and m.groups():
            fields[b"timestamp"] = m[1]
        last = b""
        for line in filter(None, _lines(entry)):
            field = _FIELD.match(line)
            if field and field[1] not in fields:  # else a line of the text above it
                last = field[1]
                fields[last] = field[2]
            elif _SIZED.fullmatch(line):
                last = line
                fields[last] = b""
            elif last:
                fields[last] += (b"\n" if fields[last] else b"") + line.strip()
        return _as_json({name: _without_size(value) for name, value in fields.items()})


class _Yaml(Form):
    """`gcloud logging read` without a format: documents of YAML, with long texts folded."""

    def __init__(self) -> None:
        self.begins = re.compile(rb"(?m)^---\r?$")
        self.ends = re.compile(rb"(?m)^(?=---\r?$)")

    def text(self, entry: bytes) -> bytes:
        fields: dict[bytes, bytes] = {}
        name, depth, values = b"", 0, list[bytes]()
        for line in [*_lines(entry)[1:], b"end: "]:
            key = _KEY.match(line)
            inside = len(line) - len(line.lstrip()) > depth or not line
            if key is None or (values and inside and (values[0] or len(values) > 1)):
                values.append(line)
                continue
            if name:
                fields[name] = _scalar(values)
            name, depth, values = key[2], len(key[1]), [key[3] or b""]
        return _as_json(fields)


def _scalar(lines: list[bytes]) -> bytes:
    """Return a scalar of YAML; one that is folded goes on behind a blank."""
    first, *more = lines
    if first[:1] in (b"|", b">"):
        shared = min((_depth(line) for line in more if line), default=0)
        return (b"\n" if first[:1] == b"|" else b" ").join(line[shared:] for line in more)
    text = b" ".join(line.strip() for line in lines if line)
    if first[:1] == b"'":
        return text[1:].removesuffix(b"'").replace(b"''", b"'")
    if first[:1] == b'"':
        text = re.sub(rb"\\ (?:\\(?= ))?", b"", text)
        try:
            return str(json.loads(text, strict=False)).encode("utf-8", "replace")
        except ValueError:
            return text.strip(b'"')
    return text


def _without_size(value: bytes) -> bytes:
    """Return a field without the length before it, of which the NUL bytes were removed."""
    for n in (1, 2, 3):
        size = value[:n].rstrip(b"\0")
        if int.from_bytes(size, "little") == len(value) - n:
            return value[n:]
    return value


def _as_json(fields: dict[bytes, bytes]) -> bytes:
    texts = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in fields.items()}
    return json.dumps(texts, ensure_ascii=False).encode("utf-8", "replace")


def form_of(data: bytes) -> Form | None:
    """Tell by the first lines of a log how its entries are written; None where each has a line."""
    for start in (_CURSOR, _JOURNAL):
        if start.match(data):
            return _Journal(start)
    return _Yaml() if _GCLOUD.match(data) else None


def _form_around(data: bytes, at: int) -> Form | None:
    """Tell by what encloses the statistics at `at` how entries of JSON are written."""
    for labels, key, record in _SHARED:
        if shared := labels.search(data, 0, at):
            first = _OPENED.match(data, shared.end())
            if first or record.match(data, shared.end()):
                return _Shared(first[1] if first else b"[", labels, key, record)
    around = _around(data, at)
    keyed = [line for line in around if line.strip() not in (b"{", b"[")]
    while around and around[0] in keyed and around[0].endswith(b"{"):
        around.pop(0)  # an object in the entry
    if not around or around[0] in keyed:
        return None
    entry, *outer = around
    if [line.strip()[-1:] for line in outer[:2]] == [b"[", b"["] and outer[0] not in keyed:
        entry, *outer = outer  # a row, of an object for each cell
    if outer:
        return Form(entry) if outer[0].endswith(b"[") else None
    return Form(entry) if entry == b"{" and _NEXT_OBJECT.search(data, at) else None


def _around(data: bytes, at: int) -> list[bytes]:
    """Return the lines that open what encloses the line at `at`, the innermost first."""
    found: list[bytes] = []
    depth = _depth(data[at:].split(b"\n", 1)[0])
    for line in data[:at].split(b"\n")[::-1] if depth else ():
        if line.strip() and _depth(line) < depth:
            found.append(line.rstrip())
            depth = _depth(line)
    return found


def _depth(line: bytes) -> int:
    return len(line) - len(line.lstrip())


def _lines(entry: bytes) -> list[bytes]:
    return [line.rstrip() for line in entry.split(b"\n")]


class _Entries:
    """Gathers the entries in the consecutive blocks of one log."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._left = b""  # an entry that is not complete
        self._first_line = 1
        self._n_read = 0

    def feed(self, block: Block) -> list[Block]:
        """Return what is complete."""
        self._n_read += block.n_read
        return self._written(self._left + block.data, last=False)

    def finish(self) -> list[Block]:
        """Return what was held back."""
        return self._written(self._left, last=True)

    def _written(self, data: bytes, *, last: bool) -> list[Block]:
        out, at, self._left = list[bytes](), 0, b""
        while at < len(data):
            begin = self._form.begins.search(data, at)
            start = begin.start() if begin else len(data)
            out.append(self._form.between(data[at:start]))
            line_end = data.find(b"\n", start) + 1 or len(data)
            end = self._form.ends.search(data, line_end)
            at = end.end() if end else len(data)
            if end is None and not last and len(data) - start <= _MAX:
                self._left = data[start:]
            elif at - start > _MAX:
                at = line_end
                out.append(data[start:at])
            else:
                out.append(self._on_a_line(data[start:at]))
        data = b"".join(out)
        if not data:
            return []
        n_lines = data.count(b"\n") + (not data.endswith(b"\n"))
        block = Block(data, self._first_line, n_lines, self._n_read)
        self._first_line += n_lines
        self._n_read = 0
        return [block]

    def _on_a_line(self, entry: bytes) -> bytes:
        """Write an entry on the line of its text; leave the others empty."""
        if not entry:
            return b""
        hit = TELLING_PATTERN.search(entry)
        at = hit.start() if hit else entry.find(max(entry.split(b"\n"), key=len))
        before, whole = entry.count(b"\n", 0, at), entry.endswith(b"\n")
        after = entry.count(b"\n") - before
        after += not whole and after > 0  # the log's last line may lack its end
        return b"\n" * before + self._form.text(entry) + b"\n" * after


def gathered(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a log, each of its entries on one line."""
    entries: _Entries | None = None
    known, at, size, held = False, -1, 0, list[Block]()
    for block in blocks:
        if known:
            yield from entries.feed(block) if entries else (block,)
            continue
        held.append(block)
        if at < 0 and (found := first_telling(block.data)) >= 0:
            at = size + found
        size += len(block.data)
        if size > EARLY or 0 <= at < size - _LOOK:
            known, entries = True, _gatherer(held, at)
            yield from _passed(held, entries)
            held = []
    if not known:
        entries = _gatherer(held, at)
        yield from _passed(held, entries)
    if entries:
        yield from entries.finish()


def _gatherer(held: list[Block], at: int) -> _Entries | None:
    """Return what gathers the entries of a log that shows at `at` how it is written."""
    data = b"".join(block.data for block in held)
    form = form_of(data[:_LOOK])
    if form is None and 0 <= at < EARLY:
        form = _form_around(data[: at + _LOOK], at)
    return _Entries(form) if form else None


def _passed(held: list[Block], entries: _Entries | None) -> Iterator[Block]:
    for block in held:
        yield from entries.feed(block) if entries else (block,)
