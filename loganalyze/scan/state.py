"""What a scan has done: an SQLite database, and files that appear whole or not at all.

The database is the truth. A commit takes three steps: new files are written beside
(`.state/new`) and flushed to the disk; one transaction enters the results together with the
moves that are still to be made; the moves are made. Killed before the transaction, nothing
has happened; killed after it, the next start makes the moves that are left. So whatever is in
the database is in the dataset once, and nothing else is.

One process writes: it holds a lock on `.state/lock` that dies with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loganalyze.errors import InputError, UsageError

#: Raised when tables change; an OUT of another version is refused, never misread.
VERSION = 2
#: Folders of OUT.
STATE, REPORTS, DATASET = ".state", "reports", "dataset"

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE inputs (
    name TEXT PRIMARY KEY, size INTEGER, stamp TEXT, fingerprint TEXT, sha256 TEXT,
    status TEXT NOT NULL, settings TEXT NOT NULL, copy_of TEXT, reason TEXT, hint TEXT,
    parts TEXT
) WITHOUT ROWID;
CREATE INDEX by_fingerprint ON inputs (fingerprint);
CREATE INDEX by_origin ON inputs (copy_of) WHERE copy_of IS NOT NULL;
CREATE TABLE runs (
    run TEXT PRIMARY KEY, input TEXT NOT NULL, part INTEGER NOT NULL, page TEXT,
    is_problem INTEGER, place INTEGER NOT NULL, row TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_input ON runs (input);
CREATE INDEX by_part ON runs (part);
CREATE INDEX by_place ON runs (place);
CREATE TABLE tails (input TEXT PRIMARY KEY, facts TEXT NOT NULL, frames BLOB NOT NULL);
CREATE TABLE moves (source TEXT, target TEXT NOT NULL);
"""


class Known(NamedTuple):
    """What the database holds about an input.

    `status` is read (it has runs), unreadable, other (no log of SGLang), copy (its contents
    are those of `copy_of`, whose runs count), or part (of the rotated log `copy_of`). Of a copy
    and a part `sha256` is that of `copy_of`. A copy may be a log within an archive, and so may
    what it is a copy of: `archive!member`. `parts` of a rotated log are the names of its files,
    oldest first, as a JSON list.
    """

    name: str
    size: int
    stamp: str
    fingerprint: str
    sha256: str
    status: str
    settings: str
    copy_of: str | None = None
    reason: str | None = None
    hint: str | None = None
    parts: str | None = None


class Run(NamedTuple):
    """What the database holds about a run: its part, its page, and its row of `runs`."""

    run: str
    input: str
    part: int
    page: str | None
    is_problem: bool
    place: int
    row: Mapping[str, Any]


class Totals(NamedTuple):
    """What an output folder holds.

    `runs` are the logs that were analysed, each contents once, `problems` those of them with a
    warning or critical, `failed` the logs that could not be analysed, and `copies` the logs that
    are left out because their contents count already, `within` of them within archives.
    """

    runs: int
    problems: int
    failed: int
    copies: int
    within: int


