"""One line: what stands before its message, which format it is, and its fields.

`read` is the definition of what a line says: one pattern per field, in any order. From a
line it has read, `Layout` derives one anchored regular expression for all lines of the same
shape, which `parse.py` runs over many lines at once; both give the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from http import HTTPStatus

from loganalyze import formats
from loganalyze.formats import Format
from loganalyze.mend import EARLY, HEAD, TELLING_LINES, TELLING_PATTERN, first_telling
from loganalyze.prefixes import (
    BARE,
    GPU,
    MAX_REST,
    NUMBERS,
    OWN,
    PROCESS,
    STAMP_END,
    House,
    Prefix,
    Span,
    Style,
    escape,
    is_request,
    other_writers,
    read_prefix,
    spread,
    string_end,
    style_of,
    whole,
)
from loganalyze.releases import RELEASES, bounds
from loganalyze.sources import Block
from loganalyze.tables import Table

#: Ends a text that the log broke off in the middle of a line. NUL bytes are removed
#: from every log, so this one can only come from the reader.
CUT = "\0"
#: A message starts this early in its line, or it is quoted text.
MAX_PREFIX = 4096
_JSON = json.JSONDecoder(strict=False)
_LABELLED = re.compile(r"[^,:=]+(?:: |=)(?:-?[0-9]+(?:\.[0-9]+)?%?|True|False|nan%?)")
#: Lines of one shape, which one set of releases prints, differ in their digits.
_ZEROS = str.maketrans("123456789", "000000000")
_DIGITS = b"0123456789"
_LEVEL = bytes.maketrans(_DIGITS, bytes(10 * b"0"))
#: A shorter text tells too little about a line.
MIN_PIECE = 4
#: What steers a terminal.
COLOUR = (
    r"\x1b(?:\[[0-9;:?<=>]*[A-Za-z]|[\]_P^][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-Z]|[=>78DEHMc])"
)
#: The same in a string of JSON.
JSON_COLOUR = r"\\+u001b\[[0-9;]*m"
_ESCAPES = {
    **{f"\\u00{ord(char):02x}": char for char in "<>&='#+`%"},
    **{f"\\u00{ord(char):02X}": char for char in "<>=+"},
    "\\u00a0": " ",
    "\\/": "/",
}
#: Characters that need no escape in JSON, but get one from some writers; also in JSON in JSON.
ESCAPES = {f"\\{escape}": char for escape, char in _ESCAPES.items()} | _ESCAPES
_ANY_ESCAPE = re.compile("|".join(map(re.escape, ESCAPES)))
#: A run of backslashes is looked at once, from its first.
_COLOUR, _JSON_COLOUR = re.compile(COLOUR), re.compile(rf"(?<!\\){JSON_COLOUR}")
#: A text up to the end of its record.
_ANY_TEXT = r"[^\x00]*"
#: How a string of JSON and the like writes line ends.
_LINE_END = r"(?:\\+[nrt])*"
_QUOTES = frozenset("\"'")
#: Where a line may go on with a wrapper, behind a value.
_GLUE = re.compile(r"(?<=[\w,.\])])(?=[A-Za-z\[(])(?<![A-Za-z](?=[A-Za-z]))")
#: How an access line goes on behind its status: what HTTP calls that.
_SERVED = re.compile("|".join(rf" {re.escape(status.phrase)}" for status in HTTPStatus))
_NAMED = re.compile(r"\w")
#: Before a record that was quoted.
_QUOTED = "... "
#: What others put behind the fields of a record: the next cell of a table, names and values.
_NEXT_CELL = re.compile(
    r" *(?:[\t|;│┃]|,(?=[^\s,])|</?[A-Za-z][\w-]*[ />])"
    r"| +(?:\{\\*\"|[\w.]+=\S+(?: +[\w.]+=\S+)*$|-- )|(?<![:=,]) +\["
    r"|\) +[\w.]+: "  # the end of a call that a collector prints, and its next name
)
#: How statistics go on behind a number: its unit, then their end or another name and value.
_GOES_ON = re.compile(
    r"(?:%| ?(?:[kKMGT]i?B|[mu]?s|tokens?)(?:/s)?\b)?"
    r"(?:[.,]?\s*$|[.,] +[#\w(][^,:=]{0,64}[:=])"
)
_CELL_BEHIND = re.compile(r",[^\s,]")  # the server puts a blank behind its commas
#: The same behind a text of any kind.
_BESIDE = re.compile(r" *(?:\t|</t[dr]>)|(?<=call last\):)(?!\s*(?:\\+[nr]|$)).")
#: A cell of CSV up to its quote.
_CELL = re.compile(r'(?s)(?:[^"]|"")*(?=")')


@dataclass(frozen=True, slots=True)
class Reading:
    """One record of a line.

    Attributes:
        format: what it is.
        start: where its own prefix starts in the line.
        text: the record, prefix included.
        at: where its message starts in `text`.
        anchored: where the anchor ends in `text`.
        prefix: what stands before the message.
        spans: the fields, in order of place.
        values: column -> text, as printed; fixed columns included.
        partial: text was left over that no field of the format explains.
        cut: a field that every such line has is missing; the values are not to be used.
        open_end: the line broke off, or another record follows: the end may be missing.
        echo: it stands in somebody's text, and is none of the log's own by all that is known.
        foreign: it is written otherwise than the log's own; only `Reader.read` knows.
    """

    format: Format
    start: int
    text: str
    at: int
    anchored: int
    prefix: Prefix
    spans: tuple[Span, ...]
    values: dict[str, str]
    partial: bool
    cut: bool
    open_end: bool
    echo: bool = False
    foreign: bool = False

    def quote(self) -> Reading | None:
        """Return a foreign record as what it quotes; None of all but statistics."""
        if self.format.frame != "batch":
            return None
        return _quoted(self.format, self.text, self.at, self.prefix)

    def own_words(self, *, last: bool = True) -> str:
        """Return the record behind its stamp, without what its wrapper put around both.

        Args:
            last: whether the rest of the line may be its own.
        """
        if self.text.startswith(_QUOTED):
            return self.text
        body = self.text[self.at :]
        fields = [span for span in self.spans if _ANY_TEXT not in span.pattern]
        known = max([self.anchored, *(span.end - self.start for span in fields)]) - self.at
        beside = _NEXT_CELL if len(fields) == len(self.spans) else _BESIDE
        numbers = self.format.frame == "batch" and not self.cut
        if self.prefix.quote:
            body = _string_text(body, self.prefix.quote)
        elif not last or (numbers and not _GOES_ON.match(body, known)):
            body = body[:known]
        elif found := beside.search(body, known):
            body = body[: found.start()]
        own = self.prefix.text or self.prefix.values.get("stamp", "")
        return f"{own}{'' if own.endswith(' ') or not own else ' '}{body}".rstrip()


class Reader:
    """Reads single lines against a set of formats.

    Args:
        known: the formats to look for.

    Attributes:
        house: how the log writes its records; what is written otherwise is not believed.
        table: its columns, where it is a table.
    """

    def __init__(self, known: Sequence[Format]) -> None:
        self.formats = tuple(known)
        self.house = House()
        self.table: Table | None = None
        self._by_literal: dict[str, list[int]] = {}
        for k, fmt in enumerate(self.formats):
            for literal in fmt.find:
                self._by_literal.setdefault(literal.decode(), []).append(k)
        self._anchors: dict[tuple[int, ...], re.Pattern[str]] = {}
        self._home: tuple[str, ...] | None = None

    def _anchor_pattern(self, text: str) -> re.Pattern[str] | None:
        """Return a pattern for the anchors of the formats whose literals stand in `text`."""
        found = [ks for literal, ks in self._by_literal.items() if literal in text]
        if not found:
            return None
        key = tuple(sorted({k for ks in found for k in ks}))
        if key not in self._anchors:
            anchors = "|".join(f"(?P<f{k}>{self.formats[k].anchor})" for k in key)
            self._anchors[key] = re.compile(anchors)
        return self._anchors[key]

    def read(self, line: str) -> list[Reading]:
        """Read the records of one line: none, one, or several where writers interleaved."""
        text = line.rstrip(CUT)
        found: list[tuple[Format, int, int, Prefix]] = []
        echo: tuple[Format, int] | None = None
        done = 0
        at = 0
        anchors = self._anchor_pattern(text)
        while anchors and (m := anchors.search(text, at, done + MAX_PREFIX)):
            at = m.end()
            own = start = _own_start(text, done, m.start()) if found else 0
            if start is None or own is None:
                continue
            quoted = bool(found and found[0][3].quote)
            if found:
                before = _before(text, *found[0][2:])
                start = _wrapped_start(text, done, own, before, quoted=quoted)
            prefix = read_prefix(
                text[start : m.start()],
                "" if found else text[m.end() :],
                m.end() - start,
                None if found else self.table,
            )
            fmt = self.formats[int(str(m.lastgroup)[1:])]
            if prefix is None and not found and fmt.frame in ("event", "startup"):
                prefix = self._unmarked(text, m)
            prefix = self._placed(prefix)
            if prefix is None and fmt.frame == "batch" and echo is None:
                echo = fmt, m.start()
            if prefix is None or (
                _QUOTES & set(text[done:start])
                if found and not (quoted and start < own)
                else False
            ):
                continue
            if found and not self.house.believes(_outer(found[0][3])):
                continue  # an access line stands before it, whose own style nobody asks for
            if quoted:
                prefix = replace(prefix, quote=found[0][3].quote)
            if (
                start and start == own and "stream" in found[0][3].values
            ):  # the line is one writer's
                writer = found[0][3].values["stream"]
                prefix = replace(prefix, values={"stream": writer, **prefix.values})
            if not found and not self.house.believes(chain_of(fmt, prefix)):
                record = _read_record(fmt, text, 0, m.start(), len(text), prefix, text != line)
                return [replace(record, foreign=True)]
            found.append((fmt, start, m.start(), prefix))
            done = m.end()
            if fmt.multiline or fmt.whole or fmt.closed:
                break  # the rest of the line is its own
        if echo and not found:
            return _echoes(*echo, text)
        ends = [f[1] for f in found[1:]] + [len(text)]
        read = [
            _read_record(fmt, text, start, at, end, prefix, text != line)
            for (fmt, start, at, prefix), end in zip(found, ends[: len(found)], strict=True)
        ]
        first = read[0] if len(read) == 1 else None
        if first and first.format.name == "access" and first.prefix.chain in ((), (BARE,)):
            served = _SERVED.match(text, done)
            if served and served.end() < len(text):  # another writer's line, of any form
                read += self.read(line[served.end() :])
        return read

    def _unmarked(self, text: str, m: re.Match[str]) -> Prefix | None:
        """Read what stands before a message that nothing sets off from it.

        It is a wrapper's where the log's own statistics stand behind the like.
        """
        before, after = text[: m.start()], text[m.end() :]
        prefix = read_prefix(before, after, m.end(), self.table, delimited=False)
        return prefix if prefix and self.house.knows(_outer(prefix)) else None

    def _placed(self, prefix: Prefix | None) -> Prefix | None:
        """Tell writers of the same name in different places apart.

        In the first place that a run names, a writer's name is enough: its lines have a layout
        for all names. Those of any other place have one for each writer; so have processes of
        one place, which only their full names tell to be that.
        """
        if prefix is None or not prefix.place:
            return prefix
        if self._home is None and not PROCESS.search(f" {' '.join(prefix.place)}"):
            self._home = prefix.place
        return prefix if prefix.place == self._home else prefix.in_place()

    def learned(self, blocks: Iterable[Block], house: House) -> Iterator[Block]:
        """Pass on the blocks of a log, none with a record before its head was looked at."""
        head, held, size = b"", list[Block](), 0
        for block in blocks:
            if house.size >= HEAD:
                yield block
                continue
            start = 0 if head else first_telling(block.data)
            held.append(block)
            if start >= 0:
                if not head and size + start >= EARLY:
                    house.since = block.first_line + block.data.count(b"\n", 0, start)
                head += block.data[start : start + HEAD]
            size += len(block.data)
            if len(head) >= HEAD:
                house.see(self.styles(head[:HEAD]), HEAD)
            if len(head) >= HEAD or (not head and size >= EARLY):
                yield from held
                held = []
        if head and held:
            house.see(self.styles(head), HEAD)
        yield from held

    def styles(self, data: bytes) -> Iterator[Style]:
        """Yield what stands before the records in `data`, for `House.see`.

        A line that quotes a record behind a stamp of its own also shows how it is written
        itself.
        """
        seen: dict[tuple[bytes, bytes], list[Style]] = {}
        stop = n = 0
        for hit in TELLING_PATTERN.finditer(data):
            if hit.start() < stop:
                continue
            n += 1
            if n > TELLING_LINES:
                return
            start, stop = data.rfind(b"\n", 0, hit.start()) + 1, data.find(b"\n", hit.end())
            stop = stop if stop >= 0 else len(data)
            line = data[start:stop]
            # A shape: the numbers before the record level, those in it left out.
            key = line[: hit.start() - start].translate(_LEVEL), line.translate(None, _DIGITS)
            if key not in seen:
                seen[key] = list(self._styles_of(line))
            yield from seen[key]

    def _styles_of(self, line: bytes) -> Iterator[Style]:
        text = _cleaned(line.decode("utf-8", "replace").rstrip(CUT)).rpartition("\r")[2]
        anchors = self._anchor_pattern(text)
        if anchors and (m := anchors.search(text, 0, MAX_PREFIX)):
            if self._home is None:  # the first of the log's own lines, not of those read first
                self._placed(read_prefix(text[: m.start()], text[m.end() :], m.end()))
            yield from _styles(self.formats[int(str(m.lastgroup)[1:])], text, m)


def own_words(line: str) -> str | None:
    """Return what the server wrote of a line, without what others put around it.

    Wrappers name hosts under keys, and in columns, that nobody can list. None where there is no
    record on the line.
    """
    readings = _any_reader().read(_cleaned(line))
    said = [reading.own_words(last=reading is readings[-1]) for reading in readings]
    return " … ".join(said) or None


@cache
def _any_reader() -> Reader:
    """Return a reader that believes every line."""
    return Reader(formats.load())


def _cleaned(text: str) -> str:
    """Return a line as the parser cleans it, for its last record."""
    if '":' in text:
        text = _ANY_ESCAPE.sub(lambda m: ESCAPES[m[0]], text)
        text = _JSON_COLOUR.sub("", text)
    return _COLOUR.sub("", text).rstrip("\r")


def chain_of(fmt: Format, prefix: Prefix) -> tuple[str, ...]:
    """Return what a record is wrapped in; of later statistics alone, SGLang's stamp is sure."""
    if fmt.frame == "request":
        return ()
    return _outer(prefix) if fmt.frame != "batch" or fmt.stampless else prefix.chain


