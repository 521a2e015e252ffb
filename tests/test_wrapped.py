"""What wrappers do to whole logs: the same rows, stamps, ranks and servers as without them."""

import html
import json
from datetime import datetime, timedelta

import polars as pl
import pytest
from synth import sessions

from loganalyze import tables
from loganalyze.frames import Frames
from loganalyze.lines import own_words
from loganalyze.parse import Parser
from loganalyze.sources import open_sources

START = datetime(2026, 11, 20, 10, 0, 0)
#: The same in the clock of most wrappers: SGLang prints local time, here UTC+8.
START_UTC = START - timedelta(hours=8)
EPOCH = datetime(1970, 1, 1)


def at(k, form="%Y-%m-%d %H:%M:%S"):
    return (START + timedelta(seconds=k)).strftime(form)


def utc(k, form="%Y-%m-%dT%H:%M:%S"):
    return (START_UTC + timedelta(seconds=k)).strftime(form)


def epoch(k):
    return int((START_UTC - EPOCH).total_seconds()) + k


def body(k):
    return (
        f"Decode batch, #running-req: {100 + k}, #token: 512, token usage: 0.65, "
        f"cuda graph: True, gen throughput (token/s): {3000 + k}.25, #queue-req: {k}"
    )


def own(k):
    return f"[{at(k)} TP0] {body(k)}"


def read(tmp_path, text, requests="errors"):
    """Return the frames of a log, its coverage and its source; of the one there without text."""
    path = tmp_path / "server.log"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    parser = Parser(requests)
    (source,) = open_sources([str(path)])
    parts = list(parser.read(source))
    names = ("batch", "event", "startup", "request")
    frames = Frames(**{n: pl.concat([getattr(p, n) for p in parts]) for n in names})
    return frames, parser.coverage(), source


#: name: (line k, the milliseconds of its stamp, or None without a stamp)
NO_STAMP_OF_SGLANGS = {
    "ts": (lambda k: f"{epoch(k)}.250000 {body(k)}", 250),
    "seconds": (lambda k: f"{epoch(k)} {body(k)}", 0),
    "milliseconds": (lambda k: f"{epoch(k)}250 {body(k)}", 250),
    "nanoseconds": (lambda k: f"[{epoch(k)}250000000] {body(k)}", 250),
    "journalctl -o short-unix": (lambda k: f"{epoch(k)}.25 gpu-7 sglang[42]: {body(k)}", 250),
    "svlogd": (lambda k: f"{utc(k, '%Y-%m-%d_%H:%M:%S')}.25 {body(k)}", 250),
    "mpirun --timestamp-output": (
        lambda k: f"{utc(k, '%a %b %d %H:%M:%S %Y')}[1,0]<stderr>:{body(k)}",
        0,
    ),
    "a level and a colon before it": (
        lambda k: f"INFO:{utc(k, '%Y-%m-%d %H:%M:%S')},250:{body(k)}",
        250,
    ),
    "journalctl -o export": (lambda k: f"MESSAGE={body(k)}", None),
}


@pytest.mark.parametrize("name", NO_STAMP_OF_SGLANGS)
def test_the_wrappers_stamp_is_all_there_is(name, tmp_path):
    line, ms = NO_STAMP_OF_SGLANGS[name]
    frames, coverage, _ = read(tmp_path, "".join(line(k) + "\n" for k in range(12)))
    assert frames.batch["queue_req"].to_list() == list(range(12))
    want = [
        None if ms is None else START_UTC + timedelta(seconds=k, milliseconds=ms)
        for k in range(12)
    ]
    assert frames.batch["time"].to_list() == want
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_a_syslog_line_that_names_a_host_and_no_program(tmp_path):
    frames, _, _ = read(
        tmp_path, "".join(f"Nov 20 10:00:{k:02d} gpu-7 {body(k)}\n" for k in range(9))
    )
    assert frames.batch["stream"].unique().to_list() == ["gpu-7"]
    assert frames.batch["time"].dt.strftime("%m-%d %H:%M:%S").to_list() == [
        f"11-20 10:00:{k:02d}" for k in range(9)
    ]


def test_the_zone_is_told_by_an_epoch(tmp_path):
    _, _, source = read(tmp_path, "".join(f"{epoch(k)}.1 {own(k)}\n" for k in range(9)))
    assert source.tz == "+08:00"


@pytest.mark.parametrize(
    "before",
    [
        lambda k: "TP3 ",
        lambda k: "TP3] ",
        lambda k: "TP3: ",
        lambda k: f"[{at(k)}] TP3 ",
        lambda k: f"[{at(k)}] [TP3] ",
        lambda k: f"{at(k)} TP3 ",
        lambda k: f"{at(k)} INFO | TP3 | ",
        lambda k: f"2026-11-20T02:00:{k:02d}.1Z stderr F TP3 ",
        lambda k: "[1,0]<stderr>:TP3 ",
    ],
)
def test_ranks_by_themselves(before, tmp_path):
    frames, coverage, _ = read(tmp_path, "".join(f"{before(k)}{body(k)}\n" for k in range(12)))
    assert frames.batch["tp_rank"].to_list() == [3] * 12
    assert coverage.lines_unrecognised == 0


@pytest.mark.parametrize(
    ("before", "inner"),
    [
        (lambda k: f"{at(k)} +0800 docker.sglang: ", "timestamp"),
        (lambda k: f"1763604000123\t{utc(k + 2)}.9Z\t", "timestamp"),
        (lambda k: f"{at(k, '%a %Y-%m-%d %H:%M:%S')} CST gpu-7 sglang[42]: ", "time"),
    ],
)
def test_a_stamp_behind_the_message_is_further_inside(before, inner, tmp_path):
    lines = [
        before(k) + json.dumps({"event": body(k), inner: f"{utc(k)}.250000Z"}) for k in range(12)
    ]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["time"].to_list() == [
        START_UTC + timedelta(seconds=k, milliseconds=250) for k in range(12)
    ]


def access(k):
    status = "503 Service Unavailable" if k % 2 else "200 OK"
    return f'[{at(k)}] INFO:     10.0.0.7:512{k:02d} - "POST /v1/chat HTTP/1.1" {status}'


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: json.dumps({"log": line + "\n", "stream": "stdout"}),
        lambda line: json.dumps({"message": json.dumps({"log": line})}),
        lambda line: '"gpu-7","' + line.replace('"', '""') + '"',
    ],
)
def test_access_lines_in_quotes(wrap, tmp_path):
    """What a server refused is seen in Docker's own files, too."""
    text = "".join(wrap(line(k)) + "\n" for k in range(40) for line in (own, access))
    frames, _, _ = read(tmp_path, text)
    refused = frames.request.filter(pl.col("status") == 503)
    assert refused.select("line_no", "time", "path").rows() == [
        (2 * k + 2, START + timedelta(seconds=k), "/v1/chat") for k in range(1, 40, 2)
    ]
    frames, _, _ = read(tmp_path, text, "all")
    assert frames.request["status"].to_list() == [200 + k % 2 * 303 for k in range(40)]
    assert frames.request["client"][7] == "10.0.0.7:51207"
    glued = "".join(wrap(access(k) + own(k)) + "\n" for k in range(40))
    frames, _, _ = read(tmp_path, glued)
    assert frames.batch["queue_req"].to_list() == list(range(40))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_arguments_in_a_cell_of_a_table(end, tmp_path):
    args = """ServerArgs(model_path='/m', chat_template="it's", name='a "b"')"""
    logged = f"[{at(0)}] server_args={args}{end}"
    for wrap in (
        lambda line: '"gpu-7","' + line.rstrip().replace('"', '""') + '",7',
        lambda line: json.dumps({"log": line, "stream": "stderr"}),
    ):
        frames, _, _ = read(tmp_path, f"{wrap(logged)}\n{wrap(own(1))}\n")
        assert frames.startup["args_text"].to_list() == [args]


