"""Read a log that is still being written, with the parser that reads whole logs.

The search for records holds back the last few kilobytes of what it was fed, since a record
may go on in the next lines. A reader of a live log wants to see them now: `pending` reads what
is held back, for once, and leaves no trace. What `feed` and `finish` return is exactly what
`Parser.read` returns for the same lines.
"""

from __future__ import annotations

import copy
import hashlib
import io
from collections import deque
from collections.abc import Iterable

from loganalyze import parse
from loganalyze.frames import Clock, Frames
from loganalyze.mend import HEAD
from loganalyze.model import LogSource
from loganalyze.parse import Parser
from loganalyze.parts import Parts
from loganalyze.prefixes import House
from loganalyze.search import Cut, Searcher
from loganalyze.sources import Block, Source
from loganalyze.strangers import Strangers

#: Raw lines kept for quotes: the latest ones, up to this many bytes of up to so much each.
_QUOTE_BYTES = 2_000_000
_QUOTE_LINE = 1 << 12


class LiveSource(Source):
    """A log that grows. Lines are numbered as they come, through rotations."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(name, io.BytesIO, kind, 0)
        self._digest = hashlib.sha256()
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_bytes = 0

    def take(self, data: bytes) -> Block:
        """Return new whole lines as a block (the last one of all may lack its end)."""
        self._digest.update(data)
        self.size_bytes = (self.size_bytes or 0) + len(data)
        clean = data.replace(b"\0", b"")
        n_lines = clean.count(b"\n") + (bool(clean) and not clean.endswith(b"\n"))
        block = Block(clean, self.lines + 1, n_lines, len(data))
        if not self.lines:
            self.head = clean[: 1 << 13].decode("utf-8", "replace")
        for k, line in enumerate(clean.split(b"\n")[:n_lines]):
            self._keep(self.lines + 1 + k, line[:_QUOTE_LINE])
        self.lines += n_lines
        return block

    def _keep(self, line_no: int, line: bytes) -> None:
        self._recent.append((line_no, line))
        self._recent_bytes += len(line)
        while self._recent_bytes > _QUOTE_BYTES:
            self._recent_bytes -= len(self._recent.popleft()[1])

    @property
    def recent(self) -> bytes:
        """The latest lines, in the order in which they came."""
        return b"\n".join(line for _, line in self._recent)

    def describe(self) -> LogSource:
        """Return what came so far."""
        return LogSource(
            self.name,
            self.size_bytes or 0,
            self._digest.hexdigest(),
            self.kind,
            self.tz,
            self.lines,
        )

    def quote(self, line_nos: Iterable[int]) -> dict[int, str]:
        """Return the text of those lines that are recent enough to be at hand."""
        wanted = set(line_nos)
        return {
            no: line.decode("utf-8", "replace").rstrip("\r")
            for no, line in self._recent
            if no in wanted
        }


class LiveReader:
    """Turns the blocks of one live log into frames."""

    def __init__(self, parser: Parser, source: Source) -> None:
        self._parser = parser
        self._source = source
        self._searcher = Searcher(parser._formats, requests=parser._requests)
        self._clock = Clock()
        self._counts = parser._counts[source.name] = parse._Counts()
        parser._sources[source.name] = source
        self._parts = Parts()
        self._house = parser._houses[source.name] = House()
        self._strangers = Strangers(self._house)
        parser._literals = "|".join(parse._escaped(n) for n in self._searcher.literals)

    def feed(self, block: Block) -> Frames | None:
        """Return the records that are certain to be whole."""
        self._counts.total += block.n_lines
        if self._house.size < HEAD:
            self._house.see(self._parser._reader.styles(block.data), len(block.data))
        for whole in self._parts.feed(block):
            self._searcher.feed(whole)
        return self._read(self._searcher, self._counts, self._clock, self._strangers)

    def pending(self) -> Frames | None:
        """Return the records in what is held back, as if the log ended here."""
        ahead = copy.copy(self._searcher)
        ahead.cut = Cut()
        ahead.finish()
        house = copy.copy(self._house)
        self._parser._houses[self._source.name] = house
        strangers = self._strangers.ahead(house)
        clock = copy.copy(self._clock)
        found = self._read(ahead, parse._Counts(), clock, strangers, last=True)
        self._parser._houses[self._source.name] = self._house
        return found

    def finish(self) -> Frames | None:
        """Return the last records; the log has ended."""
        for whole in self._parts.finish():
            self._searcher.feed(whole)
        self._searcher.finish()
        return self._read(self._searcher, self._counts, self._clock, self._strangers, last=True)

    def _read(
        self,
        searcher: Searcher,
        counts: parse._Counts,
        clock: Clock,
        strangers: Strangers,
        *,
        last: bool = False,
    ) -> Frames | None:
        cut = searcher.take()
        read = self._parser._read(cut, self._source, strangers, last=last)
        return self._parser._frames(cut, read, self._source, counts, clock)
