"""Rules on the KV pool: is it full, what fills it, and what that costs."""

from __future__ import annotations

import math

import polars as pl

from loganalyze import episodes
from loganalyze.capacity import memory, pool, predict
from loganalyze.capacity.steps import MIN_LINES
from loganalyze.episodes import Hold, Span, at_least, hysteresis, joined, spans
from loganalyze.model import Action, Capacity, Estimate, Evidence, Finding, Severity
from loganalyze.rules import flags
from loganalyze.rules.held import (
    MEMORY_FRACTION,
    Held,
    act,
    all_episodes,
    cells_of,
    confidence,
    config_line,
    gain_text,
    gains,
    hold,
    memory_limit,
    minimum,
    outside,
    pool_evidence,
    seconds,
    severity,
    shown,
    spell,
    sum_of,
    thrown_back,
)
from loganalyze.rules.registry import (
    Case,
    Clear,
    Limit,
    Limits,
    NotApplicable,
    all_rules,
    duration,
    rule,
)
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, near_cap

_GIB = 2**30


# -- KV001 --------------------------------------------------------------------------------


@rule(
    "KV001",
    "kv-saturation",
    severity=Severity.CRITICAL,
    needs=("kv_usage", "queue_req"),
    limits={
        "enter_usage": Limit(0.90, "fraction", "usage from which the pool counts as full"),
        "enter_share": Limit(0.60, "fraction", "share of the entry window that must be full"),
        "enter_window_s": Limit(13.0, "s", "entry window"),
        "max_duty": Limit(0.60, "fraction", "prefill duty from which prefill is the limit"),
        "hold_usage": Limit(0.80, "fraction", "usage that keeps the state"),
        "reached_usage": Limit(0.93, "fraction", "usage that, once reached, excuses a dip"),
        "floor_usage": Limit(0.50, "fraction", "lowest usage of an excused dip"),
        "memory_s": Limit(150.0, "s", "how long a reached usage or a retraction excuses a dip"),
        "patience_s": Limit(20.0, "s", "the state ends after this long outside it"),
        "no_queue_s": Limit(6.0, "s", "the state ends after this long without a queue"),
        "end_usage": Limit(0.85, "fraction", "an episode ends with the last moment at this usage"),
        "fade_usage": Limit(0.88, "fraction", "usage below which the state fades"),
        "fade_s": Limit(100.0, "s", "the state ended where it began to fade for this long"),
        "join_s": Limit(30.0, "s", "holes up to this long are closed"),
        "join_queued_s": Limit(150.0, "s", "and up to this long if the queue never empties"),
        "report_s": Limit(30.0, "s", "shorter spells are normal under bursty load"),
    },
    explains=("KV002", "KV004", "KV005", "KV006", "KV008", "ADM001", "QUE001", "OVR001"),
    after=("KV010",),
)
def kv_saturation(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool is full while requests wait.

    What it flags:
        Spells in which a DP rank's KV pool (of hybrid models the full one) is at or above
        `enter_usage` with a queue, running requests below their cap and prefill not the limit,
        with hysteresis: usage under saturation saw-tooths as waves of requests finish together,
        and one saturation is one episode. An excerpt is judged by its lines alone, with low
        confidence.
    Why it is slow:
        A request joins the running batch only when its tokens fit the pool, so the number of
        running requests is pool size / tokens per request, and throughput is that number over
        the time of a step. The queue waits for KV room, not for compute.
    Not this rule:
        Running requests at their cap (RUN001), a full pool without a queue (KV003, good use),
        prefill taking most of the time (PRE001), and usage that nobody holds (KV010). Evictable
        prefix-cache tokens never count as used, so a pool full of cache is not full.
    What to do:
        Give the pool more memory, store KV in fp8, stop storing copies of it (DP attention or
        DCP for MLA models), add replicas, or hold fewer tokens per request. The throughput
        does not grow as much as the pool, because a larger batch takes longer steps. Hierarchical
        cache, more client workers and another conservativeness do not help.
    Source:
        PrefillAdder.add_one_req (NO_TOKEN); SGLang docs, "Hyperparameter Tuning".
    """
    found = hold(case.ranks, lambda rank: saturated_spans(case, rank, limits))
    if not found:
        return Clear(_not_full(case, limits))
    worst = found[0]
    running, queue = worst.mean("running") or 0.0, worst.mean("queue") or 0.0
    capacity = _capacity(case)
    waited = any(bool((held.lines["queue_req"] > 0).any()) for held in found)
    if waited:
        spent = spell(case, found, pl.col("queue_req") > 0)
        summary = f"KV pool full with requests waiting {spent}: {_people(running, queue)}"
    else:
        full = _printed_full_usage() >= limits["enter_usage"]
        summary = (
            f"KV pool full with running requests thrown back {spell(case, found, full)}: "
            f"{_people(running, queue)}"
        )
    few = _few_hold_it(worst)
    if few:
        summary += f"; {few}"
    elif capacity.tokens_per_req and capacity.requests_fit is not None:
        summary += (
            f"; room for about {capacity.requests_fit} at their settled "
            f"{capacity.tokens_per_req:,.0f} tokens per request"
        )
    lost = sum(float(held.cells["retracted"].sum()) for held in found)
    if lost:
        summary += f"; {thrown_back(lost)}"
    competing = _rival(case, found)
    level = confidence(case, found, competing=bool(competing))
    leak = _may_leak(case, worst)
    return Finding(
        summary=summary,
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            *_ceiling(case, worst, capacity),
            *_server_is_healthy(worst),
            *_burn_down(worst),
            *_cost(case, worst),
            *_load(worst),
        ],
        actions=[*(_runaway(case) if few else []), *more_room(case, worst)],
        severity=severity(case, found),
        confidence="medium" if leak and level == "high" else level,
        competing="; ".join(filter(None, (competing, leak))) or _look_alike(case, worst),
    )


def _printed_full_usage() -> pl.Expr:
    return pl.coalesce("full_token_usage", "token_usage", "gpu_token_usage")


#: So many running requests that hold the whole pool hold it each for itself.
_FEW = 2.5


def _few_hold_it(held: Held) -> str:
    """Say that one or two requests hold the whole pool; empty where more run."""
    rows = held.decode.filter(pl.col("running_req") > 0)
    running, each = as_float(rows["running_req"].mean(), 0.0), _per_request(held)
    if not each or not 0 < running < _FEW:
        return ""
    who = "one request holds" if running < 1.5 else "two requests hold"
    return f"{who} the whole pool, {each:,.0f} tokens each"


def _runaway(case: Case) -> list[Action]:
    return act(
        case,
        "See whether these requests should be so long: outputs that never stop (max_new_tokens, "
        "stop tokens, sampling), or giant prompts; cap them in the clients",
    )


def _capacity(case: Case) -> Capacity:
    """Return the session's capacity; the lines of a leak say nothing of what requests hold."""
    leak = case.earlier.get("KV010")
    measured = case.signals.capacity
    return pool.before_leak(case.data, measured, leak.episodes[0].first_line) if leak else measured


#: Tokens per request and running requests that move apart by this factor may be a leak.
_APART = 1.2


def _may_leak(case: Case, held: Held) -> str:
    """Name a leak that the log is too short to judge; empty if nothing speaks for one.

    Tokens per request that grow while fewer requests run look the same in young requests that
    grow and in tokens that nobody holds.
    """
    limits = all_rules()["KV010"].limits
    needed = limits["window_s"].value + limits["report_s"].value
    if case.signals.span_s >= needed or case.excerpt:
        return ""
    rows = held.decode.filter(pl.col("own_token").is_not_null() & (pl.col("running_req") > 0))
    third = rows.height // 3
    if not third:
        return ""
    first, last = rows.head(third), rows.tail(third)
    held_by = [float(r["own_token"].sum()) / float(r["running_req"].sum()) for r in (first, last)]
    running = [as_float(r["running_req"].mean(), 0.0) for r in (first, last)]
    if held_by[1] < _APART * held_by[0] or running[0] < _APART * running[1]:
        return ""
    return (
        f"a KV leak (KV010) cannot be excluded: tokens per running request grew from "
        f"{held_by[0]:,.0f} to {held_by[1]:,.0f} while running fell from {running[0]:.0f} to "
        f"{running[1]:.0f}, and telling the two apart takes {needed:.0f} s of log"
    )


def saturated_spans(case: Case, rank: Rank, limits: Limits) -> list[Span]:
    """Return the spans in which KV001 holds on a rank, by its hysteresis."""
    below_cap = pl.lit(True)
    if rank.cap:
        below_cap = pl.col("running") < near_cap(rank.cap)
    # A retracted request waits, whether or not a line has printed the queue since.
    waits = (pl.col("queued") > 0) | (pl.col("retracted") > 0)
    if case.excerpt and rank.grid["retracted"].sum():
        waits = pl.col("full_usage").is_not_null()
    full = (
        waits
        & (pl.col("full_usage") >= limits["enter_usage"] - 1e-9)
        & below_cap
        & (pl.col("duty").fill_null(0.0) < limits["max_duty"])
    )
    enter = rank.holds(full, limits["enter_share"], limits["enter_window_s"])
    if not enter.any():
        return []
    reached = rank.past_max("full_usage", limits["memory_s"]) >= limits["reached_usage"]
    lost = rank.past_sum("retracted", limits["memory_s"]) > 0
    usage, queued = rank.grid["full_usage"], rank.select(waits)
    keep = queued & (
        (usage >= limits["hold_usage"]) | (reached & (usage >= limits["floor_usage"])) | lost
    )
    found = hysteresis(
        enter,
        keep,
        Hold(
            patience=rank.cells(limits["patience_s"]),
            quits=[((~queued).fill_null(True), rank.cells(limits["no_queue_s"]))],
            fades=[((usage < limits["fade_usage"]).fill_null(True), rank.cells(limits["fade_s"]))],
        ),
    )
    found = [_trimmed(rank, span, rank.select(waits), limits) for span in found]
    found = joined(found, rank.cells(limits["join_s"]))
    waiting = queued.fill_null(False)
    found = joined(found, rank.cells(limits["join_queued_s"]), waiting)
    return at_least(found, minimum(case, limits["report_s"]) / rank.step_s)


def _trimmed(rank: Rank, span: Span, waits: pl.Series, limits: Limits) -> Span:
    """Begin a span at its first full cell and end it at the last that is nearly full.

    The entry window is centred and reaches ahead; and what follows the last full moment, while
    admission is still careful, is not saturation (KV005).
    """
    usage = rank.grid["full_usage"]
    full = ((usage >= limits["enter_usage"] - 1e-9) & waits).fill_null(False)
    near = ((usage >= limits["end_usage"]) & waits).fill_null(False)[span[0] : span[1]]
    first = span[0]
    if full[first]:
        while first > 0 and full[first - 1]:
            first -= 1
    else:
        first += int(full[span[0] : span[1]].arg_max() or 0)
    last = span[0] + near.len() - int(near.reverse().arg_max() or 0)
    return first, max(last, first + 1)


def _not_full(case: Case, limits: Limits) -> str:
    printed = case.data.batch.select("queue_req", usage=_printed_full_usage())
    top = as_float(printed["usage"].max(), 0.0)
    both = as_float(printed.filter(pl.col("queue_req") > 0)["usage"].max())
    if both is None:
        return f"no request waited; highest usage {top:.2f}"
    if both < limits["enter_usage"]:
        return f"highest usage with a queue {both:.2f}, below {limits['enter_usage']:.2f}"
    return f"usage reached {both:.2f} with a queue, but never for {limits['report_s']:.0f} s"


def _people(running: float, queue: float) -> str:
    return f"{running:.0f} running, {queue:.0f} waiting"


def _per_request(held: Held) -> float | None:
    """Return KV tokens per running request: sum of tokens over sum of running, decode lines."""
    token = pl.col("own_token")
    rows = held.decode.filter(token.is_not_null() & (pl.col("running_req") > 0))
    total = rows.select(token.sum(), pl.col("running_req").sum()).row(0)
    return float(total[0]) / float(total[1]) if total[1] else None


def _ceiling(case: Case, held: Held, capacity: Capacity) -> list[Evidence]:
    """The ceiling is the cause: running requests stand at pool size / tokens per request."""
    out = []
    if capacity.tokens_per_req and capacity.lines:
        first, last = capacity.lines
        rows = held.decode.filter(pl.col("line_no").is_between(first, last))
        ahead = " without pre-allocated" if case.signals.session.role == "decode" else ""
        formula = f"sum #token{ahead} / sum #running-req of the decode lines {first} to {last}"
        out.append(
            shown(
                "tokens per running request",
                capacity.tokens_per_req,
                "tokens",
                held.at(rows, int(rows["kv_usage"].arg_max() or 0))
                if rows.height
                else (None, None),
                formula,
                1,
            )
        )
    if capacity.requests_fit is not None:
        running = held.mean("running") or 0.0
        formula = f"pool / tokens per request; {running:.0f} ran on average in the episodes"
        out.append(shown("requests that fit", capacity.requests_fit, "requests", formula=formula))
    return out


def _load(held: Held) -> list[Evidence]:
    """What the lines print while the pool is full."""
    column = next(
        (c for c in ("full_token_usage", "gpu_token_usage") if held.lines[c].drop_nulls().len()),
        "token_usage",
    )
    fullest, mean = held.line(column), "time-weighted mean"
    peak = as_float(held.lines[column].max())
    longest = held.line("queue_req")
    out = [shown("highest usage", peak, "", fullest, "printed", 2)]
    if held.lines.height > 1:
        out.append(shown("mean usage", held.mean("full_usage"), "", fullest, mean, 3))
    out.append(shown("running requests", held.mean("running"), "requests", fullest, mean, 1))
    out.append(shown("waiting requests", held.mean("queue"), "requests", longest, mean, 1))
    return out


def _server_is_healthy(held: Held) -> list[Evidence]:
    """The rate per request is what this batch and context should give."""
    rows = held.decode.filter(pl.col("rate_per_req").is_not_null())
    if not rows.height:
        return []
    rate = float(rows["gen_throughput"].sum()) / float(rows["running_req"].sum())
    out = [
        shown(
            "decode rate per running request",
            rate,
            "token/s",
            held.line("gen_throughput"),
            "gen throughput / #running-req",
            2,
        )
    ]
    model = held.rank.model
    rows = _like_the_model(held.rank, held.decode.drop_nulls("residual"))
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


def _like_the_model(rank: Rank, rows: pl.DataFrame) -> pl.DataFrame:
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


def _burn_down(held: Held) -> list[Evidence]:
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
            f"(1 - {usage:.2f}) x {rank.kv_tokens:,} / {row['gen_throughput']:.0f} token/s while "
            f"nothing finishes; it was full after {actual:.0f} s",
            0,
        )
    ]


