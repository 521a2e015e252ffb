"""What server arguments are where nobody set them, by release: the table is defaults.toml.

Why a table of some releases, not of all: most defaults never change. Where two releases that
were looked at agree, so do those between; where they differ, the default is not known there.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Collection
from functools import cache
from importlib import resources

from loganalyze import releases
from loganalyze.releases import RELEASES

#: Stands in the table where SGLang fills an argument in while it starts.
_COMPUTED = "computed"


def known(
    names: Collection[str], release_range: tuple[str, str] | None
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the defaults of the arguments that a server printed.

    Args:
        names: the printed arguments.
        release_range: the releases that the log's lines could come from; None if any.

    Returns:
        name -> default of those that have one default in all releases that the log could come
        from, and the names of those that SGLang fills in itself. What is in neither is not
        known.
    """
    table = _table()
    possible = releases.parse_range("..".join(release_range or (RELEASES[0], RELEASES[-1])))
    printed = {name: table[name] for name in names if name in table}
    # An argument tells about the release too: those from which it is known to be absent go.
    for entries in printed.values():
        possible = possible & _around(entries) or possible
    values: dict[str, object] = {}
    computed = []
    for name, entries in printed.items():
        text = next((text for bits, text in entries if possible & ~bits == 0), None)
        if text == _COMPUTED:
            computed.append(name)
        elif text is not None:
            values[name] = ast.literal_eval(text)
    return values, tuple(computed)


def _around(entries: tuple[tuple[int, str], ...]) -> int:
    """Return the releases that can have an argument: up to those looked at that lack it."""
    has = 0
    for bits, _ in entries:
        has |= bits
    looked_at = _bits_looked_at()
    before = looked_at & ((has & -has) - 1)
    after = looked_at >> has.bit_length()
    first = before.bit_length()
    last = has.bit_length() + ((after & -after).bit_length() - 1 if after else len(RELEASES))
    return ((1 << min(last, len(RELEASES))) - 1) & ~((1 << first) - 1)


@cache
def _toml() -> dict[str, dict[str, dict[str, str]]]:
    text = resources.files(__package__).joinpath("defaults.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def looked_at() -> tuple[str, ...]:
    """Return the releases that the table was made from."""
    return tuple(_toml()["looked_at"])


@cache
def _bits_looked_at() -> int:
    return sum(releases.parse_range(f"{name}..{name}") for name in looked_at())


@cache
def _table() -> dict[str, tuple[tuple[int, str], ...]]:
    """Return the table: name -> (releases, default as text)."""
    return {
        name: tuple((releases.parse_range(span), text) for span, text in entries.items())
        for name, entries in _toml()["values"].items()
    }
