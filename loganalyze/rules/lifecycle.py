"""Rules on the life of the server: crashes, hangs, idle times, warm-up and the end of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import polars as pl

from loganalyze import fatal
from loganalyze.episodes import Span, between, joined, point, spans
from loganalyze.fatal import class_of
from loganalyze.model import Action, Episode, Evidence, Finding, Severity
from loganalyze.rules import deaths
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    outside,
    shown,
    spell,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, duration, rule
from loganalyze.signals import Rank
from loganalyze.timeline import Gap, as_float


@rule(
    "CRS001",
    "crash-or-restart",
    severity=Severity.CRITICAL,
    explains=("HNG001", "WRM001", "DRN001"),
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
            what = class_of(row) or _text(row)
            raise NotApplicable(
                f"its last record is an error, {what} in line {row['line_no']}, and no statistics "
                "line follows; whether the process ended there is not printed"
            )
        return Clear("no sign of a crash or a restart")
    rows = case.data.batch
    first = died_of.row(0, named=True) if died_of.height else None
    died = first or (rows.row(-1, named=True) if rows.height else None)
    times = died_of["time"].drop_nulls()  # some of the words are printed without a stamp
    start = times[0] if times.len() else session.end
    back = following.session.start if following else None
    named = deaths.cause_of_death(died_of)
    why = _cause(*named) if named else "the log shows a new start without an orderly stop"
    down = (
        (back - start).total_seconds()
        if isinstance(back, datetime) and isinstance(start, datetime)
        else None
    )
    summary = f"The server died{f' at {start:%H:%M:%S}' if start else ''}: {why}"
    if following:
        summary += (
            "; it was started "
            f"again{f' after {duration(down)}' if down is not None and down >= 0 else ''}"
        )
    told = [named[1]] if named else []
    told += [row for row in died_of.head(4).iter_rows(named=True) if row not in told]
    evidence = [
        shown("event", _text(row), "", (row["source"], row["line_no"])) for row in told[:4]
    ]
    evidence += _changes(case)
    end = back if isinstance(back, datetime) else session.end
    line = int(died["line_no"]) if died else session.last_line
    last_line = following.session.first_line if following else max(session.last_line, line)
    return Finding(
        summary=summary,
        episodes=[Episode(start, end, line, max(line, last_line), None, session.source)],
        evidence=evidence,
        actions=_after_crash(case, *(named or ("child", None))),
        # Without a word of a failure it may have been a restart by hand.
        severity=Severity.CRITICAL if died_of.height else Severity.WARNING,
        confidence="high" if died_of.height else "medium",
        competing=""
        if died_of.height
        else "a restart by hand, whose SIGTERM line is not in this log",
        explained_by="HNG001"
        if _killed_by_watchdog(died_of) and "HNG001" in case.earlier
        else None,
    )


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
    "leak": "SGLang's own check found KV that nobody holds (a leak)",
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
    "|no kernel image"
)


def _text(row: dict[str, Any]) -> str:
    said = str(row["message"] or row["error"] or row["kind"]).strip()
    return said if row["exit_code"] is None else f"{said}, exit code {row['exit_code']}"


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


def _after_crash(case: Case, cause: str, row: dict[str, Any] | None) -> list[Action]:
    """Return what to do about a death of this cause."""
    advice = {
        "fraction_low": _more_static_memory,
        "kv_pool": _fewer_kv_slots,
        "host_memory": _less_host_memory,
        "mamba_slots": _more_mamba_slots,
        "graph_memory": _less_gpu_memory,
        "gpu_memory": _less_gpu_memory,
        "hang": _see_the_ranks,
        "collective": _see_the_ranks,
    }.get(cause)
    if advice is not None:
        return advice(case, row or {})
    return act(
        case,
        {
            "leak": "Upgrade: the releases mend such leaks one by one; until then restart before "
            "the pool fills, and try it without the prefix cache (KV010)",
            "gpu_error": "Upgrade, or try another attention backend; CUDA_LAUNCH_BLOCKING=1 makes "
            "the traceback name the kernel",
            "killed": "Ask who killed it: `dmesg | grep -i oom`, `kubectl describe pod` "
            "(OOMKilled, 137), the job scheduler; if RAM ran out, give more or use a smaller host "
            "cache",
            "segfault": "Upgrade, or report it with the native stack (the core file, or the lines "
            "after this one)",
            "aborted": "Read the lines around the first event: C++ prints the cause after what():",
            "child": "Look for the child's own last lines, in the logs of all ranks and nodes",
        }.get(cause, "Read the traceback around the first event; upgrade, or report it"),
    )


def _more_static_memory(case: Case, row: dict[str, Any]) -> list[Action]:
    fraction = case.arg("mem_fraction_static")
    return [
        *act(
            case,
            "Give weights and KV pool a larger share, in steps of 0.05",
            "mem-fraction-static",
            round(min(fraction + 0.05, 0.95), 3) if isinstance(fraction, float) else "higher",
        ),
        *act(
            case,
            "If the weights alone nearly fill the GPUs: more GPUs for the model (--tp-size), or "
            "quantised weights; and see that no other process holds GPU memory",
        ),
    ]


def _fewer_kv_slots(case: Case, row: dict[str, Any]) -> list[Action]:
    """Advise on a batch that the KV pool could not hold, although it was admitted."""
    out = act(
        case,
        "Upgrade: a scheduler that admits more than its pool holds is at fault; more or less GPU "
        "memory does not mend it",
    )
    said = f"{row.get('phase')} {row.get('message')} {row.get('traceback')}"
    chunk = case.signals.session.config.chunked_prefill_size
    if "Prefill" in said and chunk and chunk > 2048:
        text = "Until then, smaller prefill chunks, which ask for fewer slots at once"
        out += act(case, text, "chunked-prefill-size", chunk // 2, "", chunk)
    else:
        text = "Until then, fewer running requests, so that the pool keeps room"
        out += act(case, text, "max-running-requests", "lower")
    return out


def _less_host_memory(case: Case, row: dict[str, Any]) -> list[Action]:
    text = "Make the host cache fit into the RAM that is free, on every rank of the node"
    size = case.arg("hicache_size")
    if isinstance(size, int | float) and size > 0:
        return act(case, text, "hicache-size", "lower")
    return [
        *act(case, text, "hicache-ratio", "lower"),
        *act(case, "Or give the container more RAM"),
    ]


def _more_mamba_slots(case: Case, row: dict[str, Any]) -> list[Action]:
    return [
        *act(
            case,
            "Give the Mamba states a larger share of the memory",
            "mamba-full-memory-ratio",
            "higher",
        ),
        *act(case, "Or ask for a number of state slots", "max-mamba-cache-size", "higher"),
        *act(
            case,
            "Or fewer running requests, each of which needs slots",
            "max-running-requests",
            "lower",
        ),
    ]


def _less_gpu_memory(case: Case, row: dict[str, Any]) -> list[Action]:
    fraction = case.arg("mem_fraction_static")
    out = act(
        case,
        "Leave more memory for activations and graphs",
        "mem-fraction-static",
        round(fraction - 0.02, 3) if isinstance(fraction, float) else "lower by 0.02",
    )
    rows = case.data.batch
    last = rows["phase"][-1] if rows.height else None
    chunk = case.signals.session.config.chunked_prefill_size
    if fatal.cause(row) == "graph_memory":
        for flag in ("cuda-graph-max-bs-decode", "cuda-graph-max-bs"):
            more = act(case, "Or capture graphs for smaller batches only", flag, "lower")
            if more:
                return out + more
    elif last == "prefill" and chunk and chunk > 2048:
        out += act(
            case,
            "Smaller prefill chunks: memory ran out after a prefill",
            "chunked-prefill-size",
            chunk // 2,
            "",
            chunk,
        )
    elif last == "decode":
        out += act(
            case,
            "Fewer running requests: memory ran out while decoding",
            "max-running-requests",
            "lower",
        )
    return out


def _see_the_ranks(case: Case, row: dict[str, Any]) -> list[Action]:
    """Advise on a hang: which rank is behind, and on what."""
    if "pyspy_missing" in case.data.event["kind"]:
        out = act(
            case,
            "Install py-spy in the image: the watchdog called it to print where each rank hangs, "
            "and it was missing",
        )
    else:
        out = act(
            case,
            "See what all ranks did at that time (py-spy dump): the one that stands elsewhere "
            "than the others is behind",
        )
    out += act(
        case,
        "Look at links and hosts of all nodes: NCCL_DEBUG=WARN, GPU Xid errors in dmesg, "
        "InfiniBand counters",
    )
    return out + act(
        case, "Have the server dump its state when it hangs", "soft-watchdog-timeout", 60
    )


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
    after=("PDD002",),
)
def stall(case: Case, limits: Limits) -> Finding | Clear:
    """The server printed nothing for a while although requests were running.

    What it flags:
        A silence of `report_s` and `spacings` times the usual spacing, with running or waiting
        requests before it and no sign of idleness after it; at the end of the log one in which
        only access lines follow although requests waited; or a watchdog or health-check message.
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
    )
    if case.signals.session.role == "prefill":
        raise NotApplicable("a PD prefill server prints nothing when decode servers do the work")
    found = [
        (rank, gap)
        for rank in case.ranks
        for gap in rank.gaps
        if gap.busy
        and not gap.idle
        and gap.duration_s >= limits["report_s"]
        and not _others_busy(case, rank, gap.start_s, gap.end_s)
    ]
    found = [(rank, gap) for rank, gap in found if _went_on(rank, gap.before)]
    silences, found = found, [pair for pair in found if _was_felt(pair[0], pair[1].before)]
    tail = _silent_end(case, limits)
    if silences and not found and not said.height and tail is None:
        return Clear(
            f"stamps {duration(max(gap.duration_s for _, gap in silences))} apart, but the "
            "throughput printed after them does not include that time: the clock was set forward, "
            "or lines are missing"
        )
    if not found and not said.height:
        if all(rank.clock != "stamps" for rank in case.ranks):
            raise NotApplicable("its lines carry no stamps, so silences do not show")
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
        one = _reported(case, said.row(0, named=True))
    elif tail is not None:
        one = _endless(case, tail)
    messages = [
        shown("event", _text(row), "", (row["source"], row["line_no"]))
        for row in said.head(3).iter_rows(named=True)
    ]
    if said.height:
        one = replace(one, severity=Severity.CRITICAL, confidence="high", competing="")
    return replace(one, evidence=[*one.evidence, *messages])


