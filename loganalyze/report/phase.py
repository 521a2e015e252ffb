"""The phase plot: running requests against throughput, with the ceiling of the KV pool.

The founding diagnosis in one picture: throughput climbs along one curve, and the cloud of
points stops where no further request fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loganalyze.model import Capacity, Report
from loganalyze.report import charts
from loganalyze.report.charts import coarsen, ms, nice

#: Fewer points are no cloud: a server under one constant load is a single dot.
_FEWEST = 8


@dataclass(frozen=True, slots=True)
class Phase:
    """Running requests against throughput: one point a bin, coloured by its time.

    `age` runs from 0 (first) to 1 (last). `model` is the fitted curve, where there is one.
    Of several ranks it is the one that the verdict speaks of; `rank` names it.
    """

    x: Sequence[float]
    y: Sequence[float]
    at: Sequence[float]
    age: Sequence[float]
    first_line: Sequence[int]
    top_x: float
    top_y: float
    ceilings: Sequence[tuple[float, str]]
    model: Sequence[tuple[float, float]]
    at_ceiling: float | None
    rank: str = ""


def lay_out(report: Report, factor: int = 1) -> Phase | None:
    """Lay out the phase plot; None with fewer than eight points that differ."""
    by_time = any(s.start for s in report.series)
    rows: list[tuple[float, float, float, int, int]] = []
    only = charts.worst(report)
    for raw in report.series:
        if only and (raw.source, raw.rank) != only:
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
    ceilings = [(float(f), f"{f:,} fit") for f in levels[:4]]
    ceilings += [
        (float(c), f"cap {c:,}") for c in sorted(c for c in caps if c and c <= 1.5 * peak)
    ]
    top_x = nice(max([peak, *(c[0] for c in ceilings)]) * 1.04)
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
        ceilings=ceilings,
        model=model,
        at_ceiling=len(near) / len(known) if known else None,
        rank=charts.rank_name(report, only) if only else "",
    )


def _phase_model(report: Report, top_x: float) -> list[tuple[float, float]]:
    """Return throughput over running requests when each holds the usual number of tokens."""
    c = report.sessions[0].capacity if len(report.sessions) == 1 else Capacity()
    m, per_req = c.step_model, c.tokens_per_req
    if not (m and m.identified and per_req):
        return []
    at = [top_x * i / 40 for i in range(1, 41)]
    steps = [m.t0_s + (m.a_s + m.b_s * per_req) * r for r in at]
    return [(r, r / s) for r, s in zip(at, steps, strict=True) if s > 0]
