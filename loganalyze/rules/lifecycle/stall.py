"""HNG001: the server printed nothing although requests were running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import polars as pl

from loganalyze.episodes import between, point
from loganalyze.lengths import duration
from loganalyze.model import Action, Episode, Finding, Severity
from loganalyze.rules.held import (
    act,
    event_text,
    need_stamps,
    others_busy,
    shown,
    spells_of,
)
from loganalyze.rules.lifecycle.remedies import see_the_ranks
from loganalyze.rules.lifecycle.unanswered import printed_around, unanswered, while_computing
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import Gap, as_float

#: Ranks print in any order: a line of the same second may stand a few lines earlier.
_NEAR = 20


@rule(
    "HNG001",
    "stall",
    severity=Severity.CRITICAL,
    needs=("running_req",),
    limits={
        "report_s": Limit(30.0, "s", "shortest silence"),
        "spacings": Limit(8.0, "x", "and this many times the usual spacing of lines"),
    },
    after=("PDD002", "PRE001", "PRE003"),
)
def stall(case: Case, limits: Limits) -> Finding | Clear:
    """The server printed nothing for a while although requests were running.

    What it flags:
        A silence of `report_s` and `spacings` times the usual spacing, with running or waiting
        requests before it and no sign of idleness after it; at the end of the log one in which
        only access lines follow although requests waited; or a watchdog or health-check message.
        Health checks that fail while batches go on are told apart: the server computes, and its
        answers are late.
    Why it is slow:
        No forward pass was logged: a hang of a rank or a link, a long host operation, a paused
        process, or kernels that were compiled.
    Not this rule:
        Idle times (IDL001), a crash (CRS001), the chunks of a long prompt, which print lines, and
        a clock that was set forward: the next decode throughput is as high as before. The first
        prefill after a start takes long where its kernels are compiled in it: the finding then
        says so.
    What to do:
        Look at what all ranks did at that time (py-spy), at the links, and at the host. Compile
        kernels before serving.
    Source:
        Gaps of the log, the stamps of access lines after it; "watchdog timeout", "Health check
        failed"; the lines of DeepGEMM and Triton.
    """
    said = case.data.event.filter(
        pl.col("kind").is_in(["watchdog_timeout", "health_check_failed"])
        & ~pl.col("duplicate").fill_null(False)
    ).sort("line_no")
    late = while_computing(case, said.filter(pl.col("kind") == "health_check_failed"))
    if late.height:
        said = said.join(
            late.select_seq("source", "line_no"), on=["source", "line_no"], how="anti"
        )
    quiet = case.signals.session.role == "prefill"
    if quiet and not said.height and not late.height:
        raise NotApplicable("a PD prefill server prints nothing when decode servers do the work")
    found = [
        (rank, gap)
        for rank in (() if quiet else case.ranks)
        for gap in rank.gaps
        if gap.busy
        and not gap.idle
        and gap.duration_s >= limits["report_s"]
        and not others_busy(case, rank, gap.start_s, gap.end_s)
    ]
    found = [(rank, gap) for rank, gap in found if _went_on(rank, gap.before)]
    silences, found = (
        found,
        [
            (rank, gap)
            for rank, gap in found
            if _was_felt(rank, gap) or _was_compiling(case, rank, gap)
        ],
    )
    tail = None if quiet else _silent_end(case, limits)
    if late.height and not found and not said.height and (tail is None or not tail.owed):
        return unanswered(case, late)
    if silences and not found and not said.height and tail is None:
        return Clear(
            f"stamps {duration(max(gap.duration_s for _, gap in silences))} apart, but the "
            "throughput printed after them does not include that time: the clock was set forward, "
            "or lines are missing"
        )
    if not found and not said.height:
        need_stamps(case)
        if tail is None:
            return Clear(f"no silence of {limits['report_s']:.0f} s with requests running")
        if not tail.owed:
            return Clear(
                f"only access lines follow for {duration(tail.seconds)} after the last statistics "
                f"line, which shows {tail.running} running and none waiting: requests that end "
                "within a few steps print no further line, so this is most likely idle time"
            )
    if found:
        one = _silence(case, found)
    elif said.height:
        one = _reported(case, said)
    elif tail is not None:
        one = _endless(case, tail)
    messages = [
        shown("event", event_text(row), "", (row["source"], row["line_no"]))
        for row in said.head(3).iter_rows(named=True)
    ]
    if said.height:
        one = replace(
            one,
            severity=Severity.CRITICAL,
            confidence="high",
            competing="one step that takes longer than is waited for: a very long prefill, "
            "kernels that are compiled, a paused host",
        )
    return replace(one, evidence=[*one.evidence, *messages])


def _silence(case: Case, found: Sequence[tuple[Rank, Gap]]) -> Finding:
    """Say the longest of some silences between statistics lines."""
    episodes: list[Episode] = []
    for rank, gap in found:
        one = between(rank, gap.before, gap.before + 1)
        if not any(e.start == one.start and e.end == one.end for e in episodes):
            episodes.append(one)
    rank, gap = max(found, key=lambda pair: pair[1].duration_s)
    # From stamp to stamp, as it is shown beside its lines: a gap counts parts of a second.
    silent_s = between(rank, gap.before, gap.before + 1).duration_s or gap.duration_s
    before, after = (
        rank.lines.row(gap.before, named=True),
        rank.lines.row(gap.before + 1, named=True),
    )
    evidence = [
        shown(
            "longest silence",
            silent_s,
            "s",
            (before["source"], before["line_no"]),
            "stamp of the next line - stamp of this line",
            0,
        ),
        shown(
            "running requests before",
            before["running"],
            "requests",
            (before["source"], before["line_no"]),
        ),
        shown(
            "running requests after",
            after["running"],
            "requests",
            (after["source"], after["line_no"]),
        ),
    ]
    longest = duration(silent_s)
    when = f", from {before['time']:%H:%M:%S}" if before["time"] else ""
    more = f"; {len(episodes)} such silences" if len(episodes) > 1 else ""
    compiled = _compiled(case, before, after)
    first = before["prefill"] and not rank.lines["decode"][: gap.before].any()
    if compiled or first:
        prompt = _prefill_of(before)
        evidence += [
            shown("kernels compiled", event_text(row), "", (row["source"], row["line_no"]))
            for row in compiled[:2]
        ]
        return Finding(
            summary=(
                f"No line for {longest}{when} while kernels were compiled{more}"
                if compiled
                else f"The first prefill took {longest}{when}: {prompt} compiled its kernels, or "
                f"they are slow{more}"
            ),
            episodes=episodes,
            evidence=evidence,
            actions=_compile_before(case),
            severity=Severity.WARNING,
            confidence="medium" if compiled else "low",
            competing="a hang of a rank or a link that went on by itself",
        )
    running = before["running"] or 0
    competing = "an idle time whose first new line was lost (IDL001)"
    if before["prefill"]:
        competing = (
            f"{_prefill_of(before)} that the line before announces took the time: its kernels "
            "were compiled, or are slow"
        )
    return Finding(
        summary=f"No line for {longest} although {_requests(running)} running{when}{more}",
        episodes=episodes,
        evidence=evidence,
        actions=see_the_ranks(case, {}),
        severity=Severity.CRITICAL,
        confidence="high" if gap.duration_s >= 60 and not before["prefill"] else "medium",
        competing=competing,
    )


def _prefill_of(line: dict[str, Any]) -> str:
    """Name the prefill batch of a line; of a row of several lines nobody knows its tokens."""
    return (
        f"the prefill of {line['new_token'] or 0:,} tokens"
        if line["lines"] == 1
        else "the prefill"
    )


def _was_compiling(case: Case, rank: Rank, gap: Gap) -> bool:
    """Whether kernels were compiled in a silence."""
    before, after = (rank.lines.row(row, named=True) for row in (gap.before, gap.before + 1))
    return bool(_compiled(case, before, after))


def _was_felt(rank: Rank, gap: Gap) -> bool:
    """Whether the first decode throughput after a silence can include it; so if not printed.

    It is the mean since the decode line before, so a real silence pulls it down.
    """
    values = pl.col("gen_throughput").filter(pl.col("decode"))
    before = gap.before
    earlier = as_float(
        rank.lines[max(0, before - 20) : before + 1].select_seq(values.median()).item()
    )
    later = rank.lines[before + 1 : before + 100].select_seq(values.drop_nulls().first()).item()
    return earlier is None or later is None or bool(later < earlier / 2)


def _went_on(rank: Rank, row: int) -> bool:
    """Whether the lines around a silence show work that stood still, not the lack of it.

    A PD decode server may have waited for transfers. Where prefill lines are missing (a log of
    decode lines only), an idle time leaves no trace but other requests after it: then the same
    requests must go on with as many tokens as the steps between two lines decode.
    """
    before, after = rank.lines.row(row, named=True), rank.lines.row(row + 1, named=True)
    if (before["transfer_req"] or 0) > 0:
        return False
    if after["prefill"] or rank.lines["prefill"].any():
        return True
    same = after["running_req"] == before["running_req"]
    if before["token"] is None or after["token"] is None:
        return bool(same)
    step = rank.timeline.interval * (after["accept_len"] or 1.0) * (after["running_req"] or 0)
    grown = after["token"] - before["token"]
    return bool(same and 0.5 * step <= grown <= 1.5 * step + 1)


def _reported(case: Case, said: pl.DataFrame) -> Finding:
    """Say a hang that shows in no silence, but in the server's own words."""
    first = said.row(0, named=True)
    (one, *_), silent = _silent_before(case, first)
    episodes = [one, *spells_of(said)[1:]]
    summary = f"The server reports that it hangs: {event_text(first)}"
    if silent >= 1:
        summary += f", {duration(silent)} after its last statistics line"
    if len(episodes) > 1:
        summary += f"; {len(episodes)} times"
    return Finding(summary=summary, episodes=episodes, actions=see_the_ranks(case, {}))


