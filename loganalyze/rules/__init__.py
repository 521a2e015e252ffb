"""The rules: why a server was slow, one small documented function for each cause.

How it works. `run` computes the signals of each session once (signals.py: per DP rank, the
lines with derived values and a one-second grid), then calls every rule with them. `findings`
nests symptoms under the cause that explains them; `conclude` turns the rest into a verdict.

How to add a rule.

1. Choose the family: kv, admission, prefill, decode, ranks, pools, transfers, answers or
   lifecycle. Most are packages, whose `__init__` imports the modules that hold rules.
2. Write `@rule(code, name, severity=, needs=, limits=, explains=, after=)` over a function
   `(case, limits) -> Finding | Clear`, with the five docstring sections (registry.SECTIONS).
3. Judge each rank of `case.ranks` apart: an expression over `rank.grid`, smoothed by
   `rank.holds` or `rank.mean`, then `episodes.spans` -> `joined` -> `at_least` ->
   `episodes.episodes`. Null means unknown and never holds.
4. Say what was seen: `Finding` with evidence that names its line, or `Clear` with the number
   that fell short, or raise `NotApplicable` naming what is missing and the flag that logs it.
5. Add its code to `DECISION_ORDER` and its three cases to tests/rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loganalyze import signals
from loganalyze.capacity import pool
from loganalyze.model import SessionData
from loganalyze.rules.conclude import DECISION_ORDER, checked, conclude, concluded, findings
from loganalyze.rules.registry import (
    Case,
    Clear,
    Limit,
    NotApplicable,
    Outcome,
    Profile,
    Rule,
    Run,
    all_rules,
    checked_overrides,
    rule,
    run_session,
)

# Importing a family registers its rules; reports list them in this order.
# isort: off
from loganalyze.rules import (  # noqa: F401
    kv,
    pools,
    admission,
    decode,
    lifecycle,
    prefill,
    ranks,
    transfers,
    answers,
)
# isort: on

__all__ = [
    "DECISION_ORDER",
    "Case",
    "Clear",
    "Limit",
    "NotApplicable",
    "Outcome",
    "Profile",
    "Rule",
    "all_rules",
    "checked",
    "checked_overrides",
    "conclude",
    "concluded",
    "findings",
    "leaks_left_out",
    "rule",
    "run",
]


def run(
    sessions: Sequence[SessionData],
    overrides: Mapping[str, float] | None = None,
) -> list[Outcome]:
    """Run every rule on every session.

    Args:
        sessions: all sessions of the run, in order; rules may look at the next one.
        overrides: limits such as {"KV001.enter_usage": 0.95}, checked.

    Returns:
        One outcome per rule and session, sessions in order.
    """
    outcomes: list[Outcome] = []
    together = Run(sessions)
    for data in sessions:
        outcomes += run_session(signals.build(data), overrides or {}, together)
    return outcomes


def leaks_left_out(
    sessions: Sequence[SessionData], outcomes: Sequence[Outcome]
) -> list[SessionData]:
    """Return the sessions with their capacity measured before any leak that KV010 found."""
    began = {
        one.session: one.finding.episodes[0]
        for one in outcomes
        if one.code == "KV010" and one.finding
    }

    def measured(data: SessionData) -> SessionData:
        own, leak = data.session, began.get(data.session.id)
        if leak is None:
            return data
        return replace(
            data, session=replace(own, capacity=pool.before_leak(data, own.capacity, leak))
        )

    return [measured(data) for data in sessions]
