"""From what the rules found to one verdict: nest symptoms, order causes, say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl

from loganalyze import derive, timeline
from loganalyze.episodes import within
from loganalyze.lengths import duration
from loganalyze.model import (
    Action,
    Check,
    CheckStatus,
    Confidence,
    Evidence,
    Finding,
    SessionData,
    Severity,
    Status,
    Verdict,
)
from loganalyze.rules.registry import Outcome, Profile, all_rules
from loganalyze.sessions import ranks_missing
from loganalyze.timeline import GAP_S, as_float

#: Which cause is named first among equals in severity: "why is there a queue?" from the
#: outside in (process, cap, special pools, disaggregation, prefill, KV, admission, leftover),
#: then what slows decoding, then the rest. Severity comes before this order.
DECISION_ORDER = (
    "CRS001",
    "HNG001",
    "ERR001",
    "RUN001",
    "SWA001",
    "MAM001",
    "PDT001",
    "PDD001",
    "PDD002",
    "PDP001",
    "KV009",
    "KV010",
    "DPI001",
    "LBL001",
    "THR003",
    "PRE001",
    "KV002",
    "KV001",
    "KV004",
    "KV005",
    "ADM001",
    "ADM002",
    "ADM003",
    "QUE001",
    "OVR001",
    "SPC001",
    "GRF001",
    "THR002",
    "TPS001",
    "PRE002",
    "PRE003",
    "PRE005",
    "PRE004",
    "DPI002",
    "LNG001",
    "KV007",
    "KV006",
    "KV008",
    "KV003",
    "CLI001",
    "CLI002",
    "WRM001",
    "IDL001",
    "DRN001",
)

#: Primary causes that make the status `saturated`: some pool of KV or state is full.
_SATURATED = frozenset({"KV001", "KV002", "SWA001", "MAM001", "PDD001"})

#: What a queue means, by its cause and by what the server is for: SGLang's guide calls usage
#: above 0.9 with 100 to 2,000 waiting healthy for offline batch work; online users wait in it.
_FULL_POOL = {
    "online": "users wait in that queue, so this needs more KV room or less load",
    "batch": "for offline batch work a full pool with 100-2,000 waiting is good use of the GPU, "
    "and more KV room still raises throughput",
    None: "online users wait in that queue, while for offline batch work a full pool with "
    "100-2,000 waiting is good use of the GPU",
}
_ROOM_LEFT = {
    "online": "users wait in that queue although the server has room",
    "batch": "a batch job takes longer than it needs, because the server has room",
    None: "online users wait and batch jobs take longer, although the server has room",
}
_KV_LEFT = {
    "online": "users wait in that queue although KV has room",
    "batch": "a batch job takes longer than it needs, because KV has room",
    None: "online users wait and batch jobs take longer, although KV has room",
}
_PROFILE_WORDS = {
    "KV001": _FULL_POOL,
    "KV002": _FULL_POOL,
    "SWA001": _KV_LEFT,
    "MAM001": _KV_LEFT,
    "ADM001": _ROOM_LEFT,
    "QUE001": _ROOM_LEFT,
}

#: A symptom is explained by a cause that held during this share of it.
_EXPLAINED_SHARE = 0.5

#: Causes that room and bytes of KV do nothing for, and the flags that give such room.
_NOT_KV = frozenset({"PRE001"})
_KV_LEVERS = frozenset(
    {"--kv-cache-dtype", "--mem-fraction-static", "--enable-dp-attention", "--dcp-size"}
)

#: Causes that undo whatever a symptom would advise, and why: more room fills up as well, and
#: less load only delays it.
_FIRST = {"KV010": "Follow KV010 first: what leaks fills any room, at any load"}

#: Ranks that are named in the cost.
_RANKS = 4

#: Fewer admitted requests tell no usual waiting time.
_ADMITTED = 5

#: Causes that share no more than this of the time held at different times.
_APART_SHARE = 0.1


#: Sessions that are named where each of them ended in a death.
_DEATHS = 5

#: Requests that wait for this share of a rank's time need a cause ...
_WAITS_SHARE = 0.5
#: ... on a PD decode server from so many on: a few are always being preallocated ...
_BACKLOG = 5
#: ... of which this one passes by itself.
_PASSING = frozenset({"ADM003"})

#: Causes that stay first however short they are: the process is gone, or stands still.
_FATAL = frozenset({"CRS001", "HNG001"})

#: A cause goes before another that the order names first if it held so many times as long, at
#: another time or meanwhile; in between where they shared a part of the other's time.
_LONGER_APART, _LONGER_MEANWHILE = 2.0, 10.0


def findings(outcomes: Iterable[Outcome]) -> list[Finding]:
    """Return all findings, worst first, each symptom marked with the cause that explains it.

    Among equals in severity the order of causes counts, but a short spell of one does not go
    before a long one of another: the order tells causes of the same queue apart.
    """
    found = _one_way([o.finding for o in outcomes if o.finding])
    ranked = sorted((_nested(one, found) for one in found), key=_rank)
    if not ranked:
        return []
    first = ranked[0]
    for other in ranked[1:]:
        if _rank(other)[:2] == _rank(first)[:2] and _more_harm(other, first):
            first = other
    return [first, *(one for one in ranked if one is not first)]


def _one_way(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings, none of which moves a flag against a worse one of its session.

    The lesser advice keeps its words and says what it would undo.
    """
    led: dict[tuple[int, str], tuple[bool, str, object]] = {}
    out = list(found)
    for k in sorted(range(len(out)), key=lambda i: (-int(out[i].severity), _order(out[i].code))):
        one, actions = out[k], []
        for action in one.actions:
            up = _raises(action)
            if action.flag and up is not None:
                first = led.setdefault((one.session, action.flag), (up, one.code, action.proposed))
                if first[0] != up:
                    text = (
                        f"{action.text}: {action.flag} {action.proposed} would do it, but "
                        f"{first[1]} is worse here and asks for {first[2]}: follow that"
                    )
                    action = Action(text)
            actions.append(action)
        out[k] = replace(one, actions=actions)
    return out


