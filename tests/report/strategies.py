"""Any report at all: values of every type of model.py, built from their declared types."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st

from loganalyze import model
from loganalyze.model import Band, Report, Series, Severity
from loganalyze.report import charts

TIMES = st.integers(0, 2**41).map(lambda ms: datetime(1970, 1, 1) + timedelta(milliseconds=ms))
TEXT = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)
COLUMNS = sorted({name for panel in charts.PANELS for name in panel.columns} | {"token"})


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any type that a field of model.py can have."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is object:
        return JSON
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, types.UnionType):
        return st.one_of(*(of(h) for h in inner))
    if origin is tuple and inner[-1] is not Ellipsis:
        return st.tuples(*(of(h) for h in inner))
    if origin in (tuple, Sequence):
        return st.lists(of(inner[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, of(inner[1]), max_size=2)
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint, {**vars(model), "datetime": datetime})
        parts = {f.name: st.deferred(lambda h=hints[f.name]: of(h)) for f in fields(hint)}
        return st.builds(hint, **parts)
    return {
        str: TEXT,
        int: st.integers(-(2**60), 2**60),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
        datetime: TIMES,
        Severity: st.sampled_from(Severity),
    }[hint]


REPORTS: st.SearchStrategy[Report] = of(Report).map(
    lambda report: replace(report, schema_version=model.SCHEMA_VERSION)
)


@st.composite
def series(draw: st.DrawFn) -> Series:
    """Draw a timeline whose lists fit together, with bins and values missing anywhere."""
    x = sorted(draw(st.sets(st.integers(0, 1_499), min_size=1, max_size=12)))
    columns = {}
    for name in draw(st.sets(st.sampled_from(COLUMNS), max_size=4)):
        values = draw(
            st.lists(
                st.none() | st.floats(0, 1e6, allow_nan=False), min_size=len(x), max_size=len(x)
            )
        )
        low = tuple(None if v is None else v / 2 for v in values)
        columns[name] = Band(low, tuple(values), tuple(values))
    return Series(
        session=draw(st.integers(1, 3)),
        rank=draw(st.none() | st.sampled_from(["TP0", "DP1 TP0"]) | TEXT),
        source=draw(st.sampled_from(["a.log", "b.log"]) | TEXT),
        start=draw(st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2039, 1, 1))),
        step=draw(st.sampled_from([1.0, 30.0, 3_600.0])),
        x=tuple(x),
        first_line=tuple(10 + i for i in range(len(x))),
        columns=columns,
    )


DRAWABLE: st.SearchStrategy[Report] = st.builds(
    lambda report, drawn: replace(report, series=tuple(drawn)),
    REPORTS,
    st.lists(series(), max_size=11),
)