#: A line that quotes statistics as no line of this log is written.
FAKE = f"INFO: [{at(3)} TP0] {body(3)}"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda k, line: f"{line}\r",
        lambda k, line: f"\x1b_bk;t={epoch(k)}000\x07{line}",
        lambda k, line: f'{{"log":"[1,0]\\u003cstderr\\u003e:{line}\\n","stream":"stderr"}}',
        lambda k, line: f"\x1b[?2004l{line}",
    ],
)
def test_the_style_of_a_log_is_told_from_clean_lines(wrap, tmp_path):
    """Line ends, colours and escapes are none of its style, and hide none of it."""
    lines = [wrap(k, own(k // 3) if k % 3 else FAKE) for k in range(60)]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["line_no"].to_list() == [k + 1 for k in range(60) if k % 3]
    assert coverage.lines_unrecognised == 20


def test_rich_leaves_out_a_stamp_that_is_the_same_as_above(tmp_path):
    lines = [
        (f"[10:00:{k:02d}] INFO     " if k % 3 == 0 else " " * 20) + f"{body(k)}  scheduler.py:200"
        for k in range(30)
    ]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(30))


@pytest.mark.parametrize(
    "line",
    [
        lambda k: json.dumps({"__time__": epoch(k), "__source__": "10.0.0.1", "content": own(k)}),
        lambda k: json.dumps({"podName": "sglang-0", "content": own(k)}),
        lambda k: json.dumps([k + 0.5, "o", own(k) + "\r\n"]),
        lambda k: (
            f'[{k}] kube: [[{epoch(k)}.5, {{}}], {{"log"=>"\\u001b[32m{own(k)}\\u001b[0m"}}]'
        ),
        lambda k: f"{utc(k)}.123456Z 01{'OE'[k % 2]} {own(k)}",
    ],
    ids=["a log service", "another", "asciinema", "Fluent Bit's own output", "GitLab"],
)
def test_other_writers(line, tmp_path):
    frames, coverage, _ = read(tmp_path, "".join(line(k) + "\n" for k in range(20)))
    assert frames.batch.select("time", "tp_rank", "queue_req").rows() == [
        (START + timedelta(seconds=k), 0, k) for k in range(20)
    ]
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


TRACE = (
    "Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/sgl/scheduler.py", line 1, in run',
    "    self.loop()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "",
)
SIGQUIT = "Received sigquit from a child process. It usually means the child failed."

#: What stands before a record, and before another one that no line end parts from it.
GLUED = {
    "compose": ("sglang-1  | ", "sglang-2  | "),
    "compose, other services": ("sglang-1  | ", "router  | "),
    "labels of numbers": ("3: ", "7: "),
    "CRI": ("2026-11-20T02:00:00.123456Z stderr F ", "2026-11-20T02:00:07.654321Z stderr F "),
    "pods": ("[pod/s-0/server] ", "[pod/s-1/server] "),
    "one wrapper": ("sglang-1  | ", ""),
}


@pytest.mark.parametrize("name", GLUED)
def test_two_wrapped_records_without_a_line_end_between(name, tmp_path):
    one, other = GLUED[name]
    lines = [f"{one}{own(k)}{other}{own(k + 1)}" for k in range(0, 60, 2)]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(60))
    assert coverage.lines_unrecognised == coverage.lines_partial == 0
    alone = read(tmp_path, f"{one}{own(1)}\n{other or one}{own(2)}\n")[0].batch["stream"].to_list()
    assert frames.batch["stream"].to_list() == alone * 30


#: How a logger begins a record; the lines below have nothing.
LOGGERS = {
    "SGLang": lambda k: f"[{at(k)} TP0] ",
    "SGLang of old": lambda k: f"[{at(k, '%H:%M:%S')} TP0] ",
    "SGLang, coloured": lambda k: f"\x1b[3{k % 7}m[{at(k)} TP0]\x1b[0m ",
    "a logger": lambda k: f"{at(k)},250 - sglang.srt.part_{k} - {('INFO', 'ERROR')[k % 2]} - ",
    "basicConfig": lambda k: f"{('INFO', 'ERROR')[k % 2]}:sglang.srt.part_{k}:",
    "dynamo": lambda k: f"{utc(k)}.250Z {(' INFO', 'ERROR')[k % 2]} part.log_{k}: ",
    "months by name": lambda k: f"{at(k, '%d %b %Y %H:%M:%S')},250 {('INFO', 'ERROR')[k % 2]} - ",
}
#: What stands before, or around, each line.
WRAPPERS = {
    "nothing": lambda k, line: line,
    "compose": lambda k, line: f"sglang-1  | {line}",
    "coloured compose": lambda k, line: f"\x1b[36msglang-1  | \x1b[0m{line}",
    "kubectl --timestamps": lambda k, line: f"{utc(k)}.{1000 + k}Z {line}",
    "stern": lambda k, line: f"sglang-7d9f8b6c5-x2x9k server {line}",
    "pdsh": lambda k, line: f"node07: {line}",
    "syslog": lambda k, line: f"{at(k, '%b %d %H:%M:%S')} gpu-7 sglang[42]: {line}",
    "syslog without a program": lambda k, line: f"{at(k, '%b %d %H:%M:%S')} gpu-7 {line}",
    "ts": lambda k, line: f"[{at(k)}] {line}",
    "honcho": lambda k, line: f"{at(k, '%H:%M:%S')} server.1 | {line}",
    "unknown": lambda k, line: f"gpu7.rack3 @server {line}",
    "Docker": lambda k, line: json.dumps({"log": line + "\n", "stream": "stderr"}),
    "Vector": lambda k, line: json.dumps({"host": "gpu-7", "message": line, "stream": "stderr"}),
    "an unknown key": lambda k, line: json.dumps({"x": k, "LogEntry": line, "y": [k]}),
    "JSON in JSON": lambda k, line: json.dumps({"log": json.dumps({"message": line}) + "\n"}),
    "CSV": lambda k, line: '"gpu-7","' + line.replace('"', '""') + '",7',
    "a bar": lambda k, line: f" {k}%|█▏  | {k}/35 [00:01<00:16, 1.2it/s]{line}",
    "rows of HTML": lambda k, line: f"<tr><td>{k}</td><td>{line}</td></tr>",
    "a logger before each line": lambda k, line: (
        f"{at(k)}.123 | ERROR    | sglang.srt.part:write_{k}:{k} - {line}"
    ),
    "a table with a host": lambda k, line: f" {at(k)} | {line} | gpu-7",
    "a box": lambda k, line: f"│ {line} │",
    "syslog, counted": lambda k, line: f"{90 + k} <14>1 {utc(k)}.1Z gpu-7 sglang 42 - - {line}",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("logger", LOGGERS)
def test_a_traceback_ends_where_its_writer_goes_on(wrapper, logger, tmp_path):
    begin, wrap = LOGGERS[logger], WRAPPERS[wrapper]
    said = [begin(k) + body(k) for k in range(12)]
    said += [begin(12) + TRACE[0], *TRACE[1:], begin(13) + SIGQUIT, begin(14) + body(14)]
    lines = [wrap(k, line) for k, line in enumerate(said)]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == [*range(12), 14]
    assert frames.event.select("line_no", "kind").rows() == [(13, "exception"), (18, "sigquit")]
    lines = [line.strip() for line in frames.event["traceback"][0].rstrip().split("\n")]
    assert lines == [TRACE[0].partition(": ")[2], *(line.strip() for line in TRACE[1:-1])]
    assert coverage.lines_unrecognised == 0


def test_a_traceback_in_one_string_ends_with_it(tmp_path):
    records = [body(1), "\n".join(TRACE), SIGQUIT, body(2)]
    lines = [json.dumps({"time": at(k), "event": said, "n": k}) for k, said in enumerate(records)]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.event.select("line_no", "kind").rows() == [(2, "exception"), (3, "sigquit")]
    assert frames.event["traceback"][0] == "\n".join(TRACE).partition(": ")[2].rstrip("\n")


def test_tracebacks_of_two_containers_stay_apart(tmp_path):
    for form in (
        "sglang-{}  | {}",
        "[pod/sglang-{}/server] {}",
        "(Engine pid=1234{}) {}",
        "{}: {}",
    ):
        lines = [form.format(n, own(k)) for k in range(6) for n in (1, 2)]
        lines += [form.format(n, f"[{at(9)} TP0] {TRACE[0]}") for n in (1, 2)]
        lines += [form.format(n, line) for n in (2, 1) for line in TRACE[1:-1]]
        frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
        events = frames.event.filter(pl.col("kind") == "exception")
        assert events["line_no"].to_list() == [13, 14]
        assert events["stream"].n_unique() == 2
        assert events["traceback"][1].endswith("2.00 GiB")


def test_escapes_in_json_in_json(tmp_path):
    retract = "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: "
    said = [f"\x1b[32m{own(1)}\x1b[0m", f"[{at(2)} TP0] {retract}0.4213 -> 0.9871"]
    inner = [json.dumps({"message": line}).replace(">", "\\u003e") for line in said]
    frames, _, _ = read(tmp_path, "".join(json.dumps({"log": i}) + "\n" for i in inner))
    assert frames.batch["queue_req"].to_list() == [1]
    assert frames.event["new_token_ratio"].to_list() == [0.9871]


#: What names the writer n of line k.
WRITERS = {
    "Google Cloud": lambda n, k, line: json.dumps(
        {
            "resource": {"labels": {"container_name": "a", "pod_name": f"s-{n}"}},
            "textPayload": line,
        }
    ),
    "Filebeat": lambda n, k, line: json.dumps(
        {
            "kubernetes": {"container": {"name": "a"}, "pod": {"ip": "::", "name": f"s-{n}"}},
            "message": line,
        }
    ),
    "ECS": lambda n, k, line: json.dumps(
        {"container_id": f"a{n}-7", "container_name": "sglang", "log": line}
    ),
    "logcli": lambda n, k, line: f'{utc(k)}Z {{app="a", node="n{k}", pod="s-{n}"}} {line}',
    "Ray, with a rank": lambda n, k, line: f"(Engine(rank={n}) pid=4{n}) {line}",
    "SkyPilot": lambda n, k, line: f"(worker{n}, rank={n}, pid=7, ip=10.0.0.{n}) {line}",
    "journalctl -o short-full": lambda n, k, line: (
        f"{at(k, '%a %Y-%m-%d %H:%M:%S')} CST gpu-7 sglang[4{n}]: {line}"
    ),
    "syslog without a program": lambda n, k, line: f"{at(k, '%b %d %H:%M:%S')} gpu-{n} {line}",
    "grep": lambda n, k, line: f"logs/server{n}.log:{k}:{line}",
    "honcho": lambda n, k, line: f"{at(k, '%H:%M:%S')} server.{n} | {line}",
    "concurrently": lambda n, k, line: f"[server{n}] {line}",
    "aws logs tail": lambda n, k, line: f"{utc(k)}+00:00 ecs/server/0a1b2c3d4e{n} {line}",
}


def fields(**beside):
    """Return a wrapper of JSON with these fields; `{n}` in one is the writer's number."""

    def wrap(n, k, line):
        named = json.dumps(beside).replace("{n}", str(n))
        return json.dumps({**json.loads(named), "time": f"{utc(k)}Z", "log": line})

    return wrap


#: The same for names that are not enough: what tells the writers apart stands beside them.
WRITERS |= {
    "hosts": fields(container_name="/server", host="gpu-{n}"),
    "hosts in an object": fields(container={"name": "server"}, host={"name": "gpu-{n}"}),
    "hosts and pids": fields(_PID="7", _SYSTEMD_UNIT="sglang.service", _HOSTNAME="gpu-{n}"),
    "units": fields(_SYSTEMD_UNIT="sglang{n}.service", _HOSTNAME="gpu-7"),
    "namespaces": fields(kubernetes={"pod_name": "s-0", "namespace_name": "team{n}"}),
    "containers of a pod": fields(pod="s-7d9f8b6c5-x2x9k", container="server{n}", host="a"),
    "clusters": fields(labels={"pod_name": "s-0", "cluster_name": "east{n}"}),
    "Docker's attributes": lambda n, k, line: json.dumps(
        {"log": line + "\n", "stream": "stderr", "attrs": {"tag": f"server{n}"}}
    ),
    "a task's stream": fields(logStreamName="ecs/server/0a1b2c3d4e{n}"),
    "logcli, hosts": lambda n, k, line: (
        f'{utc(k)}Z {{container="server", filename="{k}", host="gpu-{n}", stream="err"}} {line}'
    ),
    "logcli, namespaces": lambda n, k, line: (
        f'{utc(k)}Z {{container="c", namespace="team{n}", node="n{k}", pod="s-0"}} {line}'
    ),
    "compose on two hosts": lambda n, k, line: f"gpu-{n}: server-1  | {line}",
    "two of compose on a host": lambda n, k, line: f"gpu-7: server-{n}  | {line}",
    "Ray in two pods": lambda n, k, line: f"[pod/s-{n}/ray] (Engine pid=42) {line}",
    "Ray's workers in a pod": lambda n, k, line: f"[pod/s-0/ray] (Engine pid={n}) {line}",
    "stern, namespaces": lambda n, k, line: f"team{n} s-0 server {line}",
    "kail": lambda n, k, line: f"team{n}/s-0[server]: {line}",
    "kubetail": lambda n, k, line: f"[sglang-7d9f8b6c5-x2x{n}k] {line}",
    "journalctl -o short-delta": lambda n, k, line: (
        f"[{1234 + k:5d}.123456 <    0.000{k:03d} >] gpu-{n} sglang[42]: {line}"
    ),
    "Ray, without a name": lambda n, k, line: f"(pid=4{n}, ip=10.0.0.{n}) {line}",
    "srun on pdsh's hosts": lambda n, k, line: f"node{n}: 0: {line}",
    "grep of rotated logs": lambda n, k, line: f"logs/server{n}.log.1.gz:{line}",
    "nerdctl compose": lambda n, k, line: f"sglang-{n} |{line}",
    "GNU parallel": lambda n, k, line: f"gpu{n}\t{line}",
    "Azure": fields(ContainerID=f"{'0a1b2c3d' * 8}{{n}}", Computer="aks-0"),
    "RFC 5424 without a priority": lambda n, k, line: (
        f"1 {utc(k)}.1Z gpu-{n} sglang 42 - - {line}"
    ),
    "Fly.io": lambda n, k, line: f"{utc(k)}Z app[148ed726c1235{n}] iad [info]{line}",
    "Heroku": lambda n, k, line: f"{utc(k)}+00:00 app[web.{n}]: {line}",
    "podman": lambda n, k, line: f"0123456789a{n} {line}",
    "stern": lambda n, k, line: f"sglang-7d9f8b6c5-x2x{n}k › server {line}",
    "pdsh, addresses": lambda n, k, line: f"10.0.0.{n}: {line}",
    "labels right behind a stamp": lambda n, k, line: f'{utc(k)}Z{{app="a", pod="s-{n}"}}\t{line}',
    "grep with context": lambda n, k, line: (
        f"logs/server{n}.log{':-'[k % 2]}{k + 1}{':-'[k % 2]}{line}"
    ),
    "RFC 5424 without a stamp": lambda n, k, line: f"<14>1 - gpu-{n} sglang 42 - - {line}",
}


def cell(text):
    return '"' + text.replace('"', '""') + '"'


#: The first line of tables, as log services and hands export them, and a row of the writer `n`.
TABLES = {
    "by hand": ("date,host,message", lambda n, k, line: f"{at(k)},{n},{cell(line)}"),
    "by hand, unquoted": ("date,host,message", lambda n, k, line: f"{at(k)},{n},{line}"),
    "tabs": ("time\thost\tmessage", lambda n, k, line: f"{utc(k)}Z\t{n}\t{line}"),
    "semicolons": ("date;host;message", lambda n, k, line: f"{at(k)};{n};{cell(line)}"),
    "Datadog": (
        "Date,Host,Service,Content",
        lambda n, k, line: f'"{utc(k)}.250Z",{n},sglang,{cell(line)}',
    ),
    "Splunk": (
        '"_raw","_time",host,source,sourcetype',
        lambda n, k, line: f'{cell(line)},"{utc(k)}.000+0000",{n},"/var/log/a.log",sglang',
    ),
    "Kibana": (
        '"@timestamp",message,"kubernetes.pod.name"',
        lambda n, k, line: f'"{at(k, "%b %d, %Y @ %H:%M:%S")}.250",{cell(line)},"{n}"',
    ),
    "CloudWatch": (
        "@timestamp,@message,@logStream,@log",
        lambda n, k, line: f"{utc(k)}.250,{cell(line)},{n},1234567:/ecs/sglang",
    ),
    "Loki": (
        "Time,Line,tsNs,labels",
        lambda n, k, line: (
            f"{epoch(k)}250,{cell(line)},{epoch(k)}250000000,{cell(json.dumps({'pod': n}))}"
        ),
    ),
    "Google Cloud": (
        "insertId,textPayload,timestamp,resource.labels.pod_name,severity",
        lambda n, k, line: f"a{k}b,{cell(line)},{utc(k)}.25Z,{n},ERROR",
    ),
    "Azure": (
        '"TimeGenerated [UTC]",PodName,ContainerName,LogMessage',
        lambda n, k, line: f'"{utc(k)}.2500000Z",{n},sglang,{cell(line)}',
    ),
    "Graylog": (
        '"timestamp","source","message"',
        lambda n, k, line: f'"{utc(k)}.250Z","{n}",{cell(line)}',
    ),
}


@pytest.mark.parametrize("names", [("gpu-a7", "gpu-b8"), ("falcon", "merlin")])
@pytest.mark.parametrize("table", TABLES)
def test_a_table_names_the_writers_in_a_column(table, names, tmp_path):
    header, row = TABLES[table]
    lines = [header, *(row(n, k, own(k)) for k in range(60) for n in names)]
    text = "\n".join(lines) + "\n"
    both = sessions(text)
    assert [data.batch["queue_req"].to_list() for data in both] == [list(range(60))] * 2
    frames, coverage, _ = read(tmp_path, text)
    assert frames.batch["stream"].to_list() == list(names) * 60
    assert frames.batch["time"].to_list()[::2] == [START + timedelta(seconds=k) for k in range(60)]
    assert coverage.lines_unrecognised == coverage.lines_partial == 0
    assert own_words(row(names[0], 1, own(1))) == own(1)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("time, host, message", lambda n, k: f"{at(k)}, {n}, {cell(own(k))}"),
        ("# an export\n\ntime,host,message", lambda n, k: f"{at(k)},{n},{cell(own(k))}"),
        ("sep=;\ntime;message;host", lambda n, k: f"{at(k)};{own(k)};{n}"),
        ("| host | message |\n|---|---|", lambda n, k: f"| {n} | {own(k)} |"),
        (" message | host\n---------+------", lambda n, k: f" {own(k)} | {n}"),
        ("time\tmessage\thost", lambda n, k: f"{at(k)}\t{own(k)}\t{n}"),
    ],
)
def test_the_names_of_columns_below_a_comment_and_between_other_marks(header, row, tmp_path):
    lines = [header, *(row(n, k) for k in range(60) for n in ("falcon", "merlin"))]
    text = "\n".join(lines) + "\n"
    queues = [data.batch["queue_req"].to_list() for data in sessions(text)]
    assert queues == [list(range(60))] * 2
    _, coverage, _ = read(tmp_path, text)
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_a_host_on_each_row_is_no_server(tmp_path):
    """Names of a line each tell what collected them; servers say more than that."""
    rows = [f'{at(k)},node-{k},"{own(k)}"' for k in range(60)]
    (one,) = sessions("\n".join(["time,host,message", *rows]) + "\n")
    assert one.batch["queue_req"].to_list() == list(range(60))
    rows += [f'{at(k)},{n},"{own(k)}"' for k in range(60, 70) for n in ("gpu-1", "gpu-2")]
    split = sessions("\n".join(["time,host,message", *rows]) + "\n")
    assert sorted(data.batch.height for data in split) == [10, 10, 60]
    pods = [f"[pod/sglang-{n}/server] {own(k)}" for n in range(20) for k in range(2)]
    assert [data.batch.height for data in sessions("\n".join(pods) + "\n")] == [2] * 20


