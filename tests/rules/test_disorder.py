"""Logs whose lines or numbers are out of order: told, not believed, and never slow."""

import random

import pytest

import loganalyze
from loganalyze import reading, timeline
from loganalyze.filters import Filters
from loganalyze.parse import Parser
from loganalyze.rules.planted import PLANTED
from loganalyze.store import Store

RETRACT = (
    "[2026-01-05 10:{:02d}:{:02d}] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
    "#new_tokens_gained: 311, #new_token_ratio: 0.4213 -> 0.9871\n"
)


def decode(second, usage=0.97, queue=40, rate="600.00", year=2026):
    return (
        f"[{year}-01-05 10:{second // 60:02d}:{second % 60:02d}] Decode batch, #running-req: 30, "
        f"#token: {int(100_000 * usage)}, token usage: {usage:.2f}, cuda graph: True, "
        f"gen throughput (token/s): {rate}, #queue-req: {queue}\n"
    )


def analyzed(tmp_path, lines):
    log = tmp_path / "server.log"
    log.write_text("".join(lines))
    return loganalyze.analyze(log)


def test_a_shuffled_log_is_one_server_judged_in_the_order_of_its_stamps(tmp_path):
    lines = [decode(second) for second in range(0, 1200, 2)]
    whole = analyzed(tmp_path, lines)
    random.Random(1).shuffle(lines)
    report = analyzed(tmp_path, lines)
    assert len(report.sessions) == 1
    assert report.verdict.primary == whole.verdict.primary == "KV001"


def test_a_shuffled_log_stands_still_nowhere(tmp_path):
    """Ten minutes at light load, every second a line: there is no silence in it."""
    lines = [decode(second, usage=0.3, queue=0, rate="1200.00") for second in range(600)]
    random.Random(1).shuffle(lines)
    report = analyzed(tmp_path, lines)
    assert report.verdict.status == "healthy"
    assert not {f.code for f in report.findings} & {"HNG001", "IDL001"}


def test_a_stamp_of_no_year_that_a_server_has_seen_is_none(tmp_path):
    lines = [
        line for second in range(0, 160, 4) for line in (decode(0, year=9999), decode(second))
    ]
    report = analyzed(tmp_path, lines)
    assert len(report.sessions) == 1
    assert report.sessions[0].end.year == 2026


def test_a_number_beyond_all_numbers_costs_its_own_field_only(tmp_path):
    lines = [decode(second) for second in range(0, 300, 2)]
    lines[50] = decode(100, rate="1" + "0" * 400 + ".00")
    assert analyzed(tmp_path, lines).verdict.primary == "KV001"


def test_causes_of_two_sessions_are_both_in_the_headline(tmp_path):
    start = (
        "[2026-01-05 12:00:00] server_args=ServerArgs(model_path='/m', max_running_requests=30)\n"
        "[2026-01-05 12:00:01] max_total_num_tokens=900000, chunked_prefill_size=8192, "
        "max_prefill_tokens=16384, max_running_requests=30, context_len=32768, "
        "available_gpu_mem=10.00 GB\n"
    )
    capped = [decode(second, usage=0.20).replace(" 10:", " 12:") for second in range(4, 600, 2)]
    report = analyzed(tmp_path, [*(decode(s) for s in range(0, 600, 2)), start, *capped])
    assert {f.code for f in report.findings} >= {"KV001", "RUN001"}
    assert "KV001" in report.verdict.headline or report.verdict.primary == "KV001"
    assert "RUN001" in report.verdict.headline or report.verdict.primary == "RUN001"


def test_statistics_that_are_read_in_part_are_told(tmp_path):
    lines = [decode(second).replace("#queue-req", "#waiting-req") for second in range(0, 100, 2)]
    report = analyzed(tmp_path, lines)
    assert report.coverage.lines_partial == 50
    assert "50 of the statistics read in part" in " ".join(loganalyze.to_text(report).split())


@pytest.mark.parametrize(
    "name", ["a full KV pool, warm-up and retractions", "light load, idle time, drain"]
)
def test_parts_of_a_log_are_judged_as_the_whole(name, tmp_path):
    """In a rotated set, and newest first."""
    planted = next(p for p in PLANTED if p.name == name)
    ((_, text),) = planted.logs().items()
    lines = text.splitlines(keepends=True)
    whole = analyzed(tmp_path, lines)
    third = len(lines) // 3
    parts = [lines[:third], lines[third : 2 * third], lines[2 * third :]]
    paths = [tmp_path / "set" / f"server.log{end}" for end in (".2", ".1", "")]
    paths[0].parent.mkdir()
    for path, part in zip(paths, parts, strict=True):
        path.write_text("".join(part))
    rotated = loganalyze.analyze(paths)
    backwards = analyzed(tmp_path, reversed(lines))
    assert rotated.verdict.headline == whole.verdict.headline
    for other in (rotated, backwards):
        assert other.verdict.primary == whole.verdict.primary
        assert {f.code for f in other.findings} == {f.code for f in whole.findings}
        assert set(planted.shows) <= {f.code for f in other.findings}


def test_what_was_thrown_back_is_counted_over_parts_and_backwards(tmp_path):
    """Two requests between any two lines: 2 for each decode line but the first."""
    lines = [
        line
        for second in range(0, 120, 2)
        for line in (decode(second), RETRACT.format(second // 60, second % 60 + 1))
    ]
    half = len(lines) // 2
    parts = {"server.log.1": "".join(lines[:half]), "server.log": "".join(lines[half:])}
    for logs in (parts, {"backwards.log": "".join(reversed(lines))}):
        for log, text in logs.items():
            (tmp_path / log).write_text(text)
        store = Store()
        paths = [str(tmp_path / log) for log in logs]
        read, _ = reading.read_all(Parser(), store, paths, None)
        (session,) = reading.measured(store, read, Filters())
        (one,) = timeline.of(session)
        lost = one.lines.filter("decode")["d_lost"].to_list()
        assert lost == [None, *[2] * 59]
