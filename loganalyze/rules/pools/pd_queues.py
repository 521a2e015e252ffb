"""PDD001, PDD002, PDP001: requests wait in the queues between prefill and decode servers."""

from __future__ import annotations

import polars as pl

from loganalyze.capacity import memory, pool
from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Finding, Severity
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
    these,
)
from loganalyze.rules.kv.room import more_room
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, near_cap

#: A queue of a disaggregated server that holds something is no backlog: it must stay.
_FEWEST_LINES = 3


def _need_lines(case: Case) -> None:
    """Raise NotApplicable where there are too few lines to see that a queue stays."""
    if case.signals.n_lines < _FEWEST_LINES:
        raise NotApplicable(f"{case.length} is too little to tell a backlog from a moment")


def _lacks_room(case: Case, usage: float) -> pl.Expr:
    """Whether a decode server has no KV room for another request.

    Its printed usage holds the preallocated KV: all that is allocated is used.
    """
    held = pl.col("running").fill_null(0) + pl.col("transfer").fill_null(0)
    tokens, reserve = case.signals.capacity.kv_tokens, memory.decode_reserve(case.signals.session)
    return pool.lacks_room(pl.col("usage"), held, tokens, reserve, usage)


@rule(
    "PDD001",
    "pd-prealloc-backlog",
    severity=Severity.CRITICAL,
    needs=("prealloc_req",),
    limits={
        "usage": Limit(
            pool.DECODE_USAGE,
            "fraction",
            "usage, preallocated included, from which room may be short",
        ),
        "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(20.0, "s", "shortest spell"),
        "join_s": Limit(60.0, "s", "holes up to this long with a backlog are closed"),
    },
    explains=("KV001", "KV003", "KV004", "QUE001"),
    at_once=True,
)
def pd_prealloc_backlog(case: Case, limits: Limits) -> Finding | Clear:
    """A PD decode server has no KV room for requests that wait to be transferred.

    What it flags:
        `#prealloc-req` above zero with usage (preallocated KV included) above `usage`, or with
        no room beside the reserve, for `report_s` or longer. `#queue-req` stays 0 on such a
        server.
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
    _need_lines(case)

    def judge(rank: Rank) -> list[Span]:
        backlog = (pl.col("prealloc") > 0) & _lacks_room(case, limits["usage"])
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
        return Clear(f"at most {top:,.0f} requests waited for preallocation, with KV room")
    worst = found[0]
    reserve = memory.decode_reserve(case.signals.session)
    tokens = case.signals.capacity.kv_tokens
    held = (worst.mean("running") or 0.0) + (worst.mean("transfer") or 0.0)
    return Finding(
        summary="Requests wait for KV room on the decode server "
        f"{spell(case, found, pl.col('prealloc_req') > 0)}: "
        f"{worst.mean('prealloc') or 0:,.0f} waiting for preallocation at usage "
        f"{worst.mean('usage') or 0:.2f}, {worst.mean('running') or 0:,.0f} running",
        episodes=all_episodes(found),
        evidence=[
            *pool_evidence(case),
            worst.averaged("waiting for preallocation", "prealloc", "prealloc_req", "requests", 1),
            worst.averaged("mean usage", "usage", "kv_usage", "fraction", 2),
            worst.averaged(
                "preallocated usage", "prealloc_usage", "pre_allocated_usage", "fraction", 2
            ),
            *(
                [
                    shown(
                        "reserved for requests held",
                        reserve * held / tokens,
                        "",
                        worst.line("running_req"),
                        f"{reserve} tokens x (running + in transfer) / pool, as a share of it",
                        3,
                    )
                ]
                if tokens
                else []
            ),
        ],
        actions=[
            *more_room(case, worst),
            *(
                act(
                    case,
                    "Reserve fewer tokens per request",
                    "num-reserved-decode-tokens",
                    max(64, reserve // 2),
                    "more requests at a time, more retractions",
                )
                if not worst.total("retracted")
                else []
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
        "waits": Limit(
            0.2,
            "fraction",
            "share of a decode server's requests that are in its transfer queue, from which "
            "their KV arrives late",
        ),
        "usage": Limit(
            pool.DECODE_USAGE,
            "fraction",
            "usage, preallocated included, below which nobody lacks KV room",
        ),
        "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(20.0, "s", "shortest spell"),
        "join_s": Limit(20.0, "s", "holes up to this long are closed"),
        "rise": Limit(5.0, "requests", "rise of #inflight-req over 120 s on a prefill server"),
    },
    explains=("QUE001", "HNG001", "CLI001", "IDL001"),
    at_once=True,
)
def pd_transfer_backlog(case: Case, limits: Limits) -> Finding | Clear:
    """The KV of requests arrives late on decode servers, or leaves prefill servers late.

    What it flags:
        On a decode server at least `requests` in the transfer queue, and at least `waits` of
        those that it holds, with (almost) none waiting for preallocation, or with KV room for
        those that do; on a prefill server requests in flight that rise together with usage.
    Why it is slow:
        A request decodes only when all its KV has arrived. #transfer-req counts requests from
        their preallocation on, so it holds those whose prefill is not done as well as those on
        the link; the prefill servers' logs tell which. The share of requests that are in that
        queue is the share of their time that they spend there.
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
    _need_lines(case)

    def judge(rank: Rank) -> list[Span]:
        if role == "decode":
            held_here = pl.col("transfer") + pl.col("running").fill_null(0)
            room = ~_lacks_room(case, limits["usage"])
            if rank.cap:
                room = room & (pl.col("running") < near_cap(rank.cap))
            slow = (
                (pl.col("transfer") >= limits["requests"])
                & (pl.col("transfer") >= limits["waits"] * held_here)
                & ((pl.col("prealloc").fill_null(0) < 1) | room)
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
    many = f"{worst.mean('transfer') or 0:,.0f}"
    level = confidence(case, found, config=True)
    if role == "decode":
        summary = (
            f"KV of requests arrives late {spell(case, found)}: {many} in the transfer queue, "
            f"waiting for their prefill or for the transfer, {worst.mean('running') or 0:,.0f} "
            f"running, {_behind(worst)}"
        )
    else:
        summary = f"KV transfers pile up {spell(case, found)}: {many} requests in flight"
    return Finding(
        summary=summary,
        episodes=all_episodes(found),
        evidence=[
            worst.averaged(
                "requests in the transfer queue" if role == "decode" else "requests in flight",
                "transfer",
                "transfer_req" if role == "decode" else "inflight_req",
                "requests",
                1,
            ),
            worst.averaged("mean usage", "usage", "kv_usage", "fraction", 2),
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
            *(
                act(
                    case,
                    "If #transfer-req never falls, its transfers never end and keep their "
                    "slots: restart the decode server, and upgrade",
                )
                if role == "decode" and "slots" in summary
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
        "and this log cannot tell the two apart"
        if role == "decode"
        else "decode servers that are slow to take KV (PDD001 on their logs)",
    )


def _behind(held: Held) -> str:
    """Say who waits behind the requests in the transfer queue, each of which has a slot."""
    waiting = held.mean("prealloc") or 0.0
    if waiting < 1:
        return "none waiting for KV room"
    more = f"{waiting:,.0f} more wait for preallocation at usage {held.mean('usage') or 0:.2f}"
    cap = held.rank.cap
    taken = pl.col("transfer") + pl.col("running").fill_null(0)
    if cap and as_float(held.cells.select_seq((taken >= near_cap(cap)).mean()).item(), 0.0) > 0.5:
        return f"{more}: they hold the {cap} request slots"
    return more


def _or_silent(rank: Rank, held: pl.Series) -> pl.Series:
    """Carry a state over gaps that it leads into and that it follows: few lines, same state."""
    gap = rank.grid["gap"]
    state = pl.DataFrame({"held": held, "gap": gap}).select_seq(
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
        "passes": Limit(2.0, "passes", "prefill batches' worth of requests that wait at least"),
        "report_s": Limit(60.0, "s", "shortest spell"),
    },
    explains=("CLI001", "IDL001"),
    after=("PDD002",),
)
def pd_waits_for_decode(case: Case, limits: Limits) -> Finding | Clear:
    """A PD prefill server waits for decode servers to make room.

    What it flags:
        Many requests waiting for bootstrap while few are in flight, for `report_s` or longer;
        more than `passes` times what one prefill batch takes.
    Why it is slow:
        A prompt is prefilled only when a decode server has preallocated room for it.
    Not this rule:
        Transfers that pile up (PDD002). A busy prefill server, which looks at its bootstrap
        queue between two passes only: as many come during one as the next one takes.
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
        passes = rank.lines.filter(pl.col("lines") > 0)
        # A prompt in chunks is a #new-seq of each of its batches, and left the queue once.
        a_pass = as_float((passes["started"] / passes["lines"]).median(), 0.0)
        held = rank.holds(
            (waiting >= limits["requests"])
            & (waiting > limits["passes"] * a_pass)
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
    said = worst.lines.filter(pl.col(column).is_not_null())
    mean = as_float(said[column].mean(), 0.0)
    return Finding(
        summary=f"The prefill server waits for room on decode servers {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "waiting for bootstrap",
                mean,
                "requests",
                Held.at(said, int((said[column] - mean).abs().arg_min() or 0)),
                f"mean of {these(said)}",
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