def _outer(prefix: Prefix) -> tuple[str, ...]:
    return prefix.chain[:-1] if prefix.chain[-1:] == (BARE,) else prefix.chain


def _styles(fmt: Format, text: str, message: re.Match[str]) -> Iterator[Style]:
    before = text[: message.start()]
    prefix = read_prefix(before, text[message.end() :], message.end())
    if prefix is not None and fmt.frame != "request":
        yield style_of(prefix, before)
    stamps = [
        m for m in OWN.finditer(before) if m["zone"] is None and (m["open"] or not m.start())
    ]
    quoting = len(stamps) > 1 and stamps[0].end() < stamps[1].start()
    if quoting or (stamps and prefix is None):
        outer = read_prefix(before[: stamps[0].end()])
        if outer is not None:
            yield style_of(outer, before[: stamps[0].end()])


def _quoted(fmt: Format, text: str, at: int, prefix: Prefix) -> Reading:
    """Return a record that is not believed: of its text, only what is no one's own words."""
    body = text[at:]
    fields = sorted(
        extent for *_, start, end in fmt.find_fields(body) for extent in [(start, end)]
    )
    anchor = re.match(fmt.anchor, body)
    shown = prefix.text + (anchor[0] if anchor else "")
    shown += "".join(body[start:end] for start, end in fields)
    return Reading(
        format=fmt,
        start=at,
        text=f"{_QUOTED}{shown}",
        at=len(_QUOTED),
        anchored=0,
        prefix=prefix,
        spans=(),
        values={},
        partial=False,
        cut=True,
        open_end=True,
    )


