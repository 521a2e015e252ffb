"""How fast an archive is scanned: `pytest -m bench -s tests/bench/test_scan_speed.py`.

LOGANALYZE_BENCH_FILES sets the number of logs: 200 by default, 2,000 for the target of
docs/cluster.md. Times depend on what else the machine does, so what is compared is CPU time.
"""

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loganalyze.scan import archive as library
from loganalyze.scan import local, work

sys.path.insert(0, str(Path(__file__).parents[1] / "scan"))
from scanned import log_text

pytestmark = pytest.mark.bench
FILES = int(os.environ.get("LOGANALYZE_BENCH_FILES", "200"))
JOBS = local.cores()


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
    """CPU seconds of this process, and of all that it has waited for."""
    used = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return [usage.ru_utime + usage.ru_stime for usage in used]


def measured(action):
    """Return what an action returns, its seconds, and its CPU seconds here and in children."""
    wall, before = time.monotonic(), cpu_s()
    result = action()
    return result, time.monotonic() - wall, [b - a for a, b in zip(before, cpu_s(), strict=True)]


def one_by_one(logs, settings, at_once=1):
    """Return the CPU seconds of logs that a warm process reads one after another.

    `at_once` processes do so at the same time, and their mean is returned: cores that share
    caches or are halves of one are slower together, and a scan keeps all of them busy.
    """
    code = (
        "import sys, time\nfrom loganalyze.scan import inputs, work\n"
        f"settings = work.Settings(*{tuple(settings)!r})\n"
        "tasks = [work.Task(inputs.file(path)) for path in sys.argv[1:]]\n"
        "work.analyze(tasks[:3], settings)\n"
        "start = time.process_time()\n"
        "for task in tasks: work.analyze([task], settings)\n"
        "print(time.process_time() - start)"
    )
    one_thread = {**os.environ, "POLARS_MAX_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, logs)]
    running = [
        subprocess.Popen(command, env=one_thread, stdout=subprocess.PIPE) for _ in range(at_once)
    ]
    used = [float(one.communicate()[0]) for one in running]
    return sum(used) / at_once


def test_a_scan_uses_every_core(folder, tmp_path):
    """Of a scan's CPU time at least 90 % is what the logs cost one by one in one process.

    Start-up of the processes, handing over, entering and the page are the rest. A sample of
    the same logs is read one by one before and after the scan, as machines drift.
    """
    out, logs = str(tmp_path / "out"), sorted(folder.iterdir())
    size = sum(log.stat().st_size for log in logs)
    sample = logs[:: max(1, FILES // 50)]
    some = sum(log.stat().st_size for log in sample)
    settings = work.Settings({}, None, "problems", None, time.time())
    options = library.Options(jobs=JOBS)
    alone = one_by_one(sample, settings, JOBS)
    done, first, (own, workers) = measured(lambda: library.scan([str(folder)], out, options))
    alone = (alone + one_by_one(sample, settings, JOBS)) / 2
    again, second, (own_again, _) = measured(lambda: library.scan([str(folder)], out, options))
    share = alone / some * size / (own + workers)
    print(
        f"\n{FILES:,} logs, {size / 1e6:,.0f} MB, {JOBS} processes: {first:.1f} s; MB per CPU "
        f"second: {some / alone / 1e6:.1f} one by one, {size / (own + workers) / 1e6:.1f} in the "
        f"scan ({share:.0%}); CPU of the scan itself {own:.1f} s of {own + workers:.1f}; "
        f"unchanged: {second:.2f} s ({second / first:.2%}), CPU {own_again:.2f} s "
        f"({own_again / (own + workers):.2%})"
    )
    assert (done.read, again.unchanged) == (FILES, FILES)
    assert share >= 0.9
    assert own_again / (own + workers) < 0.02


@pytest.mark.parametrize(("mix", "said"), [("batch", 14), ("sparse", 27), ("requests", 56)])
def test_large_logs_come_near_the_rates_of_the_document(mix, said, tmp_path):
    """MB per CPU second, as docs/cluster.md has them: half of that on any machine."""
    log = tmp_path / f"{mix}.log"
    generator = Path(__file__).parent / "gen_log.py"
    subprocess.run(
        [sys.executable, generator, log, "--size-mb", "200", "--mix", mix],
        check=True,
        capture_output=True,
    )
    used = one_by_one([log], work.Settings({}, None, "problems", None, time.time()))
    rate = log.stat().st_size / used / 1e6
    print(f"\n{mix:9} 200 MB: {rate:.1f} MB per CPU second")
    assert rate > said / 2
