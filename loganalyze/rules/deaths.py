"""How servers died, and at which memory fraction they ran out of GPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import polars as pl

from loganalyze import fatal
from loganalyze.model import SessionData

#: How far below a fraction that ran out of memory the next one stays.
BELOW_DEATH = 0.02

#: Fatal events that are read for their cause: it stands among the first.
_READ = 200


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
        place = f"{PurePath(self.source).name}:{self.line_no}"
        return f"session {self.session} ran out of GPU memory{at} ({place})"


def fatal_events(data: SessionData) -> pl.DataFrame:
    """Return the events of a session that a server does not survive, by line.

    A failed KV allocation alone only counts where the session ended in a crash.
    """
    event = data.event.filter(~pl.col("duplicate").fill_null(False)).sort("line_no")
    found = fatal.died(event, after_work(data), worked=data.batch.height > 0)
    if data.session.ended_by != "crash" or not (event["kind"] == "kv_oom").any():
        return found
    failed = event.filter((pl.col("kind") == "kv_oom") & after_work(data))
    return pl.concat([found, failed]).sort("line_no", maintain_order=True)


def unclear_end(data: SessionData) -> pl.DataFrame:
    """Return the errors that stand last in a log and may or may not have ended the process."""
    last = data.event.filter(after_work(data)).sort("line_no").tail(1)
    return last.filter(pl.col("kind").is_in([*fatal.ERRORS, "leak"]))


def after_work(data: SessionData) -> pl.Expr:
    """Return whether an event stands after the last statistics line of its session."""
    if not data.batch.height:
        return pl.lit(True)
    source, line, time = data.batch.select_seq("source", "line_no", "time").row(-1)
    same = pl.col("source") == source
    later = pl.col("time") >= pl.lit(time, pl.Datetime("ms"))
    found: pl.Expr = (same & (pl.col("line_no") > line)) | (~same & later.fill_null(False))
    return found


def cause_of_death(died: pl.DataFrame) -> tuple[str, dict[str, Any]] | None:
    """Return the cause of a death and the event that names it; None without any event.

    The first event that names a cause, else the first: a main process only says that a child
    died, which had said why.
    """
    rows = [(fatal.cause(row), row) for row in died.head(_READ).iter_rows(named=True)]
    named = (one for one in rows if one[0] not in fatal.UNNAMED)
    return next(named, rows[0] if rows else None)


#: Start-up records that a server prints once its weights are loaded.
_LOADED = ("weight_load_end", "capacity", "kv_cache_allocated", "memory_pool_end")


def while_loading(data: SessionData) -> bool:
    """Whether a session ended while it loaded its weights: no memory fraction counts before."""
    kinds = data.startup["kind"]
    began = kinds.is_in(["weight_load_begin", "dist_init_end"]).any()
    return not data.batch.height and began and not kinds.is_in(_LOADED).any()


def of_memory(died: pl.DataFrame) -> pl.DataFrame:
    """Return those of some fatal events that say that GPU memory ran out."""
    rows = died.head(_READ)
    memory = [fatal.cause(row) in fatal.GPU_MEMORY for row in rows.iter_rows(named=True)]
    return rows.filter(pl.Series(memory, dtype=pl.Boolean))


def memory_limits(sessions: Sequence[SessionData]) -> list[MemoryLimit]:
    """Return the deaths of some sessions out of GPU memory."""
    limits = []
    for data in sessions:
        died = of_memory(fatal_events(data))
        if while_loading(data) or not died.height:
            continue
        fraction = data.session.config.arg("mem_fraction_static")
        known = float(fraction) if isinstance(fraction, int | float) else None
        row = died.row(0, named=True)
        limits.append(MemoryLimit(known, data.session.id, row["source"], int(row["line_no"])))
    return limits


def memory_limit(session: int, limits: Sequence[MemoryLimit]) -> MemoryLimit | None:
    """Return what bounds the memory fraction of a session; None if no session died of it.

    Its own death bounds it whatever its fraction, as does one of another session at a fraction
    that is printed.
    """
    bounds = (one for one in limits if one.fraction is not None or one.session == session)
    return min(bounds, key=lambda one: one.fraction or 0.0, default=None)
