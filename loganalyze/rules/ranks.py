"""Rules across ranks and servers: is the load spread, and do all keep step?"""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePath

import polars as pl

from loganalyze.capacity.server import sharing_ranks
from loganalyze.episodes import at_least, joined, spans, within
from loganalyze.lengths import duration
from loganalyze.model import Action, Episode, Finding, Severity
from loganalyze.rules.flags import release_key
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    gain_text,
    ranks_of,
    severity,
    shown,
    spell,
    these,
    waiting,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.timeline import as_float


def _together(case: Case) -> pl.DataFrame:
    """Return the ranks' grids one below the other, with `rank` numbers and what `waits`."""
    return pl.concat(
        rank.grid.select_seq(
            "cell", "t", "usage", "queue", "running", "gap", waits=waiting(case)
        ).with_columns_seq(rank=pl.lit(i))
        for i, rank in enumerate(case.ranks)
    )


@rule(
    "DPI001",
    "dp-imbalance",
    severity=Severity.CRITICAL,
    needs=("kv_usage", "queue_req", "dp_rank"),
    limits={
        "usage": Limit(
            0.35, "fraction", "difference of usage between the fullest and the emptiest rank"
        ),
        "spread": Limit(0.5, "x", "standard deviation of running requests over their mean"),
        "share": Limit(0.5, "fraction", "share of the window in which it must hold"),
        "window_s": Limit(21.0, "s", "window"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "join_s": Limit(30.0, "s", "holes up to this long are closed"),
    },
    explains=(
        "KV001",
        "KV003",
        "KV004",
        "KV005",
        "KV006",
        "ADM001",
        "ADM003",
        "QUE001",
        "OVR001",
        "DPI002",
        "PDD001",
    ),
    after=("KV001",),
)
def dp_imbalance(case: Case, limits: Limits) -> Finding | Clear:
    """One DP rank is full with a queue while others have room.

    What it flags:
        Usage of the DP ranks apart by more than `usage`, or running requests spread by more than
        `spread`, with requests waiting on some ranks and not on others.
    Why it is slow:
        A request waits on the rank it was given to. Ranks of DP attention step together, so the
        others lose time with small batches: the lost share is 1 - mean / maximum of running
        requests. Replicas of plain data parallelism do not wait for each other.
    Not this rule:
        All ranks full (KV001).
    What to do:
        A load-balancing method that looks at the ranks, and no sticky routing.
    Source:
        DataParallelController; #22614.
    """
    if len(case.ranks) < 2:
        raise NotApplicable("it shows a single DP rank")
    if case.excerpt:
        raise NotApplicable(f"{case.length} is too little to compare ranks")
    waits = pl.col("waits").fill_null(0)
    grid = (
        _together(case)
        .group_by("cell")
        .agg(
            u=pl.col("usage").max() - pl.col("usage").min(),
            q=pl.when(waits.min() == 0).then(waits.max()),
            cv=pl.col("running").std() / pl.col("running").mean(),
            lost=1 - pl.col("running").mean() / pl.col("running").max(),
            top=pl.col("usage").arg_max(),
        )
        .sort("cell")
    )
    rank = max(case.ranks, key=lambda one: one.grid.height)
    apart = grid.select_seq(
        (
            ((pl.col("u") > limits["usage"]) | (pl.col("cv") > limits["spread"]))
            & (pl.col("q") > 0)
        ).fill_null(False)
    ).to_series()
    size = rank.cells(limits["window_s"])
    held = apart.cast(pl.Float64).rolling_mean(size, min_samples=1, center=True) > limits["share"]
    found_spans = at_least(
        joined(spans(held), rank.cells(limits["join_s"])), rank.cells(limits["report_s"])
    )
    if not found_spans:
        return Clear(
            "usage of the ranks differed by at most "
            f"{as_float(grid['u'].max(), 0.0):.2f} for long with a queue"
        )
    held_all = [
        Held(
            one, [s for s in ((a, min(b, one.grid.height)) for a, b in found_spans) if s[1] > s[0]]
        )
        for one in case.ranks
    ]
    means = [(h.mean("usage") or 0.0, h, h.average(waiting(case))) for h in held_all]
    # The rank that requests wait for is the one to name, however full another is.
    busiest = max(means, key=lambda m: (round(m[2]), m[0]))
    emptiest = min((m for m in means if m is not busiest), key=lambda m: (m[0], m[2]))
    inside = grid.filter(within(grid["cell"], [(a, b - 1) for a, b in found_spans]))
    lost = as_float(inside["lost"].mean(), 0.0)
    name = busiest[1].rank.label or "one rank"
    when = spell(case, [busiest[1]]).removesuffix(ranks_of(case, [busiest[1]]))
    return Finding(
        summary=f"DP ranks are loaded unevenly {when}: {name} at usage "
        f"{busiest[0]:.2f} with {busiest[2]:,.0f} waiting, "
        f"{emptiest[1].rank.label} at {emptiest[0]:.2f} with {emptiest[2]:,.0f}",
        episodes=all_episodes([busiest[1]]),
        evidence=[
            busiest[1].averaged(f"mean usage of {name}", "usage", "kv_usage", "fraction", 2),
            emptiest[1].averaged(
                f"mean usage of {emptiest[1].rank.label}", "usage", "kv_usage", "fraction", 2
            ),
            busiest[1].averaged(
                f"waiting on {name}", waiting(case), waiting(case, printed=True), "requests", 0
            ),
            *(
                [
                    shown(
                        "decode capacity lost",
                        lost,
                        "fraction",
                        (None, None),
                        "1 - mean / maximum of running requests over ranks",
                        3,
                    )
                ]
                if sharing_ranks(case.data) > 1
                else []
            ),
        ],
        actions=_balance(case),
        severity=severity(case, [busiest[1]]),
        confidence=confidence(case, [busiest[1]]),
        competing="KV saturation (KV001) of the full rank is its consequence"
        if "KV001" in case.earlier
        else "a load too large for all ranks excluded: nothing waits on the emptiest",
    )


def _balance(case: Case) -> list[Action]:
    release = case.signals.session.release_range
    new = release is not None and release_key(release[0]) >= release_key("0.5.8")
    old = release is not None and release_key(release[1]) < release_key("0.5.8")
    text, effect = "Balance by what the ranks hold", _even_load(case)
    if new:
        out = act(case, text, "load-balance-method", "total_tokens", effect)
    elif old:
        out = act(case, text, "load-balance-method", "shortest_queue", effect)
    else:
        text += " (total_tokens from 0.5.8, shortest_queue before)"
        out = act(case, text, effect=effect)
    return out + act(case, "Do not pin sessions to ranks in front of the server")


def _even_load(case: Case) -> str:
    """Say what an even load would give, as the plan does; empty where the log cannot tell."""
    x = case.load.uneven if case.load else None
    if x is None:
        return ""
    return f"{x.even:,.0f} requests run instead of {x.running:.0f}, {gain_text(x.gain)}"


@rule(
    "DPI002",
    "dp-ranks-idle",
    severity=Severity.WARNING,
    needs=("dp_rank", "running_req"),
    limits={"report_s": Limit(60.0, "s", "shortest spell")},
    after=("DPI001",),
)
def dp_ranks_idle(case: Case, limits: Limits) -> Finding | Clear:
    """Some DP ranks have no request while others hold several.

    What it flags:
        For `report_s` or longer, ranks with no running request while another runs at least two
        or has requests waiting.
    Why it is slow:
        Ranks of DP attention step together; an empty rank is padded and its GPU's share is lost.
    Not this rule:
        Fewer requests than ranks, where some must be empty.
    What to do:
        Balance by load, and do not pin sessions.
    Source:
        DP attention pads idle ranks in every step.
    """
    if len(case.ranks) < 2:
        raise NotApplicable("it shows a single DP rank")
    grid = (
        _together(case)
        .with_columns_seq(
            running=pl.when("gap").then(0.0).otherwise(pl.col("running")).fill_null(0.0)
        )
        .group_by("cell")
        .agg(
            idle=(pl.col("running") == 0).sum(),
            total=pl.col("running").sum(),
            most=(pl.col("running") + pl.col("queue").fill_null(0)).max(),
            n=pl.len(),
        )
        .sort("cell")
    )
    rank = max(case.ranks, key=lambda one: one.grid.height)
    uneven = grid.select_seq(
        (pl.col("idle") > 0) & (pl.col("total") >= pl.col("n")) & (pl.col("most") >= 2)
    ).to_series()
    held = uneven.cast(pl.Float64).rolling_mean(rank.cells(21), min_samples=1, center=True) > 0.7
    found = at_least(joined(spans(held), rank.cells(20)), rank.cells(limits["report_s"]))
    if not found:
        return Clear("no rank was idle for a minute while others had more than one request")
    one = [Held(rank, found)]
    empty = grid.filter(within(grid["cell"], [(a, b - 1) for a, b in found]))
    return Finding(
        summary=f"{as_float(empty['idle'].mean(), 0.0):.1f} of {len(case.ranks)} DP ranks had "
        f"nothing to run while others had several requests {spell(case, one)}",
        episodes=all_episodes(one),
        evidence=[
            shown(
                "idle ranks",
                as_float(empty["idle"].mean(), 0.0),
                "ranks",
                Held.at(one[0].lines, 0) if one[0].lines.height else (None, None),
                f"mean over {these(one[0].lines)}",
                1,
            )
        ],
        actions=_balance(case),
        severity=Severity.WARNING,
        confidence=confidence(case, one),
        competing="too few requests excluded: there are at least as many as ranks",
    )


@rule(
    "TPS001",
    "slow-rank",
    severity=Severity.WARNING,
    needs=("gen_throughput", "running_req"),
    after=("THR002",),
)
def slow_rank(case: Case, limits: Limits) -> Finding | Clear:
    """A tensor-parallel rank may hold up the others.

    What it flags:
        A jump of step time (THR002) on a server with several tensor-parallel ranks. One rank's
        log cannot show which one is slow, so confidence is low.
    Why it is slow:
        Every layer ends in an all-reduce: the slowest GPU sets the pace of all.
    Not this rule:
        Data-parallel ranks with different loads (DPI001).
    What to do:
        Log all ranks, and compare GPU clocks and links.
    Source:
        All-reduce waits; only attention-TP rank 0 prints statistics.
    """
    tp = case.arg("tp_size", 1)
    if not isinstance(tp, int) or tp < 2:
        return Clear("a single tensor-parallel rank")
    jump = case.earlier.get("THR002")
    if jump is None:
        return Clear(
            "step times did not jump; a rank that was always slow cannot be told from "
            "the log of one rank"
        )
    return Finding(
        summary=f"One of {tp} tensor-parallel ranks may have become slow: "
        f"{jump.summary[0].lower()}{jump.summary[1:]}",
        episodes=jump.episodes,
        evidence=jump.evidence,
        actions=[
            *act(
                case,
                "Let every rank report, to see which one is slow",
                "enable-metrics-for-all-schedulers",
                True,
            ),
            *act(case, "Compare clocks and links of the GPUs"),
        ],
        severity=Severity.WARNING,
        confidence="low",
        competing="all GPUs slower (THR002)",
    )


_NO_ROOM = "no other server had room while requests waited here"


@rule(
    "LBL001",
    "servers-loaded-unevenly",
    severity=Severity.WARNING,
    needs=("kv_usage", "queue_req"),
    limits={
        "usage": Limit(0.35, "fraction", "difference of mean usage between servers"),
        "overlap_s": Limit(60.0, "s", "time that the logs must share"),
        "min_queue": Limit(1.0, "requests", "mean queue of the fuller server"),
    },
)
def servers_loaded_unevenly(case: Case, limits: Limits) -> Finding | Clear:
    """One server has a queue while another, at the same time, has room.

    What it flags:
        Logs of several servers that overlap in time by `overlap_s`, with mean usage apart by
        more than `usage` while requests wait on the fuller one. Reported on that server.
    Why it is slow:
        Requests wait for a server although another could take them.
    Not this rule:
        DP ranks of one server (DPI001). Servers of different size or purpose differ by design.
    What to do:
        Look at the router: policy, sticky sessions, cache affinity, weights.
    Source:
        The same comparison as DPI001, across files.
    """
    own = case.signals.session
    others = [
        s
        for s in case.sessions
        if s.session.source != own.source and s.session.role == own.role == "unified"
    ]
    if not others or own.start is None or own.end is None:
        raise NotApplicable("it is the log of a single server")
    if not any(rank.waits for rank in case.ranks):
        return Clear(_NO_ROOM)
    for other in others:
        there = other.session
        if there.start is None or there.end is None:
            continue
        start, end = max(own.start, there.start), min(own.end, there.end)
        length = (end - start).total_seconds()
        if length < limits["overlap_s"]:
            continue
        mine, theirs = _mean_load(case.data.batch, start, end), _mean_load(other.batch, start, end)
        if mine is None or theirs is None:
            continue
        if (
            mine[0] - theirs[0] > limits["usage"]
            and mine[1] >= limits["min_queue"]
            and theirs[1] < limits["min_queue"]
        ):
            rows, over_there = (
                batch.filter(pl.col("time").is_between(start, end)).with_columns_seq(
                    decode=pl.col("phase") == "decode"
                )
                for batch in (case.data.batch, other.batch)
            )
            return Finding(
                summary=f"{_file(own.source)} had usage {mine[0]:.2f} with {mine[1]:,.0f} "
                "waiting while "
                f"{_file(there.source)} had {theirs[0]:.2f} and none, for {duration(length)} "
                "that both logs cover",
                episodes=[
                    Episode(
                        start,
                        end,
                        int(rows["line_no"][0]),
                        int(rows["line_no"][-1]),
                        None,
                        own.source,
                    )
                ],
                evidence=[
                    shown(
                        f"mean usage of {_file(own.source)}",
                        mine[0],
                        "fraction",
                        Held.at(rows, 0),
                        f"mean of {these(rows)}, the time that both logs cover",
                        2,
                    ),
                    shown(
                        f"mean usage of {_file(there.source)}",
                        theirs[0],
                        "fraction",
                        Held.at(over_there, 0),
                        f"mean of {these(over_there)}, the time that both logs cover",
                        2,
                    ),
                ],
                actions=act(
                    case, "Look at the router: policy, sticky sessions, cache affinity, weights"
                ),
                severity=Severity.WARNING,
                confidence="medium" if length >= 300 else "low",
                competing="servers of different size or purpose differ by design",
            )
    return Clear(_NO_ROOM)


def _file(source: str) -> str:
    return PurePath(source).name


def _mean_load(batch: pl.DataFrame, start: datetime, end: datetime) -> tuple[float, float] | None:
    """Return mean usage and queue, each second weighing the same."""
    rows = (
        batch.filter(pl.col("time").is_between(start, end))
        .group_by(pl.col("time").dt.truncate("1s"))
        .agg(pl.col("kv_usage").mean(), pl.col("queue_req").mean())
        .select_seq(pl.col("kv_usage", "queue_req").mean())
    )
    usage, queue = rows.row(0)
    return None if usage is None or queue is None else (float(usage), float(queue))