@dataclass(frozen=True, slots=True)
class _Tail:
    """What follows the last statistics line of a log.

    Attributes:
        last: that line; running and waiting: its requests, on all ranks.
        seconds: time from it to the log's last stamp.
        owed: whether work was left for which a server prints a line: requests waited, or a
            prompt was prefilled in part; or requests fail since then.
    """

    last: dict[str, Any]
    end: datetime
    running: int
    waiting: int
    seconds: float
    owed: bool


def _silent_end(case: Case, limits: Limits) -> _Tail | None:
    """Return the silence at the end of a log whose access lines go on; None without one."""
    ranks = [rank for rank in case.ranks if rank.clock == "stamps" and rank.lines.height]
    if not ranks or case.signals.session.ended_by != "end_of_log":
        return None
    rows = [rank.lines.row(-1, named=True) for rank in ranks]
    last = max(
        (row for row in rows if row["time"] is not None),
        key=lambda row: row["time"],
        default=None,
    )
    if last is None:
        return None
    later = (pl.col("source") == last["source"]) & (pl.col("line_no") > last["line_no"])
    answers = case.data.request.filter(later)
    end = answers["time"].max()
    if not isinstance(end, datetime):
        return None
    seconds = (end - last["time"]).total_seconds()
    spacing = max(as_float(rank.lines["spacing_s"].median(), 0.0) for rank in ranks)
    if seconds < max(limits["report_s"], limits["spacings"] * spacing):
        return None
    waiting = sum(row["queue_req"] or 0 for row in rows)
    running = sum(row["running"] or 0 for row in rows)
    if not running + waiting:
        return None
    failed = answers.filter(pl.col("status") >= 500).height
    owed = (
        waiting > 0
        or failed > 2
        or any(row["cut"] or (row["pending_token"] or 0) > 0 for row in rows)
    )
    return _Tail(last, end, running, waiting, seconds, owed)


