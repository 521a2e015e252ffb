"""Where logs come from: files, archives, standard input; as blocks of whole lines.

A source is read once, front to back, in bounded memory. What it is (gzip, UTF-16, a member
of a tar archive) is told by its content, never by its name.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import select
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import IO, NamedTuple, cast

from loganalyze.archives import Tar, Zip
from loganalyze.errors import InputError, NoLogError, utf8
from loganalyze.model import LogSource
from loganalyze.programs import is_program
from loganalyze.streams import (
    Breaks,
    Broken,
    Counted,
    Lenient,
    Spool,
    Utf8,
    breaks_of,
    codec_of,
    encoding_of,
    is_json,
    open_codec,
)

try:
    from stringzilla import Str as Str
except ImportError:  # no wheel for this machine: bytes has the same methods, slower
    Str = None

#: Bytes searched at once: they stay in the second-level cache over all searches.
BLOCK = 1 << 18
#: A longer line keeps its first and last bytes only. No statistics line is over 4 KiB; the
#: server arguments are 20 kB; a prompt may be 1 GB.
MAX_LINE = 1 << 20
KEEP_HEAD, KEEP_TAIL = 1 << 13, 1 << 12

#: How what this tool writes begins: the JSON, the page, the Markdown block and the text of a
#: report, and exported tables. Each quotes lines of a log, which are no log by themselves.
_OWN = re.compile(
    rb"""\{\s*"schema_version":\s*\d+,\s*"tool_version"
    |\s*<!doctype[ ]html>(?s:.{0,4000}?)<meta[ ]name="generator"[ ]content="loganalyze[ ]
    |\#\#\#[ ]\S{1,3}[ ](?:Saturated|Degraded|Healthy|Undetermined)\b
    |[^\n]{1,999}:[ ][0-9,]+[ ]lines?,[ ][^\n]*\n(?s:.{0,4000}?)
        \n\S{1,3}[ ](?:critical|warning|info)[ ][A-Z]{2,3}[0-9]{3}[ ][a-z-]+,[ ]confidence[ ]
    |source,line_no,session,time,
    |\{"source":"(?:[^"\\]|\\.)*","line_no":\d+,"session":
    """,
    re.VERBOSE,
)


class Block(NamedTuple):
    """Whole lines of a log.

    Attributes:
        data: their bytes, without NUL; the last line may lack its newline at the end.
        first_line: number of the first line, from 1.
        n_lines: number of lines.
        n_read: bytes of the input that were read for this block, as stored.
    """

    data: bytes
    first_line: int
    n_lines: int
    n_read: int


_BINARY = (
    (b"\x7fELF", "a program"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"%PDF", "a PDF"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3", "a SQLite database"),
    (b"ARROW1", "an Arrow file"),
    (b"\x80\x04\x95", "a pickle"),
    (b"\x80\x05\x95", "a pickle"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"LPKSHHRH", "a systemd journal; export it with `journalctl -o short-iso`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!", "a RAR archive; unpack it first"),
)


class Source:
    """One log.

    Attributes:
        given: its name as it was given, whatever its bytes.
        name: the same as text; `archive!member` for a member of an archive.
        group: name of the rotated set it belongs to; its own name where it stands alone.
        size_bytes: size as stored; None for standard input until it was read.
        kind: file, gzip, zstd, xz, bzip2, lz4, stdin, tar member, zip member; with ", utf-16"
            and the like where the text had to be recoded, ", split" where its records stand on
            one line.
        tz: zone that a wrapper's stamps gave, once it was read.
        notes: what went wrong while reading, in plain words.
        remarks: what a reader of the results should know about it.
        copies: names of logs that hold the same text, and were left out.
        lines: number of lines, once it was read.
        head: its first lines, once they were read; those of a table name its columns.
    """

    def __init__(
        self,
        name: str,
        open_stored: Callable[[], IO[bytes]],
        kind: str,
        size_bytes: int | None,
        codecs_: tuple[str, ...] = (),
        encoding: str | None = None,
    ) -> None:
        self.given = name
        self.name = self.group = utf8(name)
        self.size_bytes = size_bytes
        self.kind = kind
        self.tz: str | None = None
        self.notes: list[str] = []
        self.remarks: list[str] = []
        self.copies: list[str] = []
        self.lines = 0
        self.head = ""
        self._open_stored = open_stored
        self._codecs = codecs_
        self._encoding = encoding
        self._breaks: Breaks | None = None
        self._start = b""
        self._index: list[tuple[int, int]] = []
        self._stored = 0
        self._sha256: str | None = None

    def __repr__(self) -> str:
        return f"Source({self.name!r}, {self.kind})"

    def note(self, text: str) -> None:
        """Remember what went wrong, once."""
        if text not in self.notes:
            self.notes.append(text)

    def until(self) -> datetime:
        """Return the latest time that a stamp without a year can mean in this log.

        That is less than a year after its first dated stamp; else when the file, or the archive
        that holds it, was last written; else now.
        """
        path = self.name.partition("!")[0]
        stamp = _first_stamp(self) if path == self.name and self.kind != "stdin" else None
        until, whence = datetime.now(), "today's date"
        with contextlib.suppress(OSError, ValueError):
            until = datetime.fromtimestamp(os.stat(path).st_mtime)
            whence = "the date of the file"
        if stamp is not None:
            with contextlib.suppress(ValueError):
                until = datetime.fromisoformat(stamp.decode()) + timedelta(days=363)
                whence = "another line's date"
        remark = f"stamps without a year: the year was taken from {whence}"
        if remark not in self.remarks:
            self.remarks.append(remark)
        return until

    def _open_text(self, offset: int = 0) -> tuple[io.BufferedReader, Counted]:
        counted = Counted(self._open_stored())
        stream: IO[bytes] = cast("IO[bytes]", counted)
        if offset:
            counted.seek(offset)
        for codec in self._codecs:
            packed = io.BufferedReader(cast("io.RawIOBase", stream), 1 << 17)
            stream = cast("IO[bytes]", Lenient(open_codec(packed, codec), counted, self.note))
        if self.kind.startswith(("tar", "zip")) and not self._codecs:
            stream = cast("IO[bytes]", Lenient(stream, counted, self.note))
        if self._encoding:
            stream = cast("IO[bytes]", Utf8(stream, self._encoding))
        if self._breaks:
            stream = cast("IO[bytes]", Broken(stream, self._breaks))
        return io.BufferedReader(cast("io.RawIOBase", stream), 1 << 16), counted

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """Yield the log as blocks of whole lines, in order.

        Args:
            size: bytes to read at once; a block is longer by the rest of its last line.
        """
        self._index = [(1, 0)]
        first_line, since_index, told = 1, 0, 0
        try:
            stream, counted = self._open_text()
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read ({error.strerror})") from error
        with stream:
            try:
                for data, n_raw in _whole_lines(stream, size):
                    n_lines = _count_lines(data)
                    if first_line == 1:
                        self.head = data[: 1 << 13].decode("utf-8", "replace")
                    if since_index >= 1 << 22:
                        self._index.append((first_line, since_index + self._index[-1][1]))
                        since_index = 0
                    yield Block(data, first_line, n_lines, counted.count - told)
                    told = counted.count
                    first_line += n_lines
                    since_index += n_raw
            except InputError as error:
                raise InputError(f"{self.name}: {error.message}", hint=error.hint) from None
            except OSError as error:
                self.note(f"could not be read to its end ({error.strerror or error})")
        self.lines = first_line - 1
        self._stored = counted.count
        if self.size_bytes is None:
            self.size_bytes = self._stored

    def describe(self) -> LogSource:
        """Return what this log is. To be called after it was read."""
        if self._sha256 is None:
            digest, left = hashlib.sha256(), self._stored
            with contextlib.suppress(OSError), self._open_stored() as stored:
                while left > 0 and (chunk := stored.read(min(left, 1 << 20))):
                    digest.update(chunk)
                    left -= len(chunk)
            self._sha256 = digest.hexdigest()
        return LogSource(
            self.name, self.size_bytes or 0, self._sha256, self.kind, self.tz, self.lines
        )

    def content_sha256(self) -> str:
        """Return the hash of what it holds, unpacked. To be called after it was read."""
        if not self._codecs:
            return self.describe().sha256
        digest = hashlib.sha256()
        with contextlib.suppress(OSError, InputError), self._open_text()[0] as text:
            while chunk := text.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def quote(self, line_nos: Iterable[int]) -> dict[int, str]:
        """Return the text of lines, as they stand in the log, up to 4 KiB of each.

        A line that is no longer there (the log was rotated meanwhile) is left out.
        """
        wanted = sorted(set(line_nos))
        seekable = not self._codecs and self._encoding is None and self._breaks is None
        found: dict[int, str] = {}
        with contextlib.suppress(OSError):
            while wanted:
                line_no, offset = 1, 0
                if seekable and self._index:
                    line_no, offset = max(e for e in self._index if e[0] <= wanted[0])
                last = wanted[0] if seekable else wanted[-1]
                reach = [w for w in wanted if w <= last + 20_000]
                self._quote_from(offset, line_no, reach, found)
                wanted = wanted[len(reach) :]
        return found

    def _quote_from(
        self, offset: int, line_no: int, wanted: Sequence[int], found: dict[int, str]
    ) -> None:
        stream, _ = self._open_text(offset)
        left = set(wanted)
        with stream:
            for data, _ in _whole_lines(stream, BLOCK):
                n_lines = _count_lines(data)
                if any(line_no <= w < line_no + n_lines for w in left):
                    lines = data.split(b"\n")
                    for w in [w for w in left if w < line_no + n_lines]:
                        text = lines[w - line_no][: 1 << 12].decode("utf-8", "replace")
                        found[w] = text.rstrip("\r")
                        left.discard(w)
                line_no += n_lines
                if not left:
                    return


def _count_lines(data: bytes) -> int:
    newlines: int = Str(data).count(b"\n") if Str is not None else data.count(b"\n")
    return newlines + (not data.endswith(b"\n") and bool(data))


def _whole_lines(stream: io.BufferedReader, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines without NUL bytes, and how many bytes they took in the stream."""
    while data := stream.read(size):
        n_raw = len(data)
        if not data.endswith(b"\n"):
            more = stream.readline(MAX_LINE)
            n_raw += len(more)
            data += more
            if len(more) == MAX_LINE and not more.endswith(b"\n"):
                start = data.rfind(b"\n") + 1
                line = data[start:].translate(None, b"\0")
                while more and not more.endswith(b"\n"):
                    more = stream.readline(MAX_LINE)
                    n_raw += len(more)
                    line += more.translate(None, b"\0")
                    if len(line) > MAX_LINE:
                        line = line[:KEEP_HEAD] + line[-KEEP_TAIL:]
                data = data[:start] + line
        if b"\0" in data:
            data = data.translate(None, b"\0")
        yield data, n_raw


