"""A comparison as one HTML file: all runs on one page, each from its own start.

The page has no script at all; its Content-Security-Policy names the hash of the one style
sheet, which is that of reports, and allows nothing else.
"""

from __future__ import annotations

from markupsafe import Markup

from loganalyze.model import Comparison
from loganalyze.report import compare_words, page, to_svg, words

#: Which tone of the style sheet a verdict takes.
_TONES = {
    "better": "healthy",
    "worse": "saturated",
    "no difference shown": "undetermined",
    "not comparable": "undetermined",
}

#: Bins of one curve beyond which the figure would not show more.
_BUCKETS = 800


def render(found: Comparison) -> str:
    """Return the page. The same comparison gives the same text."""
    found = compare_words.safe(found)
    longest = max(
        (len(s.x) for _, side in compare_words.sides(found) for s in side.report.series), default=0
    )
    factor = max(1, -(-longest // _BUCKETS))
    timeline = compare_words.timeline(found, factor)
    caption = "All runs from their start on. The bars at the top are the time that is compared."
    style = page.asset("style.css")
    return page.render(
        "compare.html.j2",
        found=found,
        sides=compare_words.sides(found),
        say=compare_words,
        words=words,
        tones=_TONES,
        timeline=timeline,
        caption=caption,
        still=to_svg.figure(timeline, caption) if timeline else "",
        style=Markup(style),
        policy=page.policy([style]),
    )
