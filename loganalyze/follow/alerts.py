"""One alert when a finding begins, one all-clear when it has ended for good.

Rules have their own hysteresis, but each time they are asked the log is a little longer, and
the end of a log is where they know least. So a finding that was raised stays raised until it
was not seen for a while. What comes with something at least as severe is raised without a word
of its own: one saturation is one alert, whatever it drags along. A server that died or stands
still is news all the same. One that was told of as a warning and has become critical is told
once more, as `worse`: a whole log is judged by how long things lasted, and a growing one learns
that late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from loganalyze.model import Finding, Severity

#: An episode is going on if it ended at most this long ago: rules smooth over seconds.
GRACE_S = 20.0
#: An alert is over when no episode was going on for this long.
CLEAR_S = 120.0
#: The same in lines, for logs without stamps.
GRACE_LINES, CLEAR_LINES = 20, 200

#: What is told of although something as severe was: the server stands still, or is gone.
DEATH, HANG = "CRS001", "HNG001"
_FATAL = {HANG: 1, DEATH: 2}

Event = Literal["alert", "worse", "clear"]


@dataclass(slots=True)
class _Raised:
    finding: Finding
    last_time: datetime | None
    last_line: int
    told: Severity | None = None
    lasts: bool = False


class Alerts:
    """The findings that are raised, by log and code."""

    def __init__(self) -> None:
        self._raised: dict[tuple[str | None, str], _Raised] = {}
        self._before: tuple[datetime | None, int] | None = None

    @property
    def active(self) -> list[Finding]:
        """What is raised, worst first; among equals in the order in which it began."""
        found = [one.finding for one in self._raised.values()]
        return sorted(found, key=_weight, reverse=True)

    def update(
        self,
        findings: Iterable[Finding],
        now: datetime | None,
        line: int,
        dead: Collection[int] = (),
    ) -> list[tuple[Event, Finding]]:
        """Take what the rules found up to a moment.

        Args:
            findings: all findings of the log so far, worst first.
            now: the newest stamp; None without stamps.
            line: the newest line.
            dead: sessions that died and were not started again: their deaths go on.

        Returns:
            What begins and what ends, in the order in which it is to be told.
        """
        # What began and ended between two looks must not be missed.
        since_time, since_line = self._before or (now, line)
        self._before = now, line
        for one in self._raised.values():
            one.lasts = False
        for finding in findings:
            death = finding.code == DEATH
            if finding.severity < Severity.WARNING or (finding.explained_by and not death):
                continue
            key = (finding.episodes[-1].source if finding.episodes else None, finding.code)
            known = self._raised.get(key)
            lasts = (death and finding.session in dead) or _still(finding)
            if lasts or _going_on(finding, since_time, since_line):
                told = known.told if known else None
                self._raised[key] = _Raised(finding, now, line, told, lasts)
            elif known and known.finding.session == finding.session:
                known.finding = finding
        return self.expire(now, line)

    def add(
        self, finding: Finding, now: datetime | None, line: int
    ) -> list[tuple[Event, Finding]]:
        """Take a finding that lasts while nothing comes, which no rule can see yet."""
        key = (finding.episodes[-1].source, finding.code)
        if key in self._raised:
            return []
        self._raised[key] = _Raised(finding, now, line, lasts=True)
        return self.expire(now, line)

    def expire(self, now: datetime | None, line: int) -> list[tuple[Event, Finding]]:
        """Return new alerts, what got worse, and the all-clears of what is over for good."""
        for one in self._raised.values():
            if now is not None and one.last_time is not None:
                one.last_time = min(one.last_time, now)  # the clock may have been set back
        over = [key for key, one in self._raised.items() if _is_over(one, now, line)]
        ended = [self._raised.pop(key) for key in over]
        told: list[tuple[Event, Finding]] = []
        for (source, _), one in sorted(
            self._raised.items(), key=lambda item: _weight(item[1].finding), reverse=True
        ):
            severity = one.finding.severity
            if one.last_time != now or one.last_line != line:
                continue
            if one.told is None and not self._covered(source, one.finding):
                told.append(("alert", one.finding))
                one.told = severity
            elif one.told is not None and severity > one.told:
                told.append(("worse", one.finding))
                one.told = severity
        return [*told, *(("clear", one.finding) for one in ended if one.told is not None)]

    def _covered(self, source: str | None, finding: Finding) -> bool:
        """Whether something at least as severe was told of the same log."""
        return any(
            one.told is not None and (one.told, _fatal(one.finding)) >= _weight(finding)
            for (other, _), one in self._raised.items()
            if other == source
        )


def _weight(finding: Finding) -> tuple[Severity, int]:
    """Return how bad a finding is; among equals a death is worst, then a hang."""
    return finding.severity, _fatal(finding)


def _fatal(finding: Finding) -> int:
    return _FATAL.get(finding.code, 0)


def _still(finding: Finding) -> bool:
    """Whether a server stands still as of now: its silence has no end yet."""
    return finding.code == HANG and finding.episodes[-1].end is None


def _going_on(finding: Finding, since: datetime | None, since_line: int) -> bool:
    """Whether an episode was going on at a moment, or began after it."""
    ends = [e.end for e in finding.episodes if e.end is not None]
    if since is not None and ends:
        return max(ends) >= since - timedelta(seconds=GRACE_S)
    return any(e.last_line >= since_line - GRACE_LINES for e in finding.episodes)


def _is_over(one: _Raised, now: datetime | None, line: int) -> bool:
    if one.lasts:
        return False
    if now is not None and one.last_time is not None:
        return now - one.last_time >= timedelta(seconds=CLEAR_S)
    return line - one.last_line >= CLEAR_LINES
