"""Before and after: what was changed about a server, and what that did.

Every side is read by the one pipeline; then the settled time of both (settled.py) is compared
measure by measure (measures.py), with intervals that know how waves of requests scatter
(intervals.py).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from loganalyze import __version__, pipeline, reading, rules, series, signals
from loganalyze.compare import measures, settings, settled
from loganalyze.compare.measures import Run
from loganalyze.errors import InputError, UsageError, utf8
from loganalyze.filters import Filters
from loganalyze.model import (
    Comparison,
    Difference,
    Pair,
    Report,
    SessionData,
    Side,
    Size,
    Unreadable,
)
from loganalyze.parse import Parser
from loganalyze.redact import Redactor
from loganalyze.rules import Profile
from loganalyze.store import Store

#: Measures whose fall is a regression of the server.
_REGRESSIONS = ("throughput", "rate_per_req")


@dataclass(frozen=True, slots=True)
class _How:
    """How every run is judged."""

    overrides: Mapping[str, float]
    profile: Profile | None
    filters: Filters | None
    redactor: Redactor


@dataclass(frozen=True)
class _Loaded:
    """A log that was read: its report and sessions."""

    report: Report
    sessions: Sequence[SessionData]


def compare(
    before: str,
    *after: str,
    overrides: Mapping[str, float] | None = None,
    profile: Profile | None = None,
    filters: Filters | None = None,
    on_progress: Callable[[int], None] | None = None,
    command: str = "",
    redact: bool = True,
) -> Comparison:
    """Compare runs with the first one.

    Args:
        before: a log, or one session of it: `server.log#1`. Of a log with several sessions
            the one with most statistics lines is taken where none is named.
        after: further ones, each compared with `before`.
        overrides: limits of rules, as in `pipeline.analyze`; the same for every run.
        profile: what the servers are for.
        filters: the part of each log to look at.
        on_progress: called with the number of bytes read since the last call.
        command: the command line, for the page.
        redact: as in `pipeline.analyze`; a host has one name on all sides.

    Raises:
        InputError: `before`, or all of `after`, cannot be used.
        UsageError: a session that the log does not have.
    """
    redactor = Redactor(keep=not redact)
    how = _How(rules.checked_overrides(overrides or {}), profile, filters, redactor)
    logs: dict[str, _Loaded | InputError] = {}
    for path in dict.fromkeys(_place(name)[0] for name in (before, *after)):
        logs[path] = _load(path, how, on_progress)
    first, base = _side(before, logs, how)
    pairs: list[Pair] = []
    unreadable: list[Unreadable] = []
    for name in after:
        try:
            side, run = _side(name, logs, how)
        except InputError as error:
            unreadable.append(Unreadable(utf8(name), error.message, error.hint))
            continue
        pairs.append(_pair(first, base, side, run))
    if not pairs:
        raise InputError(unreadable[0].message, hint=unreadable[0].hint)
    return Comparison(
        __version__, first, pairs, redactor.text(command), redactor.whole(unreadable)
    )


def regressions(found: Comparison, share: float) -> list[tuple[Pair, Difference]]:
    """Return the falls of throughput, or of the rate per request, of at least `share`.

    Only falls that the interval shows: a verdict of `worse`.
    """
    return [
        (pair, one)
        for pair in found.pairs
        for one in pair.differences
        if one.name in _REGRESSIONS
        and one.verdict == "worse"
        and one.effect is not None
        and one.effect.mid <= 1 - share
    ]


def _place(name: str) -> tuple[str, int | None]:
    """Split `server.log#2` into its log and session; a file of that very name goes first."""
    match = re.fullmatch(r"(.+)#(\d+)", name, re.DOTALL)
    if match and not os.path.exists(name):
        return match[1], int(match[2])
    return name, None


def _load(path: str, how: _How, on_progress: Callable[[int], None] | None) -> _Loaded | InputError:
    parser, store = Parser(), Store()
    try:
        read, failed = reading.read_all(parser, store, [path], on_progress)
        report, sessions = pipeline.judge(
            store,
            read,
            parser.coverage(),
            overrides=how.overrides,
            profile=how.profile,
            filters=how.filters,
            unreadable=failed,
            redactor=how.redactor,
        )
    except InputError as error:
        name = f"{utf8(path)}: "
        return InputError(name + error.message.removeprefix(name), hint=error.hint)
    return _Loaded(replace(report, series=series.reduce(sessions)), sessions)


def _side(
    name: str, logs: Mapping[str, _Loaded | InputError], how: _How
) -> tuple[Side, Run | None]:
    """Return one side and what its measures are taken from (None: nothing to measure)."""
    path, wanted = _place(name)
    log = logs[path]
    if isinstance(log, InputError):
        raise log
    data, note = _choose(name, log.sessions, wanted)
    report = _of_session(log.report, data, how, alone=len(log.sessions) == 1)
    found = signals.build(data)
    time = settled.find(found, report.findings)
    run = Run(found, time) if time else None
    notes = [note] if note else []
    notes += [f"{item.name}: {item.message}" for item in report.unreadable]
    notes += [f"it did not end well: {f.summary}" for f in report.findings if f.code == "CRS001"]
    warm_ups = Counter(e.rank for f in report.findings if f.code == "WRM001" for e in f.episodes)
    if max(warm_ups.values(), default=0) > 1:
        notes.append("the request mix changed within this run; its settled time holds both mixes")
    side = Side(
        name=how.redactor.text(utf8(name)),
        report=how.redactor.report(report),
        settled=time.stretches if time else (),
        settled_s=time.seconds if time else 0.0,
        left_out=time.left_out if time else {},
        levels=measures.levels(run) if run else {},
        notes=how.redactor.whole(notes),
    )
    return side, run


def _choose(
    name: str, sessions: Sequence[SessionData], wanted: int | None
) -> tuple[SessionData, str]:
    """Return the session that was named, or the one with most lines and a word about it."""
    if wanted is not None:
        for data in sessions:
            if data.session.id == wanted:
                return data, ""
        raise UsageError(
            f"{name}: the log has no session {wanted}",
            hint=f"its sessions are 1 to {len(sessions)}",
        )
    best = max(sessions, key=lambda data: data.batch.height)
    if len(sessions) == 1:
        return best, ""
    return best, (
        f"session {best.session.id} of {len(sessions)}, the one with most statistics lines; "
        f"{name}#1 would name the first"
    )


def _of_session(report: Report, data: SessionData, how: _How, *, alone: bool) -> Report:
    """Return the report of one session of a log."""
    if alone:
        return report
    own = data.session.id
    outcomes = rules.run([data], how.overrides)
    return replace(
        report,
        verdict=rules.conclude(outcomes, [data], how.profile),
        sessions=[data.session],
        findings=[f for f in report.findings if f.session == own],
        checked=rules.checked(outcomes),
        series=[s for s in report.series if s.session == own],
        events=[e for e in report.events if e.session == own],
        plan=None,
    )


def _pair(before: Side, base: Run | None, after: Side, run: Run | None) -> Pair:
    reason = measures.incomparable(base, run)
    load: list[Difference] = []
    if reason or base is None or run is None:
        found = measures.none(reason)
    else:
        load = measures.load(base, run)
        found = measures.differences(base, run, load)
    sizes = settings.sizes(before.session, after.session)
    return Pair(
        after=after,
        settings=settings.changed(before.session, after.session),
        settings_known=bool(before.session.config.args and after.session.config.args),
        sizes=sizes,
        load=load,
        differences=found,
        headline=_headline(found, sizes) + _died(before, after),
        notes=_notes(before, after),
    )


def _headline(found: Sequence[Difference], sizes: Sequence[Size]) -> str:
    """Say what happened in one sentence: throughput, and the pool where its size changed."""
    throughput = found[0]
    said = {
        "better": "Throughput rose",
        "worse": "Throughput fell",
        "no difference shown": "No difference shown in throughput",
        "not comparable": "Throughput cannot be compared",
    }[throughput.verdict]
    if throughput.effect:
        e = throughput.effect
        said += f" {throughput.reason}: ×{e.mid:.2f} ({e.low:.2f} to {e.high:.2f})"
    else:
        said += f": {throughput.reason}"
    pool = next((s for s in sizes if s.name == "KV capacity"), None)
    if pool and pool.ratio and abs(pool.ratio - 1) >= 0.005:
        said += f"; KV capacity {100 * (pool.ratio - 1):+.1f}%"
    others = [one.label for one in found[1:] if one.verdict == "worse"]
    if others:
        said += f". Worse: {', '.join(others)}"
    return f"{said}."


def _died(before: Side, after: Side) -> str:
    """Say which side's server died: what it gained until then counts for little."""
    died = [side.session.ended_by == "crash" for side in (before, after)]
    if all(died):
        return " The servers of both runs died."
    return f" The server of the run {'before' if died[0] else 'after'} died." if any(died) else ""


def _notes(before: Side, after: Side) -> list[str]:
    """Return what limits the comparison as a whole."""
    notes = []
    if before.session.release_range != after.session.release_range:
        ranges = [
            " to ".join(dict.fromkeys(s.session.release_range or ("unknown",)))
            for s in (before, after)
        ]
        notes.append(f"the lines are those of release {ranges[0]} before, {ranges[1]} after")
    logs = [(s.report.sources[0].sha256, s.session.id) for s in (before, after)]
    if logs[0] == logs[1]:
        notes.append("both sides are the same session of the same log")
    return notes