@pytest.mark.parametrize(
    "header",
    ["", "date,level,message", "the host, as far as we know: gpu-a7", '"a","host"x', "host"],
)
def test_a_first_line_that_names_no_writers(header):
    assert tables.table_of(header) is None


@pytest.mark.parametrize("name", WRITERS)
def test_two_servers_in_one_log_stay_apart(name):
    wrap = WRITERS[name]
    retract = f"[{at(20)} TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2"
    lines = [wrap(n, k, own(k)) for k in range(12) for n in (1, 2)] + [wrap(2, 20, retract)]
    both = sessions("\n".join(lines) + "\n")
    assert [data.batch["queue_req"].to_list() for data in both] == [list(range(12))] * 2
    assert [len(data.event) for data in both] == [0, 1]
    lines = [wrap(n, k, own(k)) for n in (1, 2) for k in range(12)]  # one file behind the other
    assert [len(data.batch) for data in sessions("\n".join(lines) + "\n")] == [12, 12]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda host, pid, line: f"Nov 20 10:00:00 {host} sglang[{pid}]: {line}",
        lambda host, pid, line: json.dumps({"_HOSTNAME": host, "_PID": pid, "MESSAGE": line}),
        lambda host, pid, line: f"(Engine pid={pid}, ip={host}) {line}",
        lambda host, pid, line: f"[pod/{host}/ray] (Engine pid={pid}) {line}",
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_processes_of_two_servers(wrap, ranks):
    """Each host runs a main process and its ranks, which start in any order."""
    hosts = ("gpu-7", 40), ("gpu-8", 50)
    lines = [
        wrap(host, f"{first}", f"[{at(0)}] server_args=ServerArgs(model_path='/{host}')")
        for host, first in hosts
    ]
    for k in range(12):
        for host, first, rank in (
            ("gpu-7", 41, 0),
            ("gpu-8", 52, 1),
            ("gpu-7", 42, 1),
            ("gpu-8", 51, 0),
        ):
            if rank < ranks:
                tag = f" TP{rank}" if ranks > 1 else ""
                lines.append(wrap(host, f"{first}", f"[{at(k)}{tag}] {body(k)}"))
    lines += [wrap(host, f"{first}", f"[{at(13)}] {SIGQUIT}") for host, first in hosts]
    both = sessions("\n".join(lines) + "\n")
    assert [data.session.config.args["model_path"] for data in both] == ["/gpu-7", "/gpu-8"]
    assert [len(data.batch) for data in both] == [12 * ranks] * 2
    assert [data.event["kind"].to_list() for data in both] == [["sigquit"]] * 2


