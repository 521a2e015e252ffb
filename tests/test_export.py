"""The frames as files: every column, every row, in order, whatever the log."""

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from loganalyze import export, schema
from loganalyze.errors import InputError, UsageError
from loganalyze.filters import Filters

GOLDEN = Path(__file__).parent / "data" / "golden"

READERS = {"parquet": pl.read_parquet, "csv": pl.read_csv, "ndjson": pl.read_ndjson}

DECODE = (
    "[2026-01-05 10:00:{second:02d}{tags}] Decode batch, #running-req: {running}, #token: 500, "
    "token usage: 0.50, cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0"
)
RETRACT = (
    "[2026-01-05 10:00:{second:02d} TP{rank}] KV cache pool is full. Retract requests. "
    "#retracted_reqs: 2, #new_tokens_gained: 40, #new_token_ratio: 0.1000 -> 0.5000"
)
CAPACITY = (
    "[2026-01-05 10:00:{second:02d} TP0] max_total_num_tokens=1000, chunked_prefill_size=8192, "
    "max_prefill_tokens=16384, max_running_requests=2048, context_len=4096, "
    "available_gpu_mem=9.20 GB"
)


def log(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def exported(tmp_path, paths, frame="batch", **options):
    target = tmp_path / "out.parquet"
    export.write(paths, target, frame=frame, form="parquet", **options)
    return pl.read_parquet(target)


@pytest.mark.parametrize("frame", schema.FRAMES)
@pytest.mark.parametrize("release", ["0.1.3", "0.3.6", "0.5.23"])
def test_every_log_gives_the_declared_schema(tmp_path, frame, release):
    rows = exported(tmp_path, [str(GOLDEN / f"{release}.log")], frame)
    assert rows.schema == pl.Schema(schema.dtypes(schema.FRAMES[frame]))


@pytest.mark.parametrize("form", READERS)
def test_every_form_holds_the_same_rows(tmp_path, form):
    target = tmp_path / f"out.{form}"
    path = log(tmp_path / "a.log", [DECODE.format(second=s, tags="", running=s) for s in range(9)])
    export.write([path], target, frame="batch", form=form)
    rows = READERS[form](target)
    assert set(rows.columns) == {c.name for c in schema.BATCH}
    assert rows["running_req"].to_list() == list(range(9))
    assert rows["line_no"].to_list() == list(range(1, 10))


def test_times_are_written_in_one_form_and_read_back(tmp_path):
    stamps = ["2026-01-05 10:00:01", "2026-01-05 10:00:02.250"]
    lines = [DECODE.format(second=0, tags="", running=7) for _ in stamps]
    lines = [f"[{s}] {x.partition('] ')[2]}" for s, x in zip(stamps, lines, strict=True)]
    path = log(tmp_path / "a.log", lines)
    read = {}
    for form in ("csv", "ndjson"):
        export.write(
            [path], tmp_path / form, frame="batch", form=form, columns=["time", "line_no"]
        )
        read[form] = READERS[form](tmp_path / form)["time"]
    written = ["2026-01-05T10:00:01.000", "2026-01-05T10:00:02.250"]
    assert read["csv"].to_list() == read["ndjson"].to_list() == written
    times = read["csv"].str.to_datetime(time_unit="ms")
    assert times.to_list() == exported(tmp_path, [path])["time"].to_list()
    assert times[1] == datetime(2026, 1, 5, 10, 0, 2, 250_000)


def test_sessions_and_derived_columns_are_those_of_check(tmp_path):
    lines = [
        DECODE.format(second=1, tags=" TP0", running=3),
        CAPACITY.format(second=30),
        DECODE.format(second=40, tags=" TP0", running=4),
    ]
    rows = exported(tmp_path, [log(tmp_path / "a.log", lines)])
    assert rows["session"].to_list() == [1, 2]
    assert rows["kv_usage"].to_list() == [0.5, 0.5]
    assert rows["rate_per_req"].to_list() == [30.0, 22.5]


def test_doubles_of_other_ranks_are_marked_within_and_across_files(tmp_path):
    many = [RETRACT.format(second=5, rank=rank) for rank in range(4)]
    rows = exported(tmp_path, [log(tmp_path / "a.log", many)], "event")
    assert rows["duplicate"].to_list() == [False, True, True, True]
    paths = [
        log(
            tmp_path / f"rank{rank}.log",
            [
                DECODE.format(second=4, tags=f" TP{rank}", running=1),
                RETRACT.format(second=5, rank=rank),
                DECODE.format(second=6, tags=f" TP{rank}", running=1),
            ],
        )
        for rank in range(2)
    ]
    assert exported(tmp_path, paths, "event")["duplicate"].to_list() == [False, True]
    assert exported(tmp_path, paths)["duplicate"].to_list() == [False, False, True, True]


def test_copies_in_a_log_that_holds_every_line_twice_are_marked(tmp_path):
    once = [DECODE.format(second=s, tags=" TP0", running=s) for s in range(12)]
    once[5:5] = [RETRACT.format(second=5, rank=rank) for rank in (0, 0, 1, 1)]
    twice = log(tmp_path / "twice.log", [line for line in once for _ in range(2)])
    other = log(tmp_path / "other.log", [line.replace("01-05", "01-06") for line in once])
    rows = exported(tmp_path, [twice, other])
    assert rows["duplicate"].to_list() == [False, True] * 12 + [False] * 12
    counted = exported(tmp_path, [twice, other], "event")
    assert counted["duplicate"].to_list() == [False, True] * 2 + [True] * 4 + [
        False,
        False,
        True,
        True,
    ]


def test_only_the_chosen_rows_are_written(tmp_path):
    lines = [DECODE.format(second=s, tags=f" DP{s % 2} TP0", running=s) for s in range(60)]
    path = log(tmp_path / "a.log", lines)
    rows = exported(tmp_path, [path], chosen=Filters(since="-9s", ranks=("DP1",)))
    assert rows["running_req"].to_list() == [51, 53, 55, 57, 59]


def test_access_lines_are_in_the_request_frame(tmp_path):
    line = '[2026-01-05 10:00:01] INFO:     10.0.0.7:5 - "POST /generate HTTP/1.1" {} OK'
    path = log(
        tmp_path / "a.log",
        [DECODE.format(second=1, tags="", running=1)] + [line.format(s) for s in (200, 503)],
    )
    rows = exported(tmp_path, [path], "request")
    assert rows["status"].to_list() == [200, 503]


def test_a_spreadsheet_gets_no_formula(tmp_path):
    line = '[2026-01-05 10:00:01] INFO:     10.0.0.7:5 - "POST =cmd HTTP/1.1" 200 OK'
    path = log(tmp_path / "a.log", [DECODE.format(second=1, tags="", running=1), line])
    export.write([path], tmp_path / "o.csv", frame="request", form="csv")
    assert pl.read_csv(tmp_path / "o.csv")["path"].to_list() == ["'=cmd"]


def test_what_cannot_be_read_is_told(tmp_path):
    good = log(tmp_path / "a.log", [DECODE.format(second=1, tags="", running=1)])
    missing = str(tmp_path / "none.log")
    target = tmp_path / "o.csv"
    failed = export.write([missing, good], target, frame="batch", form="csv")
    assert [f.name for f in failed] == [missing]
    with pytest.raises(InputError, match="no such file"):
        export.write([missing], target, frame="batch", form="csv")


def test_chosen_columns_come_in_the_order_chosen(tmp_path):
    path = log(tmp_path / "a.log", [DECODE.format(second=s, tags="", running=s) for s in range(3)])
    rows = exported(tmp_path, [path], columns=["running_req", "kv_usage", "running_req"])
    assert rows.columns == ["running_req", "kv_usage"]
    assert rows.rows() == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_a_column_that_does_not_exist(tmp_path):
    path = log(tmp_path / "a.log", [DECODE.format(second=0, tags="", running=1)])
    with pytest.raises(UsageError, match="batch has no column kv_usge") as refused:
        exported(tmp_path, [path], columns=["kv_usge"])
    assert "kv_usage" in refused.value.hint
    assert not (tmp_path / "out.parquet").exists()
