"""Rules on admission and concurrency: why requests wait with KV free, or do not come at all."""

from __future__ import annotations

from typing import Literal

import polars as pl

from loganalyze.capacity import predict
from loganalyze.capacity.server import sharing_ranks
from loganalyze.episodes import Span, at_least, joined, mask_of, spans
from loganalyze.model import Action, Evidence, Finding, Severity
from loganalyze.rules import flags
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    cells_of,
    confidence,
    config_line,
    gain_text,
    gains,
    hold,
    minimum,
    outside,
    pool_evidence,
    severity,
    shown,
    spell,
    waiting,
)
from loganalyze.rules.kv import more_room
from loganalyze.rules.pools import state_levers
from loganalyze.rules.registry import (
    Case,
    Clear,
    Limit,
    Limits,
    NotApplicable,
    duration,
    rule,
)
from loganalyze.signals import RATIO_FLOOR, RATIO_INIT, Rank
from loganalyze.timeline import as_float, near_cap


def _near_cap(rank: Rank) -> pl.Expr:
    """Whether running requests stand at the cap; false where the cap is unknown."""
    if not rank.cap:
        return pl.lit(False)
    return pl.col("running") >= near_cap(rank.cap)


def _unjudged(case: Case) -> None:
    if case.excerpt:
        raise NotApplicable(
            f"{case.length} is too little; telling the causes of a queue with free KV apart "
            "takes a minute of log"
        )


# -- RUN001 -------------------------------------------------------------------------------