def _cost(case: Case, held: Held) -> list[Evidence]:
    """What it cost: throughput against the unsaturated level, waiting, effective throughput."""
    rank = held.rank
    if case.excerpt or rank.clock == "none":
        return []
    grid = rank.grid
    out = []
    inside = float(held.cells["decoded"].sum()) / max(held.seconds, 1.0)
    free = rank.mean(pl.when(~pl.lit(held.mask) & ~pl.col("gap")).then(pl.col("rate")), 30.0)
    best = as_float(free.max(), 0.0)
    if best > 0:
        where = int(free.arg_max() or 0)
        near = rank.lines.filter(pl.col("t") >= where * rank.step_s).head(1)
        out.append(
            shown(
                "decode throughput while saturated",
                inside,
                "token/s",
                (None, None),
                "tokens decoded / time",
                0,
            )
        )
        out.append(
            shown(
                "decode throughput reached unsaturated",
                best,
                "token/s",
                held.at(near, 0) if near.height else (None, None),
                "best 30 s outside the episodes",
                0,
            )
        )
    waited = float((held.cells["queue"] * rank.step_s).sum())
    out.append(
        shown(
            "request-seconds spent waiting",
            waited,
            "request s",
            (None, None),
            "sum of #queue-req x time",
            0,
        )
    )
    live = float(grid["decoded"].sum()) / max(rank.span_s, 1.0)
    printed = rank.lines.filter("decode")["gen_throughput"].mean()
    out.append(
        shown(
            "effective throughput of the whole log",
            live,
            "token/s",
            (None, None),
            f"tokens decoded / wall time; the printed values average {as_float(printed, 0.0):.0f}",
            0,
        )
    )
    return out


