"""File names are bytes: none may break an output, steer a terminal or become another's."""

import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from program import EXCERPT, assert_clean, assert_refused, process, run, strict_json

from loganalyze.errors import utf8

#: No UTF-8, an escape sequence, a C1 control, a line break, a reversed rest, and a formula.
NASTY = b"=x\xff\x1b[2J\xc2\x9b31m\n\xe2\x80\xae<b>.log"


@pytest.fixture
def nasty(tmp_path):
    name = os.path.join(os.fsencode(tmp_path), NASTY)
    shutil.copy(EXCERPT, name)
    return os.fsdecode(name)


def test_two_names_never_become_one():
    assert utf8(os.fsdecode(b"a\xff.log")) == "a\\xff.log"
    assert utf8(os.fsdecode(b"a\xfe.log")) == "a\\xfe.log"
    assert utf8("Übung 語.log") == "Übung 語.log"


@pytest.mark.parametrize(
    "args",
    [
        ["check", "{}"],
        ["check", "{}", "{}", "--json"],
        ["check", "{}", "--source", "{}", "--json"],
        ["report", "{}", "-o", "-"],
        ["report", "{}", "--markdown", "-"],
        ["report", "{}", "--json", "-"],
        ["report", "{}", "--figure", "-"],
        ["formats", "{}"],
        ["formats", "{}", "--json"],
        ["plan", "--log", "{}"],
        ["plan", "--log", "{}", "--json"],
        ["compare", "{}", "{}"],
        ["compare", "{}", "{}", "--json", "-"],
        ["export", "{}", "--frame", "batch", "--format", "csv", "-o", "-"],
        ["export", "{}", "--frame", "batch", "--format", "ndjson", "-o", "-"],
    ],
    ids=lambda args: " ".join(args),
)
def test_no_output_obeys_a_name(nasty, args):
    result = run(*(word.replace("{}", nasty) for word in args))
    assert result.exit_code == 0, result.output
    assert_clean(result.stdout)
    assert_clean(result.stderr)
    if "--json" in args:
        strict_json(result.stdout)


def test_a_table_holds_the_name_as_text(nasty, tmp_path):
    target = tmp_path / "batch.parquet"
    assert run("export", nasty, "--frame", "batch", "-o", target).exit_code == 0
    (name,) = pl.read_parquet(target)["source"].unique()
    assert name == utf8(nasty)


def test_messages_do_not_obey_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = os.fsdecode(NASTY)
    for args in (["check", missing], ["compare", missing, missing], ["query", missing, "SELECT"]):
        assert_refused(run(*args))
    for args in (["report", EXCERPT, "-o", missing], ["scan", EXCERPT, "-o", missing + "d"]):
        result = process(*args)
        assert result.returncode == 0
        assert_clean(result.stderr)
        assert_clean(result.stdout)


def test_an_archive_keeps_any_name(nasty, tmp_path):
    line = Path(EXCERPT).read_text()
    (tmp_path / "good.log").write_text(line + line.replace("12:03:07", "12:03:09"))
    result = process("scan", tmp_path, "-o", tmp_path / "out", "--json")
    assert result.returncode == 0
    rows = [strict_json(line) for line in result.stdout.splitlines()]
    assert [(row["error"], row["status"]) for row in rows] == [(None, "saturated")] * 2
    assert sum(r"\xff" in row["log"] for row in rows) == 1
    assert_clean(result.stderr)
