"""Throughput at another pool size, from the decode lines that were logged at this one.

Each settled line is taken as it would have been: as many requests run as fit, wait or are
allowed (`R' = min(running + waiting, cap, R x tokens' / tokens)`), they hold as many tokens
each as before, and the step takes what the step model says. Throughput is the sum of the
tokens over the sum of the times. Prefill goes with the tokens decoded, but for what retracted
requests compute again: that goes with the fullness of the pool, and is left as it is.

Why not the step time at the mean: running requests swing between 20 and 100 under saturation,
and the step is not proportional to them. Why not in proportion to the pool: a step with
twice the requests takes longer; twice the pool gave 1.41 times the throughput, not 2.

The interval is the middle nine tenths of resampled answers. They differ in which stretches of
the log they saw (for both sides of the ratio: another hour of the same load differs too), in
the step model within what its residuals allow, and in what no model of three terms can know
(`MODEL_ERROR`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import polars as pl

from loganalyze import timeline
from loganalyze.capacity import memory, pool, steps
from loganalyze.model import Estimate, SessionData, StepModel
from loganalyze.timeline import as_float

#: Lines whose step time and swings are known; below this the answer is a range of shapes.
MIN_LINES = 12

#: Nine times in ten the step model errs by less than this at twice the batch ...
MODEL_ERROR = 0.06
#: ... and by less than this where the layout of the GPUs changes too, or where data-parallel
#: ranks wait for the slowest of them.
LAYOUT_ERROR = 0.15

_Z90 = 1.645
_DRAWS = 400
_BLOCKS = 20

#: Peak memory bandwidths of GPUs, bytes/s, and the share of it that attention reaches.
_BANDWIDTH = (0.3e12, 10e12)
_REACHED = (0.45, 1.0)

#: A line is held back by the pool while requests wait and the pool is this full, or was full
#: lately: usage saw-tooths as requests finish together.
_FULL = 0.80
_WAS_FULL = 0.93
_FLOOR = 0.50
_MEMORY_S = 150.0

#: A sliding-window pool blocks from here on: a request that is to start counts in full there.
_WINDOW_FULL = 0.60

#: Usage of DP ranks further apart than this, with a queue at the fullest, is an uneven load.
_APART = 0.35

#: What holds on this share of the lines is called the limit.
_OFTEN = 0.25

#: Prefill that takes more of the time than this is the limit, as it is for PRE001.
_PREFILL = 0.5

#: Share of a step that does not depend on the batch, where too few lines tell.
_FIXED_SHARE = (0.1, 0.9)


Limit = Literal["prefill", "pool", "states", "cap", "other", "load", "unknown"]


@dataclass(frozen=True, slots=True)
class Uneven:
    """DP ranks of which one is full with a queue while another has room.

    Attributes:
        full, empty: names of the fullest and the emptiest rank, as printed.
        full_usage, empty_usage: their mean usage; `waiting`: mean queue of the fullest.
        running: requests that run now over all ranks; `even`: with the same number on each.
        gain: throughput with an even load / now.
        formula: the arithmetic of `even` and `gain`.
    """

    full: str
    empty: str
    full_usage: float
    empty_usage: float
    waiting: float
    running: float
    even: float
    gain: Estimate
    formula: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What the settled lines say about the work.

    Attributes:
        lines: one row per decode line: `running`, `tokens` (held), `waiting`, `bound` (held
            back by the pool), `prefill_s` (of each step), `repeated_s` (of that, for retracted
            requests), `block`.
        model: step model; None with too few lines.
        step_s: mean seconds of a decode step.
        throughput: decoded token/s over all ranks.
        running: mean running requests, per rank.
        completed_per_s: finished requests per second over all ranks; None if not known.
        bound_share: share of the lines held back by the pool.
        cap: running cap per rank; None where it is not known.
        ranks: DP ranks that were measured.
        limited_by: what holds throughput back; `limit` in plain words.
        uneven: how unevenly DP ranks are loaded; None where they are not, or there is one.
    """

    lines: pl.DataFrame
    model: StepModel | None
    step_s: float
    throughput: float
    running: float
    completed_per_s: float | None
    bound_share: float
    cap: int | None
    ranks: int
    limited_by: Limit
    limit: str
    uneven: Uneven | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What is different.

    Attributes:
        pool: tokens of the pool afterwards / now.
        kv_bytes: bytes that attention reads per token afterwards / now.
        cap: running cap per rank afterwards; None to keep the present one.
        split: GPUs that share the reading of KV which each read whole before.
        servers: servers that share the load, each with such a pool.
        weights: weights that each step reads in addition, as the KV tokens of that size.
        layout: whether collectives change too, which the step model cannot know.
    """

    pool: float = 1.0
    kv_bytes: float = 1.0
    cap: int | None = None
    split: int = 1
    servers: int = 1
    weights: float = 0.0
    layout: bool = False


def load(data: SessionData) -> Load | None:
    """Return what the session's settled decode lines say; None where it has none.

    Settled: from the first line at which tokens per request reached their median. Lines whose
    interval spans a silence say nothing. Where the pool holds work back for a good part of the
    time, the other lines are left out: they would dilute what a larger pool does.
    """
    found = timeline.of(data)
    model = data.session.capacity.step_model or steps.fit_all(found)
    cap = data.session.config.max_running_req
    parts = [_rows(data, one, model, cap) for one in found]
    busy = [part for part in parts if part.height]
    if not busy:
        return None
    # Ranks step together, so all of them count where one is full.
    reserve = memory.decode_reserve(data.session)
    said = [_limit(part, reserve) for part in busy]
    bound, limited_by, limit = max(said, key=lambda one: one[0])
    kept = pl.concat(busy)
    if len(busy) == 1 and bound >= _OFTEN and kept["bound"].sum() >= MIN_LINES:
        kept = kept.filter("bound")
    place = pl.int_range(pl.len()).over("rank")
    size = pl.len().over("rank")
    kept = kept.with_columns_seq(block=place * pl.min_horizontal(size, _BLOCKS) // size)
    rates = kept.group_by("rank").agg(
        pl.col("decoded").sum() / pl.col("seconds").sum(),
        completed=pl.col("completed").sum() / pl.col("seconds").sum(),
    )
    completed = float(rates["completed"].sum())
    together = data.session.config.arg("enable_dp_attention") is True
    uneven = _uneven(found, parts, together)
    if uneven is not None:
        limit = (
            f"{limit}, on {uneven.full} alone (mean usage {uneven.full_usage:.2f}, "
            f"{uneven.waiting:.0f} waiting): {uneven.empty} has room "
            f"(mean usage {uneven.empty_usage:.2f})"
        )
    return Load(
        lines=kept,
        model=model,
        step_s=float(kept["step_s"].mean() or 0.0),  # type: ignore[arg-type]
        throughput=float(rates["decoded"].sum()),
        running=float(kept["running"].mean() or 0.0),  # type: ignore[arg-type]
        completed_per_s=completed if completed > 0 else None,
        bound_share=bound,
        cap=cap,
        ranks=len(busy),
        limited_by=limited_by,
        limit=limit,
        uneven=uneven,
    )


def _uneven(
    found: Sequence[timeline.Timeline], parts: Sequence[pl.DataFrame], together: bool
) -> Uneven | None:
    """Return how unevenly the ranks are loaded, and what an even spread would give.

    All that run and wait are spread over the ranks, as many on each as the full one holds at
    most, in steps as long as those of the full rank. Ranks that step `together` (DP attention)
    then also wait for each other's prefills, as many on each as on the full rank now.
    """
    if len(parts) < 2:
        return None
    columns = ("usage", "waiting", "running", "decoded", "seconds", "prefill_s", "step_s")
    empty = dict.fromkeys(columns, 0.0)
    means = [
        {
            c: float(v or 0.0)
            for c, v in part.select_seq(pl.col(columns).mean()).row(0, named=True).items()
        }
        if part.height
        else empty
        for part in parts
    ]
    order = sorted(range(len(parts)), key=lambda i: means[i]["usage"])
    low, high = means[order[0]], means[order[-1]]
    if high["usage"] - low["usage"] <= _APART or high["waiting"] < 1 or low["waiting"] >= 1:
        return None
    n = len(parts)
    running = sum(m["running"] for m in means)
    demand = running + sum(m["waiting"] for m in means)
    each = min(demand / n, high["running"])
    rates = [m["decoded"] / m["seconds"] if m["seconds"] else 0.0 for m in means]
    now = sum(rates)
    after = n * rates[order[-1]] * each / high["running"]
    slower = 1 + (n - 1) * high["prefill_s"] / high["step_s"] if together else 1.0
    after /= slower
    mid, error = after / now, math.exp(LAYOUT_ERROR)
    names = [one.label or f"rank {one.dp_rank}" for one in found]
    return Uneven(
        full=names[order[-1]],
        empty=names[order[0]],
        full_usage=high["usage"],
        empty_usage=low["usage"],
        waiting=high["waiting"],
        running=running,
        even=n * each,
        gain=Estimate(mid / error, mid, mid * error),
        formula=(
            f"min({demand:,.0f} running and waiting / {n} ranks, {high['running']:.1f} that run "
            f"on {names[order[-1]]}) = {each:.1f} on each = {n * each:.0f} instead of "
            f"{running:.0f}",
            f"{n} ranks x {rates[order[-1]]:,.0f} token/s of {names[order[-1]]} x {each:.1f} / "
            f"{high['running']:.1f} / {slower:.2f} (steps longer by the others' prefills) = "
            f"{after:,.0f} instead of {now:,.0f} token/s = x {mid:.2f}",
        ),
    )


def estimate(
    load: Load, change: Change, bandwidth: float | None = None, cell: float | None = None
) -> Estimate:
    """Return throughput afterwards / now.

    Args:
        load: of `load`.
        change: what is different.
        bandwidth: the GPU's peak memory bandwidth in bytes/s, where known; together with the
            bytes per token it bounds the cost of context.
        cell: KV bytes per token that attention reads on one rank.

    Behind a higher cap waits what admission keeps free, which goes with the max_new_tokens that
    the log does not print: the range reaches from all that it may be to none.
    """
    most = _estimate(load, change, bandwidth, cell, careful=False)
    if change.cap is None or load.limited_by != "cap":
        return most
    least = _estimate(load, change, bandwidth, cell, careful=True)
    return Estimate(min(least.low, most.low), (least.mid + most.mid) / 2, most.high)


def _estimate(
    load: Load, change: Change, bandwidth: float | None, cell: float | None, *, careful: bool
) -> Estimate:
    """Return what `estimate` does; `careful` as in `_running_after`."""
    after = _running_after(load, change, careful=careful)
    lines = load.lines.with_columns_seq(after=after).with_columns_seq(
        held=pl.col("tokens") * pl.col("after") / pl.col("running"),
        prefill_after=pl.col("repeated_s")
        + (pl.col("prefill_s") - pl.col("repeated_s")) * pl.col("after") / pl.col("running"),
    )
    blocks = lines.group_by("block", maintain_order=True).agg(
        pl.len().cast(pl.Float64).alias("n"),
        pl.col("running", "tokens", "prefill_s", "after", "held", "prefill_after").sum(),
    )
    nows = blocks.select_seq("n", "running", "tokens", "prefill_s")
    thens = blocks.select_seq("n", "after", "held", "prefill_after")
    servers = change.servers
    rng = random.Random(blocks.height * 1_000_003 + load.lines.height)
    shapes = _Shapes(load, bandwidth, cell, rng)
    splits = (1.0 / change.split, 1.0)
    error = LAYOUT_ERROR if change.layout or load.ranks > 1 else MODEL_ERROR

    def gain(now: _Sums, then: _Sums, shape: _Shape, share: float) -> float:
        before = now.running / (now.seconds(shape) or math.inf)
        seconds = then.seconds(shape, change.kv_bytes * share)
        seconds += shape.per_token * change.weights * then.n
        after = then.running / (seconds or math.inf)
        return servers * after / before if before else 1.0

    middle = shapes.best()
    mid = gain(_total(nows), _total(thens), middle, sum(splits) / 2)
    answers = []
    for now, then in zip(_drawn(nows, rng), _drawn(thens, rng), strict=True):
        answer = gain(now, then, shapes.draw(), rng.uniform(*splits))
        answers.append(answer * math.exp(rng.gauss(0.0, error / _Z90)))
    answers.sort()
    low, high = answers[round(0.05 * _DRAWS)], answers[round(0.95 * _DRAWS) - 1]
    return Estimate(min(low, mid), mid, max(high, mid))


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return an estimate in another unit."""
    return Estimate(estimate.low * factor, estimate.mid * factor, estimate.high * factor)