def _rival(case: Case, found: list[Held]) -> str:
    """Name a rival cause within 20 % of its limit."""
    worst = found[0]
    running, cap = worst.mean("running"), worst.rank.cap
    if cap and running and running > 0.8 * cap:
        return f"the running cap: {running:.0f} of {cap} requests run (RUN001)"
    duty = worst.mean("duty")
    if duty is not None and duty > 0.45:
        return f"prefill: it takes {duty:.0%} of the time (PRE001)"
    return ""


def _look_alike(case: Case, held: Held) -> str:
    if held.rank.cap is None:
        return "a running cap (RUN001) cannot be excluded: the log prints no max_running_requests="
    return (
        f"running cap (RUN001) excluded: {held.mean('running') or 0:.0f} of {held.rank.cap} "
        "requests run"
    )


def _one_step_up(case: Case) -> float | None:
    """Return the next memory fraction to try; None where the present one is not printed."""
    present = case.arg("mem_fraction_static")
    return round(present + 0.02, 2) if isinstance(present, float) and present < 0.97 else None


def left_over_memory(case: Case, held: Held) -> list[Action]:
    """Return what gives the pool the free GPU memory, if there is enough of it."""
    found, useless = _left_over(case, held, None if case.excerpt else predict.load(case.data))
    return found + useless


def _left_over(
    case: Case, held: Held, load: predict.Load | None
) -> tuple[list[Action], list[Action]]:
    """Return that where it raises the throughput by the prediction, and where it does not."""
    config, capacity = case.signals.session.config, case.signals.capacity
    free, cell, n = config.available_gpu_mem_gib, capacity.bytes_per_token, held.rank.kv_tokens
    spare = memory.spare_gib(free, config.kv_pool_gib) if free is not None else 0.0
    if free is None or not spare:
        return [], []
    total = config.avail_before_weights_gib
    present = case.arg("mem_fraction_static")
    proposed = (
        round(present + math.floor(100 * spare / total) / 100, 2)
        if isinstance(present, float) and total
        else None
    )
    limit = memory_limit(case)
    if limit and proposed and total and isinstance(present, float):
        proposed = min(proposed, max(limit.highest, present))
        spare = min(spare, (proposed - present) * total)
    effect, change = "", predict.Change()
    if cell and n:
        more = int(spare * _GIB / cell)
        change = predict.Change(pool=1 + more / n)
        effect = f"{spare:.1f} GiB more hold {more:,} tokens (+{more / n:.0%} KV)" + _gain(
            load, change
        )
    found = act(
        case,
        f"Give the KV pool the GPU memory that is left over: {free:.1f} GiB are free after "
        "start-up, 5 to 8 are enough"
        + ("" if proposed is not None else "; go up in steps of 0.02 until so much stays free"),
        MEMORY_FRACTION,
        proposed if proposed is not None else _one_step_up(case),
        f"{'at most' if limit else 'in all'}, {effect}" if effect and proposed is None else effect,
    )
    return (found, []) if gains(_estimate(load, change) if effect else None) else ([], found)


def more_room(case: Case, held: Held) -> list[Action]:
    """The levers on the pool, in order of effect, with predicted gains."""
    config = case.signals.session.config
    load = None if case.excerpt else predict.load(case.data)
    out, useless = _left_over(case, held, load)
    if config.available_gpu_mem_gib is None:
        out += act(
            case,
            "If GPU memory is left over after start-up (available_gpu_mem in the "
            "max_total_num_tokens= line; 5 to 8 GB are enough), give it to the KV pool, in steps "
            "of 0.02",
            MEMORY_FRACTION,
            _one_step_up(case),
        )
    dtype = str(case.arg("kv_cache_dtype", "auto")).lower()
    stored = str(config.kv_pool_dtype or "").lower()
    if (
        dtype in ("auto", "bfloat16", "bf16", "float16", "none")
        and "float8" not in stored
        and "fp8" not in stored
    ):
        change = predict.Change(pool=2.0, kv_bytes=0.5)
        into = out if gains(_estimate(load, change)) else useless
        into += act(
            case,
            "Store KV in fp8, after checking accuracy and that the attention backend supports it",
            "kv-cache-dtype",
            "fp8_e4m3",
            f"twice the KV tokens{_gain(load, change)}",
        )
    if _is_mla(case) and not case.arg("enable_dp_attention") and _int(case.arg("tp_size")) > 1:
        tp = _int(case.arg("tp_size"))
        out += act(
            case,
            f"Stop storing the latent KV on each of {tp} tensor-parallel ranks",
            "enable-dp-attention",
            True,
            "with --dp-size k the total pool grows almost k times",
        )
        out += act(
            case,
            "Or split the latent KV over ranks when decoding",
            "dcp-size",
            min(tp, 8),
            "almost as many times the KV tokens",
        )
    out += act(case, "Add a replica or more GPUs, or send less load: capacity is what is missing")
    out += act(
        case,
        "Hold fewer tokens per request: lower max_new_tokens, trim prompts, or route "
        "long jobs apart",
    )
    return out + useless


def _estimate(load: predict.Load | None, change: predict.Change) -> Estimate | None:
    """Return the predicted throughput factor of a change; None without a step model."""
    return predict.estimate(load, change) if load is not None and load.model else None


def _gain(load: predict.Load | None, change: predict.Change) -> str:
    """Say the predicted throughput factor of a change, with its range."""
    x = _estimate(load, change)
    return f", {gain_text(x)}" if x else ""


def _is_mla(case: Case) -> bool:
    """Whether K and V share one buffer, as only MLA models print it."""
    return case.data.startup["kv_size_gb"].null_count() < case.data.startup.height


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


# -- KV002 to KV010 -----------------------------------------------------------------------


