"""Registration, limits, flags, nesting and verdicts."""

import ast
import inspect
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
from synth import START, capacity, decode, outcomes, planted, sessions, text

from loganalyze import rules
from loganalyze.errors import UsageError
from loganalyze.model import Action, Episode, Finding, Severity
from loganalyze.rules import flags, registry
from loganalyze.rules.registry import Outcome

# -- documentation --------------------------------------------------------------------------


@pytest.mark.parametrize("rule", rules.all_rules().values(), ids=rules.all_rules())
def test_every_rule_explains_itself(rule):
    assert rule.summary.endswith(".")
    assert tuple(rule.sections) == registry.SECTIONS
    assert all(rule.sections.values())
    for limit in rule.limits.values():
        assert limit.unit
        assert limit.meaning


def given(rule):
    """Return the severities that a rule's code names, by the functions of its module it uses.

    `severity(case, found)` gives a critical one where the condition held for long.
    """
    tree = ast.parse(inspect.getsource(sys.modules[rule.judge.__module__]))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    todo, seen, found = [rule.judge.__name__], set(), set()
    while todo:
        name = todo.pop()
        if name not in functions or name in seen:
            continue
        seen.add(name)
        for node in (n for part in functions[name].body for n in ast.walk(part)):
            if isinstance(node, ast.Name):
                todo.append(node.id)
                found |= {Severity.CRITICAL} if node.id == "severity" else set()
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Severity":
                found.add(Severity[node.attr])
    return found


@pytest.mark.parametrize("rule", rules.all_rules().values(), ids=rules.all_rules())
def test_every_rule_declares_the_worst_that_it_gives(rule):
    assert max(given(rule)) == rule.severity


def test_a_docstring_without_its_sections_is_refused():
    def judge(case, limits):
        """Lacks everything."""

    with pytest.raises(ValueError, match="sections"):
        registry.rule("ZZZ999", "nothing", severity=Severity.INFO)(judge)


def test_a_code_is_never_registered_twice():
    judge = rules.all_rules()["KV001"].judge
    with pytest.raises(ValueError, match="twice"):
        registry.rule("KV001", "again", severity=Severity.INFO)(judge)


def test_rules_run_after_those_they_read():
    order = [rule.code for rule in registry.in_order()]
    for rule in rules.all_rules().values():
        assert all(order.index(code) < order.index(rule.code) for code in rule.after)


def test_a_rule_that_raises_is_an_error_and_stops_no_other(monkeypatch):
    def broken(case, limits):
        raise ZeroDivisionError("made up")

    kv003 = rules.all_rules()["KV003"]
    monkeypatch.setitem(registry._RULES, "KV003", registry.replace(kv003, judge=broken))
    found = outcomes(text(capacity(), decode(usage=[0.95] * 90, queue=9)))
    assert (found["KV003"].status, found["KV003"].reason) == (
        "error",
        "ZeroDivisionError: made up",
    )
    assert found["KV001"].status == "fired"


# -- limits ---------------------------------------------------------------------------------


def test_overrides_are_checked():
    assert rules.checked_overrides({"KV001.enter_usage": 1}) == {"KV001.enter_usage": 1.0}


@pytest.mark.parametrize(
    "key", ["KV999.enter_usage", "KV001.nothing", "KV001", "", "kv001.enter_usage"]
)
def test_unknown_limits_are_refused(key):
    with pytest.raises(UsageError):
        rules.checked_overrides({key: 0.5})


@pytest.mark.parametrize("value", ["0.9", None, True, float("nan")])
def test_limits_are_numbers(value):
    with pytest.raises(UsageError):
        rules.checked_overrides({"KV001.enter_usage": value})


# -- flags ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "low", "high", "there"),
    [
        ("mem-fraction-static", "0.1.3", "0.5.23", True),
        ("cuda-graph-max-bs", "0.5.9", "0.5.9", True),
        ("cuda-graph-max-bs", "0.5.20", "0.5.23", False),
        ("cuda-graph-max-bs-decode", "0.5.14", "0.5.23", True),
        ("cuda-graph-max-bs-decode", "0.5.9", "0.5.23", False),
        ("dcp-size", "0.5.9", "0.5.9", False),
        ("num-continuous-decode-steps", "0.5.9", "0.5.9", False),
        ("retraction-policy", "0.5.16", "0.5.16", True),
    ],
)
def test_flags_exist_in_their_releases(name, low, high, there):
    assert flags.available(name, (low, high)) == there


def test_printed_arguments_decide():
    assert flags.available("dcp-size", ("0.5.9", "0.5.23"), {"dcp_size": 1})
    full = {f"arg{i}": 0 for i in range(80)}
    assert not flags.available("kv-cache-dtype", ("0.5.9", "0.5.9"), full)


@pytest.mark.parametrize(
    "name", ["--mem-fraction-static", "mem_fraction_static", " MEM-fraction-static"]
)
def test_flags_are_found_by_any_spelling(name):
    assert flags.lookup(name).name == "mem-fraction-static"


def test_an_unknown_flag_names_its_neighbours():
    with pytest.raises(UsageError) as caught:
        flags.lookup("--fraction")
    assert "mem-fraction-static" in caught.value.hint


