"""What the fuzzer found: one test for each kind of fault, made by hand from the input."""

import io
import json
import struct
import zipfile

import pytest

from loganalyze import pipeline, server_args, streams
from loganalyze.parse import Parser
from loganalyze.report import to_json, to_markdown
from loganalyze.sources import open_sources

LOG = b"".join(
    b"[2026-01-05 10:00:%02d TP0] Decode batch, #running-req: %d, #token: 500, token usage: 0.50, "
    b"gen throughput (token/s): 90.00, #queue-req: 0\n" % (n, n)
    for n in range(40)
)


def zipped(*members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def lines(path, data):
    """Return {member: bytes} of a file."""
    path.write_bytes(data)
    return {s.name.partition("!")[2]: b"".join(b.data for b in s.blocks()) for s in opened(path)}


def opened(path):
    return open_sources([str(path)])


def damaged(what):
    """Return a zip archive of two logs; its second member has a fault of this kind."""
    data = bytearray(zipped(("a.log", LOG), ("b.log", LOG)))
    entry = data.rindex(b"PK\x01\x02")  # of b.log in the table of contents
    if what == "the header before it":
        at = data.rindex(b"PK\x03\x04")
        data[at : at + 4] = b"XXXX"
    elif what == "an unknown method":
        struct.pack_into("<H", data, entry + 10, 77)
    elif what == "a later version":
        struct.pack_into("<H", data, entry + 6, 255)
    elif what == "a place behind the end":
        struct.pack_into("<I", data, entry + 42, 1 << 31)
    return bytes(data)


@pytest.mark.parametrize("what", ["the header before it", "an unknown method"])
def test_a_zip_member_that_cannot_be_opened_does_not_hide_the_others(what, tmp_path):
    path = tmp_path / "logs.zip"
    assert lines(path, damaged(what)) == {"a.log": LOG, "b.log": b""}
    (lost,) = pipeline.analyze(str(path)).unreadable
    assert lost.name == f"{path}!b.log"
    assert "damaged after 0 bytes" in lost.message


@pytest.mark.parametrize("what", ["a later version", "a place behind the end"])
def test_a_zip_with_a_wrong_table_still_gives_a_log(what, tmp_path):
    assert LOG in lines(tmp_path / "logs.zip", damaged(what)).values()


def test_a_zip_member_without_a_name(tmp_path):
    data = zipped(("x", LOG))
    for at in (data.index(b"PK\x01\x02") + 28, 26):  # the lengths of its name
        data = data[:at] + b"\0\0" + data[at + 2 :]
    start = 30
    data = data[:start] + data[start + 1 :]
    assert set(lines(tmp_path / "logs.zip", data).values()) <= {LOG}


def test_a_cut_zip_whose_member_is_shorter_than_its_header_says(tmp_path):
    """Without the table the header's size is all there is; the text may not end there."""
    whole = zipped(("a.log", LOG))
    packed = struct.unpack_from("<I", whole, 18)[0]
    cut = bytearray(whole[: 35 + packed])
    struct.pack_into("<I", cut, 18, packed // 2)
    (read,) = lines(tmp_path / "logs.zip", bytes(cut)).values()
    assert read
    assert LOG.startswith(read)


def test_a_pipe_seeks_as_a_file_does(monkeypatch, tmp_path):
    """zipfile looks for the table of contents from the end, also where that is too near."""
    spool = streams.Spool(io.BytesIO(b"PK\x05\x06short").read)
    with pytest.raises(OSError, match="Invalid argument"):
        spool.open().seek(-22, io.SEEK_END)


def test_a_line_with_two_records_that_were_cut_is_one_line(tmp_path):
    start = LOG.splitlines()[0][:60]
    path = tmp_path / "server.log"
    path.write_bytes(start + start + b"\n" + LOG)
    (source,) = opened(path)
    parser = Parser()
    list(parser.read(source))
    assert parser.coverage(source).lines_unrecognised == 1


def test_an_odd_escape_in_an_argument_is_no_warning():
    """Python's compiler warns of it, and with warnings as errors refused the value."""
    assert server_args.parse(r"ServerArgs(a='\d+', b=2)") == {"a": r"\d+", "b": 2}


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "[0x" + "f" * 5000 + "]", "9" * 5000])
def test_a_number_that_python_does_not_print_stays_text(value, tmp_path):
    """As hexadecimal it is read, and then fails in every output."""
    assert server_args.parse(f"ServerArgs(tp_size={value}, b=2)") == {"tp_size": value, "b": 2}
    path = tmp_path / "server.log"
    path.write_bytes(b"server_args=ServerArgs(x=%s, b=2)\n" % value.encode() + LOG)
    assert to_json.dumps(pipeline.analyze(str(path)))


