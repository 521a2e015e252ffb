"""A comparison as JSON: the fields of `model.Comparison`, under the same names.

Each side's `session` is as in a report's JSON; the sides' whole reports, timelines included,
follow under `reports` in the order before, after, after 2, ... Escaped to ASCII, as reports
are, so that no character of a log can reach a terminal.
"""

# ruff: noqa: ANN401 - values of JSON have no static type
from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from loganalyze.model import Comparison, Side
from loganalyze.report import compare_words, to_json


def to_dict(found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values that JSON can carry."""
    out: dict[str, Any] = _plain(found)
    head = {k: out.pop(k) for k in ("schema_version", "tool_version", "command")}
    reports = [to_json.to_dict(side.report) for _, side in compare_words.sides(found)]
    return {**head, **out, "reports": reports}


def dumps(found: Comparison) -> str:
    """Return the comparison as JSON: indented for people, each report on one line."""
    out = to_dict(found)
    reports = [json.dumps(r, allow_nan=False, separators=(",", ":")) for r in out.pop("reports")]
    head = json.dumps(out, allow_nan=False, indent=2)
    tail = ",\n    ".join(reports)
    return head[: -len("\n}")] + f',\n  "reports": [{tail}]\n}}\n'


def _plain(value: object) -> Any:
    if isinstance(value, Side):
        report = to_json.to_dict(value.report)
        own = {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.name != "report"}
        name = own.pop("name")
        return {
            "name": name,
            "session": report["sessions"][0],
            "verdict": report["verdict"],
            **own,
        }
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds" if value.microsecond else "auto")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence):
        return [_plain(v) for v in value]
    return str(value)