@pytest.mark.parametrize(
    "wrap",
    [
        lambda pid, line: f"Nov 20 10:00:00 gpu-7 sglang[{pid}]: {line}",
        lambda pid, line: f"(Engine pid={pid}, ip=10.0.0.7) {line}",
        lambda pid, line: f"[pod/s-0/ray] (Engine pid={pid}) {line}",
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_server_that_starts_again_has_new_processes(wrap, ranks):
    """A main process and its ranks die; others take their place."""
    lines = []
    for main, first, model in ((40, 0, "/old"), (70, 30, "/new")):
        lines.append(wrap(main, f"[{at(first)}] server_args=ServerArgs(model_path='{model}')"))
        for k in range(first + 1, first + 13):
            for rank in range(ranks):
                tag = f" TP{rank}" if ranks > 1 else ""
                lines.append(wrap(main + 1 + rank, f"[{at(k)}{tag}] {body(k)}"))
    old, new = sessions("\n".join(lines) + "\n")
    assert [d.session.config.args["model_path"] for d in (old, new)] == ["/old", "/new"]
    assert [len(d.batch) for d in (old, new)] == [12 * ranks] * 2
    assert old.session.ended_by == "crash"


@pytest.mark.parametrize("first", [{}, {"container": "c"}, {"host": "h"}])
@pytest.mark.parametrize("behind", [True, False])
def test_writers_that_the_first_lines_do_not_name(first, behind, tmp_path):
    def wrap(k, **names):
        said = {"message": own(k), "level": "info"}
        return json.dumps({**said, **names} if behind else {**names, **said})

    pods = ("s-1", "s-2")
    lines = [wrap(k, **first) for k in range(60)]
    lines += [wrap(k, **first, kubernetes={"pod_name": n}) for k in range(60, 120) for n in pods]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["stream"].to_list() == [*first.values(), None][:1] * 60 + [*pods] * 60


@pytest.mark.parametrize(
    "wrap",
    [
        lambda k, line: json.dumps({"container_name": "a", "stream": f"std{k % 2}", "log": line}),
        lambda k, line: json.dumps({"host": "a", "process": 40 + k, "level": k % 2, "log": line}),
        lambda k, line: json.dumps({"pod": "s-0", "container_id": f"a{k // 6}", "log": line}),
        lambda k, line: json.dumps(
            {"pod": "s-7d9f8b6c5-x2x9k", "host": f"h{k // 6}", "log": line}
        ),
        lambda k, line: f'{utc(k)}Z {{level="l{k % 2}", pod="s-0", stream="s{k % 2}"}} {line}',
    ],
)
def test_what_does_not_name_the_writer_splits_no_server(wrap):
    (one,) = sessions("".join(wrap(k, own(k)) + "\n" for k in range(12)))
    assert one.batch["queue_req"].to_list() == list(range(12))


@pytest.mark.parametrize(
    "fake",
    [
        f"[{at(3)}] TP0 {body(3)}",
        f"TP0 {body(3)}",
        f"{epoch(3)} {own(3)}",
        f"a.log:12:{own(3)}",
        f"MESSAGE={body(3)}",
        json.dumps({"x": f'INFO:     10.0.0.1:1 - "GET / HTTP/1.1" 200 OK{own(3)}'}),
        json.dumps({"podName": "a", "content": own(3)}),
    ],
)
def test_what_another_log_would_hold_is_no_line_of_this_one(fake, tmp_path):
    lines = [own(k // 2) if k % 2 else fake for k in range(60)]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["line_no"].to_list() == list(range(2, 61, 2))


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("size", [12, 300])
def test_an_object_in_a_plain_log_is_not_its_own(n, size, tmp_path):
    """Somebody printed it; Docker's own lines say the stream and the time as well."""
    lines = [own(k) for k in range(size)]
    for k in range(n):
        lines.insert(3 + 2 * k, json.dumps({"log": own(7)}))
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(size))
    assert coverage.lines_unrecognised == n


@pytest.mark.parametrize("first", ["plain", "Docker's"])
def test_a_log_that_docker_wrote_in_part(first, tmp_path):
    def docker(line):
        return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": f"{utc(0)}.1Z"})

    for n in (1, 6, 3000):
        wraps = [str] * n + [docker] * 6
        wraps = wraps if first == "plain" else wraps[::-1]
        text = "".join(wrap(own(k)) + "\n" for k, wrap in enumerate(wraps))
        frames, coverage, _ = read(tmp_path, text)
        assert frames.batch["queue_req"].to_list() == list(range(n + 6))
        assert coverage.lines_unrecognised == 0


def test_a_log_of_objects_of_a_line_each(tmp_path):
    frames, _, _ = read(tmp_path, "".join(json.dumps({"log": own(k)}) + "\n" for k in range(60)))
    assert frames.batch["queue_req"].to_list() == list(range(60))


@pytest.mark.parametrize("other", ["{}", "sglang-1  | {}", "<14>Nov 20 10:00:00 gpu-7 sglang: {}"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_log_that_two_collectors_wrote(other, end, tmp_path):
    halves = (
        [f"team-a sglang-0 server {own(k)}" for k in range(20)],
        [other.format(own(k)) for k in range(20, 60)],
    )
    first, last = halves if end == "last" else halves[::-1]
    frames, coverage, _ = read(tmp_path, "\n".join((*first, *last)) + "\n")
    assert sorted(frames.batch["queue_req"].to_list()) == list(range(60))
    assert coverage.lines_unrecognised == 0


#: What the second collector puts around each line.
OTHERS = {
    "compose": "sglang-1  | {}",
    "stern": "team-a sglang-0 server {}",
    "JSON": '{{"event": "{}", "level": "info"}}',
    "epoch": "1763604000.25 {}",
    "CSV": '"gpu-7","{}",7',
}


def parsed(path, block_size):
    parser = Parser()
    (source,) = open_sources([str(path)])
    parts = list(parser.read(source, block_size=block_size))
    return pl.concat([part.batch for part in parts]), parser.coverage()


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("first", ["plain", "srun"])
def test_a_wrapper_that_changes_far_behind_the_head(other, first, tmp_path):
    """2,000 lines are 300 KB; the rest is read, but for what stands among other lines."""
    before = {"plain": "{}", "srun": "3: {}"}[first]
    old, new = 2000, 60
    lines = [before.format(own(k)) for k in range(old)]
    lines[1800:1800] = [OTHERS[other].format(own(7))] * 300  # somebody's text
    lines += [OTHERS[other].format(own(k)) for k in range(old, old + new)]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    for block_size in (1 << 18, 10_000, 1 << 22):
        batch, coverage = parsed(path, block_size)
        assert batch["queue_req"].to_list() == list(range(old + new))
        assert batch["line_no"].is_sorted()
        assert coverage.lines_unrecognised == 300


def test_collectors_that_take_turns(tmp_path):
    """Each wrote far more lines in a row than anybody quotes."""
    wraps = ["{}", *OTHERS.values()] * 2
    lines = [wrap.format(own(k)) for n, wrap in enumerate(wraps) for k in range(2000)]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["line_no"].to_list() == list(range(1, len(lines) + 1))
    assert coverage.lines_unrecognised == 0


def test_quotes_in_a_row_stay_quotes(tmp_path):
    """Fewer than eight at the end, or any number that the server's own lines follow."""
    lines = [own(k) for k in range(3000)]
    lines[2900:2900] = [OTHERS["compose"].format(own(7))] * 350
    lines += [OTHERS["stern"].format(own(7))] * 7
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(3000))
    assert coverage.lines_unrecognised == 357


def test_what_stands_far_before_the_first_statistics(tmp_path):
    """How records are written is not told by then: what is read does not depend on blocks."""
    ready = "sglang-1  | [2026-11-20 09:00:00] The server is fired up and ready to roll!"
    noise = "".join(f"loading shard {k:06d}, of {'many ' * 20}\n" for k in range(50_000))
    assert len(noise) > 5 << 20
    path = tmp_path / "server.log"
    path.write_text(ready + "\n" + noise + "".join(own(k) + "\n" for k in range(60)))
    for block_size in (1 << 18, 1 << 24):
        (source,) = open_sources([str(path)])
        parts = list(Parser().read(source, block_size=block_size))
        assert pl.concat([part.event for part in parts])["kind"].to_list() == ["ready"]
        assert sum(len(part.batch) for part in parts) == 60


#: What others put around line k of a log that was copied or collected.
COPIES = {
    "less -N": lambda k, line: f"{k + 1:7d} {line}",
    "cat -n": lambda k, line: f"{k + 1:6d}\t{line}",
    "grep -n": lambda k, line: f"{k + 1}:{line}",
    "HTML": lambda k, line: ("<pre>" if not k else "") + html.escape(line),
    "HTML, a tag around each": lambda k, line: f"<div>{html.escape(line)}</div>",
    "Markdown": lambda k, line: ("```text" if not k else "") + line,
    "a quote": lambda k, line: f"> {line}",
    "an indent": lambda k, line: f"    {line}",
    "journalctl -o short-monotonic": lambda k, line: (
        f"[{1234 + k:5d}.123456] gpu-7 sglang[42]: {line}"
    ),
    "RFC 5424 with a mark": lambda k, line: f"<14>1 {utc(k)}Z gpu-7 sglang 42 - - \ufeff{line}",
    "Ray": lambda k, line: f"(Engine pid=42) {line} [repeated 3x across cluster]",
    "Ray, coloured": lambda k, line: (
        f"\x1b[36m(Engine pid=42)\x1b[0m {line}\x1b[32m [repeated 2x across cluster]\x1b[0m"
    ),
    "gh run view": lambda k, line: f"build\tRun server\t{utc(k)}.1234567Z {line}",
    "ts in brackets": lambda k, line: f"[{utc(k, '%Y-%m-%d %H:%M:%S')}] {line}",
    "grep of several files": lambda k, line: f"logs/server.log:{k + 1}:{line}",
    "RFC 5424 with elements": lambda k, line: (
        f'<14>1 {utc(k)}Z gpu-7 sglang 42 - [meta n="{k}"][origin ip="10.0.0.1"] {line}'
    ),
    "a bar behind": lambda k, line: f"{line}Capturing batches: 5%|█▏  | 2/35 [00:01<00:16]",
}


def test_a_long_line_without_its_end_is_no_part_of_dockers(tmp_path):
    """Docker cuts at 16 KiB; a shipper leaves the line end out of any line."""
    args = f"ServerArgs(model_path='{'m' * 20_000}')"
    said = [f"[{at(0)}] server_args={args}", *map(own, range(1, 30))]
    lines = [json.dumps({"message": line, "stream": "stderr"}) for line in said]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.startup["args_text"].to_list() == [args]
    assert frames.batch["queue_req"].to_list() == list(range(1, 30))


@pytest.mark.parametrize("width", [95, 160])
def test_a_fold_shows_in_the_lines_before_statistics_and_where_few_are_long(width, tmp_path):
    """A screen as wide as most statistics; what follows a fold may be cut inside its label."""
    pool = f"[{at(0)} TP0] KV Cache is allocated. #tokens: 159277, K size: 51.44 GB, V size: "
    said = [pool + "51.44 GB", *map(own, range(1, 40))]
    said[5:5] = [own(5).replace("#running-req: 105", "#running-req: 1000000000005")] * 3
    text = "".join(line[k : k + width] + "\n" for line in said for k in range(0, len(line), width))
    assert any(len(line) > width for line in said)
    frames, coverage, _ = read(tmp_path, text)
    assert len(frames.batch) == 39 + 3
    assert frames.startup["v_size_gb"].to_list() == [51.44]
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_a_return_before_the_last_access_line(tmp_path):
    lines = [own(1), f"\r{access(2)}"]
    frames, _, _ = read(tmp_path, "".join(f"{line}\r\n" for line in lines))
    assert frames.request["line_no"].to_list() == [2]


@pytest.mark.parametrize("copy", COPIES)
def test_a_copied_log_says_what_the_log_said(copy, tmp_path):
    """Lines before the first statistics and of a logger of one's own, with all that they tell."""
    args = """ServerArgs(model_path='/m', json_model_override_args='{"a": 1}')"""
    said = [
        f"[{at(0)} TP0] Load weight begin. avail mem=61.37 GB",
        f"[{at(1)}] server_args={args}",
        *map(own, range(2, 50)),
        f'[{at(50)}] INFO:     10.0.0.7:512 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        f"{at(51)},921 | INFO     | sglang.srt.managers.scheduler:241 | {body(51)}",
    ]
    plain, _, _ = read(tmp_path, "\n".join(said) + "\n", "all")
    lines = [COPIES[copy](k, line) for k, line in enumerate(said)]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n", "all")
    assert frames.startup["line_no"].to_list() == [1, 2]
    assert frames.startup["args_text"].to_list()[1] == args
    assert frames.batch["queue_req"].to_list() == [*range(2, 50), 51]
    assert frames.request["line_no"].to_list() == [51]
    assert coverage.lines_unrecognised == 0
    for name in ("time", "tp_rank", "release_lo", "release_hi"):
        assert frames.batch[name].to_list() == plain.batch[name].to_list()


def test_numbers_before_some_lines_are_no_count(tmp_path):
    lines = [f"{7 if k == 20 else k + 1}: {own(k)}" for k in range(40)]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["stream"].to_list() == [f"{7 if k == 20 else k + 1}" for k in range(40)]


def test_damaged_bytes_before_a_message(tmp_path):
    text = "".join(own(k) + "\n" for k in range(40)).encode()
    frames, coverage, _ = read(tmp_path, text.replace(b"] Decode", b"] \xff\xfeDecode", 3))
    assert frames.batch["queue_req"].to_list() == list(range(40))
    assert coverage.lines_unrecognised == 0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda k, line: line,
        lambda k, line: f"sglang-1  | {line}",
        lambda k, line: f'<14>1 {utc(k)}Z gpu-7 sglang 42 - [meta sequenceId="{k}"] {line}',
        lambda k, line: f'{utc(k)}Z {{container="server", pod="s-0"}} {line}',
        lambda k, line: f"(Engine pid=7) {line}\x1b[32m [repeated 2x across cluster]\x1b[0m",
        lambda k, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": utc(k)}),
        lambda k, line: json.dumps({"log": json.dumps({"message": line}) + "\n"}),
        lambda k, line: json.dumps({"id": k, "attributes": {"content": {"message": line}}}),
        lambda k, line: json.dumps({"streams": [{"stream": {}, "values": [[f"{k}", line]]}]}),
        lambda k, line: '"gpu-7","' + line.replace('"', '""') + '",7',
    ],
)
def test_json_in_a_prompt_ends_no_request(wrap, tmp_path):
    """Prompts hold objects with lines as a collector writes them, as their last word or not."""
    fake = json.dumps({"message": own(900), "pod": "s-0", "timestamp": f"{utc(0)}Z"})
    requests = (
        f"Receive: obj=GenerateReqInput(rid='a', text={fake!r}, sampling_params={{}})",
        f"Finish: obj=GenerateReqInput(rid='a', text={fake!r}), out={{'meta_info': {{}}}}",
        f"Receive OpenAI: obj={{'messages': [{{'role': 'user', 'content': {fake!r}}}]}}",
    )
    said = [line for k in range(60) for line in (own(k), f"[{at(k)}] {requests[k % 3]}")]
    text = "\n".join(wrap(k, line) for k, line in enumerate(said)) + "\n"
    for kept in ("errors", "all"):
        frames, coverage, _ = read(tmp_path, text, kept)
        assert frames.batch["queue_req"].to_list() == list(range(60))
        assert coverage.lines_unrecognised == 0


@pytest.mark.parametrize(
    "wrap", [str, "sglang-1  | {}".format, "team-a sglang-0 server {}".format]
)
@pytest.mark.parametrize("size", [3, 20, 600])
@pytest.mark.parametrize(
    "fake",
    [
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": utc(0)}),
        lambda line: json.dumps({"event": line, "level": "info"}),
        lambda line: f"sglang-9  | {line}",
        lambda line: f"9: {line}",
    ],
)
def test_a_raw_prompt_of_another_logs_lines(wrap, size, fake, tmp_path):
    """As releases up to 0.4.1.post4 print it: line by line, in the middle or at the end."""
    prompt = "\n".join(fake(own(k)) for k in range(900, 900 + size))
    call = f'Receive: obj=GenerateReqInput(rid="a", text="{prompt}", stream=False)'
    said = [own(k) for k in range(2000)]
    said += [f"[{at(0)}] {call}"]
    said[1500:1500] = [f"[{at(0)}] {call}", f"[{at(0)}] Finish: obj={call[13:]}, out={{}}"]
    lines = [wrap(line) for text in said for line in text.split("\n")]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(2000))
    assert coverage.lines_unrecognised == 0


@pytest.mark.parametrize("wrap", [str, "sglang-1  | {}".format, lambda x: json.dumps({"log": x})])
def test_braces_in_a_prompt_open_no_request(wrap, tmp_path):
    prompts = ("it's {x}", "{x}", '{"x": "y"}', 'say "it\'s {x}"')
    said = [
        line
        for k in range(60)
        for line in (
            own(k),
            f"[{at(k)}] Receive: obj=GenerateReqInput(text={prompts[k % 4]!r}, rid='a')",
            f"[{at(k)}] Receive: obj=GenReq(text={prompts[k % 4]!r}), headers={{'a': 1}}",
            f"[{at(k)}] Finish: obj=GenerateReqInput(text={prompts[k % 4]!r}), out={{'a': 1}}",
        )
    ]
    frames, _, _ = read(tmp_path, "".join(wrap(line) + "\n" for line in said))
    assert frames.batch["queue_req"].to_list() == list(range(60))


@pytest.mark.parametrize(
    ("header", "hosts"),
    [
        ("time,host,message", 1),
        (",time,host,message", 1),  # a table of pandas
        ("time (UTC),cpu%,ComputerName,message", 1),
        ("Starting on the server, please wait", 0),
        ("Starting on the server, see the log", 0),
        ("host='0.0.0.0', port=30000, message='hello'", 0),
    ],
)
def test_a_header_names_the_line_and_its_writer_and_is_no_sentence(header, hosts):
    table = tables.table_of(header)
    assert (list(table.writers.values()) if table else []) == ["host"] * hosts


def test_what_is_no_name_is_no_writer():
    table = tables.table_of("server,message")
    assert list(table.writer_cells('gpu-1,"a, b"')) == [("host", 0, 5)]
    assert (
        list(table.writer_cells("[2026-02-24 11:30:00 TP0] Decode batch, #running-req: 4")) == []
    )


@pytest.mark.parametrize("length", range(400, 430))
def test_a_request_is_whole_wherever_its_tail_is_cut(length, tmp_path):
    prompt = '{"a": "b"}' * length
    request = f"[2026-02-24 12:00:00] Receive: obj=GenerateReqInput(rid='1', text='{prompt}')"
    line = (
        "[2026-02-24 12:00:01 TP0] Decode batch, #running-req: 3, #token: 30, token usage: 0.10, "
    )
    line += "cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0"
    log = "".join(
        json.dumps({"log": text + "\n", "stream": "stderr", "time": "2026-02-24T12:00:00Z"}) + "\n"
        for text in (line, request, line, line, request, line)
    )
    assert len(read(tmp_path, log)[0].batch) == 4


@pytest.mark.parametrize("wrap", [str, "sglang-1  | {}".format])
@pytest.mark.parametrize("n_access", [0, 400])
def test_a_request_that_is_not_kept_ends_the_traceback_above_it(wrap, n_access, tmp_path):
    """The lines of many access lines are hopped over, those of few are split."""
    said = [f'[{at(0)}] INFO:     10.0.0.1:4000 - "GET /health HTTP/1.1" 200 OK'] * n_access
    said += [
        f"[{at(1)} TP0] Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "ValueError: no",
        f"[{at(2)}] Receive: obj=GenerateReqInput(rid='1', text='hello')",
        "a line of nobody's",
        own(3),
    ]
    frames, coverage, _ = read(tmp_path, "".join(wrap(line) + "\n" for line in said))
    assert frames.event["kind"].to_list() == ["traceback"]
    assert frames.event["traceback"][0].endswith("ValueError: no")
    assert (coverage.lines_known, coverage.lines_total) == (n_access + 5, n_access + 6)
    assert coverage.by_kind["request_log"] == 1


def test_a_record_behind_a_return_is_not_lost_with_the_request_before_it(tmp_path):
    request = f"[{at(0)}] Receive: obj=GenerateReqInput(rid='1', text='hello')"
    text = "".join(f"{request}\r{own(k)}\n" for k in range(60))
    for kept in ("errors", "all"):
        frames, _, _ = read(tmp_path, text, kept)
        assert frames.batch["queue_req"].to_list() == list(range(60))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "t"}),
        lambda line: line[:160],
        lambda line: f"{line}\tgpu-7",
        lambda line: f"{line},gpu-7",
        lambda line: f"| {line} | gpu-7 |",
        lambda line: f'msg="{line}" host=gpu-7',
        lambda line: f"<td>{line}</td><td>gpu-7</td>",
    ],
)
@pytest.mark.parametrize("prompt", ["hello " * 40, "it's " * 40, "a (b" * 40])
def test_a_request_in_reprs_never_hides_the_lines_below_it(wrap, prompt, tmp_path):
    """It was cut, or something stands behind it: Python's repr has no line end in it."""
    said = [
        line
        for k in range(60)
        for line in (own(k), f"[{at(k)}] Receive: obj=GenReq(rid='1', text={prompt!r}, stream=0)")
    ]
    for kept in ("errors", "all"):
        frames, _, _ = read(tmp_path, "".join(wrap(line) + "\n" for line in said), kept)
        assert frames.batch["running_req"].to_list() == [100 + k for k in range(60)]