@pytest.mark.parametrize("value", [r"'\ud800'", r"{'\uDFFF': 1}", r"['\U0000d83d']"])
def test_half_of_a_surrogate_pair_stays_an_escape(value):
    """Read, it could be written neither to a page nor to a dataset."""
    assert server_args.parse(f"ServerArgs(a={value}, b='\\u00e9')") == {"a": value, "b": "é"}


TRACEBACK = (
    "[2026-01-05 10:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "\udc80.py", line 1, in f\nValueError: CUDA out of memory, \ud83d\n'
)


@pytest.mark.parametrize("text", [r"\ud800", r"'\uda'", r"x\\ud800", r"C:\users\data"])
def test_a_text_that_only_looks_like_half_of_a_pair_is_read_back(text):
    assert server_args.parse(f"ServerArgs(a={text!r}, b=2)") == {"a": text, "b": 2}


ARGUMENTS = "[2026-01-05 09:59:00] server_args=ServerArgs(model_path='\udc80')\n"


@pytest.mark.parametrize("message", [TRACEBACK, ARGUMENTS])
def test_a_json_line_with_half_of_a_surrogate_pair(message, tmp_path):
    """So Python's json writes bytes that are no UTF-8; one such line ended the whole reading."""
    path = tmp_path / "server.log"
    path.write_text(json.dumps({"log": message, "stream": "stderr"}) + "\n" + LOG.decode())
    report = pipeline.analyze(str(path))
    assert to_json.dumps(report).encode()
    assert report.coverage.lines_batch == 40
    assert report.coverage.lines_known == 41


@pytest.mark.parametrize(
    ("rate", "accepted"),
    [("9" * 40, "2.00"), ("9" * 300, "2.00"), ("9" * 300, "9" * 308 + ".00")],
    ids=["beyond an integer", "beyond a float", "beyond it on both sides"],
)
def test_a_rate_that_no_server_has_gives_a_report(rate, accepted, tmp_path):
    """The steps between two decode lines are inferred from it."""
    path = tmp_path / "server.log"
    said = f"accept len: {accepted}, gen throughput (token/s): {rate}.00"
    log = LOG.decode().replace("gen throughput (token/s): 90.00", said)
    path.write_text(log)
    report = pipeline.analyze(str(path))
    assert report.coverage.lines_batch == 40
    assert not [one for one in report.checked if one.status == "error"]


def decode(second, tokens, usage, ahead=""):
    return (
        f"[2026-01-05 10:00:{second:02d} TP0] Decode batch, #running-req: 9, #token: {tokens}, "
        f"token usage: {usage}, {ahead}gen throughput (token/s): 90.00, #queue-req: 3\n"
    )


def prefill(second, new, cached):
    return (
        f"[2026-01-05 10:00:{second:02d} TP0] Prefill batch, #new-seq: 1, #new-token: {new}, "
        f"#cached-token: {cached}, token usage: 1.00, #running-req: 9, #queue-req: 3\n"
    )


DAMAGED = {
    # A share of a pool that would be minus infinity.
    "tokens below zero": "".join(
        decode(k, -1, "0.00", "pre-allocated usage: 0.13, #prealloc-req: 0, #transfer-req: 0, ")
        for k in range(40)
    ),
    # Shares of a prompt of no tokens.
    "prompts of nothing": "".join(
        decode(k, 9000, "1.00") + prefill(k, 1, -1) + prefill(k, 1, -1) for k in range(40)
    ),
    # A rank without a time, and months of idleness on another one, of one cell.
    "a rank without a time": (
        "[9999-12-31 23:59:59 DP1 TP1] Prefill batch, #new-seq: 4, #new-token: 4096, "
        "#cached-token: 12288, token usage: 0.07, #running-req: 5, #queue-req: 3\n"
        * 4
        + "[2026-01-05 10:00:01] Decode batch. #running-req: 0, #token: 0, token usage: 0.00, "
        "gen throughput (token/s): 7.38, #queue-req: 0\n"
        "[2026-03-29 02:30:00] Decode batch, #running-req: 159700, #token: 109110, token usage: "
        "0.24, gen throughput (token/s): nan, #queue-req: 7\n"
    ),
}


@pytest.mark.parametrize("log", DAMAGED.values(), ids=DAMAGED)
def test_damaged_counts_fail_no_rule_and_no_form(log, tmp_path):
    path = tmp_path / "server.log"
    path.write_text(log)
    report = pipeline.analyze(str(path))
    assert not [one for one in report.checked if one.status == "error"]
    assert "Infinity" not in to_json.dumps(report)
    to_markdown.render(report)
