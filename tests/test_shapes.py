"""Wrapped, tagged and broken logs: the same rows come out whatever surrounds them."""

import html
import io
import json
import os
import re
import textwrap
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from loganalyze import streams
from loganalyze.frames import Frames
from loganalyze.parse import Parser
from loganalyze.sources import open_sources

DATA = Path(__file__).parent / "data" / "shapes"
EXPECTED = [json.loads(line) for line in (DATA / "expected.jsonl").read_text().splitlines()]


def read(path, requests="all"):
    """Return the frames of one log, its coverage and its description."""
    parser = Parser(requests)
    (source,) = open_sources([str(path)])
    parts = list(parser.read(source))
    frames = {
        name: pl.concat([getattr(p, name) for p in parts])
        for name in ("batch", "event", "startup", "request")
        if parts
    }
    return Frames(**frames) if parts else None, parser.coverage(), source


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["file"])
def test_shape(case):
    frames, coverage, _ = read(DATA / case["file"])
    rows = frames.batch.to_dicts()
    columns = list(case["rows"][0])
    assert [{k: row[k] for k in columns} for row in rows] == case["rows"]
    assert coverage.lines_batch == len(rows)
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def body(k):
    """Return a decode line's message; k makes every value different."""
    return (
        f"Decode batch, #running-req: {100 + k}, #token: {900000 + k}, token usage: 0.9{k % 10}, "
        f"cuda graph: {k % 2 == 0}, gen throughput (token/s): {3000 + k}.25, #queue-req: {k}"
    )


def stamp(k):
    return f"2026-11-20 10:00:{k:02d}"


def own(k):
    return f"[{stamp(k)} TP0] {body(k)}"


def prefill(k):
    return (
        f"[{stamp(k)} TP0] Prefill batch, #new-seq: 1, #new-token: {k + 512}, #cached-token: 128, "
        f"token usage: 0.90, #running-req: {k}, #queue-req: {k}, cuda graph: False, "
        "input throughput (token/s): 812.40"
    )


def escaped(text):
    return json.dumps(text)


