"""A mean names the lines that it is of, and cites one of them that prints about as much."""

from dataclasses import replace
from datetime import timedelta

import polars as pl
import pytest
from synth import START, capacity, decode, outcomes, sessions, text

from loganalyze.capacity import pool
from loganalyze.model import Episode
from loganalyze.rules import held


def evidence(*parts):
    finding = outcomes(text(*parts))["KV001"].finding
    return {one.label: one for one in finding.evidence}


PREFILL = (
    f"[{START:%Y-%m-%d %H:%M:%S} TP0] Prefill batch, #new-seq: 1, #new-token: 64, "
    "#cached-token: 0, token usage: 0.50, #running-req: 9, #queue-req: 0"
)


@pytest.fixture(scope="module")
def said():
    """Lines 3 to 22 free at 900 token/s, 23 to 222 full: 0.92, 0.95 and 0.98 in turn."""
    return evidence(
        capacity(),
        PREFILL,
        decode(usage=[0.5] * 20, queue=0, running=10, rate=900),
        decode(
            start_s=20,
            usage=[0.92] * 50 + [0.95] * 100 + [0.98] * 50,
            queue=[4] * 50 + [6] * 100 + [8] * 50,
            running=10,
            rate=400,
        ),
    )


@pytest.mark.parametrize(
    ("label", "value", "lines"),
    [("mean usage", 0.95, (73, 172)), ("waiting requests", 6.0, (73, 172))],
)
def test_a_mean_cites_a_line_that_prints_it(said, label, value, lines):
    one = said[label]
    assert one.value == pytest.approx(value, abs=0.006)
    assert one.formula == "time-weighted mean of decode lines 23 to 222"
    assert lines[0] <= one.line_no <= lines[1]


def test_the_unsaturated_level_cites_decode_lines_outside_the_episode(said):
    one = said["decode throughput reached unsaturated"]
    assert one.value == 900
    assert 3 <= one.line_no <= 22
    assert one.formula.startswith("mean of decode lines ")


def test_tokens_per_request_name_their_lines(said):
    """All hold the median of 9,500 tokens from line 73 on: (100 x 0.95 + 50 x 0.98) / 150."""
    one = said["tokens per running request"]
    assert one.value == pytest.approx(9_600)
    assert one.formula == "sum #token / sum #running-req of decode lines 73 to 222"
    assert 73 <= one.line_no <= 172  # 9,800 is not within 2 % of it


def rotated():
    """Return 21 lines with 5,000 tokens a request in one log, 20 with 9,000 in the next."""
    (data,) = sessions(text(decode(usage=[0.5] * 21 + [0.9] * 20, running=10)))
    later = pl.int_range(pl.len()) >= 21
    batch = data.batch.with_columns(
        source=pl.when(later).then(pl.lit("/logs/s.log")).otherwise(pl.lit("/logs/s.log.1")),
        line_no=pl.when(later).then(pl.col("line_no") - 21).otherwise("line_no"),
    )
    return replace(data, batch=batch)


def test_a_stretch_over_two_logs_names_both():
    measured = pool.measure(rotated())
    assert measured.line_sources == ("/logs/s.log.1", "/logs/s.log")
    rows = rotated().batch.with_columns(decode=True)
    assert held.these(rows) == "decode lines 1 of s.log.1 to 20 of s.log"
    assert held.these(rows[:21]) == "decode lines 1 to 21"
    assert held.these(rows[21:22]) == "decode line 1"


def test_what_is_before_a_leak_is_told_by_place_not_by_number():
    data = rotated()
    leak = Episode(None, None, 1, 20, None, "/logs/s.log")
    assert pool.before_leak(data, pool.measure(data), leak).tokens_per_req == 5_000


