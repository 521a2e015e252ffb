"""How fast an archive is scanned: `pytest -m bench -s tests/bench/test_scan_speed.py`.

LOGANALYZE_BENCH_FILES sets the number of logs (2,000 by default). Times depend on what else
the machine does; the figures are printed, and compared with the targets of docs/cluster.md.
"""

import os
import random
import resource
import shutil
import sys
import time
from pathlib import Path

import pytest

from loganalyze.scan import archive as library
from loganalyze.scan import inputs, local, work

sys.path.insert(0, str(Path(__file__).parents[1] / "scan"))
from conftest import log_text

pytestmark = pytest.mark.bench
FILES = int(os.environ.get("LOGANALYZE_BENCH_FILES", "2000"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Logs of 0.5 to 5 MB: the lines of a few, with other stamps and requests between."""
    made = tmp_path_factory.mktemp("archive")
    rng = random.Random(3)
    access = '10.0.0.1:4{k:04d} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    for k in range(FILES):
        lines = int(rng.uniform(0.5e6, 5e6) / 320)
        text = log_text(full=k % 5 == 0, lines=lines, step_s=1 + k % 3, seed=k)
        between = "".join(f"INFO:     {access.format(k=j % 9999)}" for j in range(2))
        (made / f"run{k:04d}.log").write_text(text.replace("\n", "\n" + between))
    yield made
    shutil.rmtree(made)


def cpu_s():
    """CPU seconds of this process and of all that it has waited for."""
    own, children = (
        resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def measured(action):
    """Return what an action returns, its seconds, and its CPU seconds."""
    wall, cpu = time.monotonic(), cpu_s()
    result = action()
    return result, time.monotonic() - wall, cpu_s() - cpu


def alone(tasks, settings):
    """Analyse in one process of a pool whose processes have one thread each."""
    with local.Pool(settings, local.cores(), 8 << 30) as pool:
        return list(pool.run(iter([tasks])))


def test_a_scan_uses_every_core(folder, tmp_path):
    """Of a scan's CPU time at least 90 % is what the logs cost in one warm process alone.

    CPU time and not time on the clock, so that a busy machine gives the same answer. Start-up
    of the processes, handing over, entering and the page are the rest.
    """
    out, size = tmp_path / "out", sum(p.stat().st_size for p in folder.iterdir())
    few = sorted(folder.iterdir())[:: max(1, FILES // 40)]
    settings = work.Settings({}, None, "problems", None, time.time())
    tasks = [work.Task(inputs.file(str(p))) for p in few]
    # One process with one thread; what it takes to start is the difference to fewer logs.
    _, wall_few, cpu_few = measured(lambda: alone(tasks[:4], settings))
    _, wall, cpu = measured(lambda: alone([*tasks[:4], *tasks], settings))
    wall, cpu = wall - wall_few, cpu - cpu_few
    some = sum(task.found.size for task in tasks)
    done, first, used = measured(lambda: library.scan([str(folder)], str(out), library.Options()))
    again, second, _ = measured(lambda: library.scan([str(folder)], str(out), library.Options()))
    share = cpu / some * size / used
    print(
        f"\n{FILES:,} logs, {size / 1e6:,.0f} MB, {local.cores()} cores: {first:.1f} s, "
        f"{size / first / 1e6:.1f} MB/s; one process {some / wall / 1e6:.1f} MB/s; "
        f"CPU: {used:.1f} s, {share:.0%} of it analysis; unchanged: {second:.2f} s, "
        f"{second / first:.2%}"
    )
    assert (done.read, again.unchanged) == (FILES, FILES)
    assert share >= 0.9
    assert second / first < 0.02
