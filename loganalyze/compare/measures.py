"""What a change did: each measure on both sides, over what is alike on both.

A server under more load does more, so a plain mean says little. Throughput, running and
waiting requests, retractions and saturated time are compared at equal load; usage at equal
running requests; the rate of one request at equal running requests and KV tokens. What is
not alike is said not to be comparable, with the numbers that tell so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from loganalyze.compare import intervals
from loganalyze.compare.intervals import Match, Mean
from loganalyze.compare.settled import Settled
from loganalyze.model import ChangeVerdict, Difference, Interval, StepModel
from loganalyze.signals import Signals

#: Less settled time than this says nothing about a server that works in waves.
SHORTEST_S = 120.0

#: Loads are alike if this part of the time has its like on the other side ...
_LOAD_SHARE = 0.3
#: ... or arrivals differ by less than this factor, ...
_ARRIVALS = 1.1
#: ... or requests wait on both sides for this share of the time.
_WAITING_SHARE = 0.8
#: Lines of the same running requests and tokens, as a share of both sides.
_LINES_SHARE = 0.1

#: Requests are of another kind if their length differs by this factor, beyond chance.
_LENGTHS = 1.25
#: Above this share of retracted requests, prefill tokens say little about prompts.
_RETRACTED = 0.02

#: Widths of bins: upper / lower edge.
_LOAD_BIN, _RUNNING_BIN, _TOKEN_BIN = 1.15, 1.25, 1.5

#: Changes smaller than this are not called, however certain: printed values are rounded, and
#: the step model is no truth.
_SMALLEST_RATIO = 0.01
_SMALLEST = {
    "waiting": 0.5,
    "usage": 0.01,
    "retractions": 0.1,
    "hit_rate": 0.01,
    "saturated": 0.02,
}
_LESS_IS_BETTER = frozenset({"waiting", "usage", "retractions", "saturated"})

_LABELS = {
    "throughput": ("throughput at equal load", "token/s"),
    "rate_per_req": ("rate per request at equal running requests and tokens", "token/s"),
    "running": ("running requests at equal load", "requests"),
    "usage": ("KV usage at equal load", "fraction"),
    "waiting": ("waiting requests at equal load", "requests"),
    "retractions": ("retracted requests per minute at equal load", "per min"),
    "hit_rate": ("prefix cache hit rate", "fraction"),
    "saturated": ("share of time saturated at equal load", "fraction"),
}
_LOAD_LABELS = {
    "in_system": ("requests in the system (running + waiting)", "requests"),
    "arrivals": ("arrivals", "per min"),
    "prompt_tokens": ("prompt tokens per request", "tokens"),
    "output_tokens": ("output tokens per request", "tokens"),
}


@dataclass(frozen=True)
class Run:
    """One side: its signals and settled time."""

    signals: Signals
    settled: Settled

    @property
    def cells(self) -> pl.DataFrame:
        """Settled cells."""
        return self.settled.cells


@dataclass(frozen=True, slots=True)
class _Basis:
    """What was held equal: a match, or the reason why there is none."""

    match: Match | None
    text: str


def levels(run: Run) -> dict[str, float | None]:
    """Return the means of a side's settled time, not made equal to anything."""
    c = run.cells
    prompt = _sum(c, "new_token") + _sum(c, "cached_token")
    minutes = run.settled.seconds / 60
    return {
        "throughput": _average(c, "rate"),
        "running": _average(c, "running"),
        "waiting": _average(c, "waiting"),
        "usage": _average(c, "usage"),
        "retractions": _sum(c, "retracted") / minutes if minutes else None,
        "hit_rate": _sum(c, "cached_token") / prompt if prompt else None,
        "saturated": _average(c, "saturated"),
    }


def incomparable(before: Run | None, after: Run | None) -> str:
    """Return why nothing can be compared; empty where something can."""
    for side, run in (("before", before), ("after", after)):
        if run is None:
            return f"the log {side} has no statistics lines with a clock"
        if run.settled.seconds < SHORTEST_S:
            return (
                f"only {run.settled.seconds:.0f} s of the log {side} are left without warm-up, "
                f"pauses and end; {SHORTEST_S:.0f} s are needed"
            )
    assert before is not None
    assert after is not None
    roles = before.signals.session.role, after.signals.session.role
    if roles[0] != roles[1]:
        return f"a {roles[0]} server before, a {roles[1]} server after"
    return ""


def none(reason: str) -> list[Difference]:
    """Return every measure as not comparable for one reason."""
    return [_cannot(name, reason) for name in _LABELS]