def time_left(amount: float, rate: Estimate) -> Estimate:
    """Return seconds for some work at some rate; a high rate gives the low time."""
    return Estimate(amount / rate.high, amount / rate.mid, amount / rate.low)


# -- the lines ----------------------------------------------------------------------------


def _repeated(one: timeline.Timeline) -> float:
    """Return the share of the prefilled tokens that had been computed before a retraction.

    A retraction line prints the tokens that it freed (0.5.7 and later); 0 where none does.
    """
    freed = int(one.lost["new_tokens_gained"].sum())
    prefilled = int(one.lines["new_token"].sum())
    return min(1.0, max(0.0, freed / prefilled)) if prefilled else 0.0


def _rows(
    data: SessionData, one: timeline.Timeline, model: StepModel | None, cap: int | None
) -> pl.DataFrame:
    """Return the settled decode lines of one rank."""
    waiting = pl.sum_horizontal("queue_req", "prealloc_req", "retracted_req")
    usage = pl.max_horizontal(
        "token_usage", "full_token_usage", "swa_token_usage", "gpu_token_usage"
    )
    decode = one.lines.filter(pl.col("decode") & (pl.col("running_req") > 0)).with_columns_seq(
        usage=usage, waiting=waiting.cast(pl.Float64)
    )
    decode = decode.with_columns_seq(_recent=_recent_max(decode, one.clock))
    per_req = decode.select_seq(x=pl.col("own_token") / pl.col("running_req"))["x"]
    middle = per_req.median()
    if middle is not None:
        first = (per_req >= float(middle)).arg_max() or 0  # type: ignore[arg-type]
        decode = decode[first:]
    below_cap = pl.lit(True)
    if cap:
        below_cap = pl.col("running_req") < timeline.near_cap(cap)
    window_full = (pl.col("swa_token_usage") > _WINDOW_FULL).fill_null(False) & (
        pl.col("full_token_usage") < pl.col("swa_token_usage")
    ).fill_null(True)
    full = (
        window_full
        | (pl.col("usage") >= _FULL)
        | ((pl.col("usage") >= _FLOOR) & (pl.col("_recent") >= _WAS_FULL))
    )
    state_full = (pl.col("mamba_usage") >= 0.95).fill_null(False)
    reserved = _reserved(data)
    p0, p1 = (model.p0_s, model.p1_s) if model else (0.0, 0.0)
    repeated = _repeated(one)
    single = decode.height == 1  # a lone line has no interval, but it has a rate
    usable = (pl.col("gen_throughput") > 0) & (
        pl.lit(single)
        | ~(pl.col("first") | pl.col("after_gap") | pl.col("emptied")).fill_null(False)
    )
    n = float(one.interval)
    batches, new = pl.col("n_prefill").fill_null(0), pl.col("d_new_token").fill_null(0)
    running = pl.coalesce("r_mean", "running_req").cast(pl.Float64)
    accepted = pl.col("accept_len").fill_null(1.0)
    return (
        decode.filter(usable)
        .select_seq(
            rank=pl.lit(one.dp_rank if one.dp_rank is not None else -1, dtype=pl.Int64),
            running=running,
            tokens=pl.coalesce("t_mean", "own_token").fill_null(0).cast(pl.Float64),
            waiting=pl.col("waiting").fill_null(0.0),
            usage="usage",
            filled=_filled(data),
            keeps=_keeps(data, pl.col("running_req")),
            keeps_one=_keeps(data, pl.lit(0)),
            # Nothing stays in #queue-req of a PD decode server.
            queue_known=pl.col(
                "prealloc_req" if data.session.role == "decode" else "queue_req"
            ).is_not_null(),
            bound=(
                (pl.col("waiting") > 0)
                & (full.fill_null(False) | reserved)
                & below_cap
                & ~state_full
            ).fill_null(False),
            reserved=~full.fill_null(False) & reserved,
            at_cap=~below_cap,
            state_full=state_full,
            window_full=window_full,
            # What prefill takes of the time of one decode step, so that all lines weigh alike.
            prefill_s=(p0 * batches + p1 * new) / n,
            repeated_s=p1 * new * repeated / n,
            seconds=n * running * accepted / pl.col("gen_throughput"),
            decoded=n * running * accepted,
            completed=pl.col("completed").fill_null(0).cast(pl.Float64),
        )
        .filter(pl.col("running") > 0)
        .with_columns_seq(step_s=pl.col("seconds") / n)
    )


