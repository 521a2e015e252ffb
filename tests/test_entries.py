"""Answers of log stores: each record on several lines, or its writer said once for many.

Two servers write in turns; every form must give each its own rows, on the lines of their texts.
"""

import json
import struct

import polars as pl
import pytest

from loganalyze.entries import gathered
from loganalyze.parse import Parser
from loganalyze.sources import Block, open_sources

#: Server, second, running requests: odd and even, so that a mix shows.
SAID = [(k % 2, k, 20 + k) for k in range(24)]


def line_of(server, second, running):
    return (
        f"[2026-11-20 10:00:{second:02d} TP0] Decode batch, #running-req: {running}, "
        f"#token: {running * 1000}, token usage: 0.50, cuda graph: True, "
        f"gen throughput (token/s): 100.00, #queue-req: {server}"
    )


def gcloud(server, text):
    labels = {"container_name": "sglang", "namespace_name": "ns", "pod_name": f"sglang-{server}"}
    return {
        "insertId": f"1x{server}y",
        "resource": {"labels": labels, "type": "k8s_container"},
        "severity": "ERROR",
        "textPayload": text,
        "timestamp": "2026-11-20T10:00:00.1Z",
    }


def elastic(server, text):
    kubernetes = {"pod": {"name": f"sglang-{server}"}, "container": {"name": "sglang"}}
    return {"_index": "logs", "_source": {"message": text, "kubernetes": kubernetes}}


def journal(server, text):
    return {
        "__CURSOR": f"s=1;i={server}",
        "_PID": str(100 + server),
        "_SYSTEMD_UNIT": f"sglang{server}.service",
        "MESSAGE": text,
        "_HOSTNAME": "gpu-1",
    }


def otel(server, texts):
    attributes = [
        {"key": "k8s.container.name", "value": {"stringValue": "sglang"}},
        {"key": "k8s.pod.name", "value": {"stringValue": f"sglang-{server}"}},
    ]
    records = [{"timeUnixNano": "1795169400000000000", "body": {"stringValue": t}} for t in texts]
    return {
        "resource": {"attributes": attributes},
        "scopeLogs": [{"scope": {}, "logRecords": records}],
    }


TEXTS = [(server, line_of(server, second, running)) for server, second, running in SAID]
PER_SERVER = [[text for server, text in TEXTS if server == s] for s in (0, 1)]
LOKI = {
    "status": "success",
    "data": {
        "result": [
            {
                "stream": {"container": "sglang", "pod": f"sglang-{server}"},
                "values": [["1795169400000000000", text] for text in PER_SERVER[server]],
            }
            for server in (0, 1)
        ]
    },
}
OTEL = {"resourceLogs": [otel(server, PER_SERVER[server]) for server in (0, 1)]}


def amazon():
    events = [
        {"logStreamName": f"pod-{server}/sglang/ab{server}", "message": text, "timestamp": 1795}
        for server, text in TEXTS
    ]
    return {"events": events, "searchedLogStreams": []}


def insights():
    rows = [
        {"@message": text, "@logStream": f"pod-{server}/sglang/ab{server}", "@ptr": "Cm8"}
        for server, text in TEXTS
    ]
    cells = [[{"field": k, "value": v} for k, v in row.items()] for row in rows]
    return {"results": cells, "status": "Complete"}


def export(server, text):
    fields = journal(server, text)
    return "".join(f"{key}={value}\n" for key, value in fields.items()) + "\n"


def verbose(server, text):
    fields = journal(server, text)
    del fields["__CURSOR"]
    head = "Fri 2026-11-20 10:00:00.123456 UTC [s=1;i=2;b=3;m=4]\n"
    return head + "".join(f"    {key}={value}\n" for key, value in fields.items())


def yaml(server, text, wanted):
    """Print as PyYAML does: a long text is folded before the word that is beyond column 80."""
    if wanted == "plain":
        said = [f"textPayload: '{text}'"]
    else:
        quote, before = {"single": ("'", ""), "double": ('"', "\\ ")}[wanted]
        said, rest = [f"textPayload: {quote}"], f"{text}{quote}"
        for word in rest.split(" "):
            if len(said[-1]) + len(word) > 80:
                said[-1] += "\\" if before else ""
                said.append(f"  {before}{word}")
            else:
                said[-1] += word if said[-1].endswith(quote) else f" {word}"
    labels = f"resource:\n  labels:\n    pod_name: sglang-{server}\n  type: k8s_container\n"
    return f"---\ninsertId: 1x{server}y\n{labels}" + "\n".join(said) + "\nseverity: ERROR\n"


FORMS = {
    "gcloud": json.dumps([gcloud(*said) for said in TEXTS], indent=2),
    "gcloud crlf": json.dumps([gcloud(*said) for said in TEXTS], indent=2).replace("\n", "\r\n"),
    "gcloud yaml": "".join(yaml(*said, "plain") for said in TEXTS),
    "gcloud yaml folded": "".join(yaml(*said, "single") for said in TEXTS),
    "gcloud yaml escaped": "".join(yaml(*said, "double") for said in TEXTS),
    "amazon": json.dumps(amazon(), indent=4),
    "amazon insights": json.dumps(insights(), indent=4),
    "elastic": json.dumps({"hits": {"hits": [elastic(*said) for said in TEXTS]}}, indent=2),
    "objects": "".join(json.dumps(elastic(*said), indent=2) + "\n" for said in TEXTS),
    "journal": "".join(json.dumps(journal(*said), indent="\t") + "\n" for said in TEXTS),
    "journal export": "".join(export(*said) for said in TEXTS),
    "journal verbose": "".join(verbose(*said) for said in TEXTS),
    "loki": json.dumps(LOKI, indent=2),
    "loki one line": json.dumps(LOKI),
    "otel": json.dumps(OTEL, indent=2),
    "otel one line": json.dumps(OTEL, separators=(",", ":")),
    "otel lines": "".join(
        json.dumps({"resourceLogs": [otel(server, [text])]}) + "\n" for server, text in TEXTS
    ),
}