class State:
    """The state of an output folder, held open and locked."""

    def __init__(self, out: str) -> None:
        """Open or create the state of `out`.

        Raises:
            UsageError: another scan writes there, or it is no folder of a scan.
        """
        self.out = Path(out)
        self._make()
        self._lock = _locked(self.out / STATE / "lock", self.out)
        try:
            self._db = _opened(self.out / STATE / "scan.sqlite", create=True)
            self._recover()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{self.out}: is a file", hint="-o names a folder")
        if self.out.is_dir() and not (self.out / STATE).is_dir() and any(self.out.iterdir()):
            raise UsageError(
                f"{self.out}: is not empty, and not the output of a scan",
                hint="name a new folder, or one that an earlier scan wrote",
            )
        for folder in (f"{STATE}/new", REPORTS, *(f"{DATASET}/{t}" for t in TABLES)):
            (self.out / folder).mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Let go of the database and the lock."""
        with contextlib.suppress(AttributeError):
            self._db.close()
        self._lock.close()

    # -- asking ---------------------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """Return a value of the scan itself."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def known(self, name: str) -> Known | None:
        """Return what is known of an input, by its name."""
        rows = self._db.execute("SELECT * FROM inputs WHERE name = ?", (_kept(name),))
        return next(map(_known, rows), None)

    def alike(self, fingerprint: str) -> Known | None:
        """Return an input with runs whose contents have this fingerprint."""
        rows = self._db.execute(
            "SELECT * FROM inputs WHERE fingerprint = ? AND status = 'read' LIMIT 1",
            (fingerprint,),
        )
        return next(map(_known, rows), None)

    def runs_of(self, name: str) -> list[Run]:
        """Return the runs of an input."""
        return list(self._runs("WHERE input = ? ORDER BY run", (_kept(name),)))

    def run(self, run: str) -> Run | None:
        """Return a run by its id."""
        return next(self._runs("WHERE run = ?", (run,)), None)

    def totals(self) -> Totals:
        """Return what the folder holds."""
        runs, problems, rows = self._db.execute(
            "SELECT count(is_problem), ifnull(sum(is_problem), 0), count(*) FROM runs"
        ).fetchone()
        within = sum(self.archive(known.name) is not None for known in self.inputs("copy"))
        return Totals(runs, problems, rows - runs, self.count("copy"), within)

    def archive(self, log: str) -> str | None:
        """Return the archive that holds a log named `archive!member`; None for a file."""
        cuts = [k for k, letter in enumerate(log) if letter == "!"]
        return next((log[:k] for k in cuts if self.known(log[:k])), None)

    def copies_within(self, archive: str) -> list[Known]:
        """Return the copies that an archive holds."""
        found = self._db.execute(
            "SELECT * FROM inputs WHERE name >= ? AND name < ? AND status = 'copy'",
            (_kept(f"{archive}!"), _kept(f"{archive}{chr(ord('!') + 1)}")),
        )
        return [_known(row) for row in found]

    def runs(self, limit: int = -1) -> Iterator[Run]:
        """Yield all runs, worst first."""
        return self._runs("ORDER BY place DESC, run LIMIT ?", (limit,))

    def _runs(self, where: str, values: Sequence[object]) -> Iterator[Run]:
        for row in self._db.execute(f"SELECT * FROM runs {where}", values).fetchall():
            run, name, *head, text = row
            yield Run._make([run, os.fsdecode(name), *head, json.loads(text)])

    def unpaged(self, pages: str) -> set[str]:
        """Return the inputs with a run that should have a page and has none."""
        if pages == "none":
            return set()
        wanted = "is_problem" if pages == "problems" else "is_problem IS NOT NULL"
        found = self._db.execute(f"SELECT input FROM runs WHERE page IS NULL AND {wanted}")
        return {os.fsdecode(row[0]) for row in found}

    def inputs(self, status: str, limit: int = -1) -> list[Known]:
        """Return the inputs of a status, by name."""
        found = self._db.execute(
            "SELECT * FROM inputs WHERE status = ? ORDER BY name LIMIT ?", (status, limit)
        )
        return [_known(row) for row in found]

    def count(self, status: str) -> int:
        """Return how many inputs have a status."""
        found = self._db.execute("SELECT count(*) FROM inputs WHERE status = ?", (status,))
        return int(found.fetchone()[0])

    def copies(self, name: str, status: str = "copy") -> list[str]:
        """Return the other names of an input's contents; or those of its parts."""
        found = self._db.execute(
            "SELECT name FROM inputs WHERE copy_of = ? AND status = ? ORDER BY name",
            (_kept(name), status),
        )
        return [os.fsdecode(row[0]) for row in found]

    def tail(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """Return from where a log can be read on: facts, and packed frames."""
        found = self._db.execute("SELECT facts, frames FROM tails WHERE input = ?", (_kept(name),))
        row = found.fetchone()
        return (json.loads(row[0]), row[1]) if row else None

    # -- changing -------------------------------------------------------------------------

    def commit(self, change: Change) -> None:
        """Enter a change, all of it or nothing.

        Raises:
            OSError, sqlite3.Error: the disk is full or broken; nothing has changed.
        """
        self._move()  # of the commit before, if it was interrupted there
        staged = self._stage(change.files)
        try:
            with self._transaction():
                for name in map(_kept, change.dropped):
                    self._db.execute("DELETE FROM tails WHERE input = ?", (name,))
                    self._db.execute("DELETE FROM runs WHERE input = ?", (name,))
                    self._db.execute("DELETE FROM inputs WHERE name = ?", (name,))
                for run in change.dropped_runs:
                    self._db.execute("DELETE FROM runs WHERE run = ?", (run.run,))
                self._insert("inputs", change.inputs)
                self._insert("runs", ((*r[:-1], json.dumps(r.row)) for r in change.runs))
                self._insert("tails", change.tails)
                self._insert("meta", change.meta.items())
                # What is taken away goes first: a reader may miss a run for a moment, and
                # never sees one twice.
                self._insert("moves", ((None, target) for target in change.removed))
                self._insert("moves", [*change.renamed, *staged])
        except BaseException:
            for source, _ in staged:
                (self.out / source).unlink(missing_ok=True)
            raise
        self._move()

    def _insert(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        rows = [[_kept(v) if isinstance(v, str) else v for v in row] for row in rows]
        if rows:
            marks = ",".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)

    def _stage(self, files: Mapping[str, bytes]) -> list[tuple[str, str]]:
        """Write files beside, flushed to the disk."""
        staged: list[tuple[str, str]] = []
        try:
            for k, (target, data) in enumerate(files.items()):
                source = f"{STATE}/new/{k}"
                staged.append((source, target))
                with open(self.out / source, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            _sync_folder(self.out / STATE / "new")
        except BaseException:
            for source, _ in staged:
                (self.out / source).unlink(missing_ok=True)
            raise
        return staged

    def _move(self) -> None:
        """Make the moves that are entered, and strike them out."""
        moves = self._db.execute("SELECT source, target FROM moves ORDER BY rowid").fetchall()
        folders = set()
        for source, target in moves:
            place = self.out / target
            folders.add(place.parent)
            if source is None:
                place.unlink(missing_ok=True)
            elif (self.out / source).exists():
                (self.out / source).replace(place)
        for folder in folders:
            _sync_folder(folder)
        if moves:
            with self._transaction():
                self._db.execute("DELETE FROM moves")

    def _recover(self) -> None:
        """Finish what a killed scan had entered, and clear away what it had not."""
        self._move()
        for left in (self.out / STATE / "new").iterdir():
            left.unlink()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


class Change:
    """What one commit enters.

    Attributes:
        dropped: inputs to be forgotten with their runs, before anything is entered.
        dropped_runs: runs to be forgotten, whose input stays.
        inputs, runs, tails, meta: rows to enter.
        files: path within OUT -> contents, in the order in which they are to appear.
        removed: paths within OUT to delete, before any file appears.
        renamed: paths within OUT that get another name.
    """

    def __init__(self) -> None:
        self.dropped: list[str] = []
        self.dropped_runs: list[Run] = []
        self.inputs: list[Known] = []
        self.runs: list[Run] = []
        self.tails: list[tuple[str, str, bytes]] = []
        self.meta: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.removed: list[str] = []
        self.renamed: list[tuple[str, str]] = []


TABLES = ("runs", "findings", "episodes", "series")


def part_path(table: str, part: int) -> str:
    """Return where a part of a table lies, within OUT."""
    return f"{DATASET}/{table}/part-{part:06d}.parquet"


def _kept(text: str) -> str | bytes:
    """Return text as SQLite takes it: a name that is not UTF-8 as its bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text


def _known(row: Sequence[Any]) -> Known:
    return Known._make(os.fsdecode(v) if isinstance(v, bytes) else v for v in row)


def _opened(path: Path, *, create: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    try:
        db.execute("PRAGMA synchronous = FULL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and create:
            db.execute("BEGIN EXCLUSIVE")
            for statement in _TABLES.strip().split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        elif version != VERSION:
            raise UsageError(
                f"{path}: has version {version}, this loganalyze writes {VERSION}",
                hint="scan into a new folder",
            )
    except sqlite3.OperationalError:  # no room, or no right to write
        db.close()
        raise
    except sqlite3.DatabaseError as error:
        db.close()
        raise InputError(f"{path}: is damaged ({error})", hint="scan into a new folder") from None
    return db


def _locked(path: Path, out: Path) -> Any:  # noqa: ANN401 - an open file
    """Lock a file until it is closed or its process dies."""
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held as long as the state is
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read(40).decode(errors="replace").strip()
        file.close()
        raise UsageError(
            f"{out}: another scan is writing there" + (f" ({owner})" if owner else ""),
            hint="wait for it, or name another folder with -o",
        ) from None
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(f"process {os.getpid()}".encode())
    return file


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where the system can."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
