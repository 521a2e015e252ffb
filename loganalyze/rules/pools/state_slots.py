"""MAM001: all state slots of the Mamba pool are taken while requests wait."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Action, Evidence, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    minimum,
    severity,
    shown,
    spell,
    these,
)
from loganalyze.rules.pools.evidence import waiting_with_room
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, near_cap


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
    at_once=True,
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
        f"{worst.mean('running') or 0:,.0f} running, {worst.mean('queue') or 0:,.0f} "
        f"waiting, KV usage only {worst.mean('full_usage') or 0:.2f}",
        episodes=all_episodes(found),
        evidence=[
            worst.averaged("Mamba usage", "mamba_usage", "mamba_usage", "fraction", 2),
            *(
                [shown("state slots", slots, "slots", (None, None), "max_mamba_cache_size")]
                if slots
                else []
            ),
            *([each] if each else []),
            *waiting_with_room(worst, "KV usage"),
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
    where, formula = (
        held.line("mamba_num"),
        (f"sum of mamba num / sum of #running-req of {these(held.decode)}"),
    )
    return shown("state slots per running request", each, "slots", where, formula, 1)


#: Slots per running request from which giving up the prefix cache frees some.
_MORE_SLOTS = 1.5


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
