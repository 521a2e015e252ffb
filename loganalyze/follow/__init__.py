"""While it happens: the rules of `check`, asked again and again as the log grows.

Lines go through the parser that reads whole logs into a window of bounded size; every few
seconds of log time the rules run over the window, and `Alerts` makes of what they find one
alert and one all-clear each. At the end of a log the findings are those of `check`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import polars as pl

from loganalyze import derive, guesses, pipeline, reading, rules
from loganalyze.filters import Filters
from loganalyze.follow import silence
from loganalyze.follow.alerts import DEATH, GRACE_LINES, HANG, Alerts, Event
from loganalyze.follow.gauges import SET_BACK, Gauges, Now
from loganalyze.follow.live import LiveReader, LiveSource
from loganalyze.follow.window import Window
from loganalyze.frames import Frames
from loganalyze.model import Finding, Report, SessionData, Severity
from loganalyze.parse import Parser
from loganalyze.redact import Redactor
from loganalyze.rules import Profile

__all__ = ["Change", "Follower", "Now", "State", "StatusLine"]

State = Literal["waiting", "undetermined", "healthy", "degraded", "saturated", "idle", "silent"]

#: Seconds of log time from one run of the rules to the next; more where there is much to catch up.
EVERY_S = 15.0
#: Runs of the rules over what came at once.
_CATCH_UP_RUNS = 40
#: Without stamps the rules run every so many statistics lines.
EVERY_LINES = 200

#: The last lines before a pause are judged after this long: they may be a server's last words.
QUIET_S = 3.0

#: A server is called idle after this long without a running or waiting request.
IDLE_S = 60.0
#: A server with running requests is called silent after this long without a line.
SILENT_S = 45.0

#: A log this short is not called healthy (see rules.registry).
_JUDGED_S, _JUDGED_LINES = 30.0, 20

_SATURATED = frozenset({"KV001", "KV002", "SWA001", "MAM001", "PDD001"})
#: Severe ones of these say more than that it is saturated.
_FATAL = frozenset({DEATH, HANG})


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state.

    Attributes:
        event: `alert`, `worse` (it was told of as less severe) and `clear` carry their
            finding; `state` is any other change; `end` the end of the log.
        time: newest stamp of the log; None without stamps.
        state, was: the state now and before.
        active: codes that are raised now, worst first.
        now: what the server printed last.
    """

    event: Event | Literal["state", "end"]
    time: datetime | None
    state: State
    was: State
    active: tuple[str, ...]
    now: Now
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class StatusLine:
    """Everything that a view of a followed log shows.

    `active` is what is raised, worst first.
    `trail` holds the values of the last minutes, oldest first: usage, running, waiting, rate.
    `raised` is how often each code was raised since the start.
    """

    names: tuple[str, ...]
    state: State
    since: datetime | None
    active: tuple[Finding, ...]
    now: Now
    trail: Mapping[str, Sequence[float | None]]
    lines: int
    raised: Mapping[str, int]
    capacity_tokens: int | None


