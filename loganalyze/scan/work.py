"""What one worker does: analyse a group of inputs, and return rows and pages as bytes.

A worker writes nothing to OUT: the process that holds the state does. So workers may be
processes of this machine or of a cluster, and one that dies leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, BinaryIO, Literal, NamedTuple, cast

import polars as pl

from loganalyze import __version__, guesses, pipeline, reading, schema, sources
from loganalyze.errors import InputError, LogAnalyzeError, NoLogError, utf8
from loganalyze.frames import Frames
from loganalyze.model import Coverage, LogSource, Sample, Unreadable
from loganalyze.parse import Parser
from loganalyze.redact import Redactor
from loganalyze.report import to_html
from loganalyze.scan import dataset, inputs
from loganalyze.scan.inputs import Input
from loganalyze.sources import Block, Source
from loganalyze.store import Store, StoreState

Pages = Literal["all", "problems", "none"]

#: A log that has changed within a day may grow: it is made ready to be read on. Smaller ones
#: are read again sooner than their records would be unpacked.
MAY_GROW_S = 86_400.0
MAY_GROW_FROM = 4 << 20
#: Reading goes on this far before the end that was: the last line may have been cut, and a
#: traceback been half written.
_STEP_BACK = 1 << 16


class Settings(NamedTuple):
    """What every worker has to know.

    Attributes:
        overrides, profile: as for `pipeline.analyze`.
        pages: which runs get a page.
        host: pattern whose first group, found in a log's name, names its host.
        now: seconds since 1970, by which "within a day" is told.
        redact: whether pages and tables leave out keys, hosts and user names.
    """

    overrides: Mapping[str, float]
    profile: Literal["online", "batch"] | None
    pages: Pages
    host: str | None
    now: float
    redact: bool = True


class Task(NamedTuple):
    """One input, and what is known of it.

    Attributes:
        found: the input.
        fingerprint: of its contents; empty for objects.
        same: compare only: SHA-256 of the contents it may have.
        known: SHA-256 that would mean it has not changed.
        tail: from where it may be read on, if its first bytes are the same: see `State.tail`.
    """

    found: Input
    fingerprint: str = ""
    same: str = ""
    known: str = ""
    tail: tuple[dict[str, Any], bytes] | None = None


@dataclass
class Done:
    """What became of one input.

    Attributes:
        task: what was to be done.
        status: read; unreadable; other (holds no SGLang line); same and different answer a
            comparison.
        size, sha256, fingerprint: of the contents as stored. A log that was written to
            meanwhile has another size than the task says.
        again: whether it may go better next time: the network, memory, a dead worker.
        runs: ids of the runs that are in the tables, with their pages or None.
        tail: from where it can be read on, if it may grow.
    """

    task: Task
    status: Literal["read", "unreadable", "other", "same", "different"]
    size: int = -1
    sha256: str = ""
    fingerprint: str = ""
    again: bool = False
    reason: str = ""
    hint: str = ""
    runs: dict[str, bytes | None] = field(default_factory=dict)
    tail: tuple[dict[str, Any], bytes] | None = None


class Group(NamedTuple):
    """What a worker returns: what became of each input, and parts of the tables."""

    done: list[Done]
    tables: dict[str, bytes]


def run_id(log: str) -> str:
    """Return the id of a log's run: part of its name, and a hash of the whole of it.

    No host is in it: it names the run's page.
    """
    name = re.split(r"[/\\!]", Redactor().name(log.partition("?")[0]))[-1]
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:48] or "log"
    return f"{short}-{hashlib.sha256(log.encode(errors='surrogateescape')).hexdigest()[:12]}"


def analyze(
    tasks: Sequence[Task], settings: Settings, on_progress: Callable[[int], None] | None = None
) -> Group:
    """Analyse a group of inputs; what fails for one never stops the others."""
    parser = Parser()  # what it learns of the lines of one log helps with the next
    tables: dict[str, list[pl.DataFrame]] = {name: [] for name in dataset.TABLES}
    done = []
    for task in tasks:
        done.append(_one(task, settings, parser, tables, on_progress))
    return Group(done, packed(tables))


def packed(tables: Mapping[str, Sequence[pl.DataFrame]]) -> dict[str, bytes]:
    """Return each table that has rows as one Parquet file."""
    return {
        name: dataset.to_bytes(whole)
        for name, parts in tables.items()
        if parts and (whole := pl.concat(parts)).height
    }


def _one(
    task: Task,
    settings: Settings,
    parser: Parser,
    tables: Mapping[str, list[pl.DataFrame]],
    on_progress: Callable[[int], None] | None,
) -> Done:
    name = inputs.shown(task.found.name)
    again = False
    try:
        if task.same:
            return _compared(task, on_progress)
        return _Reading(task, settings, parser, on_progress).result(tables)
    except LogAnalyzeError as error:
        reason, hint = error.message.removeprefix(f"{utf8(task.found.name)}: "), error.hint
        ours = isinstance(error, NoLogError)
        if not task.found.named and (ours or not inputs.looks_like_log(name)):
            return Done(task, "other", task.found.size, reason=reason, hint=hint)
        again = inputs.is_url(name) or bool(task.found.parts)
    except OSError as error:
        reason, hint, again = f"cannot be read ({error.strerror or error})", "", True
    except MemoryError:
        reason, hint, again = "does not fit into memory", "give it more with --memory", True
    except Exception as error:  # a mistake of ours must not stop a night's work
        reason = Redactor().text(f"internal error: {type(error).__name__}: {error}")[:300]
        hint = f"`loganalyze check {name}` shows it; report it, please"
    done, row = failed(task, reason, hint, again=again)
    tables["runs"].append(row)
    return done


def failed(task: Task, reason: str, hint: str, *, again: bool) -> tuple[Done, pl.DataFrame]:
    """Return the result of an input that could not be analysed, and its row of `runs`."""
    name, size = inputs.shown(task.found.name), task.found.size
    reason, hint = inputs.shown(reason), inputs.shown(hint)
    run = run_id(name)
    row = dataset.failed_row(run, name, size, reason, hint, __version__)
    return Done(
        task, "unreadable", size, again=again, reason=reason, hint=hint, runs={run: None}
    ), row


def _compared(task: Task, on_progress: Callable[[int], None] | None) -> Done:
    sha256, _, size = _hashed(task.found)
    if on_progress:
        on_progress(size)
    return Done(task, "same" if sha256 == task.same else "different", size, sha256)


def _hashed(found: Input, at: int = 0) -> tuple[str, str, int]:
    """Return a file's SHA-256, that of its first `at` bytes, and its size.

    That of a rotated log is made from those of its parts, so that it does not depend on their
    names.
    """
    if found.parts:
        whole, _, sizes = zip(*map(_hashed, found.parts), strict=True)
        return inputs.digest(whole), "", sum(sizes)
    with open(found.name, "rb", buffering=0) as file:
        start, digest, size = inputs.hashes(cast("BinaryIO", file), at)
        return digest, start, size


class _Reading:
    """The analysis of one input: a log, or an archive of logs."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        parser: Parser,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._task, self._settings = task, settings
        self._log = inputs.shown(task.found.name)
        self._parser, self._on_progress = parser, on_progress
        self._done = Done(task, "read", task.found.size, fingerprint=task.fingerprint)
        self._rows: dict[str, list[pl.DataFrame]] = {name: [] for name in dataset.TABLES}

    def result(self, tables: Mapping[str, list[pl.DataFrame]]) -> Done:
        """Analyse; add the rows to the tables once all is well."""
        found, done = self._task.found, self._done
        with contextlib.ExitStack() as held:
            opened = self._objects(held) if inputs.is_url(found.name) else self._files()
            if opened:
                self._every(opened)
        for name, rows in self._rows.items():
            tables[name].extend(rows)
        if done.fingerprint and done.size != found.size and not found.parts:
            # It was written to since it was found.
            done.fingerprint = inputs.fingerprint(found.name, done.size)
        return done

    def _objects(self, held: contextlib.ExitStack) -> list[Source]:
        """Fetch an object, or every part of one; nothing if it is the same as before."""
        from loganalyze.scan import remote

        found, done = self._task.found, self._done
        fetched: list[tuple[Input, BinaryIO, int]] = []
        hashes = []
        for part in found.parts or (found,):
            file, size = remote.fetch(part)
            held.enter_context(file)
            hashes.append(inputs.hashes(file, 0)[1])
            fetched.append((part, file, size))
        done.size = sum(size for _, _, size in fetched)
        done.sha256 = inputs.digest(hashes) if found.parts else hashes[0]
        if self._task.known == done.sha256:
            done.status = "same"
            return []
        if not done.size:
            raise InputError("is empty")
        return [source for each in fetched for source in _sources_of(*each)]

    def _files(self) -> list[Source]:
        """Open a file, or every part of one; nothing if it is the same, or read from its end."""
        task, done, found = self._task, self._done, self._task.found
        opened = sources.open_sources([part.name for part in found.parts or (found,)])
        if task.known or task.tail:
            done.sha256, start, done.size = _hashed(
                found, task.tail[0]["size"] if task.tail else 0
            )
            if done.sha256 == task.known:
                done.status = "same"
                return []
            if task.tail and start == task.tail[0]["sha256"]:
                self._grown(opened[0], *task.tail)
                return []
        if found.parts or opened[0].given != found.name:
            done.sha256, _, done.size = _hashed(found)
        return opened

    def _every(self, opened: Sequence[Source]) -> None:
        """Read each log of an input; in an archive those without an SGLang line are no logs."""
        logs: dict[str, list[Source]] = {}
        for source in opened:
            name = inputs.shown(source.given)
            group = name if source.group == source.name else inputs.shown(source.group)
            group = self._log if self._task.found.parts else group
            source.name, source.group = name, group
            logs.setdefault(group, []).append(source)
        for name, parts in logs.items():
            store, held = Store(), _Held()
            # Every part is read: one without a line of the server is a part still.
            if sum(self._read(source, store, held) for source in parts):
                held.flush(store)
                coverage = _sum([self._parser.coverage(source) for source in parts])
                self._judge(name, parts, store, held, coverage)
                if name == self._log and len(parts) == 1:
                    self._keep_tail(parts[0], held, coverage)
        if self._done.runs:
            return
        if len(logs) == 1:
            if opened[0].notes:  # it may well be a log, but it could not be read
                raise InputError(opened[0].notes[0])
            reason = f"no SGLang line in {sum(source.lines for source in opened):,} lines"
        else:
            reason = f"none of {len(opened)} files in it has an SGLang line"
        looks, hint = guesses.guess(opened[0])
        if self._task.found.named:
            raise InputError(reason, hint=f"it looks like {looks}; {hint}")
        self._done.status, self._done.reason = "other", f"{reason}; it looks like {looks}"
        self._done.hint = hint

    def _read(self, source: Source, store: Store, held: _Held) -> bool:
        """Put the records of a log into a store; tell whether there were any."""
        any_record = False
        for chunk in self._parser.read(source, self._on_progress):
            any_record |= any(f.height for f in (chunk.batch, chunk.event, chunk.startup))
            held.take(source.numbered(chunk) if isinstance(source, _Rest) else chunk, store)
        return any_record

    def _judge(
        self,
        name: str,
        parts: Sequence[Source],
        store: Store,
        held: _Held,
        coverage: Coverage,
    ) -> None:
        """Judge a log, and add its rows and its page."""
        done, settings = self._done, self._settings
        redactor = Redactor(keep=not settings.redact)
        report, split = pipeline.judge(
            store,
            parts,
            coverage,
            overrides=settings.overrides,
            profile=settings.profile,
            unreadable=[
                Unreadable(source.name, "; ".join(source.notes), reading.PARTLY)
                for source in parts
                if source.notes
            ],
            command=f"loganalyze report {' '.join(source.name for source in parts)}",
            redactor=redactor,
        )
        run = run_id(name)
        page = None
        if settings.pages == "all" or (settings.pages == "problems" and report.is_problem):
            drawn = pipeline.with_drawings(report, split)
            page = to_html.render_still(redactor.report(drawn)).encode()
        if name == self._log and len(parts) == 1:
            done.sha256 = report.sources[0].sha256
            if parts[0].kind == "file":
                done.size = parts[0]._stored
        rows = dataset.rows_of(run, name, self._host(name, held.writers), report, split)
        held_in = [source.content_sha256() for source in parts]
        content = held_in[0] if len(parts) == 1 else inputs.digest(held_in)
        rows["runs"] = rows["runs"].with_columns(content_sha256=pl.lit(content))
        if page:
            rows["runs"] = rows["runs"].with_columns(report=pl.lit(f"reports/{run}.html"))
        for table, found in rows.items():
            self._rows[table].append(found)
        done.runs[run] = page

    def _host(self, log: str, writers: Collection[str | None]) -> str | None:
        """Return the host: by the pattern, else by the wrapper, else the nearest folder.

        A folder without a letter is a date or the number of a job.
        """
        if self._settings.host:
            match = re.search(self._settings.host, log)
            return (match[1] if match.re.groups else match[0]) if match else None
        if len(writers) == 1 and (writer := next(iter(writers))):
            return writer
        archive, _, member = log.partition("!")
        folders = [f for name in (archive, member) for f in re.split(r"[/\\]+", name)[:-1]]
        return next((f for f in reversed(folders) if re.search(r"[^\W\d_]", f)), None)

    # -- logs that grow -------------------------------------------------------------------

    def _grown(self, whole: Source, facts: Mapping[str, Any], frames: bytes) -> None:
        """Read a log on from where it ended, on top of what was kept of it."""
        done, path = self._done, whole.name
        whole.name = whole.group = self._log
        store = Store.resumed(_unpacked(facts, frames, self._log))
        source = _Rest(whole, path, facts["offset"], facts["line"], done.size, done.sha256)
        source.tz = facts["tz"]
        held = _Held(facts["writers"])
        self._read(source, store, held)
        held.flush(store)
        rest = source.covered(self._parser.coverage(source))
        coverage = _sum([_coverage(facts["coverage"], self._log), rest])
        self._judge(self._log, [source], store, held, coverage)
        self._keep_tail(source, held, coverage)

    def _keep_tail(self, source: Source, held: _Held, coverage: Coverage) -> None:
        """Keep what it takes to read a log on, if it may grow."""
        done, path = self._done, self._task.found.name
        if source.kind != "file" or done.size < MAY_GROW_FROM:
            return
        if inputs.is_url(path) or self._settings.now - os.stat(path).st_mtime > MAY_GROW_S:
            return
        start = done.size - _STEP_BACK
        with open(path, "rb") as file:
            file.seek(start)
            last = file.read(_STEP_BACK)
        # Lines are counted from the end, where the number of the last one is known.
        line = source.lines - last.count(b"\n") - (not last.endswith(b"\n")) + 1
        offset = last.find(b"\n") + 1
        line += offset > 0
        while line <= held.last_line and offset:
            offset = last.find(b"\n", offset) + 1
            line += 1
        state = held.before(line)
        if not offset or state is None:
            return  # a last line of 64 KiB and more: no log
        facts = {
            "size": done.size,
            "sha256": done.sha256,
            "offset": start + offset,
            "line": line,
            "tz": source.tz,
            "writers": sorted(held.writers, key=str),
            "level": state.level,
            "tracebacks": state.tracebacks,
            "begun": state.begun,
            "notes": list(state.notes),
            "coverage": _before(coverage, self._again(source, start + offset), line),
        }
        done.tail = facts, _packed(state)

    def _again(self, source: Source, offset: int) -> Coverage:
        """Return the coverage of the last lines, which will be read again."""
        parser = Parser()
        rest = _Rest(source, self._task.found.name, offset, 1, self._done.size)
        for _ in parser.read(rest):
            pass
        return parser.coverage(rest)