#: name: (line k of the log, what the wrapper says about the writer, zone)
WRAPPED: dict[str, tuple[Callable[[int], str], str | None, str | None]] = {
    "compose": (lambda k: f"sglang-1  | {own(k)}", "sglang-1", None),
    "compose, aligned": (lambda k: f"worker_2     | {own(k)}", "worker_2", None),
    "docker json-file": (
        lambda k: (
            f'{{"log":{escaped(own(k) + chr(10))},"stream":"stderr",'
            f'"time":"2026-11-20T10:00:{k:02d}.{123456780 + k}Z"}}'
        ),
        None,
        "UTC",
    ),
    "docker -t": (lambda k: f"2026-11-20T10:00:{k:02d}.123456789Z {own(k)}", None, "UTC"),
    "CRI": (lambda k: f"2026-11-20T10:00:{k:02d}.{1000 + k}Z stderr F {own(k)}", None, "UTC"),
    "CRI, eight hours off": (
        lambda k: f"2026-11-20T02:00:{k:02d}.{1000 + k}Z stderr F {own(k)}",
        None,
        "+08:00",
    ),
    "CRI with an offset": (
        lambda k: f"2026-11-20T10:00:{k:02d}.5+08:00 stdout F {own(k)}",
        None,
        "+08:00",
    ),
    "kubectl --prefix": (
        lambda k: f"[pod/sglang-7d9f8b6c5-x2x9k/server] {own(k)}",
        "sglang-7d9f8b6c5-x2x9k/server",
        None,
    ),
    "kubectl --prefix --timestamps": (
        lambda k: f"[pod/sglang-0/server] 2026-11-20T10:00:{k:02d}.000000001Z {own(k)}",
        "sglang-0/server",
        "UTC",
    ),
    "journald": (
        lambda k: f"Nov 20 10:00:{k:02d} gpu-7 sglang[4242]: {own(k)}",
        "gpu-7 sglang[4242]",
        None,
    ),
    "journald, day of one digit": (
        lambda k: f"Nov  2 10:00:{k:02d} gpu-7 python3[77]: {own(k)}",
        "gpu-7 python3[77]",
        None,
    ),
    "journald short-iso": (
        lambda k: f"2026-11-20T10:00:{k:02d}+0000 gpu-7 sglang[4242]: {own(k)}",
        "gpu-7 sglang[4242]",
        "UTC",
    ),
    "syslog RFC 5424": (
        lambda k: f"<34>1 2026-11-20T10:00:{k:02d}.003Z gpu-7 sglang 4242 - - {own(k)}",
        "gpu-7 sglang 4242",
        "UTC",
    ),
    "srun -l": (lambda k: f"3: {own(k)}", "3", None),
    "srun -l, aligned": (lambda k: f" 3: {own(k)}", "3", None),
    "Ray": (
        lambda k: f"(SGLangEngine pid=123, ip=10.0.0.1) {own(k)}",
        "SGLangEngine pid=123, ip=10.0.0.1",
        None,
    ),
    "Ray, coloured": (
        lambda k: f"\x1b[36m(SchedulerActor pid=9)\x1b[0m {own(k)}",
        "SchedulerActor pid=9",
        None,
    ),
    "torchrun": (lambda k: f"[rank0]: {own(k)}", "rank0", None),
    "Fluent Bit": (
        lambda k: (
            f'{{"date":17636328{k:02d}.5,"log":{escaped(own(k))},"kubernetes":'
            '{"pod_name":"sglang-0","container_name":"server"}}'
        ),
        "sglang-0",
        None,
    ),
    "Fluentd, metadata first": (
        lambda k: (
            f'{{"kubernetes":{{"container_name":"server","pod_id":"8f3a-{k}"}},'
            f'"log":{escaped(own(k))},"n":{k}}}'
        ),
        "server",
        None,
    ),
    "Loki": (
        lambda k: (
            '{"streams":[{"stream":{"pod":"sglang-0"},"values":[["17636328'
            f'{k:02d}000000000",{escaped(own(k))}]]}}]}}'
        ),
        "sglang-0",
        None,
    ),
    "JSON in JSON": (
        lambda k: json.dumps({"log": json.dumps({"message": own(k)}), "stream": "stderr"}),
        None,
        None,
    ),
    "JSON formatter": (
        lambda k: json.dumps(
            {
                "asctime": f"{stamp(k)},250",
                "levelname": "INFO",
                "name": "sglang",
                "message": body(k),
            }
        ),
        None,
        None,
    ),
    "JSON formatter, time last": (
        lambda k: json.dumps({"message": body(k), "level": "info", "time": stamp(k) + ".250"}),
        None,
        None,
    ),
    "JSON with escaped slashes": (
        lambda k: json.dumps({"message": own(k)}).replace("/", "\\/"),
        None,
        None,
    ),
    "logging with bars": (
        lambda k: f"{stamp(k)},250 | INFO | logger:1071 | {body(k)}",
        None,
        None,
    ),
    "logging with dashes": (
        lambda k: f"{stamp(k)},250 - sglang.srt.managers.scheduler - INFO - {body(k)}",
        None,
        None,
    ),
    "logging, a blank before the message": (
        lambda k: f"{stamp(k)},250 INFO {body(k)}",
        None,
        None,
    ),
    "logging, its module last": (
        lambda k: f"{stamp(k)},250 WARNING sglang.srt.managers.scheduler {body(k)}",
        None,
        None,
    ),
    "a stamp alone": (lambda k: f"{stamp(k)},250 {body(k)}", None, None),
    "logging, level first": (
        lambda k: f"INFO {stamp(k)},250 4242 [scheduler.py:1071] {body(k)}",
        None,
        None,
    ),
    "logging with brackets": (
        lambda k: f"[{stamp(k)},250] [INFO] [scheduler] {body(k)}",
        None,
        None,
    ),
    "basicConfig default": (lambda k: f"INFO:sglang.srt.managers.scheduler:{body(k)}", None, None),
    "dynamo": (
        lambda k: (
            f"\x1b[2m2026-11-20T10:00:{k:02d}.250000Z\x1b[0m \x1b[32m INFO\x1b[0m "
            f"\x1b[2mscheduler.log_decode_stats\x1b[0m\x1b[2m:\x1b[0m {body(k)}"
        ),
        None,
        "UTC",
    ),
    "dynamo, plain": (
        lambda k: f"2026-11-20T10:00:{k:02d}.250000Z  INFO scheduler.log_decode_stats: {body(k)}",
        None,
        "UTC",
    ),
    "loguru": (
        lambda k: f"{stamp(k)}.250 | INFO     | sglang.srt:log:214 - {own(k)}",
        None,
        None,
    ),
    "JSON inside a string": (
        lambda k: json.dumps(json.dumps({"log": own(k) + "\n", "stream": "stderr"})),
        None,
        None,
    ),
    "JSON formatter, epoch": (
        lambda k: json.dumps({"message": body(k), "ts": 1795168800.25 + k, "level": "info"}),
        None,
        "UTC",
    ),
    "journald JSON": (
        lambda k: json.dumps({"_HOSTNAME": "gpu-7", "_PID": "4242", "MESSAGE": own(k), "N": k}),
        "4242",
        None,
    ),
    "logfmt": (
        lambda k: f'time=2026-11-20T10:00:{k:02d}Z level=info msg="{own(k)}" n={k}',
        None,
        "UTC",
    ),
    "CSV": (
        lambda k: f'"2026-11-20T10:00:{k:02d}.000Z","gpu-7","{own(k)}"',
        None,
        "UTC",
    ),
    "pdsh": (lambda k: f"node07: {own(k)}", "node07", None),
    "mpirun --tag-output": (lambda k: f"[1,0]<stderr>:{own(k)}", "1,0", None),
    "grep -n": (lambda k: f"{k + 1}:{own(k)}", None, None),
    "cat -n": (lambda k: f"{k + 1:6}\t{own(k)}", None, None),
    "Markdown": (lambda k: f"- `{own(k)}`", None, None),
    "quoted mail": (lambda k: f"> {own(k)}", None, None),
    "slashes in the date": (
        lambda k: f"{stamp(k).replace('-', '/')}.250 INFO sglang: {body(k)}",
        None,
        None,
    ),
    "two wrappers": (
        lambda k: f"node-1  | 2026-11-20T10:00:{k:02d}.123Z {own(k)}",
        "node-1",
        "UTC",
    ),
    "lost bracket": (lambda k: own(k)[1:], None, None),
    "progress bar, return": (
        lambda k: f"  3%|#   | {k}/36 [00:01<00:30]\r{own(k)}",
        None,
        None,
    ),
    "progress bar, many returns": (
        lambda k: "\r".join(
            [f" {n}%|{'#' * n}| {n}/36 [00:01<00:30]" for n in range(9)] + [own(k)]
        ),
        None,
        None,
    ),
    "progress bar, no return": (
        lambda k: (
            f" {k}%|{'█' * k}{' ' * (30 - k)}| {k}/36 [00:{k:02d}<00:30, 1.5{k}it/s]{own(k)}"
        ),
        None,
        None,
    ),
    "progress without a total": (
        lambda k: f"Generating: {k}it [00:{k:02d},  8.1{k % 10}it/s]{own(k)}",
        None,
        None,
    ),
    "progress bar, cut off": (lambda k: f"  {k}%|{'█' * (k % 9)}        {own(k)}", None, None),
    "access line without an end": (
        lambda k: f'INFO:     10.0.0.{k}:5123{k} - "POST /generate HTTP/1.1" 200 OK{own(k)}',
        None,
        None,
    ),
    "coloured": (lambda k: f"\x1b[32m{own(k)}\x1b[0m", None, None),
    "trailing blanks": (lambda k: f"{own(k)}   ", None, None),
    "Ray, coloured, in Docker's JSON": (
        lambda k: json.dumps(
            {"log": f"\x1b[36m(RayWorker pid=7)\x1b[0m {own(k)}\n", "stream": "stderr"}
        ),
        "RayWorker pid=7",
        None,
    ),
    "fluentd": (
        lambda k: f"{stamp(k)}.123456789 +0000 docker.sglang: {json.dumps({'log': own(k)})}",
        None,
        "UTC",
    ),
    "logcli": (
        lambda k: (
            f'2026-11-20T10:00:{k:02d}Z {{app="sglang", n="{k}", pod="s-0", x="{k}"}} {own(k)}'
        ),
        "s-0",
        "UTC",
    ),
    "JSON formatter, a format inside": (
        lambda k: json.dumps({"msg": f"INFO {stamp(k)},250 [scheduler.py:12] {body(k)}"}),
        None,
        None,
    ),
    "CSV, some cells quoted": (
        lambda k: f'2026-11-20T10:00:{k:02d}.000Z,gpu-7,"{own(k)}"',
        None,
        "UTC",
    ),
    "JSON in JSON in CSV": (
        lambda k: (
            '"gpu-7","' + json.dumps({"log": json.dumps({"msg": own(k)})}).replace('"', '""') + '"'
        ),
        None,
        None,
    ),
    "pretty JSON": (lambda k: f'    "textPayload": {escaped(own(k))},', None, None),
    "OpenTelemetry": (
        lambda k: json.dumps({"severityText": "INFO", "body": {"stringValue": own(k)}}),
        None,
        None,
    ),
    "labels that a request has, too": (
        lambda k: json.dumps({"log": own(k), "kubernetes": {"labels": {"role": "decode"}}}),
        None,
        None,
    ),
    "logfmt in Docker's JSON": (
        lambda k: json.dumps({"log": f"level=INFO msg={escaped(own(k))}\n", "stream": "stderr"}),
        None,
        None,
    ),
    "stern": (lambda k: f"sglang-7d9f8b server {own(k)}", "sglang-7d9f8b server", None),
    "SkyPilot": (lambda k: f"(head, rank=0, pid=1{k}) {own(k)}", "head", None),
    "pm2": (lambda k: f"0|sglang   | {own(k)}", "0|sglang", None),
    "multilog": (lambda k: f"@4000000065f1e2{k:02x}1234abcd {own(k)}", None, None),
    "ts": (lambda k: f"[{stamp(k)}] {own(k)}", None, None),
    "diff": (lambda k: f"+{own(k)}", None, None),
    "quoted mail of compose": (lambda k: f"> sglang-1  | {own(k)}", None, None),
    "unknown wrapper": (lambda k: f"gpu7.rack3 @server {own(k)}", None, None),
}


def times(k, milliseconds=0):
    return datetime(2026, 11, 20, 10, 0, k, milliseconds * 1000)


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("n", [20, 400])
def test_wrapper(name, n, tmp_path):
    line, stream, zone = WRAPPED[name]
    path = tmp_path / "server.log"
    path.write_text("".join(line(k % 30) + "\n" for k in range(n)))
    frames, coverage, source = read(path)
    rows = frames.batch
    assert rows["line_no"].to_list() == list(range(1, n + 1))
    ks = [k % 30 for k in range(n)]
    assert rows["running_req"].to_list() == [100 + k for k in ks]
    assert rows["token"].to_list() == [900000 + k for k in ks]
    assert rows["cuda_graph"].to_list() == [k % 2 == 0 for k in ks]
    assert rows["gen_throughput"].to_list() == [3000.25 + k for k in ks]
    assert rows["queue_req"].to_list() == ks
    has_own = own(0)[1:] in line(0) or escaped(own(0))[2:-1] in line(0) or "JSON" in name
    ms = 0 if has_own and "formatter" not in name else 250
    if name == "basicConfig default":
        assert rows["time"].null_count() == n
    else:
        assert rows["time"].to_list() == [times(k, ms) for k in ks]
        assert rows["time_has_date"].all()
    assert rows["tp_rank"].to_list() == [0 if has_own and "formatter" not in name else None] * n
    assert rows["stream"].to_list() == [stream] * n
    assert source.tz == zone
    assert (coverage.lines_total, coverage.lines_batch) == (n, n)
    assert coverage.lines_unrecognised == 0
    assert coverage.lines_partial == 0


