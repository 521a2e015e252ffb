"""What would help, and by how much: the levers of one server, with numbers to check.

    what is known (capacity/server.py) -> changes -> tokens -> requests -> throughput

Every lever is a set of changes, worked out by one function, so that combinations need no
code of their own. Tokens come from memory arithmetic, throughput from the step model; neither
is ever taken to be proportional to a flag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from loganalyze import reading, rules
from loganalyze.capacity import server
from loganalyze.errors import InputError, UsageError
from loganalyze.filters import Filters
from loganalyze.model import Finding, Plan, SessionData
from loganalyze.parse import Parser
from loganalyze.plan.asked import Changes, Wish, read_changes, wish
from loganalyze.plan.table import advised, levers, notes, present
from loganalyze.store import Store

__all__ = ["Changes", "Wish", "for_report", "levers", "make", "read_changes", "read_logs", "wish"]


def read_logs(
    paths: Sequence[str], on_progress: Callable[[int], None] | None = None
) -> list[SessionData]:
    """Return the measured sessions of some logs.

    Args:
        paths: log files; `-` is standard input.
        on_progress: called with the number of bytes read since the last call.

    Raises:
        InputError: one of them cannot be read, or none holds a line of SGLang.
    """
    store = Store()
    read, unreadable = reading.read_all(Parser(), store, paths, on_progress)
    if unreadable:
        first = unreadable[0]
        raise InputError(f"{first.name}: {first.message}", hint=first.hint)
    return reading.measured(store, read, Filters())


def for_report(data: Sequence[SessionData], findings: Sequence[Finding]) -> Plan | None:
    """Return the plan that a report with these findings shows: of the session that says most.

    None without a session whose pool is known, and for one whose printed arguments no server
    can have: a report does not fail for want of a plan.
    """
    chosen = _choose(data, None)
    if chosen is None or not chosen.session.capacity.kv_tokens:
        return None
    try:
        return make(data, Wish(session=chosen.session.id), findings)
    except UsageError:
        return None


def make(
    data: Sequence[SessionData], wish: Wish, findings: Sequence[Finding] | None = None
) -> Plan:
    """Return the plan for a log, or for a server that does not exist yet.

    Args:
        data: the sessions of the log; empty without one.
        wish: what is asked, and what the caller knows.
        findings: of the rules, for a plan that agrees with them; None: run the rules.

    Raises:
        InputError: the model config cannot be used, or the log holds nothing to plan with.
        UsageError: the question makes no sense.
    """
    chosen = _choose(data, wish.session)
    if chosen is None and wish.given.config is None:
        raise InputError(
            "nothing to plan with", hint="give --log, or --model-config with --gpu-mem-gib"
        )
    if wish.remaining_requests and wish.remaining_tokens:
        raise UsageError("give --remaining-requests or --remaining-tokens, not both")
    if findings is None:
        findings = rules.findings(rules.run([chosen])) if chosen is not None else []
    number = chosen.session.id if chosen else None
    own = [f for f in findings if f.session == number]
    leak = any(f.code == "KV010" for f in own)
    now = server.build(data, chosen, wish.given, leak)
    target = wish.target_concurrency
    room = now.room_per_req
    return Plan(
        session=number,
        now=present(now, wish),
        levers=[*advised(now, own), *levers(now, wish)],
        limit=_LEAK if leak else now.load.limit if now.load else "",
        tokens_per_req=now.tokens_per_req,
        tokens_per_req_from=now.tokens_per_req_from,
        bytes_per_token=now.memory.bytes_per_token,
        bytes_from=now.memory.bytes_from,
        total_gib=now.memory.total_gib,
        static_gib=now.memory.static_gib,
        target_concurrency=target,
        target_tokens=math.ceil(target * room) if target and room else None,
        cells=now.cells,
        notes=notes(now, wish),
    )


_LEAK = (
    "a suspected KV leak (KV010): tokens are in use that no running request accounts for, and "
    "their number grows; restart and upgrade, for no pool is large enough for a leak"
)


def _choose(data: Sequence[SessionData], wanted: int | None) -> SessionData | None:
    """Return the wanted session; else the last of those that the log says most about."""
    if wanted is not None:
        found = next((one for one in data if one.session.id == wanted), None)
        if found is None and data:
            known = ", ".join(str(one.session.id) for one in data)
            raise UsageError(f"the log has no session {wanted}", hint=f"it has {known}")
        return found

    def says(one: SessionData) -> tuple[bool, bool, bool]:
        measured = one.session.capacity
        return (
            measured.kv_tokens is not None,
            measured.step_model is not None,
            measured.tokens_per_req is not None,
        )

    return max(reversed(data), key=says, default=None)