class _Held:
    """Holds the last chunks of a log back, so that a store can be had without its last lines."""

    def __init__(self, writers: Iterable[str | None] = ()) -> None:
        self._chunks: list[Frames] = []
        self._before: StoreState | None = None
        self.last_line = 0
        self.writers = set(writers)

    def take(self, chunk: Frames, store: Store) -> None:
        """Take a chunk; pass an older one on to the store."""
        self._chunks.append(chunk)
        self.writers.update(chunk.batch["stream"].unique().to_list())
        if len(self._chunks) > 2:
            oldest = self._chunks.pop(0)
            lines = [f["line_no"].max() for f in _frames(oldest).values() if f.height]
            self.last_line = max([self.last_line, *cast("list[int]", lines)])
            store.add(oldest)

    def flush(self, store: Store) -> None:
        """Pass on what is held, and remember how the store was before."""
        self._before = store.state()
        for chunk in self._chunks:
            store.add(chunk)

    def before(self, line: int) -> StoreState | None:
        """Return the state of a store that had seen the lines before `line` only."""
        if self._before is None or line <= self.last_line:
            return None
        store = Store.resumed(self._before)
        for chunk in self._chunks:
            rows = {n: f.filter(pl.col("line_no") < line) for n, f in _frames(chunk).items()}
            store.add(Frames(**rows))
        return store.state()


