"""What the figures show, as plain numbers: panels, curves, lanes, ticks. No drawing here.

`to_svg.py` draws it without a browser, `templates/report.js` hands it to Plotly; both read
the same `Timeline`, so the still picture and the live one cannot differ.

x is milliseconds since 1970 of the time as logged (no zone is assumed), or the line number
where the log has no stamps.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import fmean, median
from typing import Literal, NamedTuple

from loganalyze.model import Band, Capacity, Finding, Report, Series, Session, Severity
from loganalyze.report import words

#: A silence longer than this and than 8 usual distances is drawn as a gap (rules.md: 12 s).
_GAP_S = 12.0
_GAP_DISTANCES = 8
#: Lines (ranks) drawn at first; of more, the most telling ones and the range of all.
MAX_LINES = 8
#: Lines that a reader can switch on: each costs room, and nobody compares more by eye.
MAX_SWITCHED = 64
#: Up to here every line has a strong colour; beyond, only those that stand out.
_STRONG_LINES = 3
MAX_LANES = 8
MAX_EVENT_LANES = 4
#: Events whose names are too long for the margin of a figure.
_SHORT = {
    "watchdog_timeout": "watchdog",
    "health_check_failed": "health",
    "subprocess_crashed": "crash",
    "collective_timeout": "collective",
    "process_aborted": "abort",
    "transfer_failed": "transfer",
    "jit_compile": "compile",
}
#: Events of every healthy log: counted, not drawn.
_USUAL = frozenset({"ready", "graceful_exit", "pyspy_missing"})
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart. `columns` maps a batch column to its name in the legend.

    `unit` is empty where the title names it. `style`: a `line` joins values that hold
    between the lines that print them; what belongs to single prefill batches stands as
    `spikes` or `dots`.
    """

    id: str
    title: str
    unit: str
    columns: Mapping[str, str]
    style: Literal["line", "spikes", "dots"] = "line"


PANELS = (
    Panel(
        "usage",
        "KV pool usage",
        "fraction",
        {
            "kv_usage": "KV pool",
            "full_token_usage": "full attention",
            "swa_token_usage": "sliding window",
            "mamba_usage": "Mamba state",
            "gpu_token_usage": "device buffer",
            "pre_allocated_usage": "pre-allocated",
        },
    ),
    Panel("running", "Running requests", "", {"running_req": "running"}),
    Panel(
        "waiting",
        "Waiting requests",
        "",
        {
            "queue_req": "queue",
            "prealloc_req": "waiting for KV space",
            "transfer_req": "KV in flight",
            "inflight_req": "KV in flight (prefill side)",
        },
    ),
    Panel("throughput", "Decode throughput", "token/s", {"gen_throughput": "throughput"}),
    Panel("rate", "Decode rate per request", "token/s", {"rate_per_req": "per request"}),
    Panel(
        "prefill",
        "New prompt tokens per prefill batch",
        "",
        {"new_token": "new tokens"},
        "spikes",
    ),
    Panel("cache", "Prefix cache hit rate", "fraction", {"cache_hit_rate": "hit rate"}, "dots"),
    Panel("accept", "Accepted tokens per step", "", {"accept_len": "accept length"}),
)
_POOLS = ("full_token_usage", "swa_token_usage", "mamba_usage")


@dataclass(frozen=True, slots=True)
class Curve:
    """One column of one rank in one session: a mean inside its min-max band.

    Attributes:
        line: index of the rank in `Timeline.lines`.
        hue: colour; the rank's, or the column's where one rank is drawn.
        session: its session; 0 for a range over several.
        x: where each value stands.
        low, mean, high: the values; same length as `x`, never None.
        parts: (from, to) index ranges without a gap inside.
        kind: `value`, or `model` for the fitted throughput, or `range` over all ranks.
    """

    panel: str
    line: int
    session: int
    label: str
    hue: int
    x: Sequence[float]
    low: Sequence[float]
    mean: Sequence[float]
    high: Sequence[float]
    first_line: Sequence[int]
    parts: Sequence[tuple[int, int]]
    kind: str = "value"


