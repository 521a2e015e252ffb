"""The page of an archive in a browser: sorting and filters, from a file."""

import os
import re
import shutil
import subprocess

import pytest
from scanned import log_text

from loganalyze.report import index_to_html, words
from loganalyze.scan import archive as library
from loganalyze.scan import overview
from loganalyze.scan.state import State

REQUIRED = os.environ.get("LOGANALYZE_REQUIRE_BROWSER") == "1"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def page(archive, tmp_path):
    library.scan([str(archive)], str(tmp_path / "out"), library.Options(jobs=2, redact=False))
    return tmp_path / "out" / "index.html"


def opened(page, state=""):
    if not CHROMIUM and not REQUIRED:
        pytest.skip("no chromium; LOGANALYZE_REQUIRE_BROWSER=1 makes this an error")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--virtual-time-budget=3000", "--dump-dom", f"{page.as_uri()}{state}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_the_script_runs_under_its_policy_and_filters(page):
    assert "6 of 6 shown" in opened(page)
    filtered = opened(page, "#cause=KV001&host=node1")
    assert "2 of 6 shown" in filtered
    rows = re.findall(r"<tr class=[^>]*data-log=[^>]*>", filtered)
    assert sum("hidden" not in row for row in rows) == 2


@pytest.mark.parametrize(
    ("before", "private", "shown"),
    [
        ("(SchedulerActor pid=12, ip=10.77.66.55) ", ["10.77.66.55"], "pid=12, ip=ip-1"),
        ("/home/alice/logs/athena/server.log:", ["alice", "athena"], "host-1/server.log"),
    ],
)
def test_what_a_wrapper_names_is_on_no_page(before, private, shown, tmp_path, run):
    log = tmp_path / "in" / "all.log"
    log.parent.mkdir()
    lines = log_text(full=True).splitlines(keepends=True)
    log.write_text("".join(before + line for line in lines))
    done = run("scan", log.parent, "-o", tmp_path / "out", "--json")
    assert done.returncode in (0, 1), done.stderr
    page = (tmp_path / "out" / "index.html").read_text()
    assert shown in done.stdout
    assert shown in page
    assert [word for word in private if word in done.stdout + page] == []


def test_without_script_the_table_is_complete(page):
    text = page.read_text()
    assert len(re.findall(r"<tr class=[^>]*data-log=", text)) == 6
    assert 'id="filters" hidden' in text  # nothing is offered that would not work
    assert "<caption>By host: runs with each cause</caption>" in text
    assert "By day: runs with each cause" in text
    assert '<a href="#cause=KV001"><b>' in text  # with it, a cause shows its runs


def test_a_large_archive_still_makes_a_page_that_opens(page):
    state = State(str(page.parent))
    rows = [run.row for run in state.runs()]
    state.close()
    many = index_to_html.Overview(
        rows=(rows * 400)[: overview.MAX_ROWS],
        runs=1_000_000,
        problems=1_000_000,
        statuses={"degraded": 1_000_000},
        causes=[("KV001", "kv-saturation", 3, 2, "2026-03-02", "2026-03-04", 9.0)],
        tables=[],
    )
    text = index_to_html.render(many)
    assert len(text) < 5_000_000
    assert "In this order: runs with a critical finding" in text
    assert f"The {words.number(overview.MAX_ROWS)} worst of 1,000,000 logs" in text
    page.write_text(text)
    rows = re.findall(r"<tr class=[^>]*data-log=[^>]*>", opened(page))
    assert len(rows) == overview.MAX_ROWS
    # A browser lays out the first hundred; without script, and in print, all are there.
    assert sum('later"' in row for row in rows) == overview.MAX_ROWS - 100
    assert "later" not in "".join(re.findall(r"<tr class=[^>]*data-log=[^>]*>", text))
