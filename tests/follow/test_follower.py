"""The same lines give the same episodes as `check`, whatever the chunks."""

import itertools
import random
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loganalyze import pipeline
from loganalyze.follow import Follower
from loganalyze.follow.window import MAX_ROWS, Window
from loganalyze.parse import Parser
from loganalyze.report.follow_text import change as say
from loganalyze.report.follow_text import values
from loganalyze.sources import open_sources

PROMPT = (
    b'[2026-02-24 11:30:05] Receive: obj=GenerateReqInput(text="first\n'
    b"[2026-02-24 11:30:05 TP0] Decode batch. #running-req: 99999, #token: 5, token usage: 0.99,"
    b" gen throughput (token/s): 1.00, #queue-req: 7777\n"
    b'last", sampling_params={})\n'
)
TRACEBACK = (
    b"[2026-02-24 11:37:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    b'  File "/sgl/scheduler.py", line 1, in run\n'
    b"    self.step()\n"
    b"torch.OutOfMemoryError: CUDA out of memory\n"
    b"\n"
)


def pieces(data, cuts):
    """Cut a log at arbitrary bytes, then put whole lines together again, as a tail does."""
    out, rest, last = [], b"", 0
    for cut in [*sorted(cuts), len(data)]:
        rest += data[last:cut]
        last = cut
        end = rest.rfind(b"\n") + 1
        out.append(rest[:end])
        rest = rest[end:]
    return [piece for piece in [*out, rest] if piece]


def follow(data, cuts, name="server.log"):
    follower = Follower()
    follower.add(name, "file")
    changes = [c for piece in pieces(data, cuts) for c in follower.push(name, piece)]
    return follower, changes + follower.finish()


def judged(report):
    return [
        (f.code, f.summary, f.severity, tuple(f.episodes), f.explained_by) for f in report.findings
    ]


@pytest.fixture(scope="module")
def mixed(saturated, tmp_path_factory):
    """A log with a prompt that holds a fake line, a traceback, and a last line cut in half."""
    lines = saturated.read_bytes().splitlines(keepends=True)
    at, end = (
        next(k for k, line in enumerate(lines) if t in line) for t in (b"11:37:0", b"11:39:")
    )
    data = b"".join([*lines[:40], PROMPT, *lines[40:at], TRACEBACK, *lines[at:end]])[:-30]
    path = tmp_path_factory.mktemp("follow") / "server.log"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def whole(mixed):
    return pipeline.analyze(str(mixed))


def test_the_log_has_episodes_to_agree_on(whole):
    codes = {f.code for f in whole.findings}
    assert {"KV001", "CRS001"} <= codes
    assert max(b for s in whole.series for b in s.columns["queue_req"].max if b) < 7777


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 10_000), n=st.sampled_from([0, 3, 40]))
def test_any_chunks_give_the_findings_of_check(mixed, whole, seed, n):
    data = mixed.read_bytes()
    dice = random.Random(seed)
    follower, _ = follow(data, [dice.randrange(len(data)) for _ in range(n)], str(mixed))
    report = follower.report()
    assert judged(report) == judged(whole)
    assert report.verdict == whole.verdict
    assert report.sources[0].sha256 == whole.sources[0].sha256
    assert report.coverage.lines_total == whole.coverage.lines_total
    assert report.coverage.by_kind == whole.coverage.by_kind


def test_line_by_line_gives_the_records_of_the_whole(mixed):
    data = mixed.read_bytes()[:200_000]
    part = mixed.with_name("part.log")
    part.write_bytes(data)
    (source,) = open_sources([str(part)])
    wanted = [f.batch for f in Parser().read(source)]
    follower = Follower()
    follower.add(str(part), "file")
    for line in data.splitlines(keepends=True)[:400]:
        follower.push(str(part), line, history=True)
    follower.push(str(part), b"".join(data.splitlines(keepends=True)[400:]), history=True)
    follower.finish()
    rows = follower._window.frames()["batch"]
    assert rows.select("line_no", "running_req", "queue_req").equals(
        pl.concat(wanted).select("line_no", "running_req", "queue_req")
    )


