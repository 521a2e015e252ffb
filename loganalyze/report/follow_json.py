"""Changes of state of a followed log as JSON, one object per line.

A finding has the fields that it has in a report's JSON. Escaped to ASCII, so that no character
of a log can reach a terminal.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from loganalyze import __version__
from loganalyze.follow import Change
from loganalyze.model import Coverage, Finding, Report, Verdict
from loganalyze.report import to_json


def change(one: Change, report: Report | None = None) -> str:
    """Return a change of state as one line.

    Args:
        one: the change.
        report: of the whole log, for its end: adds `verdict` and `findings`.
    """
    out: dict[str, Any] = {
        "event": one.event,
        "time": _time(one.time),
        "state": one.state,
        "was": one.was,
        "active": list(one.active),
        "now": {k: _time(v) if k == "time" else v for k, v in asdict(one.now).items()},
        "finding": finding(one.finding) if one.finding else None,
    }
    if report is not None:
        whole = to_json.to_dict(report)
        out |= {"verdict": whole["verdict"], "findings": whole["findings"]}
    return json.dumps(out, allow_nan=False, separators=(",", ":"))


def alert(one: Change) -> str:
    """Return what commands and webhooks are told: the finding, and what became of it."""
    assert one.finding is not None
    said = {"event": one.event, "time": _time(one.time), "state": one.state}
    return json.dumps({**said, **finding(one.finding)}, allow_nan=False)


def finding(one: Finding) -> dict[str, Any]:
    """Return a finding as in a report's JSON."""
    verdict = Verdict("undetermined", None, "", "low")
    report = Report(__version__, (), verdict, (), (one,), (), Coverage(), ())
    out: dict[str, Any] = to_json.to_dict(report)["findings"][0]
    return out


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value else None
