"""What the start-up lines say: sizes, memory, and the server's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from loganalyze import defaults, server_args
from loganalyze.model import ServerConfig


def read(startup: pl.DataFrame, release_range: tuple[str, str] | None = None) -> ServerConfig:
    """Collect sizes and server arguments; per scheduler, of the first rank that printed them.

    The arguments are as printed, secrets included: `Redactor.args` takes those out.
    """
    rows = startup.unique("kind", keep="first", maintain_order=True)
    first: dict[str, dict[str, Any]] = {row["kind"]: row for row in rows.iter_rows(named=True)}
    config = ServerConfig()
    capacity = first.get("capacity")
    if capacity:
        config = replace(
            config,
            kv_capacity_tokens=capacity["max_total_num_tokens"],
            capacity_line=capacity["line_no"],
            max_running_req=capacity["max_running_requests"],
            max_prefill_tokens=capacity["max_prefill_tokens"],
            chunked_prefill_size=capacity["chunked_prefill_size"],
            context_len=capacity["context_len"],
            available_gpu_mem_gib=capacity["available_gpu_mem_gb"],
        )
    pool = _target_pool(startup, config.kv_capacity_tokens) if first.keys() & set(_POOLS) else None
    if pool:
        sizes = [pool[k] for k in ("k_size_gb", "v_size_gb", "kv_size_gb") if pool[k] is not None]
        config = replace(
            config,
            kv_pool_tokens=pool["num_tokens"],
            kv_pool_gib=sum(sizes) if sizes else None,
            kv_pool_line=pool["line_no"],
            kv_pool_dtype=pool["dtype"],
        )
    swa = first.get("swa_post_capture", {})
    if swa.get("swa_layer_tokens") is None:
        swa = first.get("swa_pool_sizes", {})
    mamba = first.get("mamba_cache_allocated", {})
    host = first.get("hicache_host_alloc", {})
    begin = first.get("weight_load_begin", {})
    end = first.get("weight_load_end", {})
    config = replace(
        config,
        swa_pool_tokens=swa.get("swa_layer_tokens"),
        mamba_slots=mamba.get("max_mamba_cache_size"),
        host_pool_gb=host.get("host_gb"),
        host_pool_tokens=host.get("host_tokens"),
        avail_before_weights_gib=begin.get("avail_mem_gb"),
        weights_gib=end.get("mem_usage_gb"),
        model_type=end.get("model_type"),
    )
    if "server_args" in first:
        row = startup.filter(pl.col("kind") == "server_args").row(-1, named=True)
        args = server_args.parse(row["args_text"] or "")
        usual, computed = defaults.known(args, release_range)
        config = replace(
            config, args=args, defaults=usual, computed=computed, args_line=row["line_no"]
        )
        if config.capacity_line is None:
            config = replace(config, max_running_req=_asked_cap(args))
    return config


def _asked_cap(args: Mapping[str, object]) -> int | None:
    """Return the running cap of a DP rank that the arguments ask for: what holds is not more.

    None where they leave it to the server, and for replicas of plain data parallelism, whose
    share depends on the release.
    """
    asked, ranks = args.get("max_running_requests"), args.get("dp_size", 1)
    if not isinstance(asked, int) or not isinstance(ranks, int) or asked < 1 or ranks < 1:
        return None
    if ranks > 1 and args.get("enable_dp_attention") is not True:
        return None
    return max(1, asked // ranks)


#: Kinds of records that tell the size of a KV pool, the surest first.
_POOLS = ("kv_cache_post_capture", "kv_cache_allocated")


def _target_pool(startup: pl.DataFrame, capacity: int | None) -> dict[str, Any] | None:
    """Return the line of the target model's KV pool.

    The size after graph capture wins over the first allocation; a virtual upper bound is no
    allocation at all. A draft model prints its own line, labelled or after the target's. The
    pools of a sliding-window model are `Full` and `SWA` (0.5.17+); a bare line is then a draft's.
    """
    for kind in _POOLS:
        for label in ("Full", None):
            rows: Sequence[dict[str, Any]] = startup.filter(
                pl.col("kind") == kind, pl.col("pool_label").eq_missing(pl.lit(label, pl.String))
            ).rows(named=True)
            same = [r for r in rows if capacity and r["num_tokens"] == capacity]
            if same or rows:
                return (same or rows)[0]
    return None
