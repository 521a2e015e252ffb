"""What is fuzzed, and what must hold whatever the bytes are: one function for each target.

Each takes any bytes and raises AssertionError where a promise is broken; any exception but
the `InputError` that a target expects is a find, too.

`sources` and `parser` begin with a recipe of four bytes, so that a fuzzer which knows nothing
of checksums still reaches what is inside compressed files and archives.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import math
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import polars as pl

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from loganalyze import guesses, pipeline, schema, server_args, sources, streams  # noqa: F401  to bound
from loganalyze.errors import InputError
from loganalyze.parse import Parser
from loganalyze.report import to_json, to_markdown, to_text
from loganalyze.sources import Source, open_sources

#: A bomb is refused from here on: the 1 GiB of `sources` is too slow for a fuzzer.
BOMB = 1 << 22

_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-")
_LOG = Path(_FOLDER.name) / "log"


def _tar(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("server.log")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _zip(data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("server.log", data)
    return out.getvalue()


#: What a byte of a recipe puts around the log, outermost last.
LAYERS: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: data,
    gzip.compress,
    zstd.compress,
    lambda data: lzma.compress(data, preset=0),
    bz2.compress,
    lz4.frame.compress,
    _tar,
    _zip,
    lambda data: _zip(data, zipfile.ZIP_STORED),
    lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]),
)
ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")


def _made(data: bytes) -> tuple[bytes, bytes | None]:
    """Return a file by the recipe before its log, and the log where it must come out whole.

    Recipe: inner layer, outer layer, where it is cut, which of its bytes is changed.
    """
    inner, outer, cut, change = data[:4].ljust(4, b"\0")
    log = data[4:]
    made = log
    for layer in (inner, outer):
        made = LAYERS[layer % len(LAYERS)](made)
    if cut:
        made = made[: len(made) * cut // 256]
    if change and made:
        at = len(made) * change // 256
        made = made[:at] + bytes([made[at] ^ 1 << change % 8]) + made[at + 1 :]
    wrapped = any(layer % len(LAYERS) for layer in (inner, outer))
    return made, log if wrapped and not cut and not change else None


def _lines(source: Source, size: int) -> bytes:
    """Return what a source yields, after checking how it counts."""
    parts, line = [], 1
    for block in source.blocks(size):
        assert b"\0" not in block.data
        assert block.first_line == line, "line numbers have a gap"
        ended = block.data.endswith(b"\n")
        counted = block.data.count(b"\n") + bool(block.data and not ended)
        assert block.n_lines == counted, "lines were miscounted"
        assert not parts or parts[-1].endswith(b"\n"), "a block ends inside a line"
        line += block.n_lines
        if block.data:  # a hole at the end of a file holds none
            parts.append(block.data)
    assert source.lines == line - 1
    return b"".join(parts)


def _opened(path: str) -> list[Source] | None:
    try:
        return open_sources([path])
    except InputError:
        return None


def _read(source: Source, size: int) -> bytes | None:
    try:
        return _lines(source, size)
    except InputError:  # a bomb
        return None


def _plain(log: bytes) -> bytes | None:
    """Return the lines of a log that is text as it stands, None for any other."""
    _LOG.write_bytes(log)
    found = _opened(str(_LOG))
    if found is None or found[0].kind != "file":
        return None
    return _read(found[0], sources.BLOCK)


@contextlib.contextmanager
def _stdin(data: bytes):
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))
    try:
        yield
    finally:
        sys.stdin = before


def fuzz_sources(data: bytes) -> None:
    """Files, archives and standard input: the same lines, however they come and are cut."""
    made, log = _made(data)
    plain = _plain(log) if log else None
    _LOG.write_bytes(made)
    found = _opened(str(_LOG))
    with _stdin(made):
        piped = _opened("-")
        assert (piped is None) == (found is None), "a pipe is not read as a file is"
        if found is None or piped is None:
            return
        assert len(piped) == len(found)
        for source, other in zip(found, piped, strict=True):
            whole = _read(source, sources.BLOCK)
            notes = list(source.notes)
            assert _read(source, 7) == whole, "the size of blocks matters"
            assert source.notes == notes, "reading again says something else"
            assert _read(other, sources.BLOCK) == whole, "a pipe has other lines than a file"
            if whole is None:
                continue
            if plain is not None:
                assert whole == plain, "wrapping changes the lines"
                assert not notes, notes
            described = source.describe()
            assert described.lines == source.lines
            assert len(described.sha256) == 64
            assert all(map(str, guesses.guess(source)))
            _check_quotes(source, whole)


def _check_quotes(source: Source, whole: bytes) -> None:
    lines = whole.split(b"\n")[: source.lines]
    wanted = sorted({1, len(lines) // 2, len(lines), len(lines) + 1} - {0})
    expected = {
        n: lines[n - 1][: 1 << 12].decode("utf-8", "replace").rstrip("\r")
        for n in wanted
        if n <= len(lines)
    }
    assert source.quote(wanted) == expected, "a quote is not the line"


def _parsed(path: str, size: int, requests: str) -> tuple[dict[str, pl.DataFrame], tuple]:
    (source,) = open_sources([path])
    parser = Parser(requests)
    parts = list(parser.read(source, block_size=size))
    coverage = parser.coverage(source)
    frames = {
        name: pl.concat([getattr(p, name) for p in parts]) for name in schema.FRAMES if parts
    }
    return frames, (coverage, source.lines)


def fuzz_parser(data: bytes) -> None:
    """Lines to frames: every line counted once, every column as declared, blocks no matter.

    Recipe: encoding, size of blocks, which requests, nothing.
    """
    how, size, requests, _ = data[:4].ljust(4, b"\0")
    log = data[4:]
    if how:
        text = log.decode("utf-8", "replace").replace("\ufffd", "?")
        log = text.encode(ENCODINGS[how % len(ENCODINGS)])
    _LOG.write_bytes(log)
    which = "all" if requests % 2 else "errors"
    try:
        frames, (coverage, lines) = _parsed(str(_LOG), sources.BLOCK, which)
    except (InputError, ValueError) as error:
        if isinstance(error, ValueError) and "unpack" not in str(error):  # of an archive
            raise
        return
    others, counts = _parsed(str(_LOG), 1 + size * 16, which)
    assert counts == (coverage, lines), "the size of blocks changes what is counted"
    assert frames.keys() == others.keys()
    for name, frame in frames.items():
        assert frame.equals(others[name]), f"the size of blocks changes {name}"
        for column in schema.FRAMES[name]:
            assert frame.schema[column.name] == column.dtype, column.name
        numbers = frame["line_no"]
        assert numbers.is_sorted()
        assert numbers.is_between(1, lines).all(), name
    assert coverage.lines_total == lines
    assert coverage.lines_batch <= coverage.lines_known <= lines
    assert coverage.lines_unrecognised <= lines  # a line may hold one record read and one lost
    assert all(n > 0 for n in coverage.by_kind.values())
    if frames:
        assert frames["batch"]["line_no"].n_unique() == coverage.lines_batch
        batches = sum(n for kind, n in coverage.by_kind.items() if kind in ("decode", "prefill"))
        assert frames["batch"].height == batches
        floats = frames["batch"].select(pl.col(pl.Float64).is_infinite().any())
        assert not any(any(row) for row in floats.rows()), "a number is infinite"
    else:
        assert coverage.lines_batch == 0


_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))


def _is_data(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_data(k) and _is_data(v) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_data, value))
    return isinstance(value, _PLAIN)


def fuzz_server_args(data: bytes) -> None:
    """Text behind `server_args=`: data comes out, and what was printed is read back."""
    text = data.decode("utf-8", "replace")
    read = server_args.parse(text)
    assert all(isinstance(name, str) and re.fullmatch(r"\w+", name) for name in read)
    assert all(_is_data(value) for value in read.values())
    assert str(read).encode()  # every number can be printed, every text written
    plain = {n: v for n, v in read.items() if n.isascii() and n.isidentifier() and not _odd(v)}
    printed = "ServerArgs(" + ", ".join(f"{n}={v!r}" for n, v in plain.items()) + ")"
    if len(printed) < server_args.MAX_CHARS:
        assert server_args.parse(printed) == plain, "what was printed is not read back"
        assert server_args.parse(repr(plain)) == plain, "what was printed is not read back"


def _odd(value: object) -> bool:
    """Tell whether the repr of a value is no literal: infinity, an empty set, huge numbers."""
    if isinstance(value, dict):
        return any(_odd(k) or _odd(v) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return not value or any(map(_odd, value))
    if isinstance(value, list | tuple):
        return any(map(_odd, value))
    if isinstance(value, complex):
        return True
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and abs(value) > 10**4000


def fuzz_report(data: bytes) -> None:
    """A log to its report: no rule fails, every form can be made, JSON gives it back."""
    _LOG.write_bytes(data)
    try:
        report = pipeline.analyze(str(_LOG))
    except InputError:
        return
    failed = [c for c in report.checked if c.status == "error"]
    assert not failed, failed
    text = to_json.dumps(report)
    json.loads(text, parse_constant=lambda name: _never(f"{name} in the JSON"))
    assert to_json.dumps(to_json.loads(text)) == text, "JSON does not give the report back"
    for form in (to_text.render(report), to_markdown.render(report)):
        assert not any(c < " " and c != "\n" for c in form), "control characters in the output"
        form.encode()  # no half of a surrogate pair


def _never(why: str) -> None:
    raise AssertionError(why)


TARGETS = {
    "sources": fuzz_sources,
    "parser": fuzz_parser,
    "server_args": fuzz_server_args,
    "report": fuzz_report,
}
