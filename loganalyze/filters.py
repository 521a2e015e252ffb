"""Choose what to look at: a span of time, ranks, sources.

Filters act on sessions that were split from the whole log, so that a window in the middle of
a run still knows the pool size and flags printed at its start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta

import polars as pl

from loganalyze import derive
from loganalyze.errors import InputError, UsageError, utf8
from loganalyze.model import SessionData

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Filters:
    """What to keep. Times as typed: absolute, or relative to the log's end (`-30m`).

    `ranks` are words of a printed rank tag (`DP1`, or `DP1 TP4`, all of which must match);
    `sources` are names of logs as given on the command line, or those without their folder, as
    a report calls them. Empty keeps everything.
    """

    since: str | None = None
    until: str | None = None
    ranks: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.since or self.until or self.ranks or self.sources)


def apply(sessions: Sequence[SessionData], filters: Filters) -> list[SessionData]:
    """Return the sessions cut to the filters; those with no record left are dropped.

    Start-up records stay, whenever they were printed.

    Raises:
        UsageError: a time that cannot be read.
        InputError: nothing is left; the message says what the log has.
    """
    if not filters:
        return list(sessions)
    ends = [s.session.end for s in sessions if s.session.end is not None]
    if (filters.since or filters.until) and not ends:
        raise InputError(
            "the log prints no time, so --since and --until cannot be applied",
            hint="cut the file by line numbers instead, e.g. with sed -n 100,200p",
        )
    keep = expression(filters, max(ends) if ends else None)
    kept = []
    for data in sessions:
        batch, event, request = (f.filter(keep) for f in (data.batch, data.event, data.request))
        if not (batch.height or event.height):
            continue
        start, stop = derive.time_span(batch, event)
        session = replace(data.session, start=start, end=stop)
        kept.append(replace(data, session=session, batch=batch, event=event, request=request))
    if not kept:
        raise InputError(
            _nothing_left(sessions), hint="loosen --since, --until, --rank or --source"
        )
    return kept


def expression(filters: Filters, end: datetime | None) -> pl.Expr:
    """Return the row condition of the filters, for any frame.

    Args:
        filters: what to keep.
        end: the log's last stamp, to which relative times count.
    """
    keep = pl.lit(True)
    if filters.since and end:
        keep &= pl.col("time") >= moment(filters.since, end)
    if filters.until and end:
        keep &= pl.col("time") <= moment(filters.until, end)
    if filters.ranks:
        chosen = pl.lit(False)
        for rank in filters.ranks:
            chosen |= _rank_condition(rank)
        keep &= chosen
    if filters.sources:
        names = [utf8(name) for name in filters.sources]
        alone = pl.col("source").str.extract(r"([^/]+)$")
        keep &= pl.col("source").is_in(names) | alone.is_in(names)
    return keep


def moment(text: str, end: datetime) -> datetime:
    """Return the time that `text` means.

    Args:
        text: `2026-02-24 12:03[:07]`, `2026-02-24`, `12:03[:07]` (on the log's last day), or
            `-30m`, `-2h`, `-1d`, `-45s`, counted from the log's end.
        end: the log's last stamp.

    Raises:
        UsageError: the text is none of these.
    """
    text = text.strip()
    relative = re.fullmatch(
        r"-(\d+(?:\.\d+)?)\s*(?:([smhd])|(s)ec\w*|(m)in\w*|(h)ours?|(d)ays?)", text
    )
    if relative:
        unit = next(u for u in relative.groups()[1:] if u)
        try:
            return end - timedelta(seconds=float(relative[1]) * _UNITS[unit])
        except OverflowError:
            raise UsageError(f"{text!r} is before all time", hint="write -30m or -2h") from None
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?", text):
            clock = text if text[1] != ":" else f"0{text}"
            return datetime.combine(end.date(), time.fromisoformat(clock))
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return datetime.combine(date.fromisoformat(text), time())
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"cannot read the time {text!r}",
            hint="write 2026-02-24 12:03:07, 12:03, or -30m for 30 minutes before the log's end",
        ) from None
    if found.tzinfo is not None:
        raise UsageError(
            f"{text!r} names a time zone, and the log's own times name none",
            hint="write the time as the log prints it, without a zone",
        )
    return found


def _rank_condition(rank: str) -> pl.Expr:
    columns = {word: column for column, word in derive.RANK_WORDS.items()}
    condition = pl.lit(True)
    for word in rank.upper().split():
        match = re.fullmatch(r"([A-Z_]+)(-?\d{1,9})", word)
        if not match or match[1] not in columns:
            raise UsageError(
                f"cannot read the rank {rank!r}",
                hint="write it as the log does, such as TP0, DP1 or 'DP1 TP4'",
            )
        condition &= (pl.col(columns[match[1]]) == int(match[2])).fill_null(False)
    return condition


def _nothing_left(sessions: Sequence[SessionData]) -> str:
    starts = [s.session.start for s in sessions if s.session.start is not None]
    ends = [s.session.end for s in sessions if s.session.end is not None]
    ranks = sorted(
        {
            rank
            for s in sessions
            for rank in s.batch.select_seq(derive.rank_text()).to_series().unique()
            if rank
        }
    )
    has = f"the log runs from {min(starts)} to {max(ends)}" if starts and ends else "no time"
    return f"no record left after filtering: {has}, ranks {', '.join(ranks[:8]) or 'none'}"
