"""What to do about a death or a hang, by its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loganalyze import fatal
from loganalyze.model import Action
from loganalyze.rules.held import act, memory_limit
from loganalyze.rules.registry import Case


def after_crash(case: Case, cause: str, row: dict[str, Any] | None) -> list[Action]:
    """Return what to do about a death of this cause."""
    advice = {
        "fraction_low": _more_static_memory,
        "kv_pool": _fewer_kv_slots,
        "host_memory": _less_host_memory,
        "mamba_slots": _more_mamba_slots,
        "graph_memory": _less_gpu_memory,
        "gpu_memory": _less_gpu_memory,
        "hang": see_the_ranks,
        "collective": see_the_ranks,
    }.get(cause)
    if advice is not None:
        actions = advice(case, row or {})
        for first in actions[:1]:  # what stood before it may not be in this release
            text = first.text.removeprefix("Or ")
            actions[0] = replace(first, text=text[0].upper() + text[1:])
        return actions
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
            "weights": "Give each GPU a smaller part of the weights: more GPUs for the model "
            "(--tp-size), or quantised weights; and see that no other process holds GPU memory "
            "(nvidia-smi). --mem-fraction-static counts only after this",
            "gpus_taken": "See what runs on these GPUs (`nvidia-smi`): often a server before this "
            "one that has not ended; end it, or choose other GPUs (CUDA_VISIBLE_DEVICES)",
            "port_taken": "See what listens there (`ss -ltnp`): often the server before this one, "
            "which still shuts down or hangs; end it, or give another port",
            "rendezvous": "See that every node was started, with the same --dist-init-addr and "
            "--nnodes and its own --node-rank, and that this address can be reached from all "
            "(firewall, GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)",
            "unsaid": "Ask who ended it, for its last lines do not say: the container's exit code "
            "and last state (`kubectl describe pod`: OOMKilled, a liveness probe that failed), "
            "`dmesg | grep -i oom`, the job scheduler",
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
    out = _lower_fraction(case)
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


def _lower_fraction(case: Case) -> list[Action]:
    """Advise on one fraction, whatever number of sessions died of it."""
    fraction = case.arg("mem_fraction_static")
    text = "Leave more memory for activations and graphs"
    if not isinstance(fraction, float):
        return act(case, text, "mem-fraction-static", "lower by 0.02")
    limit = memory_limit(case)
    highest = limit.highest if limit is not None and limit.highest else round(fraction - 0.02, 3)
    last = case.sessions[-1].session.config.arg("mem_fraction_static") if case.sessions else None
    if isinstance(last, float) and last <= highest:
        kept = f"keep --mem-fraction-static at {last:g}, with which it was started again"
        more = f"; for a larger KV pool {highest:g} at most" if last < highest else ""
        return act(case, f"{text}: {kept} (here: {fraction:g}){more}")
    return act(case, text, "mem-fraction-static", highest)


def see_the_ranks(case: Case, row: dict[str, Any]) -> list[Action]:
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
