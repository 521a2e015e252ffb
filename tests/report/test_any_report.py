"""Every form renders any report: fields missing, lists empty, values out of proportion."""

from __future__ import annotations

from xml.etree import ElementTree

import strategies
from hypothesis import HealthCheck, given, settings

from loganalyze.model import Report
from loganalyze.report import to_html, to_markdown, to_svg, to_text


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.DRAWABLE)
def test_all_forms_of_any_report(report: Report) -> None:
    page = to_html.render(report)
    assert len(page.encode()) <= to_html.MAX_BYTES
    assert page.count("</html>") == 1
    ElementTree.fromstring(to_svg.render(report))
    text = to_text.render(report, width=80)
    assert max(to_text.columns(line) for line in text.splitlines()) <= 80
    assert len(to_markdown.render(report).splitlines()) < 60
