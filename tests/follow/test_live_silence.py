"""A silence that lasts: told once, and only where idleness cannot explain it."""

from datetime import datetime, timedelta

import pytest

from loganalyze.follow import Follower
from loganalyze.report.follow_text import change as say

SIGTERM = b"[2026-02-24 11:38:20] SIGTERM received. signum=None frame=None. Draining requests\n"


@pytest.fixture(scope="module")
def hang(simulated):
    """A server with 48 running requests and none waiting, and what comes after 96 s."""
    data = simulated("stall_hang").read_bytes()
    cut = data.index(b"[2026-02-24 11:39:55")
    last = data[data.rindex(b"\n", 0, cut - 1) + 1 : cut]
    assert last.startswith(b"[2026-02-24 11:38:19")
    assert b"#new-seq: 1," in last
    assert b"#running-req: 47, #queue-req: 0" in last
    return data[:cut], data[cut:]


def watched(data, live=50):
    """Return a follower that saw the last lines come, some at a time, and the rest before."""
    follower = Follower()
    follower.add("server.log", "file")
    lines = data.splitlines(keepends=True)
    follower.push("server.log", b"".join(lines[: len(lines) - live]), history=True)
    follower.catch_up()
    told = follower.push("server.log", b"".join(lines[len(lines) - live :])) if live else []
    return follower, told


def wait(follower, seconds):
    return [(quiet, c) for quiet in range(1, seconds) for c in follower.tick(float(quiet))]


def hangs(changes):
    return [c for c in changes if c.finding and c.finding.code == "HNG001"]


def test_a_live_hang_is_told_once_at_the_limit_of_the_rule(hang):
    before, after = hang
    follower, _ = watched(before)
    ((quiet, alert),) = wait(follower, 96)
    assert (quiet, alert.event, alert.state, alert.was) == (30, "alert", "degraded", "healthy")
    assert say(alert).endswith(
        "critical  HNG001 stall: No line for 30 s with 48 running: stuck, killed, or its log ended"
    )
    assert follower.status().raised == {"HNG001": 1}
    # It goes on: the rule finds the same silence now, which is no second alert.
    lines = after.splitlines(keepends=True)
    told = [
        c
        for k in range(0, 3000, 20)
        for c in follower.push("server.log", b"".join(lines[k : k + 20]))
    ]
    assert [c.event for c in hangs(told)] == ["clear"]


def test_the_limit_of_the_rule_is_the_one_that_was_set(hang):
    follower = Follower({"HNG001.report_s": 80.0})
    follower.add("server.log", "file")
    lines = hang[0].splitlines(keepends=True)
    follower.push("server.log", b"".join(lines[:-50]), history=True)
    follower.catch_up()
    follower.push("server.log", b"".join(lines[-50:]))
    assert [(quiet, c.event) for quiet, c in wait(follower, 96) if c.finding] == [(80, "alert")]


def test_a_log_whose_last_line_is_old_is_only_said_to_be_silent(hang):
    follower, _ = watched(hang[0], live=0)
    assert [(c.event, c.state) for _, c in wait(follower, 200)] == [("state", "silent")]


def test_a_pipe_that_replays_a_log_is_not_live_until_it_paused(hang):
    follower = Follower()
    follower.add("-", "stdin")
    follower.push("-", hang[0])
    assert hangs(c for _, c in wait(follower, 200)) == []


def test_a_server_that_was_told_to_stop_does_not_hang(hang):
    follower, told = watched(hang[0] + SIGTERM)
    assert hangs([*told, *(c for _, c in wait(follower, 200))]) == []


def test_the_last_requests_of_a_burst_may_have_ended(simulated):
    """Each burst's last line shows one or two requests that end before the next line is due."""
    data = simulated("idle_batches").read_bytes()
    lines = data.splitlines(keepends=True)
    idle = next(k for k, line in enumerate(lines) if b"11:3" in line and k > 100 and gap(lines, k))
    assert b"#running-req: 2," in lines[idle - 1]
    follower, _ = watched(b"".join(lines[:idle]))
    assert hangs(c for _, c in wait(follower, 200)) == []
    # The same line with a request in the queue: a server that works would have printed more.
    waiting = lines[idle - 1].replace(b"#queue-req: 0", b"#queue-req: 1")
    follower, _ = watched(b"".join([*lines[: idle - 1], waiting]))
    (alert,) = hangs(c for _, c in wait(follower, 200))
    assert "with 2 running and 1 waiting" in alert.finding.summary


def gap(lines, k):
    """Whether more than 30 s lie between a line and the one before."""
    clock = [
        int(x[12:14]) * 3600 + int(x[15:17]) * 60 + int(x[18:20]) for x in lines[k - 1 : k + 1]
    ]
    return clock[1] - clock[0] > 30


def test_one_server_of_several_hangs_while_the_others_print(hang, simulated):
    """A is silent from 11:38:19 to 11:39:55, B never: A's alert is told once, and lasts."""
    b = by_second(simulated("healthy_chat").read_bytes().splitlines(keepends=True))
    a = by_second(b"".join(hang).splitlines(keepends=True))
    assert not [s for s in a if "11:38:19" < s < "11:39:55"]
    follower = Follower()
    for name, lines in (("a.log", a), ("b.log", b)):
        follower.add(name, "file")
        past = [line for s, line in lines.items() if s < "11:38:00"]
        follower.push(name, b"".join(past), history=True)
    follower.catch_up()
    told, last = [], {"a.log": 0, "b.log": 0}
    for second, clock in enumerate(clocks("11:38:00", 420)):
        for name, lines in (("a.log", a), ("b.log", b)):
            if clock in lines:
                last[name] = second
                told += [(clock, c) for c in follower.push(name, lines[clock])]
        quiet = {name: float(second - s) for name, s in last.items()}
        told += [(clock, c) for c in follower.tick(min(quiet.values()), quiet)]
    # Told 30 s after its last line; over 120 s after 11:40:30, the last look that counts a spell
    # which ended 20 s before the look before (11:40:15).
    assert [(clock, c.event) for clock, c in told if c in hangs([c])] == [
        ("11:38:49", "alert"),
        ("11:42:30", "clear"),
    ]
    alert = next(c for _, c in told if c.event == "alert")
    assert alert.finding.episodes[-1].source == "a.log"
    assert "HNG001 stall, a.log: No line for 30 s with 48 running" in say(alert, True)


def by_second(lines):
    """Return the lines of each second, by its time of day."""
    seconds = {}
    for line in lines:
        clock = line[12:20].decode()
        seconds[clock] = seconds.get(clock, b"") + line
    return seconds


def clocks(start, n):
    """Return the next seconds as times of day."""
    first = datetime.strptime(start, "%H:%M:%S")
    return [(first + timedelta(seconds=k)).strftime("%H:%M:%S") for k in range(n)]