@dataclass(frozen=True, slots=True)
class Reference:
    """A level worth knowing in one panel: over the whole width, or from x0 to x1.

    `label` is empty where that of a level just above says it too.
    """

    panel: str
    label: str
    y: float
    x0: float | None = None
    x1: float | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """A row above the panels: the episodes of one rule, or the moments of one event.

    `findings` has the index of each span's finding; it is empty for events. `label` is short
    (a code), `name` the same in words.
    """

    label: str
    name: str
    severity: str
    findings: Sequence[int]
    spans: Sequence[tuple[float, float]]
    shade: bool = False


class Key(NamedTuple):
    """Who printed a line of the figures: a rank of one of the servers that wrote a log."""

    source: str
    server: int
    rank: str | None


def key_of(report: Report) -> Callable[[Series], Key]:
    """Return what tells the key of a series: sessions of one server are one line."""
    servers = {s.id: s.server for s in report.sessions}
    return lambda s: Key(s.source, servers.get(s.session, 1), s.rank)


@dataclass(frozen=True, slots=True)
class Line:
    """One rank (or server) that printed statistics.

    A quiet one is drawn in the background; one that is not `shown` only where a reader switches
    it on, in the last hue.
    """

    label: str
    hue: int
    quiet: bool
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that the main figure shows.

    `undrawn` names the causes and events that have no lane for want of room.
    """

    by_time: bool
    x0: float
    x1: float
    step: float
    lines: Sequence[Line]
    n_lines: int
    panels: Sequence[Panel]
    flat: Sequence[Panel]
    tops: Mapping[str, float]
    curves: Sequence[Curve]
    references: Sequence[Reference]
    lanes: Sequence[Lane]
    undrawn: Sequence[str]
    restarts: Sequence[tuple[float, str]]
    gaps: Sequence[tuple[float, float]]

    def of(self, panel: str) -> list[Curve]:
        """Return the curves of one panel that are drawn at first."""
        return [c for c in self.curves if c.panel == panel and self.is_shown(c)]

    def is_shown(self, curve: Curve) -> bool:
        """Whether a curve is drawn at first."""
        return curve.line < 0 or self.lines[curve.line].shown

    @property
    def drawn(self) -> list[Line]:
        """The lines that are drawn at first."""
        return [line for line in self.lines if line.shown]

    def keys(self, panel: str) -> list[tuple[str, int]]:
        """Return name and hue of a panel's curves where colours tell columns apart."""
        named = {c.label: c.hue for c in self.of(panel) if c.kind == "value"}
        return list(named.items()) if len(self.lines) == 1 and len(named) > 1 else []


def ms(time: datetime) -> float:
    """Return milliseconds since 1970 of a time as logged."""
    return (time - _EPOCH) / timedelta(milliseconds=1)


def time_of(x: float) -> datetime:
    """Return the time as logged of milliseconds since 1970, to the second."""
    return _EPOCH + timedelta(seconds=round(x / 1_000))