def _echoes(fmt: Format, at: int, text: str) -> list[Reading]:
    """Return statistics in quotes or in a sentence, but for those in a logged request."""
    columns = {field.column for field, *_ in fmt.find_fields(text[at : at + MAX_PREFIX])}
    if is_request(text[:at]) or not columns.issuperset(fmt.needs):
        return []
    return [replace(_quoted(fmt, text, at, Prefix()), echo=True)]


def _own_start(text: str, start: int, at: int) -> int | None:
    """Return where the stamp or GPU tag starts that ends right at a message."""
    own = None
    for own in OWN.finditer(text, start, at):  # noqa: B007
        pass
    if own is not None and own.end() == at:
        return own.start()
    gpu = GPU.search(text, start, at)
    return gpu.start() if gpu else None


def _before(text: str, at: int, prefix: Prefix) -> str:
    """Return what stands before the stamp of a line's first record, whose message is at `at`."""
    return text[: text.rfind(prefix.text, 0, at)] if prefix.text else text[:at]


def _wrapped_start(text: str, done: int, own: int, before: str, *, quoted: bool) -> int:
    """Return where the wrapper of a record starts that no line end parts from the one before.

    Args:
        text: the line.
        done: where the message before was found.
        own: where the record's own stamp starts.
        before: the wrapper of the line's first record; this one's is alike, or a known one.
        quoted: whether that is a string's, as a record beside it in the same one cannot have it.
    """
    if _NAMED.search(before) if quoted else before.strip():
        wide = re.sub(r"[0-9]+", lambda m: f"[0-9]{{{len(m[0])}}}", escape(before))
        for pattern in (escape(before), wide, spread(before)):
            if m := re.compile(rf"(?:{pattern})\Z").search(text, done, own):
                inside = before.startswith("{") and not text[done : m.start()].rstrip().endswith(
                    "}"
                )
                return own if quoted and inside else m.start()
    if quoted:
        return own
    for m in _GLUE.finditer(text, max(done, own - MAX_REST), own):
        if _are_wrappers(text, m.end(), own):
            return m.end()
    return own


