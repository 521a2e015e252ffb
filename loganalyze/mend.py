"""Undo what copying did to the text of a log: blanks, escapes, folded lines.

A log that was copied from a web page, a terminal or a mail holds other characters than the
server wrote, or breaks its lines. Which of these happened is told once, by the statistics
lines at the head of the log; a log that nobody touched passes as it is. Folded lines are
joined as `parts` does it: the whole stands on its first line, so line numbers stay.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from loganalyze import sources
from loganalyze.sources import Block

#: Bytes of a log, from its first record on, that show how it is written.
HEAD = 1 << 18
#: So many bytes before the first record wait until it shows how the log is written.
EARLY = 5 << 20
#: On the lines that show how a log writes its records; so many of them are looked at.
TELLING = (
    b" batch",
    b"#running-req",
    b"#retracted_reqs",
    b"max_total_num_token",
    b"server_args=",
    b'"MESSAGE":[',
    b'"MESSAGE": [',
    b'"MESSAGE" : [',
)
TELLING_PATTERN = re.compile(b"|".join(map(re.escape, TELLING)))
TELLING_LINES = 400

#: Text that is folded is at least and at most this wide.
_NARROW, _WIDE = 40, 300
#: Fewer open lines, where most are whole, show no fold.
_FOLDED = 3
#: Of a longer line, the rest is not joined to it.
MAX_LINE = 1 << 15
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_STATISTICS = re.compile(rb"(?:Decode|Prefill?) batch\b.{0,60}?#(?:running-req|new-seq|new-token)")
_LAST_FIELD = b"#queue-req"
_REQUEST_END = (b")", b"}")
_QUOTING = re.compile(rb"(?:> ?)+|[ \t]+")
#: A line that starts like this is no part of the one before.
_START = re.compile(
    rb".{0,80}?\[(?:(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[ T])?[0-9]{2}:[0-9]{2}:[0-9]{2}[.,\] ]"
    rb"|gpu(?:_id)?=)"
    rb"|[>\s]*(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:|INFO: )"
)


def _bytes_array(m: re.Match[bytes]) -> bytes:
    """Return a message that journalctl wrote as the values of its bytes, as text."""
    values = bytes(int(v) & 255 for v in m[1].split(b","))
    return b'"MESSAGE":' + json.dumps(values.decode("utf-8", "replace")).encode()


#: What stands in a text that was copied, and what stood there before.
_REPAIRS: tuple[tuple[re.Pattern[bytes], bytes | Callable[[re.Match[bytes]], bytes]], ...] = (
    (re.compile(rb'"MESSAGE" ?: ?\[ ?((?:[0-9]{1,3}, ?){8,}[0-9]{1,3}) ?\]'), _bytes_array),
    (
        re.compile(
            rb"\xc3\x82\xc2\xa0|\xc2\xa0|\xe2\x80[\x80-\x8a\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
            rb"|&nbsp;|&#160;|(?<=[,:])\t"
        ),
        b" ",
    ),
    (re.compile(rb'"=>(?=["{\[0-9])'), b'":'),  # Ruby's hashes, as Fluent Bit prints them
    (re.compile(rb"\xe2\x80[\x8b-\x8f]|\xe2\x81\xa0|\xef\xbb\xbf"), b""),
    (re.compile(rb"\xef\xbc\x8c"), b", "),
    (re.compile(rb"\xef\xbc\x9a"), b": "),
    (re.compile(rb"&lt;|&#60;"), b"<"),
    (re.compile(rb"&gt;|&#62;"), b">"),
    (re.compile(rb"&quot;|&#34;"), b'"'),
    (re.compile(rb"&#(?:39|x27);|&apos;"), b"'"),
    (re.compile(rb"&amp;|&#38;"), b"&"),
    # Numbers of lines, as `less -N`, `cat -n` and `grep -n` put before them.
    (re.compile(rb"(?m)^ *[0-9]{1,9}(?:[:\t]| {1,2})"), b""),
    # Colours whose escape was spelled out, or lost.
    (re.compile(rb"(?:(?<!\\)\\+(?:x1[bB]|033|e)|#033|\^\[|\xe2\x90\x9b)\[[0-9;]{0,12}m"), b""),
    (re.compile(rb"(?<![\x1bbB])\[[0-9]{1,3}(?:;[0-9]{1,3}){0,4}m"), b""),
)


_NUMBERED = len(_REPAIRS) - 3
_ENTITIES = {k for k, (pattern, _) in enumerate(_REPAIRS) if pattern.pattern.startswith(b"&")}
#: Quotes of the server's own, not of a prompt, as HTML writes them.
_ENTITY = re.compile(
    rb" - (?:&quot;|&#34;)[A-Z]+ /|  File (?:&quot;|&#34;)/"
    rb"|: obj=\w+\(\w+=&(?:quot|#34|#39|#x27);"
    rb"|server_args=[^\n]{0,8192}?=(?:&(?:quot|#34|#39|#x27|apos);|'\{&(?:quot|#34);)"
)
_LINE_NUMBER = re.compile(rb" *([0-9]{1,9})(?:[:\t]| {1,2})")
#: So many lines of a log must be numbered.
_COUNTED = 16

#: Ends a colour; the last of the repairs is done only where it is there.
_RESET = b"[0m"


@dataclass(frozen=True, slots=True)
class Habit:
    """What was done to the text of a log.

    Attributes:
        repairs: indices of `_REPAIRS` to be done.
        width: characters at which its lines are folded; None for no fold.
        words: whether they are folded between words, and lack the blank there.
    """

    repairs: tuple[int, ...] = ()
    width: int | None = None
    words: bool = False

    def __bool__(self) -> bool:
        return bool(self.repairs) or self.width is not None

    def repair(self, data: bytes) -> bytes:
        """Return text with its characters as they were."""
        for k in self.repairs:
            pattern, by = _REPAIRS[k]
            data = pattern.sub(by, data)
        return data


def repaired(line: str) -> str:
    """Return a line with all repairs done that lines of a log may need."""
    data = line.encode()
    for pattern, by in _REPAIRS:
        data = pattern.sub(by, data)
    return data.decode("utf-8", "replace")


def first_telling(data: bytes) -> int:
    """Return where the first line starts that shows how records are written; -1 for none."""
    view = sources.Str(data) if sources.Str is not None else data
    hits = [at for at in map(view.find, TELLING) if at >= 0]
    return data.rfind(b"\n", 0, min(hits)) + 1 if hits else -1


def mend(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a log as if nobody had copied it, `EARLY` before its first record."""
    head, held, menders = b"", list[Block](), list[Mender]()
    size = first = 0
    known = False
    for block in blocks:
        if known:
            yield from menders[0].feed(block) if menders else (block,)
            continue
        start = 0 if head else first_telling(block.data)
        held.append(block)
        if start >= 0:
            first = first if head else size + start
            head += block.data[start : start + HEAD]
        size += len(block.data)
        if len(head) >= HEAD:
            known = True
            yield from _release(held, head[:HEAD], menders, early=first < EARLY)
        elif not head and size >= EARLY:
            yield from held
            held = []
    if not known:
        yield from _release(held, head, menders, early=first < EARLY)
    for mender in menders:
        yield from mender.finish()


