"""CRS001: the server process died, or was started again."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import polars as pl

from loganalyze import mixed, timeline
from loganalyze.fatal import STOPS, class_of
from loganalyze.lengths import duration
from loganalyze.model import Episode, Evidence, Finding, SessionData, Severity
from loganalyze.rules import deaths
from loganalyze.rules.held import event_text, shown
from loganalyze.rules.lifecycle.remedies import after_crash
from loganalyze.rules.registry import Case, Clear, Limits, NotApplicable, rule


@rule(
    "CRS001",
    "crash-or-restart",
    severity=Severity.CRITICAL,
    explains=("HNG001", "ERR001", "WRM001", "DRN001"),
    after=("HNG001",),
)
def crash_or_restart(case: Case, limits: Limits) -> Finding | Clear:
    """The server process died, or was started again.

    What it flags:
        An exception of the scheduler, a sigquit from a child, a watchdog kill, an abort or a
        kill, an error of the GPU or the links as the last word of the log, or a second start in
        the same log without an orderly stop.
    Why it is slow:
        Everything in flight is lost, and nothing is served until the new process has loaded the
        model and captured its graphs.
    Not this rule:
        An orderly stop (SIGTERM), and silence without a death (HNG001).
    What to do:
        It depends on what ran out or failed, which the finding names. GPU memory: a lower
        --mem-fraction-static, smaller chunks or fewer running requests. No room for a KV pool at
        start: a higher one. KV slots, host memory, Mamba slots: their own flags. A hang: see where
        all ranks stand. A new session has its own pool size and flags.
    Source:
        Scheduler hit an exception; SIGQUIT received, Received sigquit from a child process; exit
        codes; torch's watchdog; tracebacks and errors as the last lines of a log.
    """
    session = case.signals.session
    died_of = deaths.fatal_events(case.data)
    following = case.following
    if not died_of.height and session.ended_by != "crash":
        if session.ended_by == "stop":
            return Clear("the log ends in an orderly stop")
        unclear = deaths.unclear_end(case.data)
        if unclear.height:
            row = unclear.row(0, named=True)
            what = class_of(row) or event_text(row)
            raise NotApplicable(
                f"its last record is an error, {what} in line {row['line_no']}, and no statistics "
                "line follows; whether the process ended there is not printed"
            )
        return Clear("no sign of a crash or a restart")
    if not died_of.height and following and _several(following):
        raise NotApplicable(
            "another server starts in it, whose lines are mixed with those of the first"
        )
    rows = case.data.batch
    first = died_of.row(0, named=True) if died_of.height else None
    died = first or (rows.row(-1, named=True) if rows.height else None)
    times = died_of["time"].drop_nulls()  # some of the words are printed without a stamp
    start = times[0] if times.len() else session.end
    back = following.session.start if following else None
    named = deaths.cause_of_death(died_of)
    if named and named[0] == "gpu_memory" and deaths.while_loading(case.data):
        named = "weights", named[1]
    why = _cause(*named) if named else "the log shows a new start without an orderly stop"
    down = (
        (back - start).total_seconds()
        if isinstance(back, datetime) and isinstance(start, datetime)
        else None
    )
    # Where no word of the death carries a stamp, only the last one before it is known.
    at = "at" if times.len() or not died_of.height else "after"
    summary = f"The server died{f' {at} {start:%H:%M:%S}' if start else ''}: {why}"
    if following:
        summary += (
            "; it was started "
            f"again{f' after {duration(down)}' if down is not None and down >= 0 else ''}"
        )
    told = [named[1]] if named else []
    told += [row for row in died_of.head(4).iter_rows(named=True) if row not in told]
    evidence = [
        shown("event", event_text(row), "", (row["source"], row["line_no"])) for row in told[:4]
    ]
    evidence += _changes(case)
    end = back if isinstance(back, datetime) else session.end
    line = int(died["line_no"]) if died else session.last_line
    last_line = following.session.first_line if following else max(session.last_line, line)
    return Finding(
        summary=summary,
        episodes=[Episode(start, end, line, max(line, last_line), None, session.source)],
        evidence=evidence,
        actions=after_crash(case, *(named or ("unsaid", None))),
        # Without a word of a failure it may have been a restart by hand.
        severity=Severity.CRITICAL if died_of.height else Severity.WARNING,
        confidence="high" if died_of.height else "medium",
        competing=_rival(case.data, died_of),
        explained_by="HNG001"
        if _killed_by_watchdog(died_of) and "HNG001" in case.earlier
        else None,
    )


def _rival(data: SessionData, died_of: pl.DataFrame) -> str:
    if not died_of.height:
        return "a restart by hand, whose SIGTERM line is not in this log"
    earlier = data.event.filter(
        pl.col("kind").is_in(STOPS) & (pl.col("line_no") < died_of["line_no"][0])
    )
    if earlier.height:
        return f"an orderly stop, which began in line {earlier['line_no'][0]} and went wrong"
    return "an orderly stop excluded: no line of one stands before it"


def _several(data: SessionData) -> bool:
    """Whether the lines of a session are of several servers: then its start was no restart."""
    return any(mixed.told(data, one).several for one in timeline.of(data))


def _killed_by_watchdog(died_of: pl.DataFrame) -> bool:
    """Whether the process died because its watchdog saw it hang: then the hang is the cause."""
    return died_of.height > 0 and died_of["kind"][0] == "watchdog_timeout"


#: What the server died of, in words; see `fatal.cause`.
_CAUSES = {
    "fraction_low": "--mem-fraction-static leaves no room for a KV pool beside the weights",
    "kv_pool": "the KV pool had no room for a batch (not the GPU's memory)",
    "host_memory": "out of host memory (RAM)",
    "mamba_slots": "no Mamba state slot was left",
    "graph_memory": "out of GPU memory while its graphs were captured",
    "gpu_memory": "out of GPU memory",
    "weights": "out of GPU memory while the weights were loaded: they do not fit",
    "gpus_taken": "the memory of some of its GPUs is taken by other processes",
    "leak": "SGLang's own check found KV that nobody holds (a leak)",
    "port_taken": "the address it was to listen on is taken by another process",
    "rendezvous": "its nodes or ranks did not find each other at the start",
    "collective": "the ranks could not communicate: one of them, or a link, hung or failed",
    "gpu_error": "a GPU error",
    "hang": "the watchdog saw no forward pass in time",
    "killed": "killed from outside (signal 9): out of host memory, the orchestrator, or by hand",
    "segfault": "a segmentation fault",
    "aborted": "the process aborted itself",
    "exception": "its scheduler hit an exception",
    "child": "a child process failed",
}


def _cause(name: str, row: dict[str, Any]) -> str:
    """Say a cause, with what of the event's own text is safe to print."""
    said = _CAUSES[name]
    if name == "exception" and row["kind"] != "exception":
        said = "it ended in a traceback" if row["traceback"] else "it ended in an error"
    phrase = re.search(_PHRASES, f"{row['message']} {row['traceback']}")
    detail = [class_of(row), phrase[0] if phrase and name == "gpu_error" else None]
    if row["exit_code"] is not None and name != "killed":
        detail.append(f"exit code {row['exit_code']}")
    known = ", ".join(part for part in detail if part)
    return f"{said} ({known})" if known else said


#: Phrases of GPU errors that hold nothing of a request.
_PHRASES = (
    "illegal memory access|device-side assert|misaligned address|unspecified launch failure"
    "|no kernel image|memory access fault"
)


def _changes(case: Case) -> list[Evidence]:
    """Return what differs in the next session: pool size and memory fraction."""
    following = case.following
    if following is None:
        return []
    old, new = case.signals.session.config, following.session.config
    out = []
    if (
        old.kv_capacity_tokens
        and new.kv_capacity_tokens
        and old.kv_capacity_tokens != new.kv_capacity_tokens
    ):
        out.append(
            shown(
                "KV pool after the restart",
                new.kv_capacity_tokens,
                "tokens",
                (following.session.source, new.capacity_line),
                f"before: {old.kv_capacity_tokens:,}",
            )
        )
    a, b = old.arg("mem_fraction_static"), new.arg("mem_fraction_static")
    if a is not None and b is not None and a != b:
        out.append(
            shown(
                "--mem-fraction-static after the restart",
                b if isinstance(b, str | int | float) else str(b),
                "",
                (following.session.source, new.args_line),
                f"before: {a}",
            )
        )
    return out