def _endless(case: Case, tail: _Tail) -> Finding:
    where = tail.last["source"], tail.last["line_no"]
    return Finding(
        summary=f"Nothing was computed for {duration(tail.seconds)}, up to the end of the log, "
        f"although {_requests(tail.running)} running and {tail.waiting} waiting: only access "
        f"lines follow after {tail.last['time']:%H:%M:%S}",
        episodes=[Episode(tail.last["time"], tail.end, where[1], where[1], None, where[0])],
        evidence=[
            shown(
                "silence at the end",
                tail.seconds,
                "s",
                where,
                "stamp of the last access line - stamp of this line",
                0,
            ),
            shown("waiting requests before", tail.waiting, "requests", where),
        ],
        actions=see_the_ranks(case, {}),
        severity=Severity.CRITICAL,
        confidence="medium",
        competing="all requests were aborted by their clients",
    )


def _compiled(case: Case, before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of kernels that were compiled between two lines."""
    inside = pl.col("line_no").is_between(before["line_no"] - _NEAR, after["line_no"])
    found = case.data.event.filter(
        (pl.col("kind") == "jit_compile") & (pl.col("source") == before["source"]) & inside
    )
    if before["time"] is not None:
        found = found.filter((pl.col("time") >= before["time"]).fill_null(True))
    return list(found.iter_rows(named=True))


def _compile_before(case: Case) -> list[Action]:
    return [
        *act(
            case,
            "Compile before serving: `python3 -m sglang.compile_deep_gemm` with the server's "
            "arguments for DeepGEMM, and warm-up requests of the usual lengths for all else",
        ),
        *act(case, "Keep the kernel caches on a volume, so that a new container finds them"),
    ]


def _requests(n: int) -> str:
    return "1 request was" if n == 1 else f"{n} requests were"


def _silent_before(case: Case, row: dict[str, Any]) -> tuple[list[Episode], float]:
    """Return the silence that ended with a message, and its length."""
    lines = case.data.batch.filter(
        (pl.col("line_no") < row["line_no"]) & (pl.col("source") == row["source"])
    )
    if not lines.height or row["time"] is None or lines["time"][-1] is None:
        return [point(row)], 0.0
    last = lines.row(-1, named=True)
    if any(rank.timeline.merged for rank in case.ranks):
        at = pl.Series([row["time"]], dtype=pl.Datetime("ms"))
        printed = [printed_around(at, rank.lines)["before"][0] for rank in case.ranks]
        latest = max((time for time in printed if time is not None), default=last["time"])
        if latest > last["time"]:  # a line that is merged into a later row
            return [point(row)], (row["time"] - latest).total_seconds()
    one = Episode(last["time"], row["time"], last["line_no"], row["line_no"], None, last["source"])
    return [one], one.duration_s