def _raises(action: Action) -> bool | None:
    """Whether an action raises its flag; None where it says no number or changes nothing."""
    old, new = action.present, action.proposed
    if isinstance(old, bool) or not isinstance(old, int | float):
        return None
    return new > old if isinstance(new, int | float) and new != old else None


def _more_harm(one: Finding, first: Finding) -> bool:
    """Whether a cause held so much longer than one that the order names first."""
    if first.code in _FATAL:
        return False
    shared = _together(first, one) if one.session == first.session else 0.0
    longer = _LONGER_APART + (_LONGER_MEANWHILE - _LONGER_APART) * shared
    return _held_s(one) > longer * _held_s(first)


def _held_s(one: Finding) -> float:
    """Return the seconds in which a finding held on any rank; 0 without stamps."""
    total, until = 0.0, None
    for start, end in sorted((e.start, e.end) for e in one.episodes if e.start and e.end):
        begin = start if until is None else max(start, until)
        total += max(0.0, (end - begin).total_seconds())
        until = end if until is None else max(end, until)
    return total


def _rank(one: Finding) -> tuple[bool, int, int, int]:
    return (one.explained_by is not None, -int(one.severity), _order(one.code), one.session)


def _order(code: str) -> int:
    return DECISION_ORDER.index(code) if code in DECISION_ORDER else len(DECISION_ORDER)


def _nested(one: Finding, others: Sequence[Finding]) -> Finding:
    """Return the finding with `explained_by` set to the first cause that accounts for it.

    A rule that knows its cause has set it already. A symptom does not advise what does nothing
    for its cause, and that of a cause that undoes all of it refers to the cause.
    """
    if one.explained_by is not None:
        return one
    causes = [
        other
        for other in others
        if other.session == one.session
        and other.explained_by != one.code
        and one.code in all_rules()[other.code].explains
        and _together(one, other) >= _EXPLAINED_SHARE
    ]
    if not causes:
        return one
    cause = min(causes, key=lambda c: _order(c.code)).code
    actions = one.actions
    if cause in _FIRST:
        actions = [Action(_FIRST[cause])]
    elif cause in _NOT_KV:
        actions = [action for action in actions if action.flag not in _KV_LEVERS]
    return replace(one, explained_by=cause, actions=actions)


def _together(symptom: Finding, cause: Finding) -> float:
    """Return the share of the symptom's time (its lines, without stamps) within the cause's."""
    total = shared = 0.0
    for one in symptom.episodes:
        stamped = one.start is not None and one.end is not None and one.end > one.start
        length = one.duration_s if stamped else float(one.last_line - one.first_line + 1)
        total += length
        best = 0.0
        for other in cause.episodes:
            if stamped and one.start and one.end and other.start and other.end:
                both = (min(one.end, other.end) - max(one.start, other.start)).total_seconds()
            else:
                both = min(one.last_line, other.last_line) - max(one.first_line, other.first_line)
                both += 1
            best += max(0.0, both)
        shared += min(best, length)
    return shared / total if total else 0.0


