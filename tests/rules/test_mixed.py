"""Logs whose lines are of several servers, or of which only some lines were kept.

At a steady state of R running requests a server prints a decode line every 40 R / rate seconds.
"""

from datetime import datetime, timedelta

import pytest
from synth import sessions, text

import loganalyze
from loganalyze import mixed, timeline

START = datetime(2026, 3, 2, 9, 0, 0)
#: 40 steps of 40 requests at 1,600 token/s, and of 4 at 160, take one second.
FULL = {"running": 40, "token": 95_000, "usage": 0.95, "rate": 1600, "queue": 30}
QUIET = {"running": 4, "token": 5_000, "usage": 0.05, "rate": 160, "queue": 0}


def line(second, running, token, usage, rate, queue):
    return (
        f"[{START + timedelta(seconds=second):%Y-%m-%d %H:%M:%S} TP0] Decode batch, "
        f"#running-req: {running}, #token: {token}, token usage: {usage:.2f}, cuda graph: True, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: {queue}"
    )


def log_of(*states, seconds=120, every=1):
    return text([line(s, **state) for s in range(0, seconds, every) for state in states])


def told(log):
    (data,) = sessions(log)
    (one,) = timeline.build(data)
    return mixed.told(data, one)


def test_lines_of_two_servers_tell_of_twice_the_time():
    found = told(log_of(FULL, QUIET))
    assert found.several
    assert found.share == pytest.approx(2.0, abs=0.05)
    assert found.servers == 2


def test_a_shorter_log_interval_is_no_second_server():
    """Twice as many lines as 40 steps would give, but no tokens from nowhere."""
    found = told(log_of(FULL, FULL | {"rate": 1601}))
    assert found.share == pytest.approx(2.0, abs=0.05)
    assert not found.several


def test_one_server_tells_of_the_time_that_passed():
    found = told(log_of(FULL))
    assert found.share == pytest.approx(1.0, abs=0.02)
    assert not found.several
    assert not found.sampled


def test_every_tenth_line_tells_of_a_tenth_of_the_time():
    found = told(log_of(FULL, seconds=600, every=10))
    assert found.share == pytest.approx(0.1, abs=0.005)
    assert found.sampled


def rising(every_s, steps, cycles=60):
    """Return lines of 40 and of 44 requests in turn; before each rise a prefill line starts four.

    Over 42 requests on average `steps` steps take `every_s` seconds.
    """
    state = {"token": 95_000, "usage": 0.95, "rate": steps * 42 / every_s, "queue": 30}
    lines = []
    for n in range(cycles):
        at = 2 * every_s * n
        prefill = (
            f"[{START + timedelta(seconds=at):%Y-%m-%d %H:%M:%S} TP0] Prefill batch, #new-seq: 4, "
            "#new-token: 2000, #cached-token: 0, token usage: 0.95, #running-req: 40, "
            "#queue-req: 30"
        )
        lines += [line(at, 40, **state), prefill, line(at + every_s, 44, **state)]
    return lines


def test_lines_that_were_printed_rarely_are_all_lines():
    """An unprinted --decode-log-interval of 200: each rise has its prefill line."""
    found = told(text(rising(5, 200)))
    assert found.share == pytest.approx(1.0, abs=0.02)
    assert not found.sampled


def test_lines_that_were_left_out_are_not_taken_for_a_longer_interval():
    """Of 600 decode lines, a second each, 120 are kept; most rises have no prefill line."""
    found = told(text(rising(1, 40, cycles=300)[::5]))
    assert found.share == pytest.approx(0.2, abs=0.01)
    assert found.sampled


@pytest.mark.parametrize("states", [(FULL, QUIET), (QUIET, FULL)])
def test_of_mixed_servers_nothing_is_said(tmp_path, states):
    log = tmp_path / "server.log"
    log.write_text(log_of(*states))
    report = loganalyze.analyze(log)
    assert report.verdict.status == "undetermined"
    assert "about 2 servers are mixed" in report.verdict.headline
    assert not report.findings


def test_prefill_batches_of_a_sampled_log_are_not_counted(tmp_path):
    """Nine prefill lines to a decode line, of which every tenth line of all was kept."""
    lines = []
    for second in range(0, 3000, 10):
        lines += [line(second, **{**QUIET, "queue": 9})]
        lines += [
            f"[{START + timedelta(seconds=second):%Y-%m-%d %H:%M:%S} TP0] Prefill batch, "
            "#new-seq: 1, #new-token: 8000, #cached-token: 0, token usage: 0.05, "
            "#running-req: 3, #queue-req: 9"
        ] * 9
    log = tmp_path / "server.log"
    log.write_text(text(lines))
    checks = {check.code: check for check in loganalyze.analyze(log).checked}
    assert checks["PRE001"].status == "not_applicable"
    assert "10% of the time that passed" in checks["PRE001"].reason
