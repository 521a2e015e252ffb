"""Rules on the pools of hybrid models and on the queues of disaggregated servers."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, mask_of, spans
from loganalyze.model import Action, Evidence, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    minimum,
    pool_evidence,
    severity,
    shown,
    spell,
    thrown_back,
)
from loganalyze.rules.kv.room import left_over_memory
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, near_cap


@rule(
    "SWA001",
    "swa-pool-exhausted",
    severity=Severity.CRITICAL,
    needs=("swa_token_usage", "queue_req"),
    limits={
        "swa_usage": Limit(
            0.6, "fraction", "usage of the sliding-window pool from which it may block"
        ),
        "usage": Limit(0.90, "fraction", "usage of the full pool below which that one has room"),
        "lost_usage": Limit(
            0.95, "fraction", "usage of the sliding-window pool at which a retraction is due to it"
        ),
        "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(20.0, "s", "shortest spell"),
        "join_s": Limit(60.0, "s", "holes up to this long with a queue are closed"),
    },
    explains=("KV001", "KV004", "ADM001", "ADM002", "ADM003", "KV005", "QUE001", "OVR001"),
)
def swa_pool_exhausted(case: Case, limits: Limits) -> Finding | Clear:
    """The sliding-window KV pool is full while the full-attention pool has room.

    What it flags:
        A queue with the sliding-window pool above `swa_usage` and fewer free tokens in it than
        in the full pool, which is below `usage`. Or a running request that is thrown back with
        that pool above `lost_usage`, whether or not anything waits.
    Why it is slow:
        A hybrid model needs room in both pools. Up to 0.5.9 a new request is charged with its
        whole prompt and output against the small pool, so it blocks at about 0.7 already. Where
        tokens that left the window are not freed, one long request fills it, is thrown back, and
        starts anew.
    Not this rule:
        A full full-attention pool (KV001). A reader of `token usage` alone sees only that one.
    What to do:
        A larger share for the sliding-window pool, smaller chunks, or an upgrade.
    Source:
        SWATokenToKVPoolAllocator; PrefillAdder charges both pools.
    """
    config = case.signals.session.config
    n_swa = config.swa_pool_tokens or _swa_size(case)

    def judge(rank: Rank) -> list[Span]:
        small = pl.col("swa_usage") > pl.col("full_usage")
        if n_swa and rank.kv_tokens:
            small = n_swa * (1 - pl.col("swa_usage")) < rank.kv_tokens * (1 - pl.col("full_usage"))
        blocked = (
            (pl.col("swa_usage") > limits["swa_usage"])
            & small
            & (pl.col("queued") > 0)
            & _full_pool_has_room(limits)
        )
        if rank.cap:
            blocked = blocked & (pl.col("running") < near_cap(rank.cap))
        held = rank.holds(blocked, limits["share"], limits["window_s"])
        waiting = rank.grid["queued"].fill_null(0) > 0
        found = joined(spans(held), rank.cells(limits["join_s"]), waiting)
        found = at_least(found, minimum(case, limits["report_s"]) / rank.step_s)
        pressed = small & (pl.col("swa_usage") > limits["swa_usage"]) & _full_pool_has_room(limits)
        lost = mask_of(_lost_to_window(rank, pressed, limits), rank.grid.height)
        return spans(mask_of(found, rank.grid.height) | lost)

    found = hold(case.ranks, judge)
    if not found:
        top = as_float(case.data.batch.filter(pl.col("queue_req") > 0)["swa_token_usage"].max())
        return Clear(
            "no request waited"
            if top is None
            else "usage of the sliding-window pool with a queue was at most "
            f"{top:.2f}, or the full pool was fuller"
        )
    worst = found[0]
    ratio = case.arg("swa_full_tokens_ratio")
    proposed = (
        min(1.0, round(ratio + 0.1, 2)) if isinstance(ratio, float) and ratio < 1 else "higher"
    )
    chunk = config.chunked_prefill_size
    lost = sum(float(held.cells["retracted"].sum()) for held in found)
    kept = _kept_beyond_window(worst)
    speculates = ", or test without speculative decoding" if _speculates(case) else ""
    upgrade = act(
        case,
        f"Upgrade{speculates}: this release keeps tokens that left the window"
        if kept
        else "Upgrade: later releases estimate the need per window",
    )
    summary = (
        "The sliding-window KV pool is full while the full pool has room "
        f"{spell(case, found, pl.col('swa_token_usage') > limits['swa_usage'])}: "
        f"usage {worst.mean('swa_usage') or 0:.2f} against "
        f"{worst.mean('full_usage') or 0:.2f}, {worst.mean('running') or 0:.0f} "
        f"running, {worst.mean('queue') or 0:.0f} waiting"
    )
    if lost:
        summary += f"; {thrown_back(lost)}"
    if kept:
        summary += "; tokens that left the window are not freed"
    return Finding(
        summary=summary,
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            shown(
                "sliding-window pool",
                n_swa,
                "tokens",
                (None, None),
                "swa_layer_tokens" if config.swa_pool_tokens else "#swa token / swa token usage",
            ),
            shown(
                "usage of the sliding-window pool",
                worst.mean("swa_usage"),
                "",
                worst.line("swa_token_usage"),
                "time-weighted",
                3,
            ),
            *([kept] if kept else []),
            shown(
                "usage of the full pool",
                worst.mean("full_usage"),
                "",
                worst.line("full_token_usage"),
                "time-weighted",
                3,
            ),
            shown(
                "waiting requests",
                worst.mean("queue"),
                "requests",
                worst.line("queue_req"),
                "time-weighted mean",
                1,
            ),
        ],
        actions=[
            *(upgrade if kept else []),
            *left_over_memory(case, worst),
            *act(
                case,
                "Give the sliding-window pool a larger share",
                "swa-full-tokens-ratio",
                proposed,
                "more requests fit; the full pool shrinks",
            ),
            *(
                act(
                    case,
                    "Smaller prefill chunks: each is charged against the small pool",
                    "chunked-prefill-size",
                    max(2048, chunk // 2),
                    "",
                    chunk,
                )
                if chunk and chunk > 2048
                else []
            ),
            *act(case, "Share one memory pool between the two", "enable-unified-memory", True),
            *([] if kept else upgrade),
        ],
        severity=severity(case, found),
        confidence=confidence(case, found),
        competing="the full pool (KV001) has room, so it is not the limit",
    )


def _full_pool_has_room(limits: Limits) -> pl.Expr:
    return pl.col("full_usage") < limits["usage"]


def _lost_to_window(rank: Rank, pressed: pl.Expr, limits: Limits) -> list[Span]:
    """Return the spans in which the small pool filled until a running request was thrown back."""
    grid = rank.grid.select(
        pressed=pressed.fill_null(False),
        lost=pl.col("retracted") > 0,
        full=pl.col("swa_usage").fill_null(0.0) >= limits["lost_usage"],
    )
    # The line that prints the fall of usage may share the retraction's second.
    reach = rank.cells(15)
    lost = grid["lost"] & (grid["full"].cast(pl.Int8).rolling_max(reach, min_samples=1) > 0)
    found = joined(spans(grid["pressed"] | lost), reach)
    return [(first, end) for first, end in found if bool(lost[first:end].any())]


def _speculates(case: Case) -> bool:
    return bool(case.data.batch["accept_len"].count())


#: Windows of the models that SGLang serves are at most half of this, in tokens.
_NO_WINDOW = 16_384


def _kept_beyond_window(held: Held) -> Evidence | None:
    """Return what shows that tokens outside the window stay in its pool; None if nothing does."""
    rows = held.decode.filter(
        (pl.col("swa_token") >= 0.98 * pl.col("full_token"))
        & (pl.col("swa_token") > _NO_WINDOW * pl.col("running_req"))
        & (pl.col("running_req") > 0)
    )
    if not rows.height or 2 * rows.height < held.decode.filter(pl.col("swa_token") > 0).height:
        return None
    place = int(rows["swa_token"].arg_max() or 0)
    return shown(
        "sliding-window tokens per request, as many as full-attention tokens",
        rows["swa_token"][place] / rows["running_req"][place],
        "tokens",
        held.at(rows, place),
        "#swa token / #running-req: what left the window was not freed",
        0,
    )


def _swa_size(case: Case) -> int | None:
    rows = case.data.batch.filter((pl.col("swa_token_usage") >= 0.3) & (pl.col("swa_token") > 0))
    size = rows.select((pl.col("swa_token") / pl.col("swa_token_usage")).median()).item()
    return round(size) if size else None


@rule(
    "MAM001",
    "mamba-slots-exhausted",
    severity=Severity.CRITICAL,
    needs=("mamba_usage", "queue_req"),
    limits={
        "usage": Limit(0.95, "fraction", "usage of the state pool from which it is full"),
        "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(20.0, "s", "shortest spell"),
        "join_s": Limit(20.0, "s", "holes up to this long are closed"),
    },
    explains=("RUN001", "KV001", "ADM001", "ADM002", "ADM003", "KV005", "QUE001", "OVR001"),
)
def mamba_slots_exhausted(case: Case, limits: Limits) -> Finding | Clear:
    """All state slots of the Mamba pool are taken while requests wait.

    What it flags:
        Mamba usage at or above `usage` with a queue, for `report_s` or longer.
    Why it is slow:
        Each running request of a hybrid model needs a state slot (several with the prefix cache:
        mamba num / #running-req says how many), however short it is. KV room does not help.
    Not this rule:
        A full KV pool (KV001), and a running cap that is not set by the slots (RUN001).
    What to do:
        More memory for the states, smaller states, or, where a request takes several slots, no
        prefix cache.
    Source:
        HybridReqToTokenPool; max_running_requests follows the slots.
    """

    def judge(rank: Rank) -> list[Span]:
        full = (
            (pl.col("mamba_usage") >= limits["usage"])
            & (pl.col("queued") > 0)
            & (pl.col("full_usage").fill_null(0.0) < 0.95)
        )
        held = rank.holds(full, limits["share"], limits["window_s"])
        waiting = rank.grid["queued"].fill_null(0) > 0
        return at_least(
            joined(spans(held), rank.cells(limits["join_s"]), waiting),
            minimum(case, limits["report_s"]) / rank.step_s,
        )

    found = hold(case.ranks, judge)
    if not found:
        top = as_float(case.data.batch.filter(pl.col("queue_req") > 0)["mamba_usage"].max())
        return Clear(
            "no request waited"
            if top is None
            else f"mamba usage with a queue was at most {top:.2f} for long"
        )
    worst = found[0]
    slots = case.signals.session.config.mamba_slots
    each = _slots_per_request(worst)
    return Finding(
        summary="All Mamba state slots are taken "
        f"{spell(case, found, pl.col('queue_req') > 0)}: "
        f"{worst.mean('running') or 0:.0f} running, {worst.mean('queue') or 0:.0f} "
        f"waiting, KV usage only {worst.mean('full_usage') or 0:.2f}",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "Mamba usage",
                worst.mean("mamba_usage"),
                "",
                worst.line("mamba_usage"),
                "time-weighted",
                3,
            ),
            *(
                [shown("state slots", slots, "slots", (None, None), "max_mamba_cache_size")]
                if slots
                else []
            ),
            *([each] if each else []),
            shown(
                "KV usage",
                worst.mean("full_usage"),
                "",
                worst.line("full_token_usage"),
                "time-weighted",
                3,
            ),
            shown(
                "waiting requests",
                worst.mean("queue"),
                "requests",
                worst.line("queue_req"),
                "time-weighted mean",
                1,
            ),
        ],
        actions=state_levers(case, worst),
        severity=severity(case, found),
        confidence=confidence(case, found),
        competing=_cap_next(worst),
    )


def _cap_next(held: Held) -> str:
    """Name the running cap, and whether it is what binds next."""
    cap, running = held.rank.cap, held.mean("running") or 0.0
    if cap and running >= near_cap(cap):
        return f"the running cap of {cap} (RUN001) comes next: more slots let hardly more run"
    return "the running cap (RUN001), where it was set by the slots"


def _slots_per_request(held: Held) -> Evidence | None:
    """Return the state slots that a running request takes; None where no line tells."""
    rows = held.decode.filter((pl.col("mamba_num") > 0) & (pl.col("running_req") > 0))
    if not rows.height:
        return None
    each = float(rows["mamba_num"].sum()) / float(rows["running_req"].sum())
    where, formula = held.line("mamba_num"), "sum of mamba num / sum of #running-req"
    return shown("state slots per running request", each, "slots", where, formula, 1)


def state_levers(case: Case, held: Held) -> list[Action]:
    """Return what gives requests more Mamba state slots, or makes them need fewer."""
    ratio, size = case.arg("mamba_full_memory_ratio"), case.arg("max_mamba_cache_size")
    fixed = isinstance(size, int) and size > 0
    each = _slots_per_request(held)
    slots = each.value if each is not None and isinstance(each.value, float) else None
    return [
        *(
            act(case, "Ask for more state slots", "max-mamba-cache-size", "higher")
            if fixed
            else act(
                case,
                "Give the state pool more of the memory: KV has room",
                "mamba-full-memory-ratio",
                round(2 * ratio, 2) if isinstance(ratio, float) else 1.8,
                "more slots, fewer KV tokens",
            )
        ),
        *(
            act(
                case,
                "Store the SSM state in bfloat16, after checking accuracy",
                "mamba-ssm-dtype",
                "bfloat16",
                "twice the slots against float32",
            )
            if str(case.arg("mamba_ssm_dtype") or "") != "bfloat16"
            else []
        ),
        *(
            act(
                case,
                "Without the prefix cache a request needs one slot"
                + (f" instead of {slots:.1f}" if slots else ", with it up to three or more"),
                "disable-radix-cache",
                True,
            )
            if (slots is None or slots >= _MORE_SLOTS) and not case.arg("disable_radix_cache")
            else []
        ),
    ]


#: Slots per running request from which giving up the prefix cache frees some.
_MORE_SLOTS = 1.5


#: A queue of a disaggregated server that holds something is no backlog: it must stay.
_FEWEST_LINES = 3


@rule(
    "PDD001",
    "pd-prealloc-backlog",
    severity=Severity.CRITICAL,
    needs=("prealloc_req",),
    limits={
        "usage": Limit(
            0.6, "fraction", "usage, preallocated included, from which room may be short"
        ),
        "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(20.0, "s", "shortest spell"),
        "join_s": Limit(60.0, "s", "holes up to this long with a backlog are closed"),
    },
    explains=("KV001", "KV003", "KV004", "QUE001"),
)
def pd_prealloc_backlog(case: Case, limits: Limits) -> Finding | Clear:
    """A PD decode server has no KV room for requests that wait to be transferred.

    What it flags:
        `#prealloc-req` above zero with usage (preallocated KV included) above `usage`, for
        `report_s` or longer. `#queue-req` stays 0 on such a server.
    Why it is slow:
        A request is transferred only when its prompt and a reserve (512 tokens for each request
        it holds) fit the decode server's pool.
    Not this rule:
        Requests held up by the link (PDD002), or by the running cap (RUN001).
    What to do:
        More KV room on the decode servers, a lower reserve, or more decode servers.
    Source:
        DecodePreallocQueue: available - 512 x (running + transferring + waiting).
    """
    if case.signals.session.role != "decode":
        raise NotApplicable("it is not the log of a PD decode server")
    if case.signals.n_lines < _FEWEST_LINES:
        raise NotApplicable(f"{case.length} is too little to tell a backlog from a moment")

    def judge(rank: Rank) -> list[Span]:
        backlog = (pl.col("prealloc") > 0) & (
            pl.col("usage") + pl.col("prealloc_usage").fill_null(0.0) > limits["usage"]
        )
        if rank.cap:
            backlog = backlog & (pl.col("running") < near_cap(rank.cap))
        held = rank.holds(backlog, limits["share"], limits["window_s"])
        waiting = rank.grid["prealloc"].fill_null(0) > 0
        return at_least(
            joined(spans(held), rank.cells(limits["join_s"]), waiting),
            minimum(case, limits["report_s"]) / rank.step_s,
        )

    found = hold(case.ranks, judge)
    if not found:
        top = as_float(case.data.batch["prealloc_req"].max(), 0.0)
        return Clear(f"at most {top:.0f} requests waited for preallocation, with KV room")
    worst = found[0]
    reserve = case.arg("num_reserved_decode_tokens")
    return Finding(
        summary="Requests wait for KV room on the decode server "
        f"{spell(case, found, pl.col('prealloc_req') > 0)}: "
        f"{worst.mean('prealloc') or 0:.0f} waiting for preallocation at usage "
        f"{worst.mean('usage') or 0:.2f}, {worst.mean('running') or 0:.0f} running",
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            shown(
                "waiting for preallocation",
                worst.mean("prealloc"),
                "requests",
                worst.line("prealloc_req"),
                "time-weighted mean of #prealloc-req",
                1,
            ),
            shown(
                "mean usage", worst.mean("usage"), "", worst.line("kv_usage"), "time-weighted", 3
            ),
            shown(
                "preallocated usage",
                worst.mean("prealloc_usage"),
                "",
                worst.line("pre_allocated_usage"),
                "time-weighted",
                3,
            ),
        ],
        actions=[
            *act(
                case,
                "A larger pool on the decode servers",
                "mem-fraction-static",
                "higher, if memory is free",
            ),
            *act(case, "More decode servers"),
            *act(
                case,
                "Reserve fewer tokens per request",
                "num-reserved-decode-tokens",
                max(64, reserve // 2) if isinstance(reserve, int) else 256,
                "more requests at a time, more retractions",
            ),
        ],
        severity=severity(case, found),
        confidence=confidence(case, found),
        competing="the transfer link (PDD002)",
    )


@rule(
    "PDD002",
    "pd-transfer-backlog",
    severity=Severity.CRITICAL,
    needs=("transfer_req|inflight_req|transferring_req",),
    limits={
        "requests": Limit(5.0, "requests", "transfers at a time from which the link is the limit"),
        "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(20.0, "s", "shortest spell"),
        "join_s": Limit(20.0, "s", "holes up to this long are closed"),
        "rise": Limit(5.0, "requests", "rise of #inflight-req over 120 s on a prefill server"),
    },
    explains=("QUE001", "HNG001", "CLI001", "IDL001"),
)
def pd_transfer_backlog(case: Case, limits: Limits) -> Finding | Clear:
    """The KV of requests arrives late on decode servers, or leaves prefill servers late.

    What it flags:
        On a decode server at least `requests` in the transfer queue with (almost) none waiting
        for preallocation; on a prefill server requests in flight that rise together with usage.
    Why it is slow:
        A request decodes only when all its KV has arrived. #transfer-req counts requests from
        their preallocation on, so it holds those whose prefill is not done as well as those on
        the link; the prefill servers' logs tell which.
    Not this rule:
        Requests that wait for KV room on the decode server (PDD001).
    What to do:
        Look at the prefill servers' #queue-req and #inflight-req, then at the link, the network
        cards and the transfer backend.
    Source:
        DecodeTransferQueue, PrefillInflightQueue; #21396.
    """
    role = case.signals.session.role
    if role == "unified":
        raise NotApplicable("it is not the log of a disaggregated server")
    if case.signals.n_lines < _FEWEST_LINES:
        raise NotApplicable(f"{case.length} is too little to tell a backlog from a moment")

    def judge(rank: Rank) -> list[Span]:
        if role == "decode":
            slow = (pl.col("transfer") >= limits["requests"]) & (
                pl.col("prealloc").fill_null(0) < 1
            )
        else:
            back = rank.cells(120)
            slow = (
                (pl.col("transfer") >= limits["requests"])
                & (pl.col("transfer") - pl.col("transfer").shift(back) >= limits["rise"])
                & (pl.col("usage") - pl.col("usage").shift(back) > 0.05)
            )
        held = _or_silent(rank, rank.holds(slow, limits["share"], limits["window_s"]))
        return at_least(
            joined(spans(held), rank.cells(limits["join_s"])),
            minimum(case, limits["report_s"]) / rank.step_s,
        )

    found = hold(case.ranks, judge)
    if not found:
        return Clear("transfers did not pile up without KV being short")
    worst = found[0]
    many = f"{worst.mean('transfer') or 0:.0f}"
    level = confidence(case, found, config=True)
    if role == "decode":
        summary = (
            f"KV of requests arrives late {spell(case, found)}: {many} in the transfer queue, "
            f"waiting for their prefill or for the transfer, {worst.mean('running') or 0:.0f} "
            "running, none waiting for KV room"
        )
    else:
        summary = f"KV transfers pile up {spell(case, found)}: {many} requests in flight"
    return Finding(
        summary=summary,
        episodes=all_episodes(found),
        evidence=[
            shown(
                "requests in the transfer queue" if role == "decode" else "requests in flight",
                worst.mean("transfer"),
                "requests",
                worst.line("transfer_req" if role == "decode" else "inflight_req"),
                "time-weighted mean",
                1,
            ),
            shown(
                "mean usage", worst.mean("usage"), "", worst.line("kv_usage"), "time-weighted", 3
            ),
        ],
        actions=[
            *(
                act(
                    case,
                    "Look at the prefill servers first: a queue there (#queue-req) means that "
                    "they are the limit, many in #inflight-req that the transfer is",
                )
                if role == "decode"
                else []
            ),
            *act(
                case,
                "Look at the link between prefill and decode servers: bandwidth, network cards, "
                "transfer backend",
            ),
        ],
        severity=severity(case, found),
        confidence="medium" if role == "decode" and level == "high" else level,
        competing="slow prefill servers: #transfer-req also counts requests that wait for them, "
        "and this log cannot tell the two apart; or KV room on the decode server (PDD001)"
        if role == "decode"
        else "decode servers that are slow to take KV (PDD001 on their logs)",
    )


def _or_silent(rank: Rank, held: pl.Series) -> pl.Series:
    """Carry a state over gaps that it leads into and that it follows: few lines, same state."""
    gap = rank.grid["gap"]
    state = pl.DataFrame({"held": held, "gap": gap}).select(
        before=pl.when(~pl.col("gap")).then("held").forward_fill(),
        after=pl.when(~pl.col("gap")).then("held").backward_fill(),
    )
    return held | (gap & state["before"].fill_null(False) & state["after"].fill_null(False))


@rule(
    "PDP001",
    "pd-waits-for-decode",
    severity=Severity.WARNING,
    needs=("bootstrap_req|unbootstrapped_req|prealloc_req",),
    limits={
        "requests": Limit(5.0, "requests", "requests waiting for bootstrap"),
        "inflight": Limit(
            5.0, "requests", "requests in flight below which the link is not the limit"
        ),
        "report_s": Limit(60.0, "s", "shortest spell"),
    },
    explains=("CLI001", "IDL001"),
    after=("PDD002",),
)
def pd_waits_for_decode(case: Case, limits: Limits) -> Finding | Clear:
    """A PD prefill server waits for decode servers to make room.

    What it flags:
        Many requests waiting for bootstrap while few are in flight, for `report_s` or longer.
    Why it is slow:
        A prompt is prefilled only when a decode server has preallocated room for it.
    Not this rule:
        Transfers that pile up (PDD002).
    What to do:
        Look at the decode servers' logs: their KV room is the limit (PDD001).
    Source:
        PrefillBootstrapQueue; `#unbootstrapped-req` up to 0.5.2, `#prealloc-req` up to 0.5.11,
        `#bootstrap-req` from 0.5.12.
    """
    if case.signals.session.role != "prefill":
        raise NotApplicable("it is not the log of a PD prefill server")
    if case.excerpt:
        raise NotApplicable(f"{case.length} is too little")

    def judge(rank: Rank) -> list[Span]:
        waiting = pl.coalesce("bootstrap", "prealloc")
        held = rank.holds(
            (waiting >= limits["requests"])
            & (pl.col("transfer").fill_null(0) < limits["inflight"]),
            0.7,
            21.0,
        )
        return at_least(joined(spans(held), rank.cells(20)), rank.cells(limits["report_s"]))

    found = hold(case.ranks, judge)
    if not found:
        return Clear("requests did not wait for bootstrap for a minute")
    worst = found[0]
    column = next(
        c
        for c in ("bootstrap_req", "unbootstrapped_req", "prealloc_req")
        if worst.lines[c].drop_nulls().len()
    )
    return Finding(
        summary=f"The prefill server waits for room on decode servers {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "waiting for bootstrap",
                as_float(worst.lines[column].mean()),
                "requests",
                worst.line(column),
                f"mean of {column}",
                1,
            )
        ],
        actions=act(
            case,
            "Look at the decode servers: run this on their logs, their KV room is the "
            "limit (PDD001)",
        ),
        severity=Severity.WARNING,
        confidence=confidence(case, found),
        competing="bootstrap itself failing or slow (network, router)",
    )
