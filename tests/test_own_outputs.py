"""What this tool writes quotes lines of a log, and is never taken for one."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from loganalyze.cli import main

CRASH = Path(__file__).parents[1] / "sample_logs" / "crash_restart.log"


def run(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One file of each kind, beside the log that they were made from."""
    folder = tmp_path_factory.mktemp("written")
    forms = {"-o": "page.html", "--json": "report.json", "--markdown": "block.md"}
    options = [word for option, name in forms.items() for word in (option, folder / name)]
    (folder / "text.txt").write_text(run("report", CRASH, *options).stdout, "utf-8")
    for ending in ("csv", "ndjson"):
        events = folder / f"events.{ending}"
        assert run("export", CRASH, "--frame", "event", "-o", events).exit_code == 0
    return folder


@pytest.mark.parametrize(
    "name", ["page.html", "report.json", "block.md", "text.txt", "events.csv", "events.ndjson"]
)
def test_it_is_refused_by_name(written, name):
    refused = run("check", written / name)
    assert refused.exit_code == 2
    assert f"{name}: was written by loganalyze, and is no log" in refused.stderr


def test_a_folder_that_holds_them_is_scanned_without_them(written, tmp_path):
    (written / "server.log").write_bytes(CRASH.read_bytes())
    done = run("scan", written, "-o", tmp_path / "out", "--jobs", "1")
    assert "7 inputs (1 read, 6 no logs)" in done.stdout


PROGRAM = f'''"""A test that holds a log."""
import parser_of_logs

LOG = """{"".join(CRASH.read_text("utf-8").splitlines(keepends=True)[-40:])}"""


def test_it():
    assert parser_of_logs.read(LOG)
'''


def test_the_text_of_a_program_is_no_log_whatever_it_quotes(tmp_path):
    """By its contents: the name says nothing."""
    (tmp_path / "test_parser.log").write_text(PROGRAM, "utf-8")
    refused = run("check", tmp_path / "test_parser.log")
    assert refused.exit_code == 2
    assert "test_parser.log: is the text of a program in Python, not a log" in refused.stderr
    (tmp_path / "server.log").write_bytes(CRASH.read_bytes())
    done = run("scan", tmp_path, "-o", tmp_path / "out", "--jobs", "1")
    assert "2 inputs (1 read, 1 no log)" in done.stdout


def test_a_log_below_a_program_that_was_printed_first_is_a_log(tmp_path):
    """As a batch system does with the script of its job."""
    log = tmp_path / "slurm-17.out"
    log.write_text(PROGRAM + CRASH.read_text("utf-8"), "utf-8")
    assert "CRS001" in run("check", log).stdout
