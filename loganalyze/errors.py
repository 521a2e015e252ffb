"""What can go wrong, said once: what, where, and what to do next."""

from __future__ import annotations


class LogAnalyzeError(Exception):
    """An error for the person at the keyboard.

    Args:
        message: what went wrong and where, in one line, without a capital or a full stop.
        hint: the next step, in one line; empty when there is none.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(LogAnalyzeError):
    """An input could not be read, or holds nothing to analyse."""


class UsageError(LogAnalyzeError):
    """The request itself makes no sense: an unknown rule, a bad limit, an existing output."""
