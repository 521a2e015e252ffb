"""Whether the lines of one DP rank are those of one server, and all of its lines.

The throughput of a decode line covers the time since the decode line before it. Of one server's
whole log these times add up to the time that passed: to 0.92 to 1.00 of it on real logs, 1.00
on simulated ones (2026-11). Lines of two servers in one file tell of twice that time, and a log
of which every tenth line was kept, of a tenth.

The steps between two lines are those of --decode-log-interval; where it is not printed 40, or
what the lines themselves say if none of them is missing (`_is_whole`).

Why a second sign for several servers: a shorter --decode-log-interval, which not every log
prints, and numbers that were made up make lines tell of too much time as well. But KV tokens
cannot grow faster than they are decoded and prefilled, while those of two servers in turn do.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from loganalyze.model import SessionData
from loganalyze.timeline import DEFAULT_INTERVAL, Timeline, as_float

#: Fewer decode intervals tell nothing; fewer than these not whether lines are missing.
MIN_LINES, MIN_LINES_MISSING = 15, 5

#: Lines that tell of this much of the time and more are of several servers ...
SEVERAL = 1.4
#: ... if tokens appear from nowhere so often, and in this share of the lines.
JUMPS, JUMP_SHARE = 4, 0.02

#: Lines that tell of less of the time are a part of what the server printed.
SAMPLED = 0.5

#: Two stamps of whole seconds, and the mean of the batches at both ends of an interval, say its
#: time to within this; of a whole log so do this share of the lines (0.94 and more of simulated
#: ones, at most 0.75 where lines were left out).
_STAMPS_S, _BATCH_SHARE, _NEAR_SHARE = 1.0, 0.10, 0.90

#: Tokens beyond this share of the most seen, and this many per running request, are no rounding
#: to pages, and no tokens that speculative decoding holds in advance.
_ROUNDING_SHARE, _ROUNDING_TOKENS = 0.03, 64


@dataclass(frozen=True, slots=True)
class Told:
    """What the decode lines of a rank tell of.

    Attributes:
        share: time that they tell of over time that passed; None if they are too few or have
            no stamps.
        decoding: the same without intervals in which prompts were computed, where most have
            none: what a long prefill takes is no sign of missing lines.
        several: whether they are of several servers.
    """

    share: float | None = None
    decoding: float | None = None
    several: bool = False

    @property
    def servers(self) -> int:
        """About how many servers printed them."""
        return max(2, round(self.share or 0.0)) if self.several else 1

    @property
    def sampled(self) -> bool:
        """Whether many of the server's lines are missing."""
        return self.decoding is not None and self.decoding < SAMPLED


def told(data: SessionData, one: Timeline) -> Told:
    """Return what the decode lines of a rank tell of.

    Args:
        data: the session.
        one: its rank.
    """
    if one.clock != "stamps":
        return Told()
    printed = data.session.config.arg("decode_log_interval")
    steps = DEFAULT_INTERVAL
    if one.interval != steps and (isinstance(printed, int) or _is_whole(one)):
        steps = one.interval
    rows = _decode_rows(one, steps / one.interval)
    share = _share(rows)
    if share is None:
        return Told()
    pure = rows.filter(pl.col("n_prefill") == 0)
    decoding = _share(pure) if 2 * pure.height >= rows.height else None
    jumps = rows["jump"].sum()
    jumped = rows.height >= MIN_LINES and jumps >= max(JUMPS, JUMP_SHARE * rows.height)
    return Told(
        share,
        share if decoding is None else decoding,
        share >= SEVERAL and jumped,
    )


def _is_whole(one: Timeline) -> bool:
    """Whether no line is missing, so that decode lines which are rare were printed so rarely.

    The time that each line tells of is then the time since the line before, to what stamps and
    the mean of two batches say; and prefill lines account for the requests that came to run. Of
    a log with gaps at most one holds: a line says how fast the last steps were, not all of them.
    """
    before = pl.col("running_req").shift(1)
    rows = (
        one.lines.select_seq(
            "decode",
            "lines",
            "running_req",
            "dt_s",
            "r_mean",
            "stamp_dt_s",
            "d_new_seq",
            "after_gap",
            "first",
        )
        .filter(pl.col("decode") & (pl.col("lines") > 0))
        .with_columns_seq(
            rose=pl.col("running_req") - before,
            told_s=pl.col("dt_s") * (pl.col("running_req") + before) / 2 / pl.col("r_mean"),
        )
        .filter((pl.col("lines") == 1) & ~pl.col("after_gap") & ~pl.col("first"))
    )
    off = (pl.col("stamp_dt_s") - pl.col("told_s")).abs()
    near = rows.select_seq((off <= _STAMPS_S + _BATCH_SHARE * pl.col("stamp_dt_s")).mean()).item()
    rises = rows.filter(pl.col("rose") > 0)
    # The last chunk of a prompt may stand in another interval than its first.
    missed = (rises["rose"] > rises["d_new_seq"] + 1).sum()
    told_of = (rises["d_new_seq"] > 0).sum()
    return (
        as_float(near, 0.0) >= _NEAR_SHARE
        and told_of >= JUMPS
        and missed <= JUMP_SHARE * rises.height
    )


def _share(rows: pl.DataFrame) -> float | None:
    """Return the time that some intervals tell of over that which passed."""
    passed = as_float(rows["stamp_dt_s"].sum(), 0.0)
    if rows.height < MIN_LINES_MISSING or not passed:
        return None
    return as_float(rows["told_s"].sum(), 0.0) / passed


def _decode_rows(one: Timeline, scale: float) -> pl.DataFrame:
    """Return the decode intervals: `n_prefill`, `told_s`, `stamp_dt_s` and `jump`.

    Args:
        one: the rank.
        scale: decode steps between two lines, over those that its timeline took.
    """
    token = pl.coalesce("token", "full_token", "gpu_token")
    came = pl.sum_horizontal(pl.col("new_token", "cached_token").fill_null(0)).cum_sum()
    rows = (
        one.lines.select_seq(
            "decode",
            "lines",
            "running_req",
            "dt_s",
            "r_mean",
            "stamp_dt_s",
            "d_tokens",
            "n_prefill",
            "after_gap",
            _token=token,
            _came=came,
        )
        .filter(pl.col("decode") & (pl.col("lines") > 0))
        .with_columns_seq(
            _grown=pl.col("_token").diff(),
            _came=pl.col("_came").diff(),
            _single=(pl.col("lines") == 1) & (pl.col("lines").shift(1) == 1),
        )
        .filter(pl.col("stamp_dt_s").is_not_null() & ~pl.col("after_gap"))
    )
    slack = _ROUNDING_TOKENS * pl.col("running_req") + _ROUNDING_SHARE * pl.col("_token").max()
    possible = 1.5 * scale * pl.col("d_tokens") + pl.col("_came") + slack
    # Not the mean with the line before, which may be another server's.
    told_s = pl.col("dt_s") * pl.col("lines") * scale * pl.col("running_req") / pl.col("r_mean")
    return rows.select_seq(
        "stamp_dt_s",
        "n_prefill",
        told_s=pl.when(pl.col("r_mean") > 0).then(told_s),
        jump=(pl.col("_single") & (pl.col("_grown") > possible)).fill_null(False),
    )
