"""What was changed: server arguments and sizes."""

from __future__ import annotations

from collections.abc import Iterator

from loganalyze.model import Session, Setting, Size

#: Arguments that name, place or log the server, and touch neither its speed nor its memory.
_INCIDENTAL = frozenset(
    {
        "host",
        "port",
        "nccl_port",
        "dist_init_addr",
        "node_rank",
        "random_seed",
        "served_model_name",
        "api_key",
        "admin_api_key",
        "log_level",
        "log_level_http",
        "log_requests",
        "log_requests_level",
        "show_time_cost",
        "decode_log_interval",
        "crash_dump_folder",
        "file_storage_path",
        "download_dir",
        "base_gpu_id",
        "bucket_time_to_first_token",
        "bucket_inter_token_latency",
        "bucket_e2e_request_latency",
        "enable_metrics",
        "enable_cache_report",
    }
)


def changed(before: Session, after: Session) -> list[Setting]:
    """Return the server arguments that differ, those that matter first, by name.

    An argument that only one log prints is left out where the other release did not have it:
    its value is then not known to differ.
    """
    old, new = before.config, after.config
    found = []
    for name in dict.fromkeys((*old.args, *new.args)):
        a = old.args.get(name, old.defaults.get(name))
        b = new.args.get(name, new.defaults.get(name))
        known = name in old.args and name in new.args
        if a != b and (known or None not in (a, b)):
            incidental = name in _INCIDENTAL
            found.append(Setting(name, a, b, old.args_line, new.args_line, incidental))
    return sorted(found, key=lambda s: (s.incidental, s.name))


def sizes(before: Session, after: Session) -> list[Size]:
    """Return the sizes of both servers that at least one log tells."""
    return [
        Size(name, unit, a, b, b / a if a and b else None, note)
        for name, unit, a, b, note in _sizes(before, after)
        if a is not None or b is not None
    ]


def _sizes(
    before: Session, after: Session
) -> Iterator[tuple[str, str, float | None, float | None, str]]:
    old, new = before.capacity, after.capacity
    inferred = [
        side
        for side, capacity in (("before", old), ("after", new))
        if capacity.kv_tokens_source == "inferred"
    ]
    note = f"inferred from usage {' and '.join(inferred)}, within 1%" if inferred else ""
    yield "KV capacity", "tokens", old.kv_tokens, new.kv_tokens, note
    yield "KV pool", "GiB", old.pool_gib, new.pool_gib, ""
    yield "bytes per token", "bytes", old.bytes_per_token, new.bytes_per_token, ""
    yield "requests that fit", "requests", old.requests_fit, new.requests_fit, ""
    yield "tokens per running request", "tokens", old.tokens_per_req, new.tokens_per_req, ""
    a, b = before.config, after.config
    yield "running cap", "requests", a.max_running_req, b.max_running_req, ""
    yield "sliding-window pool", "tokens", a.swa_pool_tokens, b.swa_pool_tokens, ""
    yield "Mamba slots", "slots", a.mamba_slots, b.mamba_slots, ""
    yield "host pool", "tokens", a.host_pool_tokens, b.host_pool_tokens, ""
    yield "host pool", "GB", a.host_pool_gb, b.host_pool_gb, ""
    yield "longest request", "tokens", a.context_len, b.context_len, ""
    yield "prefill chunk", "tokens", a.chunked_prefill_size, b.chunked_prefill_size, ""
    free = a.available_gpu_mem_gib, b.available_gpu_mem_gib
    yield "free GPU memory after start", "GiB", *free, ""