def _reserved(data: SessionData) -> pl.Expr:
    """Return whether what is free is no more than what admission keeps free.

    That room goes with the pool as the tokens in use do. Counted at the settled estimate and
    for long max_new_tokens, with the margin of an estimate. A PD decode server admits by its
    reserve for each request instead.
    """
    tokens = data.session.capacity.kv_tokens
    if data.session.role == "decode":
        reserve = memory.decode_reserve(data.session)
        return pool.lacks_room(pl.col("usage"), _on_hand(), tokens, reserve).fill_null(False)
    if not tokens:
        return pl.lit(False)
    c = memory.printed_conservativeness(data.session.config)
    kept = memory.reserved_tokens(pl.col("running_req"), c)
    kept_free: pl.Expr = memory.NEED_MARGIN * kept
    return (tokens * (1 - pl.col("usage")) <= kept_free).fill_null(False)


def _filled(data: SessionData) -> pl.Expr:
    """Return the share of the pool that is in use or kept free for requests that are held."""
    reserve, tokens = memory.decode_reserve(data.session), data.session.capacity.kv_tokens
    return pl.col("usage") + (_on_hand() * reserve / tokens if tokens else 0.0)


def _keeps(data: SessionData, running: pl.Expr) -> pl.Expr:
    """Return the share of the pool that admission keeps free at most, for long max_new_tokens.

    0 where its size is unknown, and on a PD decode server, whose reserve `_filled` counts.
    """
    tokens = data.session.capacity.kv_tokens
    if not tokens or data.session.role == "decode":
        return pl.lit(0.0)
    kept: pl.Expr = memory.reserved_tokens(
        running, memory.printed_conservativeness(data.session.config)
    )
    return kept / tokens


