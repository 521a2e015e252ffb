"""Every output appears whole or not at all, and nothing that was there is lost."""

import os
import resource
import subprocess
import sys

import pytest
from program import EXCERPT, FOUNDING, ROOT, assert_clean, assert_refused, process, run

from loganalyze import compare, export, pipeline

#: What writes a file, with `{}` for it.
WRITERS = {
    "report -o": ["report", FOUNDING, "-o", "{}"],
    "report --markdown": ["report", FOUNDING, "--markdown", "{}"],
    "report --json": ["report", FOUNDING, "--json", "{}"],
    "report --figure": ["report", FOUNDING, "--figure", "{}"],
    "compare -o": ["compare", FOUNDING, FOUNDING, "-o", "{}"],
    "compare --markdown": ["compare", FOUNDING, FOUNDING, "--markdown", "{}"],
    "compare --json": ["compare", FOUNDING, FOUNDING, "--json", "{}"],
    "export parquet": ["export", FOUNDING, "--frame", "batch", "--format", "parquet", "-o", "{}"],
    "export csv": ["export", FOUNDING, "--frame", "batch", "--format", "csv", "-o", "{}"],
    "export ndjson": ["export", FOUNDING, "--frame", "batch", "--format", "ndjson", "-o", "{}"],
}
writers = pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
#: One for each way to write: they start processes, which takes its time.
WAYS = {name: WRITERS[name] for name in ("report -o", "export parquet", "export csv")}
ways = pytest.mark.parametrize("words", WAYS.values(), ids=WAYS)


def command(words, output, *more):
    return [str(w).replace("{}", str(output)) for w in (*words, *more)]


@pytest.fixture
def old(tmp_path):
    """A file that is in the way."""
    path = tmp_path / "output"
    path.write_text("precious")
    return path


@writers
def test_what_is_there_is_refused_before_anything_is_read(old, monkeypatch, words):
    def read(*paths, **options):
        pytest.fail("read")

    for module, name in ((pipeline, "analyze"), (compare, "compare"), (export, "write")):
        monkeypatch.setattr(module, name, read)
    result = run(*command(words, old))
    assert_refused(result)
    assert f"{old}: " in result.stderr
    assert "--force" in result.stderr
    assert old.read_text() == "precious"


@ways
def test_a_kill_in_the_middle_leaves_the_old_file(old, words):
    """Killed when all is written and nothing is in its place yet."""
    killed = "import os, signal; os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)"
    result = process(*command(words, old, "--force"), before=killed)
    assert result.returncode == -9
    assert old.read_text() == "precious"


@ways
def test_a_full_disk_leaves_the_old_file_and_says_so(old, words):
    """No file may grow beyond 2 kB, which each of them is larger than."""

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))

    result = process(*command(words, old, "--force"), preexec_fn=full)
    assert result.returncode == 2
    first, hint = result.stderr.decode().splitlines()
    assert first.startswith(f"loganalyze: {old}: File too large")
    assert hint.startswith("hint: ")
    assert old.read_text() == "precious"
    assert os.listdir(old.parent) == ["output"]


def test_a_full_temporary_folder_is_said_for_what_is(tmp_path):
    """Standard input is kept in a file; there is no room for it."""

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))

    result = process("check", "-", input=FOUNDING.read_bytes(), preexec_fn=full)
    assert result.returncode == 2
    assert result.stdout == b""
    first, *_ = result.stderr.decode().splitlines()
    assert first.startswith("loganalyze: ")
    assert "File too large" in first


@pytest.mark.parametrize("place", ["/proc/output", "/dev/full", "/dev/null/output"])
@pytest.mark.parametrize("name", ["report -o", "compare --json", "export csv", "export parquet"])
def test_a_place_that_takes_nothing_is_one_line(name, place):
    result = run(*command(WRITERS[name], place))
    assert_refused(result)
    assert result.stderr.startswith(f"loganalyze: {place}: ")


def test_an_archive_in_a_place_that_takes_nothing_is_one_line():
    for place in ("/proc/out", "/dev/full", "/dev/null/out"):
        result = process("scan", EXCERPT, "-o", place)
        assert result.returncode == 2
        assert b"internal error" not in result.stderr
        assert result.stderr.startswith(b"loganalyze: ")
        assert_clean(result.stderr)


@writers
def test_an_interrupt_ends_with_130_and_leaves_nothing(tmp_path, monkeypatch, words):
    def interrupted(*paths, **options):
        raise KeyboardInterrupt

    for module, name in ((pipeline, "analyze"), (compare, "compare"), (export, "write")):
        monkeypatch.setattr(module, name, interrupted)
    result = run(*command(words, tmp_path / "output"))
    assert result.exit_code == 130
    assert result.stderr.strip() == "loganalyze: interrupted"
    assert os.listdir(tmp_path) == []


@ways
def test_a_batch_system_that_ends_the_program_leaves_nothing(tmp_path, words):
    """SIGTERM, when all is written and nothing is in its place yet."""
    ended = (
        "import os, runpy, signal, sys\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.argv[0] = 'loganalyze'\n"
        "runpy.run_module('loganalyze', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", ended, *command(words, tmp_path / "output")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.strip()) == (130, "loganalyze: interrupted")
    assert os.listdir(tmp_path) == []
