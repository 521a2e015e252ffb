"""From logs to a report: read this file first.

sources -> parse -> sessions -> derive (in sessions) -> capacity -> rules -> Report.
Nothing flows back, and renderers see the Report alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from loganalyze import __version__, events, reading, rules, sessions
from loganalyze.filters import Filters
from loganalyze.lines import own_words
from loganalyze.mend import repaired
from loganalyze.model import Coverage, Evidence, Finding, Report, SessionData, Unreadable
from loganalyze.parse import Parser
from loganalyze.redact import Redactor
from loganalyze.sources import Source
from loganalyze.store import Store

#: A quoted line is cut here: no statistics line is longer, and a report is no log.
_QUOTE_CHARS = 600

#: Words after which a line holds a prompt or every server argument: never quoted.
_PRIVATE = (
    "server_args=",
    "Receive: ",
    "Receive OpenAI: ",
    "Finish: ",
    " obj=",
    "text=",
    '"obj"',
    "remaining_rids",
)


def analyze(
    *paths: str,
    overrides: Mapping[str, float] | None = None,
    profile: Literal["online", "batch"] | None = None,
    filters: Filters | None = None,
    on_progress: Callable[[int], None] | None = None,
    command: str = "",
    redact: bool = True,
    drawn: bool = True,
) -> Report:
    """Analyse logs and return the report.

    Args:
        paths: log files; `-` is standard input.
        overrides: limits of rules, such as {"KV001.enter_usage": 0.95}.
        profile: what the server is for; changes the verdict's words, never the facts.
        filters: the span of time, ranks and sources to look at; all by default.
        on_progress: called with the number of bytes read since the last call.
        command: the command line, for the report's "how to reproduce".
        redact: whether keys, hosts, addresses and user names are taken out.
        drawn: whether it has timelines and a plan, which no text shows.

    Raises:
        InputError: no input could be used; the message names the first and says why.
        UsageError: a limit that does not exist, or a filter that cannot be read.
    """
    overrides = rules.checked_overrides(overrides or {})
    parser = Parser()
    store, redactor = Store(), Redactor(keep=not redact)
    read, unreadable = reading.read_all(parser, store, paths, on_progress)
    report, split = judge(
        store,
        read,
        parser.coverage(),
        overrides=overrides,
        profile=profile,
        filters=filters,
        unreadable=unreadable,
        command=command,
        redactor=redactor,
    )
    return redactor.report(with_drawings(report, split) if drawn else report)


def with_drawings(report: Report, split: Sequence[SessionData]) -> Report:
    """Return a report with what pages and JSON show beside: the timelines and the plan."""
    from loganalyze import plan, series  # what prints a text alone does without them

    found = plan.for_report(split, report.findings)
    return replace(report, series=series.reduce(split), plan=found)


def judge(
    store: Store,
    read: Sequence[Source],
    coverage: Coverage,
    *,
    overrides: Mapping[str, float] | None = None,
    profile: Literal["online", "batch"] | None = None,
    filters: Filters | None = None,
    unreadable: Sequence[Unreadable] = (),
    command: str = "",
    redactor: Redactor,
) -> tuple[Report, list[SessionData]]:
    """Judge what was read: the report without drawings, and the sessions it was made from.

    Server arguments and quoted lines are redacted already; names of logs are as given, so that
    the caller can still look things up, and takes them out at the end (`Redactor.report`).

    Args:
        store: the records of the sources.
        read: the sources, which have been read.
        coverage: how much of them was understood.
        overrides: as in `analyze`, checked already.
        profile: as in `analyze`.
        filters: as in `analyze`.
        command: as in `analyze`.
        unreadable: what could not be read, for the report.
        redactor: takes out what must not be shown.
    """
    for source in read:
        for name in (source.name, *source.copies):
            redactor.name(name)
    split = [redactor.session(d) for d in reading.measured(store, read, filters or Filters())]
    outcomes = rules.run(split, overrides or {})
    split = rules.leaks_left_out(split, outcomes)
    quotes = _Quotes(read, redactor)
    found, verdict = rules.concluded(outcomes, split, profile)
    findings = [quotes.fill(f) for f in found]
    report = Report(
        tool_version=__version__,
        sources=[source.describe() for source in read],
        verdict=verdict,
        sessions=[data.session for data in split],
        findings=findings,
        checked=rules.checked(outcomes),
        coverage=replace(
            coverage,
            samples=[replace(s, text=quotes.sample(s.text) or "") for s in coverage.samples],
            notes=[
                *coverage.notes,
                *store.notes,
                *_newest_first(split),
                *_doubled(split),
                *_other_nodes(split, filters),
            ],
        ),
        series=(),
        unreadable=unreadable,
        command=command,
        events=[count for data in split for count in events.count(data)],
    )
    return report, split


def _newest_first(split: Sequence[SessionData]) -> list[str]:
    """Name the logs whose lines stand in the order in which log viewers show them."""
    lines = [data.batch.select_seq("source", "line_no") for data in split]
    names = {
        rows["source"][0]
        for rows in lines
        if rows.height > 1 and rows["line_no"].is_sorted(descending=True)
    }
    return [
        f"{name}: its lines stand newest first; they were taken from the last"
        for name in sorted(names)
    ]


def _doubled(split: Sequence[SessionData]) -> list[str]:
    """Name the logs that hold every line several times."""
    times = {data.session.source: data.copies for data in split if data.copies > 1}
    return [
        f"{name}: every line stands in it {n} times; each was counted once"
        for name, n in sorted(times.items())
    ]


def _other_nodes(split: Sequence[SessionData], filters: Filters | None) -> list[str]:
    """Say which ranks of the server these logs lack."""
    missing = sessions.ranks_missing(split)
    if missing is None or (filters and (filters.ranks or filters.sources)):
        return []
    ranks = missing[0] if missing[0] == missing[1] else f"{missing[0]} to {missing[1]}"
    return [f"{ranks} are on another node, whose log is missing: totals are of the others only"]


class _Quotes:
    """Fetches the quoted lines of findings from their logs, without secrets."""

    def __init__(self, sources: Iterable[Source], redactor: Redactor) -> None:
        self._sources = {source.name: source for source in sources}
        self._redactor = redactor

    def fill(self, finding: Finding) -> Finding:
        """Return the finding with the text of each evidence line."""
        wanted: dict[str, set[int]] = {}
        for item in finding.evidence:
            if item.line_no is not None and item.source in self._sources:
                wanted.setdefault(item.source, set()).add(item.line_no)
        found = {name: self._sources[name].quote(lines) for name, lines in wanted.items()}

        def quoted(item: Evidence) -> Evidence:
            line = found.get(item.source or "", {}).get(item.line_no or 0)
            return replace(item, quote=self.public(line)) if line else item

        return replace(finding, evidence=[quoted(item) for item in finding.evidence])

    def public(self, line: str) -> str | None:
        """Return what may be shown of a line of a log, or None."""
        if not self._redactor.keep:
            line = own_words(line) or own_words(repaired(line)) or line
        return self.sample(line)

    def sample(self, text: str) -> str | None:
        """Return what may be shown of the server's own words, or None."""
        end, word = min(
            ((text.find(w), w) for w in _PRIVATE if w in text), default=(len(text), "")
        )
        shown = self._redactor.line(text[:end].strip()[:_QUOTE_CHARS])
        return f"{shown} {word.strip()} …".lstrip() if word else shown or None
