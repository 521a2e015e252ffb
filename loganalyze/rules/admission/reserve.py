"""ADM001 to ADM003 and KV005: admission keeps more KV in reserve than is used."""

from __future__ import annotations

import math
from itertools import pairwise

import polars as pl

from loganalyze.episodes import Span, at_least, spans, within
from loganalyze.model import Finding, Severity
from loganalyze.rules.admission.starved import (
    STARVED,
    STARVED_LIMITS,
    at_cap,
    in_pool,
    need_evidence,
    need_time,
    short_evidence,
    starved,
    would_not_fill,
)
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    hold,
    need_pool_size,
    outside,
    severity,
    spell,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "ADM001",
    "conservative-admission",
    severity=Severity.CRITICAL,
    needs=("kv_usage", "queue_req", "running_req"),
    limits=STARVED_LIMITS,
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
    found = starved(case, limits, "conservative")
    if not found:
        return Clear(_why_not_starved(case, limits))
    worst = found[0]
    c = case.arg("schedule_conservativeness")
    low = isinstance(c, int | float) and c <= 0.3
    return Finding(
        summary=f"Requests wait with KV free {spell(case, found)}: usage "
        f"{worst.mean('usage') or 0:.2f}, {worst.mean('running') or 0:,.0f} running, "
        f"{worst.mean('queue') or 0:,.0f} waiting; admission reserves more than is used",
        episodes=all_episodes(found),
        evidence=short_evidence(case, worst),
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
        confidence=in_pool(case, found),
        competing="a queue without KV cause (QUE001): the need is an upper bound, since the log "
        "prints no max_new_tokens",
    )


def _why_not_starved(case: Case, limits: Limits) -> str:
    if not any(rank.waits for rank in case.ranks):
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
    limits=STARVED_LIMITS,
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
    found = starved(case, limits, "after_retraction")
    if not found:
        return Clear("no queue with free KV in the ten minutes after a retraction")
    worst = found[0]
    c = case.arg("schedule_conservativeness")
    low = isinstance(c, int | float) and c < 0.3
    return Finding(
        summary=f"After retractions admission stays too careful {spell(case, found)}: usage "
        f"{worst.mean('usage') or 0:.2f} with {worst.mean('queue') or 0:,.0f} waiting",
        episodes=all_episodes(found),
        evidence=short_evidence(case, worst),
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
        confidence=in_pool(case, found),
        competing="conservative admission (ADM001)",
    )


@rule(
    "ADM003",
    "cold-start-throttle",
    severity=Severity.INFO,
    needs=("kv_usage", "queue_req", "running_req"),
    limits=STARVED_LIMITS,
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
        The same with the estimate at its floor (ADM001). Where no decode line is printed
        for most of the time, nobody sees the estimate fall, and the finding says so.
    What to do:
        Nothing, unless traffic comes in bursts with idle times between: then lower
        --schedule-conservativeness or keep the server warm.
    Source:
        SGLANG_INIT_NEW_TOKEN_RATIO, _MIN_NEW_TOKEN_RATIO_FACTOR, _NEW_TOKEN_RATIO_DECAY_STEPS.
    """
    found = starved(case, limits, "cold")
    if not found:
        return Clear("no queue with free KV just after a start or an idle time")
    if not any(rank.lines["decode"].any() for rank in case.ranks):
        raise NotApplicable("it has no decode lines, with whose steps new_token_ratio falls")
    worst = found[0]
    passes = _seen_to_fall(worst)
    return Finding(
        summary=f"A cold server lets requests in slowly {spell(case, found)}: usage "
        f"{worst.mean('usage') or 0:.2f} with {worst.mean('queue') or 0:,.0f} waiting; "
        + (
            "this passes by itself"
            if passes
            else "for most of it no decode line is printed, so the log does not show whether it "
            "passes"
        ),
        episodes=all_episodes(found),
        evidence=short_evidence(case, worst),
        actions=act(
            case,
            "Nothing for a single start; for bursts after idle times reserve less"
            if passes
            else "If it does not pass, reserve less",
            "schedule-conservativeness",
            0.3,
            "the estimate starts at 0.21 instead of 0.7",
        ),
        severity=Severity.INFO,
        confidence=in_pool(case, found) if passes else "low",
        competing="conservative admission (ADM001), if it does not pass",
    )


def _seen_to_fall(held: Held) -> bool:
    """Whether decode lines, with whose steps the estimate falls, go on through most of a spell."""
    first, end = max(held.spans, key=lambda span: span[1] - span[0])
    start, stop = first * held.rank.step_s, end * held.rank.step_s
    at = held.decode["t"].filter(held.decode["t"].is_between(start, stop))
    edges: list[float] = [start, *at.to_list(), stop]
    return max(b - a for a, b in pairwise(edges)) <= (stop - start) / 2


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
    need_time(case)
    need_pool_size(case)
    if case.signals.session.role == "decode":
        raise NotApplicable("a PD decode server prints no prefill lines")
    if not any(rank.lines["prefill"].any() for rank in case.ranks):
        raise NotApplicable(
            "it has no prefill lines, as if they were filtered out, so that nobody sees when "
            "requests are let in"
        )
    case.need_all_lines()

    def judge(rank: Rank) -> list[Span]:
        if not rank.waits:
            return []
        shut = rank.select(
            (pl.col("queued") == 1)
            & (pl.col("usage") < limits["usage"])
            & ~pl.col("starved")
            & ~at_cap(rank)
            & (pl.col("running") > 0)
            & (pl.col("n_prefill") == 0)
            & (pl.col("completed") == 0)
            & ~pl.col("gap")
            & ~pl.lit(_moves_unseen(rank))
            & would_not_fill(case, rank, STARVED)
        )
        own = outside(case, rank, "KV001", "RUN001", "SWA001", "MAM001", "KV009")
        return at_least(spans(shut & own), rank.cells(limits["report_s"]))

    found = hold(case.ranks, judge)
    if not found:
        return Clear("prefills or completions went on wherever requests waited with KV free")
    worst = found[0]
    return Finding(
        summary="Nothing is admitted with KV free until a running request finishes "
        f"{spell(case, found)}: {worst.mean('queue') or 0:,.0f} waiting at usage "
        f"{worst.mean('usage') or 0:.2f}",
        episodes=all_episodes(found),
        evidence=need_evidence(case, worst),
        actions=[
            *act(
                case, "Reserve less when requests are admitted", "schedule-conservativeness", 0.3
            ),
            *act(case, "Raise the load step by step after a start"),
        ],
        severity=Severity.WARNING,
        confidence=in_pool(case, found),
        competing="a queue without KV cause (QUE001)",
    )


def _moves_unseen(rank: Rank) -> pl.Series:
    """Return the cells in which a row that stands for several lines may hide what it tells of.

    It is the last of those that it stands for: its prefills and completions were anywhere since
    the row before it of its phase, and no longer ago than such rows lie apart.
    """
    if not rank.timeline.merged:
        return rank.never
    rows = rank.lines.filter(pl.col("lines") > 0).with_columns_seq(
        since=pl.col("t").diff().over("decode")
    )
    apart = as_float(rows.filter("decode")["since"].median(), math.inf)
    told = rows.filter(
        (pl.col("lines") > 1) & (pl.col("prefill") | (pl.col("completed") > 0))
    ).select_seq(
        first=(pl.col("t") - pl.min_horizontal("since", pl.lit(apart)).fill_null(0.0)), last="t"
    )
    return within(rank.grid["t"], list(told.iter_rows()))