def test_a_record_behind_a_return_is_read_once(tmp_path):
    """In a log with carriage returns before its line ends, too."""
    request = f"[{at(0)}] Receive: obj=GenerateReqInput(rid='1', text='hello')"
    frames, _, _ = read(tmp_path, "".join(f"{request}\r{own(k)}\r\n" for k in range(60)))
    assert frames.batch["queue_req"].to_list() == list(range(60))


@pytest.mark.parametrize(
    "before", ["host=gpu-7 user=bob ip=10.0.0.1 ", '{instance="gpu-7:9090", user="bob"} ']
)
def test_a_label_with_a_users_name_announces_no_text(before, tmp_path):
    frames, _, _ = read(tmp_path, "".join(f"{before}{own(k)}\n" for k in range(60)))
    assert frames.batch["queue_req"].to_list() == list(range(60))


def test_records_of_json_with_nothing_between_them(tmp_path):
    records = [json.dumps({"log": own(k) + "\n", "stream": "stderr"}) for k in range(200)]
    frames, _, _ = read(tmp_path, "".join(records))
    assert frames.batch["queue_req"].to_list() == list(range(200))


#: name: record k of a log that nothing parts from the one behind it
GLUED_RECORDS = {
    "Docker": lambda k: json.dumps({"log": own(k) + "\n", "stream": "stderr"}),
    "loguru": lambda k: json.dumps(
        {"text": f"{utc(0)} | {own(k)}\n", "record": {"message": own(k), "process": {"id": 22026}}}
    ),
    "CSV": lambda k: f'{utc(0)}Z,"{own(k)}",gpu-7',
    "pairs": lambda k: f'level=info msg="{own(k)}" pod=s-0',
    "promtail": lambda k: f'{utc(0)}Z\t{{app="s", pod="s-0"}}\t{own(k)}',
}
SERVED = 'INFO:     10.0.0.7:5 - "POST /generate HTTP/1.1" 200 OK'