def _are_wrappers(text: str, at: int, stop: int) -> bool:
    """Whether known wrappers of lines, and nothing else, stand between two places."""
    while at < stop:
        found = formats.wrappers_at(text, at, transport=True)
        ends = [m.end() for _, m in found if m.end() <= stop]
        if not ends:
            return False
        at = ends[0]
    return True


def _read_record(
    fmt: Format, text: str, start: int, at: int, end: int, prefix: Prefix, broken_off: bool
) -> Reading:
    body, open_end = text[at:end], broken_off or end < len(text)
    if (fmt.whole or fmt.multiline) and prefix.quote:
        body = _whole_text(text, at, prefix) or body
    elif fmt.whole:
        body = body[: _own_end(body, max(map(body.rfind, ")}")) + 1)]
    elif prefix.quote and fmt.frame in ("batch", "startup"):  # what is beside may be anybody's
        body = body[: string_end(body, 0, prefix.quote, inclusive=False)]
    spans: list[Span] = []
    values = dict(fmt.fixed) | prefix.values
    explained: list[tuple[int, int]] = []
    anchor = re.match(fmt.anchor, body)
    anchored = anchor.end() if anchor else 0
    explained.append((0, anchored))
    for f, v0, v1, t0, t1 in fmt.find_fields(body):
        explained.append((t0, t1))
        if f.type == "present":
            values[f.column] = "True"
        elif f.choices is not None:
            values[f.column] = f.choices[body[v0:v1]]
        elif f.column not in values:
            values[f.column] = value = body[v0:v1]
            pattern = _value_pattern(f.type, value)
            if f.type == "text":
                # The anchor must stay in the pattern, or it would fit any line.
                pattern = spread(body[v0 : min(v1, anchored)]) + pattern * (v1 > anchored)
            spans.append(Span(at + v0, at + v1, f.column, pattern))
    body = body[: _own_end(body, max(end for _, end in explained))]
    left = _left_over(body, explained, prefix.quote)
    cut = False
    if any(n not in values for n in fmt.needs):
        parts = [p for p in re.split(r"[,.] ", body.rstrip(", ")) if p]
        cut = (
            open_end
            or all(n not in values for n in fmt.needs)
            or len(spans) < 4
            or not _LABELLED.fullmatch(parts[-1])
        )
    spans.sort()
    broken = (
        broken_off
        and bool(spans)
        and spans[-1].end == len(text)
        and _is_open(fmt, text, spans[-1])
    )
    if broken:
        del values[str(spans.pop().name)]
    message = body
    if prefix.quote:
        message = body[:anchored] + _string_text(body[anchored:], prefix.quote)
    lo, hi = (0, len(RELEASES) - 1) if open_end else _releases(fmt, values, message, prefix.text)
    values |= {"release_lo": str(lo), "release_hi": str(hi)}
    quoted = not prefix.quote and fmt.frame == "batch" and bool(re.match(r"\s*[\"'\\]", left))
    return Reading(
        format=fmt,
        start=start,
        text=text[start:end],
        at=at - start,
        anchored=at + anchored - start,
        prefix=prefix,
        spans=tuple(sorted(spans)),
        values=values,
        partial=fmt.frame == "batch" and (broken or re.search(r"\w", left) is not None),
        cut=cut or quoted,
        open_end=open_end,
    )


