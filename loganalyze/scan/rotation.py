"""Which of the files found are parts of one log.

A log that is rotated goes on in another file: `server.log.2.gz`, `server.log.1`, `server.log`.
They are one run, as they are for `check`. Names propose a set, contents decide:

* the rules of `sources.order_sources`: first stamps differ, numbers fall as time goes on;
* each part has a stamp, and starts when the part before has ended (where that can be seen
  without unpacking it), so the logs of ranks that ran side by side stay apart;
* files with dates in their names go on, and do not start a server: `nightly-2026-03-01.log`
  and `nightly-2026-03-02.log` of two starts are two runs.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from typing import IO, cast

from loganalyze import sources
from loganalyze.errors import InputError
from loganalyze.scan import inputs
from loganalyze.scan.inputs import Input
from loganalyze.scan.state import Known
from loganalyze.sources import Source

#: Bytes looked at, at either end of a file.
_LOOK = 1 << 16
#: Stamps of processes that share a log are out of order by less.
_JITTER = timedelta(seconds=5)
#: Objects looked at side by side: each takes two round trips.
_THREADS = 32

_Group = list[tuple[Input, int | str | None]]


def joined(found: Sequence[Input], known: Callable[[str], Known | None]) -> list[Input]:
    """Return the inputs with the parts of each rotated log as one, where its first part stood.

    Args:
        found: files and objects.
        known: what the state holds of an input: a rotated log that is there with the stamps
            that its parts still have is not looked at again.
    """
    groups: dict[str, _Group] = {}
    for one in found:
        if not one.error and one.size > 0:
            base, age = sources._split_name(one.name)
            groups.setdefault(base, []).append((one, age))
    sets: list[Input] = []
    unsure: dict[str, _Group] = {}
    for base, group in groups.items():
        if not _may_be_one(group):
            continue
        if same := _unchanged(group, known(base)):
            sets.append(same)
        else:
            unsure[base] = group
    if unsure:
        with ThreadPoolExecutor(_THREADS) as threads:
            looked = threads.map(_look, [one for group in unsure.values() for one, _ in group])
            parts = {part.found.name: part for part in looked if part}
        for base, group in unsure.items():
            sets += _sets(base, [(parts[o.name], age) for o, age in group if o.name in parts])
    place = {part.name: one for one in sets for part in one.parts}
    return list(dict.fromkeys(place.get(one.name, one) for one in found))


def _may_be_one(group: _Group) -> bool:
    """Tell whether the names are those of a rotated log."""
    ages = {age for _, age in group}
    return len(group) > 1 and len(ages) == len(group)


def _unchanged(group: _Group, known: Known | None) -> Input | None:
    """Return a rotated log that the state holds as it is now."""
    if known is None or known.parts is None or not known.stamp:
        return None
    names, members = json.loads(known.parts), {one.name: one for one, _ in group}
    if set(names) != members.keys():
        return None
    one = inputs.joined(known.name, [members[name] for name in names])
    return one if one.stamp == known.stamp else None


class _Part:
    """What its two ends tell about a file: first and last stamp, and whether a server starts."""

    def __init__(self, found: Input, source: Source, end: bytes) -> None:
        self.found, self.source = found, source
        stamps = _stamps(sources.head_of(source, _LOOK))
        self.first = stamps[0] if stamps else None
        last = _stamps(end) if source.kind == "file" else []
        self.last = last[-1] if last else None
        self.starts = b"server_args=" in sources.head_of(source, _LOOK)


def _look(found: Input) -> _Part | None:
    """Look at a file; None where it is not one log."""
    try:
        if inputs.is_url(found.name):
            from loganalyze.scan import remote

            first, end = remote.ends(found, _LOOK)

            def opened() -> IO[bytes]:
                return cast("IO[bytes]", io.BytesIO(first))

            logs = sources._open_stored(found.name, opened, "file", found.size)
        else:
            logs = sources.open_sources([found.name])
            with open(found.name, "rb") as file:
                file.seek(max(0, found.size - _LOOK))
                end = file.read(_LOOK)
    except (InputError, OSError):
        return None  # it is read on its own, and says then what is wrong
    return _Part(found, logs[0], end) if logs[0].name == found.name else None


def _stamps(text: bytes) -> list[datetime]:
    found = []
    for stamp in re.finditer(rb"(?<!\d)(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)", text):
        try:
            found.append(datetime.fromisoformat(b" ".join(stamp.groups()).decode()))
        except ValueError:
            continue
    return found


def _sets(base: str, members: Sequence[tuple[_Part, int | str | None]]) -> list[Input]:
    """Return the rotated logs among files whose names say that they are one."""
    parts = {part.source.name: part for part, _ in members}
    dated = any(isinstance(age, str) for _, age in members)
    ordered = sources.order_sources([part.source for part in parts.values()])
    if any(source.group != base for source in ordered):
        return []
    found = [parts[source.name] for source in ordered]
    if not all(part.first for part in found) or not all(map(_follows, pairwise(found))):
        return []
    chains = [c for c in _chains(found, cut=dated) if len(c) > 1]
    whole = len(chains) == 1 and len(chains[0]) == len(found)
    return [
        inputs.joined(base if whole else chain[-1].found.name, [part.found for part in chain])
        for chain in chains
    ]


def _follows(pair: tuple[_Part, _Part]) -> bool:
    """Tell whether a file starts when the one before it has ended, as far as can be seen."""
    before, after = pair
    return not (before.last and after.first) or before.last <= after.first + _JITTER


def _chains(parts: Sequence[_Part], *, cut: bool) -> Iterator[list[_Part]]:
    """Yield files that go on in each other; with `cut` a server's start begins a new log."""
    chain: list[_Part] = []
    for part in parts:
        if chain and cut and part.starts:
            yield chain
            chain = []
        chain.append(part)
    yield chain