def timeline(report: Report, factor: int = 1) -> Timeline | None:
    """Lay out the main figure; None where fewer than two points could be drawn.

    Args:
        report: any report.
        factor: buckets of the report that are joined into one bin of the figure.
    """
    by_time = any(s.start for s in report.series)
    drawn = [coarsen(s, factor) for s in report.series if s.x and bool(s.start) == by_time]
    if not drawn or sum(len(s.x) for s in drawn) < 2:
        return None
    of = key_of(report)
    sources = list(dict.fromkeys(s.source for s in drawn))
    keys = sorted(
        dict.fromkeys(map(of, drawn)),
        key=lambda key: (sources.index(key.source), key.server, _by_number(key.rank or "")),
    )
    shown = _choose(keys, drawn, report)
    hidden = [k for k in keys if k not in shown][: MAX_SWITCHED - len(shown)]
    listed = [k for k in keys if k in shown or k in hidden]
    lines = _lines(listed, shown, report)
    index = {key: i for i, key in enumerate(listed)}
    sessions = {s.id: s for s in report.sessions}
    curves: list[Curve] = []
    for s in drawn:
        if of(s) in index:
            line = index[of(s)]
            curves += _curves(s, line, lines, by_time, sessions.get(s.session))
    if len(keys) > len(shown):
        curves += _range_of_all(drawn, by_time)
    xs = [x for c in curves for x in (c.x[0], c.x[-1])]
    x0, x1 = min(xs, default=0.0), max(xs, default=0.0)
    if x0 == x1:
        return None
    zero = {p.id for p in PANELS if not any(h for c in curves if c.panel == p.id for h in c.high)}
    present = [p for p in PANELS if any(c.panel == p.id for c in curves)]
    references = list(_references(report, curves, by_time, x0, x1)) if len(lines) else []
    panels = [p for p in present if p.id not in zero or p.id == "usage"]
    tops = {p.id: _top(p, curves, references) for p in panels}
    references = [r for r in references if r.panel in tops and r.y <= tops[r.panel]]
    lanes, undrawn = _lanes(report, by_time, x0, x1)
    return Timeline(
        by_time=by_time,
        x0=x0,
        x1=x1,
        step=max(s.step for s in drawn),
        lines=lines,
        n_lines=len(keys),
        panels=panels,
        flat=[p for p in present if p not in panels],
        tops=tops,
        curves=[c for c in curves if c.panel in tops],
        references=[r for p in panels for r in _labelled(references, p.id, tops[p.id], x0, x1)],
        lanes=lanes,
        undrawn=undrawn,
        restarts=list(_restarts(report, drawn, by_time)),
        gaps=sorted(
            {(ms(a), ms(b)) for s in drawn for a, b in s.gaps if by_time} if len(keys) == 1 else ()
        ),
    )


def coarsen(series: Series, factor: int) -> Series:
    """Join `factor` neighbouring buckets: the extremes of extremes, the mean of means."""
    if factor == 1:
        return series
    groups: dict[int, list[int]] = {}
    for i, x in enumerate(series.x):
        groups.setdefault(x // factor, []).append(i)

    def join(band: Band) -> Band:
        rows = [[i for i in g if band.mean[i] is not None] for g in groups.values()]
        return Band(
            [min((band.min[i] for i in g), key=_value) if g else None for g in rows],
            [sum(_value(band.mean[i]) for i in g) / len(g) if g else None for g in rows],
            [max((band.max[i] for i in g), key=_value) if g else None for g in rows],
        )

    return replace(
        series,
        step=series.step * factor,
        x=list(groups),
        first_line=[series.first_line[g[0]] for g in groups.values()],
        columns={name: join(band) for name, band in series.columns.items()},
    )


def _value(value: float | None) -> float:
    assert value is not None
    return value


def _by_number(rank: str) -> list[tuple[int, str]]:
    """Return what sorts ranks by their numbers: DP2 before DP10."""
    parts = re.findall(r"\d+|\D+", rank)
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in parts]


def _choose(keys: Sequence[Key], drawn: Sequence[Series], report: Report) -> list[Key]:
    """Return the lines to draw, in order: all, or those that stand out, highest and lowest."""
    if len(keys) <= MAX_LINES:
        return list(keys)
    level = _levels(drawn, key_of(report))
    named = [k for k in keys if _named(k, report)]
    order = sorted(keys, key=lambda k: (-level.get(k, 0.0), keys.index(k)))
    ends = [k for pair in zip(order, reversed(order), strict=True) for k in pair]
    chosen = list(dict.fromkeys([*named[: MAX_LINES - 2], *ends]))[:MAX_LINES]
    return [k for k in keys if k in chosen]


def _levels(drawn: Sequence[Series], of: Callable[[Series], Key]) -> dict[Key, float]:
    """Return the mean usage of each line (running requests where the log has no usage)."""
    values: dict[Key, list[float]] = {}
    for s in drawn:
        band = s.columns.get("kv_usage") or s.columns.get("running_req")
        if band:
            values.setdefault(of(s), []).extend(v for v in band.mean if v is not None)
    return {k: sum(v) / len(v) for k, v in values.items() if v}