def _is_open(fmt: Format, text: str, last: Span) -> bool:
    """Whether the number that ends a half-written line may lack digits.

    Statistics print two decimals; flags and words are read whole or not at all.
    """
    value = text[last.start : last.end]
    if value[-1:].isdigit():
        return fmt.frame != "batch" or re.search(r"\.[0-9]{2}$", value) is None
    return False


def _releases(fmt: Format, values: dict[str, str], message: str, prefix: str) -> tuple[int, int]:
    """Tell the first and the last release that print such a line."""
    shape = message if len(message) < MAX_PREFIX else message[:MAX_REST]
    if shape.endswith("  "):  # a terminal's padding: one blank would be the server's own
        shape = shape.rstrip(" ")
    return _bounds(fmt, frozenset(values), shape.translate(_ZEROS), prefix.translate(_ZEROS))


@lru_cache(2048)
def _bounds(fmt: Format, columns: frozenset[str], message: str, prefix: str) -> tuple[int, int]:
    rules = [r for r in fmt.rules if r.fits(columns, message, fmt.frame)]
    rules += [r for r in formats.prefix_rules() if r.fits(columns, prefix, fmt.frame)]
    return bounds(r.releases for r in rules)


def _own_end(body: str, at: int) -> int:
    """Return where a message ends whose last field ends at `at`, before what others put there."""
    rest = body[at:]
    if not _CELL_BEHIND.match(rest):
        rest = rest.lstrip(", ")
    if rest and formats.behind().fullmatch(rest.strip(" \r\n")):
        end = len(body) - len(rest)
        return end - (body[:end].endswith(" ") and rest[0] != "<")  # a tag stands without a blank
    return len(body)


