from __future__ import annotations

from loganalyze.model import Finding
from loganalyze.report import tree


def find(code: str, cause: str | None = None, session: int = 1) -> Finding:
    return Finding(code, (), code=code, explained_by=cause, session=session)


def shape(nodes: list[tree.Node] | tuple[tree.Node, ...]) -> list[object]:
    return [(n.finding.code, n.index, shape(list(n.children))) for n in nodes]


def test_a_symptom_stands_under_its_cause_in_the_order_of_the_report() -> None:
    nodes = tree.grow(
        [find("KV001"), find("CLI002"), find("QUE001", "KV004"), find("KV004", "KV001")]
    )
    assert shape(nodes) == [
        ("KV001", 0, [("KV004", 3, [("QUE001", 2, [])])]),
        ("CLI002", 1, []),
    ]


def test_the_cause_of_the_same_session_is_preferred() -> None:
    nodes = tree.grow([find("KV001"), find("KV001", session=2), find("KV004", "KV001", session=2)])
    assert shape(nodes) == [("KV001", 0, []), ("KV001", 1, [("KV004", 2, [])])]


def test_an_absent_cause_or_a_ring_loses_no_finding() -> None:
    assert shape(tree.grow([find("KV004", "KV001")])) == [("KV004", 0, [])]
    ring = tree.grow([find("A", "B"), find("B", "A"), find("C", "A"), find("D", "D")])
    codes = [n.finding.code for n in ring]
    assert sorted(codes + [c.finding.code for n in ring for c in n.children]) == [
        "A",
        "B",
        "C",
        "D",
    ]
