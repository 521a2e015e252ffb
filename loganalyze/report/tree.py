"""Which finding follows from which: every form nests a symptom under its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loganalyze.model import Finding


@dataclass(frozen=True, slots=True)
class Node:
    """A finding, its index in the report, and the findings that follow from it."""

    index: int
    finding: Finding
    children: Sequence[Node]


def grow(findings: Sequence[Finding]) -> list[Node]:
    """Nest each finding under the one of its session that explains it, else of any session.

    The order of the report stays: worst first. A cause that is not in the report, and a ring
    of causes, leave a finding at the top, so that none is ever lost.
    """
    above = {i: _cause(i, findings) for i in range(len(findings))}
    for i in above:
        if _in_ring(i, above):
            above[i] = None

    def nodes(of: int | None) -> list[Node]:
        return [Node(i, f, nodes(i)) for i, f in enumerate(findings) if above[i] == of]

    return nodes(None)


def _cause(i: int, findings: Sequence[Finding]) -> int | None:
    one = findings[i]
    if one.explained_by is None:
        return None
    causes = [j for j, f in enumerate(findings) if f.code == one.explained_by and j != i]
    near = [j for j in causes if findings[j].session == one.session]
    return next(iter(near or causes), None)


def _in_ring(start: int, above: Mapping[int, int | None]) -> bool:
    at = above[start]
    for _ in above:
        if at is None or at == start:
            break
        at = above[at]
    return at == start
