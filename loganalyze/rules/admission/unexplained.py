"""QUE001: requests wait although KV, the running cap and prefill all leave room."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Action, Finding, Severity
from loganalyze.rules.admission.candidates import held_back
from loganalyze.rules.admission.starved import (
    STARVED,
    in_pool,
    need_evidence,
    need_time,
    other_pool_has_room,
    would_not_fill,
)
from loganalyze.rules.held import act, all_episodes, hold, need_pool_size, outside, severity, spell
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float

#: The usual causes of a queue: where one of them was found, it needs no other.
_USUAL = (
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
    after=_USUAL,
)
def queue_without_kv_cause(case: Case, limits: Limits) -> Finding | Clear:
    """Requests wait although KV, the running cap and prefill all leave room.

    What it flags:
        A queue with usage below `usage` for minutes, free KV well above what admission asks
        for, even once those that run are grown, no retraction, running requests well below their
        cap and prefill not the limit.
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
    need_time(case)
    images = bool((case.data.batch["waiting_image_req"] > 0).any())
    if not images:
        need_pool_size(case)
    waits_for_images = pl.col("images").fill_null(0)

    def judge(rank: Rank) -> list[Span]:
        if not rank.waits and not images:
            return []
        calm = (rank.past_max("usage", limits["memory_s"]) < limits["usage"]) & (
            rank.past_sum("retracted", limits["lost_s"]) == 0
        )
        own = outside(case, rank, *_USUAL) & calm.fill_null(False)
        if not own.any():
            return []
        room = pl.col("running") < limits["cap_share"] * rank.cap if rank.cap else pl.lit(True)
        waits = (
            ((pl.col("queued") > 0.5) | (waits_for_images > 0))
            & ~pl.col("starved").fill_null(False)
            & room
            & (pl.col("duty").fill_null(0.0) < limits["max_duty"])
            & other_pool_has_room()
            # Young requests that fill the pool as they grow keep the others out until then.
            & would_not_fill(case, rank, STARVED)
        )
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
    causes = held_back(case)
    late = worst.average(waits_for_images)
    if late >= limits["min_queue"]:
        causes = [(f"{late:,.0f} wait for their images", _encoder(case)), *causes]
    named = "; candidates: " + ", ".join(text for text, _ in causes) if causes else ""
    cap_known = worst.rank.cap is not None
    rival = "conservative admission (ADM001), if clients ask for very many tokens"
    if not cap_known:
        running = worst.decode["running_req"].drop_nulls()
        still = running.len() > 1 and running.min() == running.max()
        stands = f": {running[0]:,} run in every decode line" if still else ""
        unknown = "the log prints no max_running_requests="
        rival = f"the running cap (RUN001){stands}; {unknown}; or {rival}"
    if not any(rank.lines["prefill"].any() for rank in case.ranks):
        rival += "; or a batch that is full until a request finishes (ADM002): the log has no "
        rival += "prefill lines, which would show it"
    waiting = f"{worst.mean('queue') or 0:,.0f} waiting"
    if late >= limits["min_queue"] and not worst.average(pl.col("queue").fill_null(0)) >= 1:
        waiting = "none in the queue"
    return Finding(
        summary="Requests wait although KV"
        + (", running cap and prefill leave room " if cap_known else " and prefill leave room ")
        + f"{spell(case, found)}: usage {worst.mean('usage') or 0:.2f}, "
        f"{worst.mean('running') or 0:,.0f} running, {waiting}{named}",
        episodes=all_episodes(found),
        evidence=need_evidence(case, worst),
        actions=[action for _, actions in causes for action in actions]
        or act(case, f"Look for what holds requests back: {', '.join(_not_excluded(case))}"),
        severity=severity(case, found),
        confidence=in_pool(case, found),
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
