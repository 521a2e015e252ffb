"""The figures without a browser's help: for `--figure`, for print, and where no script runs.

A figure has no fixed width: texts keep their size and stand at percentages, curves stretch
(`preserveAspectRatio="none"`, strokes do not scale). So the same picture reads well on a
phone and on paper. Colours are classes; the page's style sheet knows their light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from loganalyze.model import Report
from loganalyze.report import charts, to_text, words
from loganalyze.report.charts import Curve, Panel, Timeline
from loganalyze.report.phase import Phase

#: Units of a stretched plot: x runs from 0 to _W, y from 0 (top) to _H.
_W, _H = 1_000, 200
_LANE, _TITLE, _PANEL, _AXIS = 17, 24, 86, 34
#: Bins of a curve at most, and points of a whole picture (eight bytes each).
_BINS = 260
#: Room that a character takes on a phone, and the label of a restart: shares of the width.
_CHAR, _RESTART = 0.019, 0.34
#: Pixels left of a figure for the numbers of its axes (style.css leaves them on the page), and
#: above its panels for what its restarts are.
_LEFT, _ABOVE = 42, 14
_POINTS = 6_500
#: Up to here each line has its band; more bands would hide each other.
_FEW = 3
_AGES = 8

#: The style of a figure that stands alone; on the page, style.css does this.
_STYLE = """
svg{background:#fff;font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
text{fill:#1f2933}.dim{fill:#52606d}.title{font-weight:600}.small,.lane{font-size:10.5px}
.end{text-anchor:end}.middle{text-anchor:middle}.halo{paint-order:stroke;stroke:#fff;stroke-width:3px}
.plot path{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
.plot .grid{stroke:#e4e7eb;stroke-width:1}.plot .ref{stroke:#52606d;stroke-dasharray:5 4}
.plot .mean{stroke-width:1.6}.plot .model{stroke:#52606d;stroke-width:1.2;stroke-dasharray:2 3}
.plot .dots{stroke-width:3.5}.plot .spikes{stroke-width:1;opacity:.65}
.plot .quiet{stroke-width:1;opacity:.4}.plot .band{stroke:none;opacity:.25}
.plot .restart{stroke:#1f2933;stroke-width:1.5;stroke-dasharray:none}
.s0{stroke:#0b62a8}.s1{stroke:#c4590a}.s2{stroke:#7b3fa0}.s3{stroke:#00786c}
.s4{stroke:#b01f5c}.s5{stroke:#6b6100}.s6{stroke:#3f4b8c}.s7{stroke:#7a4a2b}
.plot .f0{fill:#0b62a8}.plot .f1{fill:#c4590a}.plot .f2{fill:#7b3fa0}.plot .f3{fill:#00786c}
.plot .f4{fill:#b01f5c}.plot .f5{fill:#6b6100}.plot .f6{fill:#3f4b8c}.plot .f7{fill:#7a4a2b}
.k0{fill:#0b62a8}.k1{fill:#c4590a}.k2{fill:#7b3fa0}.k3{fill:#00786c}.k4{fill:#b01f5c}
.k5{fill:#6b6100}.k6{fill:#3f4b8c}.k7{fill:#7a4a2b}
.critical{fill:#a4133c}.warning{fill:#b45309}.info{fill:#2f6690}.event{fill:#52606d}
.plot .shade{stroke:none;opacity:.08}.plot .critical{fill:#a4133c}.plot .warning{fill:#b45309}
.plot .info{fill:#2f6690}.plot .event{fill:#52606d}
.age{stroke-width:6}
.a0{stroke:#00224e}.a1{stroke:#213c6d}.a2{stroke:#4a546d}.a3{stroke:#6a6b70}
.a4{stroke:#8a8678}.a5{stroke:#aca36f}.a6{stroke:#cfbf5f}.a7{stroke:#e8d340}
"""


def render(report: Report) -> str:
    """Return the main figure as an SVG file: light, 960 wide, with its caption as title.

    A report without a timeline gives its verdict as the picture.
    """
    report = words.safe(report)
    t = charts.timeline(report)
    head = f"{words.SHAPE[report.verdict.status]} {report.verdict.status}"
    body, height = timeline_body(t) if t else (Markup(""), 0)
    if t and len(t.lines) > 1:
        body, height = body + _legend(t, height), height + 18 * math.ceil(len(t.drawn) / 6)
    said = to_text.wrap(words.shorten(report.verdict.headline, 450), 118)[:4]
    top = 30 + 16 * len(said)
    size = f'width="960" height="{height + top + 12}"'
    lines = "".join(_text("16", 37 + 16 * i, line) for i, line in enumerate(said))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'viewBox="0 0 960 {height + top + 12}" role="img" font-size="12">'
        f"<title>{escape(report.verdict.headline)}</title><style>{_STYLE}</style>"
        f'<rect {size} fill="#fff"/>'
        f"{_text('16', 20, head, 'title')}{lines}"
        f'<svg x="{12 + _LEFT}" y="{top}" width="{932 - _LEFT}" height="{height}" '
        f'overflow="visible">{body}</svg></svg>\n'
    )


def render_png(report: Report) -> bytes:
    """Return the main figure as a PNG, at twice its size, for trackers that show no SVG.

    Needs the extra `png`.
    """
    import resvg_py

    picture: bytes = resvg_py.svg_to_bytes(svg_string=render(report), zoom=2)
    return bytes(picture)


def _legend(t: Timeline, y: int) -> Markup:
    """Return the names of the curves, six to a row."""
    names = []
    for i, line in enumerate(t.drawn):
        x, middle = 150 * (i % 6) - _LEFT, y + 10 + 18 * (i // 6)
        names.append(f'<path class="s{line.hue}" stroke-width="3" d="M{x} {middle}h16"/>')
        names.append(_text(str(x + 22), middle + 4, words.shorten(line.label, 18), "small"))
    return Markup("".join(names))


def figure(t: Timeline, label: str) -> Markup:
    """Return the main figure for the page; `label` says in one sentence what it shows."""
    body, height = timeline_body(t)
    return _still(label, height, body)


def timeline_body(t: Timeline) -> tuple[Markup, int]:
    """Return the inside of the main figure and its height."""
    out: list[str] = []
    y = 0
    for lane in t.lanes:
        out += _lane(t, lane, y)
        y += _LANE
    if t.undrawn:
        said = f"no room for {words.some(t.undrawn, 6)}: see the findings and events"
        out.append(_text("0", y + 9, said, "dim lane"))
        y += _LANE
    y += 4 if t.lanes else 0
    if t.restarts:
        y += _ABOVE
        out += _restarts(t, y - 3)
    axis = charts.ticks(t.x0, t.x1, t.by_time)
    bins = _bins(t)
    out += _shades(t, y, len(t.panels) * (_TITLE + _PANEL))
    for panel in t.panels:
        out += _panel(t, panel, axis, y, bins)
        y += _TITLE + _PANEL
    out += _axis(t, axis, y)
    return Markup("".join(out)), y + _AXIS


def _bins(t: Timeline) -> int:
    """Return how many bins a curve gets, so that all of them make a picture of one size."""
    paths = {(c.panel, c.line, c.label, c.kind) for c in t.curves if t.is_shown(c)}
    few = len(t.lines) <= _FEW
    drawn = sum(1 if c[3] == "model" else 3 if few else 1 for c in paths)
    return max(40, min(_BINS, _POINTS // max(1, drawn)))


def _percent(t: Timeline, x: float) -> str:
    return f"{100 * (x - t.x0) / (t.x1 - t.x0):.2f}%"


def _text(
    x: str, y: float, text: object, kind: str = "dim", anchor: str = "", dx: float = 0
) -> str:
    """Write one text; `kind` and `anchor` are classes, `x` a percentage or a number."""
    classes = f"{kind} {anchor}".strip()
    shift = f' dx="{dx:g}"' if dx else ""
    return f'<text class="{classes}" x="{x}"{shift} y="{y:.0f}">{escape(text)}</text>'


def _lane(t: Timeline, lane: charts.Lane, y: int) -> Iterator[str]:
    """Draw one lane: bars for episodes, ticks for events, the label above the first."""
    least = 1.5 if lane.severity == "event" else 5
    bars = "".join(_bar(t, a, b, least, 4) for a, b in lane.spans)
    yield _stretched(y + 12, 4, 4, f'<path class="{lane.severity}" d="{bars}"/>')
    share = (lane.spans[0][0] - t.x0) / (t.x1 - t.x0)
    said = f"{words.SHAPE.get(lane.severity, '|')} {lane.name}"
    late = share + _CHAR * len(said) > 1
    anchor, at = ("end", "100%") if late else ("", f"{100 * share:.2f}%")
    yield _text(at, y + 9, said, f"{lane.severity} lane", anchor)


def _shades(t: Timeline, y: int, height: int) -> Iterator[str]:
    """Shade the episodes of problems behind all panels."""
    for lane in t.lanes:
        if lane.shade:
            bars = "".join(_bar(t, a, b, 1, 10) for a, b in lane.spans)
            path = f'<path class="shade {lane.severity}" d="{bars}"/>'
            yield _stretched(y, height, 10, path)


def _bar(t: Timeline, a: float, b: float, least: float, height: int) -> str:
    width = max(least, _x(t, b) - _x(t, a))
    return f"M{_x(t, a)} 0h{width:g}v{height}h-{width:g}z"


def _stretched(y: int, height: int, units: int, inside: str, classes: str = "") -> str:
    """Wrap shapes in a drawing that fills the width: x from 0 to _W, y from 0 to `units`."""
    return (
        f'<svg class="plot{classes}" x="0" y="{y}" width="100%" height="{height}" '
        f'viewBox="0 0 {_W} {units}" preserveAspectRatio="none" overflow="visible">{inside}</svg>'
    )


def _panel(
    t: Timeline, panel: Panel, axis: Sequence[tuple[float, str, str]], y: int, bins: int
) -> Iterator[str]:
    """Draw one small chart: title, curves and the words beside them."""
    top = t.tops[panel.id]
    curves = t.of(panel.id)
    yield _text("0", y + 16, panel.title, "title")
    yield from _note(t, panel, curves, y + 16)
    inside = "".join(_drawing(t, panel, axis, bins))
    yield _stretched(y + _TITLE, _PANEL, _H, inside)
    for value in (top, top / 2):
        at = y + _TITLE + (1 - value / top) * _PANEL
        yield _text("-5", at + 4, _tick(value, top), "dim small", "end")
    yield from _labels(t, panel, top, y + _TITLE)


def _drawing(
    t: Timeline, panel: Panel, axis: Sequence[tuple[float, str, str]], bins: int
) -> Iterator[str]:
    """Draw what stretches with the page: grid, curves, reference lines, restarts."""
    top, curves = t.tops[panel.id], t.of(panel.id)
    grid = "".join(f"M{_x(t, x)} 0V{_H}" for x, _, _ in axis)
    yield f'<path class="grid" d="M0 0H{_W}M0 {_H // 2}H{_W}M0 {_H}H{_W}{grid}"/>'
    few = len(t.lines) <= _FEW and panel.style == "line"
    for c in sorted(curves, key=lambda c: (c.kind != "range", not _quiet(t, c))):
        if c.kind != "model" and (few or c.kind == "range"):
            yield f'<path class="band f{c.hue}" d="{_band(t, c, top, bins)}"/>'
        if c.kind != "range":
            kind = "model" if c.kind == "model" else f"mean s{c.hue}"
            quiet = " quiet" if _quiet(t, c) else ""
            style = "" if panel.style == "line" else f" {panel.style}"
            shape = _marks if style else _mean
            yield f'<path class="{kind}{quiet}{style}" d="{shape(t, c, top, bins)}"/>'
    for r in t.references:
        if r.panel == panel.id:
            whole = r.x0 is None or r.x1 is None
            a, b = (0, _W) if whole else (_x(t, r.x0 or 0), _x(t, r.x1 or 0))
            yield f'<path class="ref" d="M{a} {_y(r.y, top)}H{b}"/>'
    inside = [_x(t, x) for x, _ in t.restarts if t.x0 <= x <= t.x1]
    if inside:
        yield f'<path class="restart" d="{"".join(f"M{x} 0V{_H}" for x in inside)}"/>'


def _labels(t: Timeline, panel: Panel, top: float, y: int) -> Iterator[str]:
    """Write what the reference lines and silences are."""
    yield from _levels(t, panel, top, y)
    if panel is not t.panels[0]:
        return
    for a, b in t.gaps:
        if b - a > 0.06 * (t.x1 - t.x0):
            yield _text(
                _percent(t, (a + b) / 2), y + _PANEL / 2, "no lines", "dim small", "middle"
            )


def _restarts(t: Timeline, y: int) -> Iterator[str]:
    """Write what the upright lines are, above the panels, where there is room."""
    free = -math.inf
    for x, label in t.restarts:
        share = (x - t.x0) / (t.x1 - t.x0)
        late = share + _RESTART > 1
        left = share - _RESTART if late else share
        if 0 <= share <= 1 and left >= free:
            free = left + _RESTART
            yield _text(_percent(t, x), y, label, "dim small", "end" if late else "")


def _levels(t: Timeline, panel: Panel, top: float, y: int) -> Iterator[str]:
    """Write what the lines of single sessions are, the longest first, where no label stands.

    A label ends where its line does, or begins there where it would leave the figure. Those of
    the whole log stand beside the panel's title: there they hide no value.
    """
    taken: list[tuple[float, float, float]] = []
    own = [r for r in t.references if r.panel == panel.id and r.label]
    named = [r for r in own if r.x0 is not None and r.x1 is not None]
    ends = [(r.x0 or 0.0, r.x1 or 0.0) for r in named]
    for i in sorted(range(len(named)), key=lambda i: ends[i][0] - ends[i][1]):
        r, (a, b) = named[i], ends[i]
        wide = _CHAR * len(r.label) * (t.x1 - t.x0)
        early = b - wide < t.x0
        left, right = (a, a + wide) if early else (b - wide, b)
        if right > t.x1 or any(
            left < d and c < right and abs(r.y - level) < charts.LABEL_HEIGHT * top
            for c, d, level in taken
        ):
            continue
        taken.append((left, right, r.y))
        at = max(y + (1 - r.y / top) * _PANEL - 3, y + 9)
        where, anchor = (_percent(t, a), "") if early else (_percent(t, b), "end")
        yield _text(where, at, r.label, "dim small halo", anchor)


def _note(t: Timeline, panel: Panel, curves: Sequence[Curve], y: int) -> Iterator[str]:
    """Say beside a panel's title what its colours and its level lines are, and the peak."""
    unit = f" {panel.unit}" if panel.unit not in ("", "fraction") else ""
    peak = max((max(c.high) for c in curves if c.kind != "model"), default=0.0)
    kind = "fraction" if panel.unit == "fraction" else ""
    said = f"peak {words.number(float(peak) if kind else round(peak, 1), kind)}{unit}"
    keys = "".join(
        f'<tspan class="k{hue}">━ {escape(label)}</tspan>  ' for label, hue in t.keys(panel.id)
    )
    levels = [r for r in t.references if r.panel == panel.id and r.x0 is None and r.label]
    if levels:
        names = ", ".join(r.label for r in sorted(levels, key=lambda r: -r.y))
        keys += f"╌ {escape(names)} · "
    yield f'<text class="dim small end" x="100%" y="{y}">{keys}{escape(said)}</text>'


def _quiet(t: Timeline, c: Curve) -> bool:
    return c.line >= 0 and t.lines[c.line].quiet


def _x(t: Timeline, x: float) -> int:
    return round(_W * (x - t.x0) / (t.x1 - t.x0))


def _y(value: float, top: float) -> int:
    return round(_H * (1 - max(0.0, min(value / top, 1.05))))


def _thin(
    t: Timeline, c: Curve, a: int, b: int, bins: int
) -> Iterator[tuple[float, float, float, float]]:
    """Yield (x, low, mean, high) of one part, joined into at most `bins` over the axis."""
    slot = (t.x1 - t.x0) / bins
    i = a
    while i < b:
        cell = int((c.x[i] - t.x0) / slot)
        j = i + 1
        while j < b and int((c.x[j] - t.x0) / slot) == cell:
            j += 1
        yield c.x[i], min(c.low[i:j]), sum(c.mean[i:j]) / (j - i), max(c.high[i:j])
        i = j


def _mean(t: Timeline, c: Curve, top: float, bins: int) -> str:
    parts = (_thin(t, c, a, b, bins) for a, b in c.parts)
    return "".join(_line([(_x(t, x), _y(m, top)) for x, _, m, _ in rows]) for rows in parts)


def _marks(t: Timeline, c: Curve, top: float, bins: int) -> str:
    """Draw each value by itself: a spike from 0 to the highest of a bin, or a dot."""
    spikes = next(p.style for p in charts.PANELS if p.id == c.panel) == "spikes"
    return "".join(
        f"M{_x(t, x)} {_H}V{_y(high, top)}" if spikes else f"M{_x(t, x)} {_y(mean, top)}h0"
        for x, _, mean, high in _thin(t, c, 0, len(c.x), bins)
    )


def _band(t: Timeline, c: Curve, top: float, bins: int) -> str:
    paths = []
    for a, b in c.parts:
        rows = list(_thin(t, c, a, b, bins))
        over = [(_x(t, x), _y(high, top)) for x, _, _, high in rows]
        under = [(_x(t, x), _y(low, top)) for x, low, _, _ in reversed(rows)]
        paths.append(_line([*over, *under]) + "z")
    return "".join(paths)


def _line(points: Sequence[tuple[int, int]]) -> str:
    """Return a path through the points, in relative steps: short, and short to compress."""
    x, y = points[0]
    out = [f"M{x} {y}"]
    steps = []
    for nx, ny in points[1:]:
        dx, dy = nx - x, ny - y
        steps.append(f"{dx}{dy}" if dy < 0 else f"{dx} {dy}")
        x, y = nx, ny
    if not steps:
        return out[0] + "h0"
    text = steps[0]
    for step in steps[1:]:
        text += step if step.startswith("-") else f" {step}"
    return f"{out[0]}l{text}"


def _tick(value: float, top: float) -> str:
    return words.number(value, "fraction") if top <= 1 else words.number(round(value, 1))


def _axis(t: Timeline, axis: Sequence[tuple[float, str, str]], y: int) -> Iterator[str]:
    for x, label, day in axis:
        share = (x - t.x0) / (t.x1 - t.x0)
        anchor = "end" if share > 0.95 else "" if share < 0.05 else "middle"
        yield _text(_percent(t, x), y + 14, label, "dim small", anchor)
        if day:
            yield _text(_percent(t, x), y + 28, day, "dim small", anchor)
    if not t.by_time:
        yield _text("100%", y + 28, "line of the log", "dim small", "end")


def phase_figure(p: Phase, label: str) -> Markup:
    """Return the phase plot for the page: running requests against throughput."""
    top, height = 18, 300
    foot = top + height + 14
    grid = f"M0 0H{_W}M0 {_H // 2}H{_W}M0 {_H}H{_W}M{_W // 2} 0V{_H}M0 0V{_H}"
    shapes = [
        f'<path class="grid" d="{grid}"/>',
        *(f'<path class="ref" d="M{round(_W * c.x / p.top_x)} 0V{_H}"/>' for c in p.ceilings),
    ]
    curve = [(round(_W * x / p.top_x), _y(y, p.top_y)) for x, y in p.model if y <= p.top_y]
    if curve:
        shapes.append(f'<path class="model" d="{_line(curve)}"/>')
    every = max(1, len(p.x) // 480)
    for age in range(_AGES):
        dots = "".join(
            f"M{round(_W * p.x[i] / p.top_x)} {_y(p.y[i], p.top_y)}h0"
            for i in range(0, len(p.x), every)
            if min(int(p.age[i] * _AGES), _AGES - 1) == age
        )
        if dots:
            shapes.append(f'<path class="age a{age}" d="{dots}"/>')
    out = [_stretched(top, height, _H, "".join(shapes))]
    out.append(_text("0", 12, f"{words.number(p.top_y)} token/s", "dim small"))
    out.append(_text("-5", top + height / 2 + 4, words.number(p.top_y / 2), "dim small", "end"))
    for i, c in enumerate(p.ceilings):
        anchor, dx = ("end", -4) if c.side == "left" else ("", 4)
        at = f"{100 * c.x / p.top_x:.2f}%"
        out.append(_text(at, top + 14 + 14 * (i % 3), c.label, "small halo", anchor, dx))
    out.append(_text("0", foot, "0", "dim small"))
    out.append(_text("50%", foot, words.number(p.top_x / 2), "dim small", "middle"))
    unit = f"{words.number(p.top_x)} running requests"
    out.append(_text("100%", foot, unit, "dim small", "end"))
    return _still(label, foot + 6, Markup("".join(out)))


def _still(label: str, height: int, body: Markup) -> Markup:
    return Markup(
        '<svg class="still" role="img" aria-label="{}" width="100%" height="{}">{}</svg>'
    ).format(label, height, body)