def _named(key: Key, report: Report) -> bool:
    """Whether an episode of a problem speaks of this rank and not of all of them."""
    return any(
        e.rank and is_rank(key.rank, e.rank)
        for f in report.findings
        if f.severity >= Severity.WARNING
        for e in f.episodes
    )


def _lines(
    listed: Sequence[Key],
    shown: Sequence[Key],
    report: Report,
) -> list[Line]:
    strong = [k for k in shown if _named(k, report)]
    if len(shown) <= _STRONG_LINES or not 0 < len(strong) < len(shown):
        strong = list(shown)

    return [
        Line(rank_name(report, k), shown.index(k), k not in strong)
        if k in shown
        else Line(rank_name(report, k), MAX_LINES, quiet=True, shown=False)
        for k in listed
    ]


def _curves(
    s: Series, line: int, lines: Sequence[Line], by_time: bool, session: Session | None
) -> Iterator[Curve]:
    """Return the curves of one series: every column that a panel shows."""
    alone = len(lines) == 1
    pools = any(name in s.columns for name in _POOLS)
    for panel in PANELS:
        names = [n for n in panel.columns if n in s.columns]
        if pools:
            names = [n for n in names if n != "kv_usage"]
        for hue, name in enumerate(names):
            many = len(names) > 1
            label = panel.columns[name] if alone or many else ""
            parts = [*([] if alone else [lines[line].label]), label]
            curve = _curve(
                s,
                s.columns[name],
                by_time,
                panel=panel.id,
                line=line,
                label=" ".join(p for p in parts if p),
                hue=hue if alone else lines[line].hue,
            )
            if curve:
                yield curve
    fitted = _fitted(s, session.capacity) if session else None
    if fitted and alone:
        curve = _curve(
            s, fitted, by_time, panel="throughput", line=line, label="fitted model", hue=0
        )
        if curve:
            yield replace(curve, kind="model")


def _curve(
    s: Series, band: Band, by_time: bool, *, panel: str, line: int, label: str, hue: int
) -> Curve | None:
    at = [i for i, v in enumerate(band.mean) if v is not None]
    if not at:
        return None
    if by_time:
        assert s.start is not None
        start = ms(s.start)
        x = [start + s.x[i] * s.step * 1_000 for i in at]
        limit = 1_000 * _GAP_S
    else:
        x = [float(s.first_line[i]) for i in at]
        limit = 0.0
    gaps = [(ms(a), ms(b)) for a, b in s.gaps] if by_time else []
    return Curve(
        panel=panel,
        line=line,
        session=s.session,
        label=label,
        hue=hue,
        x=x,
        low=[_value(band.min[i]) for i in at],
        mean=[_value(band.mean[i]) for i in at],
        high=[_value(band.max[i]) for i in at],
        first_line=[s.first_line[i] for i in at],
        parts=_parts(x, gaps, limit),
    )


def _parts(
    x: Sequence[float], gaps: Sequence[tuple[float, float]], least: float
) -> list[tuple[int, int]]:
    """Split at silences: at a known gap, or where a distance is far beyond the usual one."""
    distances = [b - a for a, b in itertools.pairwise(x)]
    limit = max(least, _GAP_DISTANCES * median(distances)) if distances else least
    cuts = [
        i + 1
        for i, d in enumerate(distances)
        if d > limit or any(a < x[i + 1] and x[i] < b and a - x[i] < d for a, b in gaps)
    ]
    return list(zip([0, *cuts], [*cuts, len(x)], strict=True))


def _fitted(s: Series, capacity: Capacity) -> Band | None:
    """Return R * accepted / (t0 + a R + b T): decode throughput without any prefill."""
    model, running, token = (
        capacity.step_model,
        s.columns.get("running_req"),
        s.columns.get("token"),
    )
    if not (model and model.b_identified and running and token):
        return None
    accepted = s.columns.get("accept_len")
    out: list[float | None] = []
    for i, (r, t) in enumerate(zip(running.mean, token.mean, strict=True)):
        acc = accepted.mean[i] if accepted else 1.0
        step = model.t0_s + model.a_s * r + model.b_s * t if r and t is not None else 0.0
        out.append(r * acc / step if r and acc and step > 0 else None)
    return Band(out, out, out)


