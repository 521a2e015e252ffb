"""Put before each line the file it is of, where `tail` or `head` printed several.

They print a file's name once, above its lines. Without it on each of them, the lines of two
servers would be taken for those of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from loganalyze.sources import Block

_NAME = re.compile(rb"(?m)^==> ([^\r\n]{1,4096}) <==\r?$")
_ODD = re.compile(r"[^\w./@-]+")
#: What the name of a container may start with, and a number does not.
_START = re.compile(r"(?![0-9]{6})[A-Za-z0-9]")


def named(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a log, its lines written as those of containers with these names."""
    before = b""
    for block in blocks:
        if not before and not (block.first_line == 1 and _NAME.match(block.data)):
            yield block
            continue
        out, at = list[bytes](), 0
        for m in _NAME.finditer(block.data):
            out += [_with(before, block.data[at : m.start()]), m[0]]
            before, at = f"{_writer(m[1])} | ".encode(), m.end()
        yield block._replace(data=b"".join([*out, _with(before, block.data[at:])]))


def _writer(file: bytes) -> str:
    """Return a file's name as that of a container."""
    name = _ODD.sub("_", file.decode("utf-8", "replace")).lstrip("_./@-")
    return name if _START.match(name) else f"file-{name}"


def _with(before: bytes, text: bytes) -> bytes:
    """Return lines with a text before each that is not empty."""
    return b"\n".join(before + line if line else line for line in text.split(b"\n"))
