"""KV006: requests came to hold more tokens, so fewer of them run."""

from __future__ import annotations

import math

import polars as pl

from loganalyze.lengths import duration
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import Held, act, confidence, length_s, shown, these
from loganalyze.rules.kv.evidence import like_the_model
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "KV006",
    "longer-requests",
    severity=Severity.WARNING,
    needs=("token|full_token", "gen_throughput"),
    limits={
        "growth": Limit(2.0, "x", "growth of tokens per running request"),
        "within_s": Limit(900.0, "s", "time in which it grew"),
        "usage_rise": Limit(0.3, "fraction", "rise of usage over the same time"),
        "drop": Limit(0.25, "fraction", "fall of throughput after saturation began"),
        "max_residual": Limit(
            0.1, "log", "step time within this of the model: the server is healthy"
        ),
    },
    after=("KV001", "KV010"),
)
def longer_requests(case: Case, limits: Limits) -> Finding | Clear:
    """Throughput fell because requests came to hold more tokens.

    What it flags:
        Tokens per running request growing at least `growth` times within `within_s`, usage
        rising with it, and throughput falling by `drop` once the pool is saturated (KV001),
        while step times fit the model. Within one request lifetime after a start or an idle
        time it is warm-up, and after a time in which requests held as much a refill: neither is
        a regression. Else the mix of requests changed.
    Why it is slow:
        Running requests = pool / tokens per request. Tokens per request climb from the prompt
        to prompt plus most of the output in about one lifetime; the early throughput never
        was sustainable.
    Not this rule:
        A slower GPU (THR002): the step model explains the rate here.
    What to do:
        As KV001. Report the throughput afterwards, not the peak.
    Source:
        Little's law: KV held = running x tokens per request.
    """
    saturated = case.earlier.get("KV001")
    if saturated is None:
        return Clear("the pool was not saturated")
    if "KV010" in case.earlier:
        return Clear("tokens that nobody holds grew (KV010), which is not longer requests")
    if case.excerpt:
        raise NotApplicable("it is an excerpt; growth needs minutes of log")
    best = "tokens per running request did not double while the pool filled"
    for rank in case.ranks:
        found = _growth(rank, limits)
        if found is None:
            continue
        low, high, peak_rate, settled_rate = found
        start_s = max([0.0, *(gap.end_s for gap in rank.gaps if gap.end_s <= low * rank.step_s)])
        start_s = max(start_s, float(rank.lines["t"][0]))
        lifetime = _lifetime(rank)
        warm = low * rank.step_s - start_s <= (lifetime or 0.0)
        grid = rank.grid
        a0, a1 = _per_cell(grid, low), _per_cell(grid, high)
        held = Held(rank, [(low, high)])
        before = max(0, low - rank.cells(lifetime or 0.0))
        full = None if warm else _held_before(rank, before, low, a1)
        young = "" if warm or full is not None else _young(rank, before, low)
        if warm:
            text = "this is warm-up, no regression: the first requests had not finished yet"
        elif full is not None:
            text = (
                "this is a refill, no new mix: within one request lifetime before, requests held "
                f"{_per_cell(grid, full):,.0f}, and those that took their places were young"
            )
        else:
            text = "the mix of requests changed: they now hold more tokens"
        level = confidence(case, [held], competing=bool(young))
        return Finding(
            summary=f"Tokens per running request grew from {a0:,.0f} to {a1:,.0f} in "
            f"{duration(length_s([held]))} and decode throughput fell from "
            f"{peak_rate:,.0f} (best 30 s) to {settled_rate:,.0f} token/s (median after); {text}",
            episodes=held.episodes,
            evidence=[
                *(
                    []
                    if full is None
                    else [
                        shown(
                            "tokens per running request, within one lifetime before",
                            _per_cell(grid, full),
                            "tokens",
                            *_said(rank, full),
                            0,
                        )
                    ]
                ),
                shown(
                    "tokens per running request, before",
                    a0,
                    "tokens",
                    *_said(rank, low),
                    0,
                ),
                shown(
                    "tokens per running request, after",
                    a1,
                    "tokens",
                    *_said(rank, high),
                    0,
                ),
                shown(
                    "decode throughput, best 30 s",
                    peak_rate,
                    "token/s",
                    held.line("gen_throughput"),
                    "highest mean of 30 s",
                    0,
                ),
                shown(
                    "decode throughput afterwards",
                    settled_rate,
                    "token/s",
                    (None, None),
                    "median after the growth",
                    0,
                ),
                shown(
                    "request lifetime",
                    lifetime,
                    "s",
                    (None, None),
                    "running / completions per second, mean of the whole log",
                    0,
                ),
            ],
            actions=act(
                case,
                "Judge the server by the throughput afterwards, not the peak; for room see KV001",
            ),
            severity=Severity.INFO if warm or full is not None else Severity.WARNING,
            confidence=level,
            competing="; ".join(filter(None, (young, _other_than_longer(rank, low, high)))),
        )
    return Clear(best)


#: Requests that held as much as this share of what they hold now are no new mix.
_AS_MUCH = 0.8
#: Running requests that grew so many times were young at the end of it.
_MORE_RUNNING = 1.3