@rule(
    "KV002",
    "kv-held-by-prefixes",
    severity=Severity.WARNING,
    needs=("kv_usage", "running_req"),
    limits={
        "hit_share": Limit(0.5, "fraction", "share of prompt tokens from the cache"),
        "held_factor": Limit(1.5, "x", "tokens held over running x (prompt + output): no leak"),
        "idle_usage": Limit(0.1, "fraction", "usage that nothing running explains"),
        "report_s": Limit(30.0, "s", "shortest spell of usage without running requests"),
    },
    after=("KV001",),
)
def kv_held_by_prefixes(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool is held by locked prefixes or sessions more than by running requests.

    What it flags:
        A saturated pool (KV001) while more than `hit_share` of the prompt tokens come from
        the prefix cache, so that shared prefixes hold a good part of it; or usage above
        `idle_usage` with nothing running, on a server with sessions or hierarchical cache.
    Why it is slow:
        A prefix in use is locked: it cannot be evicted while any running request shares it,
        while a copy to the host is in flight, or while a session is open.
    Not this rule:
        Evictable cache, which never counts as used. Tokens that nothing accounts for are a
        leak (KV010).
    What to do:
        Close sessions, shorten shared prompts, write to the host selectively, or upgrade:
        later releases release write-through locks at every step.
    Source:
        RadixCache.inc_lock_ref; the log prints no protected size, so confidence is limited.
    """
    idle_held = hold(
        case.ranks,
        lambda rank: at_least(
            spans(
                rank.select(
                    (pl.col("running") == 0)
                    & (pl.col("queue") == 0)
                    & (pl.col("usage") > limits["idle_usage"])
                    & ~pl.col("gap")
                )
            ),
            rank.cells(limits["report_s"]),
        ),
    )
    keeps = bool(case.arg("enable_hierarchical_cache")) or bool(
        case.arg("enable_streaming_session")
    )
    if keeps and idle_held:
        return Finding(
            summary=f"KV stays in use with nothing running {spell(case, idle_held)}",
            episodes=all_episodes(idle_held),
            evidence=[
                shown(
                    "usage",
                    idle_held[0].mean("usage"),
                    "",
                    idle_held[0].line("kv_usage"),
                    "time-weighted mean",
                    2,
                )
            ],
            actions=_unlock(case),
            severity=Severity.WARNING,
            confidence="low",
            competing="a leak (KV010) looks the same from the log",
        )
    if "KV001" not in case.earlier:
        return Clear("the pool was not saturated, and no usage remained with nothing running")
    for rank in case.ranks:
        totals = rank.grid.select(
            pl.col("new_token", "cached_token", "completed", "decoded").sum()
        ).row(0, named=True)
        hit, new, done = totals["cached_token"], totals["new_token"], totals["completed"]
        if not hit or hit / (hit + new) <= limits["hit_share"] or done < 3:
            continue
        held = Held(rank, [(0, rank.grid.height)])
        per_req = _per_request(held)
        full = (hit + new) / done + totals["decoded"] / done
        if per_req and per_req <= limits["held_factor"] * full:
            own = case.earlier["KV001"]
            return Finding(
                summary=f"{hit / (hit + new):.0%} of prompt tokens come from cached prefixes, "
                "which stay locked while in use: they hold part of the full KV pool",
                episodes=own.episodes,
                evidence=[
                    shown(
                        "prompt tokens from the cache",
                        hit / (hit + new),
                        "",
                        held.line("cached_token"),
                        "cached / (cached + new)",
                        3,
                    ),
                    shown(
                        "tokens per running request",
                        per_req,
                        "tokens",
                        held.line("kv_usage"),
                        "sum #token / sum #running-req",
                        0,
                    ),
                    shown(
                        "prompt and output of a request",
                        full,
                        "tokens",
                        (None, None),
                        "(new + cached + decoded) / completions",
                        0,
                    ),
                ],
                actions=_unlock(case),
                severity=Severity.WARNING,
                confidence="low",
                competing="running requests hold these prefixes as well; the log prints no "
                "protected size",
            )
    return Clear("cached prefixes are a small part of the prompts of the saturated server")


def _unlock(case: Case) -> list[Action]:
    return [
        *act(
            case,
            "Close sessions that are no longer used, and shorten prompts that many requests share",
        ),
        *(
            act(
                case,
                "Copy only prefixes that are used again to the host",
                "hicache-write-policy",
                "write_through_selective",
                "fewer prefixes locked by copies",
            )
            if case.arg("enable_hierarchical_cache")
            else []
        ),
    ]


@rule(
    "KV003",
    "near-saturation",
    severity=Severity.INFO,
    needs=("kv_usage", "queue_req"),
    limits={
        "usage": Limit(0.85, "fraction", "usage that counts as nearly full"),
        "share": Limit(0.70, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(10.0, "s", "window"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "slope_s": Limit(120.0, "s", "time over which the growth is measured"),
    },
    after=("KV001",),
)
def near_saturation(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool is nearly full and nothing waits.

    What it flags:
        Usage at or above `usage` with an empty queue and no retraction, for at least
        `report_s`.
    Why it is slow:
        It is not: usage above 0.9 without a queue is good use of the pool. More load would
        make requests wait.
    Not this rule:
        A full pool with a queue (KV001) or with retractions (KV004).
    What to do:
        Nothing now. Add headroom before the load grows.
    Source:
        SGLang docs, "Hyperparameter Tuning": token usage above 0.9 is good utilisation.
    """

    def judge(rank: Rank) -> list[Span]:
        near = (
            (pl.col("full_usage") >= limits["usage"])
            & (pl.col("queue") == 0)
            & (pl.col("running") > 0)
            & (pl.col("retracted") == 0)
        )
        calm = rank.select(near) & outside(case, rank, "KV001")
        held = rank.holds(calm, limits["share"], limits["window_s"])
        found = joined(spans(held), rank.cells(15))
        return at_least(found, minimum(case, limits["report_s"]) / rank.step_s)

    found = hold(case.ranks, judge)
    if not found:
        return Clear(
            f"usage was never at {limits['usage']:.2f} without a queue for "
            f"{limits['report_s']:.0f} s"
        )
    worst = found[0]
    evidence = [
        *pool_evidence(case),
        shown(
            "mean usage", worst.mean("full_usage"), "", worst.line("kv_usage"), "time-weighted", 3
        ),
    ]
    evidence += _forecast(worst, limits)
    return Finding(
        summary=f"KV pool nearly full but nothing waits {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=act(case, "Nothing now; plan more KV room before the load grows"),
        severity=Severity.INFO,
        confidence=confidence(case, found),
    )


def _forecast(held: Held, limits: Limits) -> list[Evidence]:
    """When the pool would be full if usage went on as in the last minutes of the last spell."""
    rank, n = held.rank, held.rank.kv_tokens
    first, end = held.spans[-1]
    tail = rank.grid[max(first, end - rank.cells(limits["slope_s"])) : end].drop_nulls("token")
    if not n or tail.height < 10:
        return []
    slope = _slope(tail["t"], tail["token"])
    if slope is None or slope <= 0:
        return []
    left = (n - float(tail["token"][-1])) / slope
    if not 0 < left < 3600:
        return []
    return [
        shown(
            "time until full at this growth",
            left,
            "s",
            (None, None),
            "(pool - tokens) / growth of the last 120 s",
            0,
        )
    ]


def _slope(x: pl.Series, y: pl.Series) -> float | None:
    """Return the least-squares slope."""
    frame = pl.DataFrame({"x": x.cast(pl.Float64), "y": y.cast(pl.Float64)})
    cov, var = frame.select(cov=pl.cov("x", "y"), var=pl.col("x").var()).row(0)
    return float(cov) / float(var) if var and cov is not None else None


@rule(
    "KV004",
    "retraction-storm",
    severity=Severity.CRITICAL,
    needs=("running_req",),
    limits={
        "per_minute": Limit(
            6.0, "requests", "retracted requests in 60 s; SGLang's guide accepts about 1"
        ),
        "report_s": Limit(30.0, "s", "shortest spell"),
        "join_s": Limit(60.0, "s", "holes up to this long are closed"),
        "note_share": Limit(0.02, "fraction", "wasted share of work below which it is a note"),
        "critical_share": Limit(
            0.10, "fraction", "wasted share of work above which it is critical"
        ),
    },
    after=("KV001",),
)
def retraction_storm(case: Case, limits: Limits) -> Finding | Clear:
    """Running requests are thrown back to the queue over and over.

    What it flags:
        At least `per_minute` retracted requests of all ranks within 60 s, for `report_s` or
        longer, on the ranks that they came from.
    Why it is slow:
        When the next decode step does not fit the pool even after evicting the prefix cache,
        the requests with the fewest output tokens are thrown back, their KV is freed, and all
        of it is computed again later.
    Not this rule:
        Single retractions, which SGLang's guide accepts at about one a minute. `Testing
        retraction` lines are a debug mode.
    What to do:
        Give the pool more room first (KV001). Then reserve more per request
        (--schedule-conservativeness up to 1.3), or cap running requests at about 1.2 times
        what fits.
    Source:
        ScheduleBatch.retract_decode; SGLang docs, "Hyperparameter Tuning".
    """
    together = sum_of(case.ranks, "retracted")

    def judge(rank: Rank) -> list[Span]:
        many = rank.past_sum(cells_of(rank, together), 60.0) >= limits["per_minute"]
        many = many & (rank.past_sum("retracted", 60.0) > 0)
        found = at_least(
            joined(spans(many), rank.cells(30)), minimum(case, limits["report_s"]) / rank.step_s
        )
        return joined(found, rank.cells(limits["join_s"]))

    total = sum(float(rank.grid["retracted"].sum()) for rank in case.ranks)
    found = hold(case.ranks, judge)
    if not found:
        return Clear(
            f"{total:.0f} retracted requests, never {limits['per_minute']:.0f} in a minute"
        )
    waste, formula = _waste(case)
    grade = (
        Severity.INFO
        if waste < limits["note_share"]
        else Severity.CRITICAL
        if waste > limits["critical_share"]
        else Severity.WARNING
    )
    worst = found[0]
    lost = sum(float(held.cells["retracted"].sum()) for held in found)
    rate = lost / max(seconds(found), 1.0) * 60
    return Finding(
        summary=f"{lost:.0f} requests thrown back to the queue, "
        f"{'' if case.excerpt else f'{rate:.1f} a minute, '}"
        f"{spell(case, found)}; tokens computed again are about {waste:.1%} of those decoded",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "retracted requests",
                int(lost),
                "requests",
                _first_retraction(case, worst),
                "sum of #retracted_reqs in the episodes",
            ),
            shown(
                "tokens computed again over tokens decoded", waste, "", (None, None), formula, 4
            ),
        ],
        actions=_fewer_retractions(case, worst),
        severity=grade,
        confidence=confidence(case, found),
        competing="KV001 is the usual cause" if "KV001" in case.earlier else "",
    )