@pytest.fixture(scope="module")
def changes(saturated):
    """What is told of the saturated log when it comes in small pieces."""
    data = saturated.read_bytes()
    return follow(data, range(0, len(data), 4_000))[1]


def test_one_saturation_one_alert_one_all_clear(changes):
    told = [(c.event, c.finding.code) for c in changes if c.finding]
    assert told == [("alert", "KV001"), ("worse", "KV001"), ("clear", "KV001")]
    alert, worse, clear = (c for c in changes if c.finding)
    # A saturation of 300 s and a tenth of the log is critical.
    assert [str(c.finding.severity) for c in (alert, worse)] == ["warning", "critical"]
    start = datetime(2026, 2, 24, 11, 30)
    # More load comes at 240 s and goes at 660 s; what is in the queue then takes a while.
    assert 240 < (alert.time - start).total_seconds() < 420
    assert 660 < (clear.time - start).total_seconds() < 1000
    assert (alert.state, alert.was) == ("saturated", "healthy")
    assert (clear.state, clear.was) == ("healthy", "saturated")


def test_the_alert_comes_within_a_minute_of_the_condition(changes):
    alert = next(c for c in changes if c.event == "alert")
    assert (alert.time - alert.finding.episodes[-1].start).total_seconds() < 60


def test_states_change_and_each_change_is_told_once(changes):
    states = [c for c in changes if c.event != "end"]
    assert all(c.was != c.state or c.finding for c in states)
    for before, after in itertools.pairwise(states):
        assert after.was == before.state


def test_history_is_read_without_alerts_about_the_past(saturated):
    follower = Follower()
    follower.add("server.log", "file")
    assert follower.push("server.log", saturated.read_bytes(), history=True) == []
    changes = follower.catch_up()
    assert [c.event for c in changes] == ["state"]
    assert changes[0].state == "healthy"


def test_history_that_ends_in_a_saturation_alerts(saturated):
    lines = saturated.read_bytes().splitlines(keepends=True)
    until = next(k for k, line in enumerate(lines) if b"11:40:" in line)
    follower = Follower()
    follower.add("server.log", "file")
    follower.push("server.log", b"".join(lines[:until]), history=True)
    assert [(c.event, c.state) for c in follower.catch_up()] == [("alert", "saturated")]


def test_the_last_words_of_a_server_are_judged_when_nothing_follows(simulated):
    data = simulated("crash_restart").read_bytes()
    died = data.index(b"Scheduler hit an exception")
    start = data.rindex(b"\n", 0, died) + 1
    end = data.index(b"[2026-02-24 11:48", died)
    follower = Follower()
    follower.add("server.log", "file")
    follower.push("server.log", data[:start], history=True)
    follower.catch_up()
    told = follower.push("server.log", data[start:end]) + follower.tick(5.0)
    assert "CRS001" in [c.finding.code for c in told if c.finding]


def test_silence_is_told_once_and_is_no_verdict(simulated):
    data = simulated("client_limited", duration=300).read_bytes()
    follower = Follower()
    follower.add("server.log", "file")
    follower.push("server.log", data, history=True)
    follower.catch_up()
    changes = [c for s in range(5, 300, 5) for c in follower.tick(float(s))]
    assert [c.state for c in changes] == ["silent"]


@pytest.fixture(scope="module")
def dead():
    """A saturated server up to the last word of its death (11:45:00, out of GPU memory)."""
    data = (Path(__file__).parents[2] / "sample_logs" / "crash_restart.log").read_bytes()
    return data[: data.index(b"\n", data.index(b"Received sigquit")) + 1]


def test_a_server_that_never_returns_alerts_and_stays_down(dead):
    follower = Follower()
    follower.add("server.log", "file")
    last = dead.index(b"[2026-02-24 11:44:")  # it dies a minute later
    follower.push("server.log", dead[:last], history=True)
    (saturated,) = follower.catch_up()
    assert (saturated.finding.code, saturated.state) == ("KV001", "saturated")
    told = follower.push("server.log", dead[last:])
    for quiet in range(1, 400, 5):
        told += follower.tick(float(quiet))
    alert, clear = told
    assert (alert.event, alert.finding.code, alert.was) == ("alert", "CRS001", "saturated")
    assert "died at 11:45:00: out of GPU memory" in alert.finding.summary
    # A server that is gone has no queue; that it is gone is never over by itself.
    assert (clear.event, clear.finding.code) == ("clear", "KV001")
    status = follower.status()
    assert [f.code for f in status.active] == ["CRS001"]
    assert (status.state, status.raised) == ("degraded", {"KV001": 1, "CRS001": 1})
    assert "degraded  CRS001 crash-or-restart; last printed: usage 0.7" in values(status)


