"""What the page of an archive says, out of its state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from loganalyze import __version__
from loganalyze.report.index_to_html import Overview, Table
from loganalyze.scan import inputs
from loganalyze.scan.state import State

#: Rows of the page: a browser sorts them at once, and the file stays under 3 MB.
MAX_ROWS = 2_000
MAX_VALUES, MAX_CAUSES, MAX_OTHERS = 25, 8, 200
_STATUSES = ("saturated", "degraded", "undetermined", "healthy", "not analysed")

Row = Mapping[str, Any]


def of(state: State) -> Overview:
    """Return what the page of a state says."""
    rows = [run.row for run in state.runs()]
    totals = state.totals()
    logs = {run.input: run.row["log"] for run in state.runs(MAX_ROWS)}
    logs |= {log: log for log in logs.values()}
    statuses = Counter(row["status"] or "not analysed" for row in rows)
    problems = [row for row in rows if row["is_problem"] and row["primary"]]
    causes = [code for code, _ in Counter(row["primary"] for row in problems).most_common()]
    others = state.inputs("other", MAX_OTHERS)
    copies = defaultdict(list)
    for known in state.inputs("copy"):
        if known.copy_of in logs:
            copies[logs[known.copy_of]].append(inputs.shown(known.name))
    period = _period(rows)
    by: tuple[tuple[str, Callable[[Row], str | None]], ...] = (
        ("host", lambda row: row["host"]),
        ("model", lambda row: row["model"]),
        ("release", _release),
        (period, lambda row: _bucket(row["start"], period)),
    )
    tables = [_table(name, value, rows, causes) for name, value in by] if problems else []
    return Overview(
        rows=rows[:MAX_ROWS],
        runs=totals.runs,
        problems=totals.problems,
        failed=totals.failed,
        copied=totals.copies,
        within=totals.within,
        statuses={s: statuses[s] for s in _STATUSES if statuses[s]},
        causes=[_cause(code, problems) for code in causes],
        tables=[t for t in tables if t],
        other=state.count("other"),
        others=[(inputs.shown(known.name), known.reason or "") for known in others],
        copies=copies,
        tool_version=__version__,
        written=datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    )


def _cause(code: str, problems: Iterable[Row]) -> tuple[str, str, int, int, str, str, float]:
    own = [row for row in problems if row["primary"] == code]
    days = sorted(row["start"][:10] for row in own if _dated(row["start"]))
    return (
        code,
        own[0]["cause"] or "",
        len(own),
        len({row["host"] for row in own if row["host"]}),
        days[0] if days else "",
        days[-1] if days else "",
        sum(row["problem_s"] or 0.0 for row in own),
    )


def _table(
    by: str, value: Callable[[Row], str | None], rows: Iterable[Row], causes: Sequence[str]
) -> Table | None:
    """Count causes by a property; None where there is nothing to compare."""
    causes = causes[:MAX_CAUSES]
    runs: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        key = value(row)
        if key is None or row["error"]:
            continue
        runs[key] += 1
        bad[key] += bool(row["is_problem"])
        if row["is_problem"]:
            found[key][row["primary"]] += 1
    if not runs:
        return None
    in_time = by in _STEPS
    order = sorted(runs) if in_time else sorted(runs, key=lambda k: (-bad[k], -runs[k], k))
    shown = order[-MAX_VALUES:] if in_time else order[:MAX_VALUES]
    lines = [(k, runs[k], bad[k], [found[k][c] for c in causes]) for k in shown]
    return Table(by, causes, lines, len(order) - len(shown))


def _release(row: Row) -> str | None:
    first, last = row["release_first"], row["release_last"]
    if not first:
        return None
    return str(first) if first == last else f"{first} to {last}"


# -- time -----------------------------------------------------------------------------------

_STEPS = ("hour", "day", "week", "month")


def _dated(time: str | None) -> bool:
    """Tell whether a time has a date: logs without one count from 1970-01-01."""
    return bool(time) and str(time)[:4] > "1970"


def _period(rows: Iterable[Row]) -> str:
    """Return the step that gives the runs' time a readable number of rows."""
    days = [datetime.fromisoformat(row["start"]) for row in rows if _dated(row["start"])]
    span = max(days) - min(days) if days else timedelta()
    limits = ((timedelta(hours=25), "hour"), (timedelta(25), "day"), (timedelta(175), "week"))
    return next((name for limit, name in limits if span <= limit), "month")


def _bucket(time: str | None, period: str) -> str | None:
    if not _dated(time):
        return None
    start = datetime.fromisoformat(str(time))
    if period == "week":
        monday = start - timedelta(days=start.weekday())
        return f"{monday:%Y-%m-%d} to {monday + timedelta(6):%m-%d}"
    return start.strftime({"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}[period])