class _Rest(Source):
    """The rest of a log from some line on; `shift` lines stand before it."""

    def __init__(
        self, whole: Source, path: str, start: int, line: int, size: int, sha256: str = ""
    ) -> None:
        def opened() -> IO[bytes]:
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - the stretch closes it
            return cast("IO[bytes]", _Stretch(cast("BinaryIO", file), start, size, owned=True))

        super().__init__(whole.name, opened, whole.kind, size)
        self._whole, self.shift = whole, line - 1
        self._of_whole = size, sha256

    def blocks(self, size: int = sources.BLOCK) -> Iterator[Block]:
        """Yield the rest as blocks of whole lines, numbered from 1."""
        yield from super().blocks(size)
        self.lines += self.shift
        self._stored = self._of_whole[0]

    def numbered(self, chunk: Frames) -> Frames:
        """Return records of the rest under the line numbers of the whole."""
        return Frames(
            **{
                n: f.with_columns(pl.col("line_no") + self.shift)
                for n, f in _frames(chunk).items()
            }
        )

    def covered(self, coverage: Coverage) -> Coverage:
        """Return the coverage of the rest, under the line numbers of the whole."""
        samples = [replace(s, line_no=s.line_no + self.shift) for s in coverage.samples]
        return replace(coverage, samples=samples)

    def describe(self) -> LogSource:
        """Return what the whole log is."""
        return LogSource(self.name, *self._of_whole, self.kind, self.tz, self.lines)

    def quote(self, line_nos: Iterable[int]) -> dict[int, str]:
        """Return the text of lines, of the whole log."""
        wanted = list(line_nos)
        late = super().quote(n - self.shift for n in wanted if n > self.shift)
        early = self._whole.quote(n for n in wanted if n <= self.shift)
        return early | {n + self.shift: text for n, text in late.items()}


