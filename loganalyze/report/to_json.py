"""The report as JSON, and back: the contract with other programs (README, "JSON").

The fields are those of the values in `model.py`, under the same names, with these
exceptions: a session's `config` holds the server arguments alone and the start-up sizes
stand beside it as `startup`; `is_problem` is written and not read.

Why ASCII: escaped, no character of a log can reach a terminal or break a line.
"""

# ruff: noqa: ANN401 - values of JSON have no static type
from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from loganalyze import model
from loganalyze.errors import InputError
from loganalyze.model import Episode, Report, Session, Severity

_T = TypeVar("_T")
_SURROGATE = re.compile("[\ud800-\udfff]")


def to_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain values that JSON can carry; see `plain`."""
    out = _fields(report)
    head = {k: out.pop(k) for k in ("schema_version", "tool_version")}
    return {**head, "is_problem": report.is_problem, **out}


def dumps(report: Report) -> str:
    """Return the report as JSON: indented for people, each timeline column on one line."""
    return indented(to_dict(report), "series")


def indented(out: dict[str, Any], dense: str) -> str:
    """Return an object as JSON, indented but for one list, whose items take a line each."""
    items = [json.dumps(i, allow_nan=False, separators=(",", ":")) for i in out.pop(dense)]
    head = json.dumps(out, allow_nan=False, indent=2)
    tail = ",\n    ".join(items)
    return head[: -len("\n}")] + f',\n  "{dense}": [{tail}]\n}}\n'


def loads(text: str | bytes) -> Report:
    """Return the report that `dumps` wrote.

    Fields that this version does not know are ignored; missing ones take their default.

    Raises:
        InputError: the text is no report, or one of a later schema.
    """
    try:
        data = json.loads(text)
        version = data["schema_version"]
        if version > model.SCHEMA_VERSION:
            raise InputError(
                f"the report has schema version {version}, this loganalyze reads up to "
                f"{model.SCHEMA_VERSION}",
                hint="use the loganalyze that wrote it, or a later one",
            )
        return _build(Report, data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "this is not a loganalyze report in JSON",
            hint="write one with `loganalyze check LOG --json`",
        ) from error


def plain(value: object) -> Any:
    """Return any value of `model.py` as JSON can carry it.

    Times are ISO 8601 without zone, as logged; numbers that are not finite become null; what
    a name holds that is not UTF-8 (a lone surrogate here) becomes U+FFFD.
    """
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Severity):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds" if value.microsecond else "auto")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Report):
        return to_dict(value)
    if isinstance(value, Session):
        out = _fields(value)
        startup = _fields(value.config)
        return {**out, "config": startup.pop("args"), "startup": startup}
    if isinstance(value, Episode) and value.last_source is None:  # as in all but rotated sets
        return {name: one for name, one in _fields(value).items() if name != "last_source"}
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return {plain(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(v) for v in value]
    return plain(str(value))


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: plain(getattr(value, f.name)) for f in fields(value)}


def _build(cls: type[_T], data: Mapping[str, Any]) -> _T:
    """Build a value of `model.py` from its JSON object."""
    if cls is Session:
        data = {**data, "config": {**data.get("startup", {}), "args": data["config"]}}
    known = fields(cls)  # type: ignore[arg-type]
    hints = _hints(cls)
    for f in known:
        if f.name not in data and f.default is MISSING and f.default_factory is MISSING:
            raise KeyError(f.name)
    return cls(**{f.name: _value(hints[f.name], data[f.name]) for f in known if f.name in data})


def _hints(cls: type) -> dict[str, Any]:
    """Return the field types; `model.py` imports datetime for type checkers only."""
    return typing.get_type_hints(cls, {**vars(model), "datetime": datetime})


def _value(hint: Any, value: Any) -> Any:
    """Turn one JSON value into what the field's type says."""
    origin, inner = get_origin(hint), get_args(hint)
    if value is None or origin is Literal or hint is object:
        return value
    if origin in (Union, types.UnionType):
        wanted = [h for h in inner if h is not type(None)]
        return _value(wanted[0], value) if len(wanted) == 1 else value
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_value(h, v) for h, v in zip(inner, value, strict=True))
    if origin in (tuple, Sequence):
        return tuple(_value(inner[0], v) for v in value)
    if origin is Mapping:
        return {k: _value(inner[1], v) for k, v in value.items()}
    if hint is Severity:
        return Severity[value.upper()]
    if hint is datetime:
        return datetime.fromisoformat(value)
    if isinstance(hint, type) and is_dataclass(hint):
        return _build(hint, value)
    return value