def open_sources(
    paths: Sequence[str], on_error: Callable[[InputError], None] | None = None
) -> list[Source]:
    """Open logs for reading, without reading them.

    Args:
        paths: files and archives; `-` is standard input.
        on_error: called with what cannot be opened, which is then left out; without it the
            first one raises.

    Returns:
        The logs in the order given, members of an archive in its order, rotated sets in the
        order of time (see `order_sources`). A file that is named twice, or through a link, is
        one log, under its first name; so are files of the same text, such as a log and what it
        was packed to.

    Raises:
        InputError: a path is missing, unreadable, empty, a directory, a pipe or a device, or
            holds no text.
    """
    sources: list[Source] = []
    seen: set[object] = set()
    for path in paths:
        identity = _identity(path)
        if identity in seen:
            continue
        seen.add(identity)
        try:
            sources.extend(_open_path(path))
        except InputError as error:
            if on_error is None:
                raise
            on_error(error)
    return order_sources(_without_copies(sources))


def _without_copies(sources: Sequence[Source]) -> list[Source]:
    """Return the logs without those of which an earlier one holds the same text."""
    kept: list[Source] = []
    alike: dict[bytes, list[Source]] = {}
    for source in sources:
        same = alike.setdefault(source._start, [])
        first = next((one for one in same if _is_copy(one, source)), None)
        if first is None:
            same.append(source)
            kept.append(source)
        else:
            first.copies.append(source.name)
            first.remarks.append(f"{source.name} holds the same text, and was left out")
    return kept