def _left_over(body: str, explained: list[tuple[int, int]], quote: str) -> str:
    """Return what no field of the format explains, without the wrapper's end."""
    out, pos = [], 0
    for start, end in sorted(explained):
        if start > pos:
            out.append(body[pos:start])
        pos = max(pos, end)
    last = body[pos:]
    if quote:
        last = _string_text(last, quote)
    out.append(last)
    return "".join(out).strip(" ,.;\r\n\t[]()")


def _value_pattern(kind: str, value: str) -> str:
    if kind == "text":
        return _ANY_TEXT
    if kind in ("count", "float", "percent", "gb", "seconds", "count_or_none"):
        if value in ("nan", "None"):
            return value
        return r"-?[0-9]+\.[0-9]+" if "." in value else "-?[0-9]+"
    return formats.TYPES[kind]


@dataclass(frozen=True, slots=True)
class Cells:
    """A layout as cells between commas, which split cheaper than a pattern fits.

    Attributes:
        head: the first cell behind its stamp: ranks, bracket, anchor.
        head_pattern: the same with its ranks as groups.
        ranks: columns of those groups.
        columns: column and text before its value, for each further cell.
        tail: what stands behind the last comma, where that is no value.
    """

    head: str
    head_pattern: str
    ranks: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    tail: str | None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Layout:
    """One anchored pattern for all lines of one shape, and what its groups are.

    Attributes:
        format: what such lines are.
        pattern: matches whole lines; in the syntax of Polars' engine.
        columns: name of each group, in order. Never empty.
        fixed: columns with the same value on every such line.
        clock: how the stamp is written; None without one.
        partial: such lines hold text that no field explains.
        pieces: texts that every such line holds.
        cells: the same layout as cells, where it has only numbers and flags between commas.
        chain: what such lines are wrapped in.
        unless: lines that match this name their writer by a key that lines of this layout lack.
            Empty where none does.
        hits: lines read so far; the layouts with the most are tried first.
    """

    format: Format
    pattern: str
    columns: tuple[str, ...]
    fixed: dict[str, str]
    clock: str | None
    partial: bool
    pieces: tuple[str, ...]
    cells: Cells | None
    chain: tuple[str, ...]
    unless: str = ""
    hits: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """What no other layout has."""
        return self.pattern, self.unless


