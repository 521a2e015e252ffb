"""Tell the text of a program from a log: a test or a notebook may quote any line of a server.

Python's own parser decides: a file that imports or defines something and is Python from its
first line to its last is no log, and no log is. So a log below a script that was printed first,
as batch systems do, is a log still.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

#: Program texts are shorter; more is not looked at. The parser takes some 600 times as much.
MAX_BYTES = 1 << 18
_DEFINES = re.compile(rb"(?m)^(?:import|from|def|class|async def) \w")


def is_program(head: bytes, first: Callable[[int], bytes]) -> bool:
    """Whether a file is the text of a program in Python.

    Args:
        head: its first bytes; without a definition among them nothing else is looked at.
        first: returns that many of its first bytes.
    """
    if not _DEFINES.search(head):
        return False
    text = first(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        return False
    # `ast` may not be there yet: few files come this far.
    import ast

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the program's author should know
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
