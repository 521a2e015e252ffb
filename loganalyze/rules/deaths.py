"""How servers died, and at which memory fraction they ran out of GPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from loganalyze.model import SessionData

_CRASH_KINDS = ("exception", "sigquit", "subprocess_crashed", "oom", "kv_oom", "watchdog_timeout")

#: Out of memory, in the words of torch and of SGLang.
_OOM = "OutOfMemoryError|out of memory|Not enough memory"

#: How far below a fraction that ran out of memory the next one stays.
BELOW_DEATH = 0.02


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The lowest --mem-fraction-static at which a session of this run died out of memory.

    Attributes:
        fraction: that fraction; None if the session itself died and does not print its own.
        session: number of the session that died.
        source, line_no: where it says so.
    """

    fraction: float | None
    session: int
    source: str
    line_no: int

    @property
    def highest(self) -> float:
        """The highest fraction to propose; 0 where none is known to be safe."""
        return 0.0 if self.fraction is None else round(self.fraction - BELOW_DEATH, 4)

    def __str__(self) -> str:
        at = "" if self.fraction is None else f" at {self.fraction:g}"
        return f"session {self.session} ran out of GPU memory{at} ({self.source}:{self.line_no})"


def fatal_events(data: SessionData) -> pl.DataFrame:
    """Return the events of a session that a server does not survive, by line.

    A failed KV allocation alone only counts where the session ended in a crash.
    """
    events = data.event.filter(
        pl.col("kind").is_in(_CRASH_KINDS) & ~pl.col("duplicate").fill_null(False)
    ).sort("line_no")
    survived = data.session.ended_by != "crash"
    return events.filter(pl.col("kind") != "kv_oom") if survived else events


def of_memory(fatal: pl.DataFrame) -> pl.DataFrame:
    """Return those of some fatal events that say that GPU memory ran out."""
    return fatal.filter(
        pl.col("traceback").fill_null("").str.contains(_OOM)
        | pl.col("message").fill_null("").str.contains(_OOM)
        | (pl.col("kind") == "oom")
    )


def memory_limit(own: SessionData, sessions: Sequence[SessionData]) -> MemoryLimit | None:
    """Return what bounds the memory fraction of a session; None if no session died of it.

    Its own death bounds it whatever its fraction, as does one of another session at a fraction
    that is printed.
    """
    limits = []
    for data in {id(one): one for one in (own, *sessions)}.values():
        died = of_memory(fatal_events(data))
        fraction = data.session.config.arg("mem_fraction_static")
        known = float(fraction) if isinstance(fraction, int | float) else None
        if died.height and (known is not None or data is own):
            row = died.row(0, named=True)
            limits.append(MemoryLimit(known, data.session.id, row["source"], int(row["line_no"])))
    return min(limits, key=lambda one: one.fraction or 0.0, default=None)
