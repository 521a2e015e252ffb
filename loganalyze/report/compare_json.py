"""A comparison as JSON: the fields of `model.Comparison`, under the same names.

Each side's `session` is as in a report's JSON; the sides' whole reports, timelines included,
follow under `reports` in the order before, after, after 2, ... Escaped to ASCII, as reports
are, so that no character of a log can reach a terminal.
"""

from __future__ import annotations

from typing import Any

from loganalyze.model import Comparison
from loganalyze.report import to_json


def to_dict(found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values that JSON can carry."""
    out = to_json.plain(found)
    head = {k: out.pop(k) for k in ("schema_version", "tool_version", "command")}
    reports: list[Any] = []

    def brief(side: dict[str, Any]) -> dict[str, Any]:
        report = side.pop("report")
        reports.append(report)
        name = side.pop("name")
        session = report["sessions"][0]
        return {"name": name, "session": session, "verdict": report["verdict"], **side}

    out["before"] = brief(out["before"])
    for pair in out["pairs"]:
        pair["after"] = brief(pair["after"])
    return {**head, **out, "reports": reports}


def dumps(found: Comparison) -> str:
    """Return the comparison as JSON: indented for people, each report on one line."""
    return to_json.indented(to_dict(found), "reports")