def _is_copy(one: Source, other: Source) -> bool:
    """Whether two files that start alike hold the same text.

    What comes from a pipe cannot be waited for; an archive's members are what it says they are.
    """
    if any(source.kind.startswith(("stdin", "tar", "zip")) for source in (one, other)):
        return False
    with contextlib.suppress(OSError, InputError), contextlib.ExitStack() as opened:
        a, b = (opened.enter_context(source._open_text()[0]) for source in (one, other))
        while (chunk := a.read(BLOCK)) == b.read(BLOCK):
            if not chunk:
                return True
    return False


def _identity(path: str) -> object:
    """Return what is the same for all names of one file: a log must not count twice."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else path


def _open_path(path: str) -> list[Source]:
    if path == "-" or re.fullmatch(r"/dev/(?:stdin|fd/\d+)|/proc/self/fd/\d+", path):
        return _open_pipe(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        far = f"`loganalyze scan {path} -o DIR` reads addresses"
        hint = far if "://" in path else "check the name"
        raise InputError(f"{path}: no such file", hint=hint) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be opened ({why})") from None
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise InputError(
            f"{path}: is a directory",
            hint=f"name the logs in it, or try `loganalyze scan {path}`",
        )
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise InputError(
            f"{path}: is a pipe", hint=f"pass it as standard input: loganalyze check - < {path}"
        )
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is a device", hint="name a log file")
    if status.st_size == 0:
        raise InputError(f"{path}: is empty", hint="did the server write to another file?")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror})", hint="check its permissions"
        ) from None
    return _open_stored(path, lambda: open(path, "rb", buffering=0), "file", status.st_size)


def _open_pipe(path: str) -> list[Source]:
    if path in ("-", "/dev/stdin"):
        if sys.stdin is None or sys.stdin.closed:
            raise InputError("standard input is closed", hint="name a log file")
        read: Callable[[int], bytes]
        try:
            read = functools.partial(_read_pipe, sys.stdin.fileno())
        except (OSError, ValueError):  # not a real file
            read = cast("io.BufferedReader", sys.stdin.buffer).read1
    else:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{path}: cannot be opened ({error.strerror})") from None
        read = functools.partial(_read_pipe, fd)
    spool = Spool(read)
    if path not in ("-", "/dev/stdin"):
        weakref.finalize(spool, os.close, fd)
    if not spool.read_at(0, 1 << 16):
        raise InputError(
            f"{'standard input' if path == '-' else path}: is empty",
            hint="did the command before the pipe write to standard error?",
        )
    return _open_stored(path, spool.open, "stdin", None)


def _read_pipe(fd: int, size: int) -> bytes:
    """Wait for the next bytes of a pipe.

    Polars has the system go on with a read that Ctrl-C broke off; a wait always ends.
    """
    select.select([fd], [], [])
    return os.read(fd, size)


def _open_stored(
    name: str,
    open_stored: Callable[[], IO[bytes]],
    kind: str,
    size: int | None,
    codecs_: tuple[str, ...] = (),
    depth: int = 0,
) -> list[Source]:
    """Look at the first bytes, and go on inside a compressed file or an archive."""
    source = Source(name, open_stored, kind, size, codecs_)
    source._start = head = head_of(source)
    codec = codec_of(head)
    if codec == "zip" and not codecs_ and depth == 0:
        return _open_zip(name, open_stored)
    if codec == "tar" and depth == 0:
        tar = Tar(lambda: source._open_text()[0])
        found = [
            member
            for path, place, length in tar.members()
            for member in _open_member(
                f"{name}!{path}",
                functools.partial(tar.member, place, length),
                "tar member",
                length,
            )
        ]
        if not found:
            raise InputError(f"{name}: the archive holds no file with text")
        for member in found:
            member.notes.extend(source.notes)
        return found
    if codec in ("zip", "tar"):
        raise InputError(f"{name}: is an archive inside an archive", hint="unpack it first")
    if codec is not None and len(codecs_) < 3:
        return _open_stored(
            name, open_stored, codec if kind == "file" else kind, size, (*codecs_, codec), depth
        )
    for magic, what in _BINARY:
        if head.startswith(magic):
            raise InputError(f"{name}: is {what}, not a log", hint="name a log file")
    if not head and codecs_:
        raise InputError(
            f"{name}: the {codecs_[-1]} file holds nothing"
            + (f": {source.notes[0]}" if source.notes else "")
        )
    if _OWN.match(head):
        raise NoLogError(
            f"{name}: was written by loganalyze, and is no log",
            hint="name the log that it was made from",
        )
    if is_program(head, functools.partial(head_of, source)):
        raise NoLogError(
            f"{name}: is the text of a program in Python, not a log",
            hint="pass what the server prints when it runs",
        )
    source._encoding = encoding_of(head)
    if source._encoding:
        source.kind += f", {source._encoding[:6]}"
    elif _is_binary(head):
        raise InputError(f"{name}: is not text", hint="name a log file")
    if is_json(head) or b"\n" not in head[:-1]:
        source._breaks = breaks_of(head_of(source, 1 << 16))
        if source._breaks:
            source.kind += ", split"
            source.remarks.append("has hardly any line ends: each record counts as a line")
    source.notes.clear()
    return [source]


def _open_member(
    name: str, open_stored: Callable[[], IO[bytes]], kind: str, size: int
) -> list[Source]:
    try:
        return _open_stored(name, open_stored, kind, size, depth=1)
    except InputError:
        return []  # an archive holds other things beside logs


def _open_zip(name: str, open_stored: Callable[[], IO[bytes]]) -> list[Source]:
    try:
        members, wrong = Zip(open_stored).members()
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from None
    found = [
        source
        for member, size, opened in members
        for source in _open_member(f"{name}!{member}", opened, "zip member", size)
    ]
    if not found:
        raise InputError(f"{name}: the archive holds no file with text")
    if wrong:
        found[-1].note(f"the archive is {wrong}")
    return found


def head_of(source: Source, size: int = 1 << 12) -> bytes:
    """Return the first bytes of a log's text."""
    stream, _ = source._open_text()
    with stream:
        return stream.read(size)


def _is_binary(head: bytes) -> bool:
    text = head.lstrip(b"\0")  # a log that was truncated in place starts with a hole
    control = sum(text.count(c) for c in range(32) if c not in (0, 8, 9, 10, 12, 13, 27))
    return control > 0.05 * len(text)


#: Digits after a date belong together in one way only, and not without end: a name in an
#: archive has up to 64 KiB.
_ROTATED = re.compile(
    r"""(?x) ^(?P<base>.+?)
    (?: [.](?P<number>[0-9]{1,4})
      | [-._](?P<date>[0-9]{4}-?[0-9]{2}-?[0-9]{2}(?:[0-9]{2,10})?(?:[T_.-][0-9]{2,10}){0,4})
    )?
    (?P<extension>[.](?:log|out|err|txt))?
    (?: [.](?P<after>[0-9]{1,4})
      | [-._](?P<after_date>[0-9]{4}-?[0-9]{2}-?[0-9]{2}(?:[0-9]{2,10})?(?:[T_.-][0-9]{2,10}){0,4})
    )?
    (?:[.](?:gz|zst|xz|bz2|lz4))?$"""
)
_STAMP = re.compile(rb"(?<![0-9])([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})")


def order_sources(sources: Sequence[Source]) -> list[Source]:
    """Put the logs of a rotated set next to each other, oldest first, under one group.

    A set is told by names (`server.log.2.gz`, `server.log.1`, `server.log`; or dates in
    their place) and confirmed by content: the first stamps must all differ, and where the
    names number the files, the numbers must fall as time goes on. So `rank.0.log` and
    `rank.1.log`, written at the same time, stay apart. A file without a stamp stays where
    its name puts it.

    Returns:
        The same logs. A set stands where its first member was given; its members share
        `group`, and are to be read as one log.
    """
    sets: dict[str, list[tuple[Source, int | str | None]]] = {}
    for source in sources:
        base, age = _split_name(source.name)
        sets.setdefault(base, []).append((source, age))
    done: set[int] = set()
    ordered: list[Source] = []
    for source in sources:
        base = _split_name(source.name)[0]
        members = _rotation_order(sets[base])
        if members is None:
            ordered.append(source)
        elif id(source) not in done:
            for member in members:
                member.group = base
                done.add(id(member))
            ordered += members
    return ordered


