"""What a notebook uses: stable names, cheap to import, typed, and the same answers as `check`."""

import doctest
import html
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import loganalyze
from loganalyze import api, schema
from loganalyze.cli import main

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_logs"

DECODE = (
    "[2026-01-05 10:00:{second:02d} TP0] Decode batch, #running-req: {running}, #token: 500, "
    "token usage: 0.50, cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0"
)
ACCESS = '[2026-01-05 10:00:00] INFO:     10.0.0.7:51234 - "POST /generate HTTP/1.1" 200 OK'
ARGS = "[2026-01-05 09:59:00] server_args=ServerArgs(model_path='/m', api_key='sk-hidden-1234567')"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "server.log"
    lines = [ARGS, *(DECODE.format(second=s, running=s + 3) for s in range(5)), ACCESS]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_examples_of_the_documentation_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    tried = doctest.testmod(api, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert tried.failed == 0
    assert tried.attempted >= 14
    documented = {t.name.rpartition(".")[2] for t in doctest.DocTestFinder().find(api)}
    assert {"analyze", "read", "to_html", "to_json", "to_markdown", "to_text"} <= documented


def test_the_examples_of_the_readme_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    tried = doctest.testfile(str(ROOT / "README.md"), module_relative=False, encoding="utf-8")
    assert tried.attempted >= 4
    assert tried.failed == 0


def test_every_promised_name_is_there():
    assert {*api.__all__, "__version__"} == set(loganalyze.__all__)
    for name in api.__all__:
        assert getattr(loganalyze, name) is getattr(api, name)
        assert name in dir(loganalyze)
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        loganalyze.analyse  # noqa: B018


def test_importing_it_loads_nothing_heavy():
    code = "import sys, loganalyze; dir(loganalyze); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "loganalyze" in loaded
    assert not loaded & {"polars", "plotly", "jinja2", "click", "numpy", "stringzilla"}


def test_a_report_is_that_of_the_command_line(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    report = loganalyze.analyze(Path("sample_logs/founding_case.log"))
    with pytest.raises(SystemExit):
        main(["check", "sample_logs/founding_case.log", "--json"])
    other = loganalyze.from_json(capsys.readouterr().out)
    assert other.verdict == report.verdict
    assert other.findings == loganalyze.from_json(loganalyze.to_json(report)).findings


def test_frames_have_the_declared_columns_and_every_row(log):
    frames = loganalyze.read(log)
    for name, columns in schema.FRAMES.items():
        assert getattr(frames, name).schema == pl.Schema(schema.dtypes(columns))
    assert frames.batch["running_req"].to_list() == [3, 4, 5, 6, 7]
    assert frames.batch["kv_usage"].to_list() == [0.5] * 5
    assert frames.batch["source"].unique().to_list() == [str(log)]
    assert frames.request.select("line_no", "status").rows() == [(7, 200)]
    assert repr(frames) == (
        "LogFrames(batch: 5 rows, event: 0 rows, startup: 1 rows, request: 1 rows)"
    )


def test_frames_hold_no_server_argument(log):
    frames = loganalyze.read(log)
    texts = [getattr(frames, name).write_csv() for name in schema.FRAMES]
    assert "sk-hidden" not in "".join(texts)


def test_frames_of_several_logs_stand_in_the_order_given(log, tmp_path):
    """The later log first; one that cannot be read is named, and does not stop the others."""
    other = tmp_path / "a.log"
    other.write_text("".join(DECODE.format(second=s, running=1) + "\n" for s in range(50, 53)))
    frames = loganalyze.read([other, tmp_path / "none.log", log], since="10:00:03")
    assert frames.batch.select("line_no", "running_req").rows() == [
        *((n, 1) for n in (1, 2, 3)),
        (5, 6),
        (6, 7),
    ]
    (lost,) = frames.unreadable
    assert lost.name == str(tmp_path / "none.log")
    assert lost.message == "no such file"


def test_a_log_named_twice_is_read_once(log):
    assert loganalyze.read([log, log]).batch.height == 5


def test_what_can_go_wrong_is_raised_as_promised(log, tmp_path):
    (tmp_path / "empty.log").touch()
    with pytest.raises(loganalyze.InputError, match="is empty"):
        loganalyze.read(tmp_path / "empty.log")
    with pytest.raises(loganalyze.UsageError, match="no rule XYZ1"):
        loganalyze.analyze(log, limits={"XYZ1.a": 1})
    with pytest.raises(loganalyze.LogAnalyzeError):
        loganalyze.from_json("{}")


def test_a_report_shows_itself_in_a_notebook():
    report = loganalyze.analyze(SAMPLES / "founding_case.log")
    assert repr(report).startswith("<Report: saturated, KV001, ")
    assert len(repr(report)) < 200
    shown = report._repr_html_()
    assert html.escape(report.verdict.headline) in shown
    assert shown.count("<tr>") == len(report.findings)


#: A user's module. `reveal_type` lines are answered by the checker.
USER = """
import loganalyze

report = loganalyze.analyze("server.log", limits={"KV001.hold_s": 30})
reveal_type(report.verdict.headline)
reveal_type(loganalyze.read(["a.log", "b.log"]))
reveal_type(loganalyze.to_html(report))
loganalyze.analyse("server.log")
"""
#: Reading what is below the package takes most of the time, and says nothing of it.
CONFIG = "[mypy]\nstrict = true\n[mypy-polars.*,click.*,jinja2.*]\nfollow_imports = skip\n"


def test_a_users_code_is_checked_against_real_types(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--cache-dir={tmp_path}", "user.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin", "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("user.py")]
    assert said[:3] == [
        'user.py:5: note: Revealed type is "str"',
        'user.py:6: note: Revealed type is "loganalyze.api.LogFrames"',
        'user.py:7: note: Revealed type is "str"',
    ], done.stdout
    assert 'user.py:8: error: Module has no attribute "analyse"' in said[3]
