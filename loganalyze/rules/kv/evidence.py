"""What shows that a full pool is the cause, when it could be foreseen, and what it cost."""

from __future__ import annotations

import math

import polars as pl

from loganalyze import derive
from loganalyze.capacity import pool
from loganalyze.capacity.steps import MIN_LINES
from loganalyze.lengths import duration
from loganalyze.model import Capacity, Evidence
from loganalyze.rules.held import Held, shown, these
from loganalyze.rules.registry import Case
from loganalyze.signals import Rank
from loganalyze.timeline import as_float

#: A line shows a mean that it is within this share of.
_ALIKE = 0.02


def capacity_of(case: Case) -> Capacity:
    """Return the session's capacity; the lines of a leak say nothing of what requests hold."""
    leak = case.earlier.get("KV010")
    measured = case.signals.capacity
    return pool.before_leak(case.data, measured, leak.episodes[0]) if leak else measured


def ceiling(case: Case, held: Held, capacity: Capacity) -> list[Evidence]:
    """The ceiling is the cause: running requests stand at pool size / tokens per request."""
    out = []
    if capacity.tokens_per_req and capacity.lines:
        ahead = " without pre-allocated" if case.signals.session.role == "decode" else ""
        files = capacity.line_sources or (None, None)
        span = derive.from_to("decode line", *zip(files, capacity.lines, strict=True))
        off = (pl.col("own_token") / pl.col("running_req") / capacity.tokens_per_req - 1).abs()
        alike = held.decode.filter(off <= _ALIKE)
        out.append(
            shown(
                "tokens per running request",
                capacity.tokens_per_req,
                "tokens",
                held.at(alike, int(alike["kv_usage"].arg_max() or 0))
                if alike.height
                else (None, None),
                f"sum #token{ahead} / sum #running-req of {span}",
                1,
            )
        )
    if capacity.requests_fit is not None:
        running = held.mean("running") or 0.0
        kept = capacity.reserved_per_req
        each = f"(tokens per request + {kept:,} kept free)" if kept else "tokens per request"
        formula = f"pool / {each}; {running:,.0f} ran on average in the episodes"
        out.append(shown("requests that fit", capacity.requests_fit, "requests", formula=formula))
    return out


def load(held: Held) -> list[Evidence]:
    """How many run and wait while the pool is full, as the summary says."""
    return [
        held.averaged("running requests", "running", "running", "requests", 1),
        held.averaged("waiting requests", "queue", "queue_req", "requests", 1),
    ]


def printed_usage(held: Held) -> list[Evidence]:
    """The usage that the lines print while the pool is full."""
    column = next(
        (c for c in ("full_token_usage", "gpu_token_usage") if held.lines[c].drop_nulls().len()),
        "token_usage",
    )
    peak = as_float(held.lines[column].max())
    out = [shown("highest usage", peak, "fraction", held.line(column), "printed", 2)]
    if held.lines.height > 1:
        out.append(held.averaged("mean usage", "full_usage", column, "fraction", 2))
        filled = held.rank.filled.filter(held.mask & ~held.rank.grid["gap"])
        out.append(
            shown(
                "mean usage with growth and one more request",
                as_float(filled.mean()),
                "fraction",
                formula="the most that the running requests and the next one come to hold / pool, "
                "as the lines that follow tell",
                digits=2,
            )
        )
    return out


def step_time(held: Held) -> list[Evidence]:
    """The rate per request is what this batch and context should give."""
    rows = held.decode.filter(pl.col("rate_per_req").is_not_null())
    if not rows.height:
        return []
    rate = float(rows["gen_throughput"].sum()) / float(rows["running_req"].sum())
    out = [
        shown(
            "decode rate per request",
            rate,
            "token/s",
            held.at(rows, int((rows["rate_per_req"] - rate).abs().arg_min() or 0)),
            f"sum gen throughput / sum #running-req of {these(rows)}",
            2,
        )
    ]
    model = held.rank.model
    rows = like_the_model(held.rank, held.decode.drop_nulls("residual"))
    residual = rows["residual"]
    if model is not None and residual.len() >= 5:
        off = math.expm1(as_float(residual.median(), 0.0))
        slow = residual.filter(residual > math.log(2)).len()
        apart = held.decode["residual"].count() - residual.len()
        other = "with" if rows["cuda_graph"].eq(False).any() else "without"
        out.append(
            shown(
                "step time against the fitted model",
                f"{off:+.1%}",
                "",
                (None, None),
                f"median of {residual.len()} intervals; step = {model.t0_s * 1e3:.1f} ms + "
                f"{model.a_s * 1e3:.3f} ms x running + {model.b_s * 1e9:.1f} ns x tokens: "
                + _speed_words(off, slow, residual.len())
                + (f"; {apart} intervals {other} a CUDA graph left out" if apart else ""),
            )
        )
    return out