def _release(
    held: list[Block], head: bytes, menders: list[Mender], *, early: bool
) -> Iterator[Block]:
    """Yield the blocks that were held for the head, mended where it shows a need."""
    habit = habit_of(head) if head else Habit()
    if not habit:
        yield from held
        return
    mender = Mender(habit)
    if early:
        menders.append(mender)
    for block in held:
        if menders:
            yield from mender.feed(block)
            continue
        start = first_telling(block.data)
        before = block.data[:start] if start >= 0 else block.data
        n_lines = before.count(b"\n") if start >= 0 else block.n_lines
        if before:
            yield Block(before, block.first_line, n_lines, block.n_read if start < 0 else 0)
        if start >= 0:
            menders.append(mender)
            first_line = block.first_line + n_lines
            rest = Block(block.data[start:], first_line, block.n_lines - n_lines, block.n_read)
            yield from mender.feed(rest)


def habit_of(head: bytes) -> Habit:
    """Tell by the statistics at its head what was done to the text of a log."""
    lines: dict[bytes, bytes] = {}  # one of those that differ in their numbers
    alike = Counter[bytes]()
    stop = 0
    for hit in TELLING_PATTERN.finditer(head):
        if hit.start() < stop:
            continue
        stop = head.find(b"\n", hit.end())
        stop = len(head) if stop < 0 else stop
        line = head[head.rfind(b"\n", 0, hit.start()) + 1 : stop][:8192]
        shape = line if b"&#" in line else line.translate(None, b"0123456789")
        lines.setdefault(shape, line)
        alike[shape] += 1
        if alike.total() == TELLING_LINES:
            break
    told = b"\n".join(x for x in lines.values() if b": obj=" not in x and b"server_args=" not in x)
    found = {k for k, (pattern, _) in enumerate(_REPAIRS) if pattern.search(told)}
    if not _is_numbered(head):
        found.discard(_NUMBERED)
    if _ENTITY.search(head):
        found |= _ENTITIES
    repairs = tuple(sorted(found))
    if _RESET not in told:  # `[5m` may be minutes
        repairs = tuple(k for k in repairs if k < len(_REPAIRS) - 1)
    folded = sum(alike[shape] for shape, line in lines.items() if _is_open(line))
    if not folded or (folded < _FOLDED and folded * 4 < alike.total()):
        return Habit(repairs)
    return Habit(repairs, *_fold_of(head))