@pytest.mark.parametrize("record", GLUED_RECORDS.values(), ids=GLUED_RECORDS)
@pytest.mark.parametrize("every", [1, 2, 5, 59])
def test_records_of_any_form_glued_to_another(record, every, tmp_path):
    """To an access line, or to one of their own kind."""
    own_kind = "".join(record(k) + "\n" * (k % every != 0) for k in range(60)) + "\n"
    access = "".join(SERVED * (k % every == 0) + record(k) + "\n" for k in range(60))
    for text in (own_kind, access):
        frames, coverage, _ = read(tmp_path, text)
        assert frames.batch["queue_req"].to_list() == list(range(60))
        assert coverage.lines_unrecognised == 0


#: What collectors, terminals and hands leave of a line, or put around it.
CUTS = {
    "cut": lambda line: line[:160],
    "a terminal's colours": lambda line: f"\x1b[32m{line[:160]}\x1b[0m\r",
    "compose": lambda line: f"sglang-1  | {line[:160]}",
    "Docker": lambda line: json.dumps({"log": line[:160] + "\n", "stream": "stderr"}),
    "colours, not cut": lambda line: f"\x1b[32m{line}\x1b[39m\x1b[K",
    "Docker's terminal, not cut": lambda line: json.dumps(
        {"log": f"\x1b[32m{line}\x1b[0m\r\n", "stream": "stdout"}
    ),
    "pairs, not cut": lambda line: f"level=info msg={json.dumps(line)} pod=s-0",
    "AWS, not cut": lambda line: f"EVENTS\t{epoch(0)}123\t{line}\t{epoch(1)}123",
}


