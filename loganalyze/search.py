"""Blocks of bytes to the few lines worth reading.

Most lines of most logs are access lines. A block of them is searched for bytes that they do
not hold (`MARKS`), and only the lines around the finds are cut out; a block with a mark on many
lines is kept whole and split later, which is cheaper than thousands of finds. Both give the
same lines to `parse.py`.

Why two ways (2026): hopping from find to find costs 570 ns a line, splitting a whole block
110 ns; per byte without a find, SIMD search costs a tenth of splitting.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, repeat
from typing import Any, cast

from loganalyze import records, sources
from loganalyze.formats import Format
from loganalyze.lines import CUT

#: Bytes of which the lines of every format but `access` hold one, and access lines hardly
#: ever do: one search finds all other lines.
MARKS = b"#,(=!'VCRqxy"
#: On every statistics line but the decode lines before 0.1.17; `parse` parts lines by it.
BATCH = b" batch"
#: A block is dense where it has a mark on more than one line in so many.
MARKED = 4
#: Having found a block dense by its marks, so many are taken for dense without a look.
STICKY = 7
#: A longer line keeps its head and its tail: whatever stands between them is a prompt.
LONG, HEAD, TAIL = 1 << 13, 5 << 10, 2 << 10
#: But for records that lost their line ends: up to this size they are read whole.
GLUED = 1 << 16
#: Text after a line that is always at hand when it is looked at, for records of many lines.
AHEAD = 1 << 14
#: Literals that start with the same bytes are searched for at once, by so many of them.
SHARED = 12
#: An echoed prompt of many lines is followed this far.
MAX_REQUEST = 1 << 20

#: On an access line with a status of 4xx or 5xx.
FAILED = (b'" 4', b'" 5')
#: On every access line.
ACCESS = b" HTTP/1."
#: On every line of --log-requests.
REQUEST = b": obj="
#: On the line of the server's arguments.
ARGUMENTS = b"server_args="
#: What most of those say before it; it has a mark.
RECEIVE = b"Receive"
#: On every line of JSON.
JSON = b'":'
MARK = re.compile(b"[" + re.escape(MARKS) + b"]")
_BLANK = bytes(10 if byte == 10 else 32 for byte in range(256))
#: What a prompt ends with: its quote, then the other fields of the request or, where the request
#: finished, of the answer, which has a text of its own. Behind them a wrapper may put what it
#: likes. Code in a prompt has lines like that, too, but not these names.
_RECEIVE_END = re.compile(
    rb"\\?[\"'][\]}]*, (?:(?:rid|stream|sampling_params|input_ids|input_embeds|image_data|"
    rb"return_\w+|log\w+|top_logprobs_num|token_ids_\w+|modalities|lora_path|session\w+)=.*[)}]"
    rb"|'(?:model|messages|index|role)': .*\})(?:\W.*)?$"
)
_FINISH_END = re.compile(
    rb"(?:[\"'\]][\]}]*, '?(?:meta_info|output_ids)'?: .*|\), out=\{[^\"']*)\}(?:\W.*)?$"
)
#: What tells that a release prints each request on a line of its own: it quotes as Python's repr
#: does, or its statistics are of a later form.
_ONE_LINE = re.compile(
    rb": obj=\w+\(\w+=\\*'|(?:Decode|Prefill) batch(?:,| \[)|\bcuda graph: (?:Tru|Fals)e"
)
#: What stands before the quote of a prompt or of an answer. A string may end in `=` as well.
_OPENS = re.compile(rb"(?:[({]|, )'?(?:text|prompt|content)'?(?:=|: )\\*$")
#: A request that was logged as JSON, which keeps to its line: its prompt may quote another.
_EVENT = re.compile(rb"event[\\\"]{1,16}: ?[\\\"]{1,16}request\.")
#: Of a logged request, the quote of its first text: Python's repr has single ones.
_FIRST_QUOTE = re.compile(rb"[\"']")
#: What table rows, Markdown, HTML and Ray put behind a line.
_WRAPPED_END = re.compile(
    rb"[\"',;`| \t]{1,8}$|(?:</[a-z]+>){1,4}$"
    rb"|(?:\x1b\[32m)?\s{0,4}\[repeated [0-9]+x across cluster\](?:\x1b\[0m)?$"
)
#: What a shell says of a server that was killed, as the last word of a log: bare, behind what a
#: container or a cluster puts before each line, or in a record of JSON.
_LAST_WORD = re.compile(
    rb"(?:^|\n)(?:[^\n\"]{1,160}(?:[|\]] +| std(?:err|out) F ))?"
    rb"(?:Killed|Segmentation fault|Aborted)(?=\s*$)"
    rb"|\"(?:log|message|MESSAGE|msg|line)\" ?: ?\"(?:Killed|Segmentation fault|Aborted)"
    rb"(?=(?:\\[nr])*\"[^\n]*\s*$)"
)
#: A request as the server prints it, but for those of OpenAI's kind.
_CALL = re.compile(rb": obj=[A-Za-z]+\(")
_CELL_END = re.compile(rb'(?<!["\\])"(?:[,;\t][^"]{0,200})?\s*$')
_JSON_END = re.compile(rb'(?:\\[nr])*(?<!\\)"(?:,.*)?[}\]]{1,16}\s*$')


@dataclass(slots=True)
class Cut:
    """What the search found in a stretch of a log.

    Attributes:
        lines: single lines, or records of several lines joined by newlines.
        line_nos: their (first) line numbers.
        more: how many further lines each record spans.
        dense: blocks to be split, each with the number of its first line and of its lines.
        odd: what was seen that needs cleaning: colour, return, json.
        n_access: access lines seen.
        n_requests: request logs seen; n_inside: further lines that they span.
        size: bytes held.
        last_access: number and text of the last access line, at the end of a log whose access
            lines are only counted: nobody prints anything after it.
    """

    lines: list[bytes] = field(default_factory=list)
    line_nos: list[int] = field(default_factory=list)
    more: list[int] = field(default_factory=list)
    dense: list[tuple[int, int, memoryview]] = field(default_factory=list)
    odd: set[str] = field(default_factory=set)
    n_access: int = 0
    n_requests: int = 0
    n_inside: int = 0
    size: int = 0
    last_access: tuple[int, bytes] | None = None


def _view(data: bytes) -> bytes:
    """Return `data` with searches that use all of the machine."""
    return cast("bytes", sources.Str(data)) if sources.Str is not None else data


class Searcher:
    """Cuts lines out of consecutive blocks of one log.

    Args:
        formats: what to look for.
        requests: whether access lines and request logs are wanted as lines, or only counted
            (then access lines of refused and failed ones, status 4xx and 5xx, are still cut out).
    """

    def __init__(self, formats: Sequence[Format], *, requests: bool) -> None:
        self._requests = requests
        wanted = [f for f in formats if requests or f.frame != "request"]
        self.literals = tuple(sorted({n for f in wanted for n in f.find}))
        if not requests:
            self.literals += FAILED
        several = [f for f in formats if f.multiline]
        self._heads = tuple(sorted({n for f in several for n in f.find}))
        self._anchors = re.compile("|".join(f.anchor for f in several).encode())
        self._head_starts = {head[:SHARED] for head in self._heads}
        #: Of those that a line without any mark may hold.
        self._unmarked_starts = {head[:SHARED] for head in self._heads if not MARK.search(head)}
        self._carry, self._carry_line, self._carry_lines = b"", 1, 0
        self._sticky = 0
        self._one_line = False
        self.cut = Cut()

    def take(self) -> Cut:
        """Return what was found since the last call."""
        cut, self.cut = self.cut, Cut()
        return cut

    def feed(self, block: sources.Block) -> None:
        """Search a block, but for its last few lines, which wait for what follows them."""
        data = shorten(block.data)
        if self._carry:
            data = self._carry + data
        self._scan(data, self._carry_lines + block.n_lines, last=False)

    def finish(self) -> None:
        """Search what is left at the end of the log."""
        data = _LAST_WORD.sub(rb"\g<0>!", self._carry)  # it has no mark of its own
        if data and not data.endswith(b"\n"):  # half-written, unless it is all there is
            alone = self._carry_line == 1 and b"\n" not in data
            data += b"\n" if alone else CUT.encode() + b"\n"
        self._scan(data, self._carry_lines, last=True)

    def _scan(self, data: bytes, n_lines: int, *, last: bool) -> None:
        end = len(data) if last else data.rfind(b"\n", 0, max(len(data) - AHEAD, 0)) + 1
        first_line, cut = self._carry_line, self.cut
        if first_line == 1:
            self._one_line = _ONE_LINE.search(data) is not None
        data, end = self._skip_requests(data, end, last=last)
        self._carry = data[end:]
        self._carry_lines = self._carry.count(b"\n") + (
            bool(self._carry) and not self._carry.endswith(b"\n")
        )
        n_lines -= self._carry_lines
        self._carry_line = first_line + n_lines
        if not end:
            return
        view = _view(data)
        n_access = view.count(ACCESS, 0, end)
        spans = self._find_lines(data, view, end, n_lines, n_access)
        starts = sorted(spans or ())
        lines = [data[start : spans[start]] for start in starts] if spans else []
        if spans is None:
            heads = self._heads_in(data, view, end, self._head_starts)
        else:
            heads = self._heads_in(data, view, end, self._unmarked_starts)
            heads += self._heads_among(starts, lines)
        records = self._read_records(data, heads)
        for start, (stop, _) in records.items():
            n_access -= data.count(ACCESS, start, min(stop, end))
            if stop > end:  # of what waits, this was read
                self._carry = data[end:stop].translate(_BLANK) + data[stop:]
        cut.n_access += n_access
        if records and (spans is None or last):
            data = _without(data, records)
        if last and not self._requests and (at := data.rfind(ACCESS)) >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            line = data[start : data.find(b"\n", at)]
            cut.last_access = first_line + data.count(b"\n", 0, start), line
            cut.odd |= _oddities(line)
        if spans is None:
            cut.dense.append((first_line, n_lines, memoryview(data)[:end]))
            cut.size += end
            cut.odd |= _oddities(_view(data))
        self._add_lines(view, first_line, starts, lines, records)

    def _heads_in(self, data: bytes, view: bytes, end: int, starts: Iterable[bytes]) -> list[int]:
        """Return where the lines start on which a record of several lines begins."""
        found = []
        for shared in starts:
            at = view.find(shared, 0, end)
            while at >= 0:
                if data.startswith(self._heads, at):
                    found.append(data.rfind(b"\n", 0, at) + 1)
                at = view.find(shared, at + 1, end)
        return found

    def _heads_among(self, starts: list[int], lines: list[bytes]) -> list[int]:
        """Return which of the lines begin a record of several."""
        text = b"\n".join(lines)
        found = self._heads_in(text, _view(text), len(text), self._head_starts)
        ends = list(accumulate(len(line) + 1 for line in lines)) if found else []
        return [starts[bisect_right(ends, at)] for at in found]

    def _read_records(self, data: bytes, heads: list[int]) -> dict[int, tuple[int, bytes]]:
        """Read the records of several lines: where each starts, where it ends, its text."""
        found: dict[int, tuple[int, bytes]] = {}
        stop = 0
        for start in sorted(set(heads)):
            if start >= stop:  # a traceback may hold another one
                line_end = data.find(b"\n", start)
                found[start] = stop, _ = records.read(data, start, line_end, self._anchors)
        return found

    def _find_lines(
        self, data: bytes, view: bytes, end: int, n_lines: int, n_access: int
    ) -> dict[int, int] | None:
        """Find the lines that may be records: where each starts and ends.

        Returns:
            None where there are so many that the block is better split than searched.
        """
        most = n_lines // MARKED
        if self._requests and n_access > most:
            return None
        if self._sticky:
            self._sticky -= 1
            return None
        spans = _hits(_marks(data, view), MARKS, data, end, most)
        if len(spans) > most:
            self._sticky = STICKY
            return None
        for access in (ACCESS,) if self._requests else FAILED:
            spans |= _hits(view.find, access, data, end)
        return spans

    def _add_lines(
        self,
        view: bytes,
        first_line: int,
        starts: list[int],
        lines: list[bytes],
        records: dict[int, tuple[int, bytes]],
    ) -> None:
        """Number what was found, and keep it."""
        for start, (stop, text) in records.items():
            inside = slice(bisect_left(starts, start), bisect_left(starts, stop))
            starts[inside], lines[inside] = [start], [text]
        if not starts:
            return
        more = [0] * len(starts)
        for start, (stop, _) in records.items():
            more[bisect_left(starts, start)] = view.count(b"\n", start, stop) - 1
        newlines = map(view.count, repeat(b"\n"), [0, *starts], starts)
        cut = self.cut
        cut.lines += lines
        cut.line_nos += islice(accumulate(newlines, initial=first_line), 1, None)
        cut.more += more
        text = b"\n".join(lines)
        cut.size += len(text)
        cut.odd |= _oddities(_view(text))

    def _skip_requests(self, data: bytes, end: int, *, last: bool) -> tuple[bytes, int]:
        """Empty logged prompts: those that span several lines, and all where none is wanted.

        Releases up to 0.4.1.post4 print prompts raw, as text="..."; Python's repr keeps to its
        line, but for users who undo that.

        Returns:
            The data, with as many lines as before, and how much of it can be looked at yet.
        """
        view, kept, parts, told = _view(data), 0, list[bytes](), 0
        at = view.find(REQUEST, 0, end)
        if at < 0:
            return data, end
        may_return = b"\r" in data
        while at >= 0:
            stop = data.find(b"\n", at)
            if _is_open(data, at, stop):
                start = data.rfind(b"\n", 0, at) + 1
                self._one_line |= _ONE_LINE.search(data, told, start) is not None
                told = start
                raw = not self._one_line
                close = _request_end(data, at, stop + 1, start + MAX_REQUEST, raw=raw)
                if close is None and not last and len(data) - start < MAX_REQUEST:
                    end = start
                    break
                if close and close > stop + 1:
                    inside = data.count(b"\n", stop, close - 1)
                    closing = data[data.rfind(b"\n", 0, close - 1) + 1 : close - 1][-TAIL:]
                    rest = _end_pattern(data, at).search(_JSON_END.sub(b"", closing))
                    filler = (rest[0] if rest else b"") + b"\n" * inside
                    if (behind := data.find(b"\r", at, stop)) >= 0:
                        stop = behind  # in a prompt
                    data = data[:stop] + filler + data[close - 1 :]
                    end = max(end - (close - 1 - stop) + len(filler), stop + len(filler) + 1)
                    view = _view(data)
                    stop = data.find(b"\n", stop)
                    self.cut.n_inside += inside
            # Behind a return stands another line.
            if not self._requests and not (may_return and _returns(data, at, stop)):
                # What a line begins with ends the record above it.
                word = len(RECEIVE) if data.endswith(RECEIVE, kept, at) else 0
                parts.append(data[kept : at - word])
                kept = stop
            at = view.find(REQUEST, stop, end)
        if self._requests:
            return data, end
        self.cut.n_requests += view.count(REQUEST, 0, end)
        if not parts:
            return data, end
        parts.append(data[kept:])
        whole = b"".join(parts)
        return whole, end - (len(data) - len(whole))


def _hits(
    find: Callable[[bytes, int, int], int],
    what: bytes,
    data: bytes,
    end: int,
    most: int = sys.maxsize,
) -> dict[int, int]:
    """Return start and end of the lines on which `find` finds `what`; stops beyond `most`."""
    spans: dict[int, int] = {}
    at = find(what, 0, end)
    while at >= 0 and len(spans) <= most:
        stop = data.find(b"\n", at)
        spans[data.rfind(b"\n", 0, at) + 1] = stop
        at = find(what, stop, end)
    return spans


def _marks(data: bytes, view: bytes) -> Callable[[bytes, int, int], int]:
    """Return what finds the first of the marks."""
    if sources.Str is not None:
        return cast("Callable[[bytes, int, int], int]", cast("Any", view).find_first_of)

    def find(_: bytes, start: int, end: int) -> int:
        m = MARK.search(data, start, end)
        return m.start() if m else -1

    return find


def _without(data: bytes, records: dict[int, tuple[int, bytes]]) -> bytes:
    """Return the data with blanks in place of the records; lines stay where they are."""
    out, at, whole = list[bytes | memoryview](), 0, memoryview(data)
    for start, (stop, _) in records.items():
        out += [whole[at:start], data[start:stop].translate(_BLANK)]
        at = stop
    return b"".join([*out, whole[at:]])


def _returns(data: bytes, at: int, stop: int) -> bool:
    """Whether the line around `at` that ends at `stop` holds a carriage return inside."""
    return data.find(b"\r", data.rfind(b"\n", 0, at) + 1, stop - 1) >= 0


def _is_open(data: bytes, at: int, stop: int) -> bool:
    """Whether a request logged at `at`, on a line that ends at `stop`, goes on below."""
    if data[stop - 1] in b")]" and not _is_raw(data, at, stop):  # like most
        return False
    if not data.endswith((RECEIVE, b"Finish", b"OpenAI"), 0, at):
        return False
    line, start = data[at:stop], data.rfind(b"\n", 0, at) + 1
    if _EVENT.search(data, start, at):
        return False
    if data[stop - 1] in b")]":
        return True
    if not (line.endswith(b"}") and data[start] in b"[I"):
        line = line.rstrip()
        cut = max(0, len(line) - TAIL)
        cut -= len(line[:cut]) - len(line[:cut].rstrip(b"\\"))  # keep what escapes a quote
        tail = line[cut:]
        if (data.count(b'"', start, at) - data.count(b'\\"', start, at)) % 2:
            # It stands in a string or a cell; else only the prompt holds JSON.
            tail = _CELL_END.sub(b"", _JSON_END.sub(b"", tail.rstrip(b", \t]")))
        tail = tail[:-80] + _WRAPPED_END.sub(b"", tail[-80:])
        line = line[:cut] + tail
        if not line.endswith((b")", b"}", b"]")):
            return _end_pattern(data, at).search(line[-TAIL:]) is None
    # JSON in JSON, or in a cell, ends so; so does a prompt of JSON where only one string is open.
    inner = b'""' if line.endswith(b'""}') else b'\\"'
    in_string = line.endswith(inner + b"}") and data.count(inner, start, at) % 2 == 1
    if line.endswith(b"}") and not in_string and _CALL.match(line):
        # It ends an answer, headers, or an object in the prompt.
        behind = b", out=" if data.endswith(b"Finish", start, at) else b", headers="
        if behind not in line:
            return True
    line = line.replace(b'""', b'"')  # as a cell doubles them
    return _is_raw(line, 0, len(line))


def _is_raw(text: bytes, at: int, stop: int) -> bool:
    """Whether the last quote between `at` and `stop` opens a text."""
    for mark in (b"'", b'"'):
        quote = text.rfind(mark, at, stop)
        # The first is cheaper, and hardly ever true.
        if (
            quote > at
            and text[quote - 1] in b"= \\"
            and _OPENS.search(text, max(at, quote - 16), quote)
        ):
            return True
    return False


def _end_pattern(data: bytes, at: int) -> re.Pattern[bytes]:
    return _FINISH_END if data.endswith(b"Finish", 0, at) else _RECEIVE_END


def _request_end(data: bytes, at: int, start: int, limit: int, *, raw: bool) -> int | None:
    """Return the end of the line on which a request of several lines ends.

    A raw prompt may hold any line. One in Python's repr holds lines only where somebody undid
    it, and then shows its end; without one it was cut, or something stands behind it.

    Args:
        data: lines of a log.
        at: where the request is logged.
        start: where the line below begins.
        limit: where to give up.
        raw: whether it may be of a release that prints prompts raw.

    Returns:
        0 where the request does not go on; None where what is there does not tell it.
    """
    quote = _FIRST_QUOTE.search(data, at, start)
    ends = _end_pattern(data, at)
    below = start
    while start < min(limit, len(data)):
        stop = data.find(b"\n", start)
        if stop < 0:
            return None
        line = data[start:stop]
        if REQUEST in line or ARGUMENTS in line[:HEAD]:
            raw = raw and quote is not None and quote[0] == b'"'
            return start if raw and not _ONE_LINE.search(data, below, stop) else 0
        if ends.search(line[-TAIL:].rstrip()):
            return stop + 1
        start = stop + 1
    return None


def shorten(data: bytes) -> bytes:
    """Shorten the long lines among whole lines."""
    out, kept, at = [], 0, 0
    while at + LONG < len(data):
        newline = data.rfind(b"\n", at, at + LONG + 1)
        if newline < 0:
            newline = data.find(b"\n", at + LONG)
            newline = len(data) if newline < 0 else newline
            out += [data[kept:at], shorten_line(data[at:newline])]
            kept = newline
        at = newline + 1
    return b"".join([*out, data[kept:]]) if out else data


def shorten_line(line: bytes) -> bytes:
    """Keep the head and the tail of a long line.

    Kept whole are the server's arguments, and statistics that no request quotes.
    """
    head = line[:HEAD]
    if REQUEST not in head:  # what most long lines are, and it stands at their start
        glued = len(line) <= GLUED and line.find(BATCH, HEAD, -TAIL) >= 0
        if glued or ARGUMENTS in head:
            return line
    return head + line[-TAIL:]


def _oddities(text: bytes) -> set[str]:
    """Name what lines must be cleaned of."""
    odd = set()
    if text.find(b"\x1b") >= 0:
        odd.add("colour")
    if text.find(b"\r") >= 0:
        odd.add("return")
    if text.find(JSON) >= 0 and (text.find(b"\\u00") >= 0 or text.find(b"\\/") >= 0):
        odd.add("json")
    return odd