def _silence(case: Case, found: Sequence[tuple[Rank, Gap]]) -> Finding:
    """Say the longest of some silences between statistics lines."""
    episodes: list[Episode] = []
    for rank, gap in found:
        one = between(rank, gap.before, gap.before + 1)
        if not any(e.start == one.start and e.end == one.end for e in episodes):
            episodes.append(one)
    rank, gap = max(found, key=lambda pair: pair[1].duration_s)
    before, after = (
        rank.lines.row(gap.before, named=True),
        rank.lines.row(gap.before + 1, named=True),
    )
    evidence = [
        shown(
            "longest silence",
            gap.duration_s,
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
    longest = duration(gap.duration_s)
    when = f", from {before['time']:%H:%M:%S}" if before["time"] else ""
    more = f"; {len(episodes)} such silences" if len(episodes) > 1 else ""
    compiled = _compiled(case, before, after)
    first = before["prefill"] and not rank.lines["decode"][: gap.before].any()
    if compiled or first:
        prompt = f"the prefill of {before['new_token'] or 0:,} tokens"
        evidence += [
            shown("kernels compiled", _text(row), "", (row["source"], row["line_no"]))
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
            f"the prefill of {before['new_token'] or 0:,} tokens that the line before announces "
            "took the time: its kernels were compiled, or are slow"
        )
    return Finding(
        summary=f"No line for {longest} although {_requests(running)} running{when}{more}",
        episodes=episodes,
        evidence=evidence,
        actions=_see_the_ranks(case, {}),
        severity=Severity.CRITICAL,
        confidence="high" if gap.duration_s >= 60 and not before["prefill"] else "medium",
        competing=competing,
    )


def _was_felt(rank: Rank, before: int) -> bool:
    """Whether the first decode throughput after a silence can include it; so if not printed.

    It is the mean since the decode line before, so a real silence pulls it down.
    """
    values = pl.col("gen_throughput").filter(pl.col("decode"))
    earlier = as_float(rank.lines[max(0, before - 20) : before + 1].select(values.median()).item())
    later = rank.lines[before + 1 : before + 100].select(values.drop_nulls().first()).item()
    return earlier is None or later is None or bool(later < earlier / 2)


def _reported(case: Case, row: dict[str, Any]) -> Finding:
    """Say a hang that shows in no silence, but in the server's own words."""
    episodes, silent = _silent_before(case, row)
    summary = f"The server reports that it hangs: {_text(row)}"
    if silent >= 1:
        summary += f", {duration(silent)} after its last statistics line"
    return Finding(summary=summary, episodes=episodes, actions=_see_the_ranks(case, {}))


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
    spacing = max(as_float(rank.lines["t"].diff().median(), 0.0) for rank in ranks)
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
        actions=_see_the_ranks(case, {}),
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
    one = Episode(last["time"], row["time"], last["line_no"], row["line_no"], None, last["source"])
    return [one], one.duration_s


def _others_busy(case: Case, rank: Rank, start: float, end: float) -> bool:
    """Whether another rank printed lines during the silence."""
    for other in case.ranks:
        if other is rank:
            continue
        t = other.lines["t"]
        inside = int(t.search_sorted(end - 2)) - int(t.search_sorted(start + 2))
        if inside > 0:
            return True
    return False


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


@rule(
    "IDL001",
    "idle",
    severity=Severity.INFO,
    needs=("running_req",),
    limits={"report_s": Limit(12.0, "s", "shortest wait for the first request after start-up")},
)
def idle(case: Case, limits: Limits) -> Finding | Clear:
    """The server had nothing to do for a while.

    What it flags:
        Silences whose neighbours show that no request was running or waiting.
    Why it is slow:
        It is not. But the first decode line after an idle time divides by that time and shows a
        throughput far too low: it is left out of all numbers here.
    Not this rule:
        Silence with requests running (HNG001).
    What to do:
        Nothing.
    Source:
        An idle scheduler prints nothing; a prefill line with `#running-req: 0` follows.
    """
    if all(rank.clock != "stamps" for rank in case.ranks):
        raise NotApplicable("its lines carry no stamps, so silences do not show")
    waited = _waited_for_work(case, limits)
    found = hold(case.ranks, lambda rank: spans(rank.grid["idle"]))
    found = [
        Held(held.rank, kept)
        for held in found
        if (
            kept := [
                s
                for s in held.spans
                if not _others_busy(
                    case, held.rank, s[0] * held.rank.step_s, s[1] * held.rank.step_s
                )
            ]
        )
    ]
    if not found and waited is None:
        return Clear("no idle time")
    episodes = ([waited] if waited else []) + [
        between(held.rank, gap.before, gap.before + 1)
        for held in found
        for gap in held.rank.gaps
        if gap.idle and not _others_busy(case, held.rank, gap.start_s, gap.end_s)
    ]
    worst = max(episodes, key=lambda e: e.duration_s)
    total = sum(e.duration_s for e in episodes)
    pieces = f" in {len(episodes)} spells" if len(episodes) > 1 else ""
    return Finding(
        summary=f"Nothing to do for {duration(total)}{pieces}, the longest "
        f"{duration(worst.duration_s)}",
        episodes=episodes,
        evidence=[
            shown(
                "longest idle time",
                worst.duration_s,
                "s",
                (worst.source, worst.last_line),
                "stamp of this line - stamp of the line before",
                0,
            )
        ],
        severity=Severity.INFO,
        confidence="high",
    )


def _waited_for_work(case: Case, limits: Limits) -> Episode | None:
    """Return the idle time between the start-up's end and the first batch, or None."""
    ready = case.data.event.filter((pl.col("kind") == "ready") & pl.col("time").is_not_null())
    first = [r.lines.row(0, named=True) for r in case.ranks if r.lines.height]
    first = [row for row in first if row["time"] is not None]
    if not ready.height or not first:
        return None
    row, work = ready.row(0, named=True), min(first, key=lambda r: r["time"])
    if not limits["report_s"] <= (work["time"] - row["time"]).total_seconds():
        return None
    return Episode(
        row["time"], work["time"], row["line_no"], work["line_no"], None, work["source"]
    )


@rule(
    "WRM001",
    "warm-up",
    severity=Severity.INFO,
    needs=("token|full_token", "running_req"),
    limits={
        "share": Limit(
            0.85, "fraction", "share of the settled tokens per request at which it ends"
        ),
        "shortest_s": Limit(15.0, "s", "shortest warm-up to report"),
        "rise": Limit(1.5, "x", "rise of tokens per request that marks a changed mix"),
        "level_s": Limit(600.0, "s", "time over which the old and the new level are taken"),
        "settle_s": Limit(120.0, "s", "shortest settled time after it"),
    },
    after=("KV010", "PRE001"),
)
def warm_up(case: Case, limits: Limits) -> Finding | Clear:
    """Requests are still young: throughput is higher than the server can sustain.

    What it flags:
        The time from a start, a restart or a change of the request mix until tokens per running
        request reach `share` of their settled median.
    Why it is slow:
        It is not, yet: tokens per request climb from the prompt to prompt plus most of the output
        within one request lifetime, and running requests and throughput fall as they do.
    Not this rule:
        A fall of throughput later on, with requests as long as before (THR002).
    What to do:
        Do not report throughput from this time as the server's level.
    Source:
        KV held = running x tokens per request.
    """
    if case.excerpt:
        raise NotApplicable("it is an excerpt; warm-up needs minutes of log")
    if case.signals.session.role == "prefill":
        raise NotApplicable("a PD prefill server keeps no running requests")
    others = ("KV010", "PRE001")
    found = hold(
        case.ranks,
        lambda rank: [
            s
            for s in _warming(rank, limits)
            if outside(case, rank, *others)[s[0] : s[1]].mean() == 1
        ],
    )
    if not found:
        return Clear("tokens per running request were settled from the first lines on")
    worst = found[0]
    settled = as_float(_per_request(worst.rank)[worst.spans[0][1] :].median(), 0.0)
    return Finding(
        summary=f"Warm-up {spell(case, found)}: tokens per running request climbed to "
        f"{settled:,.0f}; throughput from this time is not the settled level",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "settled tokens per running request",
                settled,
                "tokens",
                worst.line("t_mean"),
                "median after the warm-up",
                0,
            )
        ],
        actions=act(case, "Judge the server by the time after it"),
        severity=Severity.INFO,
        confidence=confidence(case, found),
    )