def _is_numbered(head: bytes) -> bool:
    """Whether the lines of a log are counted at their starts."""
    lines = [line for line in head.split(b"\n", 2 * _COUNTED)[: 2 * _COUNTED] if line]
    numbers = [int(m[1]) for m in map(_LINE_NUMBER.match, lines) if m]
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    return len(numbers) == len(lines) >= _COUNTED and steps == {1}


def _is_open(line: bytes) -> bool:
    """Whether a line lacks the end of its statistics."""
    m = _STATISTICS.search(line)
    return m is not None and line.find(_LAST_FIELD, m.end() - 12) < 0


def _fold_of(head: bytes) -> tuple[int | None, bool]:
    """Tell at how many characters lines are folded, and whether between words only."""
    whole = head if len(head) < HEAD else head[: head.rfind(b"\n") + 1]
    lines = [line.rstrip(b"\r") for line in whole.split(b"\n")]
    widths = [_width(line) for line in lines]
    width = max(widths)
    broken, in_request = [], False
    for k, line in enumerate(lines[:-1]):
        in_request |= b": obj=" in line
        if not in_request and _is_open(line):
            broken.append(k)
        in_request &= not line.endswith(_REQUEST_END)
    if not broken or not _NARROW <= width <= _WIDE:
        return None, False
    starts = frozenset(broken)
    for k in starts:  # up to the line that has the last field
        while (
            k + 2 < len(lines)
            and lines[k + 2]
            and _LAST_FIELD not in lines[k] + lines[k + 1]
            and k + 1 not in starts
            and _START.match(lines[k + 2]) is None
        ):
            k += 1
            broken.append(k)
    if any(_START.match(lines[k + 1]) for k in broken):
        return None, False  # cut off, not folded
    if all(widths[k] == width for k in broken):
        return width, False
    if all(widths[k] + 1 + _width(_first_word(lines[k + 1])) > width for k in broken):
        return width, True
    return None, False


def _width(line: bytes) -> int:
    return len(line.decode("utf-8", "replace"))


def _first_word(line: bytes) -> bytes:
    words = line[_quoted(line) :].split(maxsplit=1)
    return words[0] if words else b""


def _quoted(line: bytes) -> int:
    m = _QUOTING.match(line)
    return m.end() if m else 0


class Mender:
    """Mends the consecutive blocks of one log."""

    def __init__(self, habit: Habit) -> None:
        self._habit = habit
        self._group: list[bytes] = []  # a line, and the places of those that were joined to it
        self._last = b""
        self._first_line = self._n_read = 0

    def feed(self, block: Block) -> list[Block]:
        """Return what is complete: the last line may go on in the next block."""
        data = self._habit.repair(block.data)
        if self._habit.width is None:
            return [block._replace(data=data)]
        self._first_line = self._first_line or block.first_line
        self._n_read += block.n_read
        done: list[bytes] = []
        for raw in _LINE.findall(data):
            line = raw.rstrip(b"\r\n")
            if self._group and self._goes_on(line):
                self._join(raw, line)
            else:
                done += self._group
                self._group = [raw]
            self._last = line
        return self._block(done)

    def finish(self) -> list[Block]:
        """Return what was held back."""
        done, self._group = self._group, []
        return self._block(done)

    def _block(self, lines: list[bytes]) -> list[Block]:
        if not lines:
            return []
        block = Block(b"".join(lines), self._first_line, len(lines), self._n_read)
        self._first_line += len(lines)
        self._n_read = 0
        return [block]

    def _join(self, raw: bytes, line: bytes) -> None:
        """Put the rest of a folded line behind its start, and an empty line in its place."""
        whole = self._group[0]
        text = whole.rstrip(b"\r\n")
        quoted = _quoted(line) if self._habit.words or whole[:1] == b">" else 0
        rest = b" " * self._habit.words + line[quoted:]
        self._group[0] = text + rest + whole[len(text) :]
        self._group.append(raw[len(line) :])

    def _goes_on(self, line: bytes) -> bool:
        """Whether a line is the rest of the one before."""
        whole, last = self._group[0], _width(self._last)
        if not line or not last or len(whole) > MAX_LINE:
            return False
        width = self._habit.width or 0
        word = 1 + _width(_first_word(line)) if self._habit.words else 0
        full = last + word > width if self._habit.words else last == width
        in_request = b": obj=" in whole and not self._last.endswith(_REQUEST_END)
        return full and (in_request or _START.match(line) is None)