class Follower:
    """Judges logs while they grow.

    Args:
        overrides: limits of rules, checked.
        profile: what the servers are for.
    """

    def __init__(
        self,
        overrides: Mapping[str, float] | None = None,
        profile: Profile | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._redactor = redactor or Redactor()
        self._overrides = dict(overrides or {})
        self._profile = profile
        self._parser = Parser()
        self._window = Window()
        self._readers: dict[str, LiveReader] = {}
        self._sources: dict[str, LiveSource] = {}
        self._alerts = Alerts()
        self._gauges = Gauges()
        self._state: State = "waiting"
        self._since: datetime | None = None
        self._raised: dict[str, int] = {}
        self._clock: datetime | None = None
        self._next: datetime | None = None
        self._next_line = EVERY_LINES
        self._seen: dict[str, int] = {}
        self._stamp: dict[str, datetime] = {}
        self._anew: dict[str, int] = {}
        self._capacity: int | None = None
        self._judged = False
        self._lives: list[SessionData] = []
        self._unjudged = False
        self._spoken: set[str] = set()
        self._paused = False
        self._live: set[str] = set()
        self._quiet: dict[str, float] = {}
        self._due: dict[int, float | None] = {}

    # -- what comes in --------------------------------------------------------------------

    def add(self, name: str, kind: str) -> None:
        """Take in a log; its lines come by `push`."""
        source = LiveSource(name, kind)
        self._sources[name] = source
        self._readers[name] = LiveReader(self._parser, source)
        self._window.order.append(name)

    def push(self, name: str, data: bytes, *, history: bool = False) -> list[Change]:
        """Take whole lines of a log, and tell what changed.

        Args:
            name: of the log.
            data: the lines, each with its end.
            history: what was written before anyone watched: kept, but not judged yet.
        """
        if not data:
            return []
        self._quiet.pop(name, None)
        reader = self._readers[name]
        settled = reader.feed(self._sources[name].take(data))
        if settled is not None:
            self._window.add(settled)
        pending = None if history else reader.pending()
        if pending is None:
            self._window.pending.pop(name, None)
        else:
            self._window.pending[name] = pending
        self._hear(name, settled, pending)
        new = self._new(name, settled, pending)
        return [] if history or new is None else self._judge_new(name, *new)

    def tick(self, quiet_s: float, of: Mapping[str, float] | None = None) -> list[Change]:
        """Tell what changes because nothing comes.

        Args:
            quiet_s: seconds since the last line of any log came.
            of: the same of each log; all alike by default.
        """
        self._quiet = dict(of or dict.fromkeys(self._sources, quiet_s))
        if self._clock is None:
            return []
        self._paused |= quiet_s > 0
        if self._unjudged and quiet_s >= QUIET_S:
            return self._run()
        told = self._hangs()
        if quiet_s >= EVERY_S and not self._busy():
            moment = self._clock + timedelta(seconds=quiet_s)
            told += self._alerts.expire(moment, self._gauges.now.line)
        if not told and quiet_s < EVERY_S:
            return []
        return self._changes(told, quiet_s=quiet_s)

    def catch_up(self) -> list[Change]:
        """Judge everything that is there, at once: after the history of a log was read."""
        for name, reader in self._readers.items():
            pending = reader.pending()
            if pending is not None:
                self._window.pending[name] = pending
                self._hear(name, pending)
                self._new(name, pending)
        self._paused = True
        frames = self._window.frames()
        if frames:
            newest = [frames[name]["time"].max() for name in ("batch", "event", "startup")]
            times = [t for t in newest if isinstance(t, datetime)]
            self._note(frames["batch"], max(times, default=None))
            self._seen = {name: source.lines for name, source in self._sources.items()}
        return self._run()

    def finish(self) -> list[Change]:
        """Tell what the end of the logs changes; the last line may lack its end."""
        self._window.pending.clear()
        for reader in self._readers.values():
            last = reader.finish()
            if last is not None:
                self._window.add(last)
        changes = self._run()
        return [*changes, self._change("end", None, self._state)]

    # -- what goes out --------------------------------------------------------------------

    @property
    def lines(self) -> int:
        """Lines read."""
        return sum(source.lines for source in self._sources.values())

    def lines_of(self, name: str) -> int:
        """Return the lines read of one log."""
        return self._sources[name].lines

    @property
    def statistics(self) -> int:
        """Statistics lines read."""
        return self._parser.coverage().lines_batch

    @property
    def spoken(self) -> bool:
        """Whether any log holds a line of SGLang."""
        return bool(self._spoken)

    def foreign(self, name: str) -> tuple[str, str] | None:
        """Return what a log looks like in which no line is one of SGLang, and what to do.

        None for a log that has such a line, or no line at all.
        """
        source = self._sources[name]
        if not source.lines or name in self._spoken:
            return None
        return guesses.guess_head(source.recent)

    def report(self, command: str = "") -> Report:
        """Return the report on what is in the window: the last day."""
        report, _ = pipeline.judge(
            self._window,
            list(self._sources.values()),
            self._parser.coverage(),
            overrides=self._overrides,
            profile=self._profile,
            command=command,
            redactor=self._redactor,
        )
        return self._redactor.report(report)

    def status(self) -> StatusLine:
        """Return what a view shows."""
        return StatusLine(
            names=tuple(map(self._redactor.name, self._sources)),
            state=self._state,
            since=self._since,
            active=self._redactor.whole(tuple(self._alerts.active)),
            now=self._gauges.latest(),
            trail=self._gauges.trail(),
            lines=self.lines,
            raised=dict(self._raised),
            capacity_tokens=self._capacity,
        )

    def _hear(self, name: str, *chunks: Frames | None) -> None:
        """Note that a log holds a line of SGLang; access lines are those of any server."""
        if any(f.batch.height + f.event.height + f.startup.height for f in chunks if f):
            self._spoken.add(name)

    # -- when the rules run ---------------------------------------------------------------

    def _new(self, name: str, *chunks: Frames | None) -> tuple[pl.DataFrame, pl.DataFrame] | None:
        """Return the lines and stamps that were not seen yet, and their statistics; None: none."""
        parts = [f for f in chunks if f is not None]
        if not parts:
            return None
        unseen = pl.col("line_no") > self._seen.get(name, 0)
        marks = [
            rows.select("line_no", "time") for f in parts for rows in (f.batch, f.event, f.startup)
        ]
        new = pl.concat(marks).filter(unseen).sort("line_no")
        if not new.height:
            return None
        self._seen[name] = int(new["line_no"][-1])
        stamped = new.drop_nulls("time")
        if stamped.height:
            before = stamped["time"].shift(1, fill_value=self._stamp.get(name))
            back = stamped.filter(before - stamped["time"] > SET_BACK)
            if back.height:
                self._anew[name] = int(back["line_no"][-1])
            self._stamp[name] = stamped["time"][-1]
        return new, pl.concat([f.batch for f in parts]).filter(unseen)

    def _judge_new(self, name: str, new: pl.DataFrame, batch: pl.DataFrame) -> list[Change]:
        """Run the rules at each moment of log time that the new rows reach."""
        self._unjudged = True
        # What came before the first pause may have been written long ago.
        if self._paused:
            self._live.add(name)
        newest = new["time"].max()
        if self._clock and isinstance(newest, datetime) and self._clock - newest > SET_BACK:
            self._clock = self._next = None
        changes: list[Change] = []
        for stop in self._stops(new):
            line = int(new["line_no"][stop])
            self._note(batch.filter(pl.col("line_no") < line), new["time"][stop])
            batch = batch.filter(pl.col("line_no") >= line)
            self._window.until = (name, line)
            changes += self._run()
        self._window.until = None
        self._note(batch, new["time"].max())
        return [*changes, *self._changes([])]

    def _stops(self, new: pl.DataFrame) -> list[int]:
        """Return the rows before which the rules run: the first at or after each due moment."""
        times = new["time"]
        newest = times.max()
        if not isinstance(newest, datetime):
            stops = list(range(self._next_line, new.height, EVERY_LINES))
            self._next_line = (stops[-1] + EVERY_LINES if stops else self._next_line) - new.height
            return stops
        if self._next is None:
            self._next = _after(times.drop_nulls()[0], EVERY_S)
        stops = []
        behind = (newest - self._next).total_seconds()
        step = EVERY_S if behind < 10 * EVERY_S else max(4 * EVERY_S, behind / _CATCH_UP_RUNS)
        while self._next <= newest:
            hit = int((times >= self._next).fill_null(False).arg_max() or 0)
            stops.append(hit)
            self._next = _after(times[hit], step)
        return stops

    def _run(self) -> list[Change]:
        """Run the rules over what may be seen, and tell what changed."""
        self._unjudged = self._window.until is not None
        if not self._window.frames():
            return []
        measured = reading.measured(self._window, list(self._sources.values()), Filters())
        sessions = [self._redactor.session(data) for data in measured]
        if not sessions:
            return []
        outcomes = rules.run(_latest(sessions), self._overrides)
        self._capacity = sessions[-1].session.capacity.kv_tokens
        self._judged = _long_enough(sessions)
        self._lives = _lives(sessions)
        self._due.clear()
        dead = {data.session.id for data in self._lives if data.session.ended_by == "crash"}
        found = [f for f in rules.findings(outcomes) if f.session in dead or not self._past(f)]
        found += self._silences()
        told = self._alerts.update(found, self._clock, self._gauges.now.line, dead)
        return self._changes(told)

    def _past(self, finding: Finding) -> bool:
        """Whether a finding was over before its log's clock was set back.

        Its times then lie ahead of the clock, and would make it go on for as long.
        """
        if not finding.episodes:
            return False
        name = finding.episodes[-1].last_source or finding.episodes[-1].source or ""
        until = self._window.until
        line = until[1] if until and until[0] == name else self._seen.get(name, 0)
        last = max(e.last_line for e in finding.episodes)
        return last <= min(self._anew.get(name, 0), line - GRACE_LINES)

    def _hangs(self) -> list[tuple[Event, Finding]]:
        """Tell of the servers that stand still, as far as silence can tell."""
        known = {f.session for f in self._alerts.active if f.code == HANG}
        line = self._gauges.now.line
        return [
            event
            for one in self._silences(known)
            for event in self._alerts.add(one, self._clock, line)
        ]

    def _silences(self, known: Collection[int] = ()) -> list[Finding]:
        """Return the silences that last and that no idleness explains, one a server.

        Each log has its own: of several servers one may stand still while the others print.
        """
        limits = silence.limits(self._overrides)
        found = []
        for data in self._lives:
            session, logs = data.session.id, data.batch["source"].unique()
            quiet = min((self._quiet.get(name, 0.0) for name in logs), default=0.0)
            if quiet < limits["report_s"] or session in known or self._live.isdisjoint(logs):
                continue
            if session not in self._due:
                self._due[session] = silence.due_s(data, limits)
            due = self._due[session]
            if due is not None and quiet >= due:
                found.append(silence.find(data, quiet, limits))
        return found

    def _note(self, batch: pl.DataFrame, time: object) -> None:
        if batch.height:
            self._gauges.update(derive.add_columns(batch))
        if isinstance(time, datetime):
            self._clock = time if self._clock is None else max(time, self._clock)

    # -- states ---------------------------------------------------------------------------

    def _changes(
        self, told: Sequence[tuple[Event, Finding]], quiet_s: float = 0.0
    ) -> list[Change]:
        """Return the alerts and all-clears, or the change of state where there are none."""
        was = self._state
        self._state = self._state_now(quiet_s)
        if self._state != was:
            self._since = self._clock
        changes = []
        for event, finding in told:
            if event == "alert":
                self._raised[finding.code] = self._raised.get(finding.code, 0) + 1
            changes.append(self._change(event, finding, was))
        if not changes and self._state != was:
            changes.append(self._change("state", None, was))
        return changes

    def _change(
        self, event: Event | Literal["state", "end"], finding: Finding | None, was: State
    ) -> Change:
        now = self._gauges.latest()
        active = tuple(dict.fromkeys(f.code for f in self._alerts.active))
        shown = self._redactor.whole(finding)
        return Change(event, self._clock, self._state, was, active, now, shown)

    def _busy(self) -> bool:
        """Whether requests ran or waited at the last line of servers that may still live."""
        now = self._gauges.now
        over = all(data.session.ended_by != "end_of_log" for data in self._lives)
        work = (now.running or 0) + (now.waiting or 0) > 0
        return work and not (self._lives and over)

    def _state_now(self, quiet_s: float) -> State:
        now = self._gauges.now
        raised = self._alerts.active
        active = {f.code for f in raised}
        if raised and raised[0].code in _FATAL and raised[0].severity >= Severity.CRITICAL:
            return "degraded"
        if active & _SATURATED:
            return "saturated"
        if active:
            return "degraded"
        if not now.line:
            return "waiting"
        busy = self._busy()
        if busy and quiet_s >= SILENT_S:
            return "silent"
        if self._gauges.idle_s + (0.0 if busy else quiet_s) >= IDLE_S:
            return "idle"
        return "healthy" if self._judged else "undetermined"


def _after(time: datetime, step_s: float) -> datetime:
    """Return the next moment of a grid of `step_s` seconds that starts with the day."""
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    passed = (time - midnight).total_seconds() // step_s + 1
    return midnight + timedelta(seconds=passed * step_s)


def _latest(sessions: Sequence[SessionData]) -> list[SessionData]:
    """Return the last two sessions of each log: what is over long since is not judged again."""
    logs: dict[str, list[SessionData]] = {}
    for data in sessions:
        logs.setdefault(data.session.source, []).append(data)
    kept = {data.session.id for own in logs.values() for data in own[-2:]}
    return [data for data in sessions if data.session.id in kept]


def _lives(sessions: Sequence[SessionData]) -> list[SessionData]:
    """Return the last session of each server of each log."""
    return list({(d.session.source, d.session.server): d for d in sessions}.values())


def _long_enough(sessions: Sequence[SessionData]) -> bool:
    last = sessions[-1].session
    lines = sessions[-1].batch.height
    if lines < _JUDGED_LINES or last.start is None or last.end is None:
        return lines >= _JUDGED_LINES and last.start is None
    return (last.end - last.start).total_seconds() >= _JUDGED_S
