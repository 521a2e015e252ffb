"""KV001: the KV pool is full while requests wait."""

from __future__ import annotations

import polars as pl

from loganalyze.capacity import memory
from loganalyze.episodes import Span, at_least, hysteresis, joined
from loganalyze.model import Action, Capacity, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    ends_short,
    hold,
    minimum,
    pool_evidence,
    severity,
    spell,
    thrown_back,
)
from loganalyze.rules.kv.evidence import (
    burn_down,
    capacity_of,
    ceiling,
    cost,
    load,
    printed_usage,
    step_time,
)
from loganalyze.rules.kv.room import more_room
from loganalyze.rules.registry import Case, Clear, Limit, Limits, all_rules, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, near_cap


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
        "busy_usage": Limit(
            0.95, "fraction", "the same with growth, while prefill takes most of the time"
        ),
        "hold_usage": Limit(0.85, "fraction", "usage that keeps the state"),
        "lost_s": Limit(30.0, "s", "how long a retraction excuses a dip"),
        "patience_s": Limit(20.0, "s", "the state ends after this long outside it"),
        "no_queue_s": Limit(6.0, "s", "the state ends after this long without a queue"),
        "other_s": Limit(100.0, "s", "and after this long with the cap or prefill as the limit"),
        "join_s": Limit(30.0, "s", "holes up to this long are closed"),
        "join_queued_s": Limit(150.0, "s", "and up to this long if the queue never empties"),
        "report_s": Limit(30.0, "s", "shorter spells are normal under bursty load"),
    },
    explains=("KV002", "KV004", "KV005", "KV006", "KV008", "ADM001", "QUE001", "OVR001"),
    after=("KV010",),
    at_once=True,
)
def kv_saturation(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool is full while requests wait.

    What it flags:
        Spells in which a DP rank's KV pool (of hybrid models the full one) is at or above
        `enter_usage` with a queue, running requests below their cap and prefill not the limit
        (or with prefill batches that end short of their size for want of KV). Usage counts with
        what the running requests and one more are seen to grow to: of a small pool one request
        is a good part, and usage itself saw-tooths as requests finish. One saturation is one
        episode. An excerpt is judged by its lines alone, with low confidence.
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
    found = hold(case.ranks, lambda rank: _saturated_spans(case, rank, limits))
    if not found:
        return Clear(_not_full(case, limits))
    worst = found[0]
    running, queue = worst.mean("running") or 0.0, worst.mean("queue") or 0.0
    capacity = capacity_of(case)
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
    used = worst.mean("full_usage")
    if used is not None and used < limits["hold_usage"] and not case.excerpt:
        summary += f"; usage {used:.2f}, but what runs and one more request grow to does not fit"
    few = _few_hold_it(worst)
    if few:
        summary += f"; {few}"
    elif capacity.tokens_per_req and capacity.requests_fit is not None:
        leak_aside = "without the leak " if "KV010" in case.earlier else ""
        summary += (
            f"; {leak_aside}room for about {capacity.requests_fit} at "
            f"{capacity.tokens_per_req:,.0f} tokens each{_other_mix(worst, capacity)}"
        )
    lost = sum(held.total("retracted") for held in found)
    if lost:
        summary += f"; {thrown_back(lost)}"
    competing = _rival(case, found)
    level = confidence(case, found, competing=bool(competing))
    leak = _may_leak(case, worst)
    return Finding(
        summary=summary,
        episodes=all_episodes(found),
        evidence=[
            *load(worst),
            *pool_evidence(case),
            *ceiling(case, worst, capacity),
            *step_time(worst),
            *burn_down(worst),
            *cost(case, worst),
            *printed_usage(worst),
        ],
        actions=[*(_runaway(case) if few else []), *more_room(case, worst)],
        severity=severity(case, found),
        confidence="medium" if leak and level == "high" else level,
        competing="; ".join(filter(None, (competing, leak))) or _look_alike(case, worst),
    )


def _printed_full_usage() -> pl.Expr:
    return pl.coalesce("full_token_usage", "token_usage", "gpu_token_usage")


#: Tokens per request apart by this factor are those of another mix.
_OTHER_MIX = 1.2


def _other_mix(held: Held, capacity: Capacity) -> str:
    """Say why more run than there is room for: requests held other amounts for a part of it."""
    own, then = held.tokens_per_req, capacity.tokens_per_req
    if not own or not then or not capacity.lines or 1 / _OTHER_MIX < own / then < _OTHER_MIX:
        return ""
    return f" (as from line {capacity.lines[0]} on, but {own:,.0f} on average while it was full)"


#: So many running requests that hold the whole pool hold it each for itself.
_FEW = 2.5


def _few_hold_it(held: Held) -> str:
    """Say that one or two requests hold the whole pool; empty where more run."""
    rows = held.decode.filter(pl.col("running_req") > 0)
    running, each = as_float(rows["running_req"].mean(), 0.0), held.tokens_per_req
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
        f"{held_by[0]:,.0f} to {held_by[1]:,.0f} while running fell from {running[0]:,.0f} to "
        f"{running[1]:,.0f}, and telling the two apart takes {needed:.0f} s of log"
    )