def load(before: Run, after: Run) -> list[Difference]:
    """Return the load on both sides: conditions of the comparison, not results."""
    step = before.settled.step_s
    retracted = max(
        _sum(run.cells, "retracted") / max(1.0, _sum(run.cells, "started"))
        for run in (before, after)
    )
    found = []
    for name, x, w in (
        ("in_system", pl.col("in_system"), pl.lit(1.0)),
        (
            "arrivals",
            60 * (pl.col("started") - pl.col("retracted") + pl.col("d_waiting")),
            pl.lit(step),
        ),
        ("prompt_tokens", pl.col("new_token") + pl.col("cached_token"), pl.col("started")),
        ("output_tokens", pl.col("decoded"), pl.col("completed")),
    ):
        if name == "prompt_tokens" and retracted > _RETRACTED:
            reason = "retracted requests are prefilled again, with their output"
            found.append(_cannot(name, reason))
            continue
        both = [intervals.mean(_plain_rows(run, x, w), {0: 1.0}) for run in (before, after)]
        found.append(_condition(name, both))
    return found


def _condition(name: str, both: Sequence[Mean | None]) -> Difference:
    one, other = both
    label, unit = _LOAD_LABELS[name]
    effect = intervals.ratio(one, other) if one and other else None
    if not effect or not one or not other:
        return _cannot(name, "these logs do not print it")
    alike = effect.low <= 1 <= effect.high or abs(math.log(effect.mid)) <= math.log(_ARRIVALS)
    return Difference(
        name=name,
        label=label,
        unit=unit,
        before=one.value,
        after=other.value,
        kind="ratio",
        effect=effect,
        verdict="no difference shown" if alike else "differs",
        reason=""
        if alike
        else f"{label}: {_number(one.value)} before, {_number(other.value)} after",
    )


def differences(before: Run, after: Run, conditions: Sequence[Difference]) -> list[Difference]:
    """Return what changed, throughput first.

    Args:
        before: one side; comparable.
        after: the other.
        conditions: their `load`.
    """
    mix = _other_mix(conditions)
    basis = _Basis(None, mix) if mix else _equal_load(before, after, conditions)
    runs = (before, after)
    prompts = _sum(before.cells, "new_token") + _sum(after.cells, "new_token")
    rate = pl.col("rate")
    if before.signals.session.role == "prefill":
        rate = (pl.col("new_token") + pl.col("cached_token")) / before.settled.step_s
    throughput = _at("throughput", runs, basis, rate)
    running = _at("running", runs, basis, pl.col("running"))
    if before.signals.session.role == "prefill":
        throughput = replace(throughput, label="prefilled tokens at equal load")
    return [
        throughput,
        _rate_per_req(before, after),
        running,
        _usage(runs, basis, throughput, running),
        _at("waiting", runs, basis, pl.col("waiting")),
        _retractions(before, after, basis),
        _hit_rate(before, after, mix) if prompts else _cannot("hit_rate", "no prefill lines"),
        _at("saturated", runs, basis, pl.col("saturated")),
    ]


# -- what is held equal -------------------------------------------------------------------


def _other_mix(conditions: Sequence[Difference]) -> str:
    """Return how the requests of both sides differ in length; empty where they do not."""
    for one in conditions:
        if one.name not in ("prompt_tokens", "output_tokens") or one.effect is None:
            continue
        sure = not one.effect.low <= 1 <= one.effect.high
        if sure and abs(math.log(one.effect.mid)) > math.log(_LENGTHS):
            return f"the requests differ: {one.reason}"
    return ""


def _equal_load(before: Run, after: Run, conditions: Sequence[Difference]) -> _Basis:
    """Choose what makes the load equal: requests in the system, arrivals, or full queues."""
    one, other = before.cells, after.cells
    found = intervals.match(one, other, {"in_system": _LOAD_BIN})
    if found.share >= _LOAD_SHARE:
        kept = one.filter(found.before.is_in(list(found.weights)))["in_system"]
        span = f"{_number(_low(kept))} to {_number(_high(kept))}"
        return _Basis(found, f"at equal numbers of requests in the system ({span})")
    named = {c.name: c for c in conditions}
    arrivals = named["arrivals"]
    if arrivals.effect and abs(math.log(arrivals.effect.mid)) <= math.log(_ARRIVALS):
        per_min = f"{_number(arrivals.before)} and {_number(arrivals.after)}"
        return _Basis(_whole(before, after), f"at equal arrivals per minute ({per_min})")
    queued = [float((c["waiting"] > 0).mean() or 0.0) for c in (one, other)]  # type: ignore[arg-type]
    if min(queued) >= _WAITING_SHARE:
        waits = pl.when(pl.col("waiting") > 0).then(pl.lit(0, pl.Int64)).alias("bin")
        both = Match(one.select(waits)["bin"], other.select(waits)["bin"], {0: 1.0}, min(queued))
        return _Basis(both, "while requests waited on both sides")
    system = named["in_system"]
    return _Basis(
        None,
        f"the load differs: {_number(system.before)} requests in the system before, "
        f"{_number(system.after)} after",
    )


