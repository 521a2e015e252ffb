"""Where lines come from while they are written: a file that may be rotated, or a pipe.

Only whole lines are handed on: half of a line is no line yet. A file that is not there is
waited for; one that was renamed or cut to nothing is followed on from its successor's start.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Literal

from loganalyze.errors import utf8
from loganalyze.sources import KEEP_HEAD, KEEP_TAIL, MAX_LINE

#: Bytes taken at once, so that one busy log does not starve the others.
_CHUNK = 1 << 20

#: The first bytes of a file tell whether it is still the same one.
_HEAD = 256

End = Literal["open", "ended"]


class Lines:
    """Puts bytes together to whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes) -> bytes:
        """Return the whole lines in what came so far; keep the rest."""
        end = data.rfind(b"\n") + 1
        if not end:
            self._rest += data
            if len(self._rest) > MAX_LINE:
                self._rest = self._rest[:KEEP_HEAD] + self._rest[-KEEP_TAIL:]
            return b""
        whole, self._rest = self._rest + data[:end], data[end:]
        return whole

    def flush(self) -> bytes:
        """Return the half line that will never be finished."""
        rest, self._rest = self._rest, b""
        return rest


class FileTail:
    """Follows a file by its name.

    Attributes:
        name: its path as text, for people and records.
        waiting: whether the file is not there (yet).
        caught_up: whether everything in the file was read at the last call.
        rotations: how often another file, or a shortened one, took its place.
    """

    def __init__(self, path: str) -> None:
        self.path, self.name = path, utf8(path)
        self.waiting = True
        self.caught_up = False
        self.rotations = 0
        self._lines = Lines()
        self._fd: int | None = None
        self._at = 0
        self._head = b""

    def read(self) -> bytes:
        """Return the whole lines that were written since the last call.

        Raises:
            OSError: the file is there and cannot be read.
        """
        if self._fd is None and not self._open():
            self.caught_up = True
            return b""
        assert self._fd is not None
        if self._was_cut(self._fd):
            self._restart()
            return self._ended_line()
        data = os.pread(self._fd, _CHUNK, self._at)
        self._at += len(data)
        if len(self._head) < _HEAD:
            self._head = os.pread(self._fd, _HEAD, 0)
        self.caught_up = len(data) < _CHUNK
        if data:
            return self._lines.push(data)
        if self._was_replaced(self._fd):
            os.close(self._fd)
            self._fd = None
            self.rotations += 1
            self.caught_up = False
            return self._ended_line()
        return b""

    def finish(self) -> bytes:
        """Return the last half line, and close."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        return self._lines.flush()

    def _ended_line(self) -> bytes:
        """Return a half line of the old file as a line: it gets no end any more."""
        rest = self._lines.flush()
        return rest + b"\n" if rest else b""

    def _open(self) -> bool:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.waiting = True
            return False
        self.waiting = False
        self._at, self._head = 0, b""
        return True

    def _restart(self) -> None:
        self._at, self._head = 0, b""
        self.rotations += 1
        self.caught_up = False

    def _was_cut(self, fd: int) -> bool:
        """Whether the file is shorter than what was read, or begins with something else."""
        if os.fstat(fd).st_size < self._at:
            return True
        return bool(self._head) and os.pread(fd, len(self._head), 0) != self._head

    def _was_replaced(self, fd: int) -> bool:
        """Whether the name now leads to another file."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False  # moved away, and the new one is not there yet
        here = os.fstat(fd)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)


class PipeTail:
    """Follows standard input until it ends."""

    def __init__(self, fd: int | None = None) -> None:
        self.path = self.name = "-"
        self.waiting = False
        self.caught_up = False
        self.rotations = 0
        self.ended = False
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._lines = Lines()

    def read(self, wait_s: float = 0.0) -> bytes:
        """Return the whole lines that came; waits for up to `wait_s` for the first byte."""
        if self.ended or not select.select([self._fd], [], [], wait_s)[0]:
            self.caught_up = True
            return b""
        data = os.read(self._fd, _CHUNK)
        self.ended = not data
        self.caught_up = self.ended
        return self._lines.push(data)

    def finish(self) -> bytes:
        """Return the last line where it has no end."""
        return self._lines.flush()
