"""THR002: decode steps suddenly take longer, with the same batch and context."""

from __future__ import annotations

import math

import polars as pl

from loganalyze.episodes import Span
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import Held, act, all_episodes, confidence, hold, severity, shown, spell
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


def _clean(rank: Rank) -> pl.DataFrame:
    """Return the decode lines whose residual can be compared: t, z, line, what they worked on."""
    comparable = (
        pl.col("decode")
        & pl.col("residual").is_not_null()
        & pl.col("cuda_graph").fill_null(True)
        & (pl.col("r_change") < 0.3)
        & (pl.col("prefill_s") <= pl.col("decode_s"))
        & ~pl.col("after_gap").fill_null(True)
        & ~pl.col("emptied").fill_null(True)
        & ~pl.col("first").fill_null(True)
    )
    return rank.lines.select_seq(
        "t",
        "source",
        "line_no",
        "r_mean",
        "t_mean",
        decode_share=pl.col("decode_s") / (pl.col("decode_s") + pl.col("prefill_s")),
        z="residual",
        comparable=comparable,
    ).filter("comparable")


@rule(
    "THR002",
    "step-time-jump",
    severity=Severity.CRITICAL,
    needs=("gen_throughput", "running_req"),
    limits={
        "step": Limit(0.18, "log", "jump of log step time: 0.18 is 20 % slower"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "before_s": Limit(60.0, "s", "shortest time before it"),
    },
    after=("GRF001", "SPC001", "CRS001"),
)
def step_time_jump(case: Case, limits: Limits) -> Finding | Clear:
    """Decode steps suddenly take longer, with the same batch and context.

    What it flags:
        A lasting jump of measured over modelled step time by `step` or more, in the median and
        in the lower quartile, that running requests, KV tokens, accept length, prefill and CUDA
        graphs do not explain.
    Why it is slow:
        Something outside the scheduler: clocks lowered by heat or power, another process on the
        GPU, a slow link, a failing part.
    Not this rule:
        Long contexts (LNG001), steps without a graph (GRF001), few accepted drafts (SPC001).
    What to do:
        nvidia-smi -q -d CLOCK,PERFORMANCE,ECC; other processes on the GPU; the links.
    Source:
        Change point of log(measured / modelled time) of clean decode intervals.
    """
    if not any(rank.model for rank in case.ranks):
        raise NotApplicable("it has too few decode lines to fit the step model (12 are needed)")
    if case.signals.span_s < limits["report_s"] + limits["before_s"]:
        raise NotApplicable(f"it covers less than {limits['report_s'] + limits['before_s']:.0f} s")
    jumps: dict[int, float] = {}

    def judge(rank: Rank) -> list[Span]:
        found = _slow_stretch(rank, limits)
        if found is None:
            return []
        span, size = found
        jumps[id(rank)] = size
        return [span]

    found = hold(case.ranks, judge)
    if not found:
        return Clear("step times followed batch and context throughout")
    worst = found[0]
    size = math.exp(jumps[id(worst.rank)])
    rows = _clean(worst.rank).filter(pl.col("t") >= worst.spans[0][0] * worst.rank.step_s)
    where = Held.at(rows, 0) if rows.height else (None, None)
    return Finding(
        summary=f"Decode steps take {size:.2f} times as long as before, with the same batch and "
        f"context, {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "step time against before",
                size,
                "x",
                where,
                "median of measured / modelled time, after over before",
                2,
            ),
            worst.averaged("running requests", "running", "running", "requests", 1),
        ],
        actions=[
            *act(
                case,
                "Look at GPU clocks, throttle reasons and ECC errors: nvidia-smi -q -d "
                "CLOCK,PERFORMANCE,ECC",
            ),
            *act(case, "Look for other processes on the GPUs and for slow links (NCCL)"),
        ],
        severity=severity(case, found),
        confidence=confidence(case, found, config=True),
        competing="a slow rank elsewhere (TPS001): the log of one rank cannot tell"
        if _tp(case) > 1
        else "requests that ask for more in each step (grammars, log probabilities, penalties), "
        "which no line shows",
    )


def _tp(case: Case) -> int:
    tp = case.arg("tp_size", 1)
    return tp if isinstance(tp, int) else 1


#: Intervals on each side of a jump that can be compared.
_LEAST_ALIKE = 8


