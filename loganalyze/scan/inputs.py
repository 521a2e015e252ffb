"""What a scan reads: logs in folders, by pattern, in archives and in object stores.

Why contents and not names (2026-11): names lie. A rotated log keeps its contents under
another name, a truncated one keeps its name, and `cp -p` keeps the time. So a log is known by

* its stamp: size, time of change, and the file's number, or the entity tag of an object.
  The kernel sets the time of change (ctime) and no program can set it back, so an equal
  stamp under an equal name means equal contents;
* its fingerprint: SHA-256 over its size, its first 16 KiB, eight pieces of 4 KiB in between and
  its last 64 KiB. It is cheap, and tells what to compare: an equal fingerprint under another
  name or stamp, or of the first part of a longer file;
* its SHA-256, which proves it. Where stamps differ, nothing is taken as unchanged, as moved
  or as grown without it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from loganalyze.errors import InputError

_HEAD, _PIECE, _PIECES, _TAIL = 1 << 14, 1 << 12, 8, 1 << 16
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}")
_PATTERN = re.compile(r"[*?\[]")

#: Names of logs. In a folder, what is no text and has another name is not worth a word.
_LOG_NAME = re.compile(
    r"(log|\.(out|err|txt|stdout|stderr)(\W|\d|$)"
    r"|\.(gz|zst|xz|bz2|lz4|zip|tar|tgz|tzst|txz|tbz2?)$)",
    re.IGNORECASE,
)


class Input(NamedTuple):
    """One file or object that may be a log, or an archive of logs.

    Attributes:
        name: path, or address without what gives access; of a rotated log that of its newest
            part.
        size: bytes as stored, of all parts.
        stamp: changes whenever the contents do; empty where nothing promises that.
        named: whether the user named it (a path or a pattern), not only its folder.
        error, hint: why it cannot be read; empty where nothing is known against it.
        address: the address with what gives access; empty where the name has all.
        parts: the files of a rotated log, oldest first; empty where it is one file.
    """

    name: str
    size: int = -1
    stamp: str = ""
    named: bool = True
    error: str = ""
    hint: str = ""
    address: str = ""
    parts: tuple[Input, ...] = ()

    @property
    def files(self) -> int:
        """How many files it is."""
        return max(1, len(self.parts))


def shown(name: str) -> str:
    r"""Return a name as text: bytes that are not UTF-8 as `\xNN`.

    No two names give the same: where a name holds such letters itself, its backslashes count
    twice.
    """
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    if text == name and not _ESCAPED.search(name):
        return name
    return os.fsencode(name.replace("\\", "\\\\")).decode("utf-8", "backslashreplace")


def joined(name: str, parts: Sequence[Input]) -> Input:
    """Return the parts of a rotated log, oldest first, as one input."""
    stamps = [part.stamp for part in parts]
    return Input(
        name,
        sum(part.size for part in parts),
        digest(f"{part.name}\0{part.stamp}" for part in parts) if all(stamps) else "",
        any(part.named for part in parts),
        parts=tuple(parts),
    )


def digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 of texts in their order."""
    return hashlib.sha256("\n".join(texts).encode(errors="surrogateescape")).hexdigest()


def is_url(name: str) -> bool:
    """Tell whether a name is the address of an object."""
    return bool(_SCHEME.match(name))


def looks_like_log(name: str) -> bool:
    """Tell whether a file's name promises a log."""
    return bool(_LOG_NAME.search(re.split(r"[/\\]", name)[-1]))


def find(paths: Sequence[str], out: str) -> Iterator[Input]:
    """Yield every input once, in the order of the paths and by name within each.

    Args:
        paths: files, folders, patterns and addresses; what cannot be found or listed becomes
            an input with an error.
        out: the folder of results, which is never searched.
    """
    seen: set[str] = set()
    for path in paths:
        for found in _one(path, os.path.realpath(out)):
            key = found.name if is_url(found.name) else os.path.realpath(found.name)
            if key not in seen:
                seen.add(key)
                yield found


