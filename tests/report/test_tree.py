from __future__ import annotations

from datetime import datetime, timedelta

from loganalyze.model import Episode, Finding
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
    other = Finding("another claim", (), code="KV001", session=1)
    nodes = tree.grow([other, find("KV001", session=2), find("KV004", "KV001", session=2)])
    assert shape(nodes) == [("KV001", 0, []), ("KV001", 1, [("KV004", 2, [])])]


def test_one_finding_of_several_sessions_is_said_once_with_the_worst_in_full() -> None:
    def died(session: int, why: str, seconds: int, cause: str | None = None) -> Finding:
        start = datetime(2026, 3, 2, 9, session)
        spell = Episode(start, start + timedelta(seconds=seconds), 1, 2, None, "a.log")
        said = f"The server died at 09:0{session}:00 (3% of session {session}): {why}; {seconds} s"
        return Finding(said, (spell,), code="CRS001", session=session, explained_by=cause)

    nodes = tree.grow(
        [
            Finding("first", (), code="HNG001", session=1),
            died(1, "out of memory", 10),
            died(2, "out of memory", 30),
            died(3, "a signal", 90),
            died(4, "out of memory", 20),
            Finding("full in 2 spells of 3 s", (), code="KV004", explained_by="CRS001", session=1),
            Finding("full for 9 min", (), code="KV004", explained_by="CRS001", session=2),
        ]
    )
    assert shape(nodes) == [
        ("HNG001", 0, []),
        ("CRS001", 2, [("KV004", 5, [])]),
        ("CRS001", 3, []),
    ]
    assert [i for i, _ in nodes[1].same] == [1, 4]
    assert tree.sessions_said(nodes[1]) == "3 sessions: 2 (30 s), shown here; 1 (10 s), 4 (20 s)"
    assert tree.sessions_said(nodes[1].children[0]) == "2 sessions: 1, shown here; 2"
    assert tree.sessions_said(nodes[2]) == ""


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
