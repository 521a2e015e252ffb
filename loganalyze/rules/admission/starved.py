"""Where requests wait with KV free that admission keeps in reserve, and what shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from loganalyze.capacity import memory
from loganalyze.episodes import Span, at_least, joined, mask_of, spans
from loganalyze.model import Confidence, Evidence
from loganalyze.rules.held import (
    Held,
    cells_of,
    confidence,
    ends_short,
    hold,
    need_pool_size,
    outside,
    pool_evidence,
    shown,
)
from loganalyze.rules.registry import Case, Limit, Limits, NotApplicable
from loganalyze.signals import Rank, usual_prompt
from loganalyze.timeline import as_float, near_cap


def at_cap(rank: Rank) -> pl.Expr:
    """Whether running requests stand at the cap; false where the cap is unknown."""
    if not rank.cap:
        return pl.lit(False)
    return pl.col("running") >= near_cap(rank.cap)


def need_time(case: Case) -> None:
    """Raise NotApplicable where the log is too short to judge a queue with free KV."""
    if case.excerpt:
        raise NotApplicable(
            f"{case.length} is too little; telling the causes of a queue with free KV apart "
            "takes a minute of log"
        )


#: Where the estimate new_token_ratio stood: at its floor, raised by a retraction, or fresh.
Cause = Literal["conservative", "after_retraction", "cold"]


#: The limits of the rules that read `starved`.
STARVED_LIMITS = {
    "settle_s": Limit(300.0, "s", "time ahead over which the settled size of requests is taken"),
    "trend_s": Limit(30.0, "s", "time at the end of the log over which their growth is taken"),
    "settled_usage": Limit(
        0.9, "fraction", "usage that running requests may reach at their settled size"
    ),
    "fall_s": Limit(
        30.0, "s", "time in which KV in use, but for what comes in, falls once requests are grown"
    ),
    "usage": Limit(0.85, "fraction", "usage below which KV counts as free"),
    "full_usage": Limit(0.90, "fraction", "usage from which the pool is full"),
    "grown_usage": Limit(
        0.95, "fraction", "usage that running requests and the next one grow to if it is full"
    ),
    "full_window_s": Limit(11.0, "s", "window for a full pool"),
    "full_s": Limit(20.0, "s", "shortest spell of a full pool"),
    "full_join_s": Limit(
        150.0,
        "s",
        "dips of a full pool up to this long are part of it, if the queue never empties",
    ),
    "max_duty": Limit(0.5, "fraction", "prefill duty from which prefill is the limit"),
    "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
    "window_s": Limit(21.0, "s", "window"),
    "report_s": Limit(30.0, "s", "shortest spell"),
    "hole_s": Limit(10.0, "s", "holes up to this long are closed"),
    "join_s": Limit(60.0, "s", "holes up to this long with a queue are closed"),
}


#: The same values, for the rule that has limits of its own.
STARVED = {name: limit.value for name, limit in STARVED_LIMITS.items()}


def starved(case: Case, limits: Limits, cause: Cause) -> list[Held]:
    """Return where admission reserves more than is free, for one cause of that.

    Raises:
        NotApplicable: the pool size is unknown, the log is too short, or the server decodes
            nothing.
    """
    need_pool_size(case)
    need_time(case)
    if case.signals.session.role == "prefill":
        raise NotApplicable("a PD prefill server keeps no running requests")
    return hold(
        case.ranks,
        lambda rank: [span for span, why in _spans(case, rank, limits) if why == cause],
    )


def _spans(case: Case, rank: Rank, limits: Limits) -> list[tuple[Span, Cause]]:
    """Return what `_found` does, worked out once for the rules that share its limits."""
    if not rank.waits:
        return []
    of = ("starved", id(rank), *sorted(limits.items()))
    return case.signals.once(of, lambda: _found(case, rank, limits))


def _found(case: Case, rank: Rank, limits: Limits) -> list[tuple[Span, Cause]]:
    """Return the spans in which admission reserves more than is free, and why.

    The three rules that read this share one condition and differ in where the estimate
    new_token_ratio stands: at its floor, raised by a retraction, or fresh from a start.
    """
    floor = memory.token_ratio(memory.printed_conservativeness(case.signals.session.config))[1]
    own = outside(case, rank, "SWA001", "MAM001", "RUN001", "KV009", "KV010")
    for other in case.ranks:
        own = own & ~cells_of(rank, _full(case, other, limits), beyond=False)
    if not own.any():
        return []
    # A fresh estimate also shuts requests out that would fit by now: admission is tried again
    # only when a request leaves.
    waits = (
        (pl.col("queued") > 0)
        & ~at_cap(rank)
        & (pl.col("usage") < limits["usage"])
        & ((pl.col("duty").fill_null(0.0) < limits["max_duty"]) | ends_short())
        & (pl.col("charged") | (pl.col("ratio") > 1.3 * floor))
        & other_pool_has_room()
        & would_not_fill(case, rank, limits)
        # A batch as large as it may be was ended by that, not by KV.
        & ((pl.col("n_prefill") == 0) | (pl.col("admitted").fill_null(1) > 0))
    )
    held = rank.holds(rank.select(waits) & own, limits["share"], limits["window_s"]) & own
    waiting = rank.grid["queued"].fill_null(0) > 0
    found = joined(spans(held), rank.cells(limits["hole_s"]))
    found = joined(found, rank.cells(limits["join_s"]), waiting)
    found = at_least(found, rank.cells(limits["report_s"]))
    if not found:
        return []
    lost = rank.past_sum("retracted", 600.0) > 0
    return [
        (span, _cause(rank, span, lost, floor)) for span in found if not _in_chunks(rank, span)
    ]


def _full(case: Case, rank: Rank, limits: Limits) -> pl.Series:
    """Return what `_filled` does, worked out once for all ranks that look at this one."""
    of = ("full pool", id(rank), *sorted(limits.items()))
    return case.signals.once(of, lambda: _filled(rank, limits))


def _filled(rank: Rank, limits: Limits) -> pl.Series:
    """Return where a rank's pool is full with a queue.

    A pool that its running requests are seen to fill, without any that came later, is full from
    the start. Short dips are part of it. KV001 holds on through longer ones, which are told here
    as what they are: admission that is still careful while KV lies free. And while one rank of
    several is full, the pool is what is short.
    """
    waiting = rank.grid["queued"].fill_null(0) > 0
    full = (
        (pl.col("queued") > 0)
        & (
            (pl.col("full_usage") >= limits["full_usage"] - 1e-9)
            | pl.lit(rank.filled >= limits["grown_usage"])
        )
        & ~at_cap(rank)
        & ((pl.col("duty").fill_null(0.0) < limits["max_duty"]) | ends_short())
    )
    held = rank.holds(full, limits["share"], limits["full_window_s"])
    found = at_least(
        joined(spans(held), rank.cells(limits["full_window_s"])), rank.cells(limits["full_s"])
    )
    found = joined(found, rank.cells(limits["full_join_s"]), waiting)
    return mask_of(found, rank.grid.height)


def other_pool_has_room() -> pl.Expr:
    """Whether neither the sliding-window nor the Mamba pool is what is short."""
    return (pl.col("swa_usage").fill_null(0.0) <= pl.col("full_usage").fill_null(0.0) + 0.1) & (
        pl.col("mamba_usage").fill_null(0.0) < 0.95
    )


#: The limits that `would_not_fill` reads.
_ROOM = ("settle_s", "trend_s", "fall_s", "settled_usage", "usage")


def would_not_fill(case: Case, rank: Rank, limits: Limits) -> pl.Expr:
    """Return what `_leaves_room` does, worked out once for the rules that share these limits."""
    of = ("leaves room", id(rank), *(limits[name] for name in _ROOM))
    return pl.lit(case.signals.once(of, lambda: rank.select(_leaves_room(rank, limits))))


def _leaves_room(rank: Rank, limits: Limits) -> pl.Expr:
    """Whether the running requests, grown to the size that requests settle at, leave room.

    Young requests that will fill the pool are rightly let in one by one. Beyond the end of the
    log they are taken to grow on as they did at last while others waited, both over `trend_s` and
    over `settle_s`: over a short time alone their size swings, and those that are left when a
    server drains are its longest.

    Others may be larger that come later. So requests are grown as well if within `fall_s` those
    that finish give back more than all decode: KV in use then falls, but for the prompts that
    come in. And what they are seen to grow to is known (`Rank.filled`).
    """
    if not rank.kv_tokens:
        return pl.lit(True)
    size = rank.cells(limits["settle_s"])
    token, running = (
        pl.col(name).reverse().rolling_mean(size, min_samples=1).reverse()
        for name in ("own_token", "running")
    )
    per_req = token / pl.when(running > 0).then(running)
    waited = rank.grid.select_seq(pl.col("own_token", "running").filter(pl.col("queued") > 0))
    waited = waited.tail(size)
    last, growth = _growth(waited.tail(2 * rank.cells(limits["trend_s"])))
    growth = max(0.0, min(growth, _growth(waited)[1]))
    unseen = (pl.int_range(pl.len()) + size - pl.len()).clip(0)
    later = last + growth * unseen / 2
    settled = ((size - unseen) * per_req + unseen * later) / size
    room = pl.col("running") * settled < limits["settled_usage"] * rank.kv_tokens
    ahead = rank.cells(limits["fall_s"])
    came = pl.col("new_token").rolling_sum(ahead, min_samples=1).shift(-ahead)
    falls = pl.col("own_token").shift(-ahead) - pl.col("own_token") < came
    fits = pl.lit(rank.filled < limits["usage"])
    # What comes after the end of the log is not seen to fall.
    return (room.fill_null(True) | falls.fill_null(False)) & fits


def _growth(cells: pl.DataFrame) -> tuple[float, float]:
    """Return the tokens per request of the later half of some cells, and their growth a cell."""
    half = max(1, cells.height // 2)
    last, before = (
        as_float(one["own_token"].mean(), 0.0) / max(1.0, as_float(one["running"].mean(), 0.0))
        for one in (cells.tail(half), cells.head(half))
    )
    return last, (last - before) / half


def _cause(rank: Rank, span: Span, lost: pl.Series, floor: float) -> Cause:
    ratio = rank.grid["ratio"][span[0] : span[1]]
    raised = as_float((ratio > 1.3 * floor).mean(), 0.0)
    if raised < 0.5:
        return "conservative"
    after = as_float(lost[span[0] : span[1]].cast(pl.Float64).mean(), 0.0)
    return "after_retraction" if after > 0.5 else "cold"


def _in_chunks(rank: Rank, span: Span) -> bool:
    """Whether chunks of long prompts, back to back, take most of a span: others wait for those."""
    chunks = Held(rank, [span]).prefill.filter(pl.col("continued") & (pl.col("new_seq") <= 2))
    length = (span[1] - span[0]) * rank.step_s
    return as_float(chunks["spacing_s"].sum(), 0.0) > length / 2


def in_pool(case: Case, found: Sequence[Held]) -> Confidence:
    """Grade how sure a finding is that hangs on the size of the pool."""
    inferred = case.signals.capacity.kv_tokens_source == "inferred"
    return confidence(case, found, inferred=inferred)


def short_evidence(case: Case, held: Held) -> list[Evidence]:
    """What shows that admission asked for more than was free, and the means beside it.

    Both saw-tooth: what is free falls as requests decode and comes back as they finish, what
    admission asks for leaps with each that it lets in. Their means may lie the other way round.
    """
    return [*at_one_line(held), *need_evidence(case, held)]


def at_one_line(held: Held) -> list[Evidence]:
    """Return free KV and need of the line at which most was missing, or least was to spare.

    A request that a prefill line lets in is charged in full until the next pass.
    """
    pool, prompt = held.rank.kv_tokens, usual_prompt(held.rank.lines)
    let_in = pl.col("admitted").fill_null(0.0)
    rows = (
        held.lines.filter((pl.col("queue_req") > 0) & (pl.col("lines") == 1))
        .with_columns_seq(
            free=pl.lit(pool, pl.Float64) * (1 - pl.col("kv_usage")),
            need=(pl.col("running") * pl.col("ratio") + let_in * (1 - pl.col("ratio")) + 1)
            * memory.CLIP
            + prompt,
        )
        .drop_nulls(["free", "need"])
    )
    missing = rows["need"] - rows["free"]
    worst = missing.arg_max()
    if worst is None:
        return []
    if missing[worst] > 0:
        place = "where most was missing"
        seen = (
            f"admission asks for more than is free in {int((missing > 0).sum()):,} of "
            f"{rows.height:,} lines with requests waiting, and is tried again only when one leaves"
        )
    else:
        place = "where least was to spare"
        seen = (
            f"free KV up to {memory.NEED_MARGIN:g} times the estimate of the need counts as short"
        )
    line, where = rows.row(worst, named=True), Held.at(rows, worst)
    clip, ratio = memory.CLIP, line["ratio"]
    asked = f"{line['running']:,} running x {clip} x {ratio:.2f}"
    if line["admitted"]:
        asked += f" + {line['admitted']:,.0f} just let in x {clip} x {1 - ratio:.2f}"
    return [
        shown(
            f"free KV {place}",
            line["free"],
            "tokens",
            where,
            f"{pool:,} x (1 - {line['kv_usage']:.2f}); {seen}",
            0,
        ),
        shown(
            "KV that admission asks for there",
            line["need"],
            "tokens",
            where,
            f"{asked} + {clip} + {prompt:,.0f} of a prompt; an upper bound, the log prints no "
            "max_new_tokens",
            0,
        ),
    ]


def need_evidence(case: Case, held: Held) -> list[Evidence]:
    """What was free, and what admission asked for, on average."""
    return [
        *pool_evidence(case),
        held.averaged("mean usage", "usage", "kv_usage", "fraction", 2),
        shown(
            "mean free KV",
            held.mean("free"),
            "tokens",
            (None, None),
            "pool x (1 - usage), time-weighted",
            0,
        ),
        shown(
            "mean KV that admission asks for",
            held.mean("need"),
            "tokens",
            (None, None),
            "running x 4096 x new_token_ratio + 4096 + prompt; an upper bound, the log "
            "prints no max_new_tokens",
            0,
        ),
        shown(
            "requests that a pass of admission lets in",
            held.mean("admitted"),
            "requests",
            held.line("new_seq"),
            "#new-seq of prefill batches below the chunk size; each is charged 4096 more tokens "
            "until the next pass",
            1,
        ),
        shown(
            "new_token_ratio",
            held.mean("ratio"),
            "",
            (None, None),
            "reconstructed from its start, decay and retractions",
            4,
        ),
        held.averaged("running requests", "running", "running", "requests", 1),
        held.averaged("waiting requests", "queue", "queue_req", "requests", 1),
    ]
