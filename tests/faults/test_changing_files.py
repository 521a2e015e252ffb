"""Files that cannot be read, shrink, vanish or change while they are read; clocks that step."""

import os
import re
from datetime import datetime, timedelta

import polars as pl
import pytest
from program import EXCERPT, FOUNDING, SAMPLES, assert_refused, run, strict_json

from loganalyze import export, pipeline, reading, sources

# Files ----------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(FOUNDING.read_bytes())
    return path


def test_what_may_not_be_read_is_said(log, monkeypatch):
    def denied(path, *args, **options):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(sources, "open", denied, raising=False)
    result = run("check", log)
    assert_refused(result)
    assert result.stderr == (
        f"loganalyze: {log}: cannot be read (Permission denied)\nhint: check its permissions\n"
    )


def test_a_disk_that_fails_gives_what_was_read(log, monkeypatch):
    """The first 100 kB can be read; then the disk reports an error."""
    whole = sources._whole_lines

    def failing(stream, size):
        for n, block in enumerate(whole(stream, 50_000)):
            if n == 2:
                raise OSError(5, "Input/output error")
            yield block

    monkeypatch.setattr(sources, "_whole_lines", failing)
    result = run("check", log, "--json")
    assert result.exit_code == 3
    assert "could not be read to its end (Input/output error)" in result.stderr
    report = strict_json(result.stdout)
    assert report["verdict"]["primary"] == "KV001"
    assert 0 < report["coverage"]["lines_total"] < 1526


@pytest.mark.parametrize("change", ["shrinks", "vanishes", "is another"])
def test_a_log_that_changes_after_it_was_read_gives_a_report(log, monkeypatch, change):
    """Quotes and hashes are fetched afterwards: what is gone is left out, never made up."""
    read_all = reading.read_all

    def read(*args):
        found = read_all(*args)
        if change == "vanishes":
            log.unlink()
        else:
            log.write_bytes(b"" if change == "shrinks" else b"other text\n" * 30_000)
        return found

    monkeypatch.setattr(reading, "read_all", read)
    report = pipeline.analyze(str(log))
    assert report.verdict.primary == "KV001"
    quotes = [e.quote for f in report.findings for e in f.evidence if e.quote]
    assert quotes == [] or change == "is another"


@pytest.mark.parametrize("change", ["shrinks", "vanishes"])
@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson"])
def test_an_export_of_a_log_that_goes_away_is_one_line_and_no_file(log, monkeypatch, form, change):
    """It is read twice: once for its sessions, once for its rows."""
    read_all = reading.read_all

    def read(*args):
        found = read_all(*args)
        log.unlink() if change == "vanishes" else os.truncate(log, 100_000)
        return found

    monkeypatch.setattr(export.reading, "read_all", read)
    target = log.with_name(f"rows.{form}")
    result = run("export", log, "--frame", "batch", "-o", target)
    assert_refused(result)
    assert result.stderr.startswith(f"loganalyze: {log}: ")
    assert not target.exists()


# Clocks ---------------------------------------------------------------------------------------

HOUR = timedelta(hours=1)
STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", re.MULTILINE)


def shifted(text, shift, wrapper=None):
    """Return a log with its stamps moved, and a wrapper's zoned stamp before each line."""

    def moved(match):
        time = datetime.fromisoformat(match[1])
        before = f"{wrapper(time).isoformat()}.000000000Z " if wrapper else ""
        return f"{before}[{shift(time)}"

    return STAMP.sub(moved, text)


@pytest.fixture(scope="module")
def healthy():
    """Fifteen minutes of a healthy server, from 11:30:00 to 11:44:59."""
    return (SAMPLES / "healthy.log").read_text()


def judged(tmp_path, *texts):
    for n, text in enumerate(texts):
        (tmp_path / f"server{n}.log").write_text(text)
    paths = [tmp_path / f"server{n}.log" for n in range(len(texts))]
    return strict_json(run("check", *paths, "--json").stdout)


HALF = datetime(2026, 2, 24, 11, 37)
#: Of that server: few requests came.
QUIET = {"CLI001"}


@pytest.mark.parametrize("back", [timedelta(seconds=5), HOUR], ids=["a step", "summer time ends"])
def test_a_clock_that_is_set_back_is_no_finding(healthy, tmp_path, back):
    report = judged(tmp_path, shifted(healthy, lambda t: t if t < HALF else t - back))
    assert report["verdict"]["status"] == "healthy"
    assert {f["code"] for f in report["findings"]} == QUIET  # as without the step
    assert len(report["sessions"]) == 1


@pytest.mark.parametrize("on", [HOUR, 48 * HOUR], ids=["summer time begins", "two days"])
def test_a_clock_that_is_set_forward_is_no_stall(healthy, tmp_path, on):
    """The throughput after a real silence includes it; here it is as high as before."""
    report = judged(tmp_path, shifted(healthy, lambda t: t if t < HALF else t + on))
    assert report["verdict"]["status"] == "healthy"
    (stall,) = (c for c in report["checked"] if c["code"] == "HNG001")
    assert stall["status"] == "clear"
    assert "the clock was set forward, or lines are missing" in stall["reason"]


def test_the_wrapper_tells_the_zone_of_the_servers_clock(healthy, tmp_path):
    """Docker stamps in UTC what a server in China prints: nine hours never become a silence."""
    text = shifted(healthy, lambda t: t, wrapper=lambda t: t - 8 * HOUR)
    report = judged(tmp_path, text)
    assert report["sources"][0]["tz"] == "+08:00"
    assert report["sessions"][0]["start"] == "2026-02-24T11:30:00"
    assert {f["code"] for f in report["findings"]} == QUIET


def test_logs_from_several_zones_keep_their_own_times(healthy, tmp_path):
    at_home = shifted(healthy, lambda t: t, wrapper=lambda t: t)
    abroad = shifted(healthy, lambda t: t + 8 * HOUR, wrapper=lambda t: t)
    report = judged(tmp_path, at_home, abroad)
    assert [s["tz"] for s in report["sources"]] == ["UTC", "+08:00"]
    assert [s["start"] for s in report["sessions"]] == [
        "2026-02-24T11:30:00",
        "2026-02-24T19:30:00",
    ]
    assert report["verdict"]["status"] == "healthy"


def test_the_zone_of_this_machine_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    target = tmp_path / "rows.parquet"
    assert run("export", EXCERPT, "--frame", "batch", "-o", target).exit_code == 0
    assert pl.read_parquet(target)["time"].to_list() == [datetime(2026, 2, 24, 12, 3, 7)]