def _on_hand() -> pl.Expr:
    """Return the requests that hold KV: those that run and those in transfer."""
    return pl.col("running_req") + pl.col("transfer_req").fill_null(0)


def _recent_max(decode: pl.DataFrame, clock: str) -> pl.Series:
    """Return the highest usage of the last `_MEMORY_S` seconds; of all lines without a clock."""
    if clock == "none":
        return decode["usage"].cum_max()
    ms = (decode["t"] * 1000).cast(pl.Int64)
    return (
        decode.select_seq(usage="usage", ms=ms)
        .rolling(index_column="ms", period=f"{int(_MEMORY_S * 1000)}i")
        .agg(pl.col("usage").max())["usage"]
    )


def _limit(rows: pl.DataFrame, reserve: int) -> tuple[float, Limit, str]:
    """Return the share of a rank's lines held back by the pool, and what holds it back.

    `reserve`: tokens kept free for each request held; see `memory.decode_reserve`.
    """

    def share(condition: pl.Expr) -> float:
        return float(rows.select_seq(condition.mean()).item() or 0.0)

    waits = pl.col("waiting") > 0
    bound = share(pl.col("bound"))
    # What retracted requests compute again is not work that came with the prompts.
    spent = pl.col("prefill_s") - pl.col("repeated_s")
    duty = float(rows.select_seq(spent.sum() / pl.col("step_s").sum()).item() or 0.0)
    if duty > _PREFILL:
        words = f"prefill: it takes {min(duty, 1.0):.0%} of the time, so more room for KV"
        return bound, "prefill", f"{words} changes little"
    if bound >= _OFTEN:
        where = "the KV pool"
        if share(pl.col("bound") & pl.col("window_full")) > bound / 2:
            where = "the sliding-window KV pool"
        elif share(pl.col("bound") & pl.col("reserved")) > bound / 2:
            where = (
                f"the KV pool, {reserve} tokens of it kept free for each request held"
                if reserve
                else "the KV pool, most of it kept for what running requests may still write"
            )
        often = f"requests waited for it on {bound:.0%} of the lines after warm-up"
        return bound, "pool", f"{where}: {often}"
    if share(pl.col("state_full") & waits) >= _OFTEN:
        return bound, "states", "the Mamba state slots: KV tokens do not help"
    if share(pl.col("at_cap") & waits) >= _OFTEN:
        return bound, "cap", "the running cap: KV tokens do not help before it is raised"
    if not rows["queue_known"].any():
        return bound, "unknown", "what this log does not tell: it prints no queue"
    if share(waits) >= _OFTEN:
        words = "neither KV pool nor cap, though requests wait: KV tokens do not help"
        return bound, "other", words
    return bound, "load", "the load: nothing waits, so more room for KV changes little"