def layout_of(reading: Reading) -> Layout | None:
    """Derive the layout of a record that has a line for itself; None where it has none."""
    fmt = reading.format
    if reading.cut or reading.open_end or fmt.whole or (fmt.multiline and reading.prefix.quote):
        return None
    text, pos = reading.text, 0
    pattern: list[str] = []
    columns: list[str] = []
    pieces: list[str] = []
    for span in sorted((*reading.prefix.spans, *reading.spans)):
        if span.start < pos:
            return None
        pattern.append(spread(text[pos : span.start]))
        pieces += NUMBERS.split(text[pos : span.start])[::2]
        if span.name is None:
            pattern.append(f"(?:{span.pattern})")
        else:
            pattern.append(f"({span.pattern})")
            columns.append(span.name)
        pos = span.end
    if pos < reading.anchored:
        pattern.append(spread(text[pos : reading.anchored]))
        pieces += NUMBERS.split(text[pos : reading.anchored])[::2]
        pos = reading.anchored
    tail = text[pos:]
    if reading.format.multiline or reading.format.frame == "request":
        if any(f.column not in reading.values for f in reading.format.fields):
            return None  # on another line of this layout, the rest may hold it
        end = r"[^\x00]*$" if pos < len(text) else "$"
    elif reading.prefix.quote:
        quote = reading.prefix.quote
        if string_end(text, reading.anchored, quote) == len(text) and not tail.endswith(quote):
            return None
        # A second record on the line would bring a `#`.
        end = spread(_string_text(tail, quote)) + rf"{_LINE_END}{escape(quote)}[^#\x00]*$"
        if string_end(text, reading.anchored, quote) <= pos:  # the writer stands behind it
            end = r"[^#\x00]*$"
    else:
        # A comma at the end tells releases apart, blanks do not.
        own = tail[: _own_end(tail, 0)]
        body = own.rstrip(", ")
        end = spread(body) + (" *, *" if "," in own[len(body) :] else " *")
        end += f"(?:{formats.behind().pattern})\\s*$" if len(own) < len(tail) else "$"
    fixed = {k: v for k, v in reading.values.items() if k not in columns}
    cells = _cells_of(reading)
    if cells is not None:
        fixed |= {rank: reading.values[rank] for rank in cells.ranks}
    start = "^" if columns else "^()"  # one group at least, which tells whether a line fits
    return Layout(
        format=reading.format,
        pattern="".join([start, *pattern, end]),
        columns=tuple(columns) or ("",),
        fixed=fixed,
        clock=reading.prefix.clock,
        partial=reading.partial,
        pieces=tuple(p for p in pieces if len(p) >= MIN_PIECE),
        cells=cells,
        chain=chain_of(reading.format, reading.prefix),
        unless=other_writers(text) if reading.prefix.quote and '":' in text else "",
    )


