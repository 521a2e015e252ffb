"""The dataset of a scan: four tables of Parquet, with a fixed schema.

`runs` has one row per log (or archive member), also for one that could not be analysed;
`findings` and `episodes` say what was found in it and when; `series` is its timeline in
steps of ten seconds. Columns are added, never renamed; every part of a table has all of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from loganalyze import derive, schema
from loganalyze.lengths import covered_s
from loganalyze.model import Finding, Report, SessionData, Severity
from loganalyze.scan import inputs
from loganalyze.schema import Column

SCHEMA_VERSION = 1
STEP = "10s"

_RUN = Column("run", pl.String, "", "Id of the run: the log's name, made short and unique.")
_SESSION = Column("session", pl.Int32, "", "Server life within the run, from 1.")
_TIME = pl.Datetime("ms")

RUNS = (
    _RUN,
    Column(
        "log",
        pl.String,
        "",
        "Name of the log; `archive!member` within an archive; of a rotated log that of its newest "
        "file. Bytes that are not UTF-8 stand as `\\xNN`, signatures of addresses are left out.",
    ),
    Column("host", pl.String, "", "Host: by --host, or by the wrapper, or the log's folder."),
    Column("model", pl.String, "", "Served model; null where no start-up line names it."),
    Column("release_first", pl.String, "", "Oldest release that prints these lines."),
    Column("release_last", pl.String, "", "Newest release that prints these lines."),
    Column("role", pl.String, "", "unified, prefill or decode."),
    Column("start", _TIME, "", "First stamp, as logged, without zone."),
    Column("end", _TIME, "", "Last stamp."),
    Column("duration_s", pl.Float64, "s", "From first to last stamp."),
    Column("status", pl.String, "", "saturated, degraded, healthy, undetermined; null: error."),
    Column("is_problem", pl.Boolean, "", "Whether a finding is a warning or critical."),
    Column("severity", pl.String, "", "Worst finding: critical, warning, info; null if none."),
    Column("primary", pl.String, "", "Code of the cause; null where there is none."),
    Column("cause", pl.String, "", "Name of the cause."),
    Column("headline", pl.String, "", "The verdict in one sentence."),
    Column("confidence", pl.String, "", "high, medium or low."),
    Column("problem_s", pl.Float64, "s", "Time within episodes of warnings and criticals."),
    Column("problem_frac", pl.Float64, "fraction", "problem_s / duration_s."),
    Column("sessions", pl.Int32, "", "Server lives in this log."),
    Column("crashes", pl.Int32, "", "Server lives that ended in a crash."),
    Column("kv_tokens", pl.Int64, "tokens", "KV pool of a DP rank; the smallest of all lives."),
    Column("kv_tokens_source", pl.String, "", "log or inferred."),
    Column("tokens_per_req", pl.Float64, "tokens", "KV tokens held by a running request."),
    Column("requests_fit", pl.Int64, "requests", "What fits the pool at the same time."),
    Column("rate_per_req", pl.Float64, "token/s", "Decode rate of a running request."),
    Column("peak_kv_usage", pl.Float64, "fraction", "Fullest pool of any line."),
    Column("peak_queue_req", pl.Int64, "requests", "Longest waiting queue."),
    Column("peak_running_req", pl.Int64, "requests", "Most running requests of one rank."),
    Column("lines", pl.Int64, "", "Lines of the log."),
    Column("lines_batch", pl.Int64, "", "Statistics lines among them."),
    Column("lines_unrecognised", pl.Int64, "", "Lines that looked like statistics, unread."),
    Column("size_bytes", pl.Int64, "bytes", "Size as stored, of all its files."),
    Column("sha256", pl.String, "", "Hash of the log as stored; of several files that of theirs."),
    Column("kind", pl.String, "", "file, gzip, tar member, ..."),
    Column("tz", pl.String, "", "Zone of a wrapper's clock; null where none is named."),
    Column("notes", pl.String, "", "What limits the analysis, such as a damaged end."),
    Column("error", pl.String, "", "Why it was not analysed; all measures are null then."),
    Column("hint", pl.String, "", "What to do about `error`."),
    Column("report", pl.String, "", "Its page, relative to the output folder; null without."),
    Column("tool_version", pl.String, "", "The loganalyze that analysed it."),
    Column("files", pl.Int32, "", "Files that the log consists of: several if it was rotated."),
    Column(
        "unread", pl.String, "", "Why a part of it could not be read; null: it was read whole."
    ),
    Column("content_sha256", pl.String, "", "Hash of what it holds, unpacked: equal for copies."),
)

FINDINGS = (
    _RUN,
    _SESSION,
    Column("code", pl.String, "", "Code of the rule, such as KV001."),
    Column("name", pl.String, "", "Name of the rule."),
    Column("severity", pl.String, "", "critical, warning or info."),
    Column("confidence", pl.String, "", "high, medium or low."),
    Column("is_primary", pl.Boolean, "", "Whether the run's verdict names it."),
    Column("explained_by", pl.String, "", "Code of the finding that this one follows from."),
    Column("summary", pl.String, "", "The claim in one sentence."),
    Column("start", _TIME, "", "Start of the first episode."),
    Column("end", _TIME, "", "End of the last episode."),
    Column("duration_s", pl.Float64, "s", "Time within its episodes, overlaps counted once."),
    Column("episodes", pl.Int32, "", "Number of episodes."),
    Column("first_line", pl.Int64, "", "First line of its episodes, in `source`."),
    Column("last_line", pl.Int64, "", "Last line of its episodes, in `source`."),
    Column("action", pl.String, "", "The first thing to do."),
    Column("flag", pl.String, "", "Server flag of that action, if it is one."),
    Column("present", pl.String, "", "Its present value, as text."),
    Column("proposed", pl.String, "", "Its proposed value, as text."),
    Column(
        "source",
        pl.String,
        "",
        "File that holds its lines; null (as the lines are) if they are in several.",
    ),
)

EPISODES = (
    _RUN,
    _SESSION,
    Column("code", pl.String, "", "Code of the finding."),
    Column("severity", pl.String, "", "Its severity."),
    Column("rank", pl.String, "", "Rank as printed; null where none is."),
    Column("start", _TIME, "", "Null where the log has no stamps."),
    Column("end", _TIME, "", "Null where the log has no stamps."),
    Column("duration_s", pl.Float64, "s", "0 where the log has no stamps."),
    Column("first_line", pl.Int64, "", "First line."),
    Column("last_line", pl.Int64, "", "Last line."),
    Column("source", pl.String, "", "File that holds the first line."),
)

#: Values of a series: (batch column, what is kept, phase or None for both).
_SERIES: tuple[tuple[str, str, str | None], ...] = (
    ("kv_usage", "mean", None),
    ("kv_usage", "max", None),
    ("running_req", "mean", "decode"),
    ("running_req", "max", "decode"),
    ("queue_req", "mean", None),
    ("queue_req", "max", None),
    ("gen_throughput", "mean", "decode"),
    ("gen_throughput", "min", "decode"),
    ("rate_per_req", "mean", "decode"),
    ("accept_len", "mean", "decode"),
    ("prealloc_req", "max", None),
    ("transfer_req", "max", "decode"),
    ("inflight_req", "max", "prefill"),
    ("new_token", "sum", "prefill"),
    ("cached_token", "sum", "prefill"),
)


def _series_column(name: str, how: str) -> Column:
    unit, meaning = next((c.unit, c.meaning) for c in schema.BATCH if c.name == name)
    what = {"mean": "Mean", "max": "Highest", "min": "Lowest", "sum": "Sum"}[how]
    dtype = pl.Int64 if how == "sum" else pl.Float32
    return Column(f"{name}_{how}", dtype, unit, f"{what} over the step. {meaning}")


SERIES = (
    _RUN,
    _SESSION,
    Column("rank", pl.String, "", "Rank as printed; null where none is."),
    Column("time", _TIME, "", "Start of the ten seconds. A step without a line has no row."),
    Column("lines", pl.Int32, "", "Statistics lines in the step, of other ranks' copies one."),
    *(_series_column(name, how) for name, how, _ in _SERIES),
)

TABLES: Mapping[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "findings": FINDINGS,
    "episodes": EPISODES,
    "series": SERIES,
}


def rows_of(
    run: str, log: str, host: str | None, report: Report, split: Sequence[SessionData]
) -> dict[str, pl.DataFrame]:
    """Return the rows of one analysed log, for every table.

    Args:
        run: id of the run.
        log: its name.
        host: the host it ran on, where that is known.
        report: what was found.
        split: the sessions that it was found in.
    """
    return {
        "runs": frame("runs", [_run(run, log, host, report, split)]),
        "findings": frame("findings", [_finding(run, f, report) for f in report.findings]),
        "episodes": frame("episodes", [r for f in report.findings for r in _episodes(run, f)]),
        "series": _series(run, split),
    }


def failed_row(
    run: str, log: str, size: int, reason: str, hint: str, version: str
) -> pl.DataFrame:
    """Return the row of a log that could not be analysed."""
    row = {"run": run, "log": log, "size_bytes": size, "error": reason, "hint": hint or None}
    return frame("runs", [{**row, "tool_version": version}])


def frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows as a frame of the table's schema."""
    dtypes = schema.dtypes(TABLES[table])
    data = {name: [row.get(name) for row in rows] for name in dtypes}
    return pl.DataFrame(data, schema=dtypes, strict=False)


