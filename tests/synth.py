"""Logs for tests: series of states as lines, and sessions from text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache

import polars as pl

from loganalyze import rules
from loganalyze.model import SessionData
from loganalyze.rules.planted import PLANTED
from loganalyze.rules.registry import Outcome
from loganalyze.rules.selfcheck import read

START = datetime(2026, 3, 2, 9, 0, 0)


def sessions(*texts: str) -> list[SessionData]:
    """Return the sessions of some log texts, one file each."""
    return read({f"server{i}.log": text for i, text in enumerate(texts, 1)})


@cache
def planted(name: str) -> list[SessionData]:
    """Return the sessions of a planted log, read once."""
    return read(next(p for p in PLANTED if p.name == name).logs())


def outcomes(
    data: str | Sequence[SessionData], overrides: Mapping[str, float] | None = None
) -> dict[str, Outcome]:
    """Return what became of each rule; of several sessions the most telling one."""
    split = sessions(data) if isinstance(data, str) else list(data)
    rank = {"error": 0, "fired": 1, "clear": 2, "not_applicable": 3}
    found: dict[str, Outcome] = {}
    for one in rules.run(split, overrides):
        if one.code not in found or rank[one.status] < rank[found[one.code].status]:
            found[one.code] = one
    return found


def without(data: Sequence[SessionData], *columns: str) -> list[SessionData]:
    """Return the sessions as if no line printed these columns."""
    return [
        replace(
            one,
            batch=one.batch.with_columns(
                pl.lit(None).cast(one.batch[c].dtype).alias(c) for c in columns
            ),
        )
        for one in data
    ]


def decode(
    *,
    every_s: float = 1.0,
    start_s: float = 0.0,
    pool: int = 100_000,
    rank: str = " TP0",
    stamps: bool = True,
    **series: Sequence[float] | float,
) -> list[str]:
    """Return decode lines from series of states.

    Args:
        every_s: time from line to line.
        start_s: time of the first line.
        pool: pool size, for `#token`.
        rank: rank words.
        stamps: whether to print stamps at all.
        series: `usage`, `queue`, `running` and `rate` (token/s): a list each, or one value for
            all lines. At least one must be a list.
    """
    length = max(len(v) for v in series.values() if isinstance(v, Sequence))
    values = {
        name: list(v) if isinstance(v, Sequence) else [v] * length
        for name, v in {"usage": 0.5, "queue": 0, "running": 10, "rate": 400.0, **series}.items()
    }
    out = []
    for i in range(length):
        at = START + timedelta(seconds=start_s + i * every_s)
        stamp = f"[{at:%Y-%m-%d %H:%M:%S}{rank}] " if stamps else ""
        usage = values["usage"][i]
        out.append(
            f"{stamp}Decode batch, #running-req: {values['running'][i]:.0f}, "
            f"#token: {round(usage * pool)}, token usage: {usage:.2f}, cuda graph: True, "
            f"gen throughput (token/s): {values['rate'][i]:.2f}, "
            f"#queue-req: {values['queue'][i]:.0f}"
        )
    return out


def capacity(pool: int = 100_000, cap: int = 512) -> str:
    """Return the start-up line with pool size and running cap."""
    return (
        f"[{START:%Y-%m-%d %H:%M:%S} TP0] max_total_num_tokens={pool}, chunked_prefill_size=8192, "
        f"max_prefill_tokens=16384, max_running_requests={cap}, context_len=32768, "
        "available_gpu_mem=6.00 GB"
    )


def text(*parts: str | Sequence[str]) -> str:
    """Join lines and lists of lines to a log."""
    lines: list[str] = []
    for part in parts:
        lines += [part] if isinstance(part, str) else part
    return "\n".join(lines) + "\n"