def checked(outcomes: Sequence[Outcome]) -> list[Check]:
    """Return what became of each rule over all sessions: the most telling outcome of each."""
    importance: dict[CheckStatus, int] = {
        "fired": 0,
        "error": 1,
        "clear": 2,
        "not_applicable": 3,
    }
    out: list[Check] = []
    for code in all_rules():
        own = [o for o in outcomes if o.code == code]
        if own:
            best = min(own, key=lambda o: importance[o.status])
            out.append(
                Check(code, best.status, best.reason, best.session or None, all_rules()[code].name)
            )
    return out


def concluded(
    outcomes: Sequence[Outcome], sessions: Sequence[SessionData], profile: Profile | None = None
) -> tuple[list[Finding], Verdict]:
    """Return the findings of a run and the verdict: the worst cause, or why there is none.

    The primary finding is the first of `findings` that no other finding explains; its evidence
    begins with the waiting time that the headline tells of.
    """
    found = findings(outcomes)
    causes = [f for f in found if f.severity >= Severity.WARNING and not f.explained_by]
    if not causes:
        return found, _without_a_cause(outcomes, sessions)
    primary = causes[0]
    status: Status = "saturated" if primary.code in _SATURATED else "degraded"
    own = next(o for o in outcomes if (o.code, o.session) == (primary.code, primary.session))
    data = next((s for s in sessions if s.session.id == primary.session), None)
    waited = _waited(primary, data) if data and own.judged else None
    cost = ""
    if waited and data:
        length = duration(as_float(waited.value, 0.0))
        cost = f"it cost each request{_whose(primary, data)} about {length} of waiting"
        shown = replace(primary, evidence=[waited, *primary.evidence])
        found = [shown if f is primary else f for f in found]
    elif data and own.judged and primary.code == "CRS001":
        cost = _lost(primary, data)
    elif primary.code == "SPC001":
        cost = _fewer_tokens(primary)
    headline = _headline(primary, own, profile, cost, _elsewhere(primary, causes))
    return found, Verdict(status, primary.code, headline, primary.confidence, cost)


def conclude(
    outcomes: Sequence[Outcome], sessions: Sequence[SessionData], profile: Profile | None = None
) -> Verdict:
    """Return the verdict alone."""
    return concluded(outcomes, sessions, profile)[1]


def _without_a_cause(outcomes: Sequence[Outcome], sessions: Sequence[SessionData]) -> Verdict:
    if not any(o.judged for o in outcomes) or any(o.doubt for o in outcomes):
        return Verdict("undetermined", None, _undetermined(outcomes, sessions), "low")
    waited = _unexplained_wait(outcomes, sessions)
    if waited:
        return Verdict("undetermined", None, waited, "low")
    headline, level = _healthy(outcomes, sessions), _healthy_confidence(outcomes, sessions)
    return Verdict("healthy", None, headline, level)


def _elsewhere(primary: Finding, causes: Sequence[Finding]) -> str:
    """Name the first cause as severe as the primary that held at another time or session."""
    deaths = [one.session for one in causes if one.code == primary.code == "CRS001"]
    if len(deaths) > 2:
        named = ", ".join(map(str, sorted(deaths)[:_DEATHS]))
        more = f" and {len(deaths) - _DEATHS:,} more" if len(deaths) > _DEATHS else ""
        return f"it died {len(deaths):,} times, in sessions {named}{more}"
    for one in causes[1:]:
        if one.severity != primary.severity:
            continue
        said = f"{one.code}: {one.summary.rstrip('.')}"
        if one.session != primary.session:
            others = [c.session for c in causes if c.code == primary.code][1:]
            if one.code == primary.code and len(others) > 1:
                return f"and in {len(others):,} other sessions"
            return f"and in session {one.session} {said}"
        if not one.episodes or _together(one, primary) > _APART_SHARE:
            continue
        later = one.episodes[0].first_line >= primary.episodes[0].first_line
        return f"{'then' if later else 'before that'} {said}"
    return ""


