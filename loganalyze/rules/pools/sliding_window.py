"""SWA001: the sliding-window KV pool is full while the full-attention pool has room."""

from __future__ import annotations

import polars as pl

from loganalyze.capacity import memory
from loganalyze.episodes import Span, at_least, joined, mask_of, spans
from loganalyze.model import Evidence, Finding, Severity
from loganalyze.releases import RELEASES
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
    shown,
    spell,
    thrown_back,
)
from loganalyze.rules.kv.room import left_over_memory
from loganalyze.rules.pools.evidence import waiting_with_room
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule
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
    at_once=True,
)
def swa_pool_exhausted(case: Case, limits: Limits) -> Finding | Clear:
    """The sliding-window KV pool is full while the full-attention pool has room.

    What it flags:
        A queue with the sliding-window pool above `swa_usage` and fewer free tokens in it than
        in the full pool, which is below `usage`; in releases up to 0.5.9 also with less free in
        it than admission asks for, where the full pool has that. Or a running request that is
        thrown back with that pool above `lost_usage`, whether or not anything waits.
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
        short = pl.col("swa_usage") > limits["swa_usage"]
        if n_swa and rank.kv_tokens:
            free = n_swa * (1 - pl.col("swa_usage"))
            full_free = rank.kv_tokens * (1 - pl.col("full_usage"))
            if _charges_whole_requests(case):
                short = short | _short_of_need(free, full_free)
            small = free < full_free
        blocked = short & small & (pl.col("queued") > 0) & _full_pool_has_room(limits)
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
    lost = sum(held.total("retracted") for held in found)
    kept = _kept_beyond_window(worst)
    speculates = ", or test without speculative decoding" if _speculates(case) else ""
    upgrade = act(
        case,
        f"Upgrade{speculates}: this release keeps tokens that left the window"
        if kept
        else "Upgrade: later releases estimate the need per window",
    )
    usage = worst.mean("swa_usage") or 0.0
    state = "is full" if usage >= limits["lost_usage"] else "is too full for the next request"
    summary = (
        f"The sliding-window KV pool {state} while the full pool has room "
        f"{spell(case, found, pl.col('swa_token_usage') > limits['swa_usage'])}: "
        f"usage {usage:.2f} against "
        f"{worst.mean('full_usage') or 0:.2f}, {worst.mean('running') or 0:,.0f} "
        f"running, {worst.mean('queue') or 0:,.0f} waiting"
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
            worst.averaged(
                "usage of the sliding-window pool", "swa_usage", "swa_token_usage", "fraction", 2
            ),
            *([kept] if kept else []),
            *waiting_with_room(worst, "usage of the full pool"),
        ],
        actions=[
            *(upgrade if kept else []),
            *act(
                case,
                "Give the sliding-window pool a larger share",
                "swa-full-tokens-ratio",
                proposed,
                "more requests fit; the full pool shrinks",
            ),
            *left_over_memory(case, worst),
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


def _charges_whole_requests(case: Case) -> bool:
    """Whether the log may be of a release that charges all that a request may write to both pools.

    Later ones estimate what it needs of the small pool per window.
    """
    found = case.signals.session.release_range
    return found is None or RELEASES.index(found[0]) <= RELEASES.index(_LAST_TO_CHARGE)


#: The last release that is known to do so.
_LAST_TO_CHARGE = "0.5.9"


def _short_of_need(free: pl.Expr, full_free: pl.Expr) -> pl.Expr:
    """Whether what admission asks for is free in the full pool, but not in the small one.

    Of a small pool the next request alone may ask for a good part, so that it blocks well below
    any usage that looks full. What a pass charged for those that it let in counts as well, with
    prompts of which the pool keeps the window only: admission is not tried again until a request
    leaves.
    """
    let_in = pl.col("admitted").fill_null(0) * (
        pl.col("prompt").fill_null(0) + memory.CLIP * (1 - pl.col("ratio"))
    )
    asked = memory.NEED_MARGIN * (pl.col("need") + let_in)
    calm = (pl.col("duty").fill_null(0.0) < _MAX_DUTY) | ends_short()
    return (free <= asked) & (full_free > asked) & calm


#: Prefill duty from which prefill is the limit.
_MAX_DUTY = 0.5


def _full_pool_has_room(limits: Limits) -> pl.Expr:
    return pl.col("full_usage") < limits["usage"]


def _lost_to_window(rank: Rank, pressed: pl.Expr, limits: Limits) -> list[Span]:
    """Return the spans in which the small pool filled until a running request was thrown back."""
    grid = rank.grid.select_seq(
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
    size = rows.select_seq((pl.col("swa_token") / pl.col("swa_token_usage")).median()).item()
    return round(size) if size else None