def _whole(before: Run, after: Run) -> Match:
    zeros = [pl.repeat(0, r.cells.height, eager=True, dtype=pl.Int64) for r in (before, after)]
    return Match(zeros[0], zeros[1], {0: 1.0}, 1.0)


# -- the measures -------------------------------------------------------------------------


def _at(name: str, runs: tuple[Run, Run], basis: _Basis, value: pl.Expr) -> Difference:
    """Compare the mean of a value of the cells, on what was held equal."""
    if basis.match is None:
        return _cannot(name, basis.text)
    one, other = _means(runs, basis.match, value, pl.lit(1.0))
    if one is None or other is None:
        return _cannot(name, "the logs do not print it")
    return _judged(name, one, other, basis.text)


def _retractions(before: Run, after: Run, basis: _Basis) -> Difference:
    """Compare retracted requests per minute; few of them are no more certain than a count."""
    if basis.match is None:
        return _cannot("retractions", basis.text)
    value = 60 * pl.col("retracted")
    both = _means((before, after), basis.match, value, pl.lit(before.settled.step_s))
    one, other = (
        intervals.at_least_counted(m, _sum(r.cells, "retracted"), r.settled.seconds / 60)
        if m
        else None
        for m, r in zip(both, (before, after), strict=True)
    )
    if one is None or other is None:
        return _cannot("retractions", "too few lines at equal load")
    found = _judged("retractions", one, other, basis.text)
    if not one.value and not other.value:
        return replace(found, reason="none on either side")
    return found


def _hit_rate(before: Run, after: Run, mix: str) -> Difference:
    if mix:
        return _cannot("hit_rate", mix)
    x, w = pl.col("cached_token"), pl.col("cached_token") + pl.col("new_token")
    one, other = (intervals.mean(_plain_rows(run, x, w), {0: 1.0}) for run in (before, after))
    if one is None or other is None:
        return _cannot("hit_rate", "too few prefill lines")
    return _judged("hit_rate", one, other, "over all prefill lines of the time compared")


def _usage(
    runs: tuple[Run, Run], basis: _Basis, throughput: Difference, running: Difference
) -> Difference:
    """Compare usage. Less of it is room to spare, unless it is less work; and the reverse."""
    found = _at("usage", runs, basis, pl.col("usage"))
    same_way = {"better": "worse", "worse": "better"}.get(found.verdict)
    for one in (throughput, running):
        if same_way and one.verdict == same_way:
            return replace(found, verdict="differs", reason=f"as {one.label} does")
    return found


def _rate_per_req(before: Run, after: Run) -> Difference:
    """Compare decode rates of intervals with the same running requests and KV tokens.

    Lines are matched in coarse bins; the step model of one side takes out what is left of
    running requests and tokens within a bin, and the prefill work of the interval.
    """
    name = "rate_per_req"
    model = before.signals.capacity.step_model or after.signals.capacity.step_model
    one, other = _decode_lines(before, model), _decode_lines(after, model)
    if min(one.height, other.height) < 2 * intervals.BATCHES:
        return _cannot(name, "too few decode lines in a steady batch")
    widths = {"r": _RUNNING_BIN, "t": _TOKEN_BIN}
    if max(len(run.signals.ranks) for run in (before, after)) > 1:
        widths["all"] = _RUNNING_BIN  # data-parallel ranks step together
    found = intervals.match(one, other, widths)
    if found.share < _LINES_SHARE:
        return _cannot(
            name,
            f"running requests and KV tokens differ: {_span(one['r'])} with {_span(one['t'])} "
            f"tokens before, {_span(other['r'])} with {_span(other['t'])} after",
        )

    def level(rows: pl.DataFrame, bins: pl.Series, column: str) -> Mean | None:
        return intervals.mean(
            rows.select(x=column, w=pl.lit(1.0), stratum=pl.lit(bins)), found.weights
        )

    logs = level(one, found.before, "log_rate"), level(other, found.after, "log_rate")
    plain = level(one, found.before, "rate")
    if logs[0] is None or logs[1] is None or plain is None:
        return _cannot(name, "too few decode lines alike")
    log_effect = intervals.difference(logs[0], logs[1])
    effect = Interval(*(math.exp(v) for v in (log_effect.low, log_effect.mid, log_effect.high)))
    label, unit = _LABELS[name]
    return Difference(
        name=name,
        label=label,
        unit=unit,
        before=plain.value,
        after=plain.value * effect.mid,
        kind="ratio",
        effect=effect,
        verdict=_verdict(name, effect),
        reason=f"on {100 * found.share:.0f}% of the decode lines, which have their like",
    )


