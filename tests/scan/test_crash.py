"""Killed at any moment, out of room, or run twice: nothing is lost, repeated or half written."""

import errno
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from scanned import ROOT, log_text

from loganalyze.errors import InputError, UsageError
from loganalyze.scan import archive as library
from loganalyze.scan import dataset, inputs, local, work
from loganalyze.scan.state import Change, Known, Run, State, part_path

OPTIONS = library.Options(jobs=2)


def whole(out):
    """Return the dataset's rows as they are visible, after checking that they are whole."""
    parts = sorted((out / "dataset" / "runs").glob("*"))
    if not parts:
        return pl.DataFrame(schema={"run": pl.String, "report": pl.String, "log": pl.String})
    rows = pl.read_parquet(parts)
    assert rows["run"].n_unique() == len(rows)
    for page in rows["report"].drop_nulls():
        assert (out / page).read_text().endswith("</html>")
    return rows


@pytest.fixture
def many(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for k in range(24):
        (folder / f"run{k:02d}.log").write_text(log_text(full=k % 3 == 0, lines=90, seed=k))
    return folder


def test_killed_again_and_again_it_repeats_nothing(many, tmp_path):
    """Some runs are killed before they have entered a log, others soon after they have."""
    out, told, killed = tmp_path / "out", [], 0
    rng = random.Random(7)
    command = [sys.executable, "-m", "loganalyze", "scan", str(many), "-o", str(out), "--json"]
    for k in range(7):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=-3, text=True)
        lines = []
        if k % 3:
            for line in process.stdout:
                lines.append(line)
                if '"read"' in line:
                    break
        time.sleep(rng.uniform(0, 0.4))
        process.kill()
        lines += process.communicate()[0].splitlines()
        killed += process.returncode == -signal.SIGKILL
        rows = [json.loads(line) for line in lines if line.endswith(("}", "}\n"))]
        told += [r["log"] for r in rows if r["how"] == "read"]
        assert len(whole(out)) >= len(told)
    assert killed
    last = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    told += [r["log"] for r in map(json.loads, last.stdout.splitlines()) if r["how"] == "read"]
    assert len(told) == len(set(told))  # nothing that was told as done was done again
    assert len(whole(out)) == 24
    library.scan([str(many)], str(tmp_path / "fresh"), OPTIONS)
    for name in dataset.TABLES:
        pair = [
            pl.read_parquet(sorted((o / "dataset" / name).glob("*"))).sort(pl.all())
            for o in (out, tmp_path / "fresh")
        ]
        assert pair[0].equals(pair[1]), name


class Killed(BaseException):
    """Stands for a kill: nothing after it runs but a new start."""


#: Every call that changes the disk, in the order in which a commit makes them.
STEPS = ("fsync", "replace", "unlink", "execute")


def failing_at(monkeypatch, number, error):
    """Let the disk-changing call of that number raise, and every later one."""
    count = 0

    def wrapped(call):
        def once(*arguments, **options):
            nonlocal count
            count += 1
            if count > number:
                raise error
            return call(*arguments, **options)

        return once

    monkeypatch.setattr(os, "fsync", wrapped(os.fsync))
    monkeypatch.setattr(Path, "replace", wrapped(Path.replace))
    monkeypatch.setattr(Path, "unlink", wrapped(Path.unlink))
    return lambda: count > number


def change(name, part, page):
    """A commit of one input with one run, whose part and page hold `page`."""
    made = Change()
    made.dropped = [name]
    made.inputs = [Known(name, 1, "s", "f", "h", "read", "k")]
    row = {"run": name, "log": name, "error": None, "page": page.decode()}
    made.runs = [Run(name, name, part, f"reports/{name}.html", True, 0, row)]
    made.files = {part_path("runs", part): page, f"reports/{name}.html": page}
    return made


