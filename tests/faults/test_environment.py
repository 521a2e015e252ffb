"""No home, no language, no terminal, no reader, warnings as errors: the answer is the same."""

import os
import subprocess
import sys
import time

import pytest
from program import EXCERPT, FOUNDING, ROOT, process, strict_json

from loganalyze.cli import _outputs

BARE = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    "env",
    [
        BARE,
        BARE | {"LANG": "C", "LC_ALL": "C"},
        BARE | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        BARE | {"HOME": "/nonexistent", "TERM": "dumb", "COLUMNS": "0", "TZ": "Nowhere/None"},
        BARE | {"PYTHONWARNINGS": "error"},
    ],
    ids=["bare", "LANG=C", "ascii", "no home, odd terminal", "warnings"],
)
def test_the_environment_changes_nothing(tmp_path, env):
    outputs = {"--json": "-", "-o": tmp_path / "p.html", "--figure": tmp_path / "f.svg"}
    args = [word for pair in outputs.items() for word in pair]
    result = process("report", EXCERPT, *args, env=env, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert strict_json(result.stdout.decode("ascii"))["verdict"]["primary"] == "KV001"
    assert (tmp_path / "p.html").read_bytes().decode("utf-8").endswith("</html>")
    assert b"KV001" in result.stderr


def test_warnings_as_errors_do_not_stop_a_scan(tmp_path):
    env = BARE | {"PYTHONWARNINGS": "error"}
    result = process("scan", EXCERPT, "-o", tmp_path / "out", env=env)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(
    "args",
    [
        ["explain"],
        ["formats"],
        ["plan", "--log", FOUNDING],
        ["compare", FOUNDING, FOUNDING],
        ["report", FOUNDING, "--markdown", "-"],
        ["scan", EXCERPT, "-o", "out"],
    ],
    ids=lambda args: args[0],
)
def test_a_reader_that_leaves_is_no_error(tmp_path, args):
    reader, writer = os.pipe()
    os.close(reader)
    code = f"from loganalyze.cli import main; main({[os.fspath(a) for a in args]!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(writer)
    assert done.returncode == 0
    assert b"loganalyze: " not in done.stderr
    assert b"Traceback" not in done.stderr


def test_following_ends_when_its_reader_leaves(tmp_path):
    """Nobody would ever see another word of it."""
    log = tmp_path / "server.log"
    log.write_bytes(FOUNDING.read_bytes())
    child = subprocess.Popen(
        [sys.executable, "-m", "loganalyze", "follow", str(log)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    child.stdout.close()
    deadline = time.monotonic() + 120
    with log.open("ab") as file:
        while child.poll() is None and time.monotonic() < deadline:
            file.write(FOUNDING.read_bytes())
            file.flush()
            time.sleep(1)
    child.kill()
    assert child.wait() == 0


def shell(line, **options):
    """Run a line of the shell, with `la` for the program."""
    line = line.replace("la ", f"{sys.executable} -m loganalyze ")
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("la explain KV001 >/dev/full", 2, "standard output: No space left on device"),
        (f"la check {EXCERPT} --fail-on warning >&-", 1, ""),
        (
            f"la export {EXCERPT} --frame batch --format csv -o - >&-",
            2,
            "-: standard output is closed",
        ),
        (f"la report {EXCERPT} --json - >&-", 2, "-: standard output is closed"),
        (f"la follow - <{EXCERPT} >&-", 0, ""),
        ("la check - <&-", 2, "-: standard input is closed"),
        ("la check missing 2>/dev/full", 2, ""),
        (f"la scan {EXCERPT} -o out 2>&-", 0, ""),
        (f"la report {EXCERPT} --json - 2>/dev/full >report.json", 0, ""),
        ("mkdir gone && cd gone && rmdir ../gone && la report x.log", 2, "the present folder"),
    ],
    ids=lambda value: value.replace(str(EXCERPT), "LOG") if isinstance(value, str) else "",
)
def test_a_stream_or_a_folder_that_is_not_there(tmp_path, line, status, said):
    done = shell(line, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(f"loganalyze: {said}" if said else "")
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("place", ["/dev/stdout", ">(cat)"])
def test_an_output_may_be_a_pipe(tmp_path, place):
    line = f"la report {EXCERPT} --json {place} | cat"
    done = shell(line, cwd=tmp_path)
    assert '"primary": "KV001"' in done.stdout, done.stderr
    assert os.listdir(tmp_path) == []


def test_a_reader_that_left_is_known(monkeypatch):
    def left(*args, **options):
        raise BrokenPipeError

    monkeypatch.setattr(_outputs.click, "echo", left)
    monkeypatch.setattr(_outputs, "_drop_stdout", lambda: None)
    assert _outputs.to_stdout("text") is False


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("KeyboardInterrupt", 130, "loganalyze: interrupted\n"),
        (
            "ModuleNotFoundError(name='click')",
            2,
            "loganalyze: the package click is not installed\nhint: `",
        ),
    ],
)
def test_what_goes_wrong_while_the_program_starts_is_one_line(what, status, said):
    code = (
        "import builtins, runpy\nreal = builtins.__import__\n"
        "def load(name, *rest, **more):\n"
        f"    if name == 'click': raise {what}\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = load\n"
        "runpy.run_module('loganalyze', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr
