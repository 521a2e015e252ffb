"""What a server died of, as its events say it.

Some kinds of events end a process wherever they stand; others, such as an error without a
traceback, only where they are the last that it printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import polars as pl

#: Kinds that a process does not survive.
DEADLY = (
    "exception",
    "sigquit",
    "watchdog_timeout",
    "subprocess_crashed",
    "collective_timeout",
    "process_aborted",
    "killed",
)

#: Of these, how a child ended: after an orderly stop they tell of that stop.
_ENDS = ("subprocess_crashed", "exit_code", "process_aborted", "killed")

#: Kinds that may be harmless, or the last word of a process.
ERRORS = ("error", "traceback")

#: Columns that hold what an event says.
_SAYS = ("error", "message", "traceback")

#: With which an orderly stop begins.
STOPS = ("sigterm", "graceful_exit", "job_cancelled")

#: Kinds that only a server prints that has started.
_SERVES = ("ready", "transfer_failed", "retract", "retract_abort", "flush_refused")

#: Exit codes of an orderly end: success, SIGINT, SIGTERM.
_ORDERLY = (0, -2, -15, 130, 143)

#: name -> pattern of what an event says that tells this cause; the first that fits counts.
_TEXTS: Mapping[str, str] = {
    "host_memory": r"Not enough host memory|DefaultCPUAllocator|Cannot allocate memory"
    r"|\bMemoryError\b|\bbad_alloc\b",
    "fraction_low": r"Not enough memory",
    "mamba_slots": r"--mamba-full-memory-ratio|Not enough space for mamba",
    "kv_pool": r"(?:Prefill|Decode) out of memory|Out of memory even after retracting"
    r"|Out of memory\. Try to lower"
    r"|Failed to allocate token|alloc_\w+_slots runs out of memory",
    "graph_memory": r"(?s)Capture \w+ graph failed.*out of memory"
    r"|out of memory.*Capture \w+ graph failed",
    "gpu_memory": r"OutOfMemoryError|out of memory",
    "leak": r"(?:memory|pool) leak detected|Mem Leak Detected",
    "port_taken": r"[Aa]ddress already in use|EADDRINUSE",
    "rendezvous": r"DistStoreError|DistNetworkError|clients joined",
    "collective": r"Watchdog caught collective|taking the entire process down|NCCL error"
    r"|DistBackendError|nccl(?:Remote|System|Internal)Error|gloo/transport",
    "gpu_error": r"illegal memory access|device-side assert|misaligned address"
    r"|unspecified launch failure|(?:CUDA|Cuda|HIP) error|AcceleratorError|ECC error"
    r"|no kernel image|GPU error \(Xid\)|[Mm]emory access fault",
    "gpus_taken": r"memory capacity is unbalanced",
}

#: Causes that SGLang's GPU memory fraction is to blame for, being too high.
GPU_MEMORY = ("gpu_memory", "graph_memory")

#: Causes that name no more than that a process ended.
UNNAMED = ("child", "aborted")

#: Signals that end a process, by the negative of its exit code.
_BY_SIGNAL = 128  # what shells and containers add to a signal's number
_SIGNALS = {-6: "aborted", -9: "killed", -11: "segfault", -7: "segfault"}

#: What the main process says of a scheduler that died while it started (0.5.10+).
_TOLD_CODE = re.compile(r"scheduler died during initialization \(exit code: (-?[0-9]{1,5})\)")
_CLASS = re.compile(
    r"^((?:\w{1,60}\.){0,6}\w{1,60}(?:Error|Exception|Interrupt|Exit))(?::|$)", re.M
)


def died(event: pl.DataFrame, last: pl.Expr, *, worked: bool) -> pl.DataFrame:
    """Return the events of a session that its process did not survive, in their order.

    Args:
        event: EVENT rows in order.
        last: whether a row stands after the last statistics line.
        worked: whether there are statistics lines; a traceback before them, without a word of a
            server that has started, is a start that failed.
    """
    if not event["kind"].is_in([*DEADLY, *ERRORS, "exit_code"]).any():
        return event.clear()
    kind = pl.col("kind")
    stopped = kind.is_in(STOPS).cum_sum() > 0
    deadly = kind.is_in(DEADLY) & ~pl.col("soft").fill_null(False)
    badly = (kind == "exit_code") & ~pl.col("exit_code").is_in(_ORDERLY)
    error = pl.lit(False)
    if event["kind"].is_in(ERRORS).any():
        said = pl.concat_str(*_SAYS, separator=": ", ignore_nulls=True)
        named = "|".join(f"(?:{p})" for p in _TEXTS.values())
        error = kind.is_in(ERRORS) & said.str.contains(named)
    if not worked and not event["kind"].is_in(_SERVES).any():
        error = error | (kind == "traceback")
    return event.filter((deadly | (last & (badly | error))) & ~(stopped & kind.is_in(_ENDS)))


@lru_cache(512)  # a server that dies again and again says the same
def cause_of_text(said: str) -> str | None:
    """Return the cause that a text names; None if it names none that is known."""
    return next((name for name, pattern in _TEXTS.items() if re.search(pattern, said)), None)


def cause(row: Mapping[str, object]) -> str:
    """Return what an event says a process died of.

    One of the names of `_TEXTS`, or `hang`, `killed`, `segfault`, `aborted`, `exception`,
    `child`.
    """
    kind, code = row["kind"], row["exit_code"]
    said = ": ".join(str(row[c]) for c in _SAYS if row[c])
    if code is None and (told := _TOLD_CODE.search(said)):
        code = int(told[1])
    if isinstance(code, int) and code > _BY_SIGNAL:
        code = _BY_SIGNAL - code
    if kind == "watchdog_timeout":
        return "hang"
    if kind == "kv_oom":
        return "kv_pool"
    named = cause_of_text(said)
    if named is not None:
        return named
    if isinstance(code, int) and code in _SIGNALS:
        return _SIGNALS[code]
    if kind in ("killed", "process_aborted"):
        return {"Killed": "killed", "Segmentation fault": "segfault"}.get(said, "aborted")
    return "exception" if kind in ("exception", "traceback", "error") else "child"


def class_of(row: Mapping[str, object]) -> str | None:
    """Return the class of the exception that ended a traceback; None where none is printed."""
    if row["error"]:
        return str(row["error"])
    found = _CLASS.findall(str(row["traceback"] or ""))
    return found[-1] if found else None
