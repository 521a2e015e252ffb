"""Every sample log against what sample_logs/README.md says by hand."""

import importlib.util
import re
from datetime import datetime
from pathlib import Path

import pytest

from loganalyze import pipeline, releases

SAMPLES = Path(__file__).parents[1] / "sample_logs"


def tables():
    """Return the README's tables as lists of dicts, keyed by their header without `log`."""
    found = {}
    rows = []
    for line in [*(SAMPLES / "README.md").read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            header, _, *body = rows
            found[header[1]] = [dict(zip(header, row, strict=True)) for row in body]
            rows = []
    return found


TABLES = tables()
NAMES = [row["log"] for row in TABLES["release"]]


@pytest.fixture(scope="module")
def reports():
    return {name: pipeline.analyze(str(SAMPLES / name)) for name in NAMES}


def episodes(report, code):
    """Return all episodes of a rule's findings, in order of time."""
    found = [e for f in report.findings if f.code == code for e in f.episodes]
    return sorted(found, key=lambda e: e.first_line)


def clock(text, day):
    return datetime.combine(day, datetime.strptime(text, "%H:%M:%S").time())


def test_the_tables_name_every_log_in_the_folder():
    assert sorted(NAMES) == sorted(p.name for p in SAMPLES.glob("*.log"))
    assert len(NAMES) >= 5
    for header in ("status", "also found"):
        assert [row["log"] for row in TABLES[header]] == NAMES
    assert {row["log"] for row in TABLES["session"]} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_log_is_small(name):
    assert (SAMPLES / name).stat().st_size < 600_000


@pytest.mark.parametrize("row", TABLES["status"], ids=lambda row: row["log"])
def test_verdict(row, reports):
    report = reports[row["log"]]
    primary = None if row["primary"] == "none" else row["primary"]
    assert (report.verdict.status, report.verdict.primary) == (row["status"], primary)
    assert report.is_problem == (primary is not None)
    if row["confidence"] != "any":
        assert report.verdict.confidence == row["confidence"]


@pytest.mark.parametrize(
    "row", [r for r in TABLES["status"] if r["primary"] != "none"], ids=lambda row: row["log"]
)
def test_episodes_of_the_primary_finding(row, reports):
    found = episodes(reports[row["log"]], row["primary"])
    assert len(found) == int(row["episodes"])
    begin, end = found[0].start, found[-1].end
    assert abs((begin - clock(row["begins"], begin)).total_seconds()) <= 30
    assert abs((end - clock(row["ends"], begin)).total_seconds()) <= 30


@pytest.mark.parametrize("row", TABLES["also found"], ids=lambda row: row["log"])
def test_other_findings(row, reports):
    report = reports[row["log"]]
    fired = {f.code for f in report.findings}
    for code, session, count in re.findall(r"(\w+)(?:@(\d))?(?: x(\d+))?", row["also found"]):
        assert code in fired
        if session:
            assert int(session) in {f.session for f in report.findings if f.code == code}
        if count:
            assert len(episodes(report, code)) == int(count), code
    assert not fired & set(row["never"].split())


@pytest.mark.parametrize("row", TABLES["session"], ids=lambda r: f"{r['log']}-{r['number']}")
def test_numbers(row, reports):
    (session,) = [s for s in reports[row["log"]].sessions if s.id == int(row["session"])]
    share = float(row["within"].removesuffix("%")) / 100
    assert getattr(session.capacity, row["number"]) == pytest.approx(
        float(row["value"]), rel=share or 1e-9
    )


@pytest.mark.parametrize("row", TABLES["release"], ids=lambda row: row["log"])
def test_the_release_is_one_that_the_grammar_allows(row, reports):
    order = list(releases.RELEASES)
    for session in reports[row["log"]].sessions:
        first, last = session.release_range
        assert order.index(first) <= order.index(row["release"]) <= order.index(last)


def test_a_crash_begins_a_new_session(reports):
    first, second = reports["crash_restart.log"].sessions
    assert (first.ended_by, second.ended_by) == ("crash", "end_of_log")
    assert (first.config.arg("mem_fraction_static"), second.config.arg("mem_fraction_static")) == (
        0.93,
        0.88,
    )


def test_the_logs_are_what_the_simulator_writes(tmp_path):
    pytest.importorskip("numpy")
    spec = importlib.util.spec_from_file_location("make", SAMPLES / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    written = make.make(tmp_path)
    assert sorted(path.name for path in written) == sorted(NAMES)
    for path in written:
        assert path.read_bytes() == (SAMPLES / path.name).read_bytes(), path.name
