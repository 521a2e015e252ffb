"""Lines to typed frames, by layouts learned from the log itself.

A server prints few layouts of a line: its release and its options fix them. The first line
that no known layout fits is read field by field (`lines.Reader`), which is the definition;
from it one anchored pattern is derived, which Polars runs over all lines at once. Lines of
which no layout can be made are read field by field, too.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import polars as pl

from loganalyze import formats, search
from loganalyze.entries import gathered
from loganalyze.frames import Clock as _Clock
from loganalyze.frames import Frames, Rows, read_layout
from loganalyze.lines import (
    COLOUR,
    ESCAPES,
    JSON_COLOUR,
    Layout,
    Reader,
    Reading,
    layout_of,
    own_words,
)
from loganalyze.mend import mend
from loganalyze.model import Coverage, Sample
from loganalyze.parts import join
from loganalyze.prefixes import House, escape, zone_of
from loganalyze.search import MARK, Cut, Searcher
from loganalyze.sources import BLOCK, Block, Source
from loganalyze.strangers import Strangers
from loganalyze.tables import table_of
from loganalyze.tails import named

#: Lines and bytes read at once: half again as much is a twentieth faster, for 30 MB of memory.
#: With a row for every request the rows take the memory, and half as much is as fast.
BATCH_LINES, BATCH_BYTES = 50_000, 5 << 20
#: Layouts kept. Each costs little, but a log in which every line has its own is read field
#: by field: learning stops after so many layouts that fit few lines.
LAYOUTS, PATIENCE, FEW = 512, 64, 16
#: Literals of `search`, as text.
ACCESS, BATCH, REQUEST, JSON = (
    literal.decode() for literal in (search.ACCESS, search.BATCH, search.REQUEST, search.JSON)
)
#: The end of most access lines.
SERVED = ' HTTP/1.1" 200 OK'
#: A layout is frequent with at least one line in so many.
FREQUENT = 50
#: Fewer lines than this are read field by field at once.
LEARN_FROM = 48
_T = TypeVar("_T")
#: Records of one stretch of a log, and samples of what could not be read: line number, text.
_Read = tuple[Rows, list[tuple[int, str]]]
#: Lines shown of those that could not be read.
SAMPLES, SAMPLE_CHARS = 10, 200


@dataclass(slots=True)
class _Counts:
    total: int = 0
    batch: int = 0
    known: int = 0
    unrecognised: int = 0
    partial: int = 0
    echoes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    echo_samples: list[Sample] = field(default_factory=list)

    @property
    def unread(self) -> int:
        """Lines that look like statistics: in a log without any, quoted ones do, too."""
        return self.unrecognised + (0 if self.batch else self.echoes)

    @property
    def shown(self) -> list[Sample]:
        """Samples of those."""
        both = self.samples + ([] if self.batch else self.echo_samples)
        return sorted(both, key=lambda sample: sample.line_no)[:SAMPLES]


class Parser:
    """Reads logs into frames. One per run: what it learns from a log helps with the next.

    Args:
        requests: `all` gives a row for every access line and every line of --log-requests;
            `errors` only for access lines with a status of 4xx or 5xx and for the last one of a
            log, and counts the others.
    """

    def __init__(self, requests: Literal["all", "errors"] = "errors") -> None:
        self._requests = requests == "all"
        self._formats = tuple(
            f for f in formats.load() if self._requests or f.name != "request_log"
        )
        self._reader = Reader(self._formats)
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._sources: dict[str, Source] = {}
        self._counts: dict[str, _Counts] = {}
        self._houses: dict[str, House] = {}
        self._literals = ""

    def read(
        self,
        source: Source,
        on_progress: Callable[[int], None] | None = None,
        block_size: int = BLOCK,
    ) -> Iterator[Frames]:
        """Read one log.

        Args:
            source: the log.
            on_progress: called with the number of stored bytes read since the last call.
            block_size: bytes searched at once; the result does not depend on it.

        Yields:
            Frames of consecutive stretches of the log, none of them empty in all.

        Raises:
            InputError: the log turned out to be no log while it was read.
        """
        self._sources[source.name] = source
        counts = self._counts[source.name] = _Counts()
        house = self._houses[source.name] = House()
        searcher = Searcher(self._formats, requests=self._requests)
        self._literals = "|".join(_escaped(n) for n in searcher.literals)
        clock = _Clock(until=source.until)
        strangers = Strangers(house)
        with ThreadPoolExecutor(1) as worker:
            whole = gathered(named(join(source.blocks(block_size))))
            blocks = self._reader.learned(mend(whole), house)
            batch = BATCH_BYTES // 2 if self._requests else BATCH_BYTES
            cuts = _batches(blocks, searcher, counts, on_progress, batch)
            jobs = ((cut, worker.submit(self._read, cut, source, strangers)) for cut in cuts)
            for cut, job in _one_behind(jobs):
                frames = self._frames(cut, job.result(), source, counts, clock)
                del cut, job  # let go of the lines
                if frames is not None:
                    yield frames
        end = Cut()
        read = self._read(end, source, strangers, last=True)
        if (frames := self._frames(end, read, source, counts, clock)) is not None:
            yield frames

    def coverage(self, source: Source | None = None) -> Coverage:
        """Say how much was understood: of one log, or of all that were read."""
        names = [source.name] if source else list(self._counts)
        every = [self._counts[name] for name in names]
        kinds: Counter[str] = Counter()
        for counts in every:
            kinds += counts.kinds
        return Coverage(
            lines_total=sum(c.total for c in every),
            lines_batch=sum(c.batch for c in every),
            lines_known=sum(min(c.known, c.total) for c in every),  # a line may name two requests
            lines_unrecognised=sum(c.unread for c in every),
            lines_partial=sum(c.partial for c in every),
            by_kind=dict(sorted(kinds.items(), key=lambda k: (-k[1], k[0]))),
            samples=tuple(s for c in every for s in c.shown)[:SAMPLES],
            notes=tuple(
                f"{name}: {note}"
                for name in names
                for note in (*self._sources[name].notes, *self._sources[name].remarks)
            ),
        )

    def _read(
        self,
        cut: Cut,
        source: Source,
        strangers: Strangers | None = None,
        *,
        last: bool = False,
    ) -> _Read:
        """Read what was cut out of one stretch of a log.

        Args:
            cut: the stretch.
            source: the log.
            strangers: its strange lines so far; None where those of each stretch are quotes.
            last: whether the log ends here.
        """
        rows, samples = Rows(), list[tuple[int, str]]()
        house = self._houses[source.name]
        self._reader.table = table_of(source.head)
        lines = _clean(_lines(cut), cut.odd)
        if house.since:
            early, lines = _parted(lines, lines["line_no"] < house.since)
            self._reader.house = House()
            self._read_lines(early, rows, samples, source, None)
        self._reader.house = house
        self._read_lines(lines, rows, samples, source, strangers)
        self._reader.house = house
        while strangers:
            ours, quotes = strangers.settle(rows.line_nos(), self._reader, last=last)
            for line in quotes.iter_rows(named=True):
                _take(self._reader.read(line["text"]), line, rows, samples, source)
            if ours.is_empty():
                break
            self._read_lines(ours, rows, samples, source, strangers)
        return rows, samples

    def _frames(
        self, cut: Cut, read: _Read, source: Source, counts: _Counts, clock: _Clock
    ) -> Frames | None:
        """Put together what was read of one stretch, while the next one is read."""
        rows, samples = read
        room = SAMPLES - len(counts.samples)
        counts.samples += [Sample(source.name, *s) for s in sorted(samples)[:room]]
        counts.echoes += len(rows.echoes)
        room = SAMPLES - len(counts.echo_samples)
        counts.echo_samples += [
            Sample(source.name, *s) for s in sorted(rows.echoes.items())[:room]
        ]
        counts.partial += rows.partial
        counts.unrecognised += len(rows.cut)
        counts.known += rows.more + cut.n_inside
        if not self._requests:
            rows.kinds["access"], rows.kinds["request_log"] = cut.n_access, cut.n_requests
            counts.known += cut.n_access + cut.n_requests
        counts.kinds += rows.kinds
        frames = rows.frames(source.name, source.group, clock)
        end = self._end(cut, source, clock)
        if frames is None:
            return end
        counts.batch += _count_lines(frames.batch["line_no"])
        told = [frames.batch, frames.event, frames.startup]
        if self._requests:
            told.append(frames.request)
        else:
            frames = replace(frames, request=frames.request.filter(pl.col("status") >= 400))
        nos = [frame["line_no"] for frame in told]
        if rows.several:
            counts.known += pl.concat(nos).n_unique()
        else:
            counts.known += sum(_count_lines(n) for n in nos)
        if end is not None:
            frames = replace(frames, request=pl.concat([frames.request, end.request]))
        return frames

    def _end(self, cut: Cut, source: Source, clock: _Clock) -> Frames | None:
        """Read the last access line of a log: a server that computes nothing still answers."""
        if cut.last_access is None:
            return None
        line_no, data = cut.last_access
        rows = Rows()
        lines = _clean(pl.DataFrame({"more": 0, "text": _decode([data])}), cut.odd)["text"]
        for reading in [reading for text in lines for reading in self._reader.read(text)][:1]:
            failed = reading.values.get("status", "").startswith(
                ("4", "5")
            )  # which was read already
            if reading.format.frame == "request" and not failed:
                rows.add_reading(reading, line_no, 0, 0)
        return rows.frames(source.name, source.group, clock)

    def _read_lines(
        self,
        lines: pl.DataFrame,
        rows: Rows,
        samples: list[tuple[int, str]],
        source: Source,
        strangers: Strangers | None,
    ) -> None:
        """Read lines by the known layouts; learn new ones from what is left."""
        text = pl.col("text")
        rest, other = _parted(lines, lines["text"].str.contains(BATCH, literal=True))
        believed = self._reader.house.believes
        known = [x for x in self._layouts.values() if believed(x.chain)]
        for layout, telltale in _frequent([x for x in known if x.format.frame == "batch"]):
            rest = _apply(layout, rest, rows, samples, telltale)
        if self._requests:
            rest = pl.concat([rest, other])
        else:  # the cheapest test first, of what most lines of a log are
            other = other.filter(~text.str.ends_with(SERVED))
            access = text.str.ends_with(" OK") & text.str.contains(ACCESS, literal=True)
            rest = pl.concat([rest, other.filter(~access)])
            rest = rest.filter(~text.str.contains(REQUEST, literal=True))
        rest = rest.filter(text.str.contains(self._literals))
        for layout, telltale in _frequent([x for x in known if x.format.frame != "batch"]):
            rest = _apply(layout, rest, rows, samples, telltale)
        patience = PATIENCE
        while not rest.is_empty():
            line = rest.row(0, named=True)
            readings = self._reader.read(line["text"])
            found = None
            if patience and len(rest) >= LEARN_FROM and len(readings) == 1:
                found = layout_of(readings[0])
            if strangers is not None and readings and readings[0].foreign:
                left = strangers.take(rest, readings[0], found)
                patience -= len(rest) - len(left) < FEW and found is not None
                rest = left
                continue
            if found is not None and not readings[0].foreign:
                layout = self._layouts.get(found.key, found)
                left = _apply(layout, rest, rows, samples, max(layout.pieces, key=len, default=""))
                if len(left) < len(rest):
                    if layout is found:
                        self._keep(layout)
                        patience += 1 if layout.hits >= FEW else -1
                    _tell_zone(readings[0], source)
                    rest = left
                    continue
            _take(readings, line, rows, samples, source)
            rest = rest[1:]

    def _keep(self, layout: Layout) -> None:
        """Keep a layout; forget those of least use where there are too many."""
        if len(self._layouts) >= LAYOUTS:
            best = sorted(self._layouts.values(), key=lambda known: -known.hits)
            self._layouts = {known.key: known for known in best[: LAYOUTS // 2]}
        self._layouts[layout.key] = layout


def _take(
    readings: list[Reading],
    line: dict[str, Any],
    rows: Rows,
    samples: list[tuple[int, str]],
    source: Source,
) -> None:
    """Take the records of one line as they were read field by field."""
    line_no, seq, more = (line.get(name) or 0 for name in ("line_no", "seq", "more"))
    told = (reading.quote() if reading.foreign else reading for reading in readings)
    for k, reading in enumerate(filter(None, told)):
        if reading.echo:
            rows.echoes[line_no] = reading.text[:SAMPLE_CHARS]
            continue
        _tell_zone(reading, source)
        if reading.cut and MARK.search(reading.text.encode()) is None:
            continue  # the search finds such lines only where a block is split whole
        if reading.cut or reading.partial:
            said = reading.own_words(last=reading is readings[-1])
            samples.append((line_no, said[:SAMPLE_CHARS]))
        if reading.cut:
            rows.cut.add(line_no)
        else:
            rows.add_reading(reading, line_no, seq + k, more)


def _count_lines(line_nos: pl.Series) -> int:
    """Count different numbers in a sorted series."""
    return line_nos.set_sorted().n_unique()


def _batches(
    blocks: Iterable[Block],
    searcher: Searcher,
    counts: _Counts,
    on_progress: Callable[[int], None] | None,
    size: int,
) -> Iterator[Cut]:
    """Search a log; yield what was found whenever it is worth reading: `size` bytes."""
    for block in blocks:
        counts.total += block.n_lines
        searcher.feed(block)
        if on_progress is not None:
            on_progress(block.n_read)
        if len(searcher.cut.lines) >= BATCH_LINES or searcher.cut.size >= size:
            yield searcher.take()
    searcher.finish()
    yield searcher.take()


def _one_behind(items: Iterable[_T]) -> Iterator[_T]:
    """Yield each item once the next one was made."""
    made = deque[_T]()
    for item in items:
        made.append(item)
        if len(made) > 1:
            yield made.popleft()
    yield from made


def _lines(cut: Cut) -> pl.DataFrame:
    """Return the lines of a cut: line_no, text, and more where it is not 0."""
    frames = list[pl.DataFrame]()
    joined: list[tuple[int, int, list[memoryview]]] = []
    for first, n_lines, block in cut.dense:
        if joined and joined[-1][0] + joined[-1][1] == first:
            joined[-1] = (joined[-1][0], joined[-1][1] + n_lines, [*joined[-1][2], block])
        else:
            joined.append((first, n_lines, [block]))
    cut.dense.clear()
    while joined:  # let go of each, for the copy that is split is as large
        first, n_lines, blocks = joined.pop(0)
        data = b"".join(blocks)
        blocks.clear()
        text = _split(data, n_lines)
        del data
        nos = pl.int_range(first, first + len(text), dtype=pl.Int64, eager=True)
        frames.append(pl.DataFrame({"line_no": nos, "text": text}))
    places = pl.DataFrame(
        {"line_no": cut.line_nos, "more": cut.more},
        schema={"line_no": pl.Int64, "more": pl.Int64},
    )
    frames.append(places.with_columns(_decode(cut.lines)))
    return pl.concat(frames, how="diagonal")  # each pass over it has a fixed cost


def _split(data: bytes, n_lines: int) -> pl.Series:
    """Split whole lines. The CSV reader is the fastest splitter, and takes any bytes."""
    lines = pl.scan_csv(
        io.BytesIO(data),
        has_header=False,
        schema={"text": pl.String},
        separator="\x01",
        quote_char=None,
        encoding="utf8-lossy",
        extra_columns="ignore",
        empty_string_is_null=False,
    ).collect()["text"]
    if len(lines) != n_lines:
        return _decode(data.split(b"\n")[:n_lines])
    return lines


def _decode(lines: list[bytes]) -> pl.Series:
    try:
        return pl.Series("text", lines, dtype=pl.Binary).cast(pl.String)
    except pl.exceptions.PolarsError:
        return pl.Series("text", [line.decode("utf-8", "replace") for line in lines])


def _clean(lines: pl.DataFrame, odd: set[str]) -> pl.DataFrame:
    """Remove colours, line ends and escapes that the search saw in these lines."""
    if not odd:
        return lines
    text = pl.col("text")
    if "json" in odd:
        plain = text
        plain = plain.str.replace_many(list(ESCAPES), list(ESCAPES.values()), leftmost=True)
        plain = plain.str.replace_all(JSON_COLOUR, "")
        is_json = text.str.contains(JSON, literal=True)
        text = pl.when(is_json).then(plain).otherwise(text)
    if "colour" in odd:
        text = text.str.replace_all(COLOUR, "")
    if "return" in odd:
        text = text.str.strip_chars_end("\r")
    lines = lines.with_columns_seq(text)
    if "return" in odd:
        inside = lines["text"].str.contains("\r", literal=True)
        inside &= lines["more"].fill_null(0) == 0
        if inside.any():
            split = (
                lines.filter(inside)
                .with_columns_seq(pl.col("text").str.split("\r"))
                .with_columns_seq(seq=pl.int_ranges(pl.col("text").list.len(), dtype=pl.Int64))
                .explode("text", "seq")
            )
            lines = pl.concat([lines.filter(~inside), split], how="diagonal_relaxed")
    return lines


def _frequent(layouts: Collection[Layout]) -> list[tuple[Layout, str]]:
    """Return the frequent ones of some layouts, in the order in which to try them.

    A pattern that fails late costs as much as one that fits. So each gets a telltale, a text
    that as few others as possible hold, and those that share theirs go last.
    """
    total = sum(layout.hits for layout in layouts)
    frequent = [layout for layout in layouts if layout.hits * FREQUENT > total]
    texts = {id(layout): "\n".join(layout.pieces) for layout in frequent}
    ranked = []
    for layout in frequent:
        rivals = [texts[id(other)] for other in frequent if other is not layout]
        shared, telltale = min(
            ((sum(piece in text for text in rivals), piece) for piece in layout.pieces),
            default=(len(rivals), ""),
        )
        ranked.append((shared, -layout.hits, layout, telltale))
    ranked.sort(key=lambda r: r[:2])
    return [r[2:] for r in ranked]


def _apply(
    layout: Layout,
    lines: pl.DataFrame,
    rows: Rows,
    samples: list[tuple[int, str]],
    telltale: str = "",
) -> pl.DataFrame:
    """Read the lines that have this layout; return the others."""
    likely, others = lines, lines.clear()
    if telltale:
        likely, others = _parted(lines, lines["text"].str.contains(telltale, literal=True))
    if likely.is_empty():
        return lines
    values, fits = read_layout(layout, likely)
    if layout.unless and (told := likely["text"].str.contains(layout.unless)).any():
        fits = ~told if fits is None else fits & ~told
    if fits is not None:
        if not fits.any():
            return lines
        likely, left = _parted(likely, fits)
        values = _filtered(values, fits) if values.width else values
        others = pl.concat([others, left])
    layout.hits += len(likely)
    place = pl.DataFrame([column for column in likely.get_columns() if column.name != "text"])
    rows.add_layout(layout, place, values)
    if layout.partial:
        first = likely.sort("line_no").head(SAMPLES).select_seq("line_no", "text")
        samples += [(no, (own_words(text) or "")[:SAMPLE_CHARS]) for no, text in first.rows()]
    return others


def _parted(lines: pl.DataFrame, mask: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the lines that a mask takes, and the others."""
    n = mask.sum()
    if n == len(lines):
        return lines, lines.clear()
    return (_filtered(lines, mask), _filtered(lines, ~mask)) if n else (lines.clear(), lines)


def _filtered(lines: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """Return some rows, without the query that `DataFrame.filter` makes: 60 us each."""
    return pl.DataFrame([column.filter(mask) for column in lines.get_columns()])


def _tell_zone(reading: Reading, source: Source) -> None:
    """Keep the zone of the stamps, where a wrapper tells it."""
    if source.tz is None and reading.prefix.zone is not None:
        source.tz = zone_of(reading.prefix)


def _escaped(literal: bytes) -> str:
    return escape(literal.decode().strip("\n"))
