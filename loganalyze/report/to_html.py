"""The report as one HTML file: nothing to load, nothing to install, complete without script.

The page holds, once each: a template filled with escaped text, still figures, the numbers
of the live figures, and plotly.js. The last two travel as gzip in base64 inside JSON and are
unpacked by the browser (`DecompressionStream`). A Content-Security-Policy names the hashes
of the one style sheet, our script and plotly.js: nothing else can run or load.

Why a limit of 2.2 MB: trackers refuse large attachments. A report that would be larger is
written again with less: fewer bins, fewer quoted lines, in the end without live figures; the
page says what it left out.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import dataclass, replace
from functools import cache

from markupsafe import Markup

from loganalyze.model import Report
from loganalyze.report import charts, facts, live, page, phase, to_svg, tree, words
from loganalyze.report.charts import Timeline
from loganalyze.report.phase import Phase

MAX_BYTES = 2_200_000
#: What the numbers of the figures may take of it, packed.
_MAX_DATA = 80_000


@dataclass(frozen=True, slots=True)
class Caps:
    """How much of each list the page shows; `scale` shortens a page that grew too long."""

    scale: int = 1

    def of(self, usual: int, least: int = 1) -> int:
        """Return how many of a list are shown that usually shows `usual`."""
        return max(least, usual // self.scale)


@dataclass(frozen=True, slots=True)
class Figures:
    """Both figures, drawn without a browser and packed for one."""

    timeline: Timeline | None = None
    timeline_caption: str = ""
    timeline_still: str = ""
    phase: Phase | None = None
    phase_caption: str = ""
    phase_still: str = ""
    data: str = ""


def render(report: Report) -> str:
    """Return the page. The same report gives the same text."""
    report = words.safe(report)
    return _fitting(report, _figures(report))


def render_still(report: Report) -> str:
    """Return the page without live figures: a tenth of the size, where thousands are written."""
    report = words.safe(report)
    return _fitting(report, replace(_figures(report), data=""))


def _fitting(report: Report, figures: Figures) -> str:
    for scale in (1, 2, 4, 8, 16, 32):
        text = _page(report, figures, Caps(scale))
        if len(text.encode()) <= MAX_BYTES:
            return text
    # Lists this short are read without zoom; the still figures show the whole timeline.
    return _page(report, replace(figures, data=""), Caps(scale))


def _figures(report: Report) -> Figures:
    """Draw the figures with as many bins as the page can carry."""
    factor = 1
    while True:
        timeline, cloud = charts.timeline(report, factor), phase.lay_out(report, factor)
        if timeline is None:
            return Figures()
        data = _pack(json.dumps(live.numbers(timeline, cloud), separators=(",", ":")))
        if len(data) <= _MAX_DATA or factor >= 4_096:
            break
        factor *= 2
    said = facts.timeline_caption(report, timeline)
    said_phase = facts.phase_caption(report, cloud) if cloud else ""
    return Figures(
        timeline=timeline,
        timeline_caption=said,
        timeline_still=to_svg.figure(timeline, said),
        phase=cloud,
        phase_caption=said_phase,
        phase_still=to_svg.phase_figure(cloud, said_phase) if cloud else "",
        data=data,
    )


def _page(report: Report, figures: Figures, caps: Caps) -> str:
    style, script = page.asset("style.css"), page.asset("report.js")
    scripts, data = [script], None
    if figures.data:
        plotly, packed = _plotly()
        scripts.append(plotly)
        data = {"figures": figures.data, "plotly": packed, "ids": _style_ids(plotly)}
    plan, checks = report.plan, facts.checks(report.checked)
    return page.render(
        "report.html.j2",
        report=report,
        figures=figures,
        caps=caps,
        policy=page.policy([style, ""], scripts, images=True),
        style=Markup(style),
        script=Markup(script),
        data=data,
        title=facts.title(report),
        status=facts.STATUS_WORDS[report.verdict.status],
        status_meaning=facts.STATUS_MEANING[report.verdict.status],
        first_action=facts.first_action(report),
        primary=report.findings.index(report.cause) if report.cause else None,
        period=facts.period(report),
        measured=facts.measured(report),
        key_numbers=list(facts.key_numbers(report)),
        table=facts.timeline_rows(figures.timeline) if figures.timeline else None,
        tree=tree.grow(report.findings),
        sessions_said=tree.sessions_said,
        checks=checks,
        counted=lambda status: sum(len(group) for group, _ in checks[status]),
        capacities=[(s, list(facts.capacity_rows(s))) for s in report.sessions],
        levers=facts.lever_rows(plan.now, plan.levers) if plan and plan.levers else [],
        arguments=facts.arguments(report),
        events=facts.events(report),
        removed=words.removed(report),
        words=words,
    )


def _pack(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@cache
def _plotly() -> tuple[str, str]:
    """Return plotly.js as it is, and packed."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text, _pack(text)


@cache
def _style_ids(plotly: str) -> list[str]:
    """Return the ids of style elements that plotly.js would add for its maps.

    It adds none whose id exists. The page has no map, and its policy refuses foreign styles
    with an error in the console; so report.js puts empty elements with these ids first.
    """
    return sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly)))