def log(tmp_path, text, name="server.log"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows_of(path, *columns, requests="all"):
    frames, _, _ = read(path, requests)
    return [] if frames is None else frames.batch.select(columns).rows()


@pytest.mark.parametrize(
    "joined",
    [
        lambda k: own(k) + own(k + 20),
        lambda k: own(k) + ", " + own(k + 20),
        lambda k: f"sglang-1  | {own(k)}{own(k + 20)}",
        lambda k: own(k) + "\r" + own(k + 20),
        lambda k: json.dumps({"log": own(k) + "\n" + own(k + 20) + "\n"}),
    ],
)
def test_two_records_on_one_line(joined, tmp_path):
    path = log(tmp_path, "".join(joined(k) + "\n" for k in range(20)))
    frames, coverage, _ = read(path)
    want = [(k + 1, 100 + j, j) for k in range(20) for j in (k, k + 20)]
    assert frames.batch.select("line_no", "running_req", "queue_req").rows() == want
    assert coverage.lines_batch == coverage.lines_total == 20


def test_two_kinds_on_one_line(tmp_path):
    path = log(tmp_path, "".join(own(k) + prefill(k) + "\n" for k in range(3)))
    assert rows_of(path, "line_no", "phase") == [
        (n, phase) for n in (1, 2, 3) for phase in ("decode", "prefill")
    ]


def test_a_record_inside_another_loses_the_outer_one(tmp_path):
    inner = own(7)
    broken = own(3)[:60] + inner + "\n" + own(3)[60:] + "\n"
    frames, coverage, _ = read(log(tmp_path, own(1) + "\n" + broken + own(2) + "\n"))
    assert frames.batch["running_req"].to_list() == [101, 107, 102]
    assert coverage.lines_unrecognised == 1
    assert coverage.samples[0].line_no == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_encodings(encoding, tmp_path):
    text = "".join(own(k) + "\n" for k in range(20))
    path = log(tmp_path, text.encode(encoding))
    assert rows_of(path, "running_req", "time") == [(100 + k, times(k)) for k in range(20)]


def test_utf16_with_crlf_and_blank_lines(tmp_path):
    text = "".join(own(k) + "\r\n\r\n" for k in range(20))
    path = log(tmp_path, text.encode("utf-16"))
    assert rows_of(path, "line_no", "running_req") == [(2 * k + 1, 100 + k) for k in range(20)]


@pytest.mark.parametrize("n", [4, 400])
def test_bad_utf8(n, tmp_path):
    parts = [b"caf\xe9 \xff\xfe\n" + own(k % 30).encode() + b"\n" for k in range(n)]
    parts.append(b"\xc3\x28 " + own(5).encode() + b"\n")
    path = log(tmp_path, b"".join(parts))
    assert rows_of(path, "line_no", "queue_req") == [
        *((2 * k + 2, k % 30) for k in range(n)),
        (2 * n + 1, 5),
    ]


def test_hole_at_the_start(tmp_path):
    path = log(tmp_path, b"\0" * 100_000 + "".join(own(k) + "\n" for k in range(5)).encode())
    assert rows_of(path, "line_no", "queue_req") == [(k + 1, k) for k in range(5)]


@pytest.mark.parametrize("kept", [40, 70, 100, 130, 150])
def test_half_written_last_line(kept, tmp_path):
    text = "".join(own(k) + "\n" for k in range(5)) + own(9)[:kept]
    frames, coverage, _ = read(log(tmp_path, text))
    assert frames.batch["queue_req"].to_list() == [0, 1, 2, 3, 4]
    assert coverage.lines_total == 6
    assert coverage.lines_unrecognised == (kept >= len("[2026-11-20 10:00:09 TP0] Decode batch"))


def test_a_last_number_that_may_lack_digits(tmp_path):
    """The log ends inside of `#queue-req: 1234`."""
    last = own(9).rpartition(" ")[0] + " 12"
    frames, coverage, _ = read(log(tmp_path, own(1) + "\n" + last))
    assert frames.batch.select("running_req", "queue_req").rows() == [(101, 1), (109, None)]
    assert (coverage.lines_partial, coverage.lines_unrecognised) == (1, 0)


def test_whole_last_line_without_newline(tmp_path):
    assert rows_of(log(tmp_path, own(3)), "line_no", "queue_req") == [(1, 3)]


def test_servers_in_one_file(tmp_path):
    names = ["decode-0", "decode-1", "prefill-0"]
    path = log(tmp_path, "".join(f"{names[k % 3]}  | {own(k % 30)}\n" for k in range(300)))
    assert rows_of(path, "stream", "queue_req") == [(names[k % 3], k % 30) for k in range(300)]


def test_time_of_day_rolls_at_midnight(tmp_path):
    clocks = ["22:00:00", "23:59:58", "00:00:01", "23:59:59", "00:00:02", "12:00:00", "09:00:00"]
    message = "Decode batch. #running-req: 1, #token: 1, token usage: 0.10, #queue-req: 0"
    retract = (
        "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.4213 -> 0.9871"
    )
    lines = [f"[{clock} TP0] {message}\n" for clock in clocks]
    lines.insert(5, f"[00:00:03 TP0] {retract}\n")
    frames, _, _ = read(log(tmp_path, "".join(lines)))
    days = [1, 1, 2, 1, 2, 2, 3]
    assert frames.batch["time"].to_list() == [
        datetime.fromisoformat(f"1970-01-0{day}T{clock}")
        for day, clock in zip(days, clocks, strict=True)
    ]
    assert not frames.batch["time_has_date"].any()
    assert frames.event["time"].to_list() == [datetime(1970, 1, 2, 0, 0, 3)]


def test_no_stamp(tmp_path):
    path = log(tmp_path, "".join(f"[gpu=3] {body(k)}\n" for k in range(3)))
    assert rows_of(path, "time", "time_has_date", "gpu_id") == [(None, None, 3)] * 3


FAKE = "[2026-01-05 03:04:05 TP0] " + body(9)
PROMPT = f"please print\\n{FAKE}\\nthank you"
ECHOES = {
    "repr": f"[{stamp(1)}] Receive: obj=GenerateReqInput(rid='a', text='{PROMPT}', stream=False)",
    "start": f"[{stamp(1)}] Receive: obj=GenerateReqInput(text='{FAKE}', rid='a')",
    "start, double quotes": f'[{stamp(1)}] Receive: obj=GenerateReqInput(text="{FAKE}")',
    "finish": f"[{stamp(1)}] Finish: obj=GenerateReqInput(text=None), out={{'text': '{FAKE}'}}",
    "OpenAI": f"[{stamp(1)}] Receive OpenAI: obj={{'messages': [{{'content': '{FAKE}'}}]}}",
    "JSON": f"[{stamp(1)}] "
    + json.dumps(
        {"timestamp": "x", "event": "request.received", "rid": "a", "obj": {"text": FAKE}}
    ),
    "docker": json.dumps(
        {"log": f"[{stamp(1)}] Receive: obj=GenerateReqInput(text='{FAKE}')\n", "stream": "stderr"}
    ),
    "docker, JSON": json.dumps(
        {
            "log": f"[{stamp(1)}] "
            + json.dumps({"event": "request.finished", "out": {"text": FAKE}})
        }
    ),
    "compose": f"sglang-1  | [{stamp(1)}] Receive: obj=GenerateReqInput(text='{PROMPT}')",
    "gateway": json.dumps({"messages": [{"role": "user", "content": FAKE}]}),
    "another gateway": json.dumps({"inputs": FAKE, "parameters": {}}),
    "quoted error": f'[{stamp(1)}] ValueError: cannot parse "{FAKE}"',
    "sentence": f"[{stamp(1)}] The user wrote {body(3)}",
    "URL": f'[{stamp(1)}] INFO:     10.0.0.7:1 - "GET /?q=Decode%20batch,%20#running-req:%201'
    ' HTTP/1.1" 200 OK',
    "far into the line": f"[{stamp(1)}] {'x' * 5000} {FAKE}",
    "JSON, prompt first": json.dumps({"obj": {"text": FAKE}, "event": "request.received"}),
    "JSON, text alone": json.dumps({"rid": "a", "text": FAKE}),
    "JSON, log key of a request": json.dumps({"message": FAKE, "role": "user"}),
    "JSON, log key inside a request": json.dumps({"choices": [{"message": FAKE}]}),
    **{
        f"JSON, {key}": json.dumps({key: FAKE})
        for key in ("input", "query", "body", "completion", "prompt", "content")
    },
    "stamp and JSON": f"[{stamp(1)}] {json.dumps({'rid': 'a', 'text': FAKE})}",
    "logfmt": f'level=info prompt="{FAKE}"',
    "label": f"Prompt: {FAKE}",
    "name and stamp": f"foo: {stamp(3)} {body(3)}",
    "label of two words": f"user said: {FAKE}",
    "label behind a stamp": f"[{stamp(1)}] user said: {FAKE}",
    "label before a progress bar": f"Prompt: 3%|#  | 1/36 [00:01<00:30]{FAKE}",
    "dict of a request": repr({"prompt": FAKE}),
    "dict, log key of a request": repr({"message": FAKE, "role": "user"}),
    "dict, prompt in a list": repr({"messages": [{"content": FAKE}]}),
    "pairs": f"level=info prompt='{FAKE}'",
    "YAML of a request": f"  content: '{FAKE}'",
    "call": f"generate('{FAKE}')",
    "it's": f"it's '{FAKE}'",
    "request ids": f"[{stamp(1)}] Gracefully exiting... Remaining number of requests 1. "
    f"Remaining requests remaining_rids=['{FAKE}'].",
}
#: Lines that a wrapper could have written, but none wrote those around them.
DOUBTFUL = {
    "quoted mail": f"> {FAKE}",
    "name": f"foo: {FAKE}",
    "host": f"user1: {FAKE}",
    "compose": f"prompt-1  | {FAKE}",
    "rank": f"3: {FAKE}",
    "level": f"INFO: {FAKE}",
    "another logger": f"{stamp(3)},250 INFO app: {body(3)}",
    "a stamp alone": f"{stamp(3)} {body(3)}",
    "a stamp and a level": f"{stamp(3)},250 INFO {body(3)}",
    "own stamp and name": f"[{stamp(1)}] app: {body(3)}",
    "no stamp": body(3),
    "two stamps": f"[{stamp(1)}] {FAKE}",
    "JSON, unknown key": json.dumps({"payload": FAKE}),
    "JSON, log key": json.dumps({"message": FAKE}),
    "CSV": f'1,"{FAKE}"',
    "text in quotes": f"'{FAKE}'",
    "bytes": repr(FAKE.encode()),
    "list": repr([FAKE]),
    "dict": repr({"log": FAKE}),
    "YAML": f"message: '{FAKE}'",
    "YAML list": f'- "{FAKE}"',
    "TOML": f'line = "{FAKE}"',
    "own stamp and level": f"[{stamp(1)}] INFO {body(3)}",
    "own stamp and zone": f"[{stamp(1)} +0000] [7] {FAKE}",
    "dash": f"{stamp(1)} \u2014 app \u2014 {body(3)}",
    "file and line": f"app.py:12 {body(3)}",
    "glog": f"I1120 10:00:01.123456 7 app.cc:12] {body(3)}",
    "rich": f"[11/20/26 10:00:01] INFO     {FAKE}   app.py:12",
}
AROUND = {
    "SGLang's own": lambda line: line,
    "compose": lambda line: f"sglang-1  | {line}",
    "CRI": lambda line: f"2026-11-20T10:00:01.5Z stderr F {line}",
    "Docker": lambda line: json.dumps({"log": line + "\n", "stream": "stderr"}),
    "unknown": lambda line: f"gpu7.rack3 @server {line}",
    "JSON formatter": lambda line: json.dumps({"asctime": stamp(1), "message": line}),
    "CSV": lambda line: '"a","' + line.replace('"', '""') + '"',
}


@pytest.mark.parametrize("around", AROUND)
def test_a_doubtful_line_is_unrecognised(around, tmp_path):
    """It is not counted as statistics, and nobody's words get into the samples."""
    wrap = AROUND[around]
    fakes = list((ECHOES | DOUBTFUL).values())
    # A log in which most lines are fakes, and its first one, too.
    lines = [wrap(own(k // 3) if k % 3 == 2 else fakes[k % len(fakes)]) for k in range(90)]
    frames, coverage, _ = read(log(tmp_path, "\n".join(lines) + "\n"), "errors")
    assert frames.batch["line_no"].to_list() == [k + 1 for k in range(90) if k % 3 == 2]
    assert frames.batch["queue_req"].to_list() == list(range(30))
    assert coverage.lines_unrecognised > 0
    for sample in coverage.samples:
        assert sample.text.startswith("... ")
        assert "foo" not in sample.text


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_doubtful_line_in_a_log_of_its_own(name, tmp_path):
    lines = [own(k) if k % 2 else DOUBTFUL[name] for k in range(60)]
    frames, coverage, _ = read(log(tmp_path, "\n".join(lines) + "\n"), "errors")
    assert frames.batch["queue_req"].to_list() == [k for k in range(60) if k % 2]
    assert coverage.lines_unrecognised == 30


def docker_parts(text):
    """Split as Docker's json-file driver does."""
    parts = [f"{text}\n"[k : k + (1 << 14)] for k in range(0, len(text) + 1, 1 << 14)]
    return [json.dumps({"log": part, "stream": "stderr", "time": "x"}) for part in parts]


def cri_parts(text, size=1 << 14):
    parts = [text[k : k + size] for k in range(0, len(text), size)]
    tags = ["P"] * (len(parts) - 1) + ["F"]
    return [
        f"2026-11-20T10:00:01.5Z stderr {tag} {part}"
        for tag, part in zip(tags, parts, strict=True)
    ]


@pytest.mark.parametrize("split", [docker_parts, cri_parts])
@pytest.mark.parametrize("block_size", [1000, 1 << 18])
def test_a_prompt_that_the_runtime_split(split, block_size, tmp_path):
    head = f"[{stamp(1)}] Receive: obj=GenerateReqInput(text='"
    prompt = "x" * ((1 << 14) - len(head)) + FAKE.ljust(1 << 14) + FAKE + "', rid='a')"
    lines, want = [], []
    for k in range(20):
        want.append((len(lines) + 1, k))
        lines += split(own(k)) + split(head + prompt)
    parser = Parser("errors")
    (source,) = open_sources([str(log(tmp_path, "\n".join(lines) + "\n"))])
    parts = [f.batch for f in parser.read(source, block_size=block_size)]
    assert pl.concat(parts).select("line_no", "queue_req").rows() == want
    coverage = parser.coverage()
    assert coverage.lines_total == len(lines) == 20 * 4
    assert coverage.lines_unrecognised == 0


@pytest.mark.parametrize("split", [docker_parts, cri_parts])
def test_arguments_that_the_runtime_split(split, tmp_path):
    args = ARGS[:-1] + f", json_model_override_args='{'x' * 40_000}')"
    lines = [*split(f"[{stamp(1)}] server_args={args}"), *split(own(1))]
    frames, _, _ = read(log(tmp_path, "\n".join(lines) + "\n"))
    assert frames.startup["args_text"].to_list() == [args]
    assert frames.batch["line_no"].to_list() == [4]


def test_statistics_that_the_runtime_split(tmp_path):
    lines = [part for k in range(20) for part in cri_parts(own(k), 60)]
    per_line = len(cri_parts(own(0), 60))
    assert rows_of(log(tmp_path, "\n".join(lines) + "\n"), "line_no", "queue_req") == [
        (k * per_line + 1, k) for k in range(20)
    ]


def test_parts_of_two_streams_do_not_mix(tmp_path):
    err, out = cri_parts(own(1), 80), cri_parts("y" * 200, 80)
    out = [line.replace("stderr", "stdout") for line in out]
    lines = [line for pair in zip(err, out, strict=False) for line in pair]
    assert rows_of(log(tmp_path, "\n".join(lines) + "\n"), "queue_req") == [(1,)]


@pytest.mark.parametrize(
    ("line", "zone"),
    [
        (
            lambda k: f"2026-11-20T02:00:{k:02d}Z stderr F {stamp(k)},250 - app - {body(k)}",
            "+08:00",
        ),
        (
            lambda k: json.dumps(
                {
                    "log": json.dumps({"message": body(k), "time": f"{stamp(k)},250"}) + "\n",
                    "stream": "stderr",
                    "time": f"2026-11-20T02:00:{k:02d}.1Z",
                }
            ),
            "+08:00",
        ),
        (
            lambda k: json.dumps(
                {
                    "time": f"2026-11-20T02:00:{k:02d}.1Z",
                    "log": f"INFO {stamp(k)},250 app.py: {body(k)}\n",
                    "stream": "stderr",
                }
            ),
            "+08:00",
        ),
    ],
)
def test_the_loggers_clock_beats_the_wrappers(line, zone, tmp_path):
    path = log(tmp_path, "".join(line(k) + "\n" for k in range(30)))
    frames, _, source = read(path)
    assert frames.batch["time"].to_list() == [times(k, 250) for k in range(30)]
    assert source.tz == zone


@pytest.mark.parametrize(
    ("lines", "written", "year", "whence"),
    [
        (["Dec 31 23:59:58"], "2025-06-01", 2024, "the date of the file"),
        (["Jan  1 00:00:02"], "2025-06-01", 2025, "the date of the file"),
        (["Feb 29 12:00:00"], "2024-03-01", 2024, "the date of the file"),
        (["Nov 20 10:00:00"], "2026-11-20", 2026, "the date of the file"),
        (
            ["[2022-12-31 23:00:00] x", "Jan  1 00:00:02"],
            "2025-06-01",
            2023,
            "another line's date",
        ),
    ],
)
def test_the_year_of_a_stamp_without_one(lines, written, year, whence, tmp_path):
    *before, last = lines
    path = log(tmp_path, "\n".join([*before, f"{last} gpu-7 sglang[7]: {body(1)}"]) + "\n")
    moment = datetime.fromisoformat(written).timestamp()
    os.utime(path, (moment, moment))
    frames, coverage, _ = read(path)
    assert frames.batch["time"].dt.year().to_list() == [year]
    assert frames.batch["time"].dt.strftime("%b %e %H:%M:%S").to_list() == [last]
    assert coverage.notes[0].endswith(f"the year was taken from {whence}")


def test_the_years_end_in_stamps_without_a_year(tmp_path):
    stamps = ["Dec 31 23:59:58", "Jan  1 00:00:02"]
    path = log(tmp_path, "".join(f"{s} gpu-7 sglang[7]: {body(1)}\n" for s in stamps))
    moment = datetime(2025, 1, 1, 0, 10).timestamp()
    os.utime(path, (moment, moment))
    assert rows_of(path, "time") == [
        (datetime(2024, 12, 31, 23, 59, 58),),
        (datetime(2025, 1, 1, 0, 0, 2),),
    ]


@pytest.mark.parametrize("name", ECHOES)
@pytest.mark.parametrize("requests", ["all", "errors"])
def test_an_echoed_line_is_never_counted(name, requests, tmp_path):
    lines = [own(k) if k % 2 else ECHOES[name] for k in range(200) if k % 2 == 0 or k < 60]
    path = log(tmp_path, "\n".join(lines) + "\n")
    frames, coverage, _ = read(path, requests)
    assert frames.batch["queue_req"].to_list() == [k for k in range(60) if k % 2]
    assert coverage.lines_batch == 30
    assert coverage.lines_unrecognised == 0


RAW = {
    "plain": ("{}", lambda line: line),
    "compose": ("sglang-1  | {}", lambda line: line),
    "docker": ("{}", lambda line: json.dumps({"log": line + "\n", "stream": "stderr"})),
}


@pytest.mark.parametrize("wrapper", RAW)
@pytest.mark.parametrize("inner", [1, 40])
def test_a_raw_prompt_of_several_lines(wrapper, inner, tmp_path):
    """Up to 0.4.1.post4 a logged prompt keeps its line breaks."""
    form, encode = RAW[wrapper]
    prompt = [
        f'[{stamp(2)} TP0] Receive: obj=GenerateReqInput(text="print(x)',
        *[FAKE] * inner,
        "Traceback (most recent call last):",
        f'{FAKE}", rid="abc123", stream=False)',
    ]
    lines = [own(1), *prompt, own(3), *prompt, *prompt, own(4)]
    path = log(tmp_path, "".join(form.format(encode(line)) + "\n" for line in lines))
    for requests in ("all", "errors"):
        frames, coverage, _ = read(path, requests)
        size = inner + 3
        assert frames.batch.select("line_no", "queue_req").rows() == [
            (1, 1),
            (size + 2, 3),
            (3 * size + 3, 4),
        ]
        assert frames.event.is_empty()
        assert coverage.by_kind["request_log"] == 3
        assert coverage.lines_known == coverage.lines_total == len(lines)
        if requests == "all":
            assert frames.request.select("line_no", "event", "rid").rows() == [
                (no, "receive", "abc123") for no in (2, size + 3, 2 * size + 3)
            ]


@pytest.mark.parametrize("n", [3, 200])
def test_go_escapes_arrows_in_json(n, tmp_path):
    """Docker's json-file driver writes `>` as \\u003e."""
    line = (
        f"[{stamp(1)} TP3] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
        "#new_tokens_gained: 311, #new_token_ratio: 0.4213 -> 0.9871"
    )
    escaped_line = json.dumps({"log": line + "\n", "stream": "stderr"}).replace(">", "\\u003e")
    frames, _, _ = read(log(tmp_path, (escaped_line + "\n") * n))
    columns = ("tp_rank", "num_retracted_reqs", "old_new_token_ratio", "new_token_ratio")
    assert frames.event.select(columns).rows() == [(3, 2, 0.4213, 0.9871)] * n


ARGS = """ServerArgs(model_path='/m', chat_template="it's", served_model_name='a "b" \\\\n')"""


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: line,
        lambda line: f"sglang-1  | {line}",
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr"}),
        lambda line: json.dumps({"log": json.dumps({"msg": line}) + "\n"}),
    ],
)
@pytest.mark.parametrize("size", [0, 60_000])
def test_server_args_keep_their_text(wrap, size, tmp_path):
    args = ARGS[:-1] + f", json_model_override_args='{'x' * size}')"
    path = log(tmp_path, wrap(f"[{stamp(1)}] server_args={args}") + "\n" + wrap(own(1)) + "\n")
    frames, _, _ = read(path)
    assert frames.startup.select("kind", "text_style", "args_text").rows() == [
        ("server_args", "repr", args)
    ]
    assert frames.startup["time"].to_list() == [times(1)]


TRACE = [
    f"[{stamp(1)} TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/sgl/scheduler.py", line 1, in run',
    "torch.OutOfMemoryError: CUDA out of memory.",
    "",
]


@pytest.mark.parametrize(
    ("wrap", "stream"),
    [
        (lambda line: line, None),
        (lambda line: f"\x1b[31m{line}\x1b[0m", None),
        (lambda line: f"sglang-1  | {line}", "sglang-1"),
        (lambda line: f"2026-11-20T10:00:01.5Z stderr F {line}", None),
        (lambda line: json.dumps({"log": line + "\n", "stream": "stderr"}), None),
        (lambda line: f"gpu7.rack3 @server {line}", None),
    ],
)
def test_a_traceback_is_one_record(wrap, stream, tmp_path):
    lines = [own(1), *TRACE, own(2), *TRACE, *TRACE, own(3)]
    path = log(tmp_path, "".join(wrap(line) + "\n" for line in lines))
    frames, coverage, _ = read(path)
    assert frames.batch["queue_req"].to_list() == [1, 2, 3]
    assert frames.event["line_no"].to_list() == [2, 7, 11]
    assert frames.event["stream"].to_list() == [stream] * 3
    assert frames.event["kind"].to_list() == ["exception"] * 3
    for text in frames.event["traceback"]:
        assert "torch.OutOfMemoryError: CUDA out of memory." in text
        assert "Decode" not in text
    assert coverage.lines_known == len(lines)


OLD_FILL = (
    "new fill batch. #seq: 1. #cached_token: 0. #new_token: 7. #remaining_req: 3. #running_req: 0"
)
OLD_DECODE = "#running-req: 1, #token: 225, token usage: 0.00, #queue-req: 4"


@pytest.mark.parametrize("after", [OLD_FILL, OLD_DECODE])
@pytest.mark.parametrize("head", [["Exception in ModelRpcClient:"], []])
def test_a_record_without_stamps_ends_where_statistics_begin(head, after, tmp_path):
    """0.1.3 to 0.1.14 print no stamp, and go on after an exception."""
    trace = [*head, "Traceback (most recent call last):", *TRACE[1:]]
    lines = [OLD_FILL, *trace, after, *trace, *trace, OLD_DECODE]
    frames, coverage, _ = read(log(tmp_path, "".join(line + "\n" for line in lines)))
    size, kind = len(trace), "exception" if head else "traceback"
    assert frames.batch["line_no"].to_list() == [1, size + 2, len(lines)]
    assert frames.event.select("line_no", "kind").rows() == [
        (no, kind) for no in (2, size + 3, 2 * size + 3)
    ]
    assert coverage.lines_known == len(lines)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Rank 0: load weight begin.", "weight_load_begin"),
        ("server_args=ServerArgs(model_path='/m')", "server_args"),
    ],
)
def test_a_restart_without_stamps_is_no_part_of_the_record_before(line, kind, tmp_path):
    """Up to 0.2.13 the first line of a server has no stamp."""
    trace = ["Traceback (most recent call last):", *TRACE[1:]]
    frames, _, _ = read(log(tmp_path, "\n".join([OLD_FILL, *trace, line, ""])))
    assert frames.startup.select("line_no", "kind").rows() == [(len(trace) + 2, kind)]
    assert line not in frames.event["traceback"][0]


def test_chained_tracebacks_are_one_record(tmp_path):
    chain = ["During handling of the above exception, another exception occurred:", ""]
    chain += ["Traceback (most recent call last):", "KeyError: 1", ""]
    lines = [*TRACE, *chain, own(1), "Traceback (most recent call last):", "KeyError: 2"]
    frames, _, _ = read(log(tmp_path, "".join(line + "\n" for line in lines)))
    assert frames.event.select("line_no", "kind").rows() == [(1, "exception"), (11, "traceback")]
    assert "KeyError: 1" in frames.event["traceback"][0]


@pytest.mark.parametrize(
    "prompt",
    [
        [FAKE, 'print("x", file=f)', FAKE, '{"a": 1}', FAKE],  # lines like a request's end
        [*["line " * 100] * 1000, FAKE],
        ["", FAKE, ""],
    ],
)
@pytest.mark.parametrize("quote", ['"', "'"])
def test_what_a_raw_prompt_may_hold(prompt, quote, tmp_path):
    request = [
        f"[{stamp(2)} TP0] Receive: obj=GenerateReqInput(text={quote}def f(x)",
        *prompt,
        f"bye{quote}, sampling_params={{}}, rid={quote}abc{quote})",
    ]
    lines = [line for k in range(4) for line in (own(k), *request)]
    path = log(tmp_path, "\n".join(lines) + "\n")
    assert rows_of(path, "queue_req", requests="errors") == [(k,) for k in range(4)]


def test_an_open_prompt_that_never_ends_hides_nothing(tmp_path):
    head = f'[{stamp(2)} TP0] Receive: obj=GenerateReqInput(text="and then'
    lines = [head, *[own(k % 30) for k in range(3000)]]
    assert len(rows_of(log(tmp_path, "\n".join(lines) + "\n"), "line_no")) == 3000


def test_ranks_in_a_bracket_of_another_logger(tmp_path):
    """A logger of one's own prints the ranks apart from the stamp, before a file name or not."""
    path = tmp_path / "server.log"
    tags = ("[DP3 TP11 EP2 metrics.py:222]", "[DP0 TP0]")
    lines = [f"{stamp(k)} INFO 71{k:02d} {tags[k % 2]} {body(k)}" for k in range(60)]
    path.write_text("\n".join(lines) + "\n")
    frames, coverage, _ = read(path)
    ranks = frames.batch.select("dp_rank", "tp_rank", "ep_rank").rows()
    assert ranks == [(3, 11, 2), (0, 0, None)] * 30
    assert frames.batch["time"].to_list() == [datetime(2026, 11, 20, 10, 0, k) for k in range(60)]
    assert coverage.lines_partial == 0


def test_a_tag_glued_to_a_coloured_stamp(tmp_path):
    path = tmp_path / "server.log"
    lines = [
        f"{'pd'[k % 2]}{k % 2}\x1b[2m2026-11-20T10:00:{k:02d}.250907Z\x1b[0m \x1b[32m INFO\x1b[0m "
        f"\x1b[2mworker\x1b[0m\x1b[2m:\x1b[0m {body(k)}"
        for k in range(60)
    ]
    path.write_text("\n".join(lines) + "\n")
    frames, _, _ = read(path)
    times = [datetime(2026, 11, 20, 10, 0, k, 250_000) for k in range(60)]
    assert frames.batch["time"].to_list() == times
    assert frames.batch["time_has_date"].all()
    assert frames.batch["stream"].unique().sort().to_list() == ["d1", "p0"]


