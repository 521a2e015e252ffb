"""What gives a KV pool more room: levers on memory and copies, with predicted gains."""

from __future__ import annotations

from loganalyze.capacity import memory, predict
from loganalyze.model import Action, Estimate
from loganalyze.rules.held import MEMORY_FRACTION, Held, act, gain_text, gains, memory_limit
from loganalyze.rules.registry import Case


def one_step_up(case: Case) -> float | None:
    """Return the next memory fraction to try; None where the present one is not printed."""
    present = case.arg("mem_fraction_static")
    return memory.higher_fraction(present, None, None) if isinstance(present, float) else None


def left_over_memory(case: Case, held: Held) -> list[Action]:
    """Return what gives the pool the free GPU memory, if there is enough of it."""
    found, useless = _left_over(case, held)
    return found + useless


def _left_over(case: Case, held: Held) -> tuple[list[Action], list[Action]]:
    """Return that where it raises the throughput by the prediction, and where it does not."""
    config, capacity = case.signals.session.config, case.signals.capacity
    free, cell, n = config.available_gpu_mem_gib, capacity.bytes_per_token, held.rank.kv_tokens
    spare = memory.spare_gib(free, config.kv_pool_gib) if free is not None else 0.0
    if free is None or not spare:
        return [], []
    total = config.avail_before_weights_gib or _solved_total(case)
    present = case.arg("mem_fraction_static")
    limit = memory_limit(case)
    highest = limit.highest if limit and isinstance(present, float) else 1.0
    proposed = None
    if isinstance(present, float) and total:
        proposed = memory.higher_fraction(present, spare, total, highest) or present
        spare = min(spare, (proposed - present) * total)
    effect, gain = "", None
    if cell and n:
        more = memory.tokens_in(spare, cell)
        gain = _estimate(case, predict.Change(pool=1 + more / n))
        hold = f"{more:,} more tokens (+{more / n:.0%} KV){_said(gain)}"
        effect = f"{spare:.1f} GiB hold {hold}"
        if proposed is None:
            # What one step gives is not known: the sum must not read as its effect.
            most = "at most " if limit else ""
            effect = f"all steps together, {most}{spare:.1f} GiB, hold {hold}"
            step = one_step_up(case)
            effect = f"{step:g} first; {effect}" if step is not None else effect
    found = act(
        case,
        f"Give the KV pool the GPU memory that is left over: {free:.1f} GiB are free after "
        "start-up, 5 to 8 are enough"
        + (
            ""
            if proposed is not None
            else f"; go up in steps of {memory.STEP:g} until so much stays free"
        ),
        MEMORY_FRACTION,
        proposed if proposed is not None else one_step_up(case),
        effect,
    )
    return (found, []) if gains(gain) else ([], found)


def _solved_total(case: Case) -> float | None:
    """Return the memory before the weights, as starts with other fractions tell it, in GiB."""
    session = case.signals.session
    alike = memory.alike([data.session for data in case.sessions], session)
    others = [memory.start(other) for other in alike if other.id != session.id]
    return memory.solve([*others, memory.start(session)]).total_gib


def more_room(case: Case, held: Held) -> list[Action]:
    """The levers on the pool, in order of effect, with predicted gains."""
    config = case.signals.session.config
    out, useless = _left_over(case, held)
    if config.available_gpu_mem_gib is None:
        out += act(
            case,
            "If GPU memory is left over after start-up (available_gpu_mem in the "
            "max_total_num_tokens= line; 5 to 8 GB are enough), give it to the KV pool, in steps "
            f"of {memory.STEP:g}",
            MEMORY_FRACTION,
            one_step_up(case),
        )
    dtype = str(case.arg("kv_cache_dtype", "auto")).lower()
    stored = str(config.kv_pool_dtype or "").lower()
    if (
        dtype in ("auto", "bfloat16", "bf16", "float16", "none")
        and "float8" not in stored
        and "fp8" not in stored
    ):
        gain = _estimate(case, predict.Change(pool=2.0, kv_bytes=0.5))
        into = out if gains(gain) else useless
        into += act(
            case,
            "Store KV in fp8, after checking accuracy and that the attention backend supports it",
            "kv-cache-dtype",
            "fp8_e4m3",
            f"twice the KV tokens{_said(gain)}",
        )
    if _is_mla(case) and not case.arg("enable_dp_attention") and _int(case.arg("tp_size")) > 1:
        tp = _int(case.arg("tp_size"))
        out += act(
            case,
            f"Stop storing the latent KV on each of {tp} tensor-parallel ranks",
            "enable-dp-attention",
            True,
            "with --dp-size k the total pool grows almost k times",
        )
        out += act(
            case,
            "Or split the latent KV over ranks when decoding",
            "dcp-size",
            min(tp, 8),
            "almost as many times the KV tokens",
        )
    out += act(case, "Add a replica or more GPUs, or send less load: capacity is what is missing")
    out += act(
        case,
        "Hold fewer tokens per request: lower max_new_tokens, trim prompts, or route "
        "long jobs apart",
    )
    return out + useless


def _estimate(case: Case, change: predict.Change) -> Estimate | None:
    """Return the predicted throughput factor of a change; None without a step model."""
    load = case.load
    return predict.estimate(load, change) if load is not None and load.model else None


def _said(gain: Estimate | None) -> str:
    """Say a predicted throughput factor with its range, if there is one."""
    return f", {gain_text(gain)}" if gain else ""


def _is_mla(case: Case) -> bool:
    """Whether K and V share one buffer, as only MLA models print it."""
    return case.data.startup["kv_size_gb"].null_count() < case.data.startup.height


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
