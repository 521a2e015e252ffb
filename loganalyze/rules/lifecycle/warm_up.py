"""WRM001: requests are still young, and throughput higher than it can stay."""

from __future__ import annotations

import math

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
        "lives": Limit(5.0, "lifetimes", "lifetimes of requests over which a level is taken"),
        "settle_s": Limit(120.0, "s", "shortest time over which a level is taken"),
        "level_s": Limit(600.0, "s", "longest time over which a level is taken"),
    },
    after=("KV010", "PRE001"),
)
def warm_up(case: Case, limits: Limits) -> Finding | Clear:
    """Requests are still young: throughput is higher than the server can sustain.

    What it flags:
        The time from a start, a restart or a change of the request mix until tokens per running
        request reach `share` of their level: the median over the second half of twice `lives`
        lifetimes of a request, or of the time to the next change.
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
    warming = {id(rank): _warming(rank, limits) for rank in case.ranks}
    found = hold(
        case.ranks,
        lambda rank: [
            s for s in warming[id(rank)] if outside(case, rank, *others)[s[0] : s[1]].mean() == 1
        ],
    )
    if not found:
        return Clear("running requests held as many tokens at the start as later")
    worst = found[0]
    longest = max(worst.spans, key=lambda span: span[1] - span[0])
    after = Held(worst.rank, [warming[id(worst.rank)][longest]])
    settled = as_float(_per_request(worst.rank).filter(after.mask).median(), 0.0)
    alike = after.decode.with_columns_seq(
        _off=(pl.col("own_token") / pl.col("running_req") - settled).abs()
    ).filter(pl.col("_off").is_finite())
    return Finding(
        summary=f"Warm-up {spell(case, found)}: tokens per running request climbed to "
        f"{settled:,.0f}{' in the longest' if len(worst.spans) > 1 else ''}; throughput from this "
        "time is no measure of the server",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "tokens per running request afterwards",
                settled,
                "tokens",
                Held.at(alike, int(alike["_off"].arg_min() or 0))
                if alike.height
                else (None, None),
                f"median of #token / #running-req, {these(after.decode)}",
                0,
            )
        ],
        actions=act(case, "Judge the server by the time after it"),
        severity=Severity.INFO,
        confidence=confidence(case, found),
        competing="a mix of requests that grows longer for good (KV006)",
    )


#: A level stood for so much of a window at least.
_STOOD = 0.5

#: What the waves before a change reached: the rest is one request or another.
_CREST = 0.95


def _per_request(rank: Rank) -> pl.Series:
    """Return tokens per running request, smoothed over a few seconds."""
    return rank.select(
        pl.col("own_token").rolling_mean(rank.cells(5), min_samples=1)
        / pl.when(pl.col("running") > 0)
        .then(pl.col("running"))
        .rolling_mean(rank.cells(5), min_samples=1)
    )


def _windows(rank: Rank, limits: Limits) -> pl.Series:
    """Return how many windows have passed at the end of each cell.

    Tokens per request swing with the lifetime of requests, seconds or minutes, so a level is
    taken over a window of `lives` of them, of `settle_s` at least and of `level_s` at most. A
    lifetime is the running requests over those that start in a second (Little's law).
    """
    minute = rank.cells(60)
    started = pl.col("started").fill_null(0) - pl.col("retracted").fill_null(0)
    rate, running = (
        values.rolling_mean(minute, min_samples=1, center=True)
        for values in (started, pl.col("running"))
    )
    lives = rank.select(rate / running).fill_nan(0.0).fill_null(0.0) / limits["lives"]
    least, most = (rank.cells(limits[name]) for name in ("settle_s", "level_s"))
    return lives.clip(1 / most, 1 / least).cum_sum()


def _ahead(passed: pl.Series, cell: int, windows: float) -> int:
    """Return the cell that lies so many windows after (before) one."""
    return int(passed.search_sorted(float(passed[cell]) + windows))


def _warming(rank: Rank, limits: Limits) -> dict[Span, Span]:
    """Return warm-up spans: at the start, and where a longer mix of requests sets in.

    Each with the time over which the level was taken that it climbs to: the second half of two
    windows from where it begins, or of what lies before the next change.
    """
    a, passed = _per_request(rank), _windows(rank, limits)
    levels = _before_and_after(rank, a, passed, limits)
    # A mix that becomes shorter is no warm-up, and bounds the level before it.
    changes = [
        change
        for way, (before, after) in ((a, levels), (1 / a, [1 / level for level in levels]))
        for change in _mix_changes(rank, way, passed, before, after, limits)
    ]
    begins = sorted({0, *changes})
    # Without prefill lines nobody knows how long requests live.
    lives = as_float(rank.grid["started"].sum(), 0.0) > 0
    settle = 2 * rank.cells(limits["settle_s"])
    out: dict[Span, Span] = {}
    for first, end in zip(begins, [*begins[1:], rank.grid.height], strict=True):
        begin = first + int(a[first:end].is_not_null().arg_max() or 0)
        until = min(end, _ahead(passed, begin, 2.0) if lives else begin + settle)
        middle = (begin + until) // 2
        level = as_float(a[middle:until].median())
        if level is None or end - first < rank.cells(limits["settle_s"]):
            continue
        shortest = rank.cells(limits["shortest_s"])
        # Not yet where it is touched only: a prompt that comes in counts before its request runs.
        reached = (a[begin:until] >= limits["share"] * level).fill_null(False).cast(pl.Float64)
        held = reached.reverse().rolling_mean(shortest, min_samples=1).reverse() > _STOOD
        climbed = int((held & (reached > 0)).arg_max() or 0)
        if climbed >= shortest:
            out[begin, begin + climbed] = middle, until
    return out


def _mix_changes(
    rank: Rank,
    a: pl.Series,
    passed: pl.Series,
    before: pl.Series,
    after: pl.Series,
    limits: Limits,
) -> list[int]:
    """Return the cells at which tokens per request begin to rise to a new, lasting level.

    Waves of requests that finish together make tokens per request swing, so the levels before and
    after are medians of a window, and the new one must be beyond what waves reached before; the
    rise begins at the last moment before the change at which the mean of half a minute still
    stood at the old level.
    """
    size = rank.cells(limits["settle_s"])
    if a.len() < 2 * size:
        return []
    ratio = (after / before).fill_nan(0.0).fill_null(0.0)
    half = a.rolling_mean(rank.cells(30), min_samples=1, center=True)
    out: list[int] = []
    for first, end in joined(spans(ratio >= limits["rise"]), size // 2):
        top = first + int(ratio[first:end].arg_max() or 0)
        level, back = float(before[top]), _ahead(passed, top, -1.0)
        halfway = (half[top:] >= level * math.sqrt(ratio[top])).fill_null(False)
        rise = half[back : top + 1 + int(halfway.arg_max() or 0)]
        still = spans((rise <= level).fill_null(True))
        begin = back + (still[-1][1] if still else 0)
        # The old level must have stood: the start's own climb is no change of the mix.
        stood = passed[begin] - passed[out[-1] if out else 0]
        lasting = as_float(a[begin : _ahead(passed, begin, 1.0)].median(), 0.0)
        if stood >= _STOOD:
            waves = a[_ahead(passed, begin - 1, -1.0) : begin]
            if lasting > as_float(waves.quantile(_CREST), math.inf):
                out.append(begin)
    return out


#: Of a window: the count of windows as whole numbers.
_PARTS = 1_000_000


def _before_and_after(
    rank: Rank, a: pl.Series, passed: pl.Series, limits: Limits
) -> list[pl.Series]:
    """Return the levels of the windows before and after each cell; null where few are known."""
    frame = pl.DataFrame({"at": (passed * _PARTS).cast(pl.Int64), "a": a})
    ends = frame.reverse().with_columns_seq(at=frame["at"][-1] - pl.col("at"))
    least = rank.cells(limits["settle_s"]) // 2
    return [_level(frame, least).shift(1), _level(ends, least).reverse()]


def _level(rows: pl.DataFrame, least: int) -> pl.Series:
    """Return the median of the window that ends with each cell; null with fewer known cells."""
    a, size = pl.col("a"), f"{_PARTS}i"
    known = a.is_not_null().cast(pl.Int64).rolling_sum_by("at", size)
    return rows.select_seq(
        pl.when(known >= least).then(a.rolling_median_by("at", size))
    ).to_series()