def _held_before(rank: Rank, first: int, low: int, now: float) -> int | None:
    """Return the cell before a low in which requests held as much as after it; None without."""
    per = _smooth(rank)[first : low + 1]
    at = per.arg_max()
    if at is None or _per_cell(rank.grid, first + at) < _AS_MUCH * now:
        return None
    return first + at


def _young(rank: Rank, first: int, low: int) -> str:
    """Say why requests may have been young at a low without a new mix; empty if they were not."""
    grid = rank.grid[first : low + 1]
    few, then = as_float(grid["running"].min(), 0.0), as_float(grid["running"][-1], 0.0)
    if as_float(grid["retracted"].sum(), 0.0) > 0:
        why = "requests were thrown back"
    elif then >= _MORE_RUNNING * few:
        why = f"running requests rose from {few:,.0f} to {then:,.0f}"
    else:
        return ""
    return (
        f"{why} within one request lifetime before: requests that are young, and hold more as "
        "they age, look like a new mix"
    )


def _other_than_longer(rank: Rank, low: int, high: int) -> str:
    """Say what else may have slowed decoding while requests came to hold more tokens."""
    grid = rank.grid[low : high + 1]
    share = as_float((grid["graph_off"] > 0.5).mean(), 0.0)
    mixed = 0.1 < share < 0.9
    if mixed:
        return (
            f"steps without a CUDA graph (GRF001) in {share:.0%} of that time are slower as well"
        )
    if not _fitted_residual(rank, low, high).len():
        return "a slower GPU (THR002) cannot be excluded: no step model fits these lines"
    return "a slower GPU (THR002) is excluded: step times fit the model"


def _fitted_residual(rank: Rank, low: int, high: int) -> pl.Series:
    """Return the residuals of the cells that the step model is about."""
    rows = rank.grid[low : high + 1].with_columns_seq(cuda_graph=pl.col("graph_off") < 0.5)
    return like_the_model(rank, rows)["residual"].drop_nulls()


def _growth(rank: Rank, limits: Limits) -> tuple[int, int, float, float] | None:
    """Return (first cell, last cell, best rate before, settled rate after) of the growth."""
    a = _smooth(rank)
    usage = rank.mean("usage", 60.0)
    size = rank.cells(limits["within_s"])
    lowest = a.rolling_min(size, min_samples=1)
    base = usage.rolling_min(size, min_samples=1)
    grown = (
        (a >= limits["growth"] * lowest) & (usage - base >= limits["usage_rise"]) & (usage >= 0.8)
    )
    if not grown.any():
        return None
    rate = rank.mean("rate", 30.0)
    top = rate.rolling_max(size, min_samples=1)
    settled = rate.reverse().rolling_median(rank.cells(300), min_samples=1).reverse()
    hit = (grown & (settled <= (1 - limits["drop"]) * top)).fill_null(False)
    if not hit.any():
        return None
    high = int(hit.arg_max() or 0)
    begin = max(0, high - size)
    low = begin + int(a[begin : high + 1].fill_null(math.inf).arg_min() or 0)
    residual = _fitted_residual(rank, low, high)
    if residual.len() and abs(as_float(residual.median(), 0.0)) > limits["max_residual"]:
        return None
    return low, high, as_float(top[high], 0.0), as_float(settled[high], 0.0)


def _smooth(rank: Rank) -> pl.Series:
    """Return the tokens per running request of each cell, as means of 60 s."""
    # A prefill line before the first decode line may print requests and no tokens yet.
    held = (pl.col("running") > 0) & (pl.col("own_token") > 0)
    a = rank.mean(pl.when(held).then(pl.col("own_token") / pl.col("running")), 60.0)
    return rank.select(pl.when(held).then(a))


#: Cells on each side over which what requests hold is taken.
_NEAR = 10


def _said(rank: Rank, cell: int) -> tuple[tuple[str | None, int | None], str]:
    """Return a line that says what requests hold at a cell, and how it is worked out."""
    rows = Held(rank, [(max(0, cell - _NEAR), min(cell + _NEAR, rank.grid.height))]).decode
    if not rows.height:  # the last line before says what is held still
        rows = rank.lines.filter(pl.col("decode") & (pl.col("t") <= cell * rank.step_s)).tail(1)
    where = Held.at(rows, rows.height // 2) if rows.height else (None, None)
    return where, f"sum #token / sum #running-req over time, {these(rows)}"


def _per_cell(grid: pl.DataFrame, cell: int) -> float:
    near = grid[max(0, cell - _NEAR) : cell + _NEAR].filter(pl.col("own_token") > 0)
    running = as_float(near["running"].sum(), 0.0)
    return as_float(near["own_token"].sum(), 0.0) / running if running else 0.0


def _lifetime(rank: Rank) -> float | None:
    """Return the mean time a request runs: running / completions per second (Little)."""
    done = float(rank.grid["completed"].sum())
    running = as_float(rank.grid["running"].sum(), 0.0) * rank.step_s
    return running / done if done else None
