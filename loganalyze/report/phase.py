"""The phase plot: running requests against throughput, with the ceiling of the KV pool.

The founding diagnosis in one picture: throughput climbs along one curve, and the cloud of
points stops where no further request fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loganalyze.model import Capacity, Report
from loganalyze.report import charts
from loganalyze.report.charts import coarsen, ms, nice

#: Fewer points are no cloud: a server under one constant load is a single dot.
_FEWEST = 8
#: Levels of what fits that are drawn, the lowest first; each session may have its own.
_CEILINGS = 4

#: Room that a character of a ceiling's label takes on a phone: a share of the width.
_CHAR = 0.021


class Ceiling(NamedTuple):
    """A number of running requests that cannot be passed, and on which side its label stands."""

    x: float
    label: str
    side: Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Phase:
    """Running requests against throughput: one point a bin, coloured by its time.

    `age` runs from 0 (first) to 1 (last). `model` is the fitted curve, where there is one.
    Of several ranks it is the one that the verdict speaks of; `rank` names it. `passes`: at
    times more ran than what fits at the usual length. `undrawn` counts higher levels of what
    fits that have no line.
    """

    x: Sequence[float]
    y: Sequence[float]
    at: Sequence[float]
    age: Sequence[float]
    first_line: Sequence[int]
    top_x: float
    top_y: float
    ceilings: Sequence[Ceiling]
    passes: bool
    model: Sequence[tuple[float, float]]
    at_ceiling: float | None
    rank: str = ""
    undrawn: int = 0


def lay_out(report: Report, factor: int = 1) -> Phase | None:
    """Lay out the phase plot; None with fewer than eight points that differ."""
    by_time = any(s.start for s in report.series)
    rows: list[tuple[float, float, float, int, int]] = []
    only, of = charts.worst(report), charts.key_of(report)
    for raw in report.series:
        if only and of(raw) != only:
            continue
        s = coarsen(raw, factor)
        running, speed = s.columns.get("running_req"), s.columns.get("gen_throughput")
        if not running or not speed or bool(s.start) != by_time:
            continue
        for i, (r, g) in enumerate(zip(running.mean, speed.mean, strict=True)):
            if r is not None and g is not None:
                x = ms(s.start) + s.x[i] * s.step * 1_000 if s.start else float(s.first_line[i])
                rows.append((r, g, x, s.first_line[i], s.session))
    if len({row[:2] for row in rows}) < _FEWEST:
        return None
    rows.sort(key=lambda row: row[2])
    first, last = rows[0][2], rows[-1][2]
    peak = max(r[0] for r in rows)
    used = {r[4] for r in rows}
    fits = {s.id: s.capacity.requests_fit for s in report.sessions if s.id in used}
    levels = sorted({f for f in fits.values() if f and f <= 3 * peak})
    caps = {s.capacity.max_running_req for s in report.sessions if s.id in used}
    marks = [(float(f), f"{f:,} fit") for f in levels[:_CEILINGS]]
    marks += [(float(c), f"cap {c:,}") for c in sorted(c for c in caps if c and c <= 1.5 * peak)]
    top_x = nice(max([peak, *(x for x, _ in marks)]) * 1.04)
    near = [r for r in rows if (f := fits.get(r[4])) and r[0] >= 0.8 * f]
    known = [r for r in rows if fits.get(r[4])]
    model = _phase_model(report, top_x) if len(used) == 1 else []
    return Phase(
        x=[r[0] for r in rows],
        y=[r[1] for r in rows],
        at=[r[2] for r in rows],
        age=[(r[2] - first) / (last - first) if last > first else 0.0 for r in rows],
        first_line=[r[3] for r in rows],
        top_x=top_x,
        top_y=nice(max([*(r[1] for r in rows), 1e-9]) * 1.04),
        ceilings=_beside(sorted(marks), top_x),
        passes=any(r[0] > f for r in rows if (f := fits.get(r[4]))),
        model=model,
        at_ceiling=len(near) / len(known) if known else None,
        rank=charts.rank_name(report, only) if only else "",
        undrawn=max(0, len(levels) - _CEILINGS),
    )


def _beside(marks: Sequence[tuple[float, str]], top_x: float) -> list[Ceiling]:
    """Put each label right of its line, or left where it would leave the figure or meet a line."""
    out = []
    for x, label in marks:
        end = x + _CHAR * len(label) * top_x
        free = end <= top_x and not any(x < other < end for other, _ in marks)
        out.append(Ceiling(x, label, "right" if free else "left"))
    return out


def _phase_model(report: Report, top_x: float) -> list[tuple[float, float]]:
    """Return throughput over running requests when each holds the usual number of tokens."""
    c = report.sessions[0].capacity if len(report.sessions) == 1 else Capacity()
    m, per_req = c.step_model, c.tokens_per_req
    if not (m and m.identified and per_req):
        return []
    at = [top_x * i / 40 for i in range(1, 41)]
    steps = [m.t0_s + (m.a_s + m.b_s * per_req) * r for r in at]
    return [(r, r / s) for r, s in zip(at, steps, strict=True) if s > 0]
