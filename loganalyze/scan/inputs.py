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
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from loganalyze.errors import InputError

_HEAD, _PIECE, _PIECES, _TAIL = 1 << 14, 1 << 12, 8, 1 << 16
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
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
        name: path or address.
        size: bytes as stored; -1 where a server does not say.
        stamp: changes whenever the contents do; empty where nothing promises that.
        named: whether the user named it (a path or a pattern), not only its folder.
        error, hint: why it cannot be read; empty where nothing is known against it.
    """

    name: str
    size: int = -1
    stamp: str = ""
    named: bool = True
    error: str = ""
    hint: str = ""


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
    failed: list[OSError] = []
    for root, folders, names in os.walk(folder, onerror=failed.append):
        folders[:] = sorted(
            f
            for f in folders
            if not f.startswith(".") and os.path.realpath(os.path.join(root, f)) != out
        )
        for name in sorted(names):
            path = os.path.join(root, name)
            if not name.startswith(".") and os.path.realpath(root) != out:
                found = file(path, named=False)
                if found.error or found.size > 0:
                    yield found
    for error in failed:
        yield Input(
            str(error.filename),
            error=f"the folder cannot be listed ({error.strerror})",
            hint="check its permissions",
        )


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