def test_a_commit_happens_or_does_not_wherever_it_is_killed(tmp_path, monkeypatch):
    for number in range(40):
        out = tmp_path / f"out{number}"
        state = State(str(out))
        state.commit(change("a", 1, b"old"))
        second = change("a", 2, b"new")
        second.removed = [part_path("runs", 1)]
        with monkeypatch.context() as patch:
            reached = failing_at(patch, number, Killed())
            try:
                state.commit(second)
            except Killed:
                assert reached()
        state.close()
        again = State(str(out))
        (run,) = again.runs_of("a")
        page = run.row["page"].encode()
        assert page in (b"old", b"new")
        assert (out / "reports/a.html").read_bytes() == page
        assert [p.read_bytes() for p in (out / "dataset/runs").iterdir()] == [page]
        assert not list((out / ".state/new").iterdir())
        again.close()
        if not reached():
            break
    else:
        pytest.fail("the commit never came to its end")
    assert number > 5


def test_a_full_disk_stops_the_scan_and_loses_nothing(many, tmp_path, monkeypatch):
    out = tmp_path / "out"
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        failing_at(patch, 12, full)
        with pytest.raises(InputError, match="No space left") as raised:
            library.scan([str(many)], str(out), OPTIONS)
    assert "make room" in raised.value.hint
    before = set(whole(out)["log"])
    done = library.scan([str(many)], str(out), OPTIONS)
    assert done.unchanged == len(before)
    assert len(whole(out)) == 24


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize("room", [0, 4_096, 54_000])
def test_a_write_that_the_system_refuses_loses_nothing(many, tmp_path, run, room):
    """A file that may not grow: of the database, of a table, or of a page, as it comes."""
    import resource

    out = tmp_path / "out"
    for log in sorted(many.iterdir())[4:]:
        log.unlink()
    limit = (resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    options = ["--jobs", 1, "--reports", "all"]
    done = run("scan", many, "-o", out, *options, preexec_fn=lambda: resource.setrlimit(*limit))
    assert done.returncode == 2
    assert "hint: what was finished is kept" in done.stderr
    assert "Traceback" not in done.stderr
    before = len(whole(out))
    done = run("scan", many, "-o", out, *options, "--json", check=0)
    told = [json.loads(line)["how"] for line in done.stdout.splitlines()]
    assert told.count("unchanged") == before
    assert len(whole(out)) == 4
    assert len(list((out / "reports").iterdir())) == 4
    assert not list((out / ".state/new").iterdir())


def test_what_cannot_be_opened_or_vanishes_is_a_row(many, tmp_path, monkeypatch):
    for log in sorted(many.iterdir())[3:]:
        log.unlink()

    def opened(path, *arguments, **options):
        if path.endswith("run01.log"):
            raise PermissionError(errno.EACCES, "Permission denied")
        file = open(path, *arguments, **options)  # noqa: SIM115 - the caller closes it
        if path.endswith("run02.log"):
            os.unlink(path)  # rotated away between being found and being read
        return file

    monkeypatch.setattr(inputs, "open", opened, raising=False)
    options = library.Options(jobs=1, pages="none")
    done = library.scan([str(many)], str(tmp_path / "out"), options)
    assert (done.read, done.unreadable) == (1, 2)
    errors = {os.path.basename(r["log"]): r["error"] for r in whole(tmp_path / "out").to_dicts()}
    assert errors == {
        "run00.log": None,
        "run01.log": "cannot be read (Permission denied)",
        "run02.log": "no such file",
    }


def test_a_full_database_says_so(many, tmp_path, monkeypatch):
    def commit(self, change):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(State, "commit", commit)
    with pytest.raises(InputError, match="disk is full"):
        library.scan([str(many / "run00.log")], str(tmp_path / "out"), OPTIONS)


def test_a_second_scan_of_one_folder_says_so(many, tmp_path, run):
    state = State(str(tmp_path / "out"))
    done = run("scan", many, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "another scan is writing there" in done.stderr
    state.close()
    run("scan", many / "run01.log", "-o", tmp_path / "out", check=0)


def test_a_damaged_state_is_refused(tmp_path):
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "scan.sqlite").write_bytes(b"no database at all" * 200)
    with pytest.raises(InputError, match="is damaged"):
        State(str(tmp_path))
    (tmp_path / ".state" / "scan.sqlite").unlink()
    db = sqlite3.connect(tmp_path / ".state" / "scan.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UsageError, match="version 99"):
        State(str(tmp_path))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent differently there")
def test_ctrl_c_leaves_a_usable_folder(many, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "loganalyze", "scan", str(many), "-o", str(out), "--json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=-1, text=True)
    assert process.stdout.readline()  # something is entered
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    if process.returncode == 0:
        pytest.skip("the scan was done before it could be interrupted")
    assert process.returncode == 130
    assert "interrupted" in errors
    n = len(whole(out))
    assert 0 < n < 24
    assert "Runs, worst first" in (out / "index.html").read_text()
    assert library.scan([str(many)], str(out), OPTIONS).unchanged == n


def poison(path):
    """Make analysing a log of that name kill its process, as running out of memory would."""
    real = work.analyze

    def analyze(tasks, settings, on_progress=None):
        if any(task.found.name == path for task in tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(tasks, settings, on_progress)

    return analyze


def poisoned_work(pipe, settings, counter, share):
    work.analyze = poison(settings.host)
    local_work(pipe, settings._replace(host=None), counter, share)


local_work = local._work


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_an_input_that_kills_its_process_is_a_row(many, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_work", poisoned_work)
    bad = str(many / "run17.log")
    options = library.Options(jobs=2, host=bad)
    done = library.scan([str(many)], str(tmp_path / "out"), options)
    assert (done.read, done.unreadable) == (23, 1)
    (row,) = whole(tmp_path / "out").filter(pl.col("error").is_not_null()).to_dicts()
    assert row["log"] == bad
    assert "died" in row["error"]


def hungry_work(pipe, settings, counter, share):
    """Let logs of given names need so many megabytes."""
    real, needs = work.analyze, dict(pair.split("=") for pair in settings.host.split())

    def analyze(tasks, settings, on_progress=None):
        for task in tasks:
            held = bytearray(int(needs.get(os.path.basename(task.found.name), 0)) << 20)
            held[::4096] = b"x" * len(held[::4096])  # pages count once they are written to
            time.sleep(0.2 * bool(held))
        return real(tasks, settings, on_progress)

    work.analyze = analyze
    local_work(pipe, settings._replace(host=None), counter, share)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_not_exceeded(many, tmp_path, monkeypatch):
    # Two processes of 600 MB: 800 MB are too much for one, not for both; 2,000 MB are.
    monkeypatch.setattr(local, "_work", hungry_work)
    options = library.Options(
        jobs=2, memory=1_500_000_000, host="run03.log=800 run04.log=2000", pages="none"
    )
    for log in sorted(many.iterdir())[6:]:
        log.unlink()
    done = library.scan([str(many)], str(tmp_path / "out"), options)
    assert (done.read, done.unreadable) == (5, 1)
    (row,) = whole(tmp_path / "out").filter(pl.col("error").is_not_null()).to_dicts()
    assert os.path.basename(row["log"]) == "run04.log"
    assert row["error"] == "needs more memory than there is for one log (1.2 GB)"
    with pytest.raises(UsageError, match="at least 600M"):
        library.scan([str(many)], str(tmp_path / "out"), library.Options(memory=10**8))


def stillborn_work(pipe, settings, counter, share):
    os._exit(1)


def test_processes_that_cannot_start_end_the_scan(many, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_work", stillborn_work)
    with pytest.raises(InputError, match="cannot start"):
        library.scan([str(many)], str(tmp_path / "out"), OPTIONS)


def test_a_killed_worker_costs_nothing(many, tmp_path):
    settings = work.Settings({}, None, "none", None, time.time())
    tasks = [work.Task(inputs.file(str(p))) for p in sorted(many.iterdir())]
    groups = [tasks[k : k + 2] for k in range(0, 24, 2)]
    seen, killed = [], False
    with local.Pool(settings, 2, 2 << 30) as pool:
        for result in pool.run(iter(groups)):
            if result is None:
                continue
            seen += [done.task.found.name for done in result.group.done if done.status == "read"]
            if not killed:
                pool._workers[-1].process.kill()
                killed = True
    assert sorted(seen) == [task.found.name for task in tasks]