def to_bytes(table: pl.DataFrame) -> bytes:
    """Return a frame as one Parquet file."""
    out = io.BytesIO()
    table.write_parquet(out, metadata={"loganalyze.schema_version": str(SCHEMA_VERSION)})
    return out.getvalue()


def from_bytes(table: str, parts: Iterable[bytes]) -> pl.DataFrame:
    """Return Parquet files of a table as one frame; one of an older schema gains columns."""
    read = [schema.conform(pl.read_parquet(io.BytesIO(p)), TABLES[table]) for p in parts]
    return pl.concat([schema.empty(TABLES[table]), *read])


def describe() -> str:
    """Return the schema as Markdown."""
    out = [
        "# The dataset of a scan",
        "",
        "Parquet, one folder a table, many parts of one schema. Times are as logged, without",
        "zone. A value that the log does not give is null. Columns are added, never renamed.",
        "Logs and hosts have their own names here: take them out before it leaves your house.",
        "",
        '    loganalyze query OUT "SELECT cause, count(*) FROM runs GROUP BY cause"',
        '    pl.scan_parquet("OUT/dataset/runs/*.parquet")',
        "    SELECT * FROM 'OUT/dataset/runs/*.parquet'   -- DuckDB",
    ]
    for name, columns in TABLES.items():
        out += ["", f"## {name}", "", "| column | type | unit | meaning |", "|---|---|---|---|"]
        out += [f"| {c.name} | {c.dtype} | {c.unit} | {c.meaning} |" for c in columns]
    return "\n".join(out) + "\n"


