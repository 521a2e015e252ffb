"""Every column of every frame: name, type, unit, meaning. The dictionary everyone quotes.

Raw columns keep the log's own label in snake case, so that a reader can grep from the
report back to the log. A value that the log does not print is null, never 0.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

import polars as pl


class Column(NamedTuple):
    """One declared column.

    Attributes:
        name: column name.
        dtype: Polars type.
        unit: unit of the value; empty for names, flags and counts of lines.
        meaning: one sentence; says what null means where that is not "not printed".
    """

    name: str
    dtype: PolarsDataType
    unit: str
    meaning: str


#: Where a record stands and who printed it: the first columns of every frame.
PLACE = (
    Column("source", pl.String, "", "Name of the log, as given on the command line."),
    Column("line_no", pl.Int64, "", "Line number in that log, from 1."),
    Column("session", pl.Int32, "", "Session id: one per server process life, from 1."),
    Column(
        "time",
        pl.Datetime("ms"),
        "",
        "Stamp as printed, without zone. Null where none was printed. "
        "A time of day without a date counts from 1970-01-01.",
    ),
)

RANKS = (
    Column("dp_rank", pl.Int32, "", "Data-parallel rank; -1 and null mean no DP."),
    Column("tp_rank", pl.Int32, "", "Tensor-parallel rank."),
    Column("pp_rank", pl.Int32, "", "Pipeline-parallel rank."),
    Column("ep_rank", pl.Int32, "", "Expert-parallel rank."),
    Column("attn_cp_rank", pl.Int32, "", "Attention context-parallel rank."),
    Column("moe_dp_rank", pl.Int32, "", "MoE data-parallel rank."),
)

_PRINTED = (
    Column("iter", pl.Int64, "", "Forward pass number in `Decode batch [N]`."),
    Column("gpu_id", pl.Int32, "", "GPU number printed by releases up to 0.2.13."),
    Column(
        "running_req",
        pl.Int64,
        "requests",
        "Decode: requests in the batch just decoded. "
        "Prefill: requests decoding when the batch was scheduled, without the new ones.",
    ),
    Column("mixed", pl.Boolean, "", "True where running_req came from `(mixed #running-req: N)`."),
    Column(
        "token",
        pl.Int64,
        "tokens",
        "KV tokens held by unfinished work. Evictable prefix-cache tokens count as free.",
    ),
    Column("token_usage", pl.Float64, "fraction", "token / pool size, two decimals as printed."),
    Column("full_token", pl.Int64, "tokens", "Tokens held in the full-attention pool."),
    Column("full_token_usage", pl.Float64, "fraction", "Usage of the full-attention pool."),
    Column("swa_token", pl.Int64, "tokens", "Tokens held in the sliding-window pool."),
    Column("swa_token_usage", pl.Float64, "fraction", "Usage of the sliding-window pool."),
    Column("mamba_num", pl.Int64, "slots", "State slots in use of the Mamba pool."),
    Column("mamba_usage", pl.Float64, "fraction", "Usage of the Mamba pool."),
    Column("gpu_token", pl.Int64, "tokens", "HiSparse: tokens in the device buffer."),
    Column("gpu_token_usage", pl.Float64, "fraction", "HiSparse: usage of the device buffer."),
    Column("cpu_token", pl.Int64, "tokens", "HiSparse: tokens in the host pool."),
    Column("cpu_token_usage", pl.Float64, "fraction", "HiSparse: usage of the host pool."),
    Column(
        "accept_len", pl.Float64, "tokens", "Accepted tokens a verify step, bonus token included."
    ),
    Column(
        "accept_rate",
        pl.Float64,
        "fraction",
        "Share of drafts accepted; not comparable across 0.5.11, which changed it.",
    ),
    Column("cap_len", pl.Float64, "tokens", "Ragged-verify cap."),
    Column("block_accept_len", pl.Float64, "tokens", "Accepted tokens a block (cap-accept mode)."),
    Column("est_uncap_acc_len", pl.Float64, "tokens", "Estimated accept length without the cap."),
    Column(
        "pre_allocated_usage",
        pl.Float64,
        "fraction",
        "PD decode: share of the pool reserved by the preallocation queue.",
    ),
    Column(
        "prealloc_req",
        pl.Int64,
        "requests",
        "Decode server: waiting for KV space. "
        "Prefill server (0.5.3 to 0.5.11): waiting for bootstrap.",
    ),
    Column("transfer_req", pl.Int64, "requests", "PD decode: KV in flight."),
    Column("host_receive_req", pl.Int64, "requests", "PD decode: receiving to host memory."),
    Column("retracted_req", pl.Int64, "requests", "PD decode: retracted and waiting."),
    Column("waiting_image_req", pl.Int64, "requests", "Waiting for image embeddings."),
    Column(
        "cuda_graph",
        pl.Boolean,
        "",
        "Whether the batch replayed a captured graph (cuda, cpu, npu or musa label).",
    ),
    Column(
        "gen_throughput",
        pl.Float64,
        "token/s",
        "Tokens decoded since the previous decode "
        "line / wall time since then, prefill and idle time included.",
    ),
    Column(
        "largest_len", pl.Int64, "tokens", "Longest running request (0.4.3.post3 to 0.4.4.post1)."
    ),
    Column(
        "queue_req",
        pl.Int64,
        "requests",
        "Requests in the waiting queue; PD and grammar queues are not in it.",
    ),
    Column("timestamp", pl.String, "", "ISO time inside the line (0.4.9.post1 and post2)."),
    Column("decode_tflops", pl.Float64, "TFLOPS/s", "Estimated decode compute per GPU."),
    Column("read_gbps", pl.Float64, "GB/s", "Estimated read bandwidth per GPU."),
    Column("write_gbps", pl.Float64, "GB/s", "Estimated write bandwidth per GPU."),
    Column("fwd_occupancy", pl.Float64, "percent", "GPU busy time; null for `nan%`."),
    Column("fwd_idle_occupancy", pl.Float64, "percent", "GPU busy plus idle-wait time."),
    Column("new_seq", pl.Int64, "requests", "Prefill: requests in the batch, chunks included."),
    Column(
        "new_token",
        pl.Int64,
        "tokens",
        "Prefill: tokens to compute (0.4.8 to 0.5.19: rounded up to the page size).",
    ),
    Column("cached_token", pl.Int64, "tokens", "Prefill: prefix tokens found in the cache."),
    Column("cache_hit_rate_pct", pl.Float64, "percent", "Cumulative hit rate, up to 0.4.3.post2."),
    Column("pending_token", pl.Int64, "tokens", "Prompt tokens in the waiting queue (0.5.11+)."),
    Column("replay_token", pl.Int64, "tokens", "Encoder replay tokens (0.5.21+)."),
    Column(
        "unbootstrapped_req",
        pl.Int64,
        "requests",
        "PD prefill, up to 0.5.2: waiting for bootstrap.",
    ),
    Column("transferring_req", pl.Int64, "requests", "PD prefill, up to 0.5.2: KV in flight."),
    Column("bootstrap_req", pl.Int64, "requests", "PD prefill, 0.5.12+: waiting for bootstrap."),
    Column("inflight_req", pl.Int64, "requests", "PD prefill, 0.5.3+: KV in flight."),
    Column(
        "optimistic_req", pl.Int64, "requests", "PD prefill, 0.5.16+: bootstrap still pending."
    ),
    Column(
        "input_throughput",
        pl.Float64,
        "token/s",
        "Prefill tokens / wall time since the previous "
        "prefill line: falls when the server idles, so not prefill speed.",
    ),
    Column(
        "prefill_time_s", pl.Float64, "s", "Seconds since the previous prefill (0.4.7 PD prefill)."
    ),
    Column("prefill_tflops", pl.Float64, "TFLOPS/s", "Estimated prefill compute per GPU."),
)

#: Columns computed from columns (`derive.py`).
DERIVED = (
    Column("kv_usage", pl.Float64, "fraction", "Usage of the fullest pool of the line."),
    Column("rate_per_req", pl.Float64, "token/s", "Decode throughput / running requests."),
    Column("cache_hit_rate", pl.Float64, "fraction", "Prefill: cached tokens / prompt tokens."),
    Column(
        "lines",
        pl.Int32,
        "",
        "Printed lines that this row stands for: 1, other than in very long logs.",
    ),
    Column(
        "last_prefill",
        pl.Int32,
        "batches",
        "Decode, in very long logs: prefill batches since the decode line before.",
    ),
    Column("last_new_token", pl.Int64, "tokens", "Decode, in very long logs: their new tokens."),
    Column(
        "quiet_s", pl.Float64, "s", "In very long logs: time since the rank's printed line before."
    ),
)

BATCH = (
    *PLACE,
    Column("time_has_date", pl.Boolean, "", "False where only a time of day was printed."),
    Column("phase", pl.String, "", "decode or prefill."),
    *RANKS,
    Column(
        "duplicate",
        pl.Boolean,
        "",
        "The same record printed by another TP, PP or CP rank, or of a log that holds each line "
        "several times: kept here, left out of rules and totals.",
    ),
    *_PRINTED,
    *DERIVED,
)

EVENT = (
    *PLACE,
    *RANKS,
    Column("gpu_id", pl.Int32, "", "GPU number printed by releases up to 0.2.13."),
    Column("kind", pl.String, "", "retract, kv_oom, exception, watchdog_timeout, sigterm, ..."),
    Column("duplicate", pl.Boolean, "", "The same event printed by another rank."),
    Column("debug", pl.Boolean, "", "True for `Testing retraction`: never evidence."),
    Column("num_retracted_reqs", pl.Int64, "requests", "Requests thrown back to the queue."),
    Column("num_aborted_reqs", pl.Int64, "requests", "Requests aborted by the retraction."),
    Column("new_tokens_gained", pl.Int64, "tokens", "Free tokens after minus before."),
    Column("mamba_num_gained", pl.Int64, "slots", "Free state slots after minus before."),
    Column("old_new_token_ratio", pl.Float64, "fraction", "Admission estimate before."),
    Column("new_token_ratio", pl.Float64, "fraction", "Admission estimate after."),
    Column("num_queue_reqs", pl.Int64, "requests", "Queue length printed by the event."),
    Column("num_running_reqs", pl.Int64, "requests", "Running requests printed by the event."),
    Column("watchdog_timeout_s", pl.Int64, "s", "The watchdog's limit."),
    Column(
        "soft", pl.Boolean, "", "watchdog_timeout, exception: the process says so and goes on."
    ),
    Column("remaining", pl.Int64, "requests", "Requests left when draining."),
    Column("phase", pl.String, "", "kv_oom, transfer_failed: Decode or Prefill."),
    Column("step", pl.String, "", "transfer_failed: bootstrap, handshake or transfer."),
    Column("bootstrap_room", pl.Int64, "", "transfer_failed: the request's number on both sides."),
    Column("exit_code", pl.Int64, "", "Of a process that died; -N: killed by signal N."),
    Column("elapsed_s", pl.Float64, "s", "jit_compile: how long it took."),
    Column("error", pl.String, "", "Class of an exception. Its text is not kept."),
    Column("try_to_allocate_tokens", pl.Int64, "tokens", "kv_oom: tokens asked for."),
    Column("traceback", pl.String, "", "exception: its text, up to 8 KiB."),
    Column("message", pl.String, "", "Other events: the fixed part of their text."),
)

STARTUP = (
    *PLACE,
    *RANKS,
    Column("kind", pl.String, "", "capacity, kv_cache_allocated, server_args, ..."),
    Column("max_total_num_tokens", pl.Int64, "tokens", "KV pool size, per DP rank."),
    Column("max_prefill_tokens", pl.Int64, "tokens", "Prompt tokens in one prefill batch."),
    Column("max_running_requests", pl.Int64, "requests", "Running cap, per DP rank."),
    Column("context_len", pl.Int64, "tokens", "Longest request the model takes."),
    Column("chunked_prefill_size", pl.Int64, "tokens", "Chunk size; null for None."),
    Column("available_gpu_mem_gb", pl.Float64, "GiB", "Free GPU memory after start-up."),
    Column("num_tokens", pl.Int64, "tokens", "Tokens of an allocated pool."),
    Column("largest_bs", pl.Int64, "requests", "Largest batch with a CUDA graph."),
    Column("dtype", pl.String, "", "Element type of weights or pool."),
    Column("k_size_gb", pl.Float64, "GiB", "K buffer."),
    Column("v_size_gb", pl.Float64, "GiB", "V buffer."),
    Column("kv_size_gb", pl.Float64, "GiB", "K and V in one buffer (MLA)."),
    Column(
        "pool_label", pl.String, "", "Label before `KV Cache is allocated`, `Draft` for the draft."
    ),
    Column("full_layer_tokens", pl.Int64, "tokens", "Full-attention pool of an SWA model."),
    Column("swa_layer_tokens", pl.Int64, "tokens", "Sliding-window pool of an SWA model."),
    Column("max_mamba_cache_size", pl.Int64, "slots", "Slots of the Mamba pool."),
    Column("conv_state_gb", pl.Float64, "GiB", "Mamba convolution state."),
    Column("ssm_state_gb", pl.Float64, "GiB", "Mamba SSM state."),
    Column("draft_ssm_gb", pl.Float64, "GiB", "Mamba SSM states of drafted tokens."),
    Column("draft_conv_gb", pl.Float64, "GiB", "Mamba convolution windows of drafted tokens."),
    Column("host_gb", pl.Float64, "1e9 bytes", "HiCache host pool, per rank."),
    Column("host_tokens", pl.Int64, "tokens", "HiCache host pool."),
    Column("avail_mem_gb", pl.Float64, "GiB", "Free GPU memory at that moment."),
    Column("mem_usage_gb", pl.Float64, "GiB", "GPU memory taken by the step."),
    Column("elapsed_s", pl.Float64, "s", "Duration of the step."),
    Column("model_type", pl.String, "", "Model class."),
    Column("text_style", pl.String, "", "server_args: repr or dict."),
    Column("requested", pl.Int64, "", "A limit as the user asked for it."),
    Column("granted", pl.Int64, "", "That limit as the memory allowed it."),
)

REQUEST = (
    *PLACE,
    *RANKS,
    Column("kind", pl.String, "", "access or request_log."),
    Column("client", pl.String, "", "access: address and port of the client."),
    Column("method", pl.String, "", "access: HTTP method."),
    Column("path", pl.String, "", "access: path, as printed."),
    Column("status", pl.Int32, "", "access: HTTP status."),
    Column("event", pl.String, "", "request_log: receive or finish."),
    Column("rid", pl.String, "", "request_log: request id. The prompt is never read."),
)

FRAMES: dict[str, tuple[Column, ...]] = {
    "batch": BATCH,
    "event": EVENT,
    "startup": STARTUP,
    "request": REQUEST,
}


def dtypes(columns: tuple[Column, ...]) -> dict[str, PolarsDataType]:
    """Return {name: dtype}, as Polars takes a schema."""
    return {c.name: c.dtype for c in columns}


def empty(columns: tuple[Column, ...]) -> pl.DataFrame:
    """Return a frame without rows."""
    return _empty(columns).clone()


@cache
def _empty(columns: tuple[Column, ...]) -> pl.DataFrame:
    return pl.DataFrame(schema=dtypes(columns))


def conform(frame: pl.DataFrame, columns: tuple[Column, ...]) -> pl.DataFrame:
    """Return `frame` with exactly the declared columns, in their order and types.

    Missing columns become null; columns that are not declared are dropped.
    """
    have = frame.schema
    names = [c.name for c in columns]
    if all(have.get(c.name) == c.dtype for c in columns):
        return frame[names]

    def column(c: Column) -> str | pl.Expr:
        if have.get(c.name) == c.dtype:
            return c.name
        values = pl.col(c.name) if c.name in have else pl.lit(None)
        return values.cast(c.dtype).alias(c.name)

    return frame.select_seq(column(c) for c in columns)
