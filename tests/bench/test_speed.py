"""Speed and memory of the parser, as ratios on the machine at hand.

`pytest -m bench tests/bench/test_speed.py -s` prints a table. CPU time is compared, since
wall time depends on who else is using the machine.
"""

import io
import json
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import polars as pl
import pytest

pytestmark = pytest.mark.bench

MB = 1_000_000
SIZE_MB = 100
GENERATOR = Path(__file__).parent / "gen_log.py"
ROOT = Path(__file__).parents[2]

#: Parses a log as the command does, with one thread of Polars; prints what it found, the CPU
#: seconds it took, and the peak of its memory.
OURS = """
import json, os, resource, sys, time
os.environ.setdefault("POLARS_MAX_THREADS", "1")
import polars as pl
from loganalyze.parse import Parser
from loganalyze.sources import open_sources
start = time.process_time()
found = dict.fromkeys(
    ["decode", "prefill", "retract", "decode_token", "prefill_new_token",
     "decode_gen_throughput", "decode_queue_req"], 0)
for frames in (f for s in open_sources(sys.argv[1:]) for f in Parser().read(s)):
    decode = frames.batch.filter(pl.col("phase") == "decode")
    prefill = frames.batch.filter(pl.col("phase") == "prefill")
    found["decode"] += len(decode)
    found["prefill"] += len(prefill)
    found["retract"] += len(frames.event.filter(pl.col("kind") == "retract"))
    found["decode_token"] += decode["token"].sum() + decode["full_token"].sum()
    found["prefill_new_token"] += prefill["new_token"].sum()
    found["decode_gen_throughput"] += decode["gen_throughput"].sum()
    found["decode_queue_req"] += decode["queue_req"].sum()
found["decode_gen_throughput"] = round(found["decode_gen_throughput"], 2)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([found, time.process_time() - start, peak]))
"""

#: The way of SGLang's own debug_utils/log_parser.py: the whole text, one pattern that looks for
#: decode lines anywhere in a line, with optional writer and ranks and a gap before the
#: throughput; one frame. Unlike the original, ours takes lines without a writer and without a
#: comma at the end, since else it would find none in a log of today.
WHOLE_TEXT = r"""
import json, resource, sys, time
import polars as pl
start = time.process_time()
text = open(sys.argv[1], errors="replace").read()
pattern = (
    r"(?:\(SGLangEngine pid=(?P<pid>\d+)(?:, *ip=(?P<ip>[\d.]+))?\)\s+)?"
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
    r"(?:\s+DP(?P<dp>\d+))?(?:\s+TP(?P<tp>\d+))?(?:\s+PP(?P<pp>\d+))?\]\s+"
    r"Decode batch(?: \[\d+\])?,\s+#running-req:\s*(?P<running>\d+),\s+"
    r"#token:\s*(?P<token>\d+),\s+token usage:\s*(?P<usage>[\d.]+),\s+.*?"
    r"gen throughput \(token/s\):\s*(?P<rate>[\d.]+),\s+#queue-req:\s*(?P<queue>\d+),?"
)
frame = (
    pl.DataFrame({"line": text.splitlines()})
    .with_columns(pl.col("line").str.extract_groups(pattern).alias("found"))
    .unnest("found")
    .filter(pl.col("rate").is_not_null())
    .with_columns(
        pl.col("time").str.to_datetime("%Y-%m-%d %H:%M:%S"),
        pl.col("pid", "dp", "tp", "pp", "running", "token", "queue").cast(pl.Int64),
        pl.col("usage", "rate").cast(pl.Float64),
    )
)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([len(frame), time.process_time() - start, peak]))
"""


