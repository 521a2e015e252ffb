"""WRM001: requests are still young, and throughput higher than it can stay."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, joined, spans
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    outside,
    shown,
    spell,
    these,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "WRM001",
    "warm-up",
    severity=Severity.INFO,
    needs=("token|full_token", "running_req"),
    limits={
        "share": Limit(
            0.85, "fraction", "share of the settled tokens per request at which it ends"
        ),
        "shortest_s": Limit(15.0, "s", "shortest warm-up to report"),
        "rise": Limit(1.5, "x", "rise of tokens per request that marks a changed mix"),
        "level_s": Limit(600.0, "s", "time over which the old and the new level are taken"),
        "settle_s": Limit(120.0, "s", "shortest settled time after it"),
    },
    after=("KV010", "PRE001"),
)
def warm_up(case: Case, limits: Limits) -> Finding | Clear:
    """Requests are still young: throughput is higher than the server can sustain.

    What it flags:
        The time from a start, a restart or a change of the request mix until tokens per running
        request reach `share` of their level: the median of as long again, `settle_s` at least.
    Why it is slow:
        Nothing is slow yet: tokens per request climb from the prompt to prompt plus most of the
        output within one request lifetime, and running requests and throughput fall as they do.
    Not this rule:
        A fall of throughput later on, with requests as long as before (THR002).
    What to do:
        Do not report throughput from this time as the server's level.
    Source:
        KV held = running x tokens per request.
    """
    if case.excerpt:
        raise NotApplicable("it is an excerpt; warm-up needs minutes of log")
    if case.signals.session.role == "prefill":
        raise NotApplicable("a PD prefill server keeps no running requests")
    others = ("KV010", "PRE001")
    found = hold(
        case.ranks,
        lambda rank: [
            s
            for s in _warming(rank, limits)
            if outside(case, rank, *others)[s[0] : s[1]].mean() == 1
        ],
    )
    if not found:
        return Clear("running requests held as many tokens at the start as later")
    worst = found[0]
    first, end = worst.spans[0]
    long = max(end - first, worst.rank.cells(limits["settle_s"]))
    settled = as_float(_per_request(worst.rank)[end : end + long].median(), 0.0)
    after = Held(worst.rank, [(end, min(end + long, worst.rank.grid.height))]).decode
    alike = after.with_columns(
        _off=(pl.col("own_token") / pl.col("running_req") - settled).abs()
    ).filter(pl.col("_off").is_finite())
    return Finding(
        summary=f"Warm-up {spell(case, found)}: tokens per running request climbed to "
        f"{settled:,.0f}; throughput from this time is no measure of the server",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "tokens per running request afterwards",
                settled,
                "tokens",
                Held.at(alike, int(alike["_off"].arg_min() or 0))
                if alike.height
                else (None, None),
                f"median of #token / #running-req, {these(after)}",
                0,
            )
        ],
        actions=act(case, "Judge the server by the time after it"),
        severity=Severity.INFO,
        confidence=confidence(case, found),
        competing="a mix of requests that grows longer for good (KV006)",
    )


#: The climb is looked at in steps of this part of it.
_FINE = 20


def _per_request(rank: Rank) -> pl.Series:
    """Return tokens per running request, smoothed over a few seconds."""
    return rank.select(
        pl.col("own_token").rolling_mean(rank.cells(5), min_samples=1)
        / pl.when(pl.col("running") > 0)
        .then(pl.col("running"))
        .rolling_mean(rank.cells(5), min_samples=1)
    )


def _warming(rank: Rank, limits: Limits) -> list[Span]:
    """Return warm-up spans: at the start, and where a longer mix of requests sets in."""
    a = _per_request(rank)
    begins = [0, *_mix_changes(rank, a, limits)]
    out: list[Span] = []
    for begin, end in zip(begins, [*begins[1:], rank.grid.height], strict=True):
        if end - begin < rank.cells(limits["settle_s"]):
            continue
        alive = begin + int(a[begin:end].is_not_null().arg_max() or 0)
        # A change of the mix was told by levels over so long, and may begin in a lull of waves.
        least = rank.cells(limits["level_s"] if begin else limits["settle_s"])
        stop = alive + (_climb(rank, a[alive:end], least, limits) or 0)
        if stop - alive >= rank.cells(limits["shortest_s"]):
            out.append((alive, stop))
    return out


def _climb(rank: Rank, a: pl.Series, least: int, limits: Limits) -> int | None:
    """Return the cells until tokens per request reach their level; None where they never do.

    They have reached it where they stand as high as usual for as long again as they climbed, and
    for `least` cells: what comes later, another load or a leak, is not what they climb to.
    """
    # One request alone may be long or short.
    a = a.rolling_median(2 * rank.cells(limits["shortest_s"]) + 1, min_samples=1, center=True)
    cell = 0
    while cell + max(cell, least) // 2 <= a.len():
        level, now = as_float(a[cell : cell + max(cell, least)].median()), as_float(a[cell])
        if level and now is not None and now >= limits["share"] * level:
            reached = (a >= limits["share"] * level).fill_null(False)
            return int(reached.arg_max() or 0)
        cell += max(1, cell // _FINE)
    return None


def _mix_changes(rank: Rank, a: pl.Series, limits: Limits) -> list[int]:
    """Return the cells at which tokens per request begin to rise to a new, lasting level.

    Waves of requests that finish together make tokens per request swing over minutes, so the
    levels before and after are medians of `level_s`, and the new one must be beyond what waves
    reached before; the rise begins at the last moment before the change at which a minute's mean
    still stood at the old level.
    """
    size = rank.cells(limits["level_s"])
    if a.len() < 1.5 * size:
        return []
    before = a.rolling_median(size, min_samples=size // 2).shift(1)
    after = a.reverse().rolling_median(size, min_samples=size // 2).reverse()
    ratio = (after / before).fill_nan(0.0).fill_null(0.0)
    minute = a.rolling_mean(rank.cells(60), min_samples=1, center=True)
    out: list[int] = []
    for first, end in joined(spans(ratio >= limits["rise"]), size // 2):
        top = first + int(ratio[first:end].arg_max() or 0)
        level = as_float(before[top], 0.0)
        still = spans((minute[max(0, top - size) : top + 1] <= level).fill_null(True))
        begin = max(0, top - size) + (still[-1][1] if still else 0)
        # The start's own warm-up is no change of the mix: the old level stood for a while.
        crest = as_float(a[max(0, begin - size) : begin].quantile(0.9), 0.0)
        lasting = as_float(a[begin : begin + size].median(), 0.0) > crest
        if begin >= size // 2 and lasting:
            out.append(begin)
    return out
