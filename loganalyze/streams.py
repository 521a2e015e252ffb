"""Streams over what is stored: compressed, recoded, damaged, or read from a pipe.

What a file holds is told by its first bytes, never by its name. A stream that is damaged gives
what stands before the damage.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import io
import lzma
import os
import re
import struct
import sys
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, NamedTuple, cast

from loganalyze.errors import InputError

#: A compressed file that grows by more than this factor, and past this size, is refused: a
#: busy log shrinks to a tenth, one of nothing but equal lines to a two-hundredth.
MAX_RATIO, MAX_RATIO_FROM = 500, 256 << 20

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
)
DAMAGE = (
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


def codec_of(head: bytes) -> str | None:
    """Name the compression or the archive that starts with these bytes; None for all else."""
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar":
        return "tar"
    return None


def encoding_of(head: bytes) -> str | None:
    """Tell UTF-16 and UTF-32 by their mark or by their NUL bytes; None for all else.

    Two bytes like a mark may also be damage: the text behind a mark must hold half-empty
    characters, since every line of a log holds digits and blanks.
    """
    marks = (
        (b"\xff\xfe\x00\x00", "utf-32"),
        (b"\x00\x00\xfe\xff", "utf-32"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    )
    for mark, encoding in marks:
        if head.startswith(mark) and head.count(0) * 10 >= len(head) - len(mark):
            return encoding
    whole = head[: len(head) & ~1]
    first, all_of_it = (_half_empty(sample) for sample in (whole[:100], whole))
    return all_of_it if all_of_it == first else None


def _half_empty(sample: bytes) -> str | None:
    """Tell which half of each character of UTF-16 is empty; None where none is."""
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    half = len(sample) // 2
    if half >= 2 and odd > 0.7 * half and even < 0.1 * half:
        return "utf-16-le"
    if half >= 2 and even > 0.7 * half and odd < 0.1 * half:
        return "utf-16-be"
    return None


def open_codec(raw: IO[bytes], codec: str) -> IO[bytes]:
    """Return a stream of what `raw` holds under `codec`; damage raises one of `DAMAGE`."""
    if codec == "gzip":
        return cast("IO[bytes]", _Gzip(raw))
    if codec == "zstd":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        return cast("IO[bytes]", _Translated(zstd.ZstdFile(raw, "rb"), zstd.ZstdError))
    if codec == "xz":
        return cast("IO[bytes]", lzma.LZMAFile(raw, "rb"))
    if codec == "bzip2":
        return cast("IO[bytes]", bz2.BZ2File(raw, "rb"))
    import lz4.frame

    return cast("IO[bytes]", lz4.frame.LZ4FrameFile(raw, "rb"))


class _Translated(io.RawIOBase):
    """A stream whose own kind of error is raised as one of the known kinds."""

    def __init__(self, raw: object, error: type[Exception]) -> None:
        self._raw, self._error = cast("io.RawIOBase", raw), error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            return self._raw.readinto(buffer) or 0
        except self._error as error:
            raise ValueError(str(error)) from None

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Gzip(io.RawIOBase):
    """The members of a gzip file, one after the other.

    Python's and isal's own readers give nothing of a read in which they meet damage, or bytes
    behind the last member; this one gives what stands before it, and then raises.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            from isal.igzip_lib import error
            from isal.isal_zlib import decompressobj
        except ImportError:  # no wheel for this machine
            from zlib import decompressobj, error  # type: ignore[assignment]
        self._raw = raw
        self._packed = b""
        self._new, self._error = decompressobj, cast("type[Exception]", error)
        self._member = self._new(wbits=31)
        self._fresh = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            if not self._packed:
                self._packed = self._raw.read(1 << 17)
                if not self._packed and self._fresh:
                    return 0
                if not self._packed:
                    raise EOFError("the file ends in the middle of its gzip data")
            if self._fresh:
                self._packed = self._packed.lstrip(b"\0")  # members may be padded
                if not self._packed:
                    continue
                self._fresh = False
            try:
                data = self._member.decompress(self._packed, len(buffer))
            except self._error as error:
                raise ValueError(str(error)) from None
            self._packed = self._member.unconsumed_tail
            if self._member.eof:
                self._packed = self._member.unused_data
                self._member, self._fresh = self._new(wbits=31), True
            if data:
                buffer[: len(data)] = data
                return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()


class Counted(io.RawIOBase):
    """Counts the bytes that are read from a stream."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._raw.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n: int = self._raw.readinto(buffer) or 0  # type: ignore[attr-defined]
        self.count += n
        return n

    def close(self) -> None:
        self._raw.close()
        super().close()


def refuse_bomb(size: int, packed: int, what: str = "") -> None:
    """Raise `InputError` where so many bytes of text cannot be a log."""
    if size > MAX_RATIO_FROM and size > MAX_RATIO * max(packed, 1):
        raise InputError(
            f"{what}expands to more than {MAX_RATIO} times its size, {size >> 20:,} MiB so far, "
            "as no log does",
            hint="if it is a log, unpack it by hand and name the text",
        )


class Lenient(io.RawIOBase):
    """Reads a compressed stream up to its damage, and says where that is."""

    def __init__(self, raw: IO[bytes], counted: Counted, note: Callable[[str], None]) -> None:
        self._raw, self._counted, self._note = raw, counted, note
        self._done = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._ended:
            return 0
        try:
            n: int = self._raw.readinto(buffer) or 0  # type: ignore[attr-defined]
        except DAMAGE as error:
            self._ended = True
            what = "cut off" if isinstance(error, EOFError) else "damaged"
            why = str(error).rstrip(".") or type(error).__name__
            self._note(f"{what} after {self._done:,} bytes of text ({why})")
            return 0
        self._done += n
        refuse_bomb(self._done, self._counted.count)
        return n

    def close(self) -> None:
        self._raw.close()
        self._counted.close()
        super().close()


class Rewritten(io.RawIOBase):
    """Reads a stream as another text, which `_rewrite` makes of its chunks."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._left = b""

    def _rewrite(self, chunk: bytes) -> bytes:
        """Return the text of a chunk, and at the end, of no chunk, what was held back."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._left:
            chunk = self._raw.read(1 << 16)
            self._left = self._rewrite(chunk)
            if not chunk:
                break
        n = min(len(buffer), len(self._left))
        buffer[:n] = self._left[:n]
        self._left = self._left[n:]
        return n

    def close(self) -> None:
        self._raw.close()
        super().close()


class Utf8(Rewritten):
    """Turns UTF-16 or UTF-32 into UTF-8."""

    def __init__(self, raw: IO[bytes], encoding: str) -> None:
        super().__init__(raw)
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def _rewrite(self, chunk: bytes) -> bytes:
        return self._decoder.decode(chunk, final=not chunk).encode("utf-8", "replace")


class Breaks(NamedTuple):
    """What stands between the records of a text without line ends.

    Attributes:
        pattern: matches the break, with what must stand before it as its only group; no match
            is longer than `MAX_BREAK`, what it looks ahead to included.
        request_safe: whether no logged prompt can hold such a break.
    """

    pattern: re.Pattern[bytes]
    request_safe: bool


#: In a string of JSON, a quote has a backslash before it: `},{"a` is no part of one.
#: Some collectors put nothing between their records.
_JSON_BREAK = rb'([}\]][ \t]{0,8},|:[ \t]{0,8}\[|\})[ \t]{0,8}(?=[{\[]{1,4}[ \t]{0,8}"(?:%b))'
_ANY_KEY = re.compile(_JSON_BREAK % rb'([\w@][\w@. -]{0,24}"[ \t]?:|[\w@])')
#: A line with one of these holds a request, and its strings may quote records of its writer's.
_REQUEST_KEY = re.compile(
    rb'(?<!\\)"(?:messages|prompts?|choices|conversations?|inputs?|documents|turns|request)"'
    rb"[ \t]{0,8}:[ \t]{0,8}[{\[]"
)
_STRINGS = Breaks(
    re.compile(rb'(\[|(?<!\\)[\'"],)[ \t]{0,8}(?=["\']\[(?:20[0-9]{2}-|[0-9]{2}:))'),
    request_safe=True,
)
_BREAKS = (
    Breaks(re.compile(rb"()\r(?!\n)"), request_safe=True),
    Breaks(re.compile(rb"()(?:\xe2\x80[\xa8\xa9]|\xc2\x85)"), request_safe=False),
    Breaks(re.compile(rb"()(?<!\0)\0(?!\0)"), request_safe=True),
    Breaks(re.compile(rb"()(?<!\\)(?:\\r)?\\n(?=\[?20[0-9]{2}-|\[[0-9]{2}:)"), request_safe=False),
)
#: Two quoted statistics, or two stamps of SGLang's: more than one record.
_RECORD = rb"(?: batch[., \[]|\[(?:20[0-9-]{8} )?[0-9:]{8})"
_TWO_RECORDS = re.compile(_RECORD + rb"[^\n]{100,}?" + _RECORD)
_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*[{\[\"'])")
_STRINGS_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[[\"']\[")
MAX_BREAK = 64
#: A shorter line is read whole, whatever records its strings hold.
_SHORT = 1 << 13


def is_json(head: bytes) -> bool:
    """Whether a text starts like JSON, and not like a stamp in brackets."""
    return _JSON_START.match(head) is not None


def breaks_of(head: bytes) -> Breaks | None:
    """Tell what stands between the records of a text; None where lines do.

    Args:
        head: its first bytes: all of it, or 64 KiB.
    """
    lines = head.rstrip(b"\r\n\0")
    if is_json(head):
        for line in lines.splitlines():
            if _REQUEST_KEY.search(line):
                continue
            found = _TWO_RECORDS.search(line)
            between = found.span() if found else (0, 0)
            keys = {re.escape(m[2]) for m in _ANY_KEY.finditer(line, *between)}
            if keys:  # a prompt may hold JSON, too, but other keys
                return Breaks(re.compile(_JSON_BREAK % b"|".join(sorted(keys))), request_safe=True)
            if _STRINGS_START.match(line) and found and _STRINGS.pattern.search(line, *between):
                return _STRINGS
    if b"\n" in lines:
        return None
    found = _TWO_RECORDS.search(lines)
    if found is None:
        return None
    for breaks in _BREAKS:
        first = breaks.pattern.search(lines, *found.span())
        before = lines[: first.start()] if first else b""
        in_string = len(lines) < _SHORT and b'"' in before
        if first and (breaks.request_safe or not (in_string or b": obj=" in before)):
            return breaks
    return None


class Broken(Rewritten):
    """Puts line ends between the records of a text that has others."""

    def __init__(self, raw: IO[bytes], breaks: Breaks) -> None:
        super().__init__(raw)
        self._pattern = breaks.pattern
        self._held, self._seen = b"", 0

    def _rewrite(self, chunk: bytes) -> bytes:
        data = self._held + chunk
        at = self._seen
        end = max(len(data) - MAX_BREAK, at) if chunk else len(data)
        out: list[bytes] = []
        for m in self._pattern.finditer(data, at):
            if m.start() >= end:
                break
            out += [data[at : m.start()], m[1], b"\n"]
            at, end = m.end(), max(end, m.end())
        self._seen = min(end, 1)  # the byte before, which a break may depend on
        self._held = data[end - self._seen :]
        return b"".join([*out, data[at:end]])


class Spool:
    """A pipe, kept in a file without a name so that it can be read again.

    Args:
        read: returns the next bytes of the pipe, none at its end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._fd, path = tempfile.mkstemp(prefix="loganalyze-")
        os.unlink(path)
        weakref.finalize(self, os.close, self._fd)
        self.size = 0

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; reads on where they are not there yet."""
        if offset < self.size:
            return os.pread(self._fd, min(size, self.size - offset), offset)
        chunk = self._read(size)
        written = 0
        while written < len(chunk):
            written += os.pwrite(self._fd, chunk[written:], self.size + written)
        self.size += len(chunk)
        return chunk

    def fill(self) -> None:
        """Read to the end."""
        while self.read_at(self.size, 1 << 20):
            pass

    def open(self) -> IO[bytes]:
        """Return a stream from the start."""
        return cast("IO[bytes]", _SpoolReader(self))


class _SpoolReader(io.RawIOBase):
    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 2:
            self._spool.fill()
            offset += self._spool.size
        at = offset + (self._at if whence == 1 else 0)
        if at < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as a file does
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        chunk = self._spool.read_at(self._at, len(buffer))
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)
