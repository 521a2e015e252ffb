"""KV007: the KV pool was sized badly when the server started."""

from __future__ import annotations

from loganalyze.capacity import memory
from loganalyze.model import Action, Evidence, Finding, Severity
from loganalyze.rules.held import MEMORY_FRACTION, act, config_line, shown
from loganalyze.rules.kv.room import one_step_up
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule


@rule(
    "KV007",
    "pool-mis-sized",
    severity=Severity.WARNING,
    limits={
        "much_gib": Limit(10.0, "GiB", "free GPU memory that could be KV"),
        "much_share": Limit(
            0.4, "fraction", "free GPU memory that could be KV over the pool's size"
        ),
        "little_gib": Limit(2.0, "GiB", "free GPU memory below which running out is likely"),
        "share": Limit(0.10, "fraction", "KV pool / (KV pool + weights) below which it is small"),
        "off": Limit(0.01, "fraction", "pool size and bytes per token may disagree by this much"),
    },
    after=("KV001", "KV004", "KV009", "CRS001"),
)
def pool_mis_sized(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool was sized badly when the server started.

    What it flags:
        On a server that ran out of KV room: much GPU memory left free, a pool that is a small
        part of the memory, or one that hardly holds a request of full length. On a server that
        crashed out of memory: little left free.
    Why it is slow:
        All memory that is not weights, activations or graphs should hold KV: the pool sets how
        many requests run.
    Not this rule:
        The same sizes on a server that never lacked room are no problem and not reported.
    What to do:
        Move --mem-fraction-static so that 5 to 8 GB stay free after start-up.
    Source:
        ModelRunner.profile_max_num_token; SGLang docs, "Hyperparameter Tuning".
    """
    config = case.signals.session.config
    free, n, line = config.available_gpu_mem_gib, config.kv_capacity_tokens, config.capacity_line
    if free is None and n is None:
        raise NotApplicable(
            "its start-up lines (max_total_num_tokens=, KV Cache is allocated) are missing"
        )
    where = config_line(case, line)
    short = [c for c in ("KV001", "KV004", "KV009") if c in case.earlier]
    crash = case.earlier.get("CRS001")
    said: list[Evidence] = []
    why: list[str] = []
    actions: list[Action] = []
    size = config.kv_pool_gib
    spare = memory.spare_gib(free, size) if free is not None else 0.0
    much = spare >= limits["much_share"] * size if size else False
    if short and free is not None and (free > limits["much_gib"] or much):
        why.append(f"{free:g} GiB of GPU memory stayed free, which could hold KV")
        said.append(
            shown("GPU memory free after start-up", free, "GiB", where, "available_gpu_mem")
        )
        actions += act(
            case,
            f"Give the free GPU memory to the KV pool, in steps of {memory.STEP:g}, until 5 to 8 "
            "GB stay free",
            MEMORY_FRACTION,
            one_step_up(case) or "higher",
        )
    if short and config.kv_pool_gib and config.weights_gib:
        share = config.kv_pool_gib / (config.kv_pool_gib + config.weights_gib)
        if share < limits["share"]:
            why.append(
                f"the weights take {config.weights_gib:g} GiB and leave the pool "
                f"{config.kv_pool_gib:g} GiB, {share:.0%} of both"
            )
            said.append(
                shown(
                    "KV pool share of weights and pool",
                    share,
                    "",
                    config_line(case, config.kv_pool_line),
                    "KV size / (KV size + weights)",
                    3,
                )
            )
            actions += act(
                case, "More GPUs or a smaller model per GPU: the weights leave little room for KV"
            )
    if crash and free is not None and free < limits["little_gib"] and "memory" in crash.summary:
        why.append(f"only {free:g} GiB of GPU memory stayed free, and it ran out of memory")
        said.append(
            shown("GPU memory free after start-up", free, "GiB", where, "available_gpu_mem")
        )
        actions += act(case, "Leave more memory for activations: see CRS001")
    if not said:
        return Clear(
            "its sizes fit what the log shows"
            if short or crash
            else "the server never lacked KV room"
        )
    return Finding(
        summary=f"The KV pool was sized badly at start-up: {'; '.join(why)}",
        episodes=[],
        evidence=said,
        actions=actions,
        severity=Severity.WARNING,
        confidence="medium",
        competing="a pool that was sized so on purpose, for what else needs the GPU's memory",
    )
