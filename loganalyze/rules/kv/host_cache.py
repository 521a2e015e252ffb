"""KV008: hierarchical cache keeps prefixes in host memory, and makes no more requests run."""

from __future__ import annotations

import polars as pl

from loganalyze.model import Finding, Severity
from loganalyze.rules.held import act, config_line, shown
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule


@rule(
    "KV008",
    "hicache-adds-no-running",
    severity=Severity.INFO,
    needs=("kv_usage", "queue_req"),
    limits={
        "useful_hits": Limit(
            0.3, "fraction", "share of prompt tokens from the cache from which hicache may pay"
        )
    },
    after=("KV001",),
)
def hicache_adds_no_running(case: Case, limits: Limits) -> Finding | Clear:
    """Hierarchical cache is on, but it cannot make more requests run.

    What it flags:
        A saturated pool (KV001) on a server with hierarchical cache.
    Why it is slow:
        A decode reads only the GPU pool. A prefix kept in host memory must be copied back into
        free GPU slots before it is of use, and those are what is missing.
    Not this rule:
        Hierarchical cache helps where prefixes that were evicted come back: then the hit rate
        rises and prefill gets shorter.
    What to do:
        Keep it only if the hit rate rises after evictions; else give the memory back.
    Source:
        HiRadixCache.load_back; max_total_num_tokens is the GPU pool (maintainer in #11698).
    """
    config = case.signals.session.config
    on = case.arg("enable_hierarchical_cache")
    if on is None and config.host_pool_gb is None:
        raise NotApplicable("neither the server arguments nor a host pool line is in it")
    if not on and config.host_pool_gb is None:
        return Clear("hierarchical cache is off")
    if "KV001" not in case.earlier:
        return Clear("hierarchical cache is on, and the pool was not saturated")
    sums = (
        case.data.batch.filter(~pl.col("duplicate").fill_null(False))
        .select_seq(pl.col("cached_token", "new_token").sum())
        .row(0)
    )
    prompts = (sums[0] or 0) + (sums[1] or 0)
    hits = sums[0] / prompts if prompts else 0.0
    gb = config.host_pool_gb
    where = config_line(case, config.args_line)
    size = f"{gb:.0f} GB of host memory per rank" if gb else "its host memory"
    verdict = (
        "and few prompt tokens come from the cache"
        if hits < limits["useful_hits"]
        else "though it may shorten prefill"
    )
    return Finding(
        summary=f"Hierarchical cache is on ({size}) and adds no running request to the full KV "
        f"pool, {verdict} ({hits:.0%})",
        episodes=case.earlier["KV001"].episodes,
        evidence=[
            shown(
                "hierarchical cache",
                True if on is None else bool(on),
                "",
                where,
                "enable_hierarchical_cache",
            ),
            shown(
                "prompt tokens from the cache",
                hits,
                "",
                (None, None),
                "cached / (cached + new), GPU and host together",
                3,
            ),
        ],
        actions=act(
            case,
            "Do not count on host memory for running requests; turn it off unless "
            "prefixes come back",
            "enable-hierarchical-cache",
            False,
            "no effect on throughput; frees host memory",
        )
        if hits < limits["useful_hits"]
        else [],
        severity=Severity.INFO,
        confidence="high" if prompts and not case.excerpt else "medium",
        competing="prefixes that come back after this log ends: for those the host cache helps",
    )
