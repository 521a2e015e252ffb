"""The known releases of SGLang, and which of them print a line of a given shape."""

from __future__ import annotations

from collections.abc import Iterable

#: Every release on PyPI, oldest first.
RELEASES: tuple[str, ...] = tuple(
    """
    0.1.3 0.1.4 0.1.5 0.1.6 0.1.7 0.1.9 0.1.10 0.1.11 0.1.12 0.1.13 0.1.14 0.1.15 0.1.16
    0.1.17 0.1.18 0.1.19 0.1.20 0.1.21 0.1.22 0.1.24 0.1.25 0.1.26
    0.2.0 0.2.1 0.2.2 0.2.3 0.2.4 0.2.5 0.2.6
    0.2.7 0.2.8 0.2.9 0.2.9.post1 0.2.10 0.2.11 0.2.12 0.2.13 0.2.14 0.2.14.post1 0.2.14.post2
    0.2.15 0.3.0 0.3.1 0.3.1.post1 0.3.1.post2 0.3.1.post3 0.3.2 0.3.3 0.3.3.post1 0.3.4
    0.3.4.post1 0.3.4.post2 0.3.5 0.3.5.post1 0.3.5.post2 0.3.6 0.3.6.post1 0.3.6.post2
    0.3.6.post3 0.4.0 0.4.0.post1 0.4.0.post2 0.4.1 0.4.1.post1 0.4.1.post2 0.4.1.post3
    0.4.1.post4 0.4.1.post5 0.4.1.post6 0.4.1.post7 0.4.2 0.4.2.post1 0.4.2.post2 0.4.2.post3
    0.4.2.post4 0.4.3 0.4.3.post1 0.4.3.post2 0.4.3.post3 0.4.3.post4 0.4.4 0.4.4.post1
    0.4.4.post2 0.4.4.post3 0.4.4.post4 0.4.5 0.4.5.post1 0.4.5.post2 0.4.5.post3 0.4.6
    0.4.6.post1 0.4.6.post2 0.4.6.post3 0.4.6.post4 0.4.6.post5 0.4.7 0.4.7.post1 0.4.8
    0.4.8.post1 0.4.9 0.4.9.post1 0.4.9.post2 0.4.9.post3 0.4.9.post4 0.4.9.post5 0.4.9.post6
    0.4.10 0.4.10.post1 0.4.10.post2 0.5.1 0.5.1.post1 0.5.1.post2 0.5.1.post3 0.5.2 0.5.3
    0.5.3.post1 0.5.3.post2 0.5.3.post3 0.5.4 0.5.4.post1 0.5.4.post2 0.5.4.post3 0.5.5
    0.5.5.post1 0.5.5.post2 0.5.5.post3 0.5.6 0.5.6.post1 0.5.6.post2 0.5.7 0.5.8 0.5.8.post1
    0.5.9 0.5.10 0.5.10.post1 0.5.11 0.5.12 0.5.12.post1 0.5.13 0.5.13.post1 0.5.14 0.5.15
    0.5.15.post1 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22 0.5.23
    """.split()  # noqa: SIM905  a list of 151 lines helps nobody
)

_PLACE = {release: k for k, release in enumerate(RELEASES)}
_ALL = (1 << len(RELEASES)) - 1


def parse_range(text: str) -> int:
    """Read a set of releases: `0.4.9.post3..0.5.8 | 0.5.9..`, open ends allowed.

    Returns:
        A bit for each release, by its place in `RELEASES`.

    Raises:
        KeyError: a release is not known.
    """
    releases = 0
    for part in text.split("|"):
        first, last = (end.strip() for end in part.split(".."))
        lo = _PLACE[first] if first else 0
        hi = _PLACE[last] if last else len(RELEASES) - 1
        releases |= (1 << hi + 1) - (1 << lo)
    return releases


def bounds(sets: Iterable[int]) -> tuple[int, int]:
    """Return places of the first and the last release that are in all sets.

    Sets that contradict each other say nothing: the bounds are then those of all releases.
    """
    common = _ALL
    for releases in sets:
        common &= releases
    common = common or _ALL
    return (common & -common).bit_length() - 1, common.bit_length() - 1