def _range_of_all(drawn: Sequence[Series], by_time: bool) -> Iterator[Curve]:
    """Return, per panel, the range over all ranks: of more than can be drawn one by one."""
    for panel in PANELS:
        name = next((n for n in panel.columns if any(n in s.columns for s in drawn)), "")
        cells: dict[float, list[tuple[float, float, float, int]]] = {}
        for s in drawn:
            slot = s.step * (1_000 if by_time else 1)
            band = s.columns.get(name)
            curve = (
                _curve(s, band, by_time, panel=panel.id, line=-1, label="", hue=0)
                if band
                else None
            )
            if curve:
                rows = zip(curve.low, curve.mean, curve.high, curve.first_line, strict=True)
                for at, row in zip(curve.x, rows, strict=True):
                    cells.setdefault(at // slot * slot, []).append(row)
        x = sorted(cells)
        if x:
            yield Curve(
                panel=panel.id,
                line=-1,
                session=0,
                label="all ranks",
                hue=0,
                x=x,
                low=[min(r[0] for r in cells[v]) for v in x],
                mean=[sum(r[1] for r in cells[v]) / len(cells[v]) for v in x],
                high=[max(r[2] for r in cells[v]) for v in x],
                first_line=[min(r[3] for r in cells[v]) for v in x],
                parts=_parts(x, [], 1_000 * _GAP_S if by_time else 0),
                kind="range",
            )


def _references(
    report: Report, curves: Sequence[Curve], by_time: bool, x0: float, x1: float
) -> Iterator[Reference]:
    """Return the 0.9 line, and per session what fits the pool and the running cap."""
    yield Reference("usage", "0.90", 0.9)
    levels: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for s in report.sessions:
        mine = [c for c in curves if c.panel == "running" and c.session == s.id]
        if not mine:
            continue
        a, b = min(c.x[0] for c in mine), max(c.x[-1] for c in mine)
        peak = max(max(c.high) for c in mine)
        fit, cap = s.capacity.requests_fit, s.capacity.max_running_req
        if fit and fit <= 3 * peak:
            levels.setdefault((f"{fit:,} fit the KV pool", float(fit)), []).append((a, b))
        if cap and cap <= 3 * peak:
            levels.setdefault((f"cap {cap:,}", float(cap)), []).append((a, b))
    # Servers side by side share a level.
    drawn = [(a, b, *level) for level, spans in levels.items() for a, b in merge(spans, 0)]
    for a, b, label, y in sorted(drawn):
        left, right = (None, None) if len(report.sessions) == 1 else (a, b)
        yield Reference("running", label, y, left, right)


#: What a label of a level takes of its panel's height.
LABEL_HEIGHT = 0.16


def _labelled(
    references: Sequence[Reference], panel: str, top: float, x0: float, x1: float
) -> list[Reference]:
    """Return the levels of a panel; those too near for a label each share that of the highest.

    It names them from top to bottom, as the lines stand.
    """
    own = [r for r in references if r.panel == panel]
    ends = [(x0 if r.x0 is None else r.x0, x1 if r.x1 is None else r.x1) for r in own]
    labels: dict[int, list[str]] = {}
    for i in sorted(range(len(own)), key=lambda i: -own[i].y):
        host = next(
            (
                j
                for j in labels
                if own[j].y - own[i].y < LABEL_HEIGHT * top
                and ends[j][0] < ends[i][1]
                and ends[i][0] < ends[j][1]
            ),
            i,
        )
        labels.setdefault(host, []).append(own[i].label)
    return [replace(r, label=", ".join(labels.get(i, ()))) for i, r in enumerate(own)]


def _top(panel: Panel, curves: Sequence[Curve], references: Sequence[Reference]) -> float:
    """Return the top of a panel's axis: 1 for usage, else a round number above all."""
    if panel.id == "usage":
        return 1.0
    values = [max(c.high) for c in curves if c.panel == panel.id]
    values += [r.y for r in references if r.panel == panel.id]
    top = nice(max([*values, 1e-9]) * 1.04)
    return min(top, 1.0) if panel.unit == "fraction" else top


def nice(value: float) -> float:
    """Return the next number above `value` that halves to a readable tick."""
    scale = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
    return next((s * scale for s in steps if s * scale >= value), 10 * scale)


def _lanes(
    report: Report, by_time: bool, x0: float, x1: float
) -> tuple[list[Lane], Sequence[str]]:
    """Return the rows above the panels, findings worst first, then events; and what has none."""
    lanes: dict[str, Lane] = {}
    undrawn: dict[str, None] = {}
    worst = sorted(enumerate(report.findings), key=lambda pair: -pair[1].severity)
    for i, f in worst:
        spans = merge(list(_spans(f, by_time)), (x1 - x0) / 500)
        inside = [(max(a, x0), min(b, x1)) for a, b in spans if b >= x0 and a <= x1]
        known = lanes.get(f.code)
        if inside and not known and len(lanes) == MAX_LANES:
            undrawn[f.code] = None
        elif inside:
            shade = f.severity >= Severity.WARNING and f.explained_by is None
            lanes[f.code] = Lane(
                label=words.shorten(f.code, 8),
                name=words.shorten(f"{f.code} {f.name}".strip(), 40),
                severity=known.severity if known else str(f.severity),
                findings=[*(known.findings if known else ()), *[i] * len(inside)],
                spans=[*(known.spans if known else ()), *inside],
                shade=shade or bool(known and known.shade),
            )
    events: list[Lane] = []
    for kind in dict.fromkeys(e.kind for e in report.events if e.kind not in _USUAL):
        times = [ms(t) for e in report.events if e.kind == kind for t in e.times]
        moments = [(t, t) for t in sorted(times) if by_time and x0 <= t <= x1]
        name = words.shorten(words.EVENTS.get(kind, kind.replace("_", " ")), 60)
        if moments and len(events) == MAX_EVENT_LANES:
            undrawn[name] = None
        elif moments:
            label = words.shorten(_SHORT.get(kind, kind), 20)
            events.append(Lane(label, name, "event", (), moments))
    return [*lanes.values(), *events], list(undrawn)


def _spans(finding: Finding, by_time: bool) -> Iterator[tuple[float, float]]:
    for e in finding.episodes:
        if not by_time:
            yield float(e.first_line), float(e.last_line)
        elif e.start and e.end:
            yield ms(e.start), max(ms(e.start), ms(e.end))


def merge(spans: Sequence[tuple[float, float]], slack: float) -> list[tuple[float, float]]:
    """Join spans that overlap or are nearer than `slack`."""
    out: list[tuple[float, float]] = []
    for a, b in sorted(spans):
        if out and a <= out[-1][1] + slack:
            out[-1] = (out[-1][0], max(out[-1][1], b))
        else:
            out.append((a, b))
    return out


def _restarts(
    report: Report, drawn: Sequence[Series], by_time: bool
) -> Iterator[tuple[float, str]]:
    """Return where a later session of the same server begins, and how the one before ended."""
    ended: dict[tuple[str, int], str] = {}
    for s in report.sessions:
        mine = [d for d in drawn if d.session == s.id]
        server = (s.source, s.server)
        if server in ended and (s.start or mine):
            at = ms(s.start) if by_time and s.start else float(s.first_line)
            yield at, "restart after crash" if ended[server] == "crash" else "restart"
        ended[server] = s.ended_by


#: Distances between ticks of a time axis, in seconds.
_TICKS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 14_400, 21_600),
    *(43_200, 86_400, 172_800, 604_800, 2_592_000, 31_536_000),
)


