"""How a comparison is said in every form: changes, intervals, verdicts, and one timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

from loganalyze.model import (
    ChangeVerdict,
    Comparison,
    Difference,
    Episode,
    Finding,
    Pair,
    Report,
    Series,
    Setting,
    Severity,
    Side,
    Size,
)
from loganalyze.report import charts, words

#: A shape for each verdict, so that colour never has to carry the meaning.
SHAPE: Mapping[ChangeVerdict, str] = {
    "better": "▲",
    "worse": "▼",
    "no difference shown": "=",
    "not comparable": "?",
    "differs": "≠",
}

#: What an interval is, for the foot of every form.
INTERVALS = (
    "The range behind a change holds the true one 95 times in 100, by how much 24 pieces of the "
    "time compared differ; one measure in twenty may show a difference by chance. "
    "“No difference shown” is not “no difference”: see the range."
)

#: The plain means of a run, in the order of a table.
LEVELS: Mapping[str, str] = {
    "throughput": "token/s",
    "running": "running",
    "waiting": "waiting",
    "usage": "KV usage",
    "retractions": "retracted / min",
    "hit_rate": "cache hit rate",
    "saturated": "time saturated",
}

#: Where the time axis of both runs begins: hours and minutes since their start.
_ZERO = datetime(1970, 1, 1)


def safe(found: Comparison) -> Comparison:
    """Return the same comparison with every string in it cleaned."""
    return cast("Comparison", words.safe(cast("Any", found)))


def sides(found: Comparison) -> list[tuple[str, Side]]:
    """Return the sides with what they are called: before, after, after 2, ..."""
    out = [("before", found.before)]
    for i, pair in enumerate(found.pairs, 1):
        out.append(("after" if i == 1 else f"after {i}", pair.after))
    return out


def value(number: float | None, unit: str) -> str:
    """Say a measure: three digits, or as many as its size needs; no unit for fractions."""
    if number is None:
        return "unknown"
    if unit == "fraction":
        return f"{number:.3f}"
    size = abs(number)
    return (
        f"{number:,.0f}"
        if size >= 1_000
        else f"{number:.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
    )


def effect(one: Difference) -> str:
    """Say a change with its interval: `×1.16 (1.02 to 1.32)`, `-11.4 (-18.4 to -4.4)`."""
    e = one.effect
    if e is None:
        return ""
    if one.kind == "ratio":
        return f"×{e.mid:.2f} ({e.low:.2f} to {e.high:.2f})"
    digits = 3 if one.unit == "fraction" else 1
    low, mid, high = (f"{v:+.{digits}f}" for v in (e.low, e.mid, e.high))
    return f"{mid} ({low} to {high})"


def measured(one: Difference) -> str:
    """Say both values: `570 → 661 token/s`; empty where there are none."""
    if one.before is None and one.after is None:
        return ""
    unit = "" if one.unit == "fraction" else f" {one.unit}"
    return f"{value(one.before, one.unit)} → {value(one.after, one.unit)}{unit}"


def verdict(one: Difference) -> str:
    """Say a verdict with its shape."""
    return f"{SHAPE[one.verdict]} {one.verdict}"


def why(one: Difference) -> str:
    """Say on what a verdict rests."""
    return f"because {one.reason}" if one.verdict == "not comparable" else one.reason


def grouped(rows: Sequence[Difference]) -> list[list[Difference]]:
    """Put measures that cannot be compared for one reason together, the others each alone."""
    out: dict[object, list[Difference]] = {}
    for i, one in enumerate(rows):
        out.setdefault(i if one.effect else (one.verdict, one.reason), []).append(one)
    return list(out.values())


def setting(one: Setting) -> tuple[str, str, str]:
    """Return flag, value before and value after."""
    flag = "--" + one.name.replace("_", "-")
    return flag, words.plain(one.before), words.plain(one.after)


def size(one: Size) -> tuple[str, str, str]:
    """Return value before, value after and change of a size; the unit stands once."""
    said = [_exact(v) for v in (one.before, one.after)]
    said[0 if one.after is None else 1] += f" {one.unit}"
    if one.ratio is None:
        return said[0], said[1], ""
    change = "same" if abs(one.ratio - 1) < 0.000_5 else f"{100 * (one.ratio - 1):+.1f}%"
    return said[0], said[1], change


def _exact(number: float | None) -> str:
    if number is None:
        return "not in the log"
    return f"{round(number):,}" if number >= 100 else f"{number:,.2f}".rstrip("0").rstrip(".")


def compared(side: Side) -> str:
    """Say how much of a run is compared, and what was left out."""
    if not side.settled:
        return "nothing of it can be compared"
    out = ", ".join(f"{reason} {words.duration(s)}" for reason, s in side.left_out.items())
    settled = words.duration(side.settled_s)
    return f"{settled} compared; left out: {out}" if out else f"{settled} compared"


def release(side: Side) -> str:
    """Say from which release a run's lines are."""
    span = side.session.release_range
    if span is None:
        return "release unknown"
    return f"release {span[0]}" if span[0] == span[1] else f"release {span[0]} to {span[1]}"


def notes(found: Comparison, pair: Pair) -> list[str]:
    """Return everything that limits one pair, with the side it is about."""
    out = list(pair.notes)
    if not pair.settings_known:
        out.append("a log without its server_args= line cannot show which arguments were changed")
    for name, side in sides(found):
        if side is found.before or side is pair.after:
            out += [f"{name}: {note}" for note in side.notes]
    return out


def timeline(found: Comparison, factor: int) -> charts.Timeline | None:
    """Lay all runs on one figure, each from its own start.

    The bars above the panels are the settled stretches, which are compared.
    """
    reports = [_shifted(name, i, side) for i, (name, side) in enumerate(sides(found), 1)]
    joint = replace(
        reports[0],
        sources=[s for r in reports for s in r.sources],
        sessions=[s for r in reports for s in r.sessions],
        findings=[f for r in reports for f in r.findings],
        series=[s for r in reports for s in r.series],
    )
    return charts.timeline(joint, factor)


def _shifted(name: str, number: int, side: Side) -> Report:
    """Return a side's report in the clock of the figure, its settled time as a finding."""
    report = side.report
    starts = [s.start for s in report.series if s.start]
    back = min(starts) - _ZERO if starts else timedelta()
    label = f"{name}: {words.basename(side.name)}"
    episodes = [
        Episode(s.start and s.start - back, s.end and s.end - back, s.first_line, s.last_line)
        for s in side.settled
    ]
    session = side.session
    return replace(
        report,
        sessions=[
            replace(
                session,
                id=number,
                source=label,
                start=session.start and session.start - back,
                end=session.end and session.end - back,
            )
        ],
        findings=[
            Finding(
                summary="time that is compared",
                episodes=episodes,
                severity=Severity.INFO,
                code=name,
                session=number,
            )
        ],
        events=[],
        series=[_moved(s, label, number, back) for s in report.series],
    )


def _moved(series: Series, label: str, number: int, back: timedelta) -> Series:
    return replace(
        series,
        session=number,
        source=label,
        start=series.start and series.start - back,
        gaps=[(a - back, b - back) for a, b in series.gaps],
    )


def split(settings: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    """Return the settings that may matter, and the incidental ones."""
    return [s for s in settings if not s.incidental], [s for s in settings if s.incidental]
