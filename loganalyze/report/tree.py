"""Which finding follows from which, and which are one finding in several sessions.

Every form nests a symptom under its cause, and says once what several sessions have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loganalyze.lengths import covered_s
from loganalyze.model import Finding
from loganalyze.report import words

#: What differs in a claim from one spell to the next and leaves it the same: whatever holds a
#: digit, and the words around it.
_PASSING = re.compile(
    r"\S*\d\S*|\b(?:s|min|h|d|in|spells?|for|from|of|the|only|log|session|lines?|decode|prefill)\b"
)
#: Sessions that are named one by one.
_NAMED = 12


@dataclass(frozen=True, slots=True)
class Node:
    """A finding, its index in the report, and the findings that follow from it.

    `same` are the same finding in other sessions, by session: (index, finding). This one is
    the worst of them, and `children` follow from any of them.
    """

    index: int
    finding: Finding
    children: Sequence[Node]
    same: Sequence[tuple[int, Finding]] = ()


def grow(findings: Sequence[Finding]) -> list[Node]:
    """Nest each finding under the one of its session that explains it, else of any session.

    The order of the report stays: worst first. A cause that is not in the report, and a ring
    of causes, leave a finding at the top, so that none is ever lost.
    """
    above = {i: _cause(i, findings) for i in range(len(findings))}
    for i in above:
        if _in_ring(i, above):
            above[i] = None

    def nodes(of: Iterable[int | None]) -> list[Node]:
        own = [i for i in range(len(findings)) if above[i] in of]
        return [node(group) for group in _alike(own, findings)]

    def node(group: Sequence[int]) -> Node:
        worst = max(group, key=lambda i: (i == 0, *_harm(findings[i]), -i))
        others = sorted(set(group) - {worst}, key=lambda i: (findings[i].session, i))
        return Node(worst, findings[worst], nodes(group), [(i, findings[i]) for i in others])

    return nodes([None])


def _alike(own: Sequence[int], findings: Sequence[Finding]) -> list[list[int]]:
    """Group findings of one rule and one reading, each of another session."""
    groups: dict[object, list[int]] = {}
    for i in own:
        f = findings[i]
        claim = _PASSING.sub(" ", f.summary.partition(";")[0])
        reading = tuple(word.rstrip("s") for word in re.findall(r"[^\W\d]+", claim))
        key = (f.code, f.explained_by, reading)
        group = groups.setdefault(key, [])
        if f.session in {findings[j].session for j in group}:
            groups[i] = [i]
        else:
            group.append(i)
    return sorted(groups.values())


def _harm(f: Finding) -> tuple[int, float]:
    return int(f.severity), covered_s(f.episodes)


def sessions_said(node: Node) -> str:
    """Say in which sessions a finding holds, the one that is shown first; empty if in one."""
    if not node.same:
        return ""
    every = [node.finding, *(f for _, f in node.same)]
    named = [f"{f.session}{_held(f)}" for f in every[:_NAMED]]
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return f"{len(every)} sessions: {named[0]}, shown here; {', '.join(named[1:])}{more}"


def _held(f: Finding) -> str:
    seconds = _harm(f)[1]
    return f" ({words.duration(seconds)})" if seconds else ""


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