def test_releases_are_ordered_by_number():
    names = ["0.4.9.post3", "0.4.10", "0.4.9", "0.5.10.post1", "0.5.9"]
    assert sorted(names, key=flags.release_key) == [
        "0.4.9",
        "0.4.9.post3",
        "0.4.10",
        "0.5.9",
        "0.5.10.post1",
    ]


def test_no_advice_names_a_flag_that_is_not_there():
    for name in (
        "a full KV pool, warm-up and retractions",
        "admission that reserves too much",
        "steps without a CUDA graph",
        "a full sliding-window pool",
        "a slower GPU",
    ):
        data = planted(name)
        found = rules.findings(rules.run(data))
        named = {a.flag for f in found for a in f.actions if a.flag}
        assert named
        for flag in named:
            session = data[0].session
            assert flags.available(flag, session.release_range, session.config.args)


# -- nesting and verdict --------------------------------------------------------------------


def finding(code, severity=Severity.WARNING, start=0, end=60, session=1, explained_by=None):
    episode = Episode(
        START + timedelta(seconds=start), START + timedelta(seconds=end), start + 1, end + 1
    )
    return Finding(
        summary=code,
        episodes=[episode],
        severity=severity,
        code=code,
        session=session,
        explained_by=explained_by,
    )


def outcome(one):
    return Outcome(one.code, "fired", one.summary, one, one.session)


def test_a_symptom_is_nested_under_its_cause():
    found = rules.findings([outcome(finding("KV004")), outcome(finding("KV001"))])
    assert [(f.code, f.explained_by) for f in found] == [("KV001", None), ("KV004", "KV001")]


def advised(cause):
    """Return the flags that LNG001 still advises, nested under a cause."""
    flags_ = ("--kv-cache-dtype", "--mem-fraction-static", "--max-running-requests", None)
    symptom = replace(finding("LNG001"), actions=[Action("do", flag=f) for f in flags_])
    found = rules.findings([outcome(symptom), outcome(finding(cause))])
    (nested,) = (f for f in found if f.code == "LNG001")
    return nested.explained_by, [a.flag for a in nested.actions]


def test_a_symptom_of_a_leak_advises_nothing_of_its_own():
    for symptom in ("KV001", "KV004", "QUE001"):
        flags_ = ("--mem-fraction-static", "--schedule-conservativeness", None)
        full = replace(finding(symptom), actions=[Action("do", flag=f) for f in flags_])
        found = rules.findings([outcome(full), outcome(finding("KV010"))])
        (nested,) = (f for f in found if f.code == symptom)
        assert nested.explained_by == "KV010"
        assert [(a.text[:12], a.flag) for a in nested.actions] == [("Follow KV010", None)]


def test_a_symptom_of_prefill_does_not_advise_room_for_kv():
    assert advised("PRE001") == ("PRE001", ["--max-running-requests", None])
    every = ["--kv-cache-dtype", "--mem-fraction-static", "--max-running-requests", None]
    assert advised("THR002") == (None, every)


@pytest.mark.parametrize(
    "cause",
    [finding("KV001", start=600, end=700), finding("KV001", session=2)],
    ids=["at another time", "in another session"],
)
def test_a_symptom_elsewhere_is_not_nested(cause):
    found = rules.findings([outcome(finding("KV004")), outcome(cause)])
    assert not any(f.explained_by for f in found)


def test_two_rules_never_explain_each_other():
    found = rules.findings(
        [outcome(finding("HNG001")), outcome(finding("CRS001", explained_by="HNG001"))]
    )
    assert {f.code: f.explained_by for f in found} == {"HNG001": None, "CRS001": "HNG001"}


def test_severity_comes_before_the_decision_order():
    found = [outcome(finding("PDD002")), outcome(finding("KV001", Severity.CRITICAL))]
    assert rules.conclude(found, []).primary == "KV001"


def test_the_decision_order_decides_among_equals():
    found = [outcome(finding("KV001")), outcome(finding("PDD002"))]
    verdict = rules.conclude(found, [])
    assert (verdict.primary, verdict.status) == ("PDD002", "degraded")


def test_information_alone_is_healthy():
    log = text(capacity(), decode(usage=[0.88] * 400))
    data = sessions(log)
    verdict = rules.conclude(rules.run(data), data)
    assert (verdict.status, verdict.primary, verdict.confidence) == ("healthy", None, "high")


def test_a_watchdog_kill_is_a_hang():
    log = text(
        capacity(),
        decode(usage=[0.3] * 60),
        "[2026-03-02 09:06:00 TP0] Watchdog timeout (self.watchdog_timeout=300)",
        "[2026-03-02 09:06:05] Received sigquit from a child process. "
        "It usually means the child failed.",
    )
    data = sessions(log)
    found = rules.findings(rules.run(data))
    assert {f.code: f.explained_by for f in found if f.severity == Severity.CRITICAL} == {
        "HNG001": None,
        "CRS001": "HNG001",
    }
    assert rules.conclude(rules.run(data), data).primary == "HNG001"


def test_checked_tells_what_became_of_every_rule():
    checked = rules.checked(rules.run(sessions(text(decode(usage=[0.5] * 40)))))
    assert [c.code for c in checked] == list(rules.all_rules())
    assert all(c.reason for c in checked)