def _first_retraction(case: Case, held: Held) -> tuple[str | None, int | None]:
    first = held.episodes[0]
    events = case.data.event.filter(
        (pl.col("kind") == "retract") & (pl.col("line_no") >= first.first_line)
    )
    return (events["source"][0], int(events["line_no"][0])) if events.height else (None, None)


def _waste(case: Case) -> tuple[float, str]:
    """Return tokens thrown away over tokens decoded in the whole log, and how it was estimated.

    The whole log, because what a storm throws back is computed again after it.
    """
    events = case.data.event.filter(
        (pl.col("kind") == "retract")
        & ~pl.col("duplicate").fill_null(False)
        & ~pl.col("debug").fill_null(False)
    )
    decoded = sum(float(rank.grid["decoded"].sum()) for rank in case.ranks)
    gained = events["new_tokens_gained"]
    if gained.drop_nulls().len():
        again = as_float(gained.sum(), 0.0)
        formula = "sum of #new_tokens_gained / tokens decoded, whole log"
    else:
        # The youngest are thrown back; half a mean request is an upper guess.
        again = (
            sum(
                float(rank.grid["retracted"].sum())
                * (_per_request(Held(rank, [(0, rank.grid.height)])) or 0.0)
                for rank in case.ranks
            )
            / 2
        )
        formula = "retracted x half the tokens per request / tokens decoded, whole log"
    return (again / decoded if decoded else 0.0), formula


def _fewer_retractions(case: Case, held: Held) -> list[Action]:
    if "KV001" in case.earlier:
        out = act(case, "Give the KV pool more room: see KV001")
    else:
        out = left_over_memory(case, held) or act(
            case, "Give the KV pool more room first: fp8 KV, more GPUs or replicas (see KV001)"
        )
    c = case.arg("schedule_conservativeness")
    if not isinstance(c, int | float) or c < 1.3:
        proposed = 1.0 if isinstance(c, int | float) and c < 1.0 else 1.3
        out += act(
            case,
            "Reserve more KV per running request",
            "schedule-conservativeness",
            proposed,
            "fewer retractions; throughput within 3 %",
        )
    per_req, n = _per_request(held), held.rank.kv_tokens
    if per_req and n:
        cap = max(1, round(1.2 * n / per_req))
        if not held.rank.cap or cap < held.rank.cap:
            present = held.rank.cap if case.arg("max_running_requests") is None else None
            out += act(
                case,
                "Cap running requests at about 1.2 times what fits",
                flags.CAP,
                cap,
                "about half the retractions at 1 % less throughput",
                present,
            )
    if case.signals.session.role == "decode":
        out += act(
            case,
            "Keep the KV of retracted requests in host memory",
            "disaggregation-decode-enable-offload-kvcache",
            True,
        )
    return out


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
        time it is warm-up, no regression; later, the mix of requests changed.
    Why it is slow:
        Running requests = pool / tokens per request. Tokens per request climb from the prompt
        to prompt plus most of the output in about one lifetime; the early throughput never
        was sustainable.
    Not this rule:
        A slower GPU (THR002): the step model explains the rate here.
    What to do:
        As KV001. Report the settled throughput, not the peak.
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
        text = (
            "this is warm-up, no regression: it lies within one request lifetime of the start"
            if warm
            else "the mix of requests changed: they now hold more tokens"
        )
        return Finding(
            summary=f"Tokens per running request grew from {a0:,.0f} to {a1:,.0f} in "
            f"{duration(held.seconds)} and throughput fell from {peak_rate:,.0f} to "
            f"{settled_rate:,.0f} token/s; {text}",
            episodes=held.episodes,
            evidence=[
                shown(
                    "tokens per running request, before",
                    a0,
                    "tokens",
                    held.line("kv_usage", least=True),
                    "60 s mean",
                    0,
                ),
                shown(
                    "tokens per running request, after",
                    a1,
                    "tokens",
                    held.line("kv_usage"),
                    "60 s mean",
                    0,
                ),
                shown(
                    "throughput, best 30 s",
                    peak_rate,
                    "token/s",
                    held.line("gen_throughput"),
                    "",
                    0,
                ),
                shown(
                    "throughput, settled",
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
                    "running / completions per second",
                    0,
                ),
            ],
            actions=act(
                case,
                "Judge the server by the settled throughput, not by the peak; for room see KV001",
            ),
            severity=Severity.INFO if warm else Severity.WARNING,
            confidence=confidence(case, [held]),
            competing=_other_than_longer(rank, low, high),
        )
    return Clear(best)


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
    rows = rank.grid[low : high + 1].with_columns(cuda_graph=pl.col("graph_off") < 0.5)
    return _like_the_model(rank, rows)["residual"].drop_nulls()