# -- one row ------------------------------------------------------------------------------


def _run(
    run: str, log: str, host: str | None, report: Report, split: Sequence[SessionData]
) -> dict[str, Any]:
    sources, sessions = report.sources, report.sessions
    start, end = derive.time_span(*(d.batch for d in split), *(d.event for d in split))
    duration = (end - start).total_seconds() if start and end else None
    problems = [f for f in report.findings if f.severity >= Severity.WARNING]
    problem_s = covered_s(e for f in problems for e in f.episodes)
    # The smallest pool is the one that fills first; its measures belong together.
    known = [s.capacity for s in sessions if s.capacity.kv_tokens]
    capacity = min(known, key=lambda c: c.kv_tokens or 0, default=None)
    capacity = capacity or next((s.capacity for s in sessions), None)
    ranges = [s.release_range for s in sessions if s.release_range]
    worst = max((f.severity for f in report.findings), default=None)
    return {
        "run": run,
        "log": log,
        "host": host,
        "model": next((m for s in sessions if (m := _model(s.config))), None),
        "release_first": ranges[-1][0] if ranges else None,
        "release_last": ranges[-1][1] if ranges else None,
        "role": sessions[-1].role if sessions else None,
        "start": start,
        "end": end,
        "duration_s": duration,
        "status": report.verdict.status,
        "is_problem": report.is_problem,
        "severity": None if worst is None else str(worst),
        "primary": report.verdict.primary,
        "cause": report.cause.name if report.cause else None,
        "headline": report.verdict.headline,
        "confidence": report.verdict.confidence,
        "problem_s": problem_s if start else None,
        "problem_frac": min(1.0, problem_s / duration) if duration else None,
        "sessions": len(sessions),
        "crashes": sum(s.ended_by == "crash" for s in sessions),
        "kv_tokens": capacity.kv_tokens if capacity else None,
        "kv_tokens_source": capacity.kv_tokens_source if capacity else None,
        "tokens_per_req": capacity.tokens_per_req if capacity else None,
        "requests_fit": capacity.requests_fit if capacity else None,
        "rate_per_req": capacity.rate_per_req if capacity else None,
        "peak_kv_usage": _peak(split, "kv_usage"),
        "peak_queue_req": _peak(split, "queue_req"),
        "peak_running_req": _peak(split, "running_req"),
        "files": len(sources),
        "lines": sum(source.lines for source in sources),
        "lines_batch": report.coverage.lines_batch,
        "lines_unrecognised": report.coverage.lines_unrecognised,
        "size_bytes": sum(source.size_bytes for source in sources),
        "sha256": sources[0].sha256
        if len(sources) == 1
        else inputs.digest(source.sha256 for source in sources),
        "kind": ", ".join(dict.fromkeys(source.kind for source in sources)),
        "tz": next((source.tz for source in sources if source.tz), None),
        "notes": "; ".join(report.coverage.notes) or None,
        "tool_version": report.tool_version,
        "unread": "; ".join(item.message for item in report.unreadable) or None,
    }


