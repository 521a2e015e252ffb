"""One line: what stands before its message, which format it is, and its fields.

`read` is the definition of what a line says: one pattern per field, in any order. From a
line it has read, `Layout` derives one anchored regular expression for all lines of the same
shape, which `parse.py` runs over many lines at once; both give the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from loganalyze import formats
from loganalyze.formats import Format
from loganalyze.releases import RELEASES, bounds

#: Ends a text that the log broke off in the middle of a line. NUL bytes are removed
#: from every log, so this one can only come from the reader.
CUT = "\0"
#: A message starts this early in its line, or it is quoted text.
MAX_PREFIX = 4096
#: SGLang's own stamp, `[2026-01-05 03:04:05`, ends here.
STAMP_END = 20
#: Text before a message that no wrapper explains is at most this long.
MAX_REST = 256

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ANY_DATE = r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
#: SGLang's own stamp and ranks; its opening bracket may be lost.
_OWN = re.compile(
    rf"(?P<open>\[)?(?P<stamp>(?:{_DATE}[ T])?{_CLOCK}(?:[.,][0-9]{{1,9}})?)"
    r"(?P<tags>(?: [A-Za-z_]+(?:-?[0-9]+|\[[0-9]+\])?)*)\] "
)
_RANK = re.compile(r" (DP|TP|PP|EP|ATTN_CP|MOE_DP)(-?[0-9]+)(?=[ \]])")
_RANKS = re.compile(r"(?: (?:DP|TP|PP|EP|ATTN_CP|MOE_DP)-?[0-9]+)+")
_GPU = re.compile(r"\[gpu(?:_id)?=([0-9]+)\] $")
_ANY_STAMP = re.compile(rf"(?<![\d:.]){_ANY_DATE}[ T]{_CLOCK}(?:[.,][0-9]{{1,9}})?(?![\d:])")
_ANY_CLOCK = re.compile(rf"(?<![\d:.-]){_CLOCK}(?:[.,][0-9]{{1,9}})?(?![\d:])")
_ZONE = re.compile(r" ?(Z|UTC|[+-][0-9]{2}:?[0-9]{2})(?![0-9])")
#: A message may follow a delimiter, but not stand in the middle of a sentence.
_DELIMITED = re.compile(r"(?:^|[|:\]>)\-\t\r])\s*$")
#: A value in quotes starts here, of a key (`"log":"`, also with escaped quotes; `msg="`) ...
_KEYED = re.compile(r'(?:\\*"[\w@.-]+\\*"\s*:\s*|\b(?:msg|message|log|line)=)\\*"(?:\\[nrt])*$')
#: ... or of a list or a table (`["17000","`).
_LISTED = re.compile(r'[,\[]\s*\\*"(?:\\[nrt])*$')
_EPOCH = re.compile(
    r'\\*"(?:ts|time|timestamp|created|@timestamp|date)\\*"\s*:\s*\\*"?([0-9]{10}(?:\.[0-9]+|[0-9]{3})?)'
    r"(?![0-9])"
)
_JSON_STREAM = re.compile(
    r'\\*"(?:pod_name|pod|container_name|container|instance|hostname|host|unit|_SYSTEMD_UNIT|_PID)'
    r'\\*"\s*:\s*'
    r'\\*"([\w./@:-]+)'
)
#: Words of a request that was logged with its text: what follows may be anything.
_ECHO = re.compile(
    r"(?:Receive|Finish)(?: OpenAI)?: obj=|request\.(?:received|finished)|GenerateReqInput|"
    r"sampling_params|\binput_ids\b|"
    r"\"(?:prompt|messages|content|inputs?|query|question|instruction)\\*\"\s*:"
)
_JSON = json.JSONDecoder(strict=False)
_LABELLED = re.compile(r"[^,:=]+(?:: |=)(?:-?[0-9]+(?:\.[0-9]+)?%?|True|False|nan%?)")
#: What differs between lines of one shape: numbers, and names made of them.
_NUMBERS = re.compile(r"([0-9a-f]{8,}(?:-[0-9a-f]{4,})*|[0-9]+)")
#: Lines of one shape, which one set of releases prints, differ in their digits.
_ZEROS = str.maketrans("123456789", "000000000")
#: A shorter text tells too little about a line.
MIN_PIECE = 4
_QUOTES = frozenset("\"'")


class Span(NamedTuple):
    """A piece of a line that varies. `name` is None where only its shape matters."""

    start: int
    end: int
    name: str | None
    pattern: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before a message.

    Attributes:
        spans: the pieces to capture or to loosen, in order.
        values: what they hold here: `stamp`, `stream`, `gpu_id` and the ranks.
        clock: how the stamp is written; None without one.
        own: whether the stamp is SGLang's, not a wrapper's.
        zone: zone of the wrapper's clock as printed.
        wrapper_stamp: stamp of the wrapper, beside SGLang's own.
        json: whether the message is a value in quotes, of JSON or the like.
        text: SGLang's own part of it, as printed.
    """

    spans: tuple[Span, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    clock: str | None = None
    own: bool = False
    zone: str | None = None
    wrapper_stamp: str | None = None
    json: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One record of a line.

    Attributes:
        format: what it is.
        start: where its own prefix starts in the line.
        text: the record, prefix included.
        anchored: where the anchor ends in `text`.
        prefix: what stands before the message.
        spans: the fields, in order of place.
        values: column -> text, as printed; fixed columns included.
        partial: text was left over that no field of the format explains.
        cut: a field that every such line has is missing; the values are not to be used.
        open_end: the line broke off, or another record follows: the end may be missing.
    """

    format: Format
    start: int
    text: str
    anchored: int
    prefix: Prefix
    spans: tuple[Span, ...]
    values: dict[str, str]
    partial: bool
    cut: bool
    open_end: bool


def clock_of(stamp: str) -> str:
    """Name the way a stamp is written: clock, date, epoch, fraction or syslog."""
    if stamp[0].isalpha():
        return "syslog"
    if ":" not in stamp:
        return "epoch"
    if len(stamp) < 19 or stamp[2] == ":":
        return "clock"
    return "date" if len(stamp) == 19 and stamp[4] == "-" and stamp[10] == " " else "fraction"


def _spread(text: str) -> str:
    """Return a pattern for texts that differ from `text` in their numbers only."""
    parts = _NUMBERS.split(text)
    out = []
    for k, part in enumerate(parts):
        if k % 2 == 0:
            out.append(escape(part))
        else:
            out.append("[0-9]+" if part.isdigit() else "[0-9a-f-]+")
    return "".join(out)


def escape(text: str) -> str:
    """Escape `text` for both Python's and Polars' regular expressions."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def unwrap(line: str) -> tuple[str | None, str]:
    """Take off what a container or a cluster puts before every line.

    Returns:
        What the wrapper says about the writer, and the text as the server printed it.
    """
    stream, pos = None, 0
    while pos < len(line):
        for wrapper in formats.wrappers():
            m = wrapper.pattern.match(line, pos) if wrapper.transport else None
            if m and m.end() > pos:
                stream = stream or m.groupdict().get("stream")
                pos = m.end()
                break
        else:
            break
    text = line[pos:]
    if text.startswith("{"):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return stream, text
        for key in ("log", "message", "msg", "line", "MESSAGE"):
            if isinstance(record.get(key), str):
                return stream, str(record[key]).rstrip("\n")
    return stream, text


def read_prefix(text: str, after: str = "", after_at: int = 0) -> Prefix | None:
    """Read what stands before a message.

    Args:
        text: the line up to its message.
        after: text behind the message, where a JSON wrapper may keep its stamp.
        after_at: where `after` starts, counted like `text`.

    Returns:
        None where the message is quoted text and not a record of the server's own.
    """
    if _ECHO.search(text):
        return None
    found = _Found()
    pos = _read_wrappers(text, found)
    own = _find_own(text, pos)
    mark = own or _GPU.search(text, pos)
    rest = text[pos : mark.start()] if mark else text[pos:]
    is_json = _KEYED.search(rest) or (rest.lstrip()[:1] in tuple('{["') and _LISTED.search(rest))
    if mark is None:
        if rest.strip() and not is_json and not _benign(rest):
            return None
    elif not is_json and (len(rest) > MAX_REST or _QUOTES & set(rest)):
        return None
    if own is not None:
        between = text[own.end() :]
        if between and not _benign(between):
            return None
        found.take_own(own, text)
    elif mark is not None:
        found.add("gpu_id", mark.span(1), "[0-9]+", mark[1])
    if is_json or (own is None and rest):
        texts = [(rest, pos), *([(after, after_at)] if is_json else [])]
        _read_loose(texts, found, own=own is not None)
    stamp = found.values.get("stamp")
    return Prefix(
        spans=tuple(sorted(found.spans)),
        values=found.values,
        clock=clock_of(stamp) if stamp else None,
        own=own is not None,
        zone=found.zone,
        wrapper_stamp=found.wrapper_stamp,
        json=bool(is_json),
        text=text[mark.start() : mark.end()] if mark else "",
    )


@dataclass(slots=True)
class _Found:
    """What was found of a prefix so far."""

    spans: list[Span] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    zone: str | None = None
    wrapper_stamp: str | None = None

    def add(self, name: str, extent: tuple[int, int], pattern: str, value: str) -> None:
        self.spans.append(Span(*extent, name, pattern))
        self.values[name] = value

    def take_stamp(self, extent: tuple[int, int], stamp: str) -> None:
        """Take a stamp in place of the one found before it."""
        self.spans = [s for s in self.spans if s.name != "stamp"]
        self.add("stamp", extent, _stamp_pattern(stamp), stamp)

    def take_own(self, own: re.Match[str], text: str) -> None:
        """Take SGLang's own stamp and the ranks behind it."""
        self.spans = [s for s in self.spans if s.end <= own.start()]
        self.take_stamp(own.span("stamp"), own["stamp"])
        for rank in _RANK.finditer(text, own.start("tags"), own.end("tags") + 1):
            self.add(f"{rank[1].lower()}_rank", rank.span(2), "-?[0-9]+", rank[2])


def _read_wrappers(text: str, found: _Found) -> int:
    """Read the known wrappers at the start of a line; return where they end."""
    pos = 0
    while pos < len(text):
        for wrapper in formats.wrappers():
            m = wrapper.pattern.match(text, pos)
            if m and m.end() > pos:
                break
        else:
            break
        groups = m.groupdict()
        if wrapper.loose:
            found.spans.append(Span(m.start(), m.end(), None, wrapper.loose))
        if groups.get("stamp"):
            found.take_stamp(m.span("stamp"), groups["stamp"])
            found.wrapper_stamp = groups["stamp"]
            found.zone = groups.get("zone") or found.zone
        if groups.get("stream") and "stream" not in found.values:
            stream = groups["stream"]
            found.add("stream", m.span("stream"), _stream_pattern(stream), stream)
        pos = m.end()
    return pos


def _find_own(text: str, pos: int) -> re.Match[str] | None:
    """Find SGLang's own stamp, the last one before the message.

    Without bracket and ranks it is taken only where nothing else stands before it.
    """
    own = None
    for m in _OWN.finditer(text, pos):
        if m["open"] or m.start() == pos or _RANKS.fullmatch(m["tags"]):
            own = m
    return own


def _benign(between: str) -> bool:
    """Whether text before a message is a logger's, not a sentence that quotes a message."""
    return (
        len(between) <= MAX_REST
        and not _QUOTES & set(between)
        and _DELIMITED.search(between) is not None
    )


def _read_loose(texts: list[tuple[str, int]], found: _Found, *, own: bool) -> None:
    """Look for a stamp and a stream in text that no wrapper explains.

    The last stamp before the message wins, since it is the innermost logger's; JSON may have
    it after the message.

    Args:
        texts: where to look, with the place of each in the line.
        found: what was found so far.
        own: whether SGLang's own stamp is among it, which wins over all others.
    """
    for pattern in (_ANY_STAMP, _ANY_CLOCK):
        for k, (text, base) in enumerate(texts):
            stamps = list(pattern.finditer(text))
            if not stamps or found.wrapper_stamp:
                continue
            m = stamps[0 if k else -1]
            found.wrapper_stamp = m[0]
            zone = _ZONE.match(text, m.end())
            found.zone = zone[1] if zone else found.zone
            if not own:
                found.take_stamp((base + m.start(), base + m.end()), m[0])
    for text, base in texts:
        epoch = _EPOCH.search(text) if "stamp" not in found.values else None
        if epoch:
            found.take_stamp((base + epoch.start(1), base + epoch.end(1)), epoch[1])
            found.zone = "UTC"
        s = _JSON_STREAM.search(text)
        if s and "stream" not in found.values:
            extent = (base + s.start(1), base + s.end(1))
            found.add("stream", extent, "[A-Za-z0-9_./@:-]+", s[1])


def _stamp_pattern(stamp: str) -> str:
    """Return a pattern for stamps written like `stamp`, fraction of any length."""
    head, dot, _ = re.match(r"([^.,]*)([.,]?)(.*)", stamp).groups()  # type: ignore[union-attr]
    head = re.sub(r"[0-9]+", lambda m: f"[0-9]{{{len(m[0])}}}", head.replace("  ", " +"))
    head = re.sub(r"^[A-Z][a-z]{2} \+?", "[A-Z][a-z][a-z] +", head)
    head = head.replace("[A-Z][a-z][a-z] +[0-9]{1} ", "[A-Z][a-z][a-z] +[0-9]+ ")
    head = head.replace("[A-Z][a-z][a-z] +[0-9]{2} ", "[A-Z][a-z][a-z] +[0-9]+ ")
    return head + (f"[{dot}][0-9]+" if dot else "")


def _stream_pattern(stream: str) -> str:
    """Return a pattern for names like `stream`: the same words, with the same blanks."""
    return " ".join(
        '[^ |)\\]"]+' if re.fullmatch(r"[^ |)\]\"]+", word) else _spread(word)
        for word in stream.split(" ")
    )


class Reader:
    """Reads single lines against a set of formats.

    Args:
        known: the formats to look for.
    """

    def __init__(self, known: Sequence[Format]) -> None:
        self.formats = tuple(known)
        self._by_literal: dict[str, list[int]] = {}
        for k, fmt in enumerate(self.formats):
            for literal in fmt.find:
                self._by_literal.setdefault(literal.decode(), []).append(k)
        self._anchors: dict[tuple[int, ...], re.Pattern[str]] = {}

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
        done = 0
        at = 0
        anchors = self._anchor_pattern(text)
        while anchors and (m := anchors.search(text, at, done + MAX_PREFIX)):
            at = m.end()
            start = _own_start(text, done, m.start()) if found else 0
            if start is None:
                continue
            prefix = read_prefix(
                text[start : m.start()], "" if found else text[m.end() :], m.end() - start
            )
            if prefix is None:
                if found:
                    continue
                break
            fmt = self.formats[int(str(m.lastgroup)[1:])]
            if found and found[0][3].json:
                prefix = replace(prefix, json=True)
            found.append((fmt, start, m.start(), prefix))
            done = m.end()
            if fmt.multiline or fmt.whole or fmt.name == "request_log":
                break  # the rest of the line is its own
        ends = [f[1] for f in found[1:]] + [len(text)]
        return [
            _read_record(fmt, text, start, at, end, prefix, text != line or end < len(text))
            for (fmt, start, at, prefix), end in zip(found, ends[: len(found)], strict=True)
        ]


def _own_start(text: str, start: int, at: int) -> int | None:
    """Return where the stamp or GPU tag starts that ends right at a message."""
    own = None
    for own in _OWN.finditer(text, start, at):  # noqa: B007
        pass
    if own is not None and own.end() == at:
        return own.start()
    gpu = _GPU.search(text, start, at)
    return gpu.start() if gpu else None


def _read_record(
    fmt: Format, text: str, start: int, at: int, end: int, prefix: Prefix, open_end: bool
) -> Reading:
    body = text[at:end]
    if fmt.whole and prefix.json:
        body = _json_text(text, at) or body
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
                pattern = _spread(body[v0 : min(v1, anchored)]) + pattern * (v1 > anchored)
            spans.append(Span(at + v0, at + v1, f.column, pattern))
    left = _left_over(body, explained, prefix.json)
    cut = False
    if any(n not in values for n in fmt.needs):
        parts = [p for p in re.split(r"[,.] ", body.rstrip(", ")) if p]
        cut = (
            open_end
            or all(n not in values for n in fmt.needs)
            or len(spans) < 4
            or not _LABELLED.fullmatch(parts[-1])
        )
    message = body
    if prefix.json:
        message = body[:anchored] + _json_message(body[anchored:])
    lo, hi = (0, len(RELEASES) - 1) if open_end else _releases(fmt, values, message, prefix.text)
    values |= {"release_lo": str(lo), "release_hi": str(hi)}
    quoted = not prefix.json and fmt.frame == "batch" and bool(re.match(r"\s*[\"'\\]", left))
    return Reading(
        format=fmt,
        start=start,
        text=text[start:end],
        anchored=at + anchored - start,
        prefix=prefix,
        spans=tuple(sorted(spans)),
        values=values,
        partial=fmt.frame == "batch" and re.search(r"\w", left) is not None,
        cut=cut or quoted,
        open_end=open_end,
    )


def _releases(fmt: Format, values: dict[str, str], message: str, prefix: str) -> tuple[int, int]:
    """Tell the first and the last release that print such a line."""
    shape = message if len(message) < MAX_PREFIX else message[:MAX_REST]
    return _bounds(fmt, frozenset(values), shape.translate(_ZEROS), prefix.translate(_ZEROS))


@lru_cache(2048)
def _bounds(fmt: Format, columns: frozenset[str], message: str, prefix: str) -> tuple[int, int]:
    rules = [r for r in fmt.rules if r.fits(columns, message, fmt.frame)]
    rules += [r for r in formats.prefix_rules() if r.fits(columns, prefix, fmt.frame)]
    return bounds(r.releases for r in rules)


def _left_over(body: str, explained: list[tuple[int, int]], json: bool) -> str:
    """Return what no field of the format explains, without the wrapper's end."""
    out, pos = [], 0
    for start, end in sorted(explained):
        if start > pos:
            out.append(body[pos:start])
        pos = max(pos, end)
    last = body[pos:]
    if json:
        last = _json_message(last)
    out.append(last)
    return "".join(out).strip(" ,.;\r\n\t[]()")


def _value_pattern(kind: str, value: str) -> str:
    if kind == "text":
        return "[^\\x00]*"
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


@dataclass(eq=False, slots=True)
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
    hits: int = 0


def layout_of(reading: Reading) -> Layout | None:
    """Derive the layout of a record that has a line for itself; None where it has none."""
    if reading.cut or reading.open_end or reading.format.whole:
        return None
    text, pos = reading.text, 0
    pattern: list[str] = []
    columns: list[str] = []
    pieces: list[str] = []
    for span in sorted((*reading.prefix.spans, *reading.spans)):
        if span.start < pos:
            return None
        pattern.append(_spread(text[pos : span.start]))
        pieces += _NUMBERS.split(text[pos : span.start])[::2]
        if span.name is None:
            pattern.append(f"(?:{span.pattern})")
        else:
            pattern.append(f"({span.pattern})")
            columns.append(span.name)
        pos = span.end
    if pos < reading.anchored:
        pattern.append(_spread(text[pos : reading.anchored]))
        pieces += _NUMBERS.split(text[pos : reading.anchored])[::2]
        pos = reading.anchored
    tail = text[pos:]
    if reading.format.multiline or reading.format.frame == "request":
        if any(f.column not in reading.values for f in reading.format.fields):
            return None  # on another line of this layout, the rest may hold it
        end = r"[^\x00]*$" if pos < len(text) else "$"
    elif reading.prefix.json:
        # A second record on the line would bring a `#`.
        end = _spread(_json_message(tail)) + r'[\\"][^#\x00]*$'
    else:
        # A comma at the end tells releases apart, blanks do not.
        body = tail.rstrip(", ")
        end = _spread(body) + (" *, *$" if "," in tail[len(body) :] else " *$")
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
        pattern += f"{_spread(text[pos : span.start])}({span.pattern})"
        pos = span.end
    return Cells(
        head=parts[0][STAMP_END:],
        head_pattern=pattern + _spread(text[pos : len(parts[0])]) + "$",
        ranks=tuple(str(s.name) for s in ranks),
        columns=tuple(columns),
        tail=parts[-1] if not parts[-1].strip() else None,
    )


def _is_cell(span: Span) -> bool:
    """Whether a value is a number or a flag, which casting tells from all else."""
    return span.pattern in ("-?[0-9]+", r"-?[0-9]+\.[0-9]+", "True|False")


def _json_text(text: str, at: int) -> str | None:
    """Return the message at `at` in a JSON string, or in a string inside one, as it was."""
    before = text[: text.rfind('"', 0, at)]
    slashes = len(before) - len(before.rstrip("\\"))
    message = text[at:]
    try:
        for _ in range(slashes.bit_length() + 1):
            message = _JSON.raw_decode(f'"{message}')[0]
    except ValueError:
        return None
    return message.rstrip("\n")


def _json_message(tail: str) -> str:
    """Return the part of `tail` before the end of the JSON string that holds the message."""
    return re.split(r'\\*[nr]?\\*"', tail, maxsplit=1)[0]


def zone_of(prefix: Prefix) -> str | None:
    """Tell the zone of a line's stamp from the wrapper's clock beside it.

    Returns:
        `UTC` or an offset like `+08:00`; of SGLang's own clock where both stand on the line,
        else of the wrapper's. None where it cannot be told.
    """
    if prefix.zone is None:
        return None
    sign = re.fullmatch(r"([+-])([0-9]{2}):?([0-9]{2})", prefix.zone)
    minutes = 0
    if sign:
        minutes = (int(sign[2]) * 60 + int(sign[3])) * (-1 if sign[1] == "-" else 1)
    if prefix.own and prefix.wrapper_stamp and prefix.clock in ("date", "fraction"):
        try:
            own = datetime.fromisoformat(prefix.values["stamp"].replace(",", ".")[:19])
            other = datetime.fromisoformat(prefix.wrapper_stamp[:19])
        except ValueError:
            return None
        quarters = round((own - other).total_seconds() / 900)
        minutes += quarters * 15
    if abs(minutes) > 14 * 60:
        return None
    if minutes == 0:
        return "UTC"
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