def _growth(rank: Rank, limits: Limits) -> tuple[int, int, float, float] | None:
    """Return (first cell, last cell, best rate before, settled rate after) of the growth."""
    # A prefill line before the first decode line may print requests and no tokens yet.
    held = (pl.col("running") > 0) & (pl.col("own_token") > 0)
    a = rank.mean(pl.when(held).then(pl.col("own_token") / pl.col("running")), 60.0)
    a = rank.select(pl.when(held).then(a))
    usage = rank.mean("usage", 60.0)
    rate = rank.mean("rate", 30.0)
    size = rank.cells(limits["within_s"])
    lowest = a.rolling_min(size, min_samples=1)
    base = usage.rolling_min(size, min_samples=1)
    top = rate.rolling_max(size, min_samples=1)
    settled = rate.reverse().rolling_median(rank.cells(300), min_samples=1).reverse()
    frame = pl.DataFrame(
        {"a": a, "lowest": lowest, "u": usage, "base": base, "top": top, "settled": settled}
    )
    hit = (
        frame.select(
            (pl.col("a") >= limits["growth"] * pl.col("lowest"))
            & (pl.col("u") - pl.col("base") >= limits["usage_rise"])
            & (pl.col("u") >= 0.8)
            & (pl.col("settled") <= (1 - limits["drop"]) * pl.col("top"))
        )
        .to_series()
        .fill_null(False)
    )
    if not hit.any():
        return None
    high = int(hit.arg_max() or 0)
    begin = max(0, high - size)
    low = begin + int(a[begin : high + 1].fill_null(math.inf).arg_min() or 0)
    residual = _fitted_residual(rank, low, high)
    if residual.len() and abs(as_float(residual.median(), 0.0)) > limits["max_residual"]:
        return None
    return low, high, as_float(top[high], 0.0), as_float(settled[high], 0.0)


def _per_cell(grid: pl.DataFrame, cell: int) -> float:
    near = grid[max(0, cell - 10) : cell + 10].filter(pl.col("own_token") > 0)
    running = as_float(near["running"].sum(), 0.0)
    return as_float(near["own_token"].sum(), 0.0) / running if running else 0.0


def _lifetime(rank: Rank) -> float | None:
    """Return the mean time a request runs: running / completions per second (Little)."""
    done = float(rank.grid["completed"].sum())
    running = as_float(rank.grid["running"].sum(), 0.0) * rank.step_s
    return running / done if done else None