@rule(
    "RUN001",
    "running-cap",
    severity=Severity.CRITICAL,
    needs=("running_req", "queue_req"),
    limits={
        "share": Limit(0.5, "fraction", "share of the window at the cap with a queue"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(25.0, "s", "shortest spell"),
        "mode_share": Limit(
            0.6,
            "fraction",
            "share of lines with a queue that stand at the highest running count, from "
            "which an unprinted cap is inferred",
        ),
        "join_s": Limit(20.0, "s", "holes up to this long are closed"),
    },
    explains=("QUE001", "OVR001", "ADM002", "KV001"),
    after=("MAM001",),
)
def running_cap(case: Case, limits: Limits) -> Finding | Clear:
    """Requests wait because running requests stand at their cap.

    What it flags:
        Running requests at max_running_requests (but for 2 or 3 %, fewer of a small cap) with a
        queue, at any KV usage. On a PD decode server requests that wait for preallocation count as
        a queue. Where the log does not print the cap, it is inferred if running requests stand
        at their highest count most of the time that requests wait, while KV usage varies.
    Why it is slow:
        Beyond the cap nothing is admitted, however much KV is free. Speculative decoding resets
        the cap to 48 unless it is set; a small pool or Mamba slots lower it too.
    Not this rule:
        A full pool with running requests below the cap (KV001).
    What to do:
        Raise --max-running-requests, and the largest captured CUDA graph with it, as long as
        KV room is left; with a full pool raising the cap changes nothing, and a server that
        granted less than was asked for needs room first.
    Source:
        Scheduler.get_num_allocatable_reqs; ServerArgs (speculative decoding: 48).
    """
    mamba = "MAM001" in case.earlier
    caps = {id(rank): rank.cap or _inferred_cap(case, rank, limits) for rank in case.ranks}

    def judge(rank: Rank) -> list[Span]:
        cap = caps[id(rank)]
        if not cap:
            return []
        at_cap = (pl.col("running") >= (near_cap(cap) if rank.cap else cap - 0.5)) & (
            waiting(case) > 0
        )
        if mamba:
            at_cap = at_cap & (pl.col("mamba_usage").fill_null(0.0) < 0.95)
        held = rank.holds(at_cap, limits["share"], limits["window_s"])
        found = joined(
            spans(held), rank.cells(limits["join_s"]), rank.select(waiting(case)).fill_null(0) > 0
        )
        return at_least(found, minimum(case, limits["report_s"]) / rank.step_s)

    found = hold(case.ranks, judge)
    if not found:
        if not any(caps.values()):
            raise NotApplicable(
                "the cap is unknown: the max_total_num_tokens= line with "
                "max_running_requests= is missing"
            )
        top = max((_top(case, rank) for rank in case.ranks), default=0)
        cap = next(cap for cap in caps.values() if cap)
        return Clear(f"at most {top} requests ran with a queue, the cap is {cap}")
    worst = found[0]
    cap = caps[id(worst.rank)] or 0
    inferred = worst.rank.cap is None
    usage = worst.mean("full_usage")
    full = max(usage or 0.0, worst.mean("swa_usage") or 0.0) >= 0.9
    queue = worst.average(waiting(case))
    cut = _cut_by_server(case, cap)
    config = case.signals.session.config
    summary = (
        f"Running requests stand at their cap of {cap}{' (inferred)' if inferred else ''} "
        f"{spell(case, found, waiting(case, printed=True) > 0)}: {queue:.0f} waiting"
    )
    if usage is not None:
        summary += f", KV usage {usage:.2f}"
    if full:
        summary += "; the pool is full as well, so a higher cap alone would not help"
    reset = [] if inferred else _reset_by_speculation(case, cap)
    if reset:
        summary += f"; speculative decoding reset the cap to {cap}, since none was set"
    if cut:
        summary += f"; the server set this cap itself, for want of {_short_of(case)}"
    level = confidence(case, found)
    return Finding(
        summary=summary,
        episodes=all_episodes(found),
        evidence=[
            *reset,
            *cut,
            shown(
                "running cap",
                cap,
                "requests",
                config_line(
                    case,
                    config.args_line if config.capacity_line is None else config.capacity_line,
                ),
                _cap_from(case, inferred),
            ),
            shown(
                "running requests",
                worst.mean("running"),
                "requests",
                worst.line("running"),
                "time-weighted mean",
                1,
            ),
            shown(
                "waiting requests",
                queue,
                "requests",
                worst.line(waiting(case, printed=True)),
                "time-weighted mean",
                1,
            ),
            shown("mean usage", usage, "", worst.line("kv_usage"), "time-weighted", 3),
        ],
        actions=_room_for_cap(case, worst) if cut else _raise_cap(case, worst, cap, full),
        severity=severity(case, found),
        confidence="medium" if inferred and level == "high" else level,
        competing="KV saturation (KV001): the pool is full at the cap"
        if full
        else _one_short(case, worst, cap),
    )


def _cut_by_server(case: Case, cap: int) -> list[Evidence]:
    """Return what shows that the server lowered what was asked for to this cap, if it did.

    Releases from 0.5.14 say so; the arguments of older ones are what was asked for.
    """
    config = case.signals.session.config
    said = case.data.startup.filter(
        (pl.col("kind") == "max_running_requests_cut") & (pl.col("granted") == cap)
    )
    if said.height:
        row = said.row(0, named=True)
        asked, where = row["requested"], (row["source"], row["line_no"])
    else:
        value = config.args.get("max_running_requests")
        asked = value // sharing_ranks(case.data) if isinstance(value, int) else 0
        where = config_line(case, config.args_line)
        if asked <= cap or config.max_running_req != cap:
            return []
    words = f"{asked:,} asked for, {cap:,} granted" if asked else f"{cap:,} granted"
    return [shown("cap set by the server", words, "", where)]


def _has_states(case: Case) -> bool:
    """Whether requests also need a Mamba state slot."""
    return bool(case.data.batch["mamba_usage"].count())


def _short_of(case: Case) -> str:
    return "Mamba state slots, or of KV" if _has_states(case) else "KV room"


def _room_for_cap(case: Case, held: Held) -> list[Action]:
    """What lets a server grant a higher cap: asking for one does not.

    Where requests need Mamba states, those bind although the message speaks of the KV cache.
    """
    return state_levers(case, held) if _has_states(case) else more_room(case, held)


def _one_short(case: Case, held: Held, cap: int) -> str:
    """Name the fault of releases in which a prompt in chunks keeps a place that nobody uses."""
    top = as_float(held.lines["running_req"].max(), 0.0)
    chunked = (case.signals.session.config.chunked_prefill_size or -1) > 0
    if top != cap - 1 or not chunked:
        return ""
    return (
        f"never more than {cap - 1} of {cap} run: in some releases a prompt in chunks keeps a "
        "place (#30294, #38118), and admission then waits for a request to finish (ADM002)"
    )


def _cap_from(case: Case, inferred: bool) -> str:
    if inferred:
        return "inferred: the most frequent and highest running count"
    if case.signals.session.config.capacity_line is not None:
        return "max_running_requests"
    ranks = sharing_ranks(case.data)
    return "max_running_requests as asked for" + (f" / {ranks} DP ranks" if ranks > 1 else "")


def _inferred_cap(case: Case, rank: Rank, limits: Limits) -> int | None:
    """Return the cap that running requests betray by standing still at it, or None."""
    rows = rank.lines.filter(
        pl.col("decode") & (waiting(case, printed=True) > 0) & (pl.col("running_req") > 0)
    )
    if rows.height < 20:
        return None
    top = int(as_float(rows["running_req"].max(), 0.0))
    at_top = rows.filter(pl.col("running_req") == top).height
    moves = rows["kv_usage"].drop_nulls()
    # Running requests that stand still in a full pool stand at what fits.
    if as_float(rows.filter(pl.col("running_req") == top)["kv_usage"].median(), 0.0) >= 0.87:
        return None
    varied = moves.len() > 1 and as_float(moves.std(), 0.0) >= 0.01
    return top if at_top > limits["mode_share"] * rows.height and varied else None


def _top(case: Case, rank: Rank) -> int:
    rows = rank.lines.filter(waiting(case, printed=True) > 0)["running"]
    return int(as_float(rows.max(), 0.0))


def _raise_cap(case: Case, held: Held, cap: int, full: bool) -> list[Action]:
    per_req = (
        held.decode.select(pl.col("own_token").sum() / pl.col("running_req").sum()).item()
        if held.decode.height
        else None
    )
    n = held.rank.kv_tokens
    fits = int(n / per_req) if n and per_req else None
    room = []
    if full:
        room = act(
            case,
            "Give the KV pool more room as well: it is full at this cap"
            + (f", about {fits} such requests fit" if fits else ""),
        )
        if fits is None or fits <= cap:
            return room
    queue = held.average(waiting(case))
    want = max(cap + 1, min(round(cap + queue), fits or 10**9))
    effect = f"KV has room for about {fits} such requests" if fits else ""
    load = None if case.excerpt else predict.load(case.data)
    gain = None
    if load is not None and load.model is not None:
        gain = predict.estimate(load, predict.Change(cap=want))
        effect += f"; {gain_text(gain)}"
    present = cap if case.arg("max_running_requests") is None else None
    out = act(case, "Raise the running cap", flags.CAP, want, effect.lstrip("; "), present)
    for flag in ("cuda-graph-max-bs-decode", "cuda-graph-max-bs"):
        graph = case.arg(flag.replace("-", "_"))
        if isinstance(graph, int) and graph < want:
            out += act(case, "Capture graphs up to the new batch size", flag, want)
            break
    if not gains(gain):
        return room or act(case, "Add a replica or send less load: a higher cap gains nothing")
    return out + room


#: The cap that speculative decoding sets where none is asked for.
_SPECULATIVE_CAP = 48


def _reset_by_speculation(case: Case, cap: int) -> list[Evidence]:
    """Return what shows that speculative decoding set the cap; nothing if it did not.

    Releases from 0.5.4 say so; older ones reset it as silently as they print the arguments.
    """
    said = case.data.startup.filter(
        (pl.col("kind") == "max_running_requests_spec") & (pl.col("granted") == cap)
    )
    if said.height:
        row = said.row(0, named=True)
        formula = "Max running requests is reset"
        return [shown("cap reset to", cap, "requests", (row["source"], row["line_no"]), formula)]
    config = case.signals.session.config
    algorithm = config.args.get("speculative_algorithm")
    if not algorithm or config.args.get("max_running_requests", cap) is not None:
        return []
    ranks = case.arg("dp_size") if case.arg("enable_dp_attention") else 1
    if cap != _SPECULATIVE_CAP // (ranks if isinstance(ranks, int) and ranks > 0 else 1):
        return []
    formula = f"speculative_algorithm, with max_running_requests=None: reset to {_SPECULATIVE_CAP}"
    where = config_line(case, config.args_line)
    return [shown("speculative decoding", str(algorithm), "", where, formula)]


# -- waiting with KV free -----------------------------------------------------------------

_Cause = Literal["conservative", "after_retraction", "cold"]


def _starved(case: Case, rank: Rank, limits: Limits) -> list[tuple[Span, _Cause]]:
    """Return the spans in which admission reserves more than is free, and why.

    The three rules that read this share one condition and differ in where the estimate
    new_token_ratio stands: at its floor, raised by a retraction, or fresh from a start.
    """
    floor = _floor(case)
    # A fresh estimate also shuts requests out that would fit by now: admission is tried again
    # only when a request leaves.
    waits = (
        (pl.col("queued") > 0)
        & ~_near_cap(rank)
        & (pl.col("usage") < limits["usage"])
        & (pl.col("duty").fill_null(0.0) < limits["max_duty"])
        & (pl.col("charged") | (pl.col("ratio") > 1.3 * floor))
        & _other_pool_has_room()
        & _would_not_fill(rank, limits)
    )
    own = outside(case, rank, "SWA001", "MAM001", "RUN001", "KV009", "KV010")
    for other in case.ranks:
        own = own & ~_full(other, rank, limits)
    held = rank.holds(rank.select(waits) & own, limits["share"], limits["window_s"]) & own
    waiting = rank.grid["queued"].fill_null(0) > 0
    found = joined(spans(held), rank.cells(limits["hole_s"]))
    found = joined(found, rank.cells(limits["join_s"]), waiting)
    found = at_least(found, rank.cells(limits["report_s"]))
    lost = rank.past_sum("retracted", 600.0) > 0
    return [(span, _cause(rank, span, lost, floor)) for span in found]


def _full(other: Rank, rank: Rank, limits: Limits) -> pl.Series:
    """Return where a rank's pool is full with a queue, in the cells of `rank`.

    Short dips are part of it. KV001 holds on through longer ones, which are told here as what
    they are: admission that is still careful while KV lies free. And while one rank of several
    is full, the pool is what is short.
    """
    waiting = other.grid["queued"].fill_null(0) > 0
    full = (
        (pl.col("queued") > 0)
        & (pl.col("full_usage") >= limits["full_usage"] - 1e-9)
        & ~_near_cap(other)
        & (pl.col("duty").fill_null(0.0) < limits["max_duty"])
    )
    held = other.holds(full, limits["share"], limits["full_window_s"])
    found = at_least(
        joined(spans(held), other.cells(limits["full_window_s"])), other.cells(limits["full_s"])
    )
    found = joined(found, other.cells(limits["full_join_s"]), waiting)
    return cells_of(rank, mask_of(found, other.grid.height)).fill_null(False)


def _other_pool_has_room() -> pl.Expr:
    """Whether neither the sliding-window nor the Mamba pool is what is short."""
    return (pl.col("swa_usage").fill_null(0.0) <= pl.col("full_usage").fill_null(0.0) + 0.1) & (
        pl.col("mamba_usage").fill_null(0.0) < 0.95
    )


def _would_not_fill(rank: Rank, limits: Limits) -> pl.Expr:
    """Whether the running requests, grown to the size that requests settle at, leave room.

    Young requests that will fill the pool are rightly let in one by one. Beyond the end of the
    log they are taken to grow on as they did at last.
    """
    if not rank.kv_tokens:
        return pl.lit(True)
    size, late = rank.cells(limits["settle_s"]), rank.cells(limits["trend_s"])
    token, running = (
        pl.col(name).reverse().rolling_mean(size, min_samples=1).reverse()
        for name in ("own_token", "running")
    )
    per_req = token / pl.when(running > 0).then(running)
    last, before = (
        as_float(one["own_token"].mean(), 0.0) / max(1.0, as_float(one["running"].mean(), 0.0))
        for one in (rank.grid.tail(late), rank.grid.tail(2 * late).head(late))
    )
    growth = max(0.0, last - before) / late
    unseen = (pl.int_range(pl.len()) + size - pl.len()).clip(0)
    later = last + growth * unseen / 2
    settled = ((size - unseen) * per_req + unseen * later) / size
    room = pl.col("running") * settled < limits["settled_usage"] * rank.kv_tokens
    return room.fill_null(True)


def _floor(case: Case) -> float:
    c = case.arg("schedule_conservativeness", 1.0)
    return min(RATIO_INIT * (float(c) if isinstance(c, int | float) else 1.0), 1.0) * RATIO_FLOOR


def _cause(rank: Rank, span: Span, lost: pl.Series, floor: float) -> _Cause:
    ratio = rank.grid["ratio"][span[0] : span[1]]
    raised = as_float((ratio > 1.3 * floor).mean(), 0.0)
    if raised < 0.5:
        return "conservative"
    after = as_float(lost[span[0] : span[1]].cast(pl.Float64).mean(), 0.0)
    return "after_retraction" if after > 0.5 else "cold"


_STARVED_LIMITS = {
    "settle_s": Limit(300.0, "s", "time ahead over which the settled size of requests is taken"),
    "trend_s": Limit(30.0, "s", "time at the end of the log over which their growth is taken"),
    "settled_usage": Limit(
        0.9, "fraction", "usage that running requests may reach at their settled size"
    ),
    "usage": Limit(0.85, "fraction", "usage below which KV counts as free"),
    "full_usage": Limit(0.90, "fraction", "usage from which the pool is full"),
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
    "report_s": Limit(25.0, "s", "shortest spell"),
    "hole_s": Limit(10.0, "s", "holes up to this long are closed"),
    "join_s": Limit(60.0, "s", "holes up to this long with a queue are closed"),
}


def _starved_finding(case: Case, limits: Limits, cause: _Cause) -> list[Held]:
    if not any(rank.kv_tokens for rank in case.ranks):
        raise NotApplicable("the pool size is unknown: the max_total_num_tokens= line is missing")
    _unjudged(case)
    if case.signals.session.role == "prefill":
        raise NotApplicable("a PD prefill server keeps no running requests")
    return hold(
        case.ranks,
        lambda rank: [
            span
            for span, why in _starved(case, rank, limits)
            if why == cause and not _in_chunks(rank, span)
        ],
    )


#: So many prefills in chunks of one prompt or two are a long prompt.
_CHUNKS = 3


def _in_chunks(rank: Rank, span: Span) -> bool:
    """Whether most prefills of a span are chunks of long prompts: others wait for those."""
    lines = Held(rank, [span]).lines.filter("prefill")
    chunks = lines.filter((pl.col("cut") | pl.col("continued")) & (pl.col("new_seq") <= 2))
    return chunks.height >= _CHUNKS and 2 * chunks.height > lines.height


def _need_evidence(case: Case, held: Held) -> list[Evidence]:
    return [
        *pool_evidence(case),
        shown("mean usage", held.mean("usage"), "", held.line("kv_usage"), "time-weighted", 3),
        shown(
            "free KV",
            held.mean("free"),
            "tokens",
            (None, None),
            "pool x (1 - usage), time-weighted",
            0,
        ),
        shown(
            "KV that admission asks for",
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
        shown(
            "running requests",
            held.mean("running"),
            "requests",
            held.line("running"),
            "time-weighted mean",
            1,
        ),
        shown(
            "waiting requests",
            held.mean("queue"),
            "requests",
            held.line("queue_req"),
            "time-weighted mean",
            1,
        ),
    ]


#: The same values, for the rule that has limits of its own.
_STARVED = {name: limit.value for name, limit in _STARVED_LIMITS.items()}


@rule(
    "ADM001",
    "conservative-admission",
    severity=Severity.CRITICAL,
    needs=("kv_usage", "queue_req", "running_req"),
    limits=_STARVED_LIMITS,
    explains=("QUE001", "OVR001"),
    after=("KV001", "RUN001", "SWA001", "MAM001", "KV009", "KV010"),
)
def conservative_admission(case: Case, limits: Limits) -> Finding | Clear:
    """Requests wait with KV free because admission reserves more than is ever used.

    What it flags:
        A queue, running requests below their cap, usage below `usage`, prefill not the limit,
        and free KV below 1.35 times what admission asks for, for `report_s` or longer. What a
        pass of admission let in counts in full. A dip in a full pool of up to `full_join_s` is
        part of KV001, and so is what requests will fill once they have grown.
    Why it is slow:
        Each running request reserves min(max_new_tokens left, 4096) x new_token_ratio tokens,
        and a new one its full min(max_new_tokens, 4096). Clients that ask for 16,384 tokens and
        use 250 keep half the pool empty.
    Not this rule:
        A queue while free KV exceeds the need (QUE001). "Usage below 0.9 and a queue" alone is
        right in one case of five.
    What to do:
        Lower max_tokens in the clients to about twice the longest usual answer; else lower
        --schedule-conservativeness, and stop when more than one request a minute is retracted.
    Source:
        PrefillAdder.add_one_req; SGLang docs, "Hyperparameter Tuning".
    """
    found = _starved_finding(case, limits, "conservative")
    if not found:
        return Clear(_why_not_starved(case, limits))
    worst = found[0]
    inferred = case.signals.capacity.kv_tokens_source == "inferred"
    c = case.arg("schedule_conservativeness")
    low = isinstance(c, int | float) and c <= 0.3
    return Finding(
        summary=f"Requests wait with KV free {spell(case, found)}: usage "
        f"{worst.mean('usage') or 0:.2f}, {worst.mean('running') or 0:.0f} running, "
        f"{worst.mean('queue') or 0:.0f} waiting; admission reserves more than is used",
        episodes=all_episodes(found),
        evidence=_need_evidence(case, worst),
        actions=[
            *act(
                case,
                "Lower max_tokens in the clients to about twice the longest usual answer",
                effect="admission then reserves what is really used",
            ),
            *(
                []
                if low
                else act(
                    case,
                    "Reserve less per running request; stop when more than one request "
                    "a minute is retracted",
                    "schedule-conservativeness",
                    0.3,
                    "more requests run in the same pool",
                )
            ),
            *act(
                case,
                "Or set SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION=1024 in the server's "
                "environment, where max_tokens cannot be changed",
            ),
        ],
        severity=severity(case, found),
        confidence=confidence(case, found, inferred=inferred),
        competing="a queue without KV cause (QUE001): the need is an upper bound, since the log "
        "prints no max_new_tokens",
    )


def _why_not_starved(case: Case, limits: Limits) -> str:
    waiting = any((rank.grid["queued"].fill_null(0) > 0).any() for rank in case.ranks)
    if not waiting:
        return "no request waited"
    return (
        f"no queue of {limits['report_s']:.0f} s with usage below {limits['usage']:.2f} and "
        "too little free KV for admission outside other causes"
    )


@rule(
    "KV005",
    "slow-recovery-after-retraction",
    severity=Severity.WARNING,
    needs=("kv_usage", "queue_req", "running_req"),
    limits=_STARVED_LIMITS,
    explains=("QUE001",),
    after=("KV001", "RUN001", "SWA001", "MAM001", "KV009", "KV010"),
)
def slow_recovery(case: Case, limits: Limits) -> Finding | Clear:
    """After a retraction admission stays too careful for long, and KV lies free.

    What it flags:
        A queue with KV free and too little of it for what admission asks for, within 600 s of a
        retraction, while new_token_ratio stands well above its floor.
    Why it is slow:
        A retraction raises new_token_ratio to what running requests then used. It falls by
        0.001 x conservativeness a step: after a jump to 0.39 that takes 290 steps at
        conservativeness 1 and about 1,200 at 0.3.
    Not this rule:
        The same with the estimate at its floor (ADM001) or fresh from a start (ADM003).
    What to do:
        Keep --schedule-conservativeness between 0.3 and 1, and lower max_tokens in the clients.
        A lower value does not simply admit more.
    Source:
        ScheduleBatch.retract_decode; SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS.
    """
    found = _starved_finding(case, limits, "after_retraction")
    if not found:
        return Clear("no queue with free KV in the ten minutes after a retraction")
    worst = found[0]
    c = case.arg("schedule_conservativeness")
    low = isinstance(c, int | float) and c < 0.3
    return Finding(
        summary=f"After retractions admission stays too careful {spell(case, found)}: usage "
        f"{worst.mean('usage') or 0:.2f} with {worst.mean('queue') or 0:.0f} waiting",
        episodes=all_episodes(found),
        evidence=_need_evidence(case, worst),
        actions=[
            *(
                act(
                    case,
                    "Raise conservativeness: the estimate then recovers faster",
                    "schedule-conservativeness",
                    0.3,
                )
                if low
                else []
            ),
            *act(case, "Lower max_tokens in the clients"),
            *act(
                case, "Or set SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS lower in the server's environment"
            ),
        ],
        severity=Severity.WARNING,
        confidence=confidence(
            case, found, inferred=case.signals.capacity.kv_tokens_source == "inferred"
        ),
        competing="conservative admission (ADM001)",
    )


@rule(
    "ADM003",
    "cold-start-throttle",
    severity=Severity.INFO,
    needs=("kv_usage", "queue_req", "running_req"),
    limits=_STARVED_LIMITS,
    explains=("QUE001", "ADM002"),
    after=("KV001", "RUN001", "SWA001", "MAM001", "KV009", "KV010"),
)
def cold_start_throttle(case: Case, limits: Limits) -> Finding | Clear:
    """After a start or an idle time admission is careful for some hundred steps.

    What it flags:
        A queue with KV free and too little of it for what admission asks for, while
        new_token_ratio still falls from its starting value.
    Why it is slow:
        new_token_ratio starts at 0.7 x conservativeness and reaches its floor after 600 decode
        steps. A burst on a cold server is let in slowly although memory is free.
    Not this rule:
        The same with the estimate at its floor (ADM001).
    What to do:
        Nothing, unless traffic comes in bursts with idle times between: then lower
        --schedule-conservativeness or keep the server warm.
    Source:
        SGLANG_INIT_NEW_TOKEN_RATIO, _MIN_NEW_TOKEN_RATIO_FACTOR, _NEW_TOKEN_RATIO_DECAY_STEPS.
    """
    found = _starved_finding(case, limits, "cold")
    if not found:
        return Clear("no queue with free KV just after a start or an idle time")
    worst = found[0]
    return Finding(
        summary=f"A cold server lets requests in slowly {spell(case, found)}: usage "
        f"{worst.mean('usage') or 0:.2f} with {worst.mean('queue') or 0:.0f} waiting; "
        "this passes by itself",
        episodes=all_episodes(found),
        evidence=_need_evidence(case, worst),
        actions=act(
            case,
            "Nothing for a single start; for bursts after idle times reserve less",
            "schedule-conservativeness",
            0.3,
            "the estimate starts at 0.21 instead of 0.7",
        ),
        severity=Severity.INFO,
        confidence=confidence(
            case, found, inferred=case.signals.capacity.kv_tokens_source == "inferred"
        ),
        competing="conservative admission (ADM001), if it does not pass",
    )


@rule(
    "ADM002",
    "admission-latch",
    severity=Severity.WARNING,
    needs=("kv_usage", "queue_req", "running_req"),
    limits={
        "usage": Limit(0.87, "fraction", "usage below which KV counts as free"),
        "report_s": Limit(30.0, "s", "shortest spell without a prefill and a completion"),
    },
    after=("KV001", "RUN001", "SWA001", "MAM001", "KV009"),
)
def admission_latch(case: Case, limits: Limits) -> Finding | Clear:
    """Requests wait with KV free, and nobody looks until a running request finishes.

    What it flags:
        A queue with free KV beyond the need, while for `report_s` no prefill line appears and
        no request completes.
    Why it is slow:
        Once a request did not fit, the batch is marked full and admission is not tried again
        until a request leaves it. After a burst on a cold server with long answers that can
        take minutes, although the estimate has long fallen.
    Not this rule:
        Too little free KV for what admission asks for (ADM001, ADM003).
    What to do:
        Lower --schedule-conservativeness, or raise the load step by step.
    Source:
        Scheduler._get_new_batch_prefill_raw (batch_is_full).
    """
    _unjudged(case)
    if not any(rank.kv_tokens for rank in case.ranks):
        raise NotApplicable("the pool size is unknown: the max_total_num_tokens= line is missing")
    if case.signals.session.role == "decode":
        raise NotApplicable("a PD decode server prints no prefill lines")

    def judge(rank: Rank) -> list[Span]:
        shut = rank.select(
            (pl.col("queued") == 1)
            & (pl.col("usage") < limits["usage"])
            & ~pl.col("starved")
            & ~_near_cap(rank)
            & (pl.col("running") > 0)
            & (pl.col("n_prefill") == 0)
            & (pl.col("completed") == 0)
            & ~pl.col("gap")
            & _would_not_fill(rank, _STARVED)
        )
        own = outside(case, rank, "KV001", "RUN001", "SWA001", "MAM001", "KV009")
        return at_least(spans(shut & own), rank.cells(limits["report_s"]))

    found = hold(case.ranks, judge)
    if not found:
        return Clear("prefills or completions went on wherever requests waited with KV free")
    worst = found[0]
    return Finding(
        summary="Nothing is admitted with KV free until a running request finishes "
        f"{spell(case, found)}: {worst.mean('queue') or 0:.0f} waiting at usage "
        f"{worst.mean('usage') or 0:.2f}",
        episodes=all_episodes(found),
        evidence=_need_evidence(case, worst),
        actions=[
            *act(
                case, "Reserve less when requests are admitted", "schedule-conservativeness", 0.3
            ),
            *act(case, "Raise the load step by step after a start"),
        ],
        severity=Severity.WARNING,
        confidence=confidence(
            case, found, inferred=case.signals.capacity.kv_tokens_source == "inferred"
        ),
        competing="a queue without KV cause (QUE001)",
    )


# -- QUE001 -------------------------------------------------------------------------------


@rule(
    "QUE001",
    "queue-without-kv-cause",
    severity=Severity.CRITICAL,
    needs=("kv_usage", "queue_req", "running_req"),
    limits={
        "usage": Limit(0.85, "fraction", "usage below which KV counts as free, over `memory_s`"),
        "memory_s": Limit(300.0, "s", "time over which usage must have been low"),
        "lost_s": Limit(600.0, "s", "time without a retraction"),
        "cap_share": Limit(0.9, "fraction", "share of the cap below which it is not the limit"),
        "max_duty": Limit(0.5, "fraction", "prefill duty from which prefill is the limit"),
        "share": Limit(0.6, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(31.0, "s", "window"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "min_queue": Limit(1.0, "requests", "smallest mean queue of a spell"),
    },
    explains=("OVR001",),
    after=(
        "KV001",
        "RUN001",
        "ADM001",
        "ADM002",
        "ADM003",
        "KV005",
        "SWA001",
        "MAM001",
        "KV009",
        "KV010",
    ),
)
def queue_without_kv_cause(case: Case, limits: Limits) -> Finding | Clear:
    """Requests wait although KV, the running cap and prefill all leave room.

    What it flags:
        A queue with usage below `usage` for minutes, free KV well above what admission asks
        for, no retraction, running requests well below their cap and prefill not the limit,
        while prefills go on.
    Why it is slow:
        Something else holds requests back: more LoRA adapters than fit a batch, a prefill
        delayer, a limit on prefill requests, prefixes still being loaded from storage, or a
        scheduling policy.
    Not this rule:
        Every queue with one of the usual causes: KV001, RUN001, ADM001, ADM002, PRE001.
    What to do:
        See the candidates that the server arguments leave.
    Source:
        Scheduler._get_new_batch_prefill_raw: the conditions under which a request is skipped.
    """
    _unjudged(case)
    images = bool((case.data.batch["waiting_image_req"] > 0).any())
    if not images and not any(rank.kv_tokens for rank in case.ranks):
        raise NotApplicable("the pool size is unknown: the max_total_num_tokens= line is missing")
    waits_for_images = pl.col("images").fill_null(0)

    def judge(rank: Rank) -> list[Span]:
        calm = (rank.past_max("usage", limits["memory_s"]) < limits["usage"]) & (
            rank.past_sum("retracted", limits["lost_s"]) == 0
        )
        room = pl.col("running") < limits["cap_share"] * rank.cap if rank.cap else pl.lit(True)
        waits = (
            ((pl.col("queued") > 0.5) | (waits_for_images > 0))
            & ~pl.col("starved").fill_null(False)
            & room
            & (pl.col("duty").fill_null(0.0) < limits["max_duty"])
            & _other_pool_has_room()
        )
        codes = (
            "KV001",
            "RUN001",
            "ADM001",
            "ADM002",
            "ADM003",
            "KV005",
            "SWA001",
            "MAM001",
            "KV009",
            "KV010",
        )
        own = outside(case, rank, *codes) & calm.fill_null(False)
        held = rank.holds(rank.select(waits) & own, limits["share"], limits["window_s"])
        found = at_least(joined(spans(held), rank.cells(20)), rank.cells(limits["report_s"]))
        queue = rank.select(pl.col("queue") + waits_for_images)
        return [
            s for s in found if as_float(queue[s[0] : s[1]].mean(), 0.0) >= limits["min_queue"]
        ]

    found = hold(case.ranks, judge)
    if not found:
        return Clear("no queue without one of the usual causes")
    worst = found[0]
    causes = _candidates(case)
    late = worst.average(waits_for_images)
    if late >= limits["min_queue"]:
        causes = [(f"{late:.0f} wait for their images", _encoder(case)), *causes]
    named = "; candidates: " + ", ".join(text for text, _ in causes) if causes else ""
    cap_known = worst.rank.cap is not None
    rival = "conservative admission (ADM001), if clients ask for very many tokens"
    if not cap_known:
        running = worst.decode["running_req"].drop_nulls()
        still = running.len() > 1 and running.min() == running.max()
        stands = f": {running[0]:,} run in every decode line" if still else ""
        unknown = "the log prints no max_running_requests="
        rival = f"the running cap (RUN001){stands}; {unknown}; or {rival}"
    return Finding(
        summary="Requests wait although KV"
        + (", running cap and prefill leave room " if cap_known else " and prefill leave room ")
        + f"{spell(case, found)}: usage {worst.mean('usage') or 0:.2f}, "
        f"{worst.mean('running') or 0:.0f} running, {worst.mean('queue') or 0:.0f} "
        f"waiting{named}",
        episodes=all_episodes(found),
        evidence=_need_evidence(case, worst),
        actions=[action for _, actions in causes for action in actions]
        or act(case, f"Look for what holds requests back: {', '.join(_not_excluded(case))}"),
        severity=severity(case, found),
        confidence=confidence(
            case, found, inferred=case.signals.capacity.kv_tokens_source == "inferred"
        ),
        competing=rival,
    )


def _not_excluded(case: Case) -> list[str]:
    """Return what may hold requests back, without what the printed arguments show to be off."""
    args = case.signals.session.config.args
    features = {
        "LoRA adapters per batch": ("enable_lora", "lora_paths"),
        "prefix loading from storage": ("hicache_storage_backend",),
        "the scheduling policy": ("schedule_policy",),
    }
    kept = [
        words
        for words, names in features.items()
        if not any(name in args for name in names)
        or any(args.get(name) not in (None, False, "fcfs", "lpm") for name in names)
    ]
    return [*kept, "grammars that are still compiled", "a limit on new prefills"]


def _encoder(case: Case) -> list[Action]:
    return act(
        case,
        "Look at the encoder (its server, its batch, the image cache): it gets images ready more "
        "slowly than requests come",
    )


def _candidates(case: Case) -> list[tuple[str, list[Action]]]:
    """Return what the server arguments leave as causes, with what to do about each."""
    out: list[tuple[str, list[Action]]] = []
    if case.arg("enable_lora") or case.arg("lora_paths"):
        now = case.arg("max_loras_per_batch")
        want = now * 2 if isinstance(now, int) else "higher"
        out.append(
            (
                "LoRA adapters per batch",
                act(case, "Let more adapters into a batch", "max-loras-per-batch", want),
            )
        )
    if case.arg("enable_prefill_delayer"):
        out.append(
            (
                "the prefill delayer",
                act(case, "Test without the prefill delayer", "enable-prefill-delayer", False),
            )
        )
    rounds = case.arg("prefill_decode_interval")
    if isinstance(rounds, int) and rounds > 0:
        out.append(
            (
                f"the decode rounds between prefills ({rounds})",
                act(
                    case,
                    "Prefill more often: --prefill-decode-interval holds prefills back for "
                    f"{rounds} decode rounds",
                ),
            )
        )
    if isinstance(case.arg("prefill_max_requests"), int):
        out.append(
            (
                "the limit on requests in a prefill",
                act(case, "Let more requests into a prefill", "prefill-max-requests", "higher"),
            )
        )
    if case.arg("hicache_storage_backend"):
        out.append(
            (
                "prefixes still being loaded from storage",
                act(case, "Check the latency of the storage behind the hierarchical cache"),
            )
        )
    if case.arg("schedule_policy") in ("routing-key", "priority") or case.arg(
        "enable_priority_scheduling"
    ):
        out.append(
            (
                "the scheduling policy",
                act(case, "Test with first come, first served", "schedule-policy", "fcfs"),
            )
        )
    return out


# -- clients ------------------------------------------------------------------------------


@rule(
    "CLI001",
    "client-limited",
    severity=Severity.INFO,
    needs=("kv_usage", "queue_req", "running_req"),
    limits={
        "share": Limit(0.9, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(21.0, "s", "window"),
        "usage": Limit(0.6, "fraction", "usage below which the pool has room"),
        "cap_share": Limit(0.6, "fraction", "share of the cap below which it has room"),
        "report_s": Limit(60.0, "s", "shortest spell"),
    },
    after=("WRM001",),
)
def client_limited(case: Case, limits: Limits) -> Finding | Clear:
    """The server could take more: its clients do not ask for it.

    What it flags:
        Requests running, none waiting, usage below `usage` and running requests well below
        their cap, for `report_s` or longer.
    Why it is slow:
        It is not: throughput is what the load asks for. A constant number of running requests
        means a client with that many workers.
    Not this rule:
        A front end (tokenizer, HTTP) that cannot pass requests on fast enough also leaves the
        queue empty; the log does not show it.
    What to do:
        To get more throughput send more requests at once.
    Source:
        #queue-req counts the scheduler's waiting queue only.
    """
    if case.signals.session.role != "unified":
        raise NotApplicable("on a disaggregated server an empty queue says nothing about clients")
    if case.excerpt:
        raise NotApplicable(f"{case.length} is too little to judge the load")

    def judge(rank: Rank) -> list[Span]:
        room = pl.col("running") < limits["cap_share"] * rank.cap if rank.cap else pl.lit(True)
        calm = (
            (pl.col("queued") == 0)
            & (pl.col("images").fill_null(0) == 0)
            & (pl.col("running") > 0)
            & (pl.col("usage") < limits["usage"])
            & room
        )
        for other in case.ranks:
            if other is not rank:
                calm = calm & pl.lit(~_waiting_at(other, rank))
        held = rank.holds(calm, limits["share"], limits["window_s"])
        found = at_least(joined(spans(held), rank.cells(10)), rank.cells(limits["report_s"]))
        # Light load that ends with the warm-up says nothing about the settled server.
        settled = outside(case, rank, "WRM001")
        return [span for span in found if as_float(settled[span[0] : span[1]].mean(), 0.0) > 0.1]

    found = hold(case.ranks, judge)
    if not found:
        return Clear("the server was never lightly loaded for a minute")
    worst = found[0]
    running = worst.cells["running"].drop_nulls()
    mean, sd = as_float(running.mean(), 0.0), as_float(running.std(), 0.0)
    constant = mean > 0 and sd < 0.1 * mean
    evidence = [
        shown(
            "running requests", mean, "requests", worst.line("running"), "time-weighted mean", 1
        ),
        shown("mean usage", worst.mean("usage"), "", worst.line("kv_usage"), "time-weighted", 3),
    ]
    model = worst.rank.model
    token = worst.mean("token")
    if constant and model is not None and token is not None:
        step = model.t0_s + model.a_s * mean + model.b_s * token
        doubled = model.t0_s + 2 * model.a_s * mean + 2 * model.b_s * token
        evidence.append(
            shown(
                "decode throughput with twice the requests",
                2 * step / doubled,
                "x",
                (None, None),
                "2 x step(R, T) / step(2 R, 2 T) of the fitted model",
                2,
            )
        )
    workers = (
        f"; their number hardly moves, as with a client of {mean:.0f} workers" if constant else ""
    )
    return Finding(
        summary=f"The server could take more {spell(case, found)}: {mean:.0f} running, none "
        f"waiting, usage {worst.mean('usage') or 0:.2f}{workers}",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=[
            *act(case, "Send more requests at once if more throughput is wanted"),
            *act(
                case,
                "If clients wait all the same, the front end may be the limit: more "
                "tokenizer workers",
                "tokenizer-worker-num",
                4,
            ),
        ],
        severity=Severity.INFO,
        confidence=confidence(case, found),
        competing="a front end that passes requests on too slowly looks the same",
    )


def _waiting_at(other: Rank, rank: Rank) -> pl.Series:
    """Return where another rank has a queue, in the cells of this one."""
    return cells_of(rank, other.grid["queued"] > 0).fill_null(False)


@rule(
    "CLI002",
    "closed-loop-client",
    severity=Severity.INFO,
    needs=("queue_req", "running_req"),
    limits={
        "spread": Limit(
            0.03, "fraction", "standard deviation of running + waiting over their mean"
        ),
        "window_s": Limit(300.0, "s", "window"),
        "min_clients": Limit(8.0, "requests", "fewest clients to call it a closed loop"),
    },
)
def closed_loop_client(case: Case, limits: Limits) -> Finding | Clear:
    """Running plus waiting requests are constant: a client with a fixed number of workers.

    What it flags:
        Running + waiting requests that vary by less than `spread` over `window_s`, with some
        waiting.
    Why it is slow:
        Each worker sends its next request when the last one is answered, so the queue is what
        is left of their number. Its length says nothing about demand.
    Not this rule:
        Open arrivals, where running + waiting follows the load.
    What to do:
        More workers cannot raise throughput; they only wait. Latency is workers / completions
        per second.
    Source:
        Little's law.
    """
    if case.signals.span_s < limits["window_s"]:
        raise NotApplicable(f"it covers less than {limits['window_s']:.0f} s")
    together = _all_ranks(case)
    rank = max(case.ranks, key=lambda one: one.grid.height)
    size = rank.cells(limits["window_s"])
    mean = together["c"].rolling_mean(size, min_samples=size // 2)
    spread = together["c"].rolling_std(size, min_samples=size // 2) / mean
    waits = together["queue"].rolling_mean(size, min_samples=size // 2)
    flat = (
        (spread < limits["spread"]) & (mean >= limits["min_clients"]) & (waits > 0.05 * mean)
    ).fill_null(False)
    ends = joined(spans(flat), size)
    if not ends:
        low = as_float(spread.min())
        return Clear(
            "running + waiting was never constant"
            + (f"; it varied by at least {low:.0%}" if low is not None else "")
        )
    found = [Held(rank, [(max(0, first - size), end) for first, end in ends])]
    held = mean.filter(flat)
    clients = as_float(held.median(), 0.0)
    done = sum(float(one.grid["completed"].sum()) for one in case.ranks) / max(
        case.signals.span_s, 1.0
    )
    evidence = [
        shown(
            "clients",
            clients,
            "requests",
            found[0].line("queue_req"),
            "running + waiting, median of 5 min means",
            0,
        ),
        shown(
            "spread",
            as_float(spread.filter(flat).median(), 0.0),
            "",
            (None, None),
            "standard deviation / mean",
            4,
        ),
    ]
    if done > 0:
        evidence.append(
            shown(
                "latency of a request",
                clients / done,
                "s",
                (None, None),
                "clients / completions per second",
                1,
            )
        )
    return Finding(
        summary=f"A closed-loop client with about {clients:.0f} workers: running + waiting is "
        f"constant {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=act(case, "Do not add workers: they would only wait"),
        severity=Severity.INFO,
        confidence=confidence(case, found),
    )


def _all_ranks(case: Case) -> pl.DataFrame:
    """Return {c, queue} per cell over all ranks: running + waiting, and waiting requests."""
    parts = [
        rank.grid.select(cell="cell", c=pl.col("running") + pl.col("queue"), queue="queue")
        for rank in case.ranks
    ]
    if len(parts) == 1:
        return parts[0]
    return (
        pl.concat(parts)
        .group_by("cell", maintain_order=True)
        .agg(pl.col("c", "queue").sum())
        .sort("cell")
    )


@rule(
    "OVR001",
    "overload",
    severity=Severity.WARNING,
    needs=("queue_req", "running_req"),
    limits={
        "window_s": Limit(600.0, "s", "window"),
        "growth": Limit(20.0, "requests", "growth of the queue over the window"),
        "fit": Limit(
            0.7, "fraction", "share of the queue's variance that a straight rise explains"
        ),
    },
    after=("CLI002",),
)
def overload(case: Case, limits: Limits) -> Finding | Clear:
    """More requests arrive than the server completes: the queue grows without end.

    What it flags:
        A queue that rises steadily by at least `growth` over `window_s`.
    Why it is slow:
        In an open loop each request waits longer than the one before it.
    Not this rule:
        A closed loop (CLI002), whose queue is bounded by the number of workers.
    What to do:
        More capacity, or refuse early.
    Source:
        Arrivals = completions + growth of the queue.
    """
    if case.signals.span_s < limits["window_s"]:
        raise NotApplicable(f"it covers less than {limits['window_s']:.0f} s")
    if "CLI002" in case.earlier:
        return Clear("running + waiting is constant: a closed loop, whose queue cannot grow")

    def judge(rank: Rank) -> list[Span]:
        size = rank.cells(limits["window_s"])
        q = rank.grid["queue"].cast(pl.Float64).rolling_mean(rank.cells(15), min_samples=1)
        frame = pl.DataFrame({"t": rank.grid["t"], "q": q}).with_columns(
            corr=pl.rolling_corr("t", "q", window_size=size, min_samples=size // 2),
            rise=pl.col("q") - pl.col("q").shift(size - 1),
        )
        up = frame.select(
            (
                (pl.col("corr") > 0)
                & (pl.col("corr") ** 2 >= limits["fit"])
                & (pl.col("rise") >= limits["growth"])
            ).fill_null(False)
        ).to_series()
        return [(max(0, first - size + 1), end) for first, end in joined(spans(up), size)]

    found = hold(case.ranks, judge)
    if not found:
        return Clear(f"the queue never rose steadily for {duration(limits['window_s'])}")
    worst = found[0]
    first, end = worst.spans[0]
    queue = worst.rank.grid["queue"]
    rise = (as_float(queue[end - 1], 0.0) - as_float(queue[first], 0.0)) / (
        (end - first) * worst.rank.step_s
    )
    done = float(worst.cells["completed"].sum()) / max(worst.seconds, 1.0)
    evidence = [
        shown(
            "growth of the queue",
            rise * 60,
            "requests/min",
            worst.line("queue_req"),
            "rise of #queue-req / time",
            1,
        ),
        shown(
            "completions",
            done * 60,
            "requests/min",
            (None, None),
            "running before + started - retracted - running now",
            1,
        ),
        shown(
            "arrivals", (done + rise) * 60, "requests/min", (None, None), "completions + growth", 1
        ),
    ]
    if done > 0:
        evidence.append(
            shown(
                "time to drain the queue without arrivals",
                as_float(queue[end - 1], 0.0) / done,
                "s",
                (None, None),
                "queue / completions per second",
                0,
            )
        )
    refused = case.data.request.filter(pl.col("status") == 503).height
    if refused:
        evidence.append(shown("requests refused with HTTP 503", refused, "requests"))
    return Finding(
        summary=f"More requests arrive than complete {spell(case, found)}: the queue grows by "
        f"{rise * 60:.0f} a minute",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=[
            *act(
                case,
                "Add capacity for the arrival rate: replicas, or what the cause of the "
                "queue asks for",
            ),
            *act(
                case,
                "Refuse early instead of letting everyone wait",
                "max-queued-requests",
                "a few times the running requests",
            ),
        ],
        severity=Severity.WARNING,
        confidence=confidence(case, found),
    )
