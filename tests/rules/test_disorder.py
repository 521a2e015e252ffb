"""Logs whose lines or numbers are out of order: told, not believed, and never slow."""

import random

import loganalyze


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