def ticks(x0: float, x1: float, by_time: bool, want: int = 6) -> list[tuple[float, str, str]]:
    """Return (x, label, day) of an axis's ticks; the day stands at the first tick of each."""
    if not by_time:
        step = nice((x1 - x0) / want)
        step = max(1.0, round(step))
        first = math.ceil(x0 / step) * step
        count = int((x1 - first) // step) + 1
        return [(first + i * step, f"{first + i * step:,.0f}", "") for i in range(count)]
    seconds = (x1 - x0) / 1_000
    size = next((t for t in _TICKS if seconds / t <= want), _TICKS[-1])
    out: list[tuple[float, str, str]] = []
    last_day = ""
    at = math.ceil(x0 / 1_000 / size) * size
    while at * 1_000 <= x1:
        time = _EPOCH + timedelta(seconds=at)
        clock = time.strftime("%H:%M:%S" if size < 60 else "%H:%M")
        day = time.date().isoformat() if words.has_date(time) else ""
        out.append((at * 1_000.0, clock, day if day != last_day else ""))
        last_day = day
        at += size
    return out


@dataclass(frozen=True, slots=True)
class Stats:
    """A column over the whole report: the median of its bins, its ends and where the peak is."""

    median: float
    peak: float
    peak_line: int
    peak_source: str
    mean: float = 0.0
    least: float = 0.0


def worst(report: Report) -> Key | None:
    """Return who printed the line that the verdict speaks of; None where there is one.

    Without such a rank: the one where most waits, then the fullest.
    """
    of = key_of(report)
    keys = list(dict.fromkeys(map(of, report.series)))
    if len(keys) < 2:
        return None
    servers = {s.id: s.server for s in report.sessions}
    first = report.cause
    if first and first.session in servers:
        keys = [k for k in keys if k.server == servers[first.session]] or keys
    for e in sorted(first.episodes if first else (), key=lambda e: e.first_line - e.last_line):
        named = [k for k in keys if e.rank and k.source == e.source and is_rank(k.rank, e.rank)]
        if named:
            keys = named
            break

    def level(key: Key) -> tuple[float, ...]:
        found = (
            stats(report, column, key)
            for column in ("queue_req", "prealloc_req", "kv_usage", "running_req")
        )
        return tuple(level.mean if level else 0.0 for level in found)

    return max(keys, key=level)


def is_rank(printed: str | None, named: str) -> bool:
    """Whether a rank as printed, such as `DP1 TP4`, is the one named, such as `DP1`."""
    return printed is not None and (printed == named or printed.startswith(named + " "))


def rank_name(report: Report, key: Key) -> str:
    """Return what a line of the figures is called: its rank, with its log and server if needed.

    A disaggregated server is called by its role, and by its number beside others of that role;
    not where the log of one holds another's lines as well (series.py).
    """
    keys = set(map(key_of(report), report.series))
    here = sorted({k.server for k in keys if k.source == key.source})
    roles = {s.server: s.role for s in report.sessions}
    role = roles.get(key.server, "unified")
    alike = [n for n in here if roles.get(n, "unified") == role]
    mixed = key.rank is not None and key.rank.endswith(" lines")
    parts: list[str] = [] if mixed or role == "unified" else [role]
    if len(here) > 1 and (len(alike) > 1 or role == "unified"):
        parts += ["server", str(alike.index(key.server) + 1)]
    if len({k.source for k in keys}) > 1 or not (parts or key.rank):
        parts.append(words.basename(key.source))
    return words.shorten(" ".join([*parts, *([key.rank] if key.rank else [])]), 40)


def stats(report: Report, column: str, only: Key | None = None) -> Stats | None:
    """Return the level of one column; None where no line prints it.

    Args:
        report: any report.
        column: a column of its series.
        only: whose lines to look at; all by default.
    """
    of = key_of(report)
    means: list[float] = []
    least = math.inf
    peak: Stats | None = None
    for s in report.series:
        if only and of(s) != only:
            continue
        band = s.columns.get(column)
        for i, v in enumerate(band.mean if band else ()):
            if band and v is not None:
                means.append(v)
                least = min(least, _value(band.min[i]))
                high = _value(band.max[i])
                if peak is None or high > peak.peak:
                    peak = Stats(0.0, high, s.first_line[i], s.source)
    if peak is None:
        return None
    return replace(peak, median=median(means), mean=fmean(means), least=least)
