"""Scan an archive of logs: find, plan, analyse, enter. Read this file first.

A scan goes through its inputs once and decides for each by its contents (see inputs.py):
unchanged, moved, a copy, grown, or to be read. What is to be read goes to an engine in groups;
what comes back is entered into the state (see state.py) every now and then.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from loganalyze import __version__
from loganalyze.errors import InputError, LogAnalyzeError, UsageError
from loganalyze.scan import inputs, local, rotation
from loganalyze.scan.inputs import Input
from loganalyze.scan.state import Change, Known, Run, State, Totals, part_path

if TYPE_CHECKING:
    import polars as pl

    from loganalyze.scan.cluster import Cluster
    from loganalyze.scan.work import Done, Group, Task

#: Bytes of one group: enough to make handing over cheap, few enough to spread.
_GROUP_BYTES = (4 << 20, 256 << 20)
#: Results are entered when they are this old, or this share of the scan's time: a killed scan
#: loses little, and a long one makes few parts.
_ENTER_S, _ENTER_FRAC, _ENTER_BYTES = 1.0, 0.02, 64 << 20
#: The page is written again this often while a scan runs.
_PAGE_S, _PAGE_FRAC = 30.0, 0.1

_NO_ROOM = "what was finished is kept: make room and run the scan again"


def _next(error: OSError) -> str:
    """Say what to do about a folder that cannot be written to."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return _NO_ROOM if full else "choose a folder that may be written to"


@dataclass(frozen=True)
class Options:
    """How to scan.

    Attributes:
        pages: which runs get a page.
        jobs: processes; 0: one a core.
        memory: bytes for all processes, on this machine; 0: most of what is free.
        engine, address: where to run, and the cluster's address.
        host: pattern whose first group in a log's name is its host.
        overrides, profile, redact: as for `pipeline.analyze`.
    """

    pages: Literal["all", "problems", "none"] = "problems"
    jobs: int = 0
    memory: int = 0
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    host: str | None = None
    overrides: Mapping[str, float] = field(default_factory=dict)
    profile: Literal["online", "batch"] | None = None
    redact: bool = True


_NOTHING = Totals(0, 0, 0, 0, 0)


@dataclass
class Summary:
    """What a scan did. Counts are of inputs, `runs` of what was told about.

    `inputs` is all that was found; of these `unchanged` were skipped, `moved` kept their runs
    under another name, `copies` have contents that count already, `grown` were read on,
    `read` were read from the start, `unreadable` could not be, `other` are no logs, and `empty`
    are files of folders that hold nothing (yet).
    `partly` counts runs that could not be read whole, such as a cut-off gzip file. `totals` is
    what the folder of results holds now, of this scan and of earlier ones: what its page says.
    """

    inputs: int = 0
    unchanged: int = 0
    moved: int = 0
    copies: int = 0
    grown: int = 0
    read: int = 0
    unreadable: int = 0
    other: int = 0
    empty: int = 0
    partly: int = 0
    runs: int = 0
    totals: Totals = _NOTHING
    worst: str | None = None
    bytes_total: int = 0
    bytes_done: int = 0
    files_total: int = 0
    files_done: int = 0
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started


#: Called with each run's row, and how it came: read, grown, moved or unchanged.
OnRun = Callable[[Mapping[str, Any], str], None]
#: Called now and then while there is work to do.
OnTick = Callable[[Summary], None]


def scan(
    paths: Sequence[str],
    out: str,
    options: Options,
    on_run: OnRun | None = None,
    on_tick: OnTick | None = None,
) -> Summary:
    """Scan logs into a folder, which an earlier scan may have begun.

    Args:
        paths: files, folders, patterns, archives and addresses.
        out: the folder of results.
        options: how.
        on_run: told about each run once it is entered.
        on_tick: told how far the scan is.

    Returns:
        What was done. After Ctrl-C (KeyboardInterrupt) what was finished is entered and the
        page written, and `interrupted` is set.

    Raises:
        UsageError: another scan writes to `out`, it is not a scan's folder, or the memory is
            too little for any log.
        InputError: nothing was found, or the disk is full; what was entered stays.
    """
    if 0 < options.memory < local.LEAST_BYTES:
        raise UsageError(f"--memory must be at least {local.LEAST_BYTES // 10**6}M")
    try:
        with contextlib.closing(State(out)) as state:
            return _Scan(state, paths, options, on_run, on_tick).run()
    except sqlite3.Error as error:
        raise InputError(f"{out}: {error}", hint=_NO_ROOM) from error
    except BrokenPipeError:  # whoever was told has gone
        raise
    except OSError as error:
        raise InputError(f"{out}: {error.strerror or error}", hint=_next(error)) from error


