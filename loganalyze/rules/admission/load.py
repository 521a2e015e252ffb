"""CLI001, CLI002 and OVR001: what the clients ask for, against what the server can do."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.lengths import duration
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    cells_of,
    confidence,
    hold,
    outside,
    over_ranks,
    shown,
    spell,
    sum_of,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


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
        Nothing is slow: throughput is what the load asks for. A constant number of running
        requests means a client with that many workers.
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
        worst.averaged("running requests", "running", "running", "requests", 1),
        worst.averaged("mean usage", "usage", "kv_usage", "fraction", 2),
    ]
    model = worst.rank.model
    token = worst.mean("token")
    twice = "decode throughput with twice the requests"
    if constant and model is not None and not model.identified:
        evidence.append(shown(twice, f"cannot tell from this log: {model.note}"))
    elif constant and model is not None and token is not None:
        step = model.t0_s + model.a_s * mean + model.b_s * token
        doubled = model.t0_s + 2 * model.a_s * mean + 2 * model.b_s * token
        evidence.append(
            shown(
                twice,
                2 * step / doubled,
                "x",
                (None, None),
                "2 x step(R, T) / step(2 R, 2 T) of the fitted model",
                2,
            )
        )
    workers = (
        f"; their number hardly moves, as with a client of {mean:,.0f} workers" if constant else ""
    )
    return Finding(
        summary=f"The server could take more {spell(case, found)}: {mean:,.0f} running, none "
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
    held_in = [(max(0, first - size), end) for first, end in ends]
    found = [Held(one, _within(held_in, one.grid.height)) for one in case.ranks]
    held = mean.filter(flat)
    clients = as_float(held.median(), 0.0)
    # Of the same time: what ran before it may have been another load.
    done = sum(one.total("completed") for one in found) / found[0].seconds
    evidence = [
        shown(
            "clients",
            clients,
            "requests",
            # The sum over ranks is printed on no line.
            found[0].line("queue_req") if len(found) == 1 else (None, None),
            "running + waiting, "
            + (f"sum over {len(found)} ranks, " if len(found) > 1 else "")
            + "median of 5 min means",
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
                "clients / completions per second of that time",
                1,
            )
        )
    return Finding(
        summary=f"A closed-loop client with about {clients:,.0f} workers: running + waiting is "
        f"constant {spell(case, found)}",
        episodes=over_ranks(found, held_in),
        evidence=evidence,
        actions=act(case, "Do not add workers: they would only wait"),
        severity=Severity.INFO,
        confidence=confidence(case, found),
        competing="open arrivals at a very even rate, by chance",
    )


def _within(found: Sequence[Span], height: int) -> list[Span]:
    """Return the spans as far as they lie within a grid."""
    return [(first, min(end, height)) for first, end in found if first < height]


def _all_ranks(case: Case) -> pl.DataFrame:
    """Return {c, queue} per cell over all ranks: running + waiting, and waiting requests."""
    columns = {"c": pl.col("running") + pl.col("queue"), "queue": pl.col("queue")}
    if len(case.ranks) == 1:
        return case.ranks[0].grid.select_seq(**columns)
    return pl.DataFrame({name: sum_of(case.ranks, value) for name, value in columns.items()})


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
        A queue that rises steadily by at least `growth` over `window_s`, from where it was last
        at its lowest in the first of these windows to where it is longest.
    Why it is slow:
        In an open loop each request waits longer than the one before it.
    Not this rule:
        A closed loop (CLI002), whose queue is bounded by the number of workers.
    What to do:
        More capacity, or refuse early.
    Source:
        Arrivals = completions + growth of the queue and of the running batch.
    """
    if case.signals.span_s < limits["window_s"]:
        raise NotApplicable(f"it covers less than {limits['window_s']:.0f} s")
    if "CLI002" in case.earlier:
        return Clear("running + waiting is constant: a closed loop, whose queue cannot grow")

    def judge(rank: Rank) -> list[Span]:
        size = rank.cells(limits["window_s"])
        q = rank.grid["queue"].cast(pl.Float64).rolling_mean(rank.cells(15), min_samples=1)
        frame = pl.DataFrame({"t": rank.grid["t"], "q": q}).with_columns_seq(
            corr=pl.rolling_corr("t", "q", window_size=size, min_samples=size // 2),
            rise=pl.col("q") - pl.col("q").shift(size - 1),
        )
        up = frame.select_seq(
            (
                (pl.col("corr") > 0)
                & (pl.col("corr") ** 2 >= limits["fit"])
                & (pl.col("rise") >= limits["growth"])
            ).fill_null(False)
        ).to_series()
        return [
            (begin, begin + int(q[begin:end].arg_max() or 0) + 1)
            for first, end in joined(spans(up), size)
            for begin in [_onset(q, first, size)]
        ]

    found = hold(case.ranks, judge)
    if not found:
        return Clear(f"the queue never rose steadily for {duration(limits['window_s'])}")
    rank, (first, end) = max(
        ((held.rank, span) for held in found for span in held.spans),
        key=lambda one: _gained(one[0], "queue", one[1]),
    )
    worst = Held(rank, [(first, end)])
    rise, more = (
        _gained(rank, column, (first, end)) / worst.seconds for column in ("queue", "running")
    )
    last = as_float(rank.grid["queue"][end - 1], 0.0)
    done = worst.total("completed") / worst.seconds
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
            "arrivals",
            (done + rise + more) * 60,
            "requests/min",
            (None, None),
            f"completions + growth of the queue + growth of running requests ({more * 60:+.1f})",
            1,
        ),
    ]
    if done > 0:
        evidence.append(
            shown(
                "time to drain the queue without arrivals",
                last / done,
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
        f"{rise * 60:.{0 if rise * 60 >= 10 else 1}f} a minute",
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
        competing="a closed loop (CLI002) excluded: running + waiting is not constant",
    )


def _gained(rank: Rank, column: str, span: Span) -> float:
    """Return by how many requests a count grew from the first cell of a span to the last."""
    known = rank.grid[column][span[0] : span[1]].drop_nulls()
    return as_float(known[-1], 0.0) - as_float(known[0], 0.0) if known.len() else 0.0


def _onset(queue: pl.Series, risen: int, size: int) -> int:
    """Return the cell in which a rise begins that fills the window of `size` cells up to `risen`.

    A queue of none that grows fast towards the window's end looks straight enough over all of
    it: the rise begins after the last cell in which the queue was at its lowest.
    """
    before = queue[max(0, risen - size + 1) : risen + 1].round(3)
    return risen - int(before.reverse().arg_min() or 0) + 1
