"""GRF001: decode steps run without a CUDA graph."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Action, Evidence, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    alike,
    all_episodes,
    cells_of,
    confidence,
    hold,
    minimum,
    shown,
    spell,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float

#: Flags that switch the graphs of decode steps off, and those that set the largest one.
_DISABLE = ("disable-cuda-graph", "disable-decode-cuda-graph")
_LARGEST = ("cuda-graph-max-bs-decode", "cuda-graph-max-bs")

#: Graphs are captured up to so many requests at least, by default, on the smallest GPUs.
_SMALLEST_DEFAULT = 8

#: Steps are of like batches where running requests and KV tokens differ by no more than this.
_ALIKE_RUNNING, _ALIKE_TOKENS = 0.1, 0.2
#: So many of them on each side tell what the graph saves.
_ENOUGH = 3


@rule(
    "GRF001",
    "cuda-graph-off",
    severity=Severity.WARNING,
    needs=("cuda_graph", "running_req"),
    limits={
        "report_s": Limit(15.0, "s", "shortest spell"),
        "share": Limit(0.5, "fraction", "share of decode lines without a graph"),
        "join_s": Limit(10.0, "s", "holes up to this long are closed"),
    },
    explains=("THR002",),
    at_once=True,
)
def cuda_graph_off(case: Case, limits: Limits) -> Finding | Clear:
    """Decode steps run without a CUDA graph.

    What it flags:
        Two or more decode lines that print `cuda graph: False`, for `report_s` or longer.
        Prefill lines print it too from 0.5.9 and are False as a rule: they do not count, and
        neither do lines next to another DP rank's prefill, unless more requests run than ever
        with a graph.
    Why it is slow:
        Without a captured graph each kernel of each step is launched from Python.
    Not this rule:
        A DP rank that waits for another rank's prefill runs without a graph for single steps.
    What to do:
        Capture graphs up to the batch size that is reached, or cap running requests at the
        largest captured size; take off --disable-cuda-graph unless a fault makes it necessary.
    Source:
        CudaGraphRunner.can_run: batch size beyond cuda_graph_max_bs, or a mixed DP step.
    """

    def judge(rank: Rank) -> list[Span]:
        without = rank.grid["graph_off"] > 0.5
        if not without.any():
            return []
        without = without & ~_others_prefill(case, rank)
        off = rank.holds(without, limits["share"], 5.0)
        found = at_least(
            joined(spans(off), rank.cells(limits["join_s"])),
            minimum(case, limits["report_s"]) / rank.step_s,
        )
        return found if Held(rank, found).decode.height > 1 else []

    disabled = next((flag for flag in _DISABLE if case.arg(flag.replace("-", "_"))), None)
    if disabled and case.excerpt:
        return Clear(f"CUDA graphs are disabled by --{disabled}")
    found = hold(case.ranks, judge)
    if not found:
        return Clear("decode steps ran with a graph")
    worst = found[0]
    said = spell(case, found, ~pl.col("cuda_graph"), of="decode")
    off = worst.decode.filter(~pl.col("cuda_graph"))
    on = worst.rank.lines.filter(pl.col("decode") & pl.col("cuda_graph"))
    least_off, most_on = as_float(off["running_req"].min()), as_float(on["running_req"].max())
    where = Held.at(off, 0) if off.height else (None, None)
    evidence = [
        shown("fewest running requests without a graph", least_off, "requests", where),
        shown("most running requests with a graph", most_on, "requests", (None, None)),
    ]
    if on.height:
        evidence.append(_slower(worst.rank, on, off))
    need = int(as_float(off["running_req"].max(), 0.0))
    set_to = case.arg("cuda_graph_max_bs") or case.arg("cuda_graph_max_bs_decode")
    cap = set_to if isinstance(set_to, int) else None
    by_size = ""
    if least_off is not None and most_on is not None and least_off > most_on:
        by_size = _beyond(least_off, most_on, cap)
    actions: list[Action] = []
    if disabled or not (on.height or case.arg("disable_cuda_graph") is False):
        actions += act(
            case,
            "Start the server with CUDA graphs, unless they fail to be captured",
            disabled or _DISABLE[0],
            False,
        )
    largest: list[Action] = []
    too_small = on.height or least_off is None or least_off > _SMALLEST_DEFAULT
    for flag in _LARGEST if too_small and not disabled else ():
        largest = largest or act(
            case,
            "Capture graphs up to the batch size that is reached",
            flag,
            need,
            "about 2 MB of GPU memory per batch size",
        )
    actions += largest
    if cap and not disabled:
        actions += act(
            case,
            "Or cap running requests at the largest captured batch size",
            "max-running-requests",
            cap,
            present=worst.rank.cap,
        )
    return Finding(
        summary=f"Decode steps run without a CUDA graph {said}: "
        + (
            f"--{disabled} is set"
            if disabled
            else by_size or f"{worst.mean('running') or 0:,.0f} requests run"
        ),
        episodes=all_episodes(found),
        evidence=evidence,
        actions=actions,
        severity=Severity.WARNING,
        confidence=confidence(case, found, config=True),
        competing="graphs that failed to be captured excluded: the flag is set"
        if disabled
        else "other DP ranks in prefill excluded: so many never ran with a graph"
        if by_size
        else "graphs disabled or failed to capture, or other DP ranks in prefill",
    )


def _beyond(least_off: float, most_on: float, cap: int | None) -> str:
    """Say that more requests run than the graphs are for: the largest graph, where it is known.

    The most that ran with a graph may be the load of that time, far below the largest graph.
    """
    if cap is not None and most_on <= cap < least_off:
        return f"more than {cap:,} requests run, the largest captured batch size"
    return f"{least_off:.0f} or more requests run, and at most {most_on:.0f} ran with a graph"


def _slower(rank: Rank, on: pl.DataFrame, off: pl.DataFrame) -> Evidence:
    """Return what a step takes without a graph over one with, among steps of like batches.

    Measured steps alone: the model's step at a batch that never ran with a graph is a guess.
    Prefill between steps takes time that no graph saves.
    """
    label = "step time without a graph over that with one"
    without, by_size = (
        rows.filter(
            (pl.col("dt_s") > 0)
            & (pl.col("last_prefill") == 0)
            & ~(pl.col("after_gap") | pl.col("emptied"))
            & (pl.col("r_mean") > 0)
            & (pl.col("t_mean") > 0)
        )
        .with_columns_seq(
            step=pl.col("dt_s") / rank.timeline.interval,
            r=pl.col("r_mean").log(),
            t=pl.col("t_mean").cast(pl.Float64).log(),
        )
        .sort("r")
        for rows in (off, on)
    )
    with_one = by_size.group_by("r", maintain_order=True).agg(
        pl.col("step", "t").median(), size=pl.col("r_mean").first(), n=pl.len()
    )
    pairs = without.join_asof(
        with_one, on="r", strategy="nearest", tolerance=_ALIKE_RUNNING, suffix="_on"
    ).filter((pl.col("t") - pl.col("t_on")).abs() <= _ALIKE_TOKENS)
    sizes = pairs.unique("size")
    n_on = int(sizes["n"].sum())
    if min(pairs.height, n_on) < _ENOUGH:
        return shown(
            label,
            "cannot tell from this log: too few steps of like batches, without prefill between "
            "them, ran with and without one",
        )
    ratio = pl.col("step") / pl.col("step_on")
    value = as_float(pairs.select_seq(ratio.median()).item(), 0.0)
    low, high = (_range(rows[name]) for rows, name in ((sizes, "size"), (pairs, "r_mean")))
    return shown(
        label,
        value,
        "x",
        alike(pairs, ratio, value),
        f"median; steps without prefill between: {pairs.height} lines at {high} running, without, "
        f"against {n_on} at {low}, with",
        2,
    )


def _range(values: pl.Series) -> str:
    low, high = as_float(values.min(), 0.0), as_float(values.max(), 0.0)
    return f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"


def _others_prefill(case: Case, rank: Rank) -> pl.Series:
    """Return where another rank's prefill may have kept a step of this rank from its graph.

    Ranks step together: while one is in prefill, all run without a graph. More requests than
    ran with a graph at any time are a reason of their own.
    """
    tallest = max(case.ranks, key=lambda one: one.grid.height)
    prefills = tallest.never
    for other in case.ranks:
        if other is not rank:
            theirs = other.grid["n_prefill"] > 0
            prefills = prefills | cells_of(tallest, theirs, beyond=False)
    # A prefill at the edge of a cell keeps a step of the next one from its graph.
    near = prefills | prefills.shift(1) | prefills.shift(-1)
    busy = cells_of(rank, near.fill_null(False))
    with_graph = pl.col("decode") & pl.col("cuda_graph")
    on = rank.lines.select_seq(pl.col("running_req").filter(with_graph).max()).item()
    if on is not None:
        busy = busy & (rank.grid["running"] <= as_float(on, 0.0)).fill_null(True)
    return busy
