"""Rotated logs: many files, one run, as for `check`."""

import os
import sys

import polars as pl
import pytest
from scanned import log_text, rotated

from loganalyze import pipeline
from loganalyze.scan import archive as library
from loganalyze.scan import inputs, rotation

OPTIONS = library.Options(jobs=1, pages="none")


def scan(*paths, out):
    return library.scan([str(p) for p in paths], str(out), OPTIONS)


def runs(out):
    return pl.read_parquet(sorted((out / "dataset" / "runs").glob("*"))).to_dicts()


def sets(folder):
    """Return the file names of each rotated log in a folder."""
    found = rotation.joined(list(inputs.find([str(folder)], "/nowhere")), lambda name: None)
    return {
        os.path.basename(one.name): [os.path.basename(part.name) for part in one.parts]
        for one in found
        if one.parts
    }


def test_parts_are_one_run_that_is_read_again_when_it_changes(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    text = rotated(folder)
    done = scan(folder, out=out)
    assert (done.inputs, done.read, done.runs) == (3, 3, 1)
    (run,) = runs(out)
    assert run["log"] == str(folder / "server.log")
    assert (run["files"], run["lines"], run["lines_batch"]) == (3, 123, 120)
    assert run["kind"] == "gzip, file"
    assert run["model"] == "Qwen3-32B"  # as the oldest part says
    names = ["server.log.2.gz", "server.log.1", "server.log"]
    checked = pipeline.analyze(*(str(folder / name) for name in names))
    assert run["headline"] == checked.verdict.headline
    assert len(checked.sessions) == run["sessions"] == 1
    # All parts move up, and nothing is new: contents tell that it is the same.
    for old, new in (("2.gz", "3.gz"), ("1", "2"), ("", "1")):
        (folder / f"server.log.{old}".rstrip(".")).rename(folder / f"server.log.{new}")
    done = scan(folder, out=out)
    assert (done.read, done.unchanged, done.moved) == (0, 3, 0)
    # A new part: the whole is read again, and stays one run of the same name.
    more = log_text(full=True, lines=150).splitlines(keepends=True)[123:]
    (folder / "server.log").write_text("".join(more))
    done = scan(folder, out=out)
    assert (done.read, done.runs) == (4, 1)
    (run,) = runs(out)
    assert (run["files"], run["lines"]) == (4, 123 + len(more))
    # One part on its own is known, and counts no second time.
    done = scan(folder / "server.log.2", out=out)
    assert (done.read, done.unchanged, done.copies) == (0, 1, 1)
    assert len(runs(out)) == 1
    assert text.count("\n") == 123


def test_a_log_that_is_rotated_later_keeps_its_run(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    rotated(folder, n=2)
    (folder / "server.log").rename(tmp_path / "later.log")
    scan(folder, out=out)
    (before,) = runs(out)
    assert before["log"].endswith("server.log.1.gz")
    (tmp_path / "later.log").rename(folder / "server.log")
    scan(folder, out=out)
    (after,) = runs(out)
    assert (after["files"], after["lines"]) == (2, 83)
    # The whole set under another name is moved, not read.
    folder.rename(tmp_path / "elsewhere")
    done = scan(tmp_path / "elsewhere", out=out)
    assert (done.read, done.moved) == (0, 2)
    (moved,) = runs(out)
    assert moved["log"] == str(tmp_path / "elsewhere" / "server.log")
    assert {**moved, "run": "", "log": ""} == {**after, "run": "", "log": ""}


def test_names_alone_make_no_set(tmp_path):
    side_by_side = tmp_path / "ranks"
    side_by_side.mkdir()
    for rank in (0, 1):  # rank 1 a moment earlier, as the numbers of a rotated log would fall
        start = f"2026-03-02 10:00:0{2 - rank}"
        (side_by_side / f"rank.{rank}.log").write_text(log_text(full=False, start=start))
    assert sets(side_by_side) == {}
    nightly = tmp_path / "nightly"
    nightly.mkdir()
    for day in (1, 2, 3):  # each a start of its own
        text = log_text(full=False, lines=80, start=f"2026-03-0{day} 02:00:00")
        (nightly / f"bench-2026-03-0{day}.log").write_text(text)
    assert sets(nightly) == {}
    # The second day's log goes on in a third file.
    lines = log_text(full=False, lines=80, start="2026-03-02 02:00:00").splitlines(keepends=True)
    (nightly / "bench-2026-03-02.log").write_text("".join(lines[:50]))
    (nightly / "bench-2026-03-03.log").write_text("".join(lines[50:]))
    assert sets(nightly) == {
        "bench-2026-03-03.log": ["bench-2026-03-02.log", "bench-2026-03-03.log"]
    }
    no_stamps = tmp_path / "other"
    no_stamps.mkdir()
    for age in ("", ".1", ".2"):
        (no_stamps / f"notes.txt{age}").write_text("no stamp in here\n")
    assert sets(no_stamps) == {}


def test_a_part_that_cannot_be_read_is_left_out_of_its_set(tmp_path):
    rotated(tmp_path / "in", n=4)
    (tmp_path / "in" / "server.log.2").write_bytes(b"\x7fELF" + bytes(900))
    assert sets(tmp_path / "in") == {
        "server.log": ["server.log.3.gz", "server.log.1", "server.log"]
    }


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names there are Unicode")
def test_names_that_are_not_utf_8_survive(tmp_path, run):
    folder, out = os.fsencode(tmp_path / "in"), tmp_path / "out"
    os.mkdir(folder)
    for name in (b"caf\xe9.log", rb"caf\xe9.log", "café.log".encode()):
        with open(os.path.join(folder, name), "w") as file:
            file.write(log_text(full=True, seed=len(name) + name[3]))
    with open(os.path.join(folder, b"bad\xff.log"), "wb") as file:
        file.write(b"\x7fELF" + bytes(99))
    done = run("scan", tmp_path / "in", "-o", out, "--json", check=3)
    names = {rb"caf\xe9.log".decode(), r"caf\\xe9.log", "café.log", r"bad\xff.log"}
    assert {os.path.basename(row["log"]) for row in runs(out)} == names
    assert r"bad\xff.log: is a program" in done.stderr
    page = (out / "index.html").read_text(encoding="utf-8")
    assert all(name in page for name in names)
    done = scan(tmp_path / "in", out=out)
    assert (done.unchanged, done.unreadable) == (4, 1)
    os.rename(os.path.join(folder, b"caf\xe9.log"), os.path.join(folder, b"th\xe9.log"))
    assert scan(tmp_path / "in", out=out).moved == 1
    assert r"th\xe9.log" in {os.path.basename(row["log"]) for row in runs(out)}