def read(path, block_size=1 << 18):
    (source,) = open_sources([str(path)])
    parser = Parser()
    frames = [f.batch for f in parser.read(source, block_size=block_size)]
    return pl.concat(frames).sort("line_no"), parser.coverage(), source


@pytest.fixture
def make(tmp_path):
    def write(text):
        path = tmp_path / "answer.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize("form", FORMS)
def test_each_server_has_its_own_rows(make, form):
    rows, coverage, _ = read(make(FORMS[form]))
    got = rows.select("queue_req", "time", "running_req").sort("time").rows()
    assert [(q, t.second, n) for q, t, n in got] == SAID
    writers = rows.group_by("queue_req").agg(pl.col("stream").unique())
    streams = [s for _, (s,) in sorted(writers.rows())]
    assert len(set(streams)) == 2
    assert None not in streams
    assert coverage.lines_unrecognised == 0


@pytest.mark.parametrize("form", [form for form in FORMS if "one line" not in form])
def test_a_row_is_on_the_line_of_its_text(make, form):
    rows, coverage, _ = read(make(FORMS[form]))
    lines = FORMS[form].split("\n")
    where = [k for k, line in enumerate(lines, 1) if "#running-req: " in line]
    assert rows["line_no"].to_list() == where
    assert coverage.lines_total == len(FORMS[form].splitlines())


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_any_size_give_the_same(make, form):
    path = make(FORMS[form])
    assert read(path, block_size=700)[0].equals(read(path)[0])


@pytest.mark.parametrize("form", [form for form in FORMS if "one line" not in form])
def test_an_answer_that_was_cut_keeps_what_is_there(make, form):
    text = FORMS[form]
    cut = text[: text.rfind("#running-req: ")]
    rows, _, _ = read(make(cut))
    assert len(rows) == len(SAID) - 1


def test_a_field_with_line_ends_has_its_length_before_it(make):
    """As the journal does with colours; NUL bytes of the length are not there when it is read."""
    out = b""
    for server, text in TEXTS:
        said = f"\x1b[32m{text}\x1b[0m\n\nand more".encode()
        sized = b"MESSAGE\n" + struct.pack("<Q", len(said)) + said
        out += f"__CURSOR=s=1;i={server}\n_PID={server + 100}\n".encode() + sized + b"\n\n"
    rows, _, _ = read(make(out))
    assert rows["running_req"].to_list() == [n for _, _, n in SAID]
    assert rows["stream"].n_unique() == 2


def test_the_journal_writes_a_coloured_text_as_numbers(make):
    out = ""
    for server, text in TEXTS:
        fields = journal(server, "")
        fields["MESSAGE"] = list(f"\x1b[32m{text}\x1b[0m".encode())
        out += json.dumps(fields, indent="\t").replace('":', '" :') + "\n"
    rows, _, _ = read(make(out))
    assert rows["running_req"].to_list() == [n for _, _, n in SAID]
    assert rows["stream"].n_unique() == 2


def test_a_traceback_in_a_text_of_yaml_is_one_record(make):
    said = (
        "|-\n  [2026-11-20 10:00:30 TP0] Scheduler hit an exception: Traceback (most recent call "
        'last):\n    File "a.py", line 3, in f\n  torch.OutOfMemoryError: CUDA out of memory.\n'
    )
    document = f"---\ninsertId: 3\ntextPayload: {said}timestamp: '2026-11-20T10:00:00.1Z'\n"
    path = make(FORMS["gcloud yaml"] + document)
    (source,) = open_sources([str(path)])
    events = pl.concat([f.event for f in Parser().read(source)])
    ((kind, traceback),) = events.select("kind", "traceback").rows()
    assert kind == "exception"
    assert traceback.splitlines()[1:] == [
        '  File "a.py", line 3, in f',
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]


def test_an_entry_without_an_end_does_not_hide_the_rest(make):
    """A prompt may look like the start of one; what follows is read as it stands."""
    first = json.dumps(gcloud(*TEXTS[0]), indent=2).replace("\n", "\n  ")
    endless = '\n  {\n    "a": [' + "\n" + '      "0123456789",\n' * 80_000
    path = make("[\n  " + first + "," + endless + "\n".join(text for _, text in TEXTS))
    assert len(read(path)[0]) == 1 + len(TEXTS)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(text for _, text in TEXTS) + "\n",
        "".join(json.dumps(gcloud(*said)) + "\n" for said in TEXTS),
        json.dumps({"logs": {"sglang-0": PER_SERVER[0], "sglang-1": PER_SERVER[1]}}, indent=2),
        "---\nname: x\n" + "\n".join(text for _, text in TEXTS) + "\n",
    ],
    ids=["plain", "a line each", "lists of lines", "yaml of something else"],
)
def test_other_logs_pass_as_they_are(text):
    blocks = [Block(text.encode(), 1, text.count("\n"), len(text))]
    assert list(gathered(blocks)) == blocks
