"""Files, archives, pipes: what is read, what is refused, and in which words."""

import bz2
import gzip
import hashlib
import io
import itertools
import lzma
import os
import random
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from loganalyze import reading, streams
from loganalyze.errors import InputError
from loganalyze.guesses import guess
from loganalyze.parse import Parser
from loganalyze.sources import open_sources
from loganalyze.store import Store

lz4 = pytest.importorskip("lz4.frame")
if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LINE = (
    "[2026-11-20 10:{:02d}:{:02d} TP0] Decode batch, #running-req: {}, #token: 900000, "
    "token usage: 0.90, cuda graph: True, gen throughput (token/s): 3000.25, #queue-req: {}\n"
)


def text(n=200, start=0):
    return "".join(LINE.format(k // 60, k % 60, k, k) for k in range(start, start + n)).encode()


CODECS = {
    "gzip": gzip.compress,
    "zstd": zstd.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "bzip2": bz2.compress,
    "lz4": lz4.compress,
}


def queue(paths, **kwargs):
    """Return (source, queue_req) of every batch line, the sources, and the parser."""
    parser = Parser()
    opened = open_sources([str(p) for p in paths], **kwargs)
    rows = [
        row
        for source in opened
        for frames in parser.read(source)
        for row in frames.batch.select("source", "queue_req").rows()
    ]
    return rows, opened, parser


def numbers(paths):
    return [n for _, n in queue(paths)[0]]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["server.log", "server.log.zip"])
def test_compression_is_told_by_content(codec, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(CODECS[codec](text()))
    rows, (source,), parser = queue([path])
    assert [n for _, n in rows] == list(range(200))
    described = source.describe()
    assert described.kind == codec
    assert described.lines == 200
    assert described.size_bytes == path.stat().st_size
    assert described.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert parser.coverage().notes == ()


@pytest.mark.parametrize("codec", CODECS)
def test_several_members(codec, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"".join(CODECS[codec](text(50, k)) for k in (0, 50, 100)))
    assert numbers([path]) == list(range(150))


def noisy(n):
    """Return text that does not compress away, so that a part of the file is a part of it."""
    rng = random.Random(7)
    return b"".join(text(1, k) + b"%s\n" % rng.randbytes(300).hex().encode() for k in range(n))


@pytest.mark.parametrize("codec", CODECS)
def test_a_truncated_file_gives_what_it_holds(codec, tmp_path):
    path = tmp_path / "log"
    packed = CODECS[codec](noisy(3000))
    path.write_bytes(packed[: len(packed) * 2 // 3])
    rows, _, parser = queue([path])
    got = [n for _, n in rows]
    assert got == list(range(len(got)))
    assert len(got) > (800 if codec == "bzip2" else 1700)  # which unpacks blocks of 900 kB
    (note,) = parser.coverage().notes
    assert note.startswith(f"{path}: cut off after ")


@pytest.mark.parametrize("codec", CODECS)
def test_damage_inside(codec, tmp_path):
    path = tmp_path / "log"
    packed = bytearray(CODECS[codec](noisy(3000)))
    half = len(packed) // 2
    packed[half : half + 64] = b"\xaa" * 64
    path.write_bytes(packed)
    rows, _, parser = queue([path])
    assert [n for _, n in rows][:600] == list(range(600))
    if codec not in ("zstd", "lz4"):  # which carry no checksum unless told to
        assert parser.coverage().notes


def test_garbage_behind_a_member(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(text()) + b"not gzip")
    rows, _, parser = queue([path])
    assert [n for _, n in rows] == list(range(200))
    assert len(parser.coverage().notes) == 1


def test_packed_twice(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(bz2.compress(text())))
    assert numbers([path]) == list(range(200))


def tar(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_members_of_tar(mode, tmp_path):
    path = tmp_path / "logs"
    members = [
        ("logs/a.log", text(20)),
        ("logs/picture.png", b"\x89PNG\r\n" + bytes(100)),
        ("logs/b.log.gz", gzip.compress(text(20, 20))),
        ("logs/empty.log", b""),
    ]
    tar(path, members, mode)
    rows, opened, _ = queue([path])
    assert rows == [
        *((f"{path}!logs/a.log", n) for n in range(20)),
        *((f"{path}!logs/b.log.gz", n) for n in range(20, 40)),
    ]
    assert [s.kind for s in opened] == ["tar member", "tar member"]
    assert opened[0].describe().sha256 == hashlib.sha256(text(20)).hexdigest()
    assert opened[0].quote([3]) == {3: text(1, 2).decode().rstrip()}
    assert opened[1].quote([1]) == {1: text(1, 20).decode().rstrip()}


def test_a_truncated_tar(tmp_path):
    path = tmp_path / "logs.tar"
    tar(path, [("a.log", noisy(2000)), ("b.log", noisy(2000))])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    rows, _, parser = queue([path])
    by_member = [len(list(g)) for _, g in itertools.groupby(rows, key=lambda row: row[0])]
    assert by_member[0] == 2000
    assert 900 < by_member[1] < 1100
    assert parser.coverage().notes


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_zip(method, tmp_path):
    path = tmp_path / "logs"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("../../etc/a.log", text(20))
        archive.writestr("dir/", b"")
        archive.writestr("b.log", text(20, 20))
    rows, opened, _ = queue([path])
    assert [n for _, n in rows] == list(range(40))
    assert [s.name for s in opened] == [f"{path}!../../etc/a.log", f"{path}!b.log"]
    assert opened[1].quote([20]) == {20: text(1, 39).decode().rstrip()}


def test_a_truncated_zip_gives_what_it_holds(tmp_path):
    path = tmp_path / "logs.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.log", text(200))
        archive.writestr("b.log", noisy(3000))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    rows, _, parser = queue([path])
    a = [n for name, n in rows if name.endswith("a.log")]
    b = [n for name, n in rows if name.endswith("b.log")]
    assert a == list(range(200))
    assert b == list(range(len(b)))
    assert 1000 < len(b) < 2000
    assert parser.coverage().notes


def refused(path, match):
    with pytest.raises(InputError, match=match) as error:
        open_sources([str(path)])
    assert str(path) in str(error.value) or path == "-"
    assert not error.value.message[:1].isupper()
    return error.value


def test_what_is_no_log(tmp_path):
    assert refused(tmp_path / "absent", "no such file").hint
    assert "scan" in refused(tmp_path, "is a directory").hint
    empty = tmp_path / "empty"
    empty.touch()
    refused(empty, "is empty")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refused(pipe, "is a pipe").hint
    refused("/dev/zero", "is a device")
    refused(f"{tmp_path}/a\0b", "cannot be opened")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        refused(tmp_path / "socket", "is a pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(tmp_path):
    path = tmp_path / "secret.log"
    path.write_bytes(text())
    path.chmod(0)
    assert "permissions" in refused(path, "cannot be read").hint


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)), "is a program"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is a picture"),
        (b"PAR1" + bytes(100), "is a Parquet file"),
        (random.Random(1).randbytes(5000), "is not text"),
        (gzip.compress(b""), "the gzip file holds nothing"),
        (gzip.compress(text())[:12], "the gzip file holds nothing: cut off"),
        (gzip.compress(b"\x7fELF" + bytes(500)), "is a program"),
        (b"PK\x05\x06" + bytes(18), "holds no file with text"),
    ],
)
def test_binary_files(data, match, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    refused(path, match)


def test_errors_can_be_collected(tmp_path):
    good = tmp_path / "good.log"
    good.write_bytes(text(3))
    seen = []
    opened = open_sources([str(tmp_path / "no"), str(good)], on_error=seen.append)
    assert [s.name for s in opened] == [str(good)]
    assert [str(e) for e in seen] == [f"{tmp_path}/no: no such file"]


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MAX_RATIO_FROM", 1 << 20)
    monkeypatch.setattr(streams, "MAX_RATIO", 100)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a\n" * (8 << 20)))
    (source,) = open_sources([str(path)])
    with pytest.raises(InputError, match=f"{path}: expands to more than 100 times its size"):
        list(source.blocks())


def test_a_bomb_in_a_zip_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MAX_RATIO_FROM", 1 << 20)
    monkeypatch.setattr(streams, "MAX_RATIO", 100)
    path = tmp_path / "logs.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.log", b"a" * (8 << 20))
    error = refused(path, "a.log expands to more than 100 times its size, 8 MiB so far")
    assert "unpack it" in error.hint


def test_one_log_under_several_names_is_read_once(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(text(3))
    (tmp_path / "soft.log").symlink_to(path)
    (tmp_path / "hard.log").hardlink_to(path)
    same = [str(path), f"{tmp_path}/./server.log", f"{tmp_path}/soft.log", f"{tmp_path}/hard.log"]
    assert [s.name for s in open_sources([*same, str(path)])] == [str(path)]


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\x00\x00"])
def test_damage_that_looks_like_a_byte_order_mark(mark, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(mark + b"\n" + text(20))
    assert numbers([path]) == list(range(20))


def test_ctrl_c_ends_a_wait_on_a_pipe():
    """Polars has the system go on with a read that a signal broke off."""
    run = [sys.executable, "-m", "loganalyze", "check", "-"]
    with subprocess.Popen(
        run,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        process.stdin.write(text(3))
        process.stdin.flush()
        while "polars" not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.05)
        time.sleep(1)  # it has read what there is
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(100) == 130
        finally:
            process.kill()
        assert process.stderr.read().strip() == b"loganalyze: interrupted"


def stdin(monkeypatch, data):
    read_end, write_end = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(write_end, data), os.close(write_end)))
    writer.start()
    stream = open(read_end, "rb")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    return writer


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(pack, monkeypatch):
    data = pack(text(300))
    writer = stdin(monkeypatch, data)
    rows, (source,), _ = queue(["-"])
    writer.join()
    assert [n for _, n in rows] == list(range(300))
    described = source.describe()
    assert (described.name, described.kind, described.lines) == ("-", "stdin", 300)
    assert described.size_bytes == len(data)
    assert described.sha256 == hashlib.sha256(data).hexdigest()
    assert source.quote([1, 300]) == {
        1: text(1).decode().rstrip(),
        300: text(1, 299).decode().rstrip(),
    }
    sys.stdin.close()


def test_an_archive_on_standard_input(monkeypatch):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.log", text(20))
    writer = stdin(monkeypatch, packed.getvalue())
    assert numbers(["-"]) == list(range(20))
    writer.join()
    sys.stdin.close()


def test_nothing_on_standard_input(monkeypatch):
    writer = stdin(monkeypatch, b"")
    refused("-", "standard input: is empty")
    writer.join()
    sys.stdin.close()


def test_a_process_substitution():
    read_end, write_end = os.pipe()
    os.write(write_end, text(5))
    os.close(write_end)
    assert numbers([f"/dev/fd/{read_end}"]) == list(range(5))
    os.close(read_end)


def test_quote_finds_lines_anywhere(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d %s\r\n" % (k, b"x" * 90) for k in range(1, 200_001)))
    (source,) = open_sources([str(path)])
    for _ in source.blocks():
        pass
    wanted = [1, 2, 77_777, 77_778, 199_999, 200_000, 200_001]
    got = source.quote(wanted)
    assert got == {k: f"line {k} {'x' * 90}" for k in wanted[:-1]}


def test_quote_of_a_log_that_went_away(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(text(10))
    (source,) = open_sources([str(path)])
    list(source.blocks())
    path.unlink()
    assert source.quote([3]) == {}
    assert source.describe().lines == 10


def test_a_log_that_grows_is_described_as_it_was_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(text(10))
    (source,) = open_sources([str(path)])
    list(source.blocks())
    with path.open("ab") as log:
        log.write(text(10))
    assert source.describe().sha256 == hashlib.sha256(text(10)).hexdigest()


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_progress_adds_up_to_the_size(codec, tmp_path):
    data = noisy(3000)
    path = tmp_path / "log"
    path.write_bytes(CODECS[codec](data) if codec else data)
    seen = []
    (source,) = open_sources([str(path)])
    for _ in Parser().read(source, on_progress=seen.append):
        pass
    assert sum(seen) == path.stat().st_size
    assert len(seen) > 3


@pytest.mark.parametrize("filler", [b"x", b"\0", b"'"])
def test_a_line_without_end_takes_little_memory(filler, tmp_path):
    size = 64 << 20
    path = tmp_path / "log"
    with path.open("wb") as log:
        log.write(text(3))
        for _ in range(size >> 20):
            log.write(filler * (1 << 20))
        log.write(b"\n" + text(3, 3))
    (source,) = open_sources([str(path)])
    tracemalloc.start()
    try:
        lines = sum(block.n_lines for block in source.blocks())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines == 7
    assert peak < 16 << 20
    assert numbers([path]) == list(range(6))


def test_a_record_behind_a_long_progress_line(tmp_path):
    path = tmp_path / "log"
    bar = b"".join(b" %d%%|###   | 1/36 [00:01<00:30]\r" % k for k in range(100_000))
    path.write_bytes(bar + text(1))
    assert numbers([path]) == [0]


def test_a_record_behind_a_hole(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(text(1) + bytes(5 << 20) + text(2, 1))
    rows, (source,), _ = queue([path])
    assert [n for _, n in rows] == [0, 1, 2]
    assert source.quote([2]) == {2: text(1, 1).decode().rstrip()}


def write_logs(tmp_path, logs):
    for name, data in logs.items():
        (tmp_path / name).write_bytes(data)
    return [str(tmp_path / name) for name in logs]


def names(opened, tmp_path):
    return [s.name.removeprefix(f"{tmp_path}/") for s in opened]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_rotated_set_is_read_in_the_order_of_time(order, tmp_path):
    paths = write_logs(
        tmp_path,
        {
            "server.log.2.gz": gzip.compress(text(100)),
            "server.log.1": text(100, 100),
            "server.log": text(100, 200),
        },
    )
    opened = open_sources([paths[k] for k in order])
    assert names(opened, tmp_path) == ["server.log.2.gz", "server.log.1", "server.log"]
    assert {s.group for s in opened} == {f"{tmp_path}/server.log"}
    assert numbers(paths) == list(range(300))


def test_dates_in_names(tmp_path):
    paths = write_logs(
        tmp_path,
        {
            "server-20261121.log": text(60, 60),
            "other.log": text(60, 30),
            "server-20261120.log.zst": zstd.compress(text(60)),
        },
    )
    opened = open_sources(paths)
    assert names(opened, tmp_path) == [
        "server-20261120.log.zst",
        "server-20261121.log",
        "other.log",
    ]
    assert opened[0].group == opened[1].group != opened[2].group
    assert opened[2].group == opened[2].name


def test_a_log_and_what_it_was_packed_to_are_one(tmp_path):
    """Told by content: a name says nothing, and a longer log is another."""
    whole = text(200)
    paths = write_logs(
        tmp_path,
        {
            "server.log": whole,
            "server.log.gz": gzip.compress(whole),
            "copy": whole,
            "longer.log": whole + text(1, 200),
        },
    )
    rows, opened, parser = queue(paths)
    assert [s.name for s in opened] == [paths[0], paths[3]]
    assert len(rows) == 200 + 201
    assert sum("holds the same text" in note for note in parser.coverage().notes) == 2


def test_ranks_are_no_rotation(tmp_path):
    paths = write_logs(tmp_path, {"rank.0.log": text(50), "rank.1.log": text(51)})
    opened = open_sources(paths)
    assert [s.name for s in opened] == paths
    assert [s.group for s in opened] == paths


def test_numbers_that_rise_with_time_are_no_rotation(tmp_path):
    paths = write_logs(tmp_path, {"run.1.log": text(50), "run.2.log": text(50, 100)})
    assert [s.group for s in open_sources(paths)] == paths


def test_ten_comes_before_nine(tmp_path):
    logs = {f"s.log.{k}": text(10, 200 - 10 * k) for k in range(1, 12)}
    opened = open_sources(write_logs(tmp_path, logs))
    assert names(opened, tmp_path) == [f"s.log.{k}" for k in range(11, 0, -1)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"INFO 11-20 10:00:00 metrics.py:455] Avg prompt throughput: 1.0 tokens/s", "a vLLM log"),
        (
            b'10.0.0.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/8"',
            "an nginx access log",
        ),
        (
            b'INFO:     10.0.0.1:51234 - "POST /generate HTTP/1.1" 200 OK',
            "a server's standard output without its standard error",
        ),
        (b'{"level": "info", "msg": "hello"}', "JSON"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"a,b,c,d\n1,2,3,4", "a CSV table"),
        (b'Traceback (most recent call last):\n  File "x.py", line 1', "a Python traceback"),
        (b"[2026-11-20 10:00:00] server_args=ServerArgs(", "an SGLang log without statistics"),
        (
            b"2025-10-01 12:00:00  INFO smg::server: src/server.rs:123: up",
            "a log of SGLang's router",
        ),
        (b"INFO 11-20 10:00:00 [api_server.py:1] vLLM API server version 0.11.0", "a vLLM log"),
        (b"[TRT-LLM] [I] iter = 1, a, b, c", "a log of another inference server"),
        (b"slot launch_slot_: id  0 | task 1 | processing", "a log of another inference server"),
        (b"NAME   READY   STATUS\ns-0    1/1     Running", "what kubectl says"),
        (b"apiVersion: v1\nkind: Pod", "what kubectl says"),
        (b"services:\n  sglang:\n    image: x", "YAML"),
        (b'Error from server (NotFound): pods "s-0" not found', "an error message of a command"),
        (b"srun: job 12 queued, waiting, for, resources", "Slurm's own messages"),
        (b"# HELP sglang:token_usage x\nsglang:token_usage 0.5", "metrics"),
        (b'{"backend": "sglang", "mean_ttft_ms": 1.0, "a": 2, "b": 3}', "results of a benchmark"),
        (b'{"a": 1, "b": 2, "c": 3, "d": 4}\n{"a": 1}', "JSON"),
        (b"#include <stdio.h>\nint main(void)", "source code"),
        (b"[   12.345678] a, b, c, d\n[   12.345679] e, f, g, h", "a kernel log"),
        (b"Dear all, please find, attached, the log, of, today.", "other text"),
        (b"\0\0\0", "NUL bytes"),
        (b"[2026-11-20 10:00:00] Launch DP0 starting at GPU #0.", "an SGLang log without"),
        (b"hello world", "other text"),
        (b"   \n\n", "blank lines"),
    ],
)
def test_guess(line, what, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(line + b"\n")
    (source,) = open_sources([str(path)])
    assert guess(source)[0].startswith(what)
    assert guess(source)[1]


def test_another_servers_traceback_makes_it_no_log_of_sglangs(tmp_path):
    """And one that nobody is named in may be SGLang's own, which could not start."""
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: x\n'
    for first, is_ours in (
        ("INFO [api_server.py:1] vLLM API server version 1\n", False),
        ("", True),
    ):
        path = tmp_path / "server.log"
        path.write_text(first + traceback)
        if is_ours:
            assert reading.read_all(Parser(), Store(), [str(path)], None)[0]
            continue
        with pytest.raises(InputError, match="no SGLang line in 4 lines") as error:
            reading.read_all(Parser(), Store(), [str(path)], None)
        assert error.value.hint.startswith("looks like a vLLM log")


def test_statistics_that_were_cut_off_are_called_so(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(
        "[2026-11-20 10:00:00] Decode batch, #running-req: 12, #token: 9, token u\n" * 9
    )
    with pytest.raises(InputError) as error:
        reading.read_all(Parser(), Store(), [str(path)], None)
    assert error.value.hint == (
        "9 of them look like its statistics cut off, the first on line 1; pass the log with whole "
        "lines"
    )