class _Stretch(io.RawIOBase):
    """A stretch of a file with a place of its own, so that several can read one file."""

    def __init__(self, file: BinaryIO, start: int, end: int, *, owned: bool) -> None:
        self._file, self._start, self._size, self._owned = file, start, end - start, owned
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if self._owned:
            self._file.close()
        super().close()


def _sources_of(found: Input, file: BinaryIO, size: int) -> list[Source]:
    """Return the logs in an object that has been fetched."""

    def opened() -> IO[bytes]:
        return cast("IO[bytes]", _Stretch(file, 0, size, owned=False))

    return sources.order_sources(sources._open_stored(found.name, opened, "file", size))


# -- packing ------------------------------------------------------------------------------


def _frames(chunk: Frames) -> dict[str, pl.DataFrame]:
    return {name: getattr(chunk, name) for name in schema.FRAMES}


def _packed(state: StoreState) -> bytes:
    """Return the frames of a store as a zip archive of Parquet files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, rows in state.frames.items():
            with archive.open(name, "w") as member:
                rows.write_parquet(member)
    return out.getvalue()


def _unpacked(facts: Mapping[str, Any], packed: bytes, log: str) -> StoreState:
    """Return what `_packed` packed, under the log's present name."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        frames = {
            name: pl.read_parquet(io.BytesIO(archive.read(name))).with_columns(
                source=pl.lit(log), group=pl.lit(log)
            )
            for name in archive.namelist()
        }
    counted = facts["level"], facts["tracebacks"], facts["begun"]
    return StoreState(frames, *counted, tuple(facts["notes"]))


