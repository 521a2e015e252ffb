"""Reading the times and ranks that a user types."""

from datetime import datetime

import polars as pl
import pytest

from loganalyze import filters
from loganalyze.errors import UsageError

END = datetime(2026, 2, 24, 12, 30, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-02-24 12:03:07", datetime(2026, 2, 24, 12, 3, 7)),
        ("2026-02-24T12:03", datetime(2026, 2, 24, 12, 3)),
        ("2026-02-23", datetime(2026, 2, 23)),
        ("12:03", datetime(2026, 2, 24, 12, 3)),
        ("9:05:01", datetime(2026, 2, 24, 9, 5, 1)),
        ("-30m", datetime(2026, 2, 24, 12, 0)),
        ("-1.5h", datetime(2026, 2, 24, 11, 0)),
        ("-1d", datetime(2026, 2, 23, 12, 30)),
        ("-45s", datetime(2026, 2, 24, 12, 29, 15)),
    ],
)
def test_moment(text, expected):
    assert filters.moment(text, END) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-30", "25:00", "2026-13-01", "-5 parsecs"])
def test_a_time_that_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError, match="cannot read the time"):
        filters.moment(text, END)


def test_a_rank_that_cannot_be_read_is_refused():
    with pytest.raises(UsageError, match="cannot read the rank"):
        filters.expression(filters.Filters(ranks=("rank one",)), END)


@pytest.mark.parametrize("name", ["logs/b.log", "b.log"])
def test_a_source_is_named_with_its_folder_or_without(name):
    rows = pl.DataFrame({"source": ["logs/a.log", "logs/b.log", "other/ab.log"]})
    keep = filters.expression(filters.Filters(sources=(name,)), END)
    assert rows.filter(keep)["source"].to_list() == ["logs/b.log"]