@pytest.mark.parametrize("wrap", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("prompt", ["it's 7, isn't it? " * 20, "it's {7} (" * 40])
@pytest.mark.parametrize("first", [own, lambda k: old(k) + "\n" + plain_request(k)])
def test_an_apostrophe_in_a_request_hides_no_line(wrap, prompt, first, tmp_path):
    """Python's repr quotes such a prompt as releases up to 0.4.1.post4 quote all of them."""
    call = f"Receive: obj=GenerateReqInput(text={prompt!r}, input_ids=None, rid='a', stream=False)"
    said = [line for k in range(60) for line in (*first(k).split("\n"), f"[{at(k)}] {call}")]
    frames, _, _ = read(tmp_path, "".join(wrap(line) + "\n" for line in said))
    assert frames.batch["running_req"].to_list() == [100 + k for k in range(60)]


def old(k):
    """A line as releases print it that print prompts raw, and many later ones, too."""
    return own(k).replace("batch, ", "batch. ").replace("cuda graph: True, ", "")


def plain_request(k):
    return f"[{at(k)}] Receive: obj=GenerateReqInput(text='hello', input_ids=None, rid='{k}')"


#: What shows a raw prompt line by line.
RAW = {
    "nothing": lambda line: line,
    "a terminal": lambda line: f"\x1b[32m{line}\x1b[0m\r",
    "Docker": lambda line: json.dumps({"log": line + "\n", "stream": "stderr"}),
    "Docker's terminal": lambda line: json.dumps(
        {"log": f"\x1b[32m{line}\x1b[0m\r\n", "stream": "stdout"}
    ),
    "JSON over lines": lambda line: json.dumps({"_PID": "7", "MESSAGE": line, "x": 1}, indent=2),
    "pairs": lambda line: f"level=info msg={json.dumps(line)} pod=s-0",
    "CSV": lambda line: f'{utc(0)}Z,"' + line.replace('"', '""') + '",gpu-7',
    "tabs": lambda line: f"{utc(0)}Z\t{line}\tgpu-7",
    "HTML": lambda line: f"<li>{html.escape(line)}</li>",
}


@pytest.mark.parametrize("wrap", RAW.values(), ids=RAW)
@pytest.mark.parametrize(
    "text", ["f(x')\n{0}\n", "print:\n{0}\n{0}\nbye", '{{"a": "{0}"}}\n{0}', "a\n\\'\\\n{0}\\"]
)
def test_a_raw_prompt_and_a_raw_answer_are_hidden_to_their_ends(wrap, text, tmp_path):
    """As 0.4.1 to 0.4.1.post4 print a request, and what they answer."""
    said = text.format(old(900))
    call = f'GenerateReqInput(text="{said}", input_ids=None, sampling_params={{n: 1}}, rid="a")'
    answer = f'{{text: "{said}", meta_info: {{id: "a", prompt_tokens: 5}}}}'
    lines = [
        line
        for k in range(40)
        for one in (
            old(k),
            f"[{at(k)}] Receive: obj={call}",
            f"[{at(k)}] Finish: obj={call}, out={answer}",
        )
        for line in one.split("\n")
    ]
    frames, coverage, _ = read(tmp_path, "".join(wrap(line) + "\n" for line in lines))
    assert frames.batch["queue_req"].to_list() == list(range(40))
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


def test_a_return_in_a_raw_prompt_begins_no_line(tmp_path):
    call = f'Receive: obj=GenerateReqInput(text="a\r{old(900)}\r\nb", rid="a", stream=False)'
    said = [line for k in range(40) for line in (old(k), f"[{at(k)}] {call}")]
    frames, _, _ = read(tmp_path, "\n".join(said) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(40))


def test_a_traceback_on_a_terminal_of_dockers(tmp_path):
    """`docker run -t`: colours, and a return before each line end."""
    said = [*map(own, range(12)), f"[{at(12)} TP0] {TRACE[0]}", *TRACE[1:], own(13)]
    lines = [
        json.dumps({"log": f"\x1b[32m{line}\x1b[0m\r\n", "stream": "stdout"}) for line in said
    ]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.event["kind"].to_list() == ["exception"]
    assert TRACE[3] in frames.event["traceback"][0]
    assert frames.batch["queue_req"].to_list() == [*range(12), 13]


#: What stands before a line, of a wrapper that is known or not.
BEFORE = {
    "stern": "sglang-7d9f8b6c5-x2x9k server ",
    "stern, namespaces": "team-a sglang-0 server ",
    "grep": "/var/log/sglang/server.log:",
    "kubetail": "[sglang-7d9f8b6c5-x2x9k server] ",
    "podman": "sglang ",
    "multilog": "@4000000065f1e2001234abcd ",
    "tilt": "     sglang │ ",
    "set -x": "+ ",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("traced", [True, False])
def test_events_without_a_stamp_behind_what_stands_before_each_line(before, traced, tmp_path):
    """Releases up to 0.2.13 print none; of all, an error may stand alone."""
    statistics = [
        f"[gpu=0] Decode batch. #running-req: {k}, #token: 225, token usage: 0.10, "
        f"gen throughput (token/s): 100.00, #queue-req: {k}"
        for k in range(12)
    ]
    retract = "decode out of memory happened, #retracted_reqs: 3, #new_token_ratio: 0.4213 -> 0.9"
    said = [*statistics, retract, *(TRACE[:3] if traced else ()), TRACE[3], *statistics]
    frames, _, _ = read(tmp_path, "".join(f"{before}{line}\n" for line in said))
    assert frames.batch["queue_req"].to_list() == [*range(12), *range(12)]
    kinds = ["retract", "exception" if traced else "error"]
    assert frames.event.select("line_no", "kind").rows() == [(13, kinds[0]), (14, kinds[1])]
    assert frames.event["num_retracted_reqs"].to_list() == [3, None]
    text = frames.event["traceback" if traced else "message"][1]
    assert "out of memory" in text


def test_a_sentence_is_no_event_where_statistics_stand_alone(tmp_path):
    said = [*map(own, range(12)), f"sglang {TRACE[3]}", own(12)]
    frames, _, _ = read(tmp_path, "\n".join(said) + "\n")
    assert frames.event.is_empty()


def test_a_traceback_over_records_of_several_lines(tmp_path):
    """journalctl -o json-pretty: between the lines of a traceback stand other fields."""
    said = [*map(own, range(12)), f"[{at(12)} TP0] {TRACE[0]}", *TRACE[1:4], own(13)]
    lines = [json.dumps({"_PID": "7", "MESSAGE": line, "x": 1}, indent=2) for line in said]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.event["kind"].to_list() == ["exception", "error"]
    assert frames.event["message"].to_list()[1] == "out of memory"
    assert frames.batch["queue_req"].to_list() == [*range(12), 13]


@pytest.mark.parametrize("size", [5, 60])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "wrap", [str, lambda line: json.dumps({"log": line + "\n", "stream": "stderr"})]
)
def test_files_that_tail_printed_are_those_of_several_servers(size, end, wrap, tmp_path):
    """`tail -n 60 *.log`, and `tail -f`, which comes back to a file."""
    retract = f"[{at(60)} TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2"
    trace = [f"[{at(61)} TP0] {TRACE[0]}", *TRACE[1:-1]]
    lines = []
    for k in range(0, 60, size):
        for name in ("/var/log/my server.1", "rank-b.log"):
            lines += ["", f"==> {name} <==", *map(wrap, map(own, range(k, k + size)))]
    lines += map(wrap, [retract, *trace])
    text = end.join(lines[1:]) + end
    both = sessions(text)
    assert [data.batch["queue_req"].to_list() for data in both] == [list(range(60))] * 2
    assert [data.event["kind"].to_list() for data in both] == [[], ["retract", "exception"]]
    parser = Parser()
    frames, coverage, source = read(tmp_path, text)
    assert frames.batch["line_no"][:2].to_list() == [2, 3]
    assert source.quote([2])[2] == wrap(own(0))
    assert (coverage.lines_total, coverage.lines_unrecognised) == (len(lines) - 1, 0)
    parts = list(parser.read(source, block_size=1000))
    assert pl.concat([part.batch for part in parts]).equals(frames.batch)


def test_a_line_like_those_of_tail_in_the_middle_of_a_log_names_no_file():
    (one,) = sessions("\n".join([own(0), "==> rank-b.log <==", *map(own, range(1, 20))]) + "\n")
    assert one.batch["queue_req"].to_list() == list(range(20))


@pytest.mark.parametrize("before", ["     sglang │ ", "sglang ", "gpu7.rack3 @server "])
def test_a_first_line_without_its_start_tells_no_style(before, tmp_path):
    """`tail -c`, or a rotation in the middle of a line: what is left looks like another's line."""
    lines = [before + own(k) for k in range(20)]
    lines[0] = lines[0][len(before) + len("[2026-11-20 ") :]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(20))
    assert coverage.lines_unrecognised == 0