def _decode_lines(run: Run, model: StepModel | None) -> pl.DataFrame:
    """Return the clean intervals of all ranks.

    Columns: `rate` (token/s per request), `log_rate` (its logarithm, less what the model
    explains), `r` and `t` (running requests and KV tokens of the rank), `all` (running requests
    of the server).
    """
    parts = []
    settled = run.cells.select("cell", all=pl.col("running").cast(pl.Float64))
    for rank in run.signals.ranks:
        cell = (pl.col("t") / rank.step_s).floor().cast(pl.Int64).alias("cell")
        rows = rank.lines.filter(
            pl.col("decode")
            & (pl.col("dt_s") > 0)
            & (pl.col("r_mean") > 0)
            & ~pl.col("first")
            & ~pl.col("after_gap")
            & ~pl.col("emptied")
            & (pl.col("r_change") <= 0.3)
        )
        rows = rows.with_columns(cell).join(settled, on="cell", maintain_order="left")
        n = rank.timeline.interval
        if model is not None:
            step = (
                model.t0_s
                + model.a_s * pl.col("r_mean")
                + model.b_s * pl.col("t_mean").fill_null(0)
            )
            prefill = model.p0_s * pl.col("n_prefill") + model.p1_s * pl.col("d_new_token")
            explained = (step + prefill / n).log()
        else:
            rows = rows.filter(pl.col("n_prefill") == 0)
            explained = pl.lit(0.0)
        rate = pl.col("gen_throughput") / pl.col("r_mean")
        parts.append(
            rows.select(
                rate=rate,
                log_rate=rate.log() + explained,
                r=pl.col("r_mean").cast(pl.Float64),
                t=pl.col("t_mean").fill_null(1).cast(pl.Float64),
                all="all",
            )
        )
    return pl.concat(parts)


# -- small things -------------------------------------------------------------------------


def _means(
    runs: tuple[Run, Run], found: Match, x: pl.Expr, w: pl.Expr
) -> tuple[Mean | None, Mean | None]:
    one, other = (
        intervals.mean(
            run.cells.select(x=x.cast(pl.Float64), w=w, stratum=pl.lit(bins)), found.weights
        )
        for run, bins in zip(runs, (found.before, found.after), strict=True)
    )
    return one, other


def _plain_rows(run: Run, x: pl.Expr, w: pl.Expr) -> pl.DataFrame:
    return run.cells.select(
        x=x.cast(pl.Float64), w=w.cast(pl.Float64), stratum=pl.lit(0, pl.Int64)
    )


def _judged(name: str, before: Mean, after: Mean, reason: str) -> Difference:
    label, unit = _LABELS[name]
    kind = _kind(name)
    effect: Interval | None
    if kind == "ratio":
        effect = intervals.ratio(before, after)
    else:
        effect = intervals.difference(before, after)
    if effect is None:
        return _cannot(name, "one side shows none of it")
    return Difference(
        name=name,
        label=label,
        unit=unit,
        before=before.value,
        after=after.value,
        kind=kind,
        effect=effect,
        verdict=_verdict(name, effect),
        reason=reason,
    )


def _kind(name: str) -> Literal["ratio", "difference"]:
    return "difference" if name in _SMALLEST else "ratio"


def _verdict(name: str, effect: Interval) -> ChangeVerdict:
    neutral = 1.0 if _kind(name) == "ratio" else 0.0
    smallest = _SMALLEST.get(name, _SMALLEST_RATIO)
    if effect.low <= neutral <= effect.high or abs(effect.mid - neutral) < smallest:
        return "no difference shown"
    return "better" if (effect.mid > neutral) == (name not in _LESS_IS_BETTER) else "worse"


def _cannot(name: str, reason: str) -> Difference:
    label, unit = {**_LABELS, **_LOAD_LABELS}[name]
    return Difference(name, label, unit, None, None, _kind(name), None, "not comparable", reason)


def _sum(cells: pl.DataFrame, column: str) -> float:
    return float(cells[column].sum() or 0.0)


def _average(cells: pl.DataFrame, column: str) -> float | None:
    value = cells[column].mean()
    return float(value) if isinstance(value, int | float) else None


def _low(values: pl.Series) -> float:
    return float(values.quantile(0.02) or 0.0)


def _high(values: pl.Series) -> float:
    return float(values.quantile(0.98) or 0.0)


def _span(values: pl.Series) -> str:
    return f"{_number(_low(values))} to {_number(_high(values))}"


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"