def _one(path: str, out: str) -> Iterator[Input]:
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    if is_url(path):
        from loganalyze.scan import remote

        yield from remote.find(path)
    elif os.path.isdir(path):
        yield from _walk(path, out)
    elif not os.path.lexists(path) and _PATTERN.search(path):
        found = sorted(glob.glob(path, recursive=True))
        if not found:
            yield Input(path, error="no file fits this pattern", hint="check the pattern")
        for name in found:
            if os.path.realpath(name).startswith(out + os.sep):
                continue
            if not os.path.isdir(name):
                yield file(name)
            elif "**" not in path:  # with it the files within are found on their own
                yield from _walk(name, out)
    else:
        yield file(path)


def _walk(folder: str, out: str) -> Iterator[Input]:
    """Yield the files below a folder; linked folders after all others, each folder once."""
    failed: list[OSError] = []
    seen: set[tuple[int, int]] = set()
    links = deque([folder])
    while links:
        for root, folders, names in os.walk(links.popleft(), onerror=failed.append):
            if not _first_visit(root, seen) or os.path.realpath(root) == out:
                folders.clear()
                continue
            own = [f for f in sorted(folders) if not f.startswith(".")]
            links += [p for f in own if os.path.islink(p := os.path.join(root, f))]
            folders[:] = [f for f in own if not os.path.islink(os.path.join(root, f))]
            for name in sorted(names):
                if not name.startswith("."):
                    found = file(os.path.join(root, name), named=False)
                    if found.error or found.size > 0 or (found.stamp and looks_like_log(name)):
                        yield found
    for error in failed:
        yield Input(
            str(error.filename),
            error=f"the folder cannot be listed ({error.strerror})",
            hint="check its permissions",
        )


def _first_visit(folder: str, seen: set[tuple[int, int]]) -> bool:
    """Tell whether a folder is new, under whatever name; links may lead back to it."""
    try:
        status = os.stat(folder)
    except OSError:
        return False  # gone since it was listed
    key = status.st_dev, status.st_ino
    if key in seen:
        return False
    seen.add(key)
    return True


def file(path: str, *, named: bool = True) -> Input:
    """Return a path as an input, whatever it is."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        why = "no such file" if not os.path.lexists(path) else "is a link to nothing"
        return Input(path, named=named, error=why, hint="check the name")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Input(path, named=named, error=f"cannot be opened ({why})")
    if not stat.S_ISREG(status.st_mode):
        # Pipes and devices in a folder are nobody's log.
        return Input(path, 0, named=named, error="is not a file" if named else "")
    stamp = f"{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_dev}.{status.st_ino}"
    return Input(path, status.st_size, stamp, named)


def print_of(found: Input) -> str:
    """Return the fingerprint of an input; empty for objects.

    Raises:
        InputError: it cannot be read, or is shorter by now.
    """
    if is_url(found.name):
        return ""
    if found.parts:
        return digest(fingerprint(part.name, max(0, part.size)) for part in found.parts)
    return fingerprint(found.name, max(0, found.size))


def fingerprint(path: str, size: int) -> str:
    """Return the fingerprint of the first `size` bytes of a file.

    Raises:
        InputError: it cannot be read, or is shorter by now.
    """
    spans = [(0, min(_HEAD, size)), (max(0, size - _TAIL), min(_TAIL, size))]
    spans += [(size * k // (_PIECES + 1), _PIECE) for k in range(1, _PIECES + 1)]
    digest = hashlib.sha256(str(size).encode())
    try:
        with open(path, "rb", buffering=0) as file:
            for at, length in spans if size > _HEAD + _TAIL else [(0, size)]:
                data = os.pread(file.fileno(), length, at)
                if len(data) < length:
                    raise InputError(f"{path}: became shorter while it was read")
                digest.update(data)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror})", hint="check its permissions"
        ) from None
    return digest.hexdigest()


def hashes(file: BinaryIO, at: int) -> tuple[str, str, int]:
    """Return the SHA-256 of the first `at` bytes, that of all, and the size of all."""
    whole, start, done = hashlib.sha256(), "", 0
    if at == 0:
        start = whole.hexdigest()
    while chunk := file.read(min(1 << 20, at - done) if done < at else 1 << 20):
        whole.update(chunk)
        done += len(chunk)
        if done == at:
            start = whole.copy().hexdigest()
    return start, whole.hexdigest(), done
