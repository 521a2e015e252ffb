"""A day of following stays under 200 MB."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import resource, sys
from datetime import datetime, timedelta
from loganalyze.follow import Follower

lines = open(sys.argv[1], "rb").read().splitlines(keepends=True)
start, life = lines[:8], [line for line in lines[8:] if line.startswith(b"[2026")]
period = timedelta(seconds=float(sys.argv[2]))
follower = Follower()
follower.add("server.log", "stdin")
follower.push("server.log", b"".join(start), history=True)
for k in range(int(timedelta(days=1) / period)):
    moved = [
        b"[%b%b" % (str(datetime.fromisoformat(x[1:20].decode()) + k * period).encode(), x[20:])
        for x in life
    ]
    follower.push("server.log", b"".join(moved), history=True)
    if k % 6 == 5:
        follower.catch_up()
print(follower.lines, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.bench
def test_a_day_of_a_busy_server(simulated):
    log = simulated("healthy_chat", duration=600)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log), "600"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    lines, megabytes = map(int, done.stdout.split())
    assert lines > 900_000
    assert megabytes < 200