@rule(
    "KV007",
    "pool-mis-sized",
    severity=Severity.WARNING,
    limits={
        "much_gib": Limit(10.0, "GiB", "free GPU memory that could be KV"),
        "much_share": Limit(
            0.4, "fraction", "free GPU memory that could be KV over the pool's size"
        ),
        "little_gib": Limit(2.0, "GiB", "free GPU memory below which running out is likely"),
        "share": Limit(0.10, "fraction", "KV pool / (KV pool + weights) below which it is small"),
        "off": Limit(0.01, "fraction", "pool size and bytes per token may disagree by this much"),
    },
    after=("KV001", "KV004", "KV009", "CRS001"),
)
def pool_mis_sized(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool was sized badly when the server started.

    What it flags:
        On a server that ran out of KV room: much GPU memory left free, a pool that is a small
        part of the memory, or one that hardly holds a request of full length. On a server that
        crashed out of memory: little left free.
    Why it is slow:
        All memory that is not weights, activations or graphs should hold KV: the pool sets how
        many requests run.
    Not this rule:
        The same sizes on a server that never lacked room are no problem and not reported.
    What to do:
        Move --mem-fraction-static so that 5 to 8 GB stay free after start-up.
    Source:
        ModelRunner.profile_max_num_token; SGLang docs, "Hyperparameter Tuning".
    """
    config = case.signals.session.config
    free, n, line = config.available_gpu_mem_gib, config.kv_capacity_tokens, config.capacity_line
    if free is None and n is None:
        raise NotApplicable(
            "its start-up lines (max_total_num_tokens=, KV Cache is allocated) are missing"
        )
    where = config_line(case, line)
    short = [c for c in ("KV001", "KV004", "KV009") if c in case.earlier]
    crash = case.earlier.get("CRS001")
    said: list[Evidence] = []
    actions: list[Action] = []
    size = config.kv_pool_gib
    spare = memory.spare_gib(free, size) if free is not None else 0.0
    much = spare >= limits["much_share"] * size if size else False
    if short and free is not None and (free > limits["much_gib"] or much):
        said.append(
            shown("GPU memory free after start-up", free, "GiB", where, "available_gpu_mem")
        )
        actions += act(
            case,
            "Give the free GPU memory to the KV pool, until 5 to 8 GB stay free",
            "mem-fraction-static",
            "higher",
        )
    if short and config.kv_pool_gib and config.weights_gib:
        share = config.kv_pool_gib / (config.kv_pool_gib + config.weights_gib)
        if share < limits["share"]:
            said.append(
                shown(
                    "KV pool share of weights and pool",
                    share,
                    "",
                    config_line(case, config.kv_pool_line),
                    "KV size / (KV size + weights)",
                    3,
                )
            )
            actions += act(
                case, "More GPUs or a smaller model per GPU: the weights leave little room for KV"
            )
    if crash and free is not None and free < limits["little_gib"] and "memory" in crash.summary:
        said.append(
            shown("GPU memory free after start-up", free, "GiB", where, "available_gpu_mem")
        )
        actions += act(
            case,
            "Leave more memory for activations",
            "mem-fraction-static",
            "lower by 0.02 to 0.05",
        )
    if not said:
        return Clear(
            "its sizes fit what the log shows"
            if short or crash
            else "the server never lacked KV room"
        )
    return Finding(
        summary="The KV pool was sized badly at start-up: "
        + "; ".join(f"{e.label} {e.value}{' ' + e.unit if e.unit else ''}" for e in said),
        episodes=[],
        evidence=said,
        actions=actions,
        severity=Severity.WARNING,
        confidence="medium",
    )


@rule(
    "KV008",
    "hicache-adds-no-running",
    severity=Severity.INFO,
    needs=("kv_usage", "queue_req"),
    limits={
        "useful_hits": Limit(
            0.3, "fraction", "share of prompt tokens from the cache from which hicache may pay"
        )
    },
    after=("KV001",),
)
def hicache_adds_no_running(case: Case, limits: Limits) -> Finding | Clear:
    """Hierarchical cache is on, but it cannot make more requests run.

    What it flags:
        A saturated pool (KV001) on a server with hierarchical cache.
    Why it is slow:
        A decode reads only the GPU pool. A prefix kept in host memory must be copied back into
        free GPU slots before it is of use, and those are what is missing.
    Not this rule:
        Hierarchical cache helps where prefixes that were evicted come back: then the hit rate
        rises and prefill gets shorter.
    What to do:
        Keep it only if the hit rate rises after evictions; else give the memory back.
    Source:
        HiRadixCache.load_back; max_total_num_tokens is the GPU pool (maintainer in #11698).
    """
    config = case.signals.session.config
    on = case.arg("enable_hierarchical_cache")
    if on is None and config.host_pool_gb is None:
        raise NotApplicable("neither the server arguments nor a host pool line is in it")
    if not on and config.host_pool_gb is None:
        return Clear("hierarchical cache is off")
    if "KV001" not in case.earlier:
        return Clear("hierarchical cache is on, and the pool was not saturated")
    sums = (
        case.data.batch.filter(~pl.col("duplicate").fill_null(False))
        .select(pl.col("cached_token", "new_token").sum())
        .row(0)
    )
    prompts = (sums[0] or 0) + (sums[1] or 0)
    hits = sums[0] / prompts if prompts else 0.0
    gb = config.host_pool_gb
    where = config_line(case, config.args_line)
    size = f"{gb:.0f} GB of host memory per rank" if gb else "its host memory"
    verdict = (
        "and few prompt tokens come from the cache"
        if hits < limits["useful_hits"]
        else "though it may shorten prefill"
    )
    return Finding(
        summary=f"Hierarchical cache is on ({size}) and adds no running request to the full KV "
        f"pool, {verdict} ({hits:.0%})",
        episodes=case.earlier["KV001"].episodes,
        evidence=[
            shown(
                "hierarchical cache",
                True if on is None else bool(on),
                "",
                where,
                "enable_hierarchical_cache",
            ),
            shown(
                "prompt tokens from the cache",
                hits,
                "",
                (None, None),
                "cached / (cached + new), GPU and host together",
                3,
            ),
        ],
        actions=act(
            case,
            "Do not count on host memory for running requests; turn it off unless "
            "prefixes come back",
            "enable-hierarchical-cache",
            False,
            "no effect on throughput; frees host memory",
        )
        if hits < limits["useful_hits"]
        else [],
        severity=Severity.INFO,
        confidence="high" if prompts and not case.excerpt else "medium",
    )


@rule(
    "KV009",
    "never-admissible",
    severity=Severity.CRITICAL,
    needs=("kv_usage", "queue_req", "running_req"),
    limits={
        "usage": Limit(0.1, "fraction", "usage below which the pool counts as empty"),
        "report_s": Limit(30.0, "s", "shortest silence or spell"),
    },
    explains=("HNG001", "ADM001", "ADM002", "QUE001"),
)
def never_admissible(case: Case, limits: Limits) -> Finding | Clear:
    """A request waits that can never be admitted: it is larger than the pool.

    What it flags:
        A queue with (almost) nothing running and an almost empty pool, for `report_s`, or until
        the lines stop.
    Why it is slow:
        Admission needs prompt + min(max_new_tokens, 4096) free tokens. A request that asks for
        more than the whole pool waits forever, and everything behind it with it.
    Not this rule:
        A queue with KV in use (ADM001, KV001).
    What to do:
        A larger pool, a lower max_new_tokens, or a larger sliding-window pool.
    Source:
        PrefillAdder.add_one_req; #37610 (the scheduler spins without a forward pass).
    """
    if case.excerpt:
        raise NotApplicable("it is an excerpt; this needs half a minute of log")

    def judge(rank: Rank) -> list[Span]:
        stuck = rank.holds(
            (pl.col("queued") == 1)
            & (pl.col("running") == 0)
            & (pl.col("usage") < limits["usage"])
            & (pl.col("new_token") == 0),
            0.9,
            10.0,
        )
        out = at_least(spans(stuck), rank.cells(limits["report_s"]))
        for gap in rank.gaps:
            before = rank.lines.row(gap.before, named=True)
            if (
                gap.duration_s >= limits["report_s"]
                # A prefill line has just admitted something: what follows it is a hang.
                and before["decode"]
                and (before["queue_req"] or 0) > 0
                and (before["running"] or 0) <= 1
                and before["kv_usage"] is not None
                and before["kv_usage"] < limits["usage"]
            ):
                out.append((int(gap.start_s / rank.step_s), int(gap.end_s / rank.step_s)))
        return sorted(out)

    found = hold(case.ranks, judge)
    if not found:
        return Clear("the queue never stood still over an empty pool")
    return Finding(
        summary=f"Requests wait with nothing running and an empty KV pool {spell(case, found)}: "
        "the first of them may be larger than the pool",
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            shown(
                "waiting requests",
                found[0].mean("queue"),
                "requests",
                found[0].line("queue_req"),
                "",
                0,
            ),
        ],
        actions=[
            *act(
                case,
                "Lower max_new_tokens or the prompt length of the waiting requests: "
                "prompt + min(max_new_tokens, 4096) must be below the pool",
            ),
            *act(case, "Enlarge the KV pool", "mem-fraction-static", "higher"),
        ],
        severity=Severity.CRITICAL,
        confidence=confidence(case, found, competing=True),
        competing="a hang (HNG001) looks the same when the lines stop",
    )


@rule(
    "KV010",
    "kv-leak",
    severity=Severity.CRITICAL,
    needs=("token|full_token", "new_token", "gen_throughput"),
    limits={
        "window_s": Limit(240.0, "s", "window of the mass balance"),
        "turnover": Limit(3.0, "x", "completions per running request that the window needs"),
        "output_factor": Limit(1.6, "x", "output tokens held over mean output, at most"),
        "excess": Limit(0.08, "fraction", "tokens nobody holds, over pool size"),
        "report_s": Limit(360.0, "s", "how long the excess must stand and grow"),
        "short_excess": Limit(
            0.25, "fraction", "the excess that tells in a log too short to see it grow"
        ),
    },
    explains=("KV001", "KV004", "KV005", "KV006", "ADM001", "QUE001", "WRM001"),
)
def kv_leak(case: Case, limits: Limits) -> Finding | Clear:
    """KV tokens are in use that no running request accounts for, and their number grows.

    What it flags:
        Tokens in use beyond running x (mean prompt + 1.6 x mean output) by more than `excess`
        of the pool, for `report_s` and growing, where enough requests complete to know the
        means. In a log too short for that, by more than `short_excess` all through it. Or
        SGLang's own leak message.
    Why it is slow:
        Leaked tokens are neither free, nor cached, nor running: the pool shrinks until little
        can be admitted.
    Not this rule:
        Long contexts (few completions: not judged), shared prefixes, open sessions, and
        saturation with few long requests (KV001).
    What to do:
        Upgrade, restart, test without the prefix cache, and report it.
    Source:
        Mass balance by Little's law; SGLang checks for leaks only when idle.
    """
    said = case.data.event.filter(
        pl.col("kind").str.contains("leak")
        | pl.col("message").fill_null("").str.contains("(?i)leak detected")
    )
    if said.height:
        row = said.row(0, named=True)
        where = (row["source"], row["line_no"])
        return Finding(
            summary="SGLang reports a KV memory leak",
            episodes=[episodes.point(row)],
            evidence=[shown("leak message", str(row["message"] or row["kind"]), "", where)],
            actions=_leak_actions(case),
            severity=Severity.CRITICAL,
            confidence="high",
        )
    if not any(rank.kv_tokens for rank in case.ranks):
        raise NotApplicable("the pool size is unknown: the max_total_num_tokens= line is missing")
    if any(_cuts_unseen(case, rank) for rank in case.ranks):
        raise NotApplicable(
            "the chunks of long prompts cannot be told from requests: its start-up lines with "
            "chunked_prefill_size are missing, or it is so long that its lines were merged"
        )
    if case.signals.span_s < limits["window_s"] + limits["report_s"]:
        return _leak_in_short_log(case, limits)
    found = hold(case.ranks, lambda rank: _leaking(rank, limits))
    if not found:
        return Clear("the tokens in use fit the running requests")
    worst = found[0]
    balance = _balance(worst.rank, limits)
    excess = as_float(balance["excess"].max(), 0.0)
    n = worst.rank.kv_tokens or 1
    return Finding(
        summary=f"Up to {excess:,.0f} KV tokens ({excess / n:.0%} "
        "of the pool) are in use that no running request accounts for, growing "
        f"{spell(case, found)}",
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            shown(
                "tokens that nobody holds",
                excess,
                "tokens",
                worst.line("kv_usage"),
                "#token - running x (mean prompt + 1.6 x mean output), completions of 240 s",
                0,
            ),
        ],
        actions=_leak_actions(case),
        severity=Severity.CRITICAL,
        confidence=confidence(case, found) if not case.arg("enable_hierarchical_cache") else "low",
        competing="growing chat histories or open sessions can look like a leak",
    )


def _leak_in_short_log(case: Case, limits: Limits) -> Finding:
    """Return the leak that a short log shows beyond doubt of size.

    Once the batch has turned over several times, what its requests hold is bounded by the
    prompts and outputs that the log itself shows.

    Raises:
        NotApplicable: it shows none, which says little in so short a time.
    """
    found: list[Held] = []
    excess = 0.0
    for rank in case.ranks:
        nobody = None if case.excerpt else _held_by_nobody(rank, limits)
        if nobody is not None and as_float(nobody.min(), 0.0) > limits["short_excess"] * (
            rank.kv_tokens or math.inf
        ):
            found.append(Held(rank, [(0, rank.grid.height)]))
            excess = max(excess, as_float(nobody.max(), 0.0))
    if not found:
        raise NotApplicable(
            f"it covers less than the {limits['window_s'] + limits['report_s']:.0f} s "
            "that a mass balance needs"
        )
    return Finding(
        summary=f"About {excess:,.0f} KV tokens ({excess / (found[0].rank.kv_tokens or 1):.0%} of "
        f"the pool) are in use that no running request accounts for, {spell(case, found)}; the "
        "log is too short to see them grow",
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            shown(
                "tokens that nobody holds",
                excess,
                "tokens",
                found[0].line("kv_usage"),
                "#token - running x (mean prompt + 1.6 x mean output), completions of the log",
                0,
            ),
        ],
        actions=_leak_actions(case),
        severity=Severity.CRITICAL,
        confidence="low" if case.arg("enable_hierarchical_cache") else "medium",
        competing="open sessions or locked prefixes hold tokens too; ten minutes of log would "
        "tell",
    )


def _held_by_nobody(rank: Rank, limits: Limits) -> pl.Series | None:
    """Return the tokens that nobody holds, as means of 30 s; None without enough completions."""
    cells = rank.grid.filter(pl.col("running").is_not_null())
    if not cells.height:
        return None
    done, decoded, prompt = cells.select(
        pl.col("completed").sum(),
        pl.col("decoded").sum(),
        (pl.col("new_token") + pl.col("cached_token")).sum(),
    ).row(0)
    running = as_float(cells["running"].mean(), 0.0)
    started = done + cells["running"][-1] - cells["running"][0]
    if done < max(limits["turnover"] * running, 20.0) or started <= 0:
        return None
    each = prompt / started + limits["output_factor"] * decoded / done
    now, token = rank.mean("running", 30.0), rank.mean("own_token", 30.0)
    nobody: pl.Series = (token - now * each).drop_nulls()
    return nobody


def _cuts_unseen(case: Case, rank: Rank) -> bool:
    """Whether many prompts are cut into chunks that the lines do not tell from requests."""
    chunk = case.signals.session.config.chunked_prefill_size
    if chunk is None:
        # Batches of exactly the largest size, again and again, end at the chunk size.
        new = rank.lines.filter("prefill")["new_token"].drop_nulls()
        if not new.len():
            return False
        full = new.filter(new == new.max())
        return full.len() >= 3 and float(full.sum()) > 0.3 * float(new.sum())
    sums = rank.grid.select(pl.col("new_token", "n_prefill").sum()).row(0)
    merged = as_float(rank.lines["lines"].max(), 1.0) > 1
    return merged and bool(chunk) and sums[0] > 0.3 * (chunk or 0) * sums[1]


def _balance(rank: Rank, limits: Limits) -> pl.DataFrame:
    """Return {excess, spread, ok}: tokens nobody holds, by a cautious and by a fair estimate."""
    w = limits["window_s"]
    done = rank.past_sum("completed", w)
    running = rank.select(pl.col("running").rolling_mean(rank.cells(w), min_samples=1))
    prompt = rank.past_sum(pl.col("new_token") + pl.col("cached_token"), w) / done
    out = rank.past_sum("decoded", w) / done
    lost = rank.past_sum("retracted", w)
    token, now = rank.mean("own_token", 60.0), rank.mean("running", 60.0)
    frame = pl.DataFrame(
        {
            "done": done,
            "running": running,
            "prompt": prompt,
            "out": out,
            "lost": lost,
            "token": token,
            "now": now,
        }
    )
    ok = (
        (pl.col("done") >= limits["turnover"] * pl.col("running"))
        & (pl.col("lost") == 0)
        & (pl.int_range(pl.len()) >= rank.cells(w))
    )
    frame = frame.with_columns(ok=ok.fill_null(False))
    # How much output the requests of this server hold at a moment, over their mean output,
    # as it was at first: tells when the excess began, while 1.6 tells that there is one.
    early = frame.filter("ok").head(rank.cells(120))
    factor = early.select(
        ((pl.col("token") / pl.col("now") - pl.col("prompt")) / pl.col("out")).median()
    ).item()
    fair = (
        min(limits["output_factor"], max(0.3, float(factor)))
        if factor is not None
        else limits["output_factor"]
    )
    return frame.select(
        excess=pl.col("token")
        - pl.col("now") * (pl.col("prompt") + limits["output_factor"] * pl.col("out")),
        fair=pl.col("token") - pl.col("now") * (pl.col("prompt") + fair * pl.col("out")),
        ok="ok",
    )


def _leaking(rank: Rank, limits: Limits) -> list[Span]:
    """Return the span of a leak: from where it began to the end, since it never comes back."""
    if not rank.kv_tokens:
        return []
    b = _balance(rank, limits).with_columns(t=rank.grid["t"])
    over = b.select(
        pl.col("ok") & (pl.col("excess") > limits["excess"] * rank.kv_tokens)
    ).to_series()
    found = at_least(joined(spans(over), rank.cells(60)), rank.cells(limits["report_s"]))
    if not found:
        return []
    first, end = found[0]
    inside = b[first:end].filter("ok")
    slope = _slope(inside["t"], inside["excess"])
    if (
        slope is None
        or slope * (end - first) * rank.step_s < 0.3 * limits["excess"] * rank.kv_tokens
    ):
        return []
    # It began where the line through its growth meets zero.
    growing = b[: first + rank.cells(limits["report_s"])].filter("ok")
    growing = growing.filter(pl.col("fair") > 0.02 * rank.kv_tokens)
    rise = _slope(growing["t"], growing["fair"]) if growing.height > 10 else None
    began = first
    if rise and rise > 0:
        crossing = (
            as_float(growing["t"].mean(), 0.0) - as_float(growing["fair"].mean(), 0.0) / rise
        )
        began = int(min(max(crossing, 0.0) / rank.step_s, first))
    return [(began, rank.grid.height)]


def _leak_actions(case: Case) -> list[Action]:
    return [
        *act(case, "Restart the server to get the tokens back, and upgrade"),
        *act(
            case,
            "See whether it also happens without the prefix cache",
            "disable-radix-cache",
            True,
        ),
        *act(
            case,
            "Set SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY=1 to have SGLang check "
            "while busy, and report what it prints",
        ),
    ]