def test_the_end_of_a_log_names_the_death(dead):
    _, changes = follow(dead, [])
    alert, end = changes[-2:]
    assert (alert.event, alert.finding.code) == ("alert", "CRS001")
    assert (end.event, end.state, end.active[0]) == ("end", "degraded", "CRS001")
    assert "end of the log, degraded: CRS001 crash-or-restart" in say(end)


def decode_line(time, usage, queue):
    return (
        f"[{time} TP0] Decode batch. #running-req: 20, #token: {int(100_000 * usage)}, "
        f"token usage: {usage:.2f}, gen throughput (token/s): 500.00, #queue-req: {queue}\n"
    ).encode()


def test_a_clock_that_is_set_back_does_not_stop_the_judging():
    follower = Follower()
    follower.add("server.log", "file")
    start = datetime(2026, 10, 25, 2, 59)
    quiet = [decode_line(start + timedelta(seconds=2 * k), 0.3, 0) for k in range(30)]
    back = start - timedelta(minutes=59)
    full = [decode_line(back + timedelta(seconds=2 * k), 0.98, 50) for k in range(90)]
    changes = []
    for line in [*quiet, *full]:
        changes += follower.push("server.log", line)
    assert "KV001" in [c.finding.code for c in changes if c.event == "alert"]


@pytest.mark.parametrize("ahead", [0, 30], ids=["watched", "history"])
@pytest.mark.parametrize("minutes", [60, 30], ids=["winter time", "another run"])
def test_what_was_over_before_a_clock_was_set_back_is_not_told_again(minutes, ahead):
    start = datetime(2026, 10, 25, 2, 30)
    lines = [
        *(decode_line(start + timedelta(seconds=10 * k), 0.98, 50) for k in range(30)),
        *(decode_line(start + timedelta(seconds=10 * k), 0.3, 0) for k in range(30, 60)),
    ]
    back = start + timedelta(minutes=10 - minutes)
    lines += [decode_line(back + timedelta(seconds=10 * k), 0.3, 0) for k in range(60)]
    follower = Follower()
    follower.add("server.log", "file")
    changes = []
    if ahead:
        follower.push("server.log", b"".join(lines[: ahead + 30]), history=True)
        changes += follower.catch_up()
    for line in lines[ahead and ahead + 30 :]:
        changes += follower.push("server.log", line)
    told = [c.event for c in changes if c.finding and c.finding.code == "KV001"]
    assert told.count("alert") == told.count("clear") == (0 if ahead else 1)
    assert follower.status().now.time == back + timedelta(seconds=590)
    assert follower.status().state == "healthy"


def test_what_goes_on_while_a_clock_is_set_back_is_told_once():
    follower = Follower()
    follower.add("server.log", "file")
    start = datetime(2026, 10, 25, 2, 30)
    times = [start + timedelta(seconds=10 * k) for k in range(40)]
    times += [start - timedelta(minutes=55) + timedelta(seconds=10 * k) for k in range(40)]
    changes = [c for t in times for c in follower.push("server.log", decode_line(t, 0.98, 50))]
    told = [c.event for c in changes if c.finding and c.finding.code == "KV001"]
    assert told[0] == "alert"
    assert set(told[1:]) <= {"worse"}


def test_one_wrong_stamp_does_not_stop_the_judging():
    follower = Follower()
    follower.add("server.log", "file")
    start = datetime(2026, 2, 24, 12)
    times = [start + timedelta(seconds=2 * k) for k in range(120)]
    lines = [decode_line(t, 0.98, 50) for t in times]
    lines[10] = decode_line(datetime(2099, 1, 1), 0.98, 50)
    pieces = [b"".join(lines[k : k + 10]) for k in range(0, 120, 10)]
    changes = [c for piece in pieces for c in follower.push("server.log", piece)]
    assert "alert" in [c.event for c in changes]


