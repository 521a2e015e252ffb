"""What the KV pool holds, measured from the log."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from loganalyze import timeline
from loganalyze.capacity import memory, steps
from loganalyze.model import Capacity, Episode, SessionData
from loganalyze.timeline import as_float

_GIB = 2**30

#: Usage is printed with two decimals: T / u is off by 0.005 / u. Lines above this usage serve
#: if there are any; the fullest lines otherwise.
_USAGE_FLOOR = 0.3


#: Usage of a PD decode server from which room may be short for a long prompt, and the share of
#: the pool from which used and reserved tokens together leave no room for any.
DECODE_USAGE, _NO_ROOM = 0.6, 0.95


def lacks_room(
    used: pl.Expr, held: pl.Expr, tokens: int | None, reserve: int, usage: float = DECODE_USAGE
) -> pl.Expr:
    """Return whether a PD decode server has no KV room for another request.

    By its usage; or, where the pool's size is known, by what it keeps free for the requests
    that it holds: with many short ones that blocks at a low usage.

    Args:
        used: usage of the pool, preallocated KV included.
        held: requests that run or are in transfer.
        tokens: of the pool; None where they are not known.
        reserve: of `memory.decode_reserve`.
        usage: from which room may be short whatever is reserved.
    """
    if not tokens:
        return used > usage
    return (used > usage) | (used + reserve * held / tokens > _NO_ROOM)


def measure(data: SessionData) -> Capacity:
    """Measure pool size, tokens per request and rate per request.

    The pool size is the printed one, else the median of #token / usage. Tokens per request is
    sum(#token) / sum(#running-req) over the settled decode lines: those from the first at
    which it reached the session's median, so that a warm-up does not make requests look small.
    Where the pool was full with requests waiting, and a request held much more or less then than
    at other times, that time alone counts: the mix that filled the pool is the one to find room
    for.
    On a PD decode server #token without what requests in transfer hold (timeline.own_token).
    It counts what requests hold at a moment, which is not their mean final length: long ones
    are seen more often.

    Source:
        R_max = N / a; on a PD decode server N / (a + 512), see memory.decode_reserve.
        SGLang prints #token without evictable prefix-cache tokens.
    """
    config = data.session.config
    decode = _decode(data)
    notes: list[str] = []
    kv_tokens, source, line = config.kv_capacity_tokens, "log", config.capacity_line
    if kv_tokens is None:
        kv_tokens, source, line = config.kv_pool_tokens, "log", config.kv_pool_line
    if kv_tokens is None:
        kv_tokens, spread, line = _inferred(decode)
        source = "inferred"
        if kv_tokens is not None:
            notes.append(
                "pool size inferred as #token / token usage, within "
                f"{spread:.1%}: the log holds no max_total_num_tokens= line"
            )
    if decode.height and decode["own"].null_count() == decode.height > decode["used"].null_count():
        notes.append(
            "tokens per request cannot be told: #token also counts requests in transfer, and "
            "the lines print neither pre-allocated usage nor #transfer-req"
        )
    reserve = memory.decode_reserve(data.session)
    held = _held(decode, kv_tokens, reserve)
    gib, pool_tokens = config.kv_pool_gib, config.kv_pool_tokens
    cell = gib * _GIB / pool_tokens if gib and pool_tokens else None
    return Capacity(
        kv_tokens=kv_tokens,
        kv_tokens_source=None if kv_tokens is None else ("log" if source == "log" else "inferred"),
        kv_tokens_line=line,
        bytes_per_token=cell,
        pool_gib=gib,
        tokens_per_req=held.tokens_per_req,
        requests_fit=held.requests_fit,
        rate_per_req=held.rate_per_req,
        max_running_req=config.max_running_req,
        lines=held.lines,
        line_sources=held.line_sources,
        step_model=steps.fit(data, cell),
        notes=(*notes, *held.notes),
        reserved_per_req=reserve,
        other_pools=bool(config.swa_pool_tokens or config.mamba_slots)
        or any(
            data.batch[c].null_count() < data.batch.height
            for c in ("swa_token_usage", "mamba_usage")
        ),
    )


def before_leak(data: SessionData, measured: Capacity, leak: Episode) -> Capacity:
    """Return a capacity with what requests hold measured on the lines before a leak began.

    Leaked tokens are in use but no running request holds them.
    """
    began = (pl.col("source") == leak.source) & (pl.col("line_no") == leak.first_line)
    decode = _decode(data)
    decode = decode.filter(pl.col("row") < data.batch.select_seq(began.arg_max()).item())
    held = _held(decode, measured.kv_tokens, measured.reserved_per_req)
    note = f"measured before line {leak.first_line}, where tokens that nobody holds begin to grow"
    kept = [n for n in measured.notes if not n.startswith(_FEW)]
    return replace(
        measured,
        tokens_per_req=held.tokens_per_req,
        requests_fit=held.requests_fit,
        rate_per_req=held.rate_per_req,
        lines=held.lines,
        line_sources=held.line_sources,
        notes=(*kept, *held.notes, note),
    )


_FEW = "measured on "

#: The time in which the pool is full with requests waiting tells what fits it: so many lines at
#: this usage, where requests hold other amounts then than elsewhere by this factor.
_FULL_LINES, _FULL_USAGE, _OTHER_MIX = 20, 0.9, 1.5


def _held(decode: pl.DataFrame, kv_tokens: int | None, reserve: int) -> Capacity:
    """Return what requests hold and how fast they decode, on the settled of some decode lines.

    A request fits with what it holds and the `reserve` that is kept free for it.
    """
    settled, notes = _settled(decode), []
    per_req = _per_req(settled)
    waits = pl.col("queue_req") > 0
    full = (pl.col("usage") >= _FULL_USAGE) & waits
    if decode.select_seq(full.sum()).item() >= _FULL_LINES and per_req:
        # From full line to full line while requests wait: those lines alone show requests grown
        # old, since the pool is filled by their growth and falls as they finish.
        queue = (~waits).fill_null(True).cum_sum()
        row = pl.when(full).then("row")
        first, last = row.min().over(queue), row.max().over(queue)
        there = _settled(decode.filter(waits & pl.col("row").is_between(first, last)))
        held = _per_req(there) or per_req
        if not 1 / _OTHER_MIX < held / per_req < _OTHER_MIX:
            notes.append(
                f"{_FEW}the time with a full pool and requests waiting: of all lines it is "
                f"{per_req:,.0f} tokens a request, of another mix"
            )
            settled, per_req = there, held
    printed = settled.filter(pl.col("gen_throughput") > 0)
    rate_running = int(printed["running_req"].sum() or 0)
    if 0 < settled.height < 20 and not notes:
        notes.append(f"{_FEW}{settled.height} decode line" + "s" * (settled.height > 1))
    return Capacity(
        tokens_per_req=per_req,
        requests_fit=int(kv_tokens / (per_req + reserve)) if kv_tokens and per_req else None,
        rate_per_req=round(float(printed["gen_throughput"].sum()) / rate_running, 2)
        if rate_running
        else None,
        lines=(int(settled["line_no"][0]), int(settled["line_no"][-1]))
        if settled.height
        else None,
        line_sources=(settled["source"][0], settled["source"][-1]) if settled.height else None,
        notes=tuple(notes),
    )


def _per_req(lines: pl.DataFrame) -> float | None:
    """Return the tokens that a running request holds, over some decode lines."""
    known = lines.filter(pl.col("own").is_not_null())
    running, tokens = int(known["running_req"].sum() or 0), float(known["own"].sum() or 0)
    return round(tokens / running, 1) if running and tokens else None


#: What tells the decode lines with requests, and what those hold.
_HELD_BY = (
    "source",
    "line_no",
    "phase",
    "duplicate",
    "dp_rank",
    "pp_rank",
    "attn_cp_rank",
    "running_req",
    "queue_req",
    "transfer_req",
    "gen_throughput",
    "token",
    "full_token",
    "gpu_token",
    "token_usage",
    "full_token_usage",
    "gpu_token_usage",
    "kv_usage",
    "pre_allocated_usage",
)


def _decode(data: SessionData) -> pl.DataFrame:
    """Return the decode lines with requests, of one PP and CP rank per DP rank; `row` counts."""
    batch = data.batch.select_seq(_HELD_BY).with_row_index("row")
    parts = timeline.rank_rows(batch) or [batch.clear()]
    return pl.concat(
        part.filter((pl.col("phase") == "decode") & (pl.col("running_req") > 0)).select_seq(
            "source",
            "line_no",
            "row",
            "running_req",
            "queue_req",
            "gen_throughput",
            used=pl.coalesce("token", "full_token", "gpu_token"),
            own=timeline.own_token(data).cast(pl.Float64),
            usage=pl.coalesce("token_usage", "full_token_usage", "gpu_token_usage"),
        )
        for part in parts
    )


def _inferred(decode: pl.DataFrame) -> tuple[int | None, float, int | None]:
    """Return pool size from tokens and usage, its relative error, and the line it is read from."""
    rows = decode.select_seq("line_no", "used", "usage").filter(
        (pl.col("usage") >= 0.03) & (pl.col("used") > 0)
    )
    full = rows.filter(pl.col("usage") >= _USAGE_FLOOR)
    if not rows.height:
        return None, 0.0, None
    if not full.height:
        full = rows.filter(pl.col("usage") == pl.col("usage").max())
    size = full.select_seq((pl.col("used") / pl.col("usage")).median()).item()
    best = full.row(int(full["usage"].arg_max() or 0), named=True)
    return round(size), 0.005 / float(best["usage"]), int(best["line_no"])


def _settled(decode: pl.DataFrame) -> pl.DataFrame:
    """Return the lines from the first at which tokens per request reached their median."""
    rows = decode.filter(pl.col("own").is_not_null())
    if not rows.height:
        return decode
    per_req = rows["own"] / rows["running_req"]
    first = (per_req >= as_float(per_req.median(), 0.0)).arg_max() or 0
    return rows[first:]
