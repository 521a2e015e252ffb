"""What 50 releases printed, read back: every record, every field, nothing else."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from loganalyze import schema
from loganalyze.parse import Parser
from loganalyze.releases import RELEASES
from loganalyze.sources import open_sources

GOLDEN = Path(__file__).parent / "data" / "golden"
LOGS = sorted(GOLDEN.glob("*.log"), key=lambda path: RELEASES.index(path.stem))

#: Golden name -> column, where they differ (batch frame only).
COLUMNS = {
    "num_running_reqs": "running_req",
    "num_mixed_running_reqs": "running_req",
    "num_used_tokens": "token",
    "full_tokens": "full_token",
    "swa_tokens": "swa_token",
    "gpu_tokens": "gpu_token",
    "cpu_tokens": "cpu_token",
    "num_queue_reqs": "queue_req",
    "num_new_seqs": "new_seq",
    "num_new_tokens": "new_token",
    "num_cached_tokens": "cached_token",
    "num_pending_tokens": "pending_token",
    "num_replay_tokens": "replay_token",
    "preallocated_usage": "pre_allocated_usage",
    "num_waiting_image_reqs": "waiting_image_req",
    "time_s": "prefill_time_s",
    "timestamp_field": "timestamp",
    **{
        f"num_{queue}_reqs": f"{queue}_req"
        for queue in (
            "prealloc",
            "transfer",
            "transferring",
            "bootstrap",
            "unbootstrapped",
            "inflight",
            "optimistic",
            "retracted",
            "host_receive",
        )
    },
}
#: Read from the same line, but not among the golden fields.
BEYOND = {
    "cuda_graph_begin": {"largest_bs"},
    "cuda_graph_end": {"elapsed_s"},
    "kv_cache_va_upper_bound": {"dtype", "k_size_gb", "v_size_gb"},
    "hicache_host_alloc": {"pool_label"},
    "watchdog_timeout": {"message"},
    "exception": {"message"},
    "retract": {"debug"},
}
PLACE = {
    *("source", "line_no", "session", "time", "time_has_date", "kind", "duplicate"),
    *("stream", "group", "release_lo", "release_hi", "args_text"),
}


def expected(path):
    text = path.with_suffix(".expected.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def read(path, copies=1):
    parser = Parser("all")
    (source,) = open_sources([str(path)])
    rows = [
        (name, row)
        for frames in parser.read(source)
        for name in schema.FRAMES
        for row in getattr(frames, name).to_dicts()
    ]
    return sorted(rows, key=lambda r: r[1]["line_no"]), parser


def check(record, frame, row):
    """Compare one row with the values that were fed to the released code."""
    kind = record["kind"]
    assert kind == (row["phase"] if frame == "batch" else row["kind"])
    batch = frame == "batch"
    want = {COLUMNS.get(k, k) if batch else k: v for k, v in record["fields"].items()}
    if batch:
        want["phase"] = kind
        if "num_mixed_running_reqs" in record["fields"]:
            want["mixed"] = True
    if kind != "access":  # uvicorn prints no rank, whatever the process
        want |= {f"{rank}_rank": value for rank, value in record["ranks"].items()}
    ignored = PLACE | BEYOND.get(kind, set())
    got = {k: v for k, v in row.items() if v is not None and k not in ignored}
    assert got == {k: v for k, v in want.items() if v is not None}

    stamp = record["ts"]
    if stamp is None:
        assert row["time"] is None
    else:
        dated = len(stamp) > len("10:00:00")
        assert row["time"] == datetime.fromisoformat(stamp if dated else f"1970-01-01T{stamp}")
        if batch:
            assert row["time_has_date"] is dated


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_record_and_nothing_else(path):
    rows, parser = read(path)
    records = expected(path)
    assert [row["line_no"] for _, row in rows] == [record["line"] for record in records]
    for record, (frame, row) in zip(records, rows, strict=True):
        check(record, frame, row)
    coverage = parser.coverage()
    assert coverage.lines_total == path.read_bytes().count(b"\n")
    assert coverage.lines_known == sum(record["n_lines"] for record in records)
    assert coverage.lines_unrecognised == coverage.lines_partial == 0
    assert coverage.lines_batch == sum(r["kind"] in ("decode", "prefill") for r in records)


def test_the_same_by_learned_layouts(tmp_path):
    """All releases in one log, four times over: each line is read by a layout."""
    text = b"".join(path.read_bytes() for path in LOGS)
    copies = 4
    path = tmp_path / "server.log"
    path.write_bytes(text * copies)
    rows, parser = read(path)
    records, offset = [], 0
    for log in LOGS:
        records += [(offset + record["line"], record) for record in expected(log)]
        offset += log.read_bytes().count(b"\n")
    assert len(rows) == copies * len(records)
    for copy in range(copies):
        part = rows[copy * len(records) : (copy + 1) * len(records)]
        for (line_no, record), (frame, row) in zip(records, part, strict=True):
            assert row["line_no"] == copy * offset + line_no
            if record["ts"] is not None and len(record["ts"]) == 8:
                # The day of a clock without a date depends on the lines before.
                midnight = datetime(1970, 1, 1) + (row["time"] - datetime(1970, 1, 1))
                row["time"] = datetime.combine(datetime(1970, 1, 1), midnight.time())
            check(record, frame, row)
    assert parser.coverage().lines_unrecognised == 0


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_grammar_tells_the_release(path):
    rows, _ = read(path)
    release = RELEASES.index(path.stem)
    ranges = [(row["release_lo"], row["release_hi"]) for frame, row in rows if frame != "request"]
    assert all(lo <= release <= hi for lo, hi in ranges)
    lo, hi = max(lo for lo, _ in ranges), min(hi for _, hi in ranges)
    assert hi - lo < 20  # of 151


def test_secrets_stay_in_their_column():
    rows, _ = read(GOLDEN / "0.5.23.log")
    (args,) = [
        row for _, row in rows if row["kind" if "kind" in row else "phase"] == "server_args"
    ]
    assert args["args_text"].startswith("{'model_path': '/models/")
    assert args["args_text"].endswith("}")
    others = [str({k: v for k, v in row.items() if k != "args_text"}) for _, row in rows]
    assert not any("GOLDEN-SECRET" in text for text in others)
