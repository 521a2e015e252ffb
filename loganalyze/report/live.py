"""What report.js needs to draw the figures: their numbers, small enough to travel in a page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from loganalyze.report.charts import Timeline
from loganalyze.report.phase import Phase


def numbers(t: Timeline, p: Phase | None) -> dict[str, object]:
    """Return what report.js needs to draw the figures, as small whole numbers.

    Values are counted in quanta of a ten-thousandth of their curve's peak, extremes as their
    distance from the mean; equal lists are sent once.
    """
    lists: list[list[int]] = []
    known: dict[tuple[int, ...], int] = {}

    def put(values: Sequence[int]) -> int:
        key = tuple(values)
        if key not in known:
            known[key] = len(lists)
            lists.append(list(key))
        return known[key]

    unit = 1_000 * t.step if t.by_time else 1.0
    curves = []
    for c in t.curves:
        peak = max(max(map(abs, c.high)), 1e-9)
        quantum = 10.0 ** (math.floor(math.log10(peak)) - 3)
        middle = [round(v / quantum) for v in c.mean]
        curves.append(
            {
                "panel": c.panel,
                "line": c.line,
                "label": c.label,
                "hue": c.hue,
                "kind": c.kind,
                "quantum": quantum,
                "x0": c.x[0],
                "dx": unit,
                "x": put([round((x - c.x[0]) / unit) for x in c.x]),
                "mean": put(middle),
                "low": put([m - round(v / quantum) for m, v in zip(middle, c.low, strict=True)]),
                "high": put([round(v / quantum) - m for m, v in zip(middle, c.high, strict=True)]),
                "rows": put([b - a for a, b in itertools.pairwise([0, *c.first_line])]),
                "parts": c.parts,
            }
        )
    return {
        "byTime": t.by_time,
        "range": [t.x0, t.x1],
        "lists": lists,
        "lines": [
            {"label": x.label, "hue": x.hue, "quiet": x.quiet, "shown": x.shown} for x in t.lines
        ],
        "panels": [
            {"id": x.id, "title": x.title, "unit": x.unit, "top": t.tops[x.id], "style": x.style}
            for x in t.panels
        ],
        "curves": curves,
        "references": [
            {"panel": r.panel, "label": r.label, "y": r.y, "x": [r.x0, r.x1]} for r in t.references
        ],
        "lanes": [
            {
                "label": x.label,
                "name": x.name,
                "severity": x.severity,
                "findings": x.findings,
                "spans": x.spans,
                "shade": x.shade,
            }
            for x in t.lanes
        ],
        "restarts": t.restarts,
        "phase": _live_phase(p),
    }


def _live_phase(p: Phase | None) -> dict[str, object] | None:
    if p is None:
        return None
    return {
        "x": [round(v, 1) for v in p.x],
        "y": [round(v, 1) for v in p.y],
        "at": [round(v - p.at[0]) for v in p.at],
        "from": p.at[0],
        "rows": p.first_line,
        "top": [p.top_x, p.top_y],
        "ceilings": p.ceilings,
        "model": [(round(x, 2), round(y, 2)) for x, y in p.model],
    }
