"""`loganalyze compare` as a command: outputs and exit statuses."""

import json

import pytest
from click.testing import CliRunner

from loganalyze.cli import main


def run(*args):
    done = CliRunner().invoke(main, ["compare", *map(str, args)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def chat(simulated):
    return simulated("healthy_chat", duration=700)


@pytest.fixture(scope="module")
def slow(simulated):
    return simulated("healthy_chat", duration=700, inject=[{"t": 1, "kind": "rate", "mult": 1.10}])


def test_the_verdict_comes_last(chat, slow):
    status, out, err = run(chat, slow)
    assert status == 0
    assert err == ""
    assert "Throughput fell" in out.split("▼ WORSE")[1]


@pytest.mark.parametrize(
    ("limit", "status"), [("regression=5%", 1), ("regression=5", 1), ("regression=20%", 0)]
)
def test_fail_on_a_regression(chat, slow, limit, status):
    code, _, err = run(chat, slow, "--fail-on", limit)
    assert code == status
    assert ("regression:" in err) == (status == 1)


def test_a_gain_is_no_regression(chat, slow):
    assert run(slow, chat, "--fail-on", "regression=5%")[0] == 0


@pytest.mark.parametrize("limit", ["5%", "regression", "regression=x", "regression=0%", "slow=5%"])
def test_a_limit_that_cannot_be_read(chat, slow, limit):
    status, _, err = run(chat, slow, "--fail-on", limit)
    assert status == 2
    assert "regression=5%" in err


def test_what_cannot_be_compared_is_said_to_ci(chat, simulated):
    other = simulated("client_limited", duration=700)
    status, _, err = run(chat, other, "--fail-on", "regression=5%")
    assert status == 0
    assert "cannot tell whether throughput regressed" in err


def test_forms_go_to_files_and_never_over_them(chat, slow, tmp_path):
    page, block, data = tmp_path / "c.html", tmp_path / "c.md", tmp_path / "c.json"
    targets = ("-o", page, "--markdown", block, "--json", data)
    assert run(chat, slow, *targets)[0] == 0
    assert page.read_text().lstrip().startswith("<!doctype html>")
    assert block.read_text().startswith("### ▼ worse")
    assert json.loads(data.read_text())["pairs"]
    status, _, err = run(chat, slow, "-o", page)
    assert status == 2
    assert "exists already" in err


def test_a_form_on_standard_output_is_alone_there(chat, slow):
    status, out, _ = run(chat, slow, "--json", "-")
    assert status == 0
    assert json.loads(out)["tool_version"]


def test_a_log_is_never_an_output(chat, slow):
    status, _, err = run(f"{chat}#1", slow, "-o", chat, "--force")
    assert status == 2
    assert "is the log itself" in err


def test_some_runs_unreadable(chat, slow, tmp_path):
    gone = tmp_path / "gone.log"
    status, out, err = run(chat, slow, gone)
    assert status == 3
    assert "gone.log" in err
    assert "not compared" in out
    assert run(gone, slow)[0] == 2
    assert run(chat, gone)[0] == 2
