"""Whatever a collector puts around a line reaches no output: a host has any key, any column."""

import json
import re
from datetime import datetime, timedelta

import pytest

from loganalyze import api, export, lines, pipeline

START = datetime(2026, 11, 20, 10, 0, 0)
#: An ordinary word, which no pattern takes for a host.
HOST = "athena"
TRACE = (
    "Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/sgl/scheduler.py", line 1, in run',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
)
SIGQUIT = "Received sigquit from a child process. It usually means the child failed."


def at(k):
    return (START + timedelta(seconds=k)).strftime("%Y-%m-%d %H:%M:%S")


def decode(k, rest=""):
    return (
        f"[{at(k)} TP0] Decode batch, #running-req: 30, #token: 95000, token usage: 0.98, "
        f"cuda graph: True, gen throughput (token/s): 3000.25, #queue-req: {40 + k}{rest}"
    )


#: What a server says: statistics, one of them with words that nobody knows, and its end.
SAID = [
    *map(decode, range(60)),
    decode(60, ", #odd thing: words"),
    decode(61)[:70],
    f"[{at(62)} TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
    "#new_token_ratio: 0.4213 -> 0.9871",
    f"[{at(63)} TP0] {TRACE[0]}",
    *TRACE[1:],
    f"[{at(64)}] {SIGQUIT}",
]


def cell(line):
    return '"' + line.replace('"', '""') + '"'


def beside(**more):
    return lambda line: json.dumps({"log": line, **more})


#: name: first lines, and what is around each line.
AROUND = {
    "a column": ("time,host,message", lambda x: f"{at(0)},{HOST},{cell(x)}"),
    "blanks": ("time, host, message", lambda x: f"{at(0)}, {HOST}, {cell(x)}"),
    "a column without a name": ("", lambda x: f"{at(0)},{HOST},{cell(x)}"),
    "a last column": ("time,message,host", lambda x: f"{at(0)},{cell(x)},{HOST}"),
    "without quotes": ("time,message,host", lambda x: f"{at(0)},{x},{HOST}"),
    "tabs": ("time\tmessage\thost", lambda x: f"{at(0)}\t{x}\t{HOST}"),
    "semicolons": ("# x\nsep=;\ntime;message;host", lambda x: f"{at(0)};{x};{HOST}"),
    "psql": (" message | host\n---------+------", lambda x: f" {x} | {HOST}"),
    "Markdown": ("| host | message |\n|---|---|", lambda x: f"| {HOST} | {x} |"),
    "a key": ("", beside(fqdn=HOST)),
    "keys in objects": ("", beside(beat={"origin": HOST}, ecs={"task": HOST})),
    "labels": ("", lambda x: f'{{app="x", rack="{HOST}", instance="{HOST}:80"}} {at(0)}Z {x}'),
    "RFC 5424": ("", lambda x: f'<14>1 2026-11-20T10:00:00Z {HOST} a 4 - [x@1 o="{HOST}"] {x}'),
    "an unknown wrapper": ("", lambda x: f"<{HOST}> {x}"),
    "logfmt": ("", lambda x: f"rack={HOST} msg={cell(x)} site={HOST}"),
    "structlog": ("", lambda x: f"{x} site={HOST}"),
    "zap": ("", lambda x: f'{x} {{"site": "{HOST}"}}'),
    "HTML": ("<table>", lambda x: f"<tr><td>{x}</td><td>{HOST}</td></tr>"),
    "OpenTelemetry": ("", lambda x: f"Body: Str({x}) host.name: Str({HOST})"),
    "brackets behind": ("", lambda x: f"{x} [{HOST}] (10.1.2.3)"),
    "dashes behind": ("", lambda x: f"{x} -- {HOST} user"),
    "compose": ("", lambda x: f"{HOST}-1  | {x}"),
    "compose, glued": ("", lambda x: f"{HOST}-1  | {x}" + f"{HOST}-1  | {x}" * ("] D" in x)),
}


@pytest.mark.parametrize(
    "rest", ["", "%", " ms", ", odd: [1, 2]", ", #odd thing: words", ". x: 1"]
)
@pytest.mark.parametrize("behind", [f" {HOST}", f"</b> {HOST}", f" - {HOST}", f" ({HOST}, x)"])
def test_statistics_end_with_a_number_or_go_on_with_a_name(rest, behind):
    assert lines.own_words(decode(0, rest)) == decode(0, rest)
    if rest in ("", " ms"):
        assert lines.own_words(decode(0, rest + behind)) == decode(0)


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around_a_line_reaches_no_output(name, tmp_path):
    head, wrap = AROUND[name]
    path = tmp_path / "server.log"
    path.write_text("\n".join([head, *map(wrap, SAID)]) + "\n")
    report = pipeline.analyze(str(path))
    assert report.verdict.primary is not None
    quotes = [e.quote for f in report.findings for e in f.evidence if e.quote]
    assert any("#queue-req: 4" in quote for quote in quotes)
    samples = report.coverage.samples
    if report.coverage.lines_partial < 60 and "glued" not in name:  # else others are shown
        assert any("#odd thing: words" in sample.text for sample in samples)
    shown = [f(report) for f in (api.to_json, api.to_text)]
    for frame in ("batch", "event", "startup", "request"):
        target = tmp_path / f"{frame}.csv"
        export.write([str(path)], target, frame=frame, form="csv")
        shown.append(target.read_text())
    assert [hit for text in shown for hit in re.findall(f".*{HOST}.*", text)] == []
