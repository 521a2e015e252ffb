"""The page of an archive: every run in one table, worst first, and what recurs where.

Complete without script, which adds sorting and filters; nothing loads from a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from markupsafe import Markup

from loganalyze.redact import Redactor
from loganalyze.report import page, words

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """How often each cause was found, by one property of the runs.

    Attributes:
        by: the property in words: host, model, release, week.
        causes: codes of the columns, the most frequent first.
        rows: (value, runs, runs with a problem, runs per cause).
        left_out: values beyond those shown.
    """

    by: str
    causes: Sequence[str]
    rows: Sequence[tuple[str, int, int, Sequence[int]]]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page says.

    Attributes:
        rows: runs and logs that could not be analysed, as in the dataset's table `runs`, worst
            first, times in ISO 8601; fewer than there are where the page would be too long.
        runs, problems: how many logs were analysed, and how many of them had a problem.
        failed: how many logs could not be analysed.
        copied, within: logs that are copies of runs, and those of them within archives.
        statuses: status -> runs; `not analysed` counts `failed`.
        causes: (code, name, runs, hosts, first seen, last seen, seconds in trouble).
        tables: recurrence by host, model, release and time.
        other: files that hold no log of SGLang, and the first of them with the reason.
        copies: name of a run's log -> other names of the same contents.
    """

    rows: Sequence[Row]
    runs: int
    problems: int
    statuses: Mapping[str, int]
    causes: Sequence[tuple[str, str, int, int, str, str, float]]
    tables: Sequence[Table]
    failed: int = 0
    copied: int = 0
    within: int = 0
    other: int = 0
    others: Sequence[tuple[str, str]] = ()
    copies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tool_version: str = ""
    written: str = ""


def render(overview: Overview, redact: bool = True) -> str:
    """Return the page; see `Redactor` for what is left out of it."""
    overview = _redacted(overview, Redactor(keep=not redact))
    style = page.asset("style.css") + page.asset("index.css")
    script = page.asset("index.js")
    return page.render(
        "index.html.j2",
        o=overview,
        rows=[_shown(row) for row in overview.rows],
        policy=page.policy([style], [script]),
        style=Markup(style),
        script=Markup(script),
        choices={
            "status": _distinct(overview.rows, _status),
            "cause": _distinct(overview.rows, lambda r: r["primary"]),
            "model": _distinct(overview.rows, lambda r: r["model"]),
            "release": _distinct(overview.rows, _release),
            "host": _distinct(overview.rows, lambda r: r["host"]),
        },
        words=words,
        clean=words.clean,
    )


def _redacted(o: Overview, redactor: Redactor) -> Overview:
    rows = [redactor.run(row) for row in o.rows]
    by_host = {r["host"]: c["host"] for r, c in zip(o.rows, rows, strict=True)}

    def value(by: str, name: str) -> str:
        return str(by_host.get(name, name)) if by == "host" else redactor.text(name)

    return replace(
        o,
        rows=rows,
        tables=[
            replace(t, rows=[(value(t.by, n), runs, bad, by) for n, runs, bad, by in t.rows])
            for t in o.tables
        ],
        others=[(redactor.name(name), redactor.text(reason)) for name, reason in o.others],
        copies={
            redactor.name(log): [redactor.name(n) for n in names]
            for log, names in o.copies.items()
        },
    )


def _shown(row: Row) -> dict[str, Any]:
    """Return a run as the table says it, with the numbers that it is sorted by."""
    capacity = words.number(row["kv_tokens"], "tokens") if row["kv_tokens"] else ""
    inferred = " (inferred)" if row["kv_tokens_source"] == "inferred" else ""
    fits = row["requests_fit"]
    start, end = _time(row["start"]), _time(row["end"])
    folder, _, name = row["log"].rpartition("/")
    share = row["problem_frac"]
    return {
        **{k: words.clean(v) if isinstance(v, str) else v for k, v in row.items()},
        "folder": words.clean(f"{folder}/" if folder else ""),
        "name": words.clean(name),
        "status": _status(row),
        "release": _release(row),
        "when": words.moment(start) if start else "",
        "until": words.until(start, end) if start and end and start != end else "",
        "cost": words.duration(row["problem_s"]) if row["problem_s"] else "",
        "share": f"{share:.0%} of the log" if share else "",
        "capacity": f"{capacity}{inferred}" if capacity else "",
        "fits": f"{words.plural(fits, 'request')} fit" if fits is not None else "",
        "said": words.clean(row["error"] or row["headline"] or ""),
    }


def _status(row: Row) -> str:
    return "not analysed" if row["error"] else str(row["status"])


def _release(row: Row) -> str:
    first, last = row["release_first"], row["release_last"]
    if not first:
        return ""
    return str(first) if first == last else f"{first} to {last}"


def _distinct(rows: Sequence[Row], value: Any) -> list[str]:  # noqa: ANN401 - a function
    return sorted({words.clean(str(v)) for row in rows if (v := value(row))})


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
