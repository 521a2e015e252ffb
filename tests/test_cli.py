"""The commands from outside: exit statuses, streams, outputs, errors."""

import gzip
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from loganalyze import export as library_export
from loganalyze import pipeline, rules, schema
from loganalyze.cli import _shared, main
from loganalyze.report import to_markdown
from loganalyze.rules import selfcheck

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_logs"
FOUNDING = str(SAMPLES / "founding_case.log")
HEALTHY = str(SAMPLES / "healthy.log")
CAPPED = str(SAMPLES / "running_cap.log")
EXCERPT = str(SAMPLES / "ticket_excerpt.log")
NGINX = (
    '203.0.113.9 - - [24/Feb/2026:12:03:07 +0000] "GET /index.html HTTP/1.1" 200 612 "-" '
    '"Mozilla/5.0"\n'
) * 50


def run(*args, stdin=None):
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(a) for a in args], input=stdin, catch_exceptions=False)


def process(*args, **options):
    """Start a command as a process of its own; standard error is always a pipe."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-m", "loganalyze", *map(str, args)],
        stderr=subprocess.PIPE,
        env=environment,
        **options,
    )


@pytest.fixture
def never_analyse(monkeypatch):
    """Fail the test if anything is read."""

    def called(*paths, **options):
        pytest.fail(f"read {paths}")

    monkeypatch.setattr(pipeline, "analyze", called)


# The founding case as one line ------------------------------------------------------------


@pytest.mark.parametrize("from_stdin", [False, True], ids=["file", "stdin"])
def test_one_line_is_enough_for_a_verdict(from_stdin):
    line = Path(EXCERPT).read_bytes()
    result = (
        run("check", "-", "--json", stdin=line) if from_stdin else run("check", EXCERPT, "--json")
    )
    assert result.exit_code == 0
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["schema_version"] == 1
    assert report["is_problem"] is True
    verdict = report["verdict"]
    assert (verdict["status"], verdict["primary"]) == ("saturated", "KV001")
    assert verdict["confidence"] == "low"
    (session,) = report["sessions"]
    capacity = session["capacity"]
    assert capacity["rate_per_req"] == pytest.approx(606.88 / 35, abs=0.005)  # 17.34
    assert capacity["tokens_per_req"] == pytest.approx(150_158 / 35, abs=0.05)  # 4,290.2
    assert capacity["requests_fit"] == 37
    assert capacity["kv_tokens"] == pytest.approx(150_158 / 0.94, rel=0.005)
    assert capacity["kv_tokens_source"] == "inferred"
    assert report["sources"][0]["name"] == ("-" if from_stdin else EXCERPT)


def test_the_terminal_names_the_cause_and_quotes_the_line():
    result = run("check", EXCERPT)
    assert result.exit_code == 0
    for expected in ("SATURATED", "KV001", "confidence low", "17.34", "37", "115"):
        assert expected in result.stdout
    assert "gen throughput (token/s): 606.88" in " ".join(result.stdout.split())


# Exit statuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status"),
    [
        ([FOUNDING], 0),
        ([FOUNDING, "--fail-on", "critical"], 1),
        ([FOUNDING, "--fail-on", "warning"], 1),
        ([HEALTHY, "--fail-on", "warning"], 0),
        ([FOUNDING, "missing.log"], 3),
        ([FOUNDING, "missing.log", "--fail-on", "warning"], 1),
        ([HEALTHY, "missing.log", "--fail-on", "warning"], 3),
        (["missing.log"], 2),
        ([], 2),
        ([FOUNDING, "--fail-on", "disaster"], 2),
        ([FOUNDING, "--no-such-option"], 2),
        ([FOUNDING, "--set", "KV001"], 2),
        ([FOUNDING, "--set", "KV001.enter_usage=high"], 2),
        ([FOUNDING, "--set", "KV001.no_such_limit=1"], 2),
        ([FOUNDING, "--set", "XYZ999.enter_usage=1"], 2),
    ],
)
def test_exit_status(args, status):
    result = run("check", *args)
    assert result.exit_code == status
    if status == 2:
        assert result.stdout == ""
        assert result.stderr.startswith("loganalyze: ")
        assert "Traceback" not in result.stderr


def test_fail_on_critical_lets_a_warning_pass(tmp_path):
    """A status of 1 means: this severe or worse, not: anything at all."""
    severities = {
        f["severity"] for f in json.loads(run("check", CAPPED, "--json").stdout)["findings"]
    }
    expected = 1 if "critical" in severities else 0
    assert "warning" in severities or "critical" in severities
    assert run("check", CAPPED, "--fail-on", "critical").exit_code == expected
    assert run("check", CAPPED, "--fail-on", "warning").exit_code == 1


def test_no_command_and_an_unknown_command():
    assert run().exit_code == 2
    result = run("chekc", FOUNDING)
    assert result.exit_code == 2
    assert "chekc" in result.stderr


@pytest.mark.parametrize(("asked", "given"), [(None, "1"), ("3", "3")])
def test_polars_takes_one_thread_unless_more_are_asked_for(asked, given):
    """Each holds memory of its own, and Polars would start one for each core."""
    code = (
        "import atexit, os, sys\nfrom loganalyze.__main__ import run\n"
        "atexit.register(lambda: print(os.environ['POLARS_MAX_THREADS']))\n"
        f"sys.argv = ['loganalyze', 'check', {FOUNDING!r}]\nrun()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "POLARS_MAX_THREADS"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"POLARS_MAX_THREADS": asked} if asked else {})
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == given


def test_an_interrupt_ends_with_130(monkeypatch):
    def interrupted(*paths, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "analyze", interrupted)
    result = run("check", FOUNDING)
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_ctrl_c_while_reading_standard_input():
    child = process("check", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    line = Path(EXCERPT).read_bytes()
    child.stdin.write(line * (1_000_000 // len(line)))  # returns once the child is reading
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert child.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def test_a_mistake_of_ours_is_no_traceback_and_not_status_1(monkeypatch):
    def broken(*paths, **options):
        raise ZeroDivisionError

    monkeypatch.delenv("LOGANALYZE_DEBUG", raising=False)
    monkeypatch.setattr(pipeline, "analyze", broken)
    result = run("check", FOUNDING)
    assert result.exit_code == 2
    assert result.stderr.startswith("loganalyze: internal error: ZeroDivisionError\nhint: ")


def test_an_address_is_sent_to_scan():
    done = run("check", "s3://logs/server.log")
    assert done.exit_code == 2
    assert "hint: `loganalyze scan s3://logs/server.log -o DIR` reads addresses" in done.stderr


def test_a_package_that_is_missing_is_named_with_what_installs_it():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['jinja2'] = None\n"
            "from loganalyze.cli import main; main(prog_name='loganalyze')",
            "report",
            FOUNDING,
            "-o",
            os.devnull,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    said, hint = done.stderr.splitlines()
    assert said == "loganalyze: the package jinja2 is not installed"
    assert " -m pip install " in hint
    assert "jinja2" in hint


# Inputs -----------------------------------------------------------------------------------


def test_gzip_and_plain_give_the_same_findings(tmp_path):
    packed = tmp_path / "server.log"  # told by its content, not by its name
    packed.write_bytes(gzip.compress(Path(FOUNDING).read_bytes()))
    one, other = (json.loads(run("check", p, "--json").stdout) for p in (FOUNDING, packed))
    assert one["verdict"] == other["verdict"]
    assert [f["summary"] for f in one["findings"]] == [f["summary"] for f in other["findings"]]
    assert other["sources"][0]["lines"] == one["sources"][0]["lines"] == 1526


def test_several_logs_are_one_analysis():
    report = json.loads(run("check", HEALTHY, CAPPED, "--json").stdout)
    assert [s["name"] for s in report["sources"]] == [HEALTHY, CAPPED]
    assert report["verdict"]["primary"] == "RUN001"
    capped = [s for s in report["sessions"] if s["source"] == CAPPED]
    assert {f["session"] for f in report["findings"] if f["code"] == "RUN001"} == {capped[0]["id"]}


def test_an_unreadable_log_does_not_stop_the_others(tmp_path):
    nginx = tmp_path / "access.log"
    nginx.write_text(NGINX)
    result = run("check", tmp_path / "gone.log", nginx, tmp_path, EXCERPT, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["verdict"]["primary"] == "KV001"
    for name in (tmp_path / "gone.log", nginx, tmp_path):
        assert f"loganalyze: {name}: " in result.stderr
    assert EXCERPT not in result.stderr


def test_a_log_of_something_else_is_named(tmp_path):
    nginx = tmp_path / "access.log"
    nginx.write_text(NGINX)
    result = run("check", nginx)
    assert result.exit_code == 2
    first, hint = result.stderr.splitlines()
    assert first == f"loganalyze: {nginx}: no SGLang line in 50 lines"
    assert hint.startswith("hint: ")
    assert re.search("nginx|access log|web server", hint)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n\n", bytes(range(256)) * 400, b"\x00" * 5000],
    ids=["empty", "blank", "binary", "nul"],
)
def test_inputs_with_nothing_in_them(tmp_path, content):
    log = tmp_path / "server.log"
    log.write_bytes(content)
    for args, stdin in (([log], None), (["-"], content)):
        result = run("check", *args, stdin=stdin)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith(f"loganalyze: {args[0]}: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_log_that_may_not_be_read(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(Path(EXCERPT).read_bytes())
    log.chmod(0)
    result = run("check", log)
    assert result.exit_code == 2
    assert "ermission" in result.stderr


def test_a_name_with_control_characters_cannot_steer_the_terminal(tmp_path):
    result = run("check", tmp_path / "\x1b[2Jserver.log")
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr


# Outputs ----------------------------------------------------------------------------------


def test_one_run_writes_every_form(tmp_path):
    page, block, data = (tmp_path / n for n in ("deep/er/page.html", "ticket.md", "report.json"))
    result = run("report", FOUNDING, "-o", page, "--markdown", block, "--json", data)
    assert result.exit_code == 0
    assert "KV001" in result.stdout
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert "KV001" in block.read_text()
    assert json.loads(data.read_text())["verdict"]["primary"] == "KV001"
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted(
        ["deep", "er", "page.html", "ticket.md", "report.json"]
    )


def test_without_an_output_page_and_block_are_named_after_the_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("report", FOUNDING).exit_code == 0
    names = ["founding_case.report.html", "founding_case.report.md"]
    assert sorted(os.listdir()) == names
    result = run("report", FOUNDING)
    assert result.exit_code == 2
    assert names[0] in result.stderr


def test_a_form_on_standard_output_leaves_the_verdict_to_the_other(tmp_path):
    result = run("report", FOUNDING, "-o", tmp_path / "page.html", "--markdown", "-")
    assert "### " in result.stdout
    wrote, *verdict = result.stderr.splitlines()
    assert wrote == f"wrote {tmp_path}/page.html"
    assert "SATURATED KV001" in verdict[0]
    assert "evidence" not in result.stderr
    assert len(verdict) < 12


@pytest.mark.parametrize("option", ["-o", "--markdown", "--json"])
def test_an_existing_output_is_refused_before_anything_is_read(tmp_path, never_analyse, option):
    there = tmp_path / "there"
    there.write_text("precious")
    result = run("report", tmp_path / "missing.log", option, there)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"loganalyze: {there}: ")
    assert "--force" in result.stderr
    assert there.read_text() == "precious"


def test_force_replaces_the_whole_file(tmp_path):
    there = tmp_path / "report.json"
    there.write_text("x" * 10_000_000)
    assert run("report", EXCERPT, "--json", there, "--force").exit_code == 0
    assert json.loads(there.read_text())["verdict"]["primary"] == "KV001"


def test_no_output_is_replaced_when_a_later_one_fails(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("the old page")

    def fails(report):
        raise ZeroDivisionError

    monkeypatch.setattr(to_markdown, "render", fails)
    result = run("report", EXCERPT, "-o", page, "--markdown", tmp_path / "x.md", "--force")
    assert result.exit_code == 2
    assert page.read_text() == "the old page"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    data = tmp_path / "report.json"
    data.write_text("the old report")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run("report", EXCERPT, "--json", data, "--force")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == f"loganalyze: {data}: No space left on device"
    assert data.read_text() == "the old report"
    assert os.listdir(tmp_path) == ["report.json"]


def test_the_log_itself_is_never_an_output(tmp_path, never_analyse):
    log = tmp_path / "server.log"
    log.write_bytes(Path(EXCERPT).read_bytes())
    (tmp_path / "link").symlink_to(log)
    for output in (log, tmp_path / "link", tmp_path / ".." / tmp_path.name / "server.log"):
        result = run("report", log, "-o", output, "--force")
        assert result.exit_code == 2
    assert log.read_bytes() == Path(EXCERPT).read_bytes()


@pytest.mark.parametrize(
    "outputs",
    [["-o", "same", "--json", "./same"], ["--markdown", "-", "--json", "-"], ["-o", "."]],
    ids=["one file twice", "standard output twice", "a directory"],
)
def test_outputs_that_make_no_sense(tmp_path, monkeypatch, never_analyse, outputs):
    monkeypatch.chdir(tmp_path)
    assert run("report", EXCERPT, *outputs, "--force").exit_code == 2
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_to(tmp_path, never_analyse):
    (tmp_path / "file").write_text("")
    result = run("report", EXCERPT, "-o", tmp_path / "file" / "page.html")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"loganalyze: {tmp_path}/file/page.html: ")


def test_a_device_stays_a_device_and_a_link_a_link(tmp_path):
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    target.write_text("old")
    link.symlink_to(target)
    assert run("report", EXCERPT, "-o", os.devnull, "--markdown", link, "--force").exit_code == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert link.is_symlink()
    assert "KV001" in target.read_text()


def test_a_full_device_is_an_error():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    result = run("report", EXCERPT, "--json", "/dev/full")
    assert result.exit_code == 2
    assert "No space left" in result.stderr


def test_a_form_on_standard_output_is_alone_there():
    result = run("report", EXCERPT, "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"]["primary"] == "KV001"
    assert "KV001" in result.stderr


# Streams ----------------------------------------------------------------------------------


def test_a_reader_that_leaves_is_no_error():
    child = process("check", FOUNDING, "--json", stdout=subprocess.PIPE)
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert child.wait() == 0
    assert err == b""


@pytest.mark.parametrize("stream", [1, 2])
def test_a_stream_that_is_closed_is_no_mistake_of_ours(stream):
    code = (
        "import os, sys\n"
        f"os.close({stream})\n"
        f"os.execv(sys.executable, [sys.executable, '-m', 'loganalyze', 'check', {EXCERPT!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stdout + done.stderr


def on_a_terminal(*args, **environment):
    """Run a command with standard output on a pseudo-terminal and return what it printed."""
    ours, theirs = pty.openpty()
    child = process(*args, stdout=theirs, env={"TERM": "xterm", **environment})
    os.close(theirs)
    printed = b""
    try:
        while block := os.read(ours, 65_536):
            printed += block
    except OSError:  # how Linux says that the other end was closed
        pass
    os.close(ours)
    child.communicate()
    assert child.returncode == 0
    return printed.decode()


def test_colour_only_on_a_terminal_and_without_no_color():
    assert "\x1b[" in on_a_terminal("check", EXCERPT, NO_COLOR="")
    assert "\x1b" not in on_a_terminal("check", EXCERPT, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal("check", EXCERPT, NO_COLOR="", TERM="dumb")
    assert "\x1b" not in run("check", EXCERPT).stdout


def test_on_a_terminal_the_verdict_comes_last():
    paragraphs = on_a_terminal("check", EXCERPT, NO_COLOR="1").replace("\r", "").split("\n\n")
    assert "SATURATED KV001" in paragraphs[-1]
    assert not any("SATURATED" in paragraph for paragraph in paragraphs[:-1])


class Terminal:
    """A standard error that says it is a terminal."""

    def __init__(self):
        self.written = ""

    def isatty(self):
        return True

    def write(self, text):
        self.written += text

    def flush(self):
        pass


def test_a_bar_for_long_inputs_and_only_on_a_terminal(monkeypatch, capsys):
    with _shared.progress([FOUNDING]) as tick:
        assert tick is None  # short
    monkeypatch.setattr(_shared, "PROGRESS_FROM_BYTES", 1)
    with _shared.progress([FOUNDING]) as tick:
        assert tick is None  # no terminal
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with _shared.progress([FOUNDING, "-"]) as tick:
        tick(os.path.getsize(FOUNDING))
    assert "100%" in terminal.written


# Limits -----------------------------------------------------------------------------------


def limits_used(*args):
    report = json.loads(run("check", FOUNDING, "--json", *args).stdout)
    return next(f for f in report["findings"] if f["code"] == "KV001")["limits"]


def test_set_wins_over_config_and_the_report_states_both(tmp_path):
    config = tmp_path / "limits.toml"
    config.write_text("[KV001]\nenter_usage = 0.91\n\n[KV004]\n")
    assert limits_used("--config", config)["enter_usage"] == 0.91
    assert (
        limits_used("--config", config, "--set", "kv001.enter_usage=0.92")["enter_usage"] == 0.92
    )
    assert limits_used()["enter_usage"] == 0.90


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "enter_usage = 0.9",
        "[KV001]\nenter_usage = 'high'",
        "[KV001]\nenter_usage = true",
        "[KV001]\nxyz = 1",
    ],
)
def test_a_config_that_cannot_be_used(tmp_path, text):
    config = tmp_path / "limits.toml"
    config.write_text(text)
    result = run("check", FOUNDING, "--config", config)
    assert result.exit_code == 2
    assert result.stderr.startswith("loganalyze: ")
    assert run("check", FOUNDING, "--config", tmp_path / "missing.toml").exit_code == 2


def test_a_stricter_limit_can_silence_a_rule():
    report = json.loads(run("check", FOUNDING, "--json", "--set", "KV001.report_s=100000").stdout)
    assert "KV001" not in {f["code"] for f in report["findings"]}


def test_a_profile_changes_words_and_no_fact():
    online, batch = (
        json.loads(run("check", FOUNDING, "--json", "--profile", p).stdout)
        for p in ("online", "batch")
    )
    assert online["verdict"]["headline"] != batch["verdict"]["headline"]
    assert [f["episodes"] for f in online["findings"]] == [
        f["episodes"] for f in batch["findings"]
    ]


# A part of the log ------------------------------------------------------------------------


def test_since_and_until_choose_a_span():
    report = json.loads(run("check", FOUNDING, "--json", "--since", "-10m").stdout)
    assert report["sessions"][0]["start"] >= "2026-02-24T12:04:59"
    assert report["sessions"][0]["capacity"]["kv_tokens"] == 159_277  # printed at 11:30
    report = json.loads(run("check", FOUNDING, "--json", "--until", "11:31").stdout)
    assert report["sessions"][0]["end"] <= "2026-02-24T11:31:00"
    assert report["verdict"]["primary"] != "KV001"  # the pool was full from 11:31:49


def test_a_rank_that_the_log_lacks_and_a_time_that_is_none():
    assert run("check", FOUNDING, "--rank", "TP0").exit_code == 0
    for args in (("--rank", "TP1"), ("--since", "soon"), ("--source", "other.log")):
        result = run("check", FOUNDING, *args)
        assert result.exit_code == 2
        assert result.stderr.startswith("loganalyze: ")


# export -----------------------------------------------------------------------------------

READERS = {
    "parquet": pl.read_parquet,
    "csv": lambda path: pl.read_csv(path, infer_schema=False),
    "ndjson": lambda path: pl.DataFrame(json.loads(path.read_text().split("\n")[0])),
}


@pytest.mark.parametrize("frame", ["batch", "event", "startup", "request"])
@pytest.mark.parametrize("form", READERS)
def test_export_writes_every_declared_column(tmp_path, frame, form):
    target = tmp_path / f"rows.{form}"
    assert run("export", FOUNDING, "--frame", frame, "-o", target).exit_code == 0
    assert os.listdir(tmp_path) == [target.name]
    if frame == "request" and form == "ndjson":
        assert target.read_text() == ""  # no row: NDJSON has no header
    else:
        assert READERS[form](target).columns == [c.name for c in schema.FRAMES[frame]]


def test_export_gives_the_values_of_the_log(tmp_path):
    target = tmp_path / "batch.parquet"
    run("export", FOUNDING, "--frame", "batch", "-o", target)
    rows = pl.read_parquet(target)
    lines = Path(FOUNDING).read_text().splitlines()
    printed = [n for n, line in enumerate(lines, 1) if re.search("(Decode|Prefill) batch,", line)]
    assert rows["line_no"].to_list() == printed
    # [2026-02-24 11:30:04 TP0] Decode batch, #running-req: 85, #token: 10931, token usage: 0.07,
    # cuda graph: True, gen throughput (token/s): 686.89, #queue-req: 65
    first = rows.filter(pl.col("phase") == "decode").row(0, named=True)
    assert (first["running_req"], first["token"], first["queue_req"]) == (85, 10_931, 65)
    assert (first["gen_throughput"], first["token_usage"]) == (686.89, 0.07)
    assert first["rate_per_req"] == pytest.approx(686.89 / 85)
    assert (first["tp_rank"], first["dp_rank"], first["session"]) == (0, None, 1)


def test_export_to_standard_output_needs_a_format(never_export):
    assert run("export", FOUNDING, "--frame", "batch", "-o", "-").exit_code == 2
    refused = run("export", FOUNDING, "--frame", "batch", "-o", "batch.xlsx")
    assert refused.exit_code == 2
    assert "batch.xlsx: cannot tell in which format to write, .xlsx is none" in refused.stderr
    assert "end it in .parquet, .csv, .ndjson, .jsonl, or add --format" in refused.stderr


@pytest.fixture
def never_export(monkeypatch):
    monkeypatch.setattr(library_export, "write", lambda *a, **k: pytest.fail("read"))


def test_export_refuses_what_is_there(tmp_path, never_export):
    there = tmp_path / "batch.csv"
    there.write_text("precious")
    assert run("export", tmp_path / "none.log", "--frame", "batch", "-o", there).exit_code == 2
    assert there.read_text() == "precious"


def test_export_of_nothing_leaves_nothing(tmp_path):
    there = tmp_path / "batch.csv"
    there.write_text("precious")
    result = run("export", tmp_path / "none.log", "--frame", "batch", "-o", there, "--force")
    assert result.exit_code == 2
    assert there.read_text() == "precious"
    assert os.listdir(tmp_path) == ["batch.csv"]


def test_export_of_several_names_the_unreadable(tmp_path):
    gone = tmp_path / "gone.log"
    rows = tmp_path / "rows.ndjson"
    result = run("export", EXCERPT, gone, "--frame", "batch", "-o", rows)
    assert result.exit_code == 3
    assert f"loganalyze: {gone}: " in result.stderr
    assert json.loads(rows.read_text())["queue_req"] == 115


def test_export_into_a_pipe_that_closes():
    child = process(
        "export",
        FOUNDING,
        "--frame",
        "batch",
        "--format",
        "csv",
        "-o",
        "-",
        stdout=subprocess.PIPE,
    )
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert child.wait() == 0
    assert err == b""


# formats and explain ----------------------------------------------------------------------


def test_formats_lists_what_is_understood():
    facts = json.loads(run("formats", "--json").stdout)
    assert {"decode", "prefill", "retract", "server_args", "access"} <= {f["name"] for f in facts}
    text = run("formats").stdout
    for fact in facts:
        assert fact["name"] in text


def test_formats_says_what_a_log_speaks():
    lines = Path(FOUNDING).read_text().splitlines()
    counted = {
        kind: sum(start in line for line in lines)
        for kind, start in [
            ("decode", "] Decode batch"),
            ("prefill", "] Prefill batch"),
            ("retract", "KV cache pool is full. Retract"),
            ("server_args", "server_args="),
        ]
    }
    facts = json.loads(run("formats", FOUNDING, "--json").stdout)
    assert facts["lines"] == len(lines)
    assert {kind: facts["formats"][kind] for kind in counted} == counted
    assert facts["unrecognised"] == 0


def test_formats_of_another_log(tmp_path):
    nginx = tmp_path / "access.log"
    nginx.write_text(NGINX)
    assert run("formats", nginx).exit_code == 2


def test_explain_lists_every_rule():
    lines = run("explain").stdout.splitlines()
    assert [line.split()[0] for line in lines if line[:2].isupper()] == sorted(rules.all_rules())
    facts = json.loads(run("explain", "--json").stdout)
    assert [fact["code"] for fact in facts] == sorted(rules.all_rules())


@pytest.mark.parametrize("code", rules.all_rules())
def test_explain_prints_a_rules_own_text(code):
    rule = rules.all_rules()[code]
    text = run("explain", code.lower()).stdout
    assert text == run("explain", rule.name).stdout
    words = " ".join(text.split())
    for head, body in rule.sections.items():
        assert f"{head}:" in text
        assert " ".join(body.split()) in words
    for name, limit in rule.limits.items():
        assert f"{name} = {limit.value:g}" in words
    assert json.loads(run("explain", code, "--json").stdout)["sections"] == dict(rule.sections)


def test_explain_a_flag_in_any_spelling():
    text = run("explain", "--flag", "mem-fraction-static").stdout
    assert text == run("explain", "--flag", "--mem_fraction_static").stdout
    assert "from 0.1.3" in text
    old = run("explain", "--flag", "cuda-graph-max-bs").stdout
    assert "0.5.19" in old
    assert "--cuda-graph-max-bs-decode" in old
    dead = run("explain", "--flag", "num-continuous-decode-steps").stdout
    assert "no code has read it since 0.3.5.post2" in dead


@pytest.mark.parametrize(
    "args",
    [("KV01",), ("kv-saturatoin",), ("--flag", "no-such"), ("KV001", "--flag", "page-size")],
)
def test_explain_what_does_not_exist(args):
    result = run("explain", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("loganalyze: ")
    assert "hint: " in result.stderr


def test_explain_hints_at_the_option_for_a_flag():
    assert "--flag mem-fraction-static" in run("explain", "mem_fraction_static").stderr


# export -----------------------------------------------------------------------------------


def test_export_says_where_it_wrote(tmp_path):
    path = tmp_path / "batch.csv"
    assert run("export", EXCERPT, "--frame", "batch", "-o", path).stderr == f"wrote {path}\n"
    alone = run("export", EXCERPT, "--frame", "batch", "--format", "csv", "-o", "-")
    assert alone.stderr == ""


# selfcheck --------------------------------------------------------------------------------


def test_selfcheck_finds_what_was_planted_for_every_rule():
    result = run("selfcheck")
    assert result.exit_code == 0
    assert "MISSED" not in result.stdout
    found = [line.split()[1] for line in result.stdout.splitlines()[:-1]]
    assert sorted(found) == sorted(rules.all_rules())


def test_selfcheck_fails_when_a_rule_misses_its_log(monkeypatch):
    checked = selfcheck.Checked("KV001", "kv-saturation", "a full pool", False, "usage 0.2")
    monkeypatch.setattr(selfcheck, "run", lambda on_log=None: [checked])
    result = run("selfcheck")
    assert result.exit_code == 1
    assert "MISSED  KV001   a full pool: usage 0.2" in result.stdout
    assert json.loads(run("selfcheck", "--json").stdout)[0]["passed"] is False


# The shell --------------------------------------------------------------------------------


COMPLETED = [
    ("loganalyze ch", "check"),
    ("loganalyze explain kv00", "KV001"),
    ("loganalyze explain --flag mem-f", "mem-fraction-static"),
    ("loganalyze check --set KV001.enter_u", "KV001.enter_usage="),
    ("loganalyze export a.log --frame batch --column kv_u", "kv_usage"),
    ("loganalyze export a.log --column retracted", "retracted_req"),
]


def completed(shell, typed):
    """Return what a shell is offered for the last word of a line."""
    *before, last = typed.split()
    environment = {
        "_LOGANALYZE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(before) if shell == "fish" else typed,
        "COMP_CWORD": last if shell == "fish" else str(len(before)),
    }
    child = process(stdout=subprocess.PIPE, env=environment)
    out, errors = child.communicate()
    assert not errors
    lines = out.decode().splitlines()
    if shell == "zsh":  # three lines for each
        return lines[1::3]
    return [line.partition(",")[2].partition("\t")[0] for line in lines]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("typed", "expected"), COMPLETED)
def test_the_shell_completes(shell, typed, expected):
    assert expected in completed(shell, typed)


def test_columns_are_those_of_the_frame():
    offered = completed("bash", "loganalyze export a.log --frame request --column s")
    assert offered == ["source", "session", "status"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_is_told_how(shell):
    child = process(stdout=subprocess.PIPE, env={"_LOGANALYZE_COMPLETE": f"{shell}_source"})
    script, _ = child.communicate()
    assert f"_LOGANALYZE_COMPLETE={shell}_complete".encode() in script


def test_a_picture_is_svg_or_png_and_nothing_else(tmp_path, monkeypatch):
    result = run("report", EXCERPT, "--figure", tmp_path / "x.gif")
    assert result.exit_code == 2
    assert "neither .svg nor .png" in result.stderr
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("report", EXCERPT, "--figure", tmp_path / "x.png")
    assert result.exit_code == 2
    assert "loganalyze[png]" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_private_is_in_no_output_unless_it_is_asked_for(tmp_path):
    folder = tmp_path / "home" / "alice" / "logs"
    folder.mkdir(parents=True)
    log = folder / "sglang-7d9f8b6c5d-x2x4z.log"
    log.write_text(
        "".join(
            f"[pod/athena-0/sglang] {line}" for line in Path(EXCERPT).read_text().splitlines(True)
        )
    )
    private = ("alice", "x2x4z", "athena")

    def outputs(*more):
        out = tmp_path / f"out{len(more)}"
        out.mkdir()
        said = [
            run("report", log, "-o", out / "p.html", "--markdown", out / "p.md", "--json",
                out / "p.json", "--figure", out / "p.svg", *more),
            run("check", log, *more),
            run("check", log, "--json", *more),
            run("compare", log, log, "-o", out / "c.html", "--json", out / "c.json", *more),
            run("export", log, "--frame", "batch", "-o", out / "b.csv", *more),
            run("scan", folder, "-o", out / "scan", "--reports", "all", "--json", *more),
        ]  # fmt: skip
        assert [one.exit_code for one in said] == [0] * 6
        pages = [*out.glob("*.*"), *(out / "scan").rglob("*.html")]
        return [one.stdout for one in said] + [page.read_text() for page in pages]

    texts = outputs()
    assert len(texts) == 15
    for text in texts:
        assert [word for word in private if word in text] == []
    kept = "".join(outputs("--no-redact"))
    assert all(word in kept for word in private)
    assert "Nothing was removed (--no-redact)" in kept


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ([], "try `loganalyze check {}`"),
        (["plan"], "try `loganalyze plan --log {}`"),
        (["export"], "export --help`"),
    ],
    ids=["no command", "plan", "export"],
)
def test_a_log_where_none_is_expected_gets_the_command_that_was_meant(args, hint):
    result = CliRunner().invoke(main, [*args, str(FOUNDING)])
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert "?" not in first  # click breaks the line where it lists choices
    assert second.endswith(hint.format(FOUNDING))
