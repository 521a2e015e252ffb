"""Server flags: what they do, in which releases they exist, and whether to name one.

The table is flags.toml. Advice never names a flag that the log's release lacks, nor one that
no code reads any more.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from loganalyze.errors import UsageError

#: The newest release that was looked at; a flag without `last` exists there.
NEWEST = "0.5.23"

#: A log whose release is unknown is taken to come from one of these.
_UNKNOWN_RANGE = ("0.4.6", NEWEST)

#: A server prints all its arguments; with at least this many, one that is absent is unknown to
#: the release.
_ALL_ARGS = 60

#: Flags that are given for the whole server; DP attention divides them among its ranks. The
#: server arguments print the first as given and the second divided.
CAP = "max-running-requests"
CHUNK = "chunked-prefill-size"

#: What DP attention makes of --schedule-conservativeness before it is printed.
DP_CONSERVATIVENESS = 0.3

_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: without dashes in front, such as `mem-fraction-static`.
        first: first release that has it; `last`: last one.
        dead: the last release whose scheduler read it; None if it is alive.
        successor: the flag that took its place; None if there is none.
        kv: what it does to the KV pool; `helps` and `no_help`: when it does and does not.
    """

    name: str
    first: str
    kv: str
    helps: str
    no_help: str
    last: str = NEWEST
    dead: str | None = None
    successor: str | None = None


@cache
def all_flags() -> dict[str, Flag]:
    """Return the table, by name."""
    text = resources.files(__package__).joinpath("flags.toml").read_text(encoding="utf-8")
    return {name: Flag(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def lookup(name: str) -> Flag:
    """Return a flag by any spelling: `--mem-fraction-static`, `mem_fraction_static`.

    Raises:
        UsageError: no such flag in the table.
    """
    plain = name.strip().lstrip("-").replace("_", "-").lower()
    found = all_flags().get(plain)
    if found is None:
        near = [flag for flag in all_flags() if plain and (plain in flag or flag in plain)]
        hint = f"did you mean {', '.join(near[:5])}?" if near else "known: `explain --flag list`"
        raise UsageError(f"no flag {plain or name!r} in the table", hint=hint)
    return found


def available(
    name: str,
    release_range: tuple[str, str] | None,
    args: Mapping[str, object] | None = None,
) -> bool:
    """Whether every release that the log may come from has the flag, and code that reads it.

    Args:
        name: the flag, any spelling.
        release_range: first and last release that the log's grammar allows; None: unknown.
        args: the printed server arguments; one that is printed exists.
    """
    flag = lookup(name)
    if flag.dead is not None:
        return False
    if args:
        if flag.name.replace("-", "_") in args:
            return True
        if len(args) >= _ALL_ARGS:
            return False
    low, high = release_range or _UNKNOWN_RANGE
    return release_key(flag.first) <= release_key(low) and release_key(high) <= release_key(
        flag.last
    )


def release_key(release: str) -> tuple[int, int, int, int]:
    """Return what orders releases: `0.5.10.post1` -> (0, 5, 10, 1)."""
    match = _RELEASE.fullmatch(release)
    if match is None:
        return (0, 0, 0, 0)
    major, minor, patch, post = match.groups(default="0")
    return (int(major), int(minor), int(patch), int(post))
