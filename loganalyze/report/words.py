"""How values are said in every form: numbers, times, durations, places, and text from logs.

A log is untrusted text. `safe` takes everything out of a report that could steer a
terminal, reorder a line or hide in it; every renderer calls it first, so none can forget.
Markup is the business of each form: HTML escapes, Markdown escapes its own way.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import TypeVar

from loganalyze.lengths import duration as duration
from loganalyze.model import Action, Episode, Evidence, Report, Scalar, Series, Severity

#: Where a string of a report is cut: none of ours is longer, and a page has to carry them.
MAX_CHARS = 1_000

#: A shape for each severity and status, so that colour never has to carry the meaning.
SHAPE: Mapping[str, str] = {
    "critical": "■",
    "warning": "▲",
    "info": "●",
    "saturated": "■",
    "degraded": "▲",
    "healthy": "✓",
    "undetermined": "?",
}

#: What the events of a log are called; a kind that is not here is said as it is named.
EVENTS: Mapping[str, str] = {
    "retract": "retractions (KV pool full while decoding)",
    "retract_abort": "requests aborted by a retraction",
    "kv_oom": "KV pool out of memory",
    "exception": "exceptions",
    "traceback": "tracebacks",
    "leak": "memory leaks reported by SGLang",
    "watchdog_timeout": "watchdog timeouts",
    "health_check_failed": "health checks failed",
    "ready": "server ready",
    "sigterm": "SIGTERM received",
    "graceful_exit": "graceful exits",
    "sigquit": "SIGQUIT from a child that died",
    "subprocess_crashed": "subprocesses crashed",
    "exit_code": "exit codes of processes",
    "collective_timeout": "collectives timed out (torch's watchdog)",
    "process_aborted": "processes aborted",
    "killed": "processes killed",
    "error": "errors without a traceback",
    "pyspy_missing": "stack dumps that failed (py-spy is missing)",
    "transfer_failed": "KV transfers failed (lines of all ranks)",
    "jit_compile": "kernels compiled",
    "flush_refused": "cache flushes refused",
    "input_too_long": "requests refused as too long",
    "http_4xx": "HTTP 4xx answers",
    "http_5xx": "HTTP 5xx answers",
}

#: How `Report.redacted` names a server argument that lost its value.
_ARGUMENT = "server argument "

#: Terminal escapes: CSI sequences, OSC and other strings up to their end, two-byte escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_SPACE = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")

_T = TypeVar("_T")


def clean(text: str, limit: int = MAX_CHARS) -> str:
    """Return `text` on one line without anything invisible.

    Escape sequences, control characters (C0, C1), format characters (bidirectional
    overrides, zero-width marks, tags), private-use and unassigned characters go; lone
    surrogates become U+FFFD; runs of white space become one space.

    Args:
        text: anything.
        limit: characters kept; a longer text says how much was cut.
    """
    if not (text.isascii() and text.isprintable() and "  " not in text):
        text = "".join(map(_visible, _SPACE.sub(" ", _ESCAPES.sub("", text))))
        text = " ".join(text.split())
    return shorten(text, limit)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return "\ufffd" if unicodedata.category(char) == "Cs" else ""


def shorten(text: str, limit: int) -> str:
    """Return at most about `limit` characters of `text`, and say how many were cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit].rstrip()} … (+{len(text) - limit:,} characters)"


def safe(report: Report) -> Report:
    """Return the same report with every string in it cleaned."""
    return _safe(report)


def _safe(value: _T) -> _T:
    out: object = value
    if isinstance(value, str):
        out = clean(value)
    elif isinstance(value, datetime | int | float) or value is None:
        return value
    elif isinstance(value, Series):  # numbers but for its names
        out = replace(value, rank=_safe(value.rank), source=clean(value.source))
    elif is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _safe(getattr(value, f.name)) for f in fields(value)}
        out = replace(value, **changed)
    elif isinstance(value, Mapping):
        out = {_safe(k): _safe(v) for k, v in value.items()}
    elif isinstance(value, Sequence):
        out = tuple(_safe(v) for v in value)
    else:
        out = clean(str(value))
    return out  # type: ignore[return-value]