def _running_after(load: Load, change: Change, *, careful: bool) -> pl.Expr:
    """Return how many requests would run on a rank.

    While the pool holds requests back: in proportion to it, up to all that wait. While the cap
    does: all that wait, up to the new cap and to what the pool holds, or, for `careful`, to what
    admission lets into it if clients ask for very many tokens. Else as many as now.
    """
    running, waiting = pl.col("running"), pl.col("waiting")
    each, free = pl.max_horizontal("filled", 0.01).fill_null(0.01), pl.lit(change.pool)
    if careful:
        each, free = each + pl.col("keeps") - pl.col("keeps_one"), free - pl.col("keeps_one")
    fit = running * free / each
    if careful:
        fit = pl.max_horizontal(fit, "running")
    after = (
        pl.when("bound")
        .then(pl.min_horizontal(running * change.pool, running + waiting))
        .when("at_cap")
        .then(pl.min_horizontal(fit, running + waiting))
        .otherwise(running)
    )
    if change.pool < 1:
        after = pl.min_horizontal(after, fit)
    cap = change.cap or load.cap
    if cap:
        after = pl.min_horizontal(after, float(cap))
    if change.servers > 1:
        after = pl.min_horizontal(after, (running + waiting) / change.servers)
    return pl.max_horizontal(after, 1e-9)


