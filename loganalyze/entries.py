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
_CURSOR = re.compile(rb"__CURSOR=s=")
_JOURNAL = re.compile(rb"\w{3} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? [\w:+-]+ \[s=")
#: A key of YAML, and what stands behind it.
_KEY = re.compile(rb"([ -]*)([\w./-]{1,128}):(?: (.*)|)$", re.DOTALL)
_GCLOUD = re.compile(rb"---\r?\n(?:[^\n]*\n){0,40}?(?:insertId|logName|textPayload): ")


class Form:
    """How the entries of a log are written; this one is pretty-printed JSON.

    Args:
        start: the line with which an entry begins.
    """

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._end = start[:-1] + {b"{": b"}", b"[": b"]"}.get(start[-1:], b"")

    def begins(self, line: bytes) -> bool:
        """Whether a line, without its end, begins an entry."""
        return line == self._start

    def ends(self, line: bytes) -> bool:
        """Whether it is an entry's last one."""
        return line.startswith(self._end)

    def text(self, lines: list[bytes]) -> bytes:
        """Return the lines of an entry as one."""
        return b"".join(line.strip() for line in lines)

    def between(self, line: bytes) -> bytes:
        """Return what is to stand for a line outside of entries."""
        return line


class _Shared(Form):
    """Records with their labels before all of them: see `_SHARED`."""

    def __init__(
        self, start: bytes, labels: re.Pattern[bytes], key: bytes, record: re.Pattern[bytes]
    ) -> None:
        super().__init__(start)
        self._labels, self._key, self._record = labels, key, record
        self._before = self._seen = b""

    def text(self, lines: list[bytes]) -> bytes:
        return self._before + super().text(lines)

    def between(self, line: bytes) -> bytes:
        said = (self._before if self._record.match(line) else b"") + line
        self._seen = (self._seen + line.strip())[-_LABELS:]
        if self._key in line and (found := self._labels.search(self._seen)):
            self._before, self._seen = b"{" + found[0], b""
        return said


class _Journal(Form):
    """What `journalctl -o export` and `-o verbose` print: a field on each line."""

    def __init__(self, start: re.Pattern[bytes]) -> None:
        self._first = start

    def begins(self, line: bytes) -> bool:
        return self._first.match(line) is not None

    def ends(self, line: bytes) -> bool:
        return False

    def text(self, lines: list[bytes]) -> bytes:
        fields: dict[bytes, bytes] = {}
        if (m := self._first.match(lines[0])) and m.groups():
            fields[b"timestamp"] = m[1]
        last = b""
        for line in filter(None, lines):
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

    def begins(self, line: bytes) -> bool:
        return line == b"---"

    def ends(self, line: bytes) -> bool:
        return False

    def text(self, lines: list[bytes]) -> bytes:
        fields: dict[bytes, bytes] = {}
        name, depth, values = b"", 0, list[bytes]()
        for line in [*lines[1:], b"end: "]:
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
    return _Yaml(b"---") if _GCLOUD.match(data) else None


def _form_around(data: bytes, at: int) -> Form | None:
    """Tell by what encloses the statistics at `at` how entries of JSON are written."""
    for labels, key, record in _SHARED:
        if shared := labels.search(data, 0, at):
            first = _OPENED.match(data, shared.end())
            if first or record.match(data, shared.end()):
                return _Shared(first[1] if first else b"[", labels, key, record)
    lines = data[:at].splitlines()[::-1]
    depth = _depth(data[at:].split(b"\n", 1)[0])
    entry = b""
    for line in (x.rstrip() for x in lines if x.strip()):
        if _depth(line) >= depth:
            continue
        if entry:  # which stands in an array, ...
            return Form(entry) if line.endswith(b"[") else None
        depth, opened = _depth(line), line.strip()
        if opened in (b"{", b"["):
            entry = line
        elif not opened.endswith(b"{"):
            return None
    return Form(entry) if entry == b"{" and _NEXT_OBJECT.search(data, at) else None  # or not


def _depth(line: bytes) -> int:
    return len(line) - len(line.lstrip())


class _Entries:
    """Gathers the entries in the consecutive blocks of one log."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._lines: list[bytes] = []
        self._entry: list[int] = []  # places of the lines of the one that is not complete
        self._size = 0
        self._held: list[Block] = []

    def feed(self, block: Block) -> list[Block]:
        """Return what is complete."""
        self._held.append(block)
        for raw in _LINE.findall(block.data):
            line = raw.rstrip()
            if self._form.begins(line):
                self._close()
                self._add(raw)
            elif not self._entry:
                self._lines.append(self._form.between(line) + raw[len(line) :])
            else:
                self._add(raw)
                if self._form.ends(line):
                    self._close()
                elif self._size > _MAX:
                    self._entry = []
        return [] if self._entry else self._done()

    def finish(self) -> list[Block]:
        """Return what was held back."""
        self._close()
        return self._done()

    def _add(self, raw: bytes) -> None:
        self._size = len(raw) + (self._size if self._entry else 0)
        self._entry.append(len(self._lines))
        self._lines.append(raw)

    def _close(self) -> None:
        """Write an entry on the line of its text."""
        if self._entry:
            lines = [self._lines[k] for k in self._entry]
            text = self._form.text([line.rstrip() for line in lines])
            at = max(range(len(lines)), key=lambda k: (_is_telling(lines[k]), len(lines[k])))
            for k, line in enumerate(lines):
                self._lines[self._entry[k]] = b"\n"
                if k == at:  # the log's last line may lack its end
                    self._lines[self._entry[k]] = text + line[len(line.rstrip(b"\n")) :]
            self._entry = []

    def _done(self) -> list[Block]:
        held, data = self._held, b"".join(self._lines)
        self._lines, self._held = [], []
        if not held:
            return []
        n_lines, n_read = sum(b.n_lines for b in held), sum(b.n_read for b in held)
        return [Block(data, held[0].first_line, n_lines, n_read)]


def _is_telling(line: bytes) -> bool:
    return TELLING_PATTERN.search(line) is not None


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