#: name: line k of a log, wrapped in quotes other than JSON's
QUOTED: dict[str, Callable[[int], str]] = {
    "gcloud's YAML": lambda k: f"---\ninsertId: a{k}\nseverity: ERROR\ntextPayload: '{own(k)}'",
    "YAML": lambda k: f"- log: '{own(k)}'\n  stream: stderr",
    "YAML, double quotes": lambda k: f'- message: "{own(k)}"',
    "YAML list": lambda k: f"  - '{own(k)}'",
    "TOML": lambda k: f'message = "{own(k)}"',
    "bytes": lambda k: repr(f"{own(k)}\n".encode()),
    "text": lambda k: f"{own(k)!r},",
    "list": lambda k: repr([own(k)]),
    "dict": lambda k: repr({"time": f"2026-11-20T10:00:{k:02d}", "log": own(k), "n": k}),
    "pairs": lambda k: f"time=x level=info msg='{own(k)}'",
}


@pytest.mark.parametrize("name", QUOTED)
@pytest.mark.parametrize("n", [5, 120])
def test_quotes_of_any_kind(name, n, tmp_path):
    text = "".join(QUOTED[name](k % 30) + "\n" for k in range(n))
    frames, coverage, _ = read(log(tmp_path, text))
    ks = [k % 30 for k in range(n)]
    assert frames.batch.select("time", "running_req", "queue_req", "tp_rank").rows() == [
        (times(k), 100 + k, k, 0) for k in ks
    ]
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_fields_beside_the_message_are_not_its_own(tmp_path):
    cut_off = own(3).rpartition(", #queue-req")[0]
    lines = [
        json.dumps({"log": cut_off, "note": "x, #queue-req: 77"}),
        json.dumps({"log": own(1)}),
    ]
    assert rows_of(log(tmp_path, "\n".join(lines) + "\n"), "queue_req") == [(None,), (1,)]


@pytest.mark.parametrize("line", [{"text": own(3)}, {"body": own(3)}])
def test_statistics_in_quotes_are_told_where_there_are_no_others(line, tmp_path):
    """They may be a prompt, so they are not counted; but they may be all there is."""
    lines = [json.dumps(line)] * 12
    frames, coverage, _ = read(log(tmp_path, "\n".join(lines) + "\n"), "errors")
    assert frames is None or frames.batch.is_empty()
    assert coverage.lines_unrecognised == 12
    assert [sample.line_no for sample in coverage.samples] == list(range(1, 11))
    request = f"[{stamp(1)}] Receive: obj=GenerateReqInput(text='{FAKE}')"
    _, coverage, _ = read(log(tmp_path, request + "\n"), "errors")
    assert coverage.lines_unrecognised == 0