# -- resampling ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """Seconds of a step: fixed + per_req x running + per_token x tokens."""

    fixed: float
    per_req: float
    per_token: float


class _Sums(NamedTuple):
    """Sums over lines, each one step long, as they were or as they would be."""

    n: float
    running: float
    tokens: float
    prefill: float

    def seconds(self, s: _Shape, kv_bytes: float = 1.0) -> float:
        """Return the time of the steps, where a token has so many times as many bytes."""
        per_token = s.per_token * kv_bytes
        return s.fixed * self.n + s.per_req * self.running + per_token * self.tokens + self.prefill


def _total(blocks: pl.DataFrame) -> _Sums:
    return _Sums(*(as_float(column.sum(), 0.0) for column in blocks))


def _drawn(blocks: pl.DataFrame, rng: random.Random) -> Iterable[_Sums]:
    """Return the totals of `_DRAWS` samples, each of as many blocks as there are."""
    n = blocks.height
    picks = pl.Series(rng.choices(range(n), k=n * _DRAWS))
    columns = (column.gather(picks).reshape((_DRAWS, n)).arr.sum() for column in blocks)
    return map(_Sums, *columns)


class _Shapes:
    """The step models that the lines allow.

    With a fitted model: its two slopes vary as the residuals let them, the mean step is kept
    (it is known well), no term is negative, and the cost per token is one that some GPU has.
    Where running requests and tokens moved together, this spreads over every split of the
    slope between them. Without a model the fixed share is anything between `_FIXED_SHARE`.
    """

    def __init__(
        self, load: Load, bandwidth: float | None, cell: float | None, rng: random.Random
    ) -> None:
        self._rng = rng
        self._model = load.model
        self._possible = True
        lines = load.lines
        said = lines.select_seq(
            r=pl.col("running").mean(),
            t=pl.col("tokens").mean(),
            rr=(pl.col("running") - pl.col("running").mean()).pow(2).sum(),
            tt=(pl.col("tokens") - pl.col("tokens").mean()).pow(2).sum(),
            rt=(
                (pl.col("running") - pl.col("running").mean())
                * (pl.col("tokens") - pl.col("tokens").mean())
            ).sum(),
        ).row(0, named=True)
        self._r, self._t = float(said["r"]), float(said["t"])
        model = load.model
        if model is None:
            self._step = load.step_s
        else:
            self._step = model.t0_s + model.a_s * self._r + model.b_s * self._t
            noise = max(model.residual_sd, 0.01) * self._step
            self._spread = _square_root(said["rr"], said["rt"], said["tt"], noise)
        self._bounds = (0.0, math.inf)
        if cell:
            fast = bandwidth or _BANDWIDTH[1]
            slow = bandwidth or _BANDWIDTH[0]
            self._bounds = (cell / (fast * _REACHED[1]), cell / (slow * _REACHED[0]))

    def best(self) -> _Shape:
        """Return the fitted model, or an even one where there is none."""
        if self._model is not None:
            return _Shape(self._model.t0_s, self._model.a_s, self._model.b_s)
        return self._even(sum(_FIXED_SHARE) / 2, 0.5)

    def draw(self) -> _Shape:
        """Return one of the models that the lines allow."""
        if self._model is None:
            return self._even(self._rng.uniform(*_FIXED_SHARE), self._rng.random())
        if not self._possible:
            return self.best()
        low, high = self._bounds
        (wide, _none), (slope, rest) = self._spread
        most = self._step / self._r
        for _ in range(200):
            # A slope that the lines do not tell is anything that leaves the others possible.
            per_req = (
                self._rng.gauss(self._model.a_s, wide)
                if wide < most
                else self._rng.uniform(0.0, most)
            )
            along = (per_req - self._model.a_s) / wide
            per_token = self._model.b_s + slope * along + rest * self._rng.gauss(0.0, 1.0)
            fixed = self._step - per_req * self._r - per_token * self._t
            fits = low <= per_token <= high or not self._t
            if per_req >= 0 and per_token >= 0 and fixed >= 0 and fits:
                return _Shape(fixed, per_req, per_token)
        self._possible = False  # they would all be sought as long, and not be found
        return self.best()

    def _even(self, fixed: float, by_token: float) -> _Shape:
        varying = self._step * (1 - fixed)
        if not self._t:
            return _Shape(self._step * fixed, varying / self._r, 0.0)
        per_token = varying * by_token / self._t
        return _Shape(self._step * fixed, varying * (1 - by_token) / self._r, per_token)


def _square_root(
    rr: float, rt: float, tt: float, noise: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the lower Cholesky factor of the covariance of the two slopes.

    The covariance is noise^2 x inverse of [[rr, rt], [rt, tt]]. A direction in which the lines
    did not move is free: its spread is large, and the limits on the terms cut it.
    """
    if tt <= 0:
        return (noise / math.sqrt(rr) if rr > 0 else 1.0, 0.0), (0.0, 0.0)
    if rr <= 0:
        return (1.0, 0.0), (0.0, noise / math.sqrt(tt))
    determinant = max(rr * tt - rt * rt, 1e-9 * rr * tt)
    req, both = tt / determinant, -rt / determinant
    token = rr / determinant
    first = noise * math.sqrt(req)
    second = noise * both / math.sqrt(req)
    third = noise * math.sqrt(max(token - both * both / req, 0.0))
    return (first, 0.0), (second, third)