def _slow_stretch(rank: Rank, limits: Limits) -> tuple[Span, float] | None:
    """Return the slow stretch and its jump (log): the split of least spread, then its end."""
    if rank.model is None:
        return None
    rows = _clean(rank)
    if rows.height < 40:
        return None
    # Medians of blocks are robust and few enough to try every split.
    blocks = max(1, rows.height // 400)
    z = (
        rows.with_columns_seq(block=pl.int_range(pl.len()) // blocks)
        .group_by("block", maintain_order=True)
        .agg(pl.col("z").median(), pl.col("t").first())
    )
    split = _best_split(z["z"])
    if split is None:
        return None
    t0 = float(z["t"][split])
    before = rows.filter(pl.col("t") < t0)
    after = rows.filter(pl.col("t") >= t0)
    if not before.height or not after.height:
        return None
    base = before.filter(pl.col("t") >= t0 - 600)["z"]
    # Where it returns to half the jump it ended: of what comes next, which may be most of the log,
    # the time just after the jump tells how large it is.
    soon = after.filter(pl.col("t") < t0 + limits["report_s"])["z"]
    size = _difference(soon, base, 0.5)
    end_t = float(rows["t"][-1])
    level = as_float(base.median(), 0.0) + 0.5 * size
    smooth = after.with_columns_seq(
        m=pl.col("z").rolling_median(min(15, after.height), min_samples=1, center=True)
    )
    low = smooth.with_columns_seq(low=pl.col("m") < level)
    runs = (
        low.with_columns_seq(run=pl.col("low").rle_id())
        .filter("low")
        .group_by("run", maintain_order=True)
        .agg(a=pl.col("t").first(), b=pl.col("t").last())
    )
    back = runs.filter(pl.col("b") - pl.col("a") >= 30)
    if back.height:
        end_t = float(back["a"][0])
    if end_t - t0 < limits["report_s"] or t0 - float(rows["t"][0]) < limits["before_s"]:
        return None
    slow_rows = after.filter(pl.col("t") <= end_t)
    # Only batches that were seen in and outside it tell: the model may bend elsewhere. Where a
    # slow server lets its batch grow beyond all seen so far, those around the jump are compared.
    usual = rows.filter((pl.col("t") < t0) | (pl.col("t") > end_t))
    near = pl.col("t").is_between(t0 - limits["before_s"], t0 + limits["before_s"])
    matched = _alike(usual, slow_rows) or _alike(before.filter(near), slow_rows.filter(near), 0.3)
    if matched is None:
        return None
    base, slow = matched
    jump = min(_difference(slow, base, 0.5), _difference(slow, base, 0.25))
    if jump < limits["step"]:
        return None
    return (int(t0 / rank.step_s), int(end_t / rank.step_s) + 1), _difference(slow, base, 0.5)


def _alike(
    before: pl.DataFrame, after: pl.DataFrame, batch: float = 0.15
) -> tuple[pl.Series, pl.Series] | None:
    """Return the residuals before and after of intervals that worked on the like.

    Alike are batches within the margin `batch` of those of the other side, their tokens, and the
    share of the time that the model gives to decoding them beside prefill.
    """
    for column, margin in (("r_mean", batch), ("t_mean", 0.3), ("decode_share", 0.15)):
        if before[column].null_count() or after[column].null_count():
            continue
        for one, other in ((before, after), (after, before)):
            low, high = other[column].quantile(0.1), other[column].quantile(0.9)
            kept = one.filter(
                pl.col(column).is_between(
                    (1 - margin) * as_float(low, 0.0), (1 + margin) * as_float(high, 0.0)
                )
            )
            if one is before:
                near_before = kept
            else:
                near_after = kept
        before, after = near_before, near_after
        if before.height < _LEAST_ALIKE or after.height < _LEAST_ALIKE:
            return None
    return before["z"], after["z"]


def _difference(after: pl.Series, before: pl.Series, quantile: float) -> float:
    a, b = after.quantile(quantile), before.quantile(quantile)
    return float(a) - float(b) if a is not None and b is not None else 0.0


def _best_split(z: pl.Series) -> int | None:
    """Return the first index of the second part of the split with the largest mean difference.

    The weight sqrt(n m / (n + m)) is that of a two-sample test, so ends do not win by chance.
    """
    frame = pl.DataFrame({"z": z}).with_columns_seq(
        n=pl.int_range(1, pl.len() + 1), head=pl.col("z").cum_sum(), total=pl.col("z").sum()
    )
    n, length = pl.col("n"), z.len()
    frame = frame.filter((n >= 5) & (n <= length - 5)).with_columns_seq(
        score=((pl.col("total") - pl.col("head")) / (length - n) - pl.col("head") / n)
        * (n * (length - n) / length).sqrt()
    )
    if not frame.height:
        return None
    return int(frame["n"][int(frame["score"].arg_max() or 0)])