_COUNTS = ("lines_total", "lines_batch", "lines_known", "lines_unrecognised", "lines_partial")
_SAMPLES = 10


def _coverage(facts: Mapping[str, Any], log: str) -> Coverage:
    """Return a coverage from its JSON form, under the log's present name."""
    samples = [Sample(log, line_no, text) for line_no, text in facts["samples"]]
    return Coverage(
        **{name: facts[name] for name in _COUNTS},
        by_kind=facts["by_kind"],
        samples=samples,
        notes=facts["notes"],
    )


def _before(whole: Coverage, rest: Coverage, line: int) -> dict[str, Any]:
    """Return the coverage of a log without its rest, which starts at a line, as JSON."""
    return {
        **{name: getattr(whole, name) - getattr(rest, name) for name in _COUNTS},
        "by_kind": {
            k: left for k, n in whole.by_kind.items() if (left := n - rest.by_kind.get(k, 0))
        },
        "samples": [(s.line_no, s.text) for s in whole.samples if s.line_no < line],
        "notes": list(whole.notes),
    }


def _sum(parts: Sequence[Coverage]) -> Coverage:
    """Return the coverage of several stretches of one log."""
    kinds: Counter[str] = Counter()
    for part in parts:
        kinds.update(part.by_kind)
    return Coverage(
        **{name: sum(getattr(part, name) for part in parts) for name in _COUNTS},
        by_kind=dict(sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))),
        samples=[sample for part in parts for sample in part.samples][:_SAMPLES],
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )
