"""The members of tar and zip archives, also of those that were cut off."""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import tarfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Self, cast

from loganalyze.errors import InputError
from loganalyze.streams import DAMAGE, refuse_bomb

#: A longer name or set of attributes is no header that tar writes.
MAX_TAR_HEADER = 1 << 16
_MORE = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)


class _TarInfo(tarfile.TarInfo):
    """A header of a tar archive; refused where tarfile would read all that follows as a name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in (*_MORE, tarfile.SOLARIS_XHDTYPE) and info.size > MAX_TAR_HEADER:
            raise tarfile.ReadError(f"a header of {info.size:,} bytes")
        return info


class _Forward:
    """A stream that ends: tarfile goes on to where a header says that its member ends.

    That may be years away, so the second read at the end raises.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._ended = False

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if not data and self._ended:
            raise tarfile.ReadError("the archive ends inside a member")
        self._ended = not data
        return data


class Tar:
    """The text of a tar archive; read forward where it is compressed."""

    def __init__(self, open_text: Callable[[], io.BufferedReader]) -> None:
        self._open_text = open_text
        self._stream: io.BufferedReader | None = None
        self._at = 0
        self._close: Callable[[], object] = lambda: None

    def members(self) -> Iterator[tuple[str, int, int]]:
        """Yield name, place and size of the plain files, up to where the archive is damaged.

        The place of a file that was packed without its holes is -1.
        """
        with self._open_text() as stream, contextlib.suppress(*DAMAGE):
            forward = cast("IO[bytes]", _Forward(stream))
            archive = tarfile.open(fileobj=forward, mode="r|", tarinfo=_TarInfo)  # noqa: SIM115
            while (info := archive.next()) is not None:
                if info.isfile() and info.size > 0:
                    yield info.name, -1 if info.issparse() else info.offset_data, info.size
                # Else it keeps them all, each with a copy of all attributes so far.
                archive.members.clear()  # type: ignore[attr-defined]
                archive.pax_headers = {}

    def member(self, place: int, size: int) -> IO[bytes]:
        """Return a stream of the member at `place`."""
        return cast("IO[bytes]", _TarMember(self, place, size))

    def read_at(self, place: int, size: int) -> bytes:
        """Return up to `size` bytes from `place`; cheap where places rise."""
        if self._stream is None or place < self._at:
            self._close()
            self._stream, self._at = self._open_text(), 0
            self._close = weakref.finalize(self, self._stream.close)
        if place > self._at and self._stream.seekable():
            self._at = self._stream.seek(place)
        while self._at < place:
            skipped = self._stream.read(min(place - self._at, 1 << 20))
            if not skipped:
                return b""
            self._at += len(skipped)
        data = self._stream.read1(size)
        self._at += len(data)
        return data


class _TarMember(io.RawIOBase):
    """One member of a tar archive."""

    def __init__(self, tar: Tar, place: int, size: int) -> None:
        self._tar, self._place, self._left = tar, place, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._place < 0:
            raise ValueError("packed without its holes, by tar's --sparse")
        size = min(len(buffer), self._left)
        data = self._tar.read_at(self._place, size) if size else b""
        if size and not data:
            raise EOFError("the archive ends inside the member")
        buffer[: len(data)] = data
        self._place += len(data)
        self._left -= len(data)
        return len(data)


class Zip:
    """The members of a zip archive; also of one that lacks its table of contents.

    The table stands at the end, so a truncated archive has none; then the headers before
    the members are followed one after the other.
    """

    def __init__(self, open_stored: Callable[[], IO[bytes]]) -> None:
        self._open_stored = open_stored
        self._archive: zipfile.ZipFile | None = None

    def members(self) -> tuple[list[tuple[str, int, Callable[[], IO[bytes]]]], str]:
        """Return name, size and opener of each file, and what is wrong with the archive.

        Raises:
            InputError: a member is encrypted, or a bomb.
        """
        found: list[tuple[str, int, Callable[[], IO[bytes]]]] = []
        stored = self._open_stored()
        try:
            self._archive = zipfile.ZipFile(stored)
        except DAMAGE:
            stored.close()
            return list(self._walk()), "cut off: its table of contents is missing"
        weakref.finalize(self, stored.close)
        for info in self._archive.infolist():
            if info.flag_bits & 1:
                raise InputError(f"{info.filename} is encrypted", hint="unpack it first")
            refuse_bomb(info.file_size, info.compress_size, f"{info.filename} ")
            if info.file_size and not info.filename.endswith("/"):
                found.append(
                    (info.filename, info.file_size, functools.partial(self._listed, info))
                )
        return found, ""

    def _listed(self, info: zipfile.ZipInfo) -> IO[bytes]:
        return cast("IO[bytes]", _ListedMember(self, info))

    def open(self, info: zipfile.ZipInfo) -> IO[bytes]:
        """Return a stream of a member, from its entry in the table of contents."""
        assert self._archive is not None
        return self._archive.open(info)

    def _walk(self) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
        at = 0
        while True:
            with self._open_stored() as stored:
                stored.seek(at)
                head = stored.read(30)
                if len(head) < 30 or not head.startswith(b"PK\x03\x04"):
                    return
                flags, method = struct.unpack_from("<HH", head, 6)
                packed, size, n_name, n_extra = struct.unpack_from("<IIHH", head, 18)
                name = stored.read(n_name).decode("utf-8", "replace")
            start = at + 30 + n_name + n_extra
            if flags & 1 or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                return
            yield name, size, functools.partial(self._member, start, packed, method)
            if flags & 8 or not packed:
                return  # its size stands behind it: nothing tells where the next one starts
            at = start + packed

    def _member(self, start: int, packed: int, method: int) -> IO[bytes]:
        return cast("IO[bytes]", _ZipMember(self._open_stored(), start, packed, method))


class _ZipMember(io.RawIOBase):
    """One member of a zip archive, from its place in the file."""

    def __init__(self, raw: IO[bytes], start: int, packed: int, method: int) -> None:
        self._raw, self._left = raw, packed or None
        self._inflate = zlib.decompressobj(-15) if method == zipfile.ZIP_DEFLATED else None
        self._packed = b""
        raw.seek(start)

    def readable(self) -> bool:
        return True

    def _next(self, size: int) -> bytes:
        data = self._raw.read(size if self._left is None else min(size, self._left))
        if not data:
            raise EOFError("the archive ends inside the member")
        if self._left is not None:
            self._left -= len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._inflate is None:
            data = self._next(len(buffer)) if self._left else b""
        else:
            data = b""
            while not data and not self._inflate.eof:
                self._packed = self._packed or self._next(1 << 16)
                data = self._inflate.decompress(self._packed, len(buffer))
                self._packed = self._inflate.unconsumed_tail
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _ListedMember(io.RawIOBase):
    """One member of a zip archive, from its entry in the table of contents.

    It is opened when it is read, not before, so that a wrong entry is damage like any other.
    """

    def __init__(self, archive: Zip, info: zipfile.ZipInfo) -> None:
        self._archive, self._info = archive, info
        self._text: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._text is None:
            self._text = self._archive.open(self._info)
        data = self._text.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._text is not None:
            self._text.close()
        super().close()