def _split_name(name: str) -> tuple[str, int | str | None]:
    """Return the name of a log before it was rotated, and its number or date."""
    path = PurePath(name)
    m = _ROTATED.match(path.name)
    if m is None:
        return name, None
    number, date = m["number"] or m["after"], m["date"] or m["after_date"]
    base = name[: len(name) - len(path.name)] + m["base"] + (m["extension"] or "")
    return base, int(number) if number else date


def _rotation_order(members: list[tuple[Source, int | str | None]]) -> list[Source] | None:
    """Return the members of a rotated set, oldest first; None where they are no set."""
    if len(members) < 2 or all(age is None for _, age in members):
        return None
    if len({age for _, age in members}) < len(members):
        return None  # the same log twice, or two servers
    by_name = sorted(members, key=lambda m: _age_key(m[1]))
    stamps = [_first_stamp(source) for source, _ in by_name]
    known = [s for s in stamps if s is not None]
    if len(set(known)) < len(known):
        return None
    numbered = any(isinstance(age, int) for _, age in members)
    if numbered and known != sorted(known):
        return None
    if not numbered and len(known) == len(stamps):
        by_name = [m for _, m in sorted(zip(known, by_name, strict=True), key=lambda p: p[0])]
    return [source for source, _ in by_name]


def _age_key(age: int | str | None) -> tuple[int, int, str]:
    """Sort key: the highest number or the earliest date first, the bare name last."""
    if age is None:
        return 2, 0, ""
    return (0, -age, "") if isinstance(age, int) else (1, 0, re.sub(r"[^0-9]", "", age))


def _first_stamp(source: Source) -> bytes | None:
    m = _STAMP.search(head_of(source, 1 << 16))
    return m[1] + b" " + m[2] if m else None