def _model(config: Any) -> str | None:  # noqa: ANN401 - a ServerConfig
    """Return the served model's name; of a path its last part."""
    name = config.arg("served_model_name") or config.arg("model_path") or config.model_type
    return str(name).rstrip("/").rsplit("/", 1)[-1] if name else None


def _peak(split: Sequence[SessionData], column: str) -> float | int | None:
    found = [d.batch[column].max() for d in split]
    return max((m for m in found if isinstance(m, int | float)), default=None)


def _finding(run: str, f: Finding, report: Report) -> dict[str, Any]:
    starts = [e.start for e in f.episodes if e.start]
    ends = [e.end for e in f.episodes if e.end]
    action = f.actions[0] if f.actions else None
    files = {e.source for e in f.episodes}
    lines = f.episodes if len(files) == 1 else ()
    return {
        "run": run,
        "session": f.session,
        "code": f.code,
        "name": f.name,
        "severity": str(f.severity),
        "confidence": f.confidence,
        "is_primary": f.code == report.verdict.primary,
        "explained_by": f.explained_by,
        "summary": f.summary,
        "start": min(starts, default=None),
        "end": max(ends, default=None),
        "duration_s": covered_s(f.episodes),
        "episodes": len(f.episodes),
        "first_line": min((e.first_line for e in lines), default=None),
        "last_line": max((e.last_line for e in lines), default=None),
        "action": action.text if action else None,
        "flag": action.flag if action else None,
        "present": _text(action.present) if action else None,
        "proposed": _text(action.proposed) if action else None,
        "source": files.pop() if len(files) == 1 else None,
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _episodes(run: str, f: Finding) -> list[dict[str, Any]]:
    return [
        {
            "run": run,
            "session": f.session,
            "code": f.code,
            "severity": str(f.severity),
            "rank": e.rank,
            "start": e.start,
            "end": e.end,
            "duration_s": e.duration_s,
            "first_line": e.first_line,
            "last_line": e.last_line,
            "source": e.source,
        }
        for e in f.episodes
    ]


def _series(run: str, split: Sequence[SessionData]) -> pl.DataFrame:
    """Return the timeline in steps of ten seconds; rows without a stamp are left out.

    A row of a very long log may stand for several lines, or for none and only keep an
    extreme (`lines`, see thin.py): means are weighted by it.
    """
    columns = ["session", "time", "phase", "lines", *dict.fromkeys(n for n, _, _ in _SERIES)]
    parts = [
        d.batch.filter(~pl.col("duplicate") & pl.col("time").is_not_null()).select(
            derive.rank_text(), *columns
        )
        for d in split
    ]
    if not parts:
        return schema.empty(SERIES)
    values = []
    for name, how, phase in _SERIES:
        value = pl.col(name) if phase is None else pl.when(pl.col("phase") == phase).then(name)
        if how == "mean":
            weight = pl.when(value.is_not_null()).then(pl.col("lines"))
            kept = (value * weight).sum() / pl.when(weight.sum() > 0).then(weight.sum())
        elif how == "sum":
            kept = pl.when(value.count() > 0).then(value.sum())
        else:
            kept = value.max() if how == "max" else value.min()
        values.append(kept.alias(f"{name}_{how}"))
    table = (
        pl.concat(parts)
        .with_columns(pl.col("time").dt.truncate(STEP))
        .group_by("session", "rank", "time")
        .agg(pl.col("lines").sum().alias("lines"), *values)
        .sort("session", "rank", "time")
        .with_columns(run=pl.lit(run))
    )
    return schema.conform(table, SERIES)