def _saturated_spans(case: Case, rank: Rank, limits: Limits) -> list[Span]:
    """Return the spans in which KV001 holds on a rank, by its hysteresis."""
    if not rank.waits and not rank.lost:
        return []
    below_cap = pl.lit(True)
    if rank.cap:
        below_cap = pl.col("running") < near_cap(rank.cap)
    # A retracted request waits, whether or not a line has printed the queue since.
    waits = (pl.col("queued") > 0) | (pl.col("retracted") > 0)
    if case.excerpt and rank.lost:
        waits = pl.col("full_usage").is_not_null()
    # Where prefill takes most of the time, it is still KV that the waiting requests lack if most
    # batches end before they are as large as they may be, with less free than the next one needs.
    short = ends_short() & _no_room_for_next()
    calm = pl.col("duty").fill_null(0.0) < limits["max_duty"]
    needed = pl.when(calm).then(limits["enter_usage"] - 1e-9).otherwise(limits["busy_usage"])
    unfit = (pl.lit(rank.filled) >= needed) & pl.col("charged")
    lets_in = below_cap & (calm | short)
    full = (
        waits
        & ((pl.col("full_usage") >= limits["enter_usage"] - 1e-9) | unfit.fill_null(False))
        & lets_in
    )
    enter = rank.holds(full, limits["enter_share"], limits["enter_window_s"])
    if not enter.any():
        return []
    lost = rank.past_sum("retracted", limits["lost_s"]) > 0
    queued = rank.select(waits)
    # Where prefill or the cap is the limit for long, the pool is full behind it.
    other = rank.mean(~lets_in, _MINUTE_S)
    found = hysteresis(
        enter,
        queued & ((rank.filled >= limits["hold_usage"]) | lost),
        rank.cells(limits["patience_s"]),
        [
            ((~queued).fill_null(True), rank.cells(limits["no_queue_s"])),
            (other > limits["enter_share"], rank.cells(limits["other_s"])),
        ],
    )
    lacking = rank.select(lets_in).cast(pl.Float64)
    found = [
        (first, end)
        for first, end in found
        if as_float(lacking[first:end].mean(), 0.0) >= limits["enter_share"]
    ]
    found = [_trimmed(rank, span, queued, limits) for span in found]
    found = joined(found, rank.cells(limits["join_s"]))
    lacks_kv = (queued & (other <= limits["enter_share"])).fill_null(False)
    found = joined(found, rank.cells(limits["join_queued_s"]), lacks_kv)
    return at_least(found, minimum(case, limits["report_s"]) / rank.step_s)


def _no_room_for_next() -> pl.Expr:
    """Whether less KV is free than what runs reserves and another request asks for.

    A pass charges those that it lets in with all that they may decode. No margin, as of a request
    with a usual prompt; where the pool's size is unknown batches that end short decide alone.
    """
    reserve = pl.col("running") * memory.CLIP * pl.col("ratio")
    let_in = pl.col("admitted").fill_null(0) * memory.CLIP * (1 - pl.col("ratio"))
    asked = reserve + let_in + memory.CLIP + pl.col("prompt").fill_null(0.0)
    return (pl.col("free") <= asked).fill_null(True)


#: Time over which it is judged whether the cap or prefill is the limit instead.
_MINUTE_S = 60.0


def _trimmed(rank: Rank, span: Span, waits: pl.Series, limits: Limits) -> Span:
    """Begin a span at its first full cell and end it at the last that is nearly full.

    The entry window is centred and reaches ahead; and what follows the last full moment, while
    admission is still careful, is not saturation (KV005).
    """
    usage = rank.filled
    full = ((usage >= limits["enter_usage"] - 1e-9) & waits).fill_null(False)
    near = ((usage >= limits["hold_usage"]) & waits).fill_null(False)[span[0] : span[1]]
    first = span[0]
    if full[first]:
        while first > 0 and full[first - 1]:
            first -= 1
    else:
        first += int(full[span[0] : span[1]].arg_max() or 0)
    last = span[0] + near.len() - int(near.reverse().arg_max() or 0)
    return first, max(last, first + 1)


def _not_full(case: Case, limits: Limits) -> str:
    printed = case.data.batch.select_seq("queue_req", usage=_printed_full_usage())
    top = as_float(printed["usage"].max(), 0.0)
    both = as_float(printed.filter(pl.col("queue_req") > 0)["usage"].max())
    if both is None:
        return f"no request waited; highest usage {top:.2f}"
    if both < limits["enter_usage"]:
        return f"highest usage with a queue {both:.2f}, below {limits['enter_usage']:.2f}"
    return f"usage reached {both:.2f} with a queue, but never for {limits['report_s']:.0f} s"


def _people(running: float, queue: float) -> str:
    return f"{running:,.0f} running, {queue:,.0f} waiting"


def _rival(case: Case, found: list[Held]) -> str:
    """Name a rival cause within 20 % of its limit."""
    worst = found[0]
    running, cap = worst.mean("running"), worst.rank.cap
    if cap and running and running > 0.8 * cap:
        return f"the running cap: {running:,.0f} of {cap:,} requests run (RUN001)"
    duty = worst.mean("duty")
    if duty is not None and duty > 0.45:
        return f"prefill: it takes {duty:.0%} of the time (PRE001)"
    return ""


def _look_alike(case: Case, held: Held) -> str:
    if held.rank.cap is None:
        return "a running cap (RUN001) cannot be excluded: the log prints no max_running_requests="
    return (
        f"running cap (RUN001) excluded: {held.mean('running') or 0:,.0f} of {held.rank.cap:,} "
        "requests run"
    )
