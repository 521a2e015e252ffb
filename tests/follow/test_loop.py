"""The loop and the command: files that appear and rotate, standard input to its end."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from loganalyze.errors import InputError, UsageError
from loganalyze.follow import Follower, loop

ROOT = Path(__file__).parents[2]


def run(*args, stdin=b"", **extra):
    return subprocess.run(
        [sys.executable, "-m", "loganalyze", "follow", *map(str, args)],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        check=False,
        timeout=100,
        **extra,
    )


class Script:
    """Does one thing to the files in each round of the loop, then stops it."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.notes, self.changes, self.rounds = [], [], 0

    def is_over(self):
        self.rounds += 1
        if not self.steps:
            return self.rounds > 40
        if self.rounds % 3 == 0:  # a rotation takes a round or two to be seen
            self.steps.pop(0)()
        return False

    def run(self, follower, *paths):
        loop.run(
            [str(p) for p in paths],
            follower,
            on_change=self.changes.append,
            on_status=lambda: None,
            on_note=self.notes.append,
            poll_s=0.001,
            is_over=self.is_over,
        )


def append(log, data):
    with log.open("ab") as file:
        file.write(data)


def test_a_file_through_rotations(saturated, tmp_path):
    log = tmp_path / "server.log"
    lines = saturated.read_bytes().splitlines(keepends=True)[:300]
    parts = [b"".join(lines[k : k + 60]) for k in range(0, 300, 60)]
    half = len(parts[2]) // 2
    follower = Follower()
    script = Script(
        lambda: append(log, parts[0]),
        lambda: append(log, parts[1]),
        lambda: (log.rename(tmp_path / "server.log.1"), append(log, parts[2][:half])),
        lambda: append(log, parts[2][half:]),
        lambda: log.write_bytes(parts[3]),
        lambda: append(log, parts[4]),
    )
    script.run(follower, log)
    assert follower.lines == 300
    assert script.notes[0] == f"{log}: not there yet; waiting for it"
    assert script.notes[1] == f"{log}: found"
    assert script.notes.count(f"{log}: rotated; going on with the new file") == 2
    assert script.changes[-1].event == "end"


def test_several_files(saturated, tmp_path):
    lines = saturated.read_bytes().splitlines(keepends=True)[:100]
    a, b = tmp_path / "a.log", tmp_path / "b.log"
    a.write_bytes(b"".join(lines))
    follower = Follower()
    script = Script(lambda: append(b, b"".join(lines[:50])))
    script.run(follower, a, b)
    assert follower.lines == 150
    assert {s.name: s.lines for s in follower.report().sources} == {str(a): 100, str(b): 50}


def test_a_directory_is_no_log(tmp_path):
    with pytest.raises(InputError, match="is a directory"):
        Script().run(Follower(), tmp_path)


def test_a_compressed_log_does_not_grow(tmp_path, saturated):
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(saturated.read_bytes()))
    with pytest.raises(InputError, match="not a plain text file") as error:
        Script().run(Follower(), packed)
    assert "loganalyze check" in error.value.hint


def test_a_log_named_twice(tmp_path):
    with pytest.raises(UsageError, match="twice"):
        Script().run(Follower(), tmp_path / "a", tmp_path / "a")


def test_other_text_is_not_followed_to_a_verdict():
    done = run("-", stdin=b"GET /index.html\n" * 50)
    assert done.returncode == 2
    assert b"no SGLang line in 50 lines" in done.stderr


VLLM = (
    b"INFO 03-02 09:00:00 [loggers.py:116] Engine 000: Avg prompt throughput: 10.0 tokens/s, "
    b"Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%\n"
)


def test_a_log_that_is_none_of_sglang_is_said_to_be_once_and_waited_for(tmp_path, saturated):
    log, other = tmp_path / "vllm.log", tmp_path / "server.log"
    log.write_bytes(VLLM * 60)
    other.write_bytes(saturated.read_bytes())
    script = Script(*[lambda: append(log, VLLM)] * 3, lambda: append(log, saturated.read_bytes()))
    script.run(follower := Follower(), log, other)
    (note,) = script.notes
    assert "vllm.log: no SGLang line in 60 lines, it looks like a vLLM log; " in note
    assert note.endswith("still waiting for one")
    assert follower.foreign(str(log)) is None  # it came at last


def test_a_pipe_without_an_sglang_line_is_said_to_be_none_of_sglang():
    done = run("-", stdin=VLLM)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"no SGLang line in 1 line\n" in done.stderr
    assert b"looks like a vLLM log" in done.stderr


def test_a_death_before_the_first_statistics_line_was_analysed():
    lines = (ROOT / "sample_logs" / "crash_restart.log").read_bytes().splitlines(keepends=True)
    died = next(k for k, line in enumerate(lines) if b"Scheduler hit an exception" in line)
    done = run("-", stdin=b"".join([*lines[:6], *lines[died : died + 3]]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(b"degraded: CRS001 crash-or-restart")


@pytest.fixture(scope="module")
def piped(saturated, tmp_path_factory):
    out = tmp_path_factory.mktemp("hook") / "told.jsonl"
    program = f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read() + chr(10))"
    command = f'{sys.executable} -c "{program}"'
    done = run("-", "--json", "--on-finding", command, stdin=saturated.read_bytes())
    return done, out


def test_standard_input_to_its_end_as_json(piped):
    done, _ = piped
    assert done.returncode == 0, done.stderr
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    told = [(o["event"], o["finding"]["code"]) for o in objects if o["finding"]]
    assert told == [("alert", "KV001"), ("worse", "KV001"), ("clear", "KV001")]
    assert objects[-1]["event"] == "end"
    assert "KV001" in {f["code"] for f in objects[-1]["findings"]}
    assert objects[-1]["verdict"]["primary"] == "KV001"


def test_the_command_runs_once_for_each_of_these(piped):
    _, out = piped
    told = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(t["event"], t["code"], t["severity"]) for t in told] == [
        ("alert", "KV001", "warning"),
        ("worse", "KV001", "critical"),
        ("clear", "KV001", "critical"),
    ]


def test_plain_lines_when_not_a_terminal(saturated):
    head = b"".join(saturated.read_bytes().splitlines(keepends=True)[:200])
    done = run("-", stdin=head)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert "\x1b" not in text
    assert text.splitlines()[-1].endswith("end of the log, healthy")


def test_metrics_while_following(saturated, tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(saturated.read_bytes())
    process = subprocess.Popen(
        [sys.executable, "-m", "loganalyze", "follow", str(log), "--metrics", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        url = process.stderr.readline().decode().split()[-1]
        process.stdout.readline()  # the state after the history
        text = ""
        for _ in range(200):
            if "loganalyze_kv_usage" in text:
                break
            with urllib.request.urlopen(url) as answer:
                text = answer.read().decode()
            time.sleep(0.05)
        assert 'loganalyze_state{state="healthy"} 1' in text
        assert "loganalyze_kv_capacity_tokens 60000" in text
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)
    assert process.returncode == 130


@pytest.mark.parametrize(
    "options", [["--on-finding", ""], ["--webhook", "file:///etc/passwd"], ["--metrics", "70000"]]
)
def test_bad_usage(options, tmp_path):
    assert run(tmp_path / "x.log", *options).returncode == 2


def test_an_interrupt_ends_with_130(tmp_path, saturated):
    log = tmp_path / "server.log"
    log.write_bytes(b"".join(saturated.read_bytes().splitlines(keepends=True)[:100]))
    process = subprocess.Popen(
        [sys.executable, "-m", "loganalyze", "follow", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout.readline()  # the state after the history: it follows now
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert b"interrupted" in err