def _per_request(rank: Rank) -> pl.Series:
    """Return tokens per running request, smoothed over a few seconds."""
    return rank.select(
        pl.col("own_token").rolling_mean(rank.cells(5), min_samples=1)
        / pl.when(pl.col("running") > 0)
        .then(pl.col("running"))
        .rolling_mean(rank.cells(5), min_samples=1)
    )


def _warming(rank: Rank, limits: Limits) -> list[Span]:
    """Return warm-up spans: at the start, and where a longer mix of requests sets in."""
    a = _per_request(rank)
    height = rank.grid.height
    begins = [0, *_mix_changes(rank, a, limits)]
    out: list[Span] = []
    for begin, end in zip(begins, [*begins[1:], height], strict=True):
        if end - begin < rank.cells(limits["settle_s"]):
            continue
        settled = as_float(a[begin + (end - begin) // 2 : end].median(), 0.0)
        if settled <= 0:
            continue
        inside = a[begin:end]
        alive = (inside.is_not_null()).arg_max() or 0
        reached = (inside >= limits["share"] * settled).fill_null(False)
        stop = int(reached.arg_max() or 0)
        if reached.any() and stop - alive >= rank.cells(limits["shortest_s"]):
            out.append((begin + int(alive), begin + stop))
    return out


def _mix_changes(rank: Rank, a: pl.Series, limits: Limits) -> list[int]:
    """Return the cells at which tokens per request begin to rise to a new, lasting level.

    Waves of requests that finish together make tokens per request swing over minutes, so the
    levels before and after are medians of `level_s`; the rise begins at the last moment before
    the change at which a minute's mean still stood at the old level.
    """
    size = rank.cells(limits["level_s"])
    if a.len() < 1.5 * size:
        return []
    before = a.rolling_median(size, min_samples=size // 2).shift(1)
    after = a.reverse().rolling_median(size, min_samples=size // 2).reverse()
    ratio = (after / before).fill_nan(0.0).fill_null(0.0)
    minute = a.rolling_mean(rank.cells(60), min_samples=1, center=True)
    out: list[int] = []
    for first, end in joined(spans(ratio >= limits["rise"]), size // 2):
        top = first + int(ratio[first:end].arg_max() or 0)
        level = as_float(before[top], 0.0)
        low = spans((minute[max(0, top - size) : top + 1] <= level).fill_null(True))
        begin = max(0, top - size) + (low[-1][1] if low else 0)
        # The start's own warm-up is no change of the mix: the old level stood for a while.
        if begin >= size // 2:
            out.append(begin)
    return out


@rule(
    "DRN001",
    "drain-tail",
    severity=Severity.INFO,
    needs=("running_req", "queue_req"),
    limits={
        "lines": Limit(5.0, "lines", "fewest decode lines of falling running requests"),
        "start": Limit(4.0, "requests", "fewest running requests at its start"),
    },
)
def drain_tail(case: Case, limits: Limits) -> Finding | Clear:
    """The last requests of a job finish and no new ones come.

    What it flags:
        At the end of the log or before an idle time: no queue, no prefill, and running requests
        that only fall, over at least `lines` decode lines.
    Why it is slow:
        It is not: throughput falls with the number of requests, not with the server.
    Not this rule:
        Throughput that falls with requests still coming (THR002, KV006).
    What to do:
        Nothing; leave this time out when measuring.
    Source:
        #running-req, #queue-req and the absence of prefill lines.
    """
    pieces: list[Held] = []
    sizes: list[tuple[int, int]] = []
    for rank in case.ranks:
        ends = [rank.lines.height - 1, *(gap.before for gap in rank.gaps if gap.idle)]
        found: list[Span] = []
        for end in sorted(ends):
            first = _drain_start(rank, end)
            rows = rank.lines[first : end + 1].filter("decode")
            if rows.height < limits["lines"] or (rows["running_req"][0] or 0) < limits["start"]:
                continue
            if (rows["running_req"][-1] or 0) > 0.5 * rows["running_req"][0]:
                continue
            t = rank.lines["t"]
            found.append((int(t[first] / rank.step_s), int(t[end] / rank.step_s) + 1))
            sizes.append((int(rows["running_req"][0]), int(rows["running_req"][-1])))
        if found:
            pieces.append(Held(rank, joined(found, 0)))
    if not pieces:
        return Clear("no time in which the last requests only finished")
    return Finding(
        summary=f"The last requests finish and no new ones come {spell(case, pieces)}: running "
        f"falls from {sizes[0][0]} to {sizes[0][1]}",
        episodes=all_episodes(pieces),
        evidence=[
            shown(
                "running requests at its start", sizes[0][0], "requests", pieces[0].line("running")
            )
        ],
        severity=Severity.INFO,
        confidence=confidence(case, pieces, config=True),
    )


def _drain_start(rank: Rank, end: int) -> int:
    """Return the first row of the run of falling decode lines without a queue up to `end`."""
    rows = rank.lines[max(0, end - 2000) : end + 1]
    steady = (
        pl.col("decode")
        & (pl.col("queue_req") == 0)
        & (pl.col("running_req") <= pl.col("running_req").shift(1).fill_null(1 << 40))
        & ~pl.col("after_gap").fill_null(False)
    ).fill_null(False)
    run = spans(rows.select(steady).to_series())
    if not run or run[-1][1] != rows.height:
        return end
    return int(rows["row"][run[-1][0]])