#: Units that one of them is not said with.
_PLURALS = frozenset({"checks", "chunks", "lines", "ranks", "requests", "slots", "tokens"})


def number(value: Scalar, unit: str = "") -> str:
    """Say a value as people read it: two decimals at most, thousands apart, its unit.

    Seconds are said as a length.

    Whole numbers are never rounded: a line number or a token count must be found again.
    Fractions keep two decimals, as SGLang prints them; small ones keep two that count.
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "not in the log"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"{value} {unit}".strip()
    if unit == "s":
        return duration(value)
    small = value != 0 and abs(value) < 0.095
    if small:
        text = f"{value:.2g}"
    elif unit == "fraction":
        text = f"{value:.2f}"
    else:
        text = f"{value:,.{1 if abs(value) >= 1_000 else 2}f}".rstrip("0").rstrip(".")
    if unit == "fraction":
        return text
    if text == "1" and unit in _PLURALS:
        unit = unit[:-1]
    return f"{text}%" if unit == "percent" else f"{text} {unit}".strip()


def plain(value: object) -> str:
    """Say the value of a flag or server argument the way Python prints it."""
    return value if isinstance(value, str) else repr(value)


def has_date(time: datetime) -> bool:
    """Whether a time carries a date: logs without one count from 1970-01-01."""
    return time.year > 1970


def moment(time: datetime | None) -> str:
    """Say a time as logged: with its date, or `day 2, 00:01:02` where the log has none."""
    if time is None:
        return "no time stamp"
    if has_date(time):
        return time.isoformat(sep=" ", timespec="seconds")
    days = (time - datetime(1970, 1, 1)).days
    clock = time.time().isoformat(timespec="seconds")
    return f"day {days + 1}, {clock}" if days else clock


def span(start: datetime | None, end: datetime | None) -> str:
    """Say a stretch of time: its start, its end without repeating the day, its length."""
    if start is None or end is None:
        return "no time stamps"
    return moment(start) if start == end else f"{moment(start)} {until(start, end)}"


def until(start: datetime, end: datetime) -> str:
    """Say the end of a stretch of time without repeating the day, and its length."""
    same_day = start.date() == end.date()
    last = end.time().isoformat(timespec="seconds") if same_day else moment(end)
    return f"to {last} ({duration((end - start).total_seconds())})"


def place(source: str | None, line_no: int | None, last: int | None = None) -> str:
    """Say where: `server.log:123` or `server.log:123-140`; empty without a line."""
    if line_no is None:
        return ""
    lines = f"{line_no}-{last}" if last is not None and last != line_no else f"{line_no}"
    return f"{basename(source)}:{lines}" if source else f"line {lines}"


def place_of(episode: Episode) -> str:
    """Say where an episode is: `server.log:12-90`, or `server.log.1:12 to server.log:90`."""
    e = episode
    if e.last_source is None:
        return place(e.source, e.first_line, e.last_line)
    return f"{place(e.source, e.first_line)} to {place(e.last_source, e.last_line)}"


def basename(source: str | None) -> str:
    """Return the last part of a path: what stands beside a line number."""
    return re.split(r"[/\\]", name(source))[-1] if source else ""


def longest(episodes: Sequence[Episode], keep: int) -> list[Episode]:
    """Return the `keep` longest episodes in log order (by lines where there are no stamps)."""
    order = sorted(
        range(len(episodes)),
        key=lambda i: (
            -episodes[i].duration_s,
            episodes[i].first_line - episodes[i].last_line,
            i,
        ),
    )
    return [episodes[i] for i in sorted(order[:keep])]


def change(action: Action) -> str:
    """Say a flag's change: `--mem-fraction-static 0.88 → 0.93`; empty without a flag.

    A flag without a value is given or left out: it takes no `True`.
    """
    if not action.flag:
        return ""
    flag = action.flag if action.flag.startswith("-") else "--" + action.flag.replace("_", "-")
    if isinstance(action.proposed, bool):
        return flag if action.proposed else f"without {flag}"
    if action.proposed is None:
        shown = action.present is not None
        return f"{flag} ({f'now {plain(action.present)}' if shown else 'now: not in this log'})"
    if action.present is None:
        return f"{flag} {plain(action.proposed)} (now: not in this log)"
    return f"{flag} {plain(action.present)} → {plain(action.proposed)}"


def severity(value: Severity) -> str:
    """Say a severity with its shape: `■ critical`."""
    return f"{SHAPE[str(value)]} {value}"


def size(n_bytes: int) -> str:
    """Say a file's size in units of 1,000."""
    value = float(n_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1_000 or unit == "GB":
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1_000
    raise AssertionError("unreachable")


def sentence(*parts: str) -> str:
    """Join parts to sentences: each begins with a capital and ends with a full stop."""
    said = (p.strip() for p in parts if p.strip())
    return " ".join(
        p[0].upper() + p[1:] + ("" if p.endswith((".", "!", "?", ":")) else ".") for p in said
    )


def plural(n: int, one: str, many: str = "") -> str:
    """Say a count with its noun: `1 line`, `2 lines`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


#: Where a page says that the rest of a list is.
IN_JSON = "in the JSON form"


def more(n: int, one: str, where: str = IN_JSON, many: str = "") -> str:
    """Say how much of a list is left out and where it is; empty where nothing is."""
    said = plural(n, f"more {one}", f"more {many}" if many else "")
    return f"and {said}: {where}" if n > 0 else ""


def some(items: Sequence[object], most: int) -> str:
    """Say the first of some items, and how many follow: `1, 2, 3 and 12 more`."""
    rest = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + rest


def runs_in_trouble(problems: int, runs: int) -> str:
    """Say how many of the runs of an archive had a problem."""
    if not runs:
        return "no log could be analysed"
    return f"{f'{problems:,}' if problems else 'none'} of {plural(runs, 'run')} had a problem"


def left_out(failed: int, copies: int, within: int) -> str:
    """Say which logs of an archive are no runs; empty where all are."""
    parts = []
    if failed:
        parts.append(f"{plural(failed, 'log')} could not be analysed")
    if copies:
        where = f" ({within:,} within archives)" if within else ""
        parts.append(f"{plural(copies, 'copy', 'copies')} of these logs{where} not counted")
    return ", ".join(parts)


def several_pools(report: Report) -> bool:
    """Whether a server has pools beside the full KV one, so that what fits is what fits that."""
    return any(s.capacity.other_pools for s in report.sessions)


def pool_name(report: Report) -> str:
    """Name the pool of which it is said what fits."""
    return "full KV pool" if several_pools(report) else "KV pool"


def removed(report: Report) -> str:
    """Say what was taken out of the report, in one sentence."""
    if not report.redacts:
        return "Nothing was removed (--no-redact): this may hold keys, host names and home paths."
    if not report.redacted:
        return "Removed: nothing; no key, host, address or home path was met."
    args = [k.removeprefix(_ARGUMENT) for k in report.redacted if k.startswith(_ARGUMENT)]
    said = [f"{k} ({n:,})" for k, n in report.redacted.items() if not k.startswith(_ARGUMENT)]
    if args:
        said.append(f"the values of {some(args, 8)}")
    rest = [more(len(said) - 12, "kind")] if len(said) > 12 else []
    return f"Removed: {'; '.join([*said[:12], *rest])}."


def name(source: str) -> str:
    """Say a log's name; `-` is standard input."""
    return "standard input" if source == "-" else source


def quotes(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence that quotes a line, each line once."""
    seen: dict[tuple[str | None, int | None], Evidence] = {}
    for item in evidence:
        if item.quote:
            seen.setdefault((item.source, item.line_no), item)
    return list(seen.values())
