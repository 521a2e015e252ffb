"""Findings in the words of the simulator, so that `sim/score.py` can judge them."""

from __future__ import annotations

from collections.abc import Iterable

from loganalyze.model import Finding

#: Rule code -> the simulator's kind (end of tests/sim/README.md).
KINDS = {
    "KV001": "kv_saturated",
    "KV003": "near_saturated",
    "KV004": "retraction_storm",
    "RUN001": "running_cap",
    "ADM001": "conservative_admission",
    "KV005": "conservative_admission",
    "ADM003": "conservative_admission",
    "QUE001": "queue_no_kv",
    "PRE001": "prefill_bound",
    "CLI001": "client_limited",
    "IDL001": "idle",
    "WRM001": "warmup",
    "LNG001": "long_context_slowdown",
    "KV010": "kv_leak",
    "HNG001": "stall",
    "THR002": "rate_change",
    "GRF001": "cuda_graph_off",
    "SPC001": "low_accept",
    "DPI001": "dp_imbalance",
    "SWA001": "swa_exhausted",
    "MAM001": "mamba_cap",
    "PDD001": "pd_prealloc_backlog",
    "PDD002": "pd_transfer_backlog",
    "CRS001": "restart",
}


def detections(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Return {kind, start, end} for each episode; those of several ranks at a time are one."""
    spans: dict[str, list[tuple[str, str]]] = {}
    for finding in findings:
        kind = KINDS.get(finding.code)
        for episode in finding.episodes:
            if kind and episode.start and episode.end:
                start, end = (t.isoformat(sep=" ") for t in (episode.start, episode.end))
                spans.setdefault(kind, []).append((start, end))
    out: list[dict[str, str]] = []
    for kind, found in spans.items():
        merged: list[tuple[str, str]] = []
        for start, end in sorted(found):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        out += [{"kind": kind, "start": start, "end": end} for start, end in merged]
    return out