@dataclass
class _Planned:
    """A task to come, without what only a worker needs."""

    found: Input
    fingerprint: str = ""
    origin: Known | None = None
    known: str = ""
    grown: bool = False


class _Scan:
    def __init__(
        self,
        state: State,
        paths: Sequence[str],
        options: Options,
        on_run: OnRun | None,
        on_tick: OnTick | None,
    ) -> None:
        self._state, self._paths, self._options = state, paths, options
        self._on_run, self._on_tick = on_run, on_tick
        self._sum = Summary()
        key = [__version__, sorted(options.overrides.items()), options.profile, options.host]
        key += [] if options.redact else ["as it is"]
        self._settings = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        self._wanted: set[str] = set()
        self._same: set[str] = set()
        self._unpaged = state.unpaged(options.pages)
        self._failed: list[tuple[_Planned, str, str]] = []
        self._results: list[Group] = []
        self._size = 0
        self._entered = self._paged = time.monotonic()

    def run(self) -> Summary:
        """Do it all, or as much as there is time for."""
        try:
            compare, analyse, later = self._plan()
            if not self._sum.inputs:
                empty = self._sum.empty
                but = f" but {empty:,} empty file{'s' * (empty != 1)}" if empty else ""
                raise InputError(
                    f"no logs found{but}", hint="name files, folders, patterns or addresses"
                )
            self._sum.inputs += self._sum.empty
            self._compare(compare, analyse)
            if analyse or self._failed:
                self._analyse(analyse)
            again = self._orphans() if later or analyse else []
            again += self._copies(later)
            if again:
                self._analyse(again)
        except KeyboardInterrupt:
            self._sum.interrupted = True
        self._enter()
        self._settle()
        self._page()
        self._sum.totals = self._state.totals()
        return self._sum

    # -- planning -------------------------------------------------------------------------

    def _plan(self) -> tuple[list[_Planned], list[_Planned], list[_Planned]]:
        """Sort the inputs: to compare first, to analyse, and copies of those."""
        compare: list[_Planned] = []
        analyse: list[_Planned] = []
        later: list[_Planned] = []
        first: set[str] = set()
        all_found = []
        for found in inputs.find(self._paths, str(self._state.out)):
            if found.size or found.named or found.error:
                all_found.append(found)
            else:
                self._sum.empty += 1
        for found in rotation.joined(all_found, self._present):
            self._sum.inputs += max(1, len(found.parts))
            planned = self._planned(found)
            if planned is None:
                continue
            if planned.origin:
                compare.append(planned)
            elif planned.fingerprint and planned.fingerprint in first:
                later.append(planned)
            else:
                first.add(planned.fingerprint)
                analyse.append(planned)
        return compare, analyse, later

    def _present(self, name: str) -> Known | None:
        """Return what is known of an input under the settings of this scan."""
        known = self._state.known(name)
        return known if known and known.settings == self._settings else None

    def _planned(self, found: Input) -> _Planned | None:
        """Return what is to be done about an input; None where nothing is."""
        known = self._present(found.name)
        planned = _Planned(found)
        if found.error:
            self._fails(planned, known, found.error, found.hint)
            return None
        try:
            planned.fingerprint = inputs.print_of(found)
        except InputError as error:
            reason = error.message.removeprefix(f"{found.name}: ")
            self._fails(planned, known, reason, error.hint)
            return None
        if known and self._may_be_same(found, planned.fingerprint, known):
            if known.stamp and known.stamp == found.stamp:
                self._unchanged(known)
                return None
            if known.sha256 and known.status != "part":
                planned.known = known.sha256
                return planned
        if planned.fingerprint:
            origin = self._state.alike(planned.fingerprint)
            if origin and origin.name != found.name and origin.settings == self._settings:
                planned.origin = origin
                return planned
        is_file = planned.fingerprint and not found.parts
        if known and known.status == "read" and is_file:
            planned.grown = found.size > known.size and (
                inputs.fingerprint(found.name, known.size) == known.fingerprint
            )
        return planned

    def _may_be_same(self, found: Input, fingerprint: str, known: Known) -> bool:
        """Tell whether an input can be what it was: its stamp or its SHA-256 decides."""
        if known.name in self._unpaged or found.size != known.size:
            return False
        if fingerprint != known.fingerprint:
            return False
        if known.status in ("copy", "part"):
            return self._sha256_of(known.copy_of or "") == known.sha256
        return True

    def _sha256_of(self, name: str) -> str | None:
        """Return the SHA-256 of an input or of a log within one; None where it has gone."""
        known = self._state.known(name)
        if known or self._state.archive(name) is None:
            return known.sha256 if known else None
        run = self._run_of(name)
        return run.row["sha256"] if run else None

    def _run_of(self, name: str) -> Run | None:
        from loganalyze.scan import work

        return self._state.run(work.run_id(inputs.shown(name)))

    def _unchanged(self, known: Known) -> None:
        self._sum.unchanged += _files(known)
        self._same.add(known.name)
        if known.status == "unreadable":
            self._sum.unreadable += 1
        elif known.status == "other":
            self._sum.other += 1
        elif known.status in ("copy", "part"):
            self._sum.copies += 1
        for run in self._state.runs_of(known.name):
            self._told(run.row, "unchanged")

    def _fails(self, planned: _Planned, known: Known | None, reason: str, hint: str) -> None:
        """Note an input that cannot be read, unless that is known."""
        if known and known.status == "unreadable" and known.reason == reason:
            self._unchanged(known)
        else:
            self._failed.append((planned, reason, hint))

    # -- doing ----------------------------------------------------------------------------

    def _compare(self, planned: list[_Planned], analyse: list[_Planned]) -> None:
        """Compare with known contents; what is the same is moved or a copy, all at once."""
        if not planned:
            return
        origins = {p.found.name: p.origin for p in planned}
        same: list[tuple[Done, Known]] = []
        for group in self._groups_done(planned):
            for done in group.done:
                origin = origins[done.task.found.name]
                if done.status == "same" and origin:
                    same.append((done, origin))
                else:
                    analyse.append(_Planned(done.task.found, done.task.fingerprint))
        self._keep(same)

    def _keep(self, same: Sequence[tuple[Done, Known]]) -> None:
        """Enter contents that are known under other names."""
        change = Change()
        moved: list[tuple[Run, str]] = []
        gone: set[str] = set()
        for done, origin in same:
            name = done.task.found.name
            change.dropped.append(name)
            files = done.task.found.files
            if origin.name in gone or _still_there(origin):
                self._sum.copies += files
                change.inputs.append(self._known(done, "copy", copy_of=origin.name))
                continue
            self._sum.moved += files
            gone.add(origin.name)
            change.dropped += [origin.name, *self._state.copies(origin.name, "part")]
            change.inputs.append(self._known(done, "read"))
            change.inputs += self._parts(done)
            moved += [(run, name) for run in self._state.runs_of(origin.name)]
        renamed = {o.name: d.task.found.name for d, o in same if o.name in gone}
        change.inputs = [
            k._replace(copy_of=renamed.get(k.copy_of or "", k.copy_of)) for k in change.inputs
        ]
        self._rename_copies(change, renamed)
        tables = self._renamed(change, moved)
        self._commit(change, tables)
        for run in change.runs:
            self._told(run.row, "moved")

    def _rename_copies(self, change: Change, renamed: Mapping[str, str]) -> None:
        """Give copies of what has moved, and those within archives that have, the new names."""
        for known in self._state.inputs("copy") if renamed else ():
            name = self._new_name(known.name, renamed)
            origin = self._new_name(known.copy_of or "", renamed)
            if (name, origin) != (known.name, known.copy_of) and known.name not in change.dropped:
                change.dropped.append(known.name)
                change.inputs.append(known._replace(name=name, copy_of=origin))

    def _new_name(self, name: str, renamed: Mapping[str, str]) -> str:
        """Return the name of an input, or of a log within one, after some inputs have moved."""
        old = name if name in renamed else self._state.archive(name) or name
        return renamed.get(old, old) + name.removeprefix(old)

    def _renamed(
        self, change: Change, moved: Sequence[tuple[Run, str]]
    ) -> dict[str, list[pl.DataFrame]]:
        """Return the rows of runs under their new names, and enter the runs into a change."""
        if not moved:
            return {}
        import polars as pl

        from loganalyze.scan import dataset, work

        names: dict[str, tuple[str, str]] = {}
        for run, name in moved:
            log = inputs.shown(name) + run.row["log"].removeprefix(inputs.shown(run.input))
            names[run.run] = work.run_id(log), log
        tables: dict[str, list[pl.DataFrame]] = {}
        for table in dataset.TABLES:
            for part in sorted({run.part for run, _ in moved}):
                rows = dataset.from_bytes(table, self._part(table, part))
                rows = rows.filter(pl.col("run").is_in(list(names)))
                new = {"run": pl.col("run").replace_strict({r: n for r, (n, _) in names.items()})}
                if table == "runs":
                    new["log"] = pl.col("run").replace_strict(
                        {r: o for r, (_, o) in names.items()}
                    )
                    new["report"] = pl.when(pl.col("report").is_not_null()).then(
                        "reports/" + new["run"] + ".html"
                    )
                tables.setdefault(table, []).append(rows.with_columns(**new))
        for run, name in moved:
            new_id, log = names[run.run]
            page = f"reports/{new_id}.html" if run.page else None
            if run.page and page:
                change.renamed.append((run.page, page))
            row = {**run.row, "run": new_id, "log": log, "report": page}
            change.runs.append(run._replace(run=new_id, input=name, page=page, row=row))
        return tables

    def _copies(self, later: list[_Planned]) -> list[_Planned]:
        """Compare inputs that looked alike in this scan; return those that are not."""
        again: list[_Planned] = []
        compare: list[_Planned] = []
        for planned in later:
            planned.origin = self._state.alike(planned.fingerprint)
            (compare if planned.origin else again).append(planned)
        self._compare(compare, again)
        return again

    def _orphans(self) -> list[_Planned]:
        """Return copies of contents that this scan has replaced: they count for themselves."""
        out: dict[str, _Planned] = {}
        for known in self._state.inputs("copy"):
            if self._sha256_of(known.copy_of or "") != known.sha256:
                archive = self._state.known(self._state.archive(known.name) or "")
                own = archive or known  # a log within an archive is read with all of it
                found = _again(own)
                if not found.error and not inputs.is_url(own.name):
                    if own.name in self._same:  # it was counted as such
                        self._same.discard(own.name)
                        self._sum.unchanged -= _files(own)
                        self._sum.copies -= own.status == "copy"
                    out[own.name] = _Planned(found, own.fingerprint)
        return list(out.values())

    def _analyse(self, planned: list[_Planned]) -> None:
        """Analyse, and enter the results as they come."""
        from loganalyze.scan import work

        for one, reason, hint in self._failed:
            task = work.Task(one.found)
            done, row = work.failed(task, reason, hint, again=True)
            self._results.append(work.Group([done], work.packed({"runs": [row]})))
        self._failed.clear()
        for group in self._groups_done(planned):
            self._results.append(group)
            self._size += sum(map(len, group.tables.values()))
            self._size += sum(len(page or b"") for d in group.done for page in d.runs.values())
            self._sum.files_done += sum(d.task.found.files for d in group.done)
            waited = time.monotonic() - self._entered
            if self._size > _ENTER_BYTES or waited > max(
                _ENTER_S, _ENTER_FRAC * self._sum.seconds
            ):
                self._enter()
                if time.monotonic() - self._paged > max(_PAGE_S, _PAGE_FRAC * self._sum.seconds):
                    self._page()
        self._enter()

    def _groups_done(self, planned: list[_Planned]) -> Iterator[Group]:
        """Give the tasks to the engine, biggest first, and yield what comes back."""
        if not planned:
            return
        from loganalyze.scan import work

        options = self._options
        planned.sort(key=lambda p: (-p.found.size, p.found.name))
        settings = work.Settings(
            options.overrides,
            options.profile,
            options.pages,
            options.host,
            time.time(),
            options.redact,
        )
        total = sum(max(0, p.found.size) for p in planned)
        self._sum.files_total += sum(p.found.files for p in planned)
        self._sum.bytes_total += total
        engine: local.Pool | Cluster
        if options.engine == "ray":
            from loganalyze.scan import cluster

            engine = cluster.Cluster(settings, options.address, options.jobs)
            groups = list(_grouped(planned, total, engine.cores, cluster.GROUP))
        else:
            cores, memory = options.jobs or local.cores(), options.memory or local.memory()
            groups = list(_grouped(planned, total, cores, local.GROUP))
            engine = local.Pool(settings, local.jobs_for(cores, memory, len(groups)), memory)
        before = self._sum.bytes_done
        with engine:
            for result in engine.run(self._tasks(group) for group in groups):
                self._sum.bytes_done = before + engine.read
                if self._on_tick:
                    self._on_tick(self._sum)
                if result is not None:
                    yield result.group or self._killed(result.tasks, result.beyond)
        self._sum.bytes_done = before + total

    def _tasks(self, group: Iterable[_Planned]) -> list[Task]:
        from loganalyze.scan import work

        return [
            work.Task(
                p.found,
                p.fingerprint,
                same=p.origin.sha256 if p.origin else "",
                known=p.known,
                tail=self._state.tail(p.found.name) if p.grown else None,
            )
            for p in group
        ]

    def _killed(self, tasks: Iterable[Task], beyond: int) -> Group:
        """Return the result of inputs whose reading killed its process, twice."""
        from loganalyze.scan import work

        reason = "the process that read it died, twice"
        hint = "out of memory, perhaps: give it more, or fewer processes with --jobs"
        if beyond:
            reason = f"needs more memory than there is for one log ({beyond / 1e9:.1f} GB)"
            hint = "give it more with --memory"
        results = [work.failed(task, reason, hint, again=True) for task in tasks]
        return work.Group([d for d, _ in results], work.packed({"runs": [r for _, r in results]}))

    # -- entering -------------------------------------------------------------------------

    def _enter(self) -> None:
        """Enter what has come back since the last time."""
        self._entered = time.monotonic()
        results, self._results, self._size = self._results, [], 0
        if not results:
            return
        from loganalyze.scan import dataset

        change = Change()
        tables = {
            table: [
                dataset.from_bytes(table, [g.tables[table]]) for g in results if table in g.tables
            ]
            for table in dataset.TABLES
        }
        rows = {row["run"]: row for part in tables["runs"] for row in part.to_dicts()}
        ways: dict[str, str] = {}
        for done in (d for group in results for d in group.done):
            self._took(done, change, rows, ways)
        self._commit(change, tables)
        for run in change.runs:
            self._told(run.row, ways[run.run])

    def _took(
        self, done: Done, change: Change, rows: Mapping[str, Any], ways: dict[str, str]
    ) -> None:
        """Add what became of one input to a change."""
        found = done.task.found
        name = found.name
        if done.status == "same":  # of the same contents, though its stamp says otherwise
            self._sum.unchanged += found.files
            known = self._state.known(name)
            status = known.status if known else "read"
            change.inputs.append(
                self._known(done, status, copy_of=known.copy_of if known else None)
            )
            change.inputs += self._parts(done)
            for run in self._state.runs_of(name):
                self._told(run.row, "unchanged")
            return
        way = "grown" if done.task.tail and done.status == "read" else done.status
        setattr(self._sum, way, getattr(self._sum, way) + found.files)
        change.dropped += [name, *self._state.copies(name, "part")]
        change.dropped += [copy.name for copy in self._state.copies_within(name)]
        for part in [name, *(part.name for part in found.parts)]:
            known = self._state.known(part)
            change.dropped.append(part)
            if known and known.status == "part" and known.copy_of != name:
                whole = known.copy_of or ""  # which is no more what it was
                change.dropped += [whole, *self._state.copies(whole, "part")]
        change.inputs.append(self._known(done, done.status))
        change.inputs += self._parts(done)
        if done.tail:
            change.tails.append((name, json.dumps(done.tail[0]), done.tail[1]))
        for run_id, page in done.runs.items():
            row = _plain(rows[run_id])
            path = None
            if page is not None:
                path = f"reports/{run_id}.html"
                change.files[path] = page
            change.runs.append(Run(run_id, name, 0, path, row["is_problem"], _place(row), row))
            ways[run_id] = way

    def _known(self, done: Done, status: str, copy_of: str | None = None) -> Known:
        found = done.task.found
        return Known(
            found.name,
            done.size if done.size >= 0 else found.size,
            "" if done.again else found.stamp,
            done.fingerprint or done.task.fingerprint,
            done.sha256,
            status,
            self._settings,
            copy_of,
            done.reason or None,
            done.hint or None,
            json.dumps([part.name for part in found.parts]) if found.parts else None,
        )

    def _parts(self, done: Done) -> list[Known]:
        """Return the parts of a rotated log, so that one that is scanned alone is known."""
        found, known = done.task.found, []
        if done.again or done.status not in ("read", "same"):
            return []
        for part in found.parts:
            with contextlib.suppress(InputError):  # it may be gone by now
                known.append(
                    Known(
                        part.name,
                        part.size,
                        part.stamp,
                        inputs.print_of(part),
                        done.sha256,
                        "part",
                        self._settings,
                        found.name,
                    )
                )
        return [part for part in known if part.name != found.name]

    def _commit(self, change: Change, tables: Mapping[str, list[pl.DataFrame]]) -> None:
        """Enter a change: rows that it replaces leave their parts, new rows make a new part."""
        from loganalyze.scan import work

        gone = [run for name in dict.fromkeys(change.dropped) for run in self._state.runs_of(name)]
        gone += change.dropped_runs
        files, change.files = change.files, {}
        pages = {*files, *(old for old, _ in change.renamed)}
        change.removed += [r.page for r in gone if r.page and r.page not in pages]
        self._purge(change, gone)
        if change.runs:
            part = int(self._state.get("parts") or 0) + 1
            change.meta["parts"] = str(part)
            change.runs = [run._replace(part=part) for run in change.runs]
            for table, data in work.packed(tables).items():
                change.files[part_path(table, part)] = data
        if change.runs or gone or change.inputs:
            change.meta |= {"page": "old", "settled": "no"}
        change.files.update(files)
        try:
            self._state.commit(change)
        except OSError as error:
            raise InputError(
                f"{self._state.out}: cannot be written ({error.strerror})", hint=_next(error)
            ) from error

    def _purge(self, change: Change, gone: Sequence[Run]) -> None:
        """Write the parts that hold rows of `gone` again, without them."""
        if not gone:
            return
        import polars as pl

        from loganalyze.scan import dataset

        ids = [run.run for run in gone]
        for part in sorted({run.part for run in gone}):
            for table in dataset.TABLES:
                path = part_path(table, part)
                rows = dataset.from_bytes(table, self._part(table, part))
                left = rows.filter(~pl.col("run").is_in(ids))
                if left.height:
                    change.files[path] = dataset.to_bytes(left)
                elif rows.height:
                    change.removed.append(path)

    def _settle(self) -> None:
        """Take away the runs whose contents another run has, which files alone do not show.

        Such are logs within archives, packed ones, and objects, of which nothing is known before
        they are read. The file counts, then the object; what may grow, then the first by name.
        """
        if self._state.get("settled") == "yes":
            return
        change = Change()
        first: dict[str, tuple[str, str]] = {}
        shown = {run.run: self._name_of(run) for run in self._state.runs()}
        runs = [run for run in self._state.runs() if not run.row["error"] and run.row["sha256"]]
        runs.sort(
            key=lambda r: (
                shown[r.run] != r.input,
                inputs.is_url(r.input),
                r.row["kind"] != "file",
                shown[r.run],
            )
        )
        for run in runs:
            name, content = shown[run.run], run.row.get("content_sha256") or run.row["sha256"]
            origin, sha256 = first.setdefault(content, (name, run.row["sha256"]))
            if origin == name:
                continue
            change.dropped_runs.append(run)
            known = self._state.known(name) or Known(
                name, run.row["size_bytes"] or 0, "", "", sha256, "copy", self._settings
            )
            change.inputs.append(known._replace(status="copy", copy_of=origin, sha256=sha256))
            for copy in map(self._state.known, self._state.copies(name)):
                if copy:
                    change.inputs.append(copy._replace(copy_of=origin, sha256=sha256))
        if change.dropped_runs:
            self._commit(change, {})
        settled = Change()
        settled.meta["settled"] = "yes"
        self._state.commit(settled)

    @staticmethod
    def _name_of(run: Run) -> str:
        """Return the name of a run's log as inputs have it, of any bytes."""
        log: str = run.row["log"]
        return run.input + log.removeprefix(inputs.shown(run.input))

    def _part(self, table: str, part: int) -> list[bytes]:
        """Return a part of a table; none where it had no rows."""
        path = self._state.out / part_path(table, part)
        return [path.read_bytes()] if path.exists() else []

    def _told(self, row: Mapping[str, Any], way: str) -> None:
        """Count a run, and tell about it."""
        order = (None, "info", "warning", "critical")
        self._sum.runs += row["error"] is None
        self._sum.partly += bool(row.get("unread"))  # no column of earlier scans
        self._sum.worst = max(self._sum.worst, row["severity"], key=order.index)
        if self._on_run:
            self._on_run(row, way)

    def _page(self) -> None:
        """Write index.html and the schema, if they are not of the present state."""
        self._paged = time.monotonic()
        state = self._state
        current = state.get("page") == __version__
        if current and (state.out / "index.html").exists():
            return
        from loganalyze.report import index_to_html
        from loganalyze.scan import dataset, overview

        change = Change()
        change.files["dataset/README.md"] = dataset.describe().encode()
        change.files["index.html"] = index_to_html.render(
            overview.of(state), redact=self._options.redact
        ).encode()
        change.meta["page"] = __version__
        try:
            state.commit(change)
        except OSError as error:
            raise InputError(
                f"{state.out}: cannot be written ({error.strerror})", hint=_next(error)
            ) from error