def test_an_overload_begins_where_requests_begin_to_wait():
    # None wait until 401 s, then one more each 2 s: the windows in which the queue has risen
    # straight enough reach further back.
    queue = [max(0, (second - 400) // 2) for second in range(901)]
    finding = outcomes(text(capacity(), decode(usage=[0.5] * 901, queue=queue, running=10)))[
        "OVR001"
    ].finding
    assert finding is not None
    (episode,) = finding.episodes
    assert episode.start == START + timedelta(seconds=402)
    assert (episode.first_line, episode.last_line) == (404, 902)
    growth = {one.label: one.value for one in finding.evidence}["growth of the queue"]
    assert growth == pytest.approx(30, rel=0.01)


def test_a_drain_shows_the_requests_of_its_first_spell():
    # Two jobs of 20 s that end in 10 requests fewer a line; the second is larger.
    first = decode(usage=[0.5] * 8, running=[70, 60, 50, 40, 30, 20, 10, 2])
    second = decode(usage=[0.5] * 8, running=[90, 80, 70, 50, 40, 30, 20, 3], start_s=201)
    start = f"[{START + timedelta(seconds=200):%Y-%m-%d %H:%M:%S} TP0]" + PREFILL.split("]")[1]
    start = start.replace("#running-req: 9", "#running-req: 0")
    finding = outcomes(text(capacity(), first, start, second))["DRN001"].finding
    assert finding is not None
    assert len(finding.episodes) == 2
    assert finding.summary.endswith("running falls from 70 to 2")
    (one,) = finding.evidence
    assert (one.value, one.line_no) == (70, 2)


def test_a_rank_drains_once_no_requests_come_to_the_others():
    # Rank 0 has 5 waiting until 30 s and runs 40 to the end; on rank 1 one fewer runs each second.
    fed = decode(usage=[0.5] * 61, running=40, queue=[5] * 31 + [0] * 30, rank=" DP0 TP0")
    left = decode(usage=[0.5] * 61, running=[64 - k for k in range(61)], rank=" DP1 TP1")
    pairs = [line for both in zip(fed, left, strict=True) for line in both]
    finding = outcomes(text(capacity(), pairs))["DRN001"].finding
    assert finding is not None
    assert finding.summary.endswith(" on DP1 TP1: running falls from 33 to 4")
    assert finding.episodes[0].start == START + timedelta(seconds=31)
    # Rank 1's line of the 31st second: one line before both ranks' of the 30 before.
    assert finding.evidence[0].line_no == 1 + 2 * 31 + 2
    never = [line.replace("#queue-req: 0", "#queue-req: 5") for line in fed]
    pairs = [line for both in zip(never, left, strict=True) for line in both]
    assert outcomes(text(capacity(), pairs))["DRN001"].finding is None


def test_what_is_a_sum_over_ranks_cites_no_line_of_one_and_names_none():
    # 20 run and 12 wait on rank 0, 8 run on rank 1: 40 clients.
    one = decode(usage=[0.5] * 401, running=20, queue=12, rank=" DP0 TP0")
    other = decode(usage=[0.2] * 401, running=8, queue=0, rank=" DP1 TP1")
    pairs = [line for both in zip(one, other, strict=True) for line in both]
    finding = outcomes(text(capacity(), pairs))["CLI002"].finding
    assert finding is not None
    assert "about 40 workers" in finding.summary
    assert "DP" not in finding.summary
    (episode,) = finding.episodes
    assert (episode.rank, episode.first_line, episode.last_line) == (None, 2, 803)
    clients = finding.evidence[0]
    assert (clients.value, clients.source, clients.line_no) == (40, None, None)
    assert "sum over 2 ranks" in clients.formula


def prefills(n, start_s, new, cached):
    return [
        f"[{START + timedelta(seconds=start_s + 10 * i):%Y-%m-%d %H:%M:%S} TP0] Prefill batch, "
        f"#new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.50, "
        "#running-req: 9, #queue-req: 0"
        for i in range(n)
    ]


def test_a_share_over_many_lines_says_which_and_how_many():
    """Lines 2 to 91 hit 0.8 and lines 92 to 181 hit 0.2; a window of 10 min holds 60 of them."""
    log = text(capacity(), prefills(90, 0, 200, 800), prefills(90, 900, 800, 200))
    finding = outcomes(log)["PRE004"].finding
    said = {one.label: (one.value, one.formula) for one in finding.evidence}
    rate = "#cached-token / (#cached-token + #new-token), over prefill lines"
    assert said["hit rate before"] == (0.8, f"{rate} 32 to 91 (60 of them)")
    assert said["hit rate after"] == (0.2, f"{rate} 92 to 151 (60 of them)")