#: Runs a command in a process of its own; prints the peak of its memory.
PEAK = """
import resource, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]], check=True, capture_output=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def make_log(tmp_path_factory):
    """Return a function that makes a log of a mix once, and what it must give."""
    made = {}

    def make(mix, size_mb=SIZE_MB, layouts=1, ranks=1):
        key = (mix, size_mb, layouts, ranks)
        if key not in made:
            path = tmp_path_factory.mktemp("bench") / f"{mix}.log"
            arguments = ["--size-mb", size_mb, "--mix", mix, "--layouts", layouts]
            arguments += ["--ranks", ranks]
            command = [sys.executable, GENERATOR, path, *map(str, arguments)]
            subprocess.run(command, check=True, capture_output=True)
            made[key] = path, json.loads(Path(f"{path}.truth.json").read_text())
        return made[key]

    return make


def run(script, *paths, root=ROOT):
    command = [sys.executable, "-c", script, *map(str, paths)]
    env = {**os.environ, "PYTHONPATH": str(root)}  # and the folder it runs in comes first
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, cwd=root)
    return json.loads(done.stdout)


def best(script, path):
    """Return what was found, and the least CPU time and memory of three runs."""
    runs = [run(script, path) for _ in range(3)]
    return runs[0][0], min(r[1] for r in runs), min(r[2] for r in runs)


def grep(path):
    """Return the least CPU time of `grep -c` over three runs, of a file in the page cache."""
    with open(path, "rb") as log:
        while log.read(MB):
            pass
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["grep", "-c", "Decode batch", path], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return max(min(times), 1e-3)


@pytest.mark.parametrize(
    ("mix", "layouts", "ranks", "most"),
    [("batch", 1, 1, 32), ("batch", 4, 8, 40), ("sparse", 1, 1, 16), ("requests", 1, 1, 4)],
)
def test_all_is_found_at_a_small_multiple_of_grep(make_log, mix, layouts, ranks, most):
    path, truth = make_log(mix, layouts=layouts, ranks=ranks)
    found, cpu_s, peak = best(OURS, path)
    floor = grep(path)
    rate = path.stat().st_size / MB / cpu_s
    print(
        f"\n{mix:9} {layouts} layouts, {ranks} ranks: {rate:6.0f} MB per CPU-second, "
        f"{cpu_s / floor:5.1f} times grep -c, peak {peak / MB:.0f} MB"
    )
    assert found == truth
    assert cpu_s < most * floor


def test_about_as_fast_as_one_pattern_over_the_whole_text(make_log):
    path, truth = make_log("batch")
    runs = [(run(OURS, path), run(WHOLE_TEXT, path)) for _ in range(4)]  # by turns
    ours, whole = zip(*runs, strict=True)
    cpu_s, whole_s = (min(r[1] for r in of) for of in (ours, whole))
    peak, whole_peak = (min(r[2] for r in of) for of in (ours, whole))
    print(
        f"\nwhole text, decode lines only: {path.stat().st_size / MB / whole_s:.0f} MB per "
        f"CPU-second, peak {whole_peak / MB:.0f} MB; ours is {whole_s / cpu_s:.1f} times as fast"
    )
    assert whole[0][0] == truth["decode"] == ours[0][0]["decode"]
    assert cpu_s < 1.2 * whole_s  # which reads one kind of line
    assert whole_peak > 1.5 * peak


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Return where the package lies as it was before the last change to it."""

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True)

    try:
        changed = git("status", "--porcelain", "--", "loganalyze").stdout
        commits = git("log", "-2", "--format=%H", "--", "loganalyze").stdout.decode().split()
        commit = commits[0 if changed else 1]
        packed = git("archive", commit, "loganalyze").stdout
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        pytest.skip(f"needs a clone with its history: {error}")
    root = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(root, filter="data")
    where = run("import json, loganalyze; print(json.dumps(loganalyze.__file__))", root=root)
    assert Path(where).is_relative_to(root)
    return root


@pytest.mark.parametrize("mix", ["batch", "sparse", "requests"])
def test_the_last_change_made_nothing_slower(make_log, before, mix):
    path, truth = make_log(mix)
    times = {before: [], ROOT: []}
    for _ in range(4):  # by turns, for the machine's speed changes
        for root, taken in times.items():
            found, cpu_s, _peak = run(OURS, path, root=root)
            taken.append(cpu_s)
    old, new = min(times[before]), min(times[ROOT])
    print(f"\n{mix}: {new:.2f} s of CPU time, {old:.2f} s before the last change")
    assert found == truth
    assert new < 1.25 * old


def test_memory_does_not_grow_with_the_log(make_log):
    small, _ = make_log("batch", 50)
    large, _ = make_log("batch", 300)
    peaks = [run(OURS, path)[2] for path in (small, large)]
    print(f"\npeak of 50 MB: {peaks[0] / MB:.0f} MB, of 300 MB: {peaks[1] / MB:.0f} MB")
    assert peaks[1] < peaks[0] + 60 * MB
    assert peaks[1] < 400 * MB


@pytest.mark.parametrize("form", ["parquet", "ndjson"])
@pytest.mark.parametrize(("frame", "mix"), [("batch", "batch"), ("request", "sparse")])
def test_export_takes_little_memory_whatever_the_size(make_log, tmp_path, frame, mix, form):
    peaks = []
    for size_mb in (50, 300):
        path, truth = make_log(mix, size_mb)
        target = tmp_path / f"{size_mb}.{form}"
        peaks.append(run(PEAK, "-m", "loganalyze", "export", path, "--frame", frame, "-o", target))
        rows = pl.scan_parquet(target) if form == "parquet" else pl.scan_ndjson(target)
        if frame == "batch":
            n_rows = rows.select(pl.len()).collect().item()
            assert n_rows == truth["decode"] + truth["prefill"]
    said = " MB, of 300 MB: ".join(f"{peak / MB:.0f}" for peak in peaks)
    print(f"\nexport of {frame} as {form}, peak of 50 MB: {said} MB")
    assert max(peaks) < 260 * MB


def test_the_cost_is_linear(make_log):
    small, _ = make_log("sparse", 50)
    large, _ = make_log("sparse", 300)
    times = [best(OURS, path)[1] for path in (small, large)]
    print(f"\n50 MB: {times[0]:.2f} s, 300 MB: {times[1]:.2f} s of CPU time")
    assert times[1] < 6 * 1.3 * times[0]