def test_a_logger_without_stamps_of_its_own_logs_events_too(tmp_path):
    retract = "KV cache pool is full. Retract requests. #retracted_reqs: 3"
    pool = "KV Cache is allocated. #tokens: 1000, K size: 1.00 GB, V size: 1.00 GB"
    messages = [pool, *[body(k) for k in range(20)], retract]
    for form in (
        lambda k, text: json.dumps({"event": text, "timestamp": stamp(k % 60)}),
        lambda k, text: f"{stamp(k % 60)} | INFO | sglang.srt:log:214 - {text}",
        lambda k, text: f"INFO     sglang.srt:scheduler.py:{k + 100} {text}",
    ):
        lines = [form(k, text) for k, text in enumerate(messages)]
        frames, _, _ = read(log(tmp_path, "\n".join(lines) + "\n"))
        assert frames.batch["queue_req"].to_list() == list(range(20))
        assert frames.event["num_retracted_reqs"].to_list() == [3]
        assert frames.startup.select("num_tokens", "pool_label").rows() == [(1000, None)]


def loki(k):
    return [f"1795168{800 + k}000000000", own(k % 60)]


#: name: the whole log of n records, none of them on a line of its own
UNBROKEN: dict[str, Callable[[int], str]] = {
    "JSON array": lambda n: json.dumps([{"message": own(k % 60), "id": k} for k in range(n)]),
    "compact JSON array": lambda n: json.dumps(
        [{"id": k, "log": own(k % 60)} for k in range(n)], separators=(",", ":")
    ),
    "Loki": lambda n: json.dumps(
        {"streams": [{"stream": {"pod": "a"}, "values": [loki(k) for k in range(n)]}]}
    ),
    "OpenTelemetry": lambda n: json.dumps(
        {
            "logRecords": [
                {"timeUnixNano": "1", "body": {"stringValue": own(k % 60)}} for k in range(n)
            ]
        }
    ),
    "CloudWatch Insights": lambda n: json.dumps(
        {"results": [[{"field": "@message", "value": own(k % 60)}] for k in range(n)]}
    ),
    "strings": lambda n: json.dumps([own(k % 60) for k in range(n)]),
    "returns": lambda n: "".join(own(k % 60) + "\r" for k in range(n)),
    "Unicode line separators": lambda n: "\u2028".join(own(k % 60) for k in range(n)) + "\n",
    "NUL bytes": lambda n: "".join(own(k % 60) + "\0" for k in range(n)),
    "escaped line ends": lambda n: "\\n".join(own(k % 60) for k in range(n)) + "\n",
}


@pytest.mark.parametrize("name", UNBROKEN)
def test_records_without_line_ends(name, tmp_path):
    """More of them than are read at once, or than a line may hold."""
    n = 2500
    path = log(tmp_path, UNBROKEN[name](n))
    frames, coverage, source = read(path, "errors")
    assert frames.batch["queue_req"].to_list() == [k % 60 for k in range(n)]
    assert frames.batch["line_no"].is_sorted()
    assert frames.batch["line_no"].n_unique() == n
    assert "each record counts as a line" in coverage.notes[0]
    line_no = frames.batch["line_no"][1234]
    assert own(1234 % 60) in source.quote([line_no])[line_no]


@pytest.mark.parametrize("breaks", [b"\r", b"},{", b":[{", b"\\n[2026-", b"\xe2\x80\xa8", b"\0"])
@pytest.mark.parametrize("size", [1, 7, 41, 1000])
def test_breaks_are_found_wherever_a_read_ends(breaks, size):
    parts = [b'{"a":"%d"' % k for k in range(200)]
    text = (breaks + b'"log":' if b"{" in breaks else breaks).join(parts)
    json_breaks = streams.Breaks(re.compile(streams._JSON_BREAK % b'log":'), request_safe=True)
    known = next(b for b in (*streams._BREAKS, json_breaks) if b.pattern.search(text))

    class Slow(io.BytesIO):
        def read(self, n=-1):
            return super().read(min(n, size))

    broken = io.BufferedReader(streams.Broken(Slow(text), known), 16)
    lines = broken.read().split(b"\n")
    assert len(lines) == len(parts)
    assert all(part in line for part, line in zip(parts, lines, strict=True))


def test_what_a_prompt_says_is_no_break(tmp_path):
    prompt = '}, {"message": "' + FAKE + '"}, [{"log": "' + FAKE + "\n" + FAKE
    logged = f"[{stamp(1)}] Receive: obj=GenerateReqInput(text={prompt!r})"
    records = [{"message": text} for k in range(40) for text in (own(k), logged)]
    frames, _, _ = read(log(tmp_path, json.dumps(records)), "errors")
    assert frames.batch["queue_req"].to_list() == list(range(40))
    alone = f"[{stamp(1)}] Receive: obj=GenerateReqInput(text='{'x' * 9000}\\n{FAKE}\\n{FAKE}')"
    frames, _, _ = read(log(tmp_path, alone), "errors")
    assert frames is None or frames.batch.is_empty()


def test_utf8_before_utf16_is_not_taken_for_utf16(tmp_path):
    """PowerShell's >> appends UTF-16 to whatever is there."""
    text = (own(0) + "\n").encode() + "".join(own(k) + "\r\n" for k in range(1, 9)).encode(
        "utf-16-le"
    )
    assert rows_of(log(tmp_path, text), "queue_req") == [(k,) for k in range(9)]


def at_width(width):
    return lambda line: [line[k : k + width] for k in range(0, len(line), width)]


def at_words(width, prefix=""):
    def fold(line):
        wrapped = textwrap.wrap(line, width - len(prefix), break_on_hyphens=False)
        return [prefix + part for part in wrapped]

    return fold


