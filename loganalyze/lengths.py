"""How long something lasted: one count and one style for claims, evidence and pages.

A spell is from the stamp of its first line to that of its last, as the report shows it beside
its lines; ranks at the same time count once. So the length in a claim can be checked by eye.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from loganalyze.model import Episode


def duration(seconds: float) -> str:
    """Say a length: `0.25 s`, `2.5 s`, `42 s`, `42 min 48 s`, `3 h 05 min`, `2 d 04 h`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    whole = round(seconds)
    if whole < 60:
        if seconds >= 9.95:
            return f"{whole} s"
        return f"{seconds:.2g} s" if seconds < 0.95 else f"{seconds:.1f} s".replace(".0 s", " s")
    if whole < 3_600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    if whole < 86_400:
        hours, rest = divmod(whole // 60, 60)
        return f"{hours} h {rest:02d} min"
    days, rest = divmod(whole // 3_600, 24)
    return f"{days} d {rest:02d} h"


def covered(episodes: Iterable[Episode]) -> list[tuple[datetime, datetime]]:
    """Return the stretches of time within episodes, in order and apart from each other.

    Episodes without stamps are left out; those that meet are one stretch.
    """
    out: list[tuple[datetime, datetime]] = []
    for start, end in sorted((e.start, e.end) for e in episodes if e.start and e.end):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, max(start, end)))
    return out


def covered_s(episodes: Iterable[Episode]) -> float:
    """Return the seconds within episodes, overlaps counted once."""
    return sum((end - start).total_seconds() for start, end in covered(episodes))