def test_several_logs_are_judged_together(saturated, simulated):
    quiet = simulated("client_limited", duration=600).read_bytes()
    follower = Follower()
    follower.add("a.log", "file")
    follower.add("b.log", "file")
    follower.push("b.log", quiet, history=True)
    follower.push("a.log", saturated.read_bytes(), history=True)
    follower.finish()
    report = follower.report()
    assert [s.source for s in report.sessions] == ["a.log", "b.log"]
    assert {f.episodes[0].source for f in report.findings if f.code == "KV001"} == {"a.log"}


def test_time_to_full_follows_a_steady_climb():
    follower = Follower()
    follower.add("server.log", "file")
    start = datetime(2026, 2, 24, 12)
    lines = [
        f"[{start + timedelta(seconds=10 * k)} TP0] Decode batch. #running-req: 20, #token: "
        f"{1000 * k}, token usage: {0.3 + 0.01 * k:.2f}, gen throughput (token/s): 500.00, "
        "#queue-req: 0\n"
        for k in range(30)
    ]
    follower.push("server.log", "".join(lines).encode())
    now = follower.status().now
    # 0.59 after 30 lines, one hundredth in ten seconds: 0.41 takes 410 s.
    assert now.usage == 0.59
    assert now.full_in_s == pytest.approx(410, rel=0.05)


def test_no_time_to_full_where_usage_does_not_climb(saturated):
    follower, _ = follow(saturated.read_bytes(), [])
    assert follower.status().now.full_in_s is None


def test_the_window_is_bounded_and_keeps_the_extremes(saturated):
    (source,) = open_sources([str(saturated)])
    frames = list(Parser().read(source))
    window = Window()
    rows = peaks = 0
    for k in range(120):
        for f in frames:
            late = f.batch.with_columns(
                time=pl.col("time") + timedelta(hours=k / 2),
                line_no=pl.col("line_no") + 10_000 * k,
            )
            window.add(type(f)(late, f.event.clear(), f.startup.clear(), f.request.clear()))
            rows += late.height
            peaks = max(peaks, late["queue_req"].max())
    kept = window.frames()["batch"]
    assert rows > MAX_ROWS
    assert kept.height <= MAX_ROWS
    assert kept["queue_req"].max() == peaks
    assert kept["line_no"].is_sorted()
    span = kept["time"].max() - kept["time"].min()
    assert span < timedelta(hours=40)  # of sixty; what is older than a day goes in time


def own(k):
    at = datetime(2026, 11, 20, 10) + timedelta(seconds=k)
    return (
        f"[{at:%Y-%m-%d %H:%M:%S} TP0] Decode batch, #running-req: 3, #token: 512, token usage: "
        f"0.65, cuda graph: True, gen throughput (token/s): 300.25, #queue-req: {k}\n"
    )


def queues(lines, every=7):
    """Return the rows of lines that come a few at once, and how many there are before the end."""
    follower = Follower()
    follower.add("server.log", "file")
    for k in range(0, len(lines), every):
        follower.push("server.log", "".join(lines[k : k + every]).encode())
    live = follower._window.frames()["batch"].height
    follower.finish()
    return follower._window.frames()["batch"], live


def test_a_wrapper_that_changes_while_the_log_is_followed():
    """300 KB on, each line is in a string of JSON; quotes among the others stay quotes."""
    lines = [own(k) for k in range(2000)]
    wrapped = [f'{{"event": "{own(k).strip()}", "level": "info"}}\n' for k in range(2000, 2040)]
    lines[1900:1900] = wrapped[:5]
    batch, live = queues([*lines, *wrapped])
    assert batch["queue_req"].to_list() == list(range(2040))
    assert live == 2040


def test_a_followed_table_names_its_writers():
    rows = [f'{n},"{own(k).strip()}"\n' for k in range(30) for n in ("gpu-1", "gpu-2")]
    batch, _ = queues(["host,message\n", *rows])
    assert batch["stream"].to_list() == ["gpu-1", "gpu-2"] * 30