def _whose(one: Finding, data: SessionData) -> str:
    """Say on which DP ranks a request waited, where a finding holds on some of several."""
    names = list(dict.fromkeys(e.rank for e in one.episodes if e.start and e.end))
    if None in names or len(names) >= data.batch["dp_rank"].n_unique():
        return ""
    more = f" and {len(names) - _RANKS} more" if len(names) > _RANKS else ""
    return f" on {', '.join(map(str, names[:_RANKS]))}{more}"


#: What lines say of the requests that wait and of those that are let in.
_WAITED = ("queue_req", "running_req", "new_seq", "started")


def _waited(primary: Finding, data: SessionData) -> Evidence | None:
    """Return the time that a request waited because of a cause; None where it did not matter.

    The waiting time of all requests over those that were admitted meanwhile (Little's law), or
    that finished, where those are more: of the requests that ran as it began some were thrown
    back and still wait. One that was thrown back is admitted again, and counts once, and so does
    one whose prompt is computed in chunks.
    """
    held = [(e.start, e.end, e.rank) for e in primary.episodes if e.start and e.end]
    if not held or primary.code == "CRS001":
        return None
    used = ("time", "source", *derive.RANK_WORDS, "lines", *_WAITED)
    lines = pl.concat([one.lines.select_seq(used) for one in timeline.of(data)])
    batch = lines.filter(_inside(lines, held))
    queue = batch.filter(pl.col("queue_req").is_not_null()).select_seq(
        waited=pl.col("queue_req") * _lasted().over("source", "dp_rank")
    )
    waited = as_float(queue["waited"].sum(), 0.0)
    real = ~pl.col("duplicate") & ~pl.col("debug").fill_null(False)
    retracted = data.event.filter(_inside(data.event, held), real & (pl.col("kind") == "retract"))
    new_seq, let_in = (as_float(batch[name].sum(), 0.0) for name in ("new_seq", "started"))
    thrown_back = as_float(retracted["num_retracted_reqs"].sum(), 0.0)
    admitted = let_in - thrown_back
    fewer = batch.group_by("source", "dp_rank").agg(
        pl.col("running_req").drop_nulls().first() - pl.col("running_req").drop_nulls().last()
    )
    fewer_running = as_float(fewer["running_req"].sum(), 0.0)
    seconds = sum((b - a).total_seconds() for a, b, _ in held)
    if waited < max(seconds, 1.0) or admitted < _ADMITTED:  # less than one waited on average
        return None
    by = f"{new_seq:,.0f} #new-seq"
    if new_seq > let_in:
        chunks = new_seq - let_in
        go = "chunk that goes" if chunks == 1 else "chunks that go"
        by += f" - {chunks:,.0f} {go} on with a prompt"
    by += f" - {thrown_back:,.0f} retracted"
    if fewer_running > 0:
        by += f" + {fewer_running:,.0f} fewer running"
    first = primary.episodes[0]
    return Evidence(
        f"waiting time of a request{_whose(primary, data)}",
        round(waited / (admitted + max(fewer_running, 0.0)), 1),
        "s",
        first.source,
        first.first_line,
        formula=f"#queue-req x time, {waited:,.0f} s in the episodes, / requests: {by}",
    )


def _inside(
    rows: pl.DataFrame, held: Sequence[tuple[datetime, datetime, str | None]]
) -> pl.Series:
    """Return which rows lie in an episode: in its time, and of its rank where it has one."""
    ranks = rows.select_seq(derive.rank_text()).to_series()
    inside = pl.repeat(False, rows.height, dtype=pl.Boolean, eager=True)
    for rank in {r for _, _, r in held}:
        spans = [(a, b) for a, b, r in held if r == rank]
        in_time = within(rows["time"], spans)
        if rank is not None:
            in_time &= (ranks == rank) | ranks.str.starts_with(f"{rank} ")
        inside |= in_time
    return inside


def _lasted() -> pl.Expr:
    """Return for how long the state that a line prints held, in seconds; null for the last.

    To the next line, but not through a silence: at most `GAP_S` a line that the next row that
    stands for some stands for.
    """
    to_next = pl.col("time").diff().shift(-1).dt.total_milliseconds() / 1_000
    printed = pl.when(pl.col("lines") > 0).then("lines").backward_fill().shift(-1)
    return to_next.clip(0, GAP_S * printed.fill_null(1))