def _grouped(
    planned: Sequence[_Planned], total: int, cores: int, files: int
) -> Iterator[list[_Planned]]:
    """Yield groups in the order given: by bytes, so that every core gets many."""
    limit = min(max(total // (cores * 16), _GROUP_BYTES[0]), _GROUP_BYTES[1])
    group: list[_Planned] = []
    size = 0
    for one in planned:
        if group and (size + one.found.size > limit or len(group) == files):
            yield group
            group, size = [], 0
        group.append(one)
        size += max(0, one.found.size)
    if group:
        yield group


def _again(known: Known) -> Input:
    """Return a known input as it is now."""
    if known.parts is None:
        return inputs.file(known.name)
    parts = [inputs.file(name) for name in json.loads(known.parts)]
    error = next((part.error for part in parts if part.error), "")
    return inputs.joined(known.name, parts)._replace(error=error)


def _still_there(known: Known) -> bool:
    """Tell whether an input still has its contents."""
    found = _again(known)
    try:
        return found.size == known.size and inputs.print_of(found) == known.fingerprint
    except LogAnalyzeError:
        return False


def _files(known: Known) -> int:
    return 1 if known.parts is None else len(json.loads(known.parts))


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can carry it: times in ISO 8601."""
    return {k: v.isoformat() if hasattr(v, "isoformat") else v for k, v in row.items()}


def _place(row: Mapping[str, Any]) -> int:
    """Return a number that orders runs, the worst highest.

    Criticals come first, then warnings, then logs that could not be read or judged, then the
    rest; within each those that lost their server, then those with the largest share of their
    time in trouble.
    """
    rank = {"critical": 4, "warning": 3}.get(row["severity"] or "", 0)
    if rank == 0 and row["error"]:
        rank = 2
    if rank == 0 and row["status"] == "undetermined":
        rank = 1
    crashed = 5_000_000 if row["primary"] == "CRS001" else 0
    return rank * 10_000_000 + crashed + int((row["problem_frac"] or 0.0) * 1_000_000)
