"""What a notebook or another program uses; all of it can be had from `loganalyze` itself.

    >>> import loganalyze
    >>> report = loganalyze.analyze("sample_logs/founding_case.log")
    >>> report.verdict.status, report.verdict.primary
    ('saturated', 'KV001')
    >>> for finding in report.findings:
    ...     if finding.severity >= loganalyze.Severity.CRITICAL:
    ...         print(finding.code, finding.name)
    KV001 kv-saturation
    KV004 retraction-storm

Names here are added to and never renamed, as are the fields of `Report` and the columns of the
frames. All else in the package may change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from loganalyze import filters, pipeline, reading, schema, sessions
from loganalyze.errors import InputError, LogAnalyzeError, UsageError
from loganalyze.filters import Filters
from loganalyze.frames import Frames
from loganalyze.model import Report, Severity, Unreadable
from loganalyze.parse import Parser
from loganalyze.report import to_json as _json

__all__ = [
    "InputError",
    "LogAnalyzeError",
    "LogFrames",
    "Report",
    "Severity",
    "UsageError",
    "analyze",
    "from_json",
    "read",
    "to_html",
    "to_json",
    "to_markdown",
    "to_text",
]

#: A log, or several: rotated parts, ranks, archives.
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, repr=False)
class LogFrames:
    """The records of logs, as Polars frames in (source, line_no) order.

    Every frame has its declared columns, in the same order for every log (schema.py says what
    each means, and in which unit); null is what the log does not print. Frames hold what the
    log holds: paths and addresses too. The server's arguments are not in them, and prompts are
    never read.

    Attributes:
        batch: one row per decode or prefill statistics line, with `kv_usage` and the other
            derived columns. `duplicate` marks what another rank of the same scheduler printed.
        event: retractions, errors, health checks and the like.
        startup: what the server says of its memory and model while it starts.
        request: one row per access line and per line of --log-requests.
        unreadable: inputs that could not be used, and why.
    """

    batch: pl.DataFrame
    event: pl.DataFrame
    startup: pl.DataFrame
    request: pl.DataFrame
    unreadable: Sequence[Unreadable] = ()

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {getattr(self, name).height:,} rows" for name in schema.FRAMES)
        lost = f", {len(self.unreadable)} unreadable" if self.unreadable else ""
        return f"LogFrames({rows}{lost})"


class _Kept:
    """Keeps every record, where the store of a report keeps what its memory allows."""

    def __init__(self) -> None:
        self._chunks: list[Frames] = []

    def add(self, frames: Frames) -> None:
        self._chunks.append(frames)

    def frames(self) -> Frames:
        return Frames(
            **{name: pl.concat([getattr(c, name) for c in self._chunks]) for name in schema.FRAMES}
        )


def analyze(
    paths: Paths,
    *,
    limits: Mapping[str, float] | None = None,
    profile: Literal["online", "batch"] | None = None,
    since: str | None = None,
    until: str | None = None,
    ranks: Iterable[str] = (),
    sources: Iterable[str] = (),
) -> Report:
    """Say why a server was slow: the report of `loganalyze check` and `loganalyze report`.

    Args:
        paths: a log or several; compressed files and archives too. `-` is standard input.
        limits: limits of rules to change, such as {"KV001.enter_usage": 0.95};
            `loganalyze explain CODE` lists them.
        profile: what the server is for; changes the verdict's words, never the facts.
        since: look only at what came after; a time as in the log, or "-30m" for its end.
        until: look only at what came before.
        ranks: look only at these, written as the log does: "DP1", or "DP1 TP4".
        sources: look only at these logs, named as in `paths`.

    Raises:
        InputError: no input could be used, or nothing is left; the message says why.
        UsageError: a limit that does not exist, or a time that cannot be read.

    Examples:
        >>> report = analyze("sample_logs/running_cap.log", limits={"RUN001.report_s": 600})
        >>> report.verdict.status
        'undetermined'
        >>> analyze("no.log")
        Traceback (most recent call last):
        loganalyze.errors.InputError: no.log: no such file
    """
    return pipeline.analyze(
        *_names(paths),
        overrides=limits,
        profile=profile,
        filters=Filters(since, until, tuple(ranks), tuple(sources)),
    )


def read(
    paths: Paths,
    *,
    since: str | None = None,
    until: str | None = None,
    ranks: Iterable[str] = (),
    sources: Iterable[str] = (),
) -> LogFrames:
    """Read logs into frames, every record of them, in memory.

    A day of one server takes a few hundred megabytes. For more, `loganalyze export` writes the
    same rows to Parquet in bounded memory, and `loganalyze scan` makes a dataset.

    Args:
        paths: as in `analyze`.
        since: as in `analyze`.
        until: as in `analyze`.
        ranks: as in `analyze`.
        sources: as in `analyze`.

    Raises:
        InputError: no input could be used, or nothing is left; the message says why.
        UsageError: a time that cannot be read.

    Examples:
        >>> frames = read("sample_logs/founding_case.log")
        >>> frames.batch.filter(phase="decode").select("line_no", "running_req", "kv_usage").row(0)
        (15, 85, 0.07)
        >>> frames.event.filter(kind="retract").height
        256
    """
    kept = _Kept()
    parser = Parser(requests="all")
    found, unreadable = reading.read_all(parser, kept, _names(paths), None)
    chosen = Filters(since, until, tuple(ranks), tuple(sources))
    split = filters.apply(sessions.split(kept.frames(), reading.rotated(found)), chosen)
    order = pl.Enum(list(dict.fromkeys(source.name for source in found)))
    return LogFrames(
        **{
            name: pl.concat([getattr(data, name) for data in split]).sort(
                pl.col("source").cast(order), "line_no", maintain_order=True
            )
            for name in schema.FRAMES
        },
        unreadable=tuple(unreadable),
    )


def to_html(report: Report) -> str:
    """Return the report as one page that needs no network.

    Examples:
        >>> page = to_html(analyze("sample_logs/ticket_excerpt.log"))
        >>> page.lstrip()[:15].lower()
        '<!doctype html>'
    """
    from loganalyze.report import to_html as form

    return form.render(report)


def to_markdown(report: Report) -> str:
    """Return the report as Markdown, for a ticket.

    Examples:
        >>> to_markdown(analyze("sample_logs/healthy.log")).splitlines()[2]
        'Confidence high.'
    """
    from loganalyze.report import to_markdown as form

    return form.render(report)


def to_text(report: Report) -> str:
    """Return the report as `loganalyze check` prints it, without colour.

    Examples:
        >>> to_text(analyze("sample_logs/healthy.log")).splitlines()[0]
        'sample_logs/healthy.log: 2,073 lines, file'
    """
    from loganalyze.report import to_text as form

    return form.render(report)


def to_json(report: Report) -> str:
    """Return the report as JSON; `from_json` reads it back.

    Examples:
        >>> report = analyze("sample_logs/idle_batches.log")
        >>> from_json(to_json(report)).verdict == report.verdict
        True
    """
    return _json.dumps(report)


def from_json(text: str | bytes) -> Report:
    """Return the report that `to_json` or `loganalyze check --json` wrote.

    Raises:
        InputError: the text is no report, or one of a later schema.
    """
    return _json.loads(text)


def _names(paths: Paths) -> list[str]:
    """Return the paths as the names that reports and frames give their logs."""
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.fspath(path) for path in several]