def _cells_of(reading: Reading) -> Cells | None:
    """Return the layout of a line as cells; None where it is not made of them."""
    text, prefix = reading.text, reading.prefix
    if not text.startswith(prefix.text) or prefix.clock != "date" or not prefix.own:
        return None
    parts = text.split(",")
    at, spans = len(parts[0]) + 1, list(reading.spans)
    columns: list[tuple[str, str]] = []
    for part in parts[1:]:
        inside = [s for s in spans if at <= s.start < at + len(part)]
        if len(inside) == 1 and inside[0].end == at + len(part) and _is_cell(inside[0]):
            columns.append((str(inside[0].name), part[: inside[0].start - at]))
            spans.remove(inside[0])
        elif part is not parts[-1] or part.strip():
            return None
        at += len(part) + 1
    if spans or not columns:
        return None
    ranks = [s for s in prefix.spans if s.name != "stamp"]
    pattern, pos = "^", STAMP_END
    for span in ranks:
        pattern += f"{spread(text[pos : span.start])}({span.pattern})"
        pos = span.end
    return Cells(
        head=parts[0][STAMP_END:],
        head_pattern=pattern + spread(text[pos : len(parts[0])]) + "$",
        ranks=tuple(str(s.name) for s in ranks),
        columns=tuple(columns),
        tail=parts[-1] if not parts[-1].strip() else None,
    )


def _is_cell(span: Span) -> bool:
    """Whether a value is a number or a flag, which casting tells from all else."""
    return span.pattern in ("-?[0-9]+", r"-?[0-9]+\.[0-9]+", "True|False")


def _whole_text(text: str, at: int, prefix: Prefix) -> str | None:
    """Return the message at `at` in a string, or in a string inside one, as it was."""
    if prefix.quote == "'":  # YAML doubles those inside
        stop = text.rfind("'", at)
        return text[at:stop].replace("''", "'") if stop > at else None
    before, message = text[:at], text[at:]
    if "csv " in prefix.chain:
        if prefix.quote == '"':
            cell = _CELL.match(message)
            return cell[0].replace('""', '"').rstrip("\r\n") if cell else None
        before, message = before.replace('""', '"'), message.replace('""', '"')
    before = before[: before.rfind('"')]
    slashes = len(before) - len(before.rstrip("\\"))
    try:
        for _ in range(slashes.bit_length() + 1):
            message = _JSON.raw_decode(f'"{message}')[0]
    except ValueError:
        return None
    return whole(message).rstrip("\r\n")


def _string_text(tail: str, quote: str) -> str:
    """Return the part of `tail` before the end of the string that holds the message."""
    end = string_end(tail, 0, quote, inclusive=False)
    while end > 1 and tail[end - 1] in "nrt" and tail[end - 2] == "\\":
        end = len(tail[: end - 1].rstrip("\\"))
    return tail[:end]