FOLDS = {
    "a terminal of 80": at_width(80),
    "a terminal of 120": at_width(120),
    "a mail of 76": at_words(76),
    "an answered mail": at_words(76, "> "),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("block_size", [700, 1 << 18])
def test_folded_lines(name, block_size, tmp_path):
    request = f"[{stamp(1)}] Receive: obj=GenerateReqInput(rid='a', text='{FAKE * 20}')"
    retract = "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: "
    lines, want = ["starting up"], []
    for k in range(60):
        want.append((len(lines) + 1, k))
        for line in (own(k), f"[{stamp(k)} TP1] {retract}0.4213 -> 0.9871", request):
            lines += FOLDS[name](line)
    parser = Parser("errors")
    (source,) = open_sources([str(log(tmp_path, "\n".join(lines) + "\n"))])
    parts = list(parser.read(source, block_size=block_size))
    batch = pl.concat([f.batch for f in parts])
    assert batch.select("line_no", "queue_req").rows() == want
    assert batch["running_req"].to_list() == [100 + k for k in range(60)]
    assert batch["gen_throughput"].to_list() == [3000.25 + k for k in range(60)]
    event = pl.concat([f.event for f in parts])
    assert event.select("tp_rank", "num_retracted_reqs", "new_token_ratio").unique().rows() == [
        (1, 3, 0.9871)
    ]
    assert len(event) == 60
    coverage = parser.coverage()
    assert coverage.lines_total == len(lines)
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_lines_that_were_cut_are_not_joined(tmp_path):
    """Here the terminal cut the lines at its edge: there is no rest to join."""
    text = "".join(own(k)[:80] + "\n" for k in range(20))
    frames, coverage, _ = read(log(tmp_path, text))
    assert frames is None or frames.batch.is_empty()
    assert coverage.lines_unrecognised == 20


#: name: what copying did to a line
COPIED: dict[str, Callable[[str], str]] = {
    "non-breaking spaces": lambda line: line.replace(" ", "\u00a0"),
    "thin spaces": lambda line: line.replace(", ", ",\u2009"),
    "non-breaking spaces, read as Latin-1": lambda line: line.replace(": ", ":\u00c2\u00a0"),
    "zero-width spaces": lambda line: "\u200b" + line,
    "tabs": lambda line: line.replace(", ", ",\t"),
    "Chinese commas": lambda line: line.replace(", ", "\uff0c"),
    "HTML": lambda line: f"<pre>{html.escape(line)}".replace(" ", "&nbsp;"),
    "caret notation": lambda line: f"^[[32m{line}^[[0m",
    "escaped colours": lambda line: f"\\x1b[1;32m{line}\\x1b[0m",
    "rsyslog's escapes, beside a name": lambda line: f"[main] #033[92m{line}#033[0m",
    "rsyslog's escapes": lambda line: f"#033[92m{line}#033[0m",
    "colours without their escape": lambda line: f"[32m{line}[0m",
    "journald's bytes": lambda line: json.dumps(
        {"_PID": "7", "MESSAGE": list(f"\x1b[32m{line}\x1b[0m".encode())}, separators=(",", ":")
    ),
}


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("block_size", [300, 1 << 18])
def test_copied_text(name, block_size, tmp_path):
    retract = f"[{stamp(1)} TP1] Decode out of memory happened. #retracted_reqs: 3, "
    retract += "#new_token_ratio: 0.4213 -> 0.9871"
    lines = [COPIED[name](line) for k in range(60) for line in (own(k), retract)]
    parser = Parser("errors")
    (source,) = open_sources([str(log(tmp_path, "\n".join(lines) + "\n"))])
    parts = list(parser.read(source, block_size=block_size))
    batch = pl.concat([f.batch for f in parts])
    assert batch.select("line_no", "time", "tp_rank", "token", "queue_req").rows() == [
        (2 * k + 1, times(k), 0, 900000 + k, k) for k in range(60)
    ]
    ratios = pl.concat([f.event for f in parts]).select("old_new_token_ratio", "new_token_ratio")
    assert ratios.rows() == [(0.4213, 0.9871)] * 60
    coverage = parser.coverage()
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_the_text_of_a_log_that_nobody_copied_stays(tmp_path):
    args = """ServerArgs(model_path='/a&lt;b\u00a0c', served_model_name='[0m,\\tx')"""
    frames, _, _ = read(log(tmp_path, f"[{stamp(1)}] server_args={args}\n{own(1)}\n"))
    assert frames.startup["args_text"].to_list() == [args]


#: name: line k of a log, and what another program put behind its record
BEHIND: dict[str, Callable[[int], str]] = {
    "HTML": lambda k: f'<tr><td class="l">{k}</td><td>{own(k)}</td></tr>',
    "CDATA": lambda k: f"<system-err><![CDATA[{own(k)}]]></system-err>",
    "Ray": lambda k: f"(W pid=7) {own(k)} [repeated {k}x across cluster] (Ray deduplicates logs.)",
    "rich": lambda k: f"{own(k)}       scheduler.py:{k}",
    "pytest": lambda k: f"{own(k)} (scheduler.py:{k})",
    "structlog": lambda k: f"{own(k)}    logger=sglang n={k}",
    "zap": lambda k: f'{own(k)}\t{{"pid": {k}}}',
    "another pane": lambda k: f"{own(k)}   │ {k} MiB",
    "a box": lambda k: f"│ {own(k)} │",
    "progress bar": lambda k: (
        f"{own(k)} {k}%|█▏   | {k}/36 [00:0{k % 10}<00:12,  2.5{k % 10}it/s]"
    ),
    "access line": lambda k: f'{own(k)}INFO:     10.0.0.{k}:1 - "POST /x HTTP/1.1" 200 OK',
    "shell": lambda k: own(k) + "\\",
    "the same, elsewhere": lambda k: json.dumps(
        {"message": own(k), "event": {"original": own(k)}}
    ),
}


@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("n", [6, 120])
def test_what_stands_behind_a_record(name, n, tmp_path):
    text = "".join(BEHIND[name](k % 30) + "\n" for k in range(n))
    frames, coverage, _ = read(log(tmp_path, text), "errors")
    ks = [k % 30 for k in range(n)]
    assert frames.batch.select("line_no", "time", "queue_req", "gen_throughput").rows() == [
        (i + 1, times(k), k, 3000.25 + k) for i, k in enumerate(ks)
    ]
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_a_field_that_nobody_knows_is_told(tmp_path):
    text = "".join(f"{own(k)}, new field: {k}\n" for k in range(20))
    _, coverage, _ = read(log(tmp_path, text))
    assert coverage.lines_partial == 20


#: how the stamp is written -> the zone it tells
STAMPS = {
    "%Y-%m-%dT%H:%M:%S": None,
    "%Y-%m-%dT%H:%M:%SZ": "UTC",
    "%Y-%m-%d %H:%M:%S +0800": "+08:00",
    "%Y-%m-%d %H:%M:%S+08:00": "+08:00",
    "%Y-%m-%d %H:%M:%S CST": None,
    "%Y/%m/%d %H:%M:%S": None,
    "%d.%m.%Y %H:%M:%S": None,
    "%d/%b/%Y:%H:%M:%S": None,
    "%a %b %d %H:%M:%S %Y": None,
    "%m/%d/%Y %I:%M:%S %p": None,
}


@pytest.mark.parametrize("form", STAMPS)
@pytest.mark.parametrize("hour", [10, 22])
@pytest.mark.parametrize("n", [5, 90])
def test_a_stamp_of_another_form(form, hour, n, tmp_path):
    """SGLANG_LOGGING_CONFIG_PATH may name any."""
    moments = [datetime(2026, 11, 20, hour, 0, k % 60) for k in range(n)]
    text = "".join(f"[{t.strftime(form)} DP1 TP3] {body(k)}\n" for k, t in enumerate(moments))
    frames, _, source = read(log(tmp_path, text))
    assert frames.batch["time"].to_list() == moments
    assert frames.batch["time_has_date"].all()
    assert frames.batch.select("dp_rank", "tp_rank").unique().rows() == [(1, 3)]
    assert source.tz == STAMPS[form]


def test_a_date_that_may_be_read_in_two_ways_is_not_read(tmp_path):
    text = "".join(f"[03/04/2026 10:00:{k:02d}] {body(k)}\n" for k in range(9))
    frames, _, _ = read(log(tmp_path, text))
    assert not frames.batch["time_has_date"].any()
    assert len(frames.batch) == 9


@pytest.mark.parametrize(
    ("prefix", "moment"),
    [
        (
            "I1120 22:00:01.250000  4242 scheduler.py:123] ",
            datetime(2026, 11, 20, 22, 0, 1, 250_000),
        ),
        ("INFO 11-20 22:00:01 [scheduler.py:123] ", datetime(2026, 11, 20, 22, 0, 1)),
    ],
)
def test_loggers_without_a_year(prefix, moment, tmp_path):
    path = log(tmp_path, "".join(f"{prefix}{body(k)}\n" for k in range(60)))
    written = datetime(2026, 12, 24).timestamp()
    os.utime(path, (written, written))
    assert rows_of(path, "time", "queue_req") == [(moment, k) for k in range(60)]


def test_a_stamp_with_a_zone_is_a_wrappers(tmp_path):
    for wrapper in (
        "[2026-11-20T10:00:00.123456+00:00] [stderr] ",
        "[2026-11-20 10:00:00 +0000] [7] ",
    ):
        path = log(tmp_path, "".join(f"{wrapper}{own(k)}\n" for k in range(60)))
        assert rows_of(path, "time", "tp_rank") == [(times(k), 0) for k in range(60)]


@pytest.mark.parametrize("escape", ["\\u00{:02x}", "\\u00{:02X}"])
def test_json_that_escapes_more_than_it_must(escape, tmp_path):
    """Gson escapes <>&=', .NET <>&+'`."""
    pool = f"[{stamp(0)}] max_total_num_tokens=1540000, max_prefill_tokens=16384, context_len=4096"
    retract = (
        "Decode out of memory happened. #retracted_reqs: 2, #new_token_ratio: 0.4213 -> 0.9871"
    )
    lines = [pool, *[own(k) for k in range(30)], f"[{stamp(31)} TP3] {retract}"]
    path = log(
        tmp_path,
        "".join(
            json.dumps({"log": line + "\n"})
            .replace("=", escape.format(ord("=")))
            .replace(">", escape.format(ord(">")))
            + "\n"
            for line in lines
        ),
    )
    frames, coverage, _ = read(path)
    assert frames.batch["queue_req"].to_list() == list(range(30))
    assert frames.startup.select("max_total_num_tokens", "context_len").rows() == [(1540000, 4096)]
    assert frames.event.select("tp_rank", "new_token_ratio").rows() == [(3, 0.9871)]
    assert coverage.lines_unrecognised == coverage.lines_partial == 0
