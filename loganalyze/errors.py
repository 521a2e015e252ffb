"""What can go wrong, said once: what, where, and what to do next."""

from __future__ import annotations

import re
import shlex
import sys


def utf8(name: str) -> str:
    r"""Return a file's name as text that every output can hold.

    Names on Linux are bytes, which Python gives as lone surrogates where they are no UTF-8; no
    table, JSON or database takes those. Such a byte is written `\xff`, so that two names never
    become one; any other half of a character, which only escapes in a text give, as U+FFFD.
    """

    def written(half: re.Match[str]) -> str:
        byte = ord(half[0]) - 0xDC00
        return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else "\ufffd"

    return re.sub("[\ud800-\udfff]", written, name)


class LogAnalyzeError(Exception):
    """An error for the person at the keyboard.

    Args:
        message: what went wrong and where, in one line, without a capital or a full stop.
        hint: the next step, in one line; empty when there is none.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = utf8(message)
        self.hint = utf8(hint)


class InputError(LogAnalyzeError):
    """An input could not be read, or holds nothing to analyse."""


class NoLogError(InputError):
    """An input is no log, whatever it quotes: this tool wrote it, or it is a program's text."""


class UsageError(LogAnalyzeError):
    """The request itself makes no sense: an unknown rule, a bad limit, an existing output."""


def missing_package(error: Exception) -> LogAnalyzeError | None:
    """Say that a package which this one needs is not installed; None for any other error."""
    from importlib import metadata

    top = ((isinstance(error, ModuleNotFoundError) and error.name) or "").partition(".")[0]
    if not top or top == "loganalyze" or top in sys.stdlib_module_names:
        return None
    try:
        needs = metadata.requires("loganalyze") or []
    except metadata.PackageNotFoundError:  # run from its folder
        needs = []
    bounded = (line.partition(";")[0].strip() for line in needs)
    package = next((one for one in bounded if re.split(r"[^\w-]", one)[0] == top), top)
    pip = shlex.join([sys.executable or "python", "-m", "pip", "install", package])
    return LogAnalyzeError(f"the package {top} is not installed", hint=f"`{pip}` installs it")