def like_the_model(rank: Rank, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the decode lines that the step model is about: with CUDA graph, if those are many."""
    graph = pl.col("cuda_graph").fill_null(True)
    modelled = rank.lines.filter(pl.col("decode") & graph).height >= MIN_LINES
    return rows.filter(graph if modelled else ~graph)


#: Intervals that took more than twice the modelled time, of all, that are no exceptions.
_OFTEN_SLOW = 0.1


def _speed_words(off: float, slow: int, n: int) -> str:
    if off >= 0.1:
        return "slower than usual"
    if slow >= _OFTEN_SLOW * n:
        return f"but {slow} of them took more than twice the modelled time (THR003, HNG001)"
    return "the GPU is not slower than usual"


def burn_down(held: Held) -> list[Evidence]:
    """When it could have been seen coming: how fast the first lines filled the pool.

    The first of ten lines that reaches nearly their best rate counts: the very first still
    divides by the time in which nothing ran.
    """
    rank = held.rank
    first = rank.lines.filter(
        pl.col("decode") & (pl.col("gen_throughput") > 0) & pl.col("kv_usage").is_not_null()
    ).head(10)
    if not first.height or not rank.kv_tokens or rank.clock != "stamps":
        return []
    rate = first["gen_throughput"]
    row = first.row(int((rate >= 0.9 * as_float(rate.max(), 0.0)).arg_max() or 0), named=True)
    usage, actual = row["kv_usage"], held.spans[0][0] * rank.step_s - row["t"]
    predicted = (1 - usage) * rank.kv_tokens / row["gen_throughput"]
    # A forecast that missed by more than twice is no evidence.
    if usage > 0.5 or actual <= 0 or not 0.5 <= actual / predicted <= 2:
        return []
    return [
        shown(
            "time to a full pool, foreseeable at this line",
            predicted,
            "s",
            (row["source"], row["line_no"]),
            f"(1 - {usage:.2f}) x {rank.kv_tokens:,} / {row['gen_throughput']:,.0f} token/s while "
            f"nothing finishes; it was full after {duration(actual)}",
            0,
        )
    ]


def cost(case: Case, held: Held) -> list[Evidence]:
    """What it cost: throughput against the unsaturated level, and over the whole log."""
    rank = held.rank
    if case.excerpt or rank.clock == "none":
        return []
    grid = rank.grid
    out = []
    inside = held.total("decoded") / max(held.seconds, 1.0)
    free = rank.mean(pl.when(~pl.lit(held.mask) & ~pl.col("gap")).then(pl.col("rate")), 30.0)
    best = as_float(free.max(), 0.0)
    if best > 0:
        at = int(free.arg_max() or 0) * rank.step_s
        # What a cell holds is said by the decode line that ends its interval.
        rates = rank.lines.filter(pl.col("decode") & pl.col("gen_throughput").is_not_null())
        near = rates.filter(pl.col("t").is_between(at - 15.0, at + 15.0))
        near = near if near.height else rates.filter(pl.col("t") >= at).head(1)
        out.append(
            shown(
                "decode throughput while saturated",
                inside,
                "token/s",
                (None, None),
                f"tokens decoded / time of {these(held.decode)}",
                0,
            )
        )
        out.append(
            shown(
                "decode throughput reached unsaturated",
                best,
                "token/s",
                held.at(near, int((near["gen_throughput"] - best).abs().arg_min() or 0))
                if near.height
                else (None, None),
                f"mean of {these(near)}, the best 30 s outside the episodes",
                0,
            )
        )
    live = float(grid["decoded"].sum()) / max(rank.span_s, 1.0)
    printed = rank.lines.filter("decode")["gen_throughput"].mean()
    out.append(
        shown(
            "decode throughput of the whole log",
            live,
            "token/s",
            (None, None),
            "tokens decoded / wall time, pauses included; the printed values average "
            f"{as_float(printed, 0.0):,.0f}",
            0,
        )
    )
    return out