def _lost(death: Finding, data: SessionData) -> str:
    """Say how many requests a server that died had in it, by each rank's last line before that.

    A prefill line prints the batch before the new requests joined it; one whose prompt is cut
    there runs not yet, and waits no longer.
    """
    died = next((e.start for e in death.episodes if e.start and e.end), None)
    if not died or death.severity < Severity.CRITICAL:
        return ""
    just = pl.col("time").is_between(died - timedelta(seconds=GAP_S), died)
    inside = pl.col("running") + pl.col("cut").cast(pl.Int64)
    last = pl.concat(
        one.lines.filter(just).select_seq(
            running=inside.drop_nulls().last(), waiting=pl.col("queue_req").drop_nulls().last()
        )
        for one in timeline.of(data)
    )
    running, waiting = (int(as_float(last[c].sum(), 0.0)) for c in ("running", "waiting"))
    if not running + waiting:
        return ""
    return f"lost with it: {running:,} running and {waiting:,} waiting requests"


def _fewer_tokens(one: Finding) -> str:
    """Say what accept lengths that fell cost; empty where they were as low at first."""
    now, early = (as_float(item.value, 0.0) for item in one.evidence[:2])
    if now >= early:
        return ""
    return f"a decode step yields {1 - now / early:.0%} fewer tokens than at first"


def _headline(
    primary: Finding, own: Outcome, profile: Profile | None, cost: str = "", elsewhere: str = ""
) -> str:
    claim, _, detail = primary.summary.rstrip(".").partition("; ")
    said = "; ".join(part for part in (claim, cost, detail) if part)
    if primary.confidence == "low" and not own.judged and own.length:
        said = f"{said} (low confidence: {own.length} cannot show how long this lasted)"
    if primary.code in _PROFILE_WORDS:
        said = f"{said}; {_PROFILE_WORDS[primary.code][profile]}"
    if elsewhere:
        said = f"{said}; {elsewhere}"
    return f"{said}."


def _unexplained_wait(outcomes: Sequence[Outcome], sessions: Sequence[SessionData]) -> str:
    """Say that requests waited most of the time and no rule tells why; empty if they did not.

    Most causes need a minute to be told apart, and a server with a queue is not called healthy
    for want of it.
    """
    for data in sessions:
        own = [o for o in outcomes if o.session == data.session.id]
        if any(o.finding and o.code in _PASSING for o in own):
            continue
        to_next = pl.col("time").diff().shift(-1).dt.total_milliseconds().clip(0) / 1_000
        by_rank = ("source", "dp_rank")
        queue = pl.col("queue_req")
        if data.session.role == "decode":  # whose requests wait for preallocation
            before = pl.col("prealloc_req").fill_null(0)
            queue = queue + pl.when(before >= _BACKLOG).then(before).otherwise(0)
        waiting = queue > 0
        waits = (
            data.batch.filter(~pl.col("duplicate").fill_null(False))
            .with_columns_seq(_s=to_next.over(by_rank), _held=_lasted().over(by_rank))
            .group_by("dp_rank")
            .agg(
                share=pl.col("_held").filter(waiting).sum() / pl.col("_s").sum(),
                queue=(queue * pl.col("_held")).sum() / pl.col("_s").sum(),
                usage=pl.col("kv_usage").mean(),
            )
            # A rank with a single line has no time, and NaN is no share.
            .filter(pl.col("share").fill_nan(0.0) >= _WAITS_SHARE, pl.col("queue") >= 1)
            .sort("queue")
        )
        if waits.height and own:
            row = waits.row(-1, named=True)
            usage = f" at usage {row['usage']:.2f}" if row["usage"] is not None else ""
            known = data.session.config.kv_capacity_tokens is not None
            start = "" if known else ", with its start-up lines,"
            return (
                f"Cannot tell from this log why requests wait: {row['queue']:,.0f} on average"
                f"{usage}, for {row['share']:.0%} of {own[0].length}; no rule finds the cause in "
                f"it. More of the log{start} may show it."
            )
    return ""


def _undetermined(outcomes: Sequence[Outcome], split: Sequence[SessionData]) -> str:
    doubt = next((o.doubt for o in outcomes if o.doubt), None)
    if doubt:
        return f"Cannot tell from this log: {doubt}."
    lengths = list(dict.fromkeys(o.length for o in outcomes if o.length))
    lines = sum(s.batch.height for s in split)
    if not lines:
        return f"Cannot tell from this log: it holds no decode or prefill line{_instead(split)}."
    lacking = [
        label
        for column, label in (("kv_usage", "token usage"), ("queue_req", "#queue-req"))
        if all(s.batch[column].null_count() == s.batch.height for s in split)
    ]
    if lacking:
        return f"Cannot tell from this log: its lines print no {' and no '.join(lacking)}."
    seen = _seen(split)
    spans = [derive.time_span(s.batch) for s in split]
    long = any(a and b and b - a >= timedelta(minutes=1) for a, b in spans)
    more = f"{'more' if long else 'a minute'} of the server's log under load would do"
    return (
        f"Cannot tell from this log: it holds {_lengths(lengths)}, too little to judge"
        f"{f' ({seen})' if seen else ''}; {more}."
    )