def test_two_records_with_labels_in_quotes_and_no_line_end_between(tmp_path):
    def labelled(k):
        return f'{utc(k)}Z {{app="sglang", pod="s-{k % 2}"}} {own(k)}'

    lines = [labelled(k) + labelled(k + 1) for k in range(0, 60, 2)]
    frames, coverage, _ = read(tmp_path, "\n".join(lines) + "\n")
    assert frames.batch["queue_req"].to_list() == list(range(60))
    assert frames.batch["stream"].to_list() == ["s-0", "s-1"] * 30
    assert coverage.lines_unrecognised == coverage.lines_partial == 0


@pytest.mark.parametrize("kept", ["errors", "all"])
@pytest.mark.parametrize("end", ["=", 'x="', "answer: x='", "data:image/png;base64,AAAA=="])
def test_a_string_that_ends_in_an_equals_sign_opens_no_prompt(end, kept, tmp_path):
    """Below such a request, and the next, stand lines of the log, and of others."""
    calls = (
        f"GenerateReqInput(rid='a', sampling_params={{'n': 1, 'stop': [{end!r}]}}, stream=True)",
        f"GenerateReqInput(text={end!r}, stream=True)",
    )
    event = json.dumps({"timestamp": utc(0), "event": "request.received", "obj": {"text": end}})
    lines = [
        line
        for k in range(60)
        for line in (
            f"[{at(k)}] Receive: obj={calls[k % 2]}",
            own(k),
            f"[{at(k)}] {event}",
            f"f({end!r}, 'model': 'm'}}",
        )
    ]
    frames, _, _ = read(tmp_path, "\n".join(lines) + "\n", kept)
    assert frames.batch["queue_req"].to_list() == list(range(60))


FAKES = {
    "a cell": lambda k: f'{utc(0)}Z,"{own(k)}","{own(900)}"',
    "a cell of cells": lambda k: f'{utc(0)}Z,"{own(k)}","{utc(0)}Z,""{own(900)}"""',
    "an object": lambda k: json.dumps({"msg": own(k), "request": {"msg": own(900)}}),
    "pairs": lambda k: f'msg="{own(k)}" prompt="{own(900)}"',
}


@pytest.mark.parametrize("record", FAKES.values(), ids=FAKES)
def test_what_stands_beside_a_record_in_its_own_object_or_row_is_no_record(record, tmp_path):
    frames, _, _ = read(tmp_path, "".join(record(k) + "\n" for k in range(60)))
    assert frames.batch["queue_req"].to_list() == list(range(60))


@pytest.mark.parametrize(
    "record",
    [
        lambda k: json.dumps({"msg": own(k)}) + "\n" + json.dumps({"messages": quoted(2)}),
        lambda k: json.dumps({"msg": own(k)}) + "\n" + json.dumps({"m": 1, "prompt": quoted(3)}),
        lambda k: json.dumps({"turns": quoted(2)}) + "\n" + json.dumps({"msg": own(k)}),
    ],
)
def test_objects_in_a_request_are_no_records_of_a_log(record, tmp_path):
    """They have the key of the log's own lines, and would be split off as its records."""
    frames, _, _ = read(tmp_path, "".join(record(k) + "\n" for k in range(60)))
    assert frames.batch["queue_req"].to_list() == list(range(60))


def quoted(n):
    return [{"msg": own(900 + k)} for k in range(n)]


@pytest.mark.parametrize("text", [json.dumps, repr])
def test_a_list_of_lines_as_it_was_printed(text, tmp_path):
    frames, coverage, _ = read(tmp_path, text([own(k) for k in range(200)]))
    assert frames.batch["queue_req"].to_list() == list(range(200))
    assert coverage.lines_unrecognised == 0
