"""Settings that hold requests back although KV, the running cap and prefill leave room."""

from __future__ import annotations

from loganalyze.model import Action
from loganalyze.rules.held import act
from loganalyze.rules.registry import Case


def held_back(case: Case) -> list[tuple[str, list[Action]]]:
    """Return what the server arguments leave as causes, with what to do about each."""
    out: list[tuple[str, list[Action]]] = []
    if case.arg("enable_lora") or case.arg("lora_paths"):
        now = case.arg("max_loras_per_batch")
        want = now * 2 if isinstance(now, int) else "higher"
        out.append(
            (
                "LoRA adapters per batch",
                act(case, "Let more adapters into a batch", "max-loras-per-batch", want),
            )
        )
    if case.arg("enable_prefill_delayer"):
        out.append(
            (
                "the prefill delayer",
                act(case, "Test without the prefill delayer", "enable-prefill-delayer", False),
            )
        )
    rounds = case.arg("prefill_decode_interval")
    if isinstance(rounds, int) and rounds > 0:
        out.append(
            (
                f"the decode rounds between prefills ({rounds})",
                act(
                    case,
                    "Prefill more often: --prefill-decode-interval holds prefills back for "
                    f"{rounds} decode rounds",
                ),
            )
        )
    if isinstance(case.arg("prefill_max_requests"), int):
        out.append(
            (
                "the limit on requests in a prefill",
                act(case, "Let more requests into a prefill", "prefill-max-requests", "higher"),
            )
        )
    if case.arg("hicache_storage_backend"):
        out.append(
            (
                "prefixes still being loaded from storage",
                act(case, "Check the latency of the storage behind the hierarchical cache"),
            )
        )
    if case.arg("schedule_policy") in ("routing-key", "priority") or case.arg(
        "enable_priority_scheduling"
    ):
        out.append(
            (
                "the scheduling policy",
                act(case, "Test with first come, first served", "schedule-policy", "fcfs"),
            )
        )
    return out