def _instead(split: Sequence[SessionData]) -> str:
    """Say what a log without statistics lines holds, and where they may be."""
    thrown = sum(
        int(as_float(timeline.retractions(data, None)["num_retracted_reqs"].sum(), 0.0))
        for data in split
    )
    said = ""
    if thrown:
        plural = "s" * (thrown != 1)
        said = f", but {thrown} retracted request{plural}: the KV pool was full while decoding"
    missing = ranks_missing(split)
    if missing is None:
        return f"{said}; {_unlogged(split)}"
    ranks = missing[0] if missing[0] == missing[1] else f"{missing[0]} to {missing[1]}"
    return (
        f"{said}; it looks like the log of another node than the first, whose log, with {ranks}, "
        "has the statistics"
    )


#: Values of --log-level at which no statistics are printed.
_TOO_QUIET = ("warning", "warn", "error", "critical", "fatal")


def _unlogged(split: Sequence[SessionData]) -> str:
    """Say what kept statistics out of a log, or what it takes to have them."""
    configs = [data.session.config for data in split]
    level = next((v for c in configs if isinstance(v := c.arg("log_level"), str)), "info")
    if level.lower() in _TOO_QUIET:
        return f"--log-level {level} left them out: start the server with --log-level info"
    steps = next((v for c in configs if isinstance(v := c.arg("decode_log_interval"), int)), None)
    every = "" if steps is None else f" ({steps:,} here)"
    return (
        "a server prints them to its standard error at --log-level info while requests run, a "
        f"decode line every --decode-log-interval steps{every}; give what it wrote while it was "
        "slow, and of a server on several nodes the first one's log"
    )


def _seen(sessions: Sequence[SessionData]) -> str:
    """Say what the few lines show, without judging it."""
    rows = [s.batch.select_seq("queue_req", "kv_usage") for s in sessions]
    queue = max((int(as_float(r["queue_req"].max(), 0.0)) for r in rows), default=0)
    usage = max((as_float(r["kv_usage"].max(), 0.0) for r in rows), default=0.0)
    if not queue:
        return f"nothing waits, usage up to {usage:.2f}"
    return (
        f"up to {queue} waiting at usage up to {usage:.2f}; the cause does not show in so "
        "few lines"
    )


def _healthy(outcomes: Sequence[Outcome], sessions: Sequence[SessionData]) -> str:
    lengths = list(dict.fromkeys(o.length for o in outcomes if o.judged))
    seen = {o.code for o in outcomes if o.finding}
    if "KV003" in seen:
        extra = ", with the KV pool nearly full but nothing waiting for long"
    elif "CLI001" in seen and _mostly("CLI001", outcomes, sessions):
        extra = ", and the server could take more: its clients do not ask for it"
    else:
        extra = ""
    return f"No problem found in {_lengths(lengths)}{extra}."


def _mostly(code: str, outcomes: Sequence[Outcome], sessions: Sequence[SessionData]) -> bool:
    """Whether what a rule found held for most of the log."""
    held = sum(_held_s(o.finding) for o in outcomes if o.finding and o.code == code)
    ends = [(data.session.start, data.session.end) for data in sessions]
    return 2 * held >= sum((end - start).total_seconds() for start, end in ends if start and end)


def _lengths(said: Sequence[str]) -> str:
    """Say how much log the first sessions hold, and that others follow."""
    more = ", and more in other sessions" if len(said) > 3 else ""
    return f"{'; '.join(said[:3])}{more}"


def _healthy_confidence(
    outcomes: Sequence[Outcome], sessions: Sequence[SessionData]
) -> Confidence:
    """High when rules could look for all the usual causes: config printed, and time enough."""
    errors = any(o.status == "error" for o in outcomes)
    config = all(s.session.config.kv_capacity_tokens for s in sessions)
    lines = sum(s.batch.height for s in sessions)
    if errors or lines < 60:
        return "low"
    return "high" if config and lines >= 300 else "medium"
