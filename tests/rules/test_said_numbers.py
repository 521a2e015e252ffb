"""Numbers in a claim that a reader checks against another one: worked out by hand."""

from datetime import timedelta

import pytest
from synth import START, capacity, decode, outcomes, sessions, text

from loganalyze import rules
from loganalyze.report import words


def prefill(second: float, running: int, queue: int) -> str:
    return (
        f"[{START + timedelta(seconds=second):%Y-%m-%d %H:%M:%S} TP0] Prefill batch, "
        "#new-seq: 1, #new-token: 100, #cached-token: 0, token usage: 0.50, "
        f"#running-req: {running}, #queue-req: {queue}"
    )


def found(code: str, *parts):
    finding = outcomes(text(*parts))[code].finding
    assert finding is not None
    return finding


def test_usage_is_said_as_the_log_prints_it():
    # 0.90, and 1.00 on 2 of 200 lines: 0.901 on average.
    finding = found("KV001", capacity(), decode(usage=[0.9] * 198 + [1.0] * 2, queue=9))
    said = {e.label: words.number(e.value, e.unit) for e in finding.evidence}
    assert said["highest usage"] == "1.00"
    assert said["mean usage"] == "0.90"


def test_more_run_than_fit_where_requests_held_less_for_a_part_of_it():
    # 95,000 tokens in 50 requests for 200 s, in 25 for 400 s: 1,900 and then 3,800 each, of
    # which 26 fit in 100,000; over all lines 57,000,000 / 20,000 = 2,850 each.
    running = [50] * 200 + [25] * 400
    finding = found("KV001", capacity(), decode(usage=[0.95] * 600, queue=9, running=running))
    assert (
        "; room for about 26 at 3,800 tokens each "
        "(as from line 202 on, but 2,850 on average while it was full)" in finding.summary
    )
    alike = found("KV001", capacity(), decode(usage=[0.95] * 600, queue=9, running=25))
    assert alike.summary.endswith("room for about 26 at 3,800 tokens each")


def test_the_latency_of_workers_is_that_of_the_time_in_which_they_were_counted():
    # 15 min of open traffic, a request a second; then 20 run and 30 wait for 15 min, and one is
    # admitted each 10 s: 50 / 0.1 = 500 s.
    swing = [10 + 30 * (k // 60 % 2) for k in range(900)]
    lines = decode(usage=[0.5] * 1800, running=swing + [20] * 900, queue=[0] * 900 + [30] * 900)
    lines += [prefill(k + 0.5, swing[k], 0) for k in range(900)]
    lines += [prefill(k + 0.5, 19, 30) for k in range(900, 1800, 10)]
    finding = found("CLI002", capacity(), sorted(lines))
    assert "about 50 workers" in finding.summary
    latency = {e.label: e.value for e in finding.evidence}["latency of a request"]
    assert latency == pytest.approx(500, rel=0.05)


def test_many_waiting_are_said_with_thousands_apart():
    finding = found("KV001", capacity(cap=2048), decode(usage=[0.95] * 120, queue=3418))
    assert "10 running, 3,418 waiting" in finding.summary
    assert finding.competing == "running cap (RUN001) excluded: 10 of 2,048 requests run"


def test_a_rank_with_a_single_line_has_no_share_of_time():
    # 2 wait on rank 0 all the time at usage 0.20; rank 1 prints one line, which lasts no time.
    lines = decode(usage=[0.2] * 40, queue=2, rank=" DP0 TP0")
    lines += decode(usage=[0.24], queue=2, start_s=5, rank=" DP1 TP1")
    data = sessions(text(capacity(), sorted(lines)))
    headline = rules.conclude(rules.run(data), data).headline
    assert "why requests wait: 2 on average at usage 0.20, for 100% of 41 statistics" in headline


def test_the_level_of_a_warm_up_is_that_of_its_longest_spell():
    # 20 running requests climb to 500 tokens each in 20 s, and 15 min later in 100 s to 2,000:
    # 85 % of it after 80 s.
    held = [20 * min(500, 25 * k) for k in range(920)]
    held += [20 * min(2_000, 500 + 15 * k) for k in range(1100)]
    finding = found(
        "WRM001", capacity(), decode(usage=[t / 100_000 for t in held], running=20, queue=0)
    )
    assert "in 2 spells" in finding.summary
    assert "climbed to 2,000 in the longest" in finding.summary
    longest = max((e.end - e.start).total_seconds() for e in finding.episodes)
    assert longest == pytest.approx(80, abs=15)
