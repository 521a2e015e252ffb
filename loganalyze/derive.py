"""Columns computed from columns, one formula each."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePath

import polars as pl

#: The usages that a line may print. The fullest pool is the one that blocks.
POOLS = (
    "token_usage",
    "full_token_usage",
    "swa_token_usage",
    "mamba_usage",
    "gpu_token_usage",
)

#: Seconds in which a working server prints a line: a shorter silence is no gap to any rule.
SILENCE_S = 12.0

#: Printed rank words in the order of 0.5.9 and later.
RANK_WORDS = {
    "dp_rank": "DP",
    "pp_rank": "PP",
    "attn_cp_rank": "ATTN_CP",
    "moe_dp_rank": "MOE_DP",
    "tp_rank": "TP",
    "ep_rank": "EP",
}


def add_columns(batch: pl.DataFrame) -> pl.DataFrame:
    """Add `kv_usage`, `rate_per_req`, `cache_hit_rate`, and `lines` where it is missing.

    Args:
        batch: BATCH schema.

    Returns:
        Same rows, same order.
        `kv_usage`: fraction, the fullest pool of the line (the host pool of HiSparse is no
        ceiling for decodes, so it does not count); null if the line prints no usage.
        `rate_per_req`: token/s per request; decode rows with running requests only.
        `cache_hit_rate`: cached / (cached + new) tokens of a prefill row; null if no tokens.
    """
    prompt = pl.col("cached_token") + pl.col("new_token")
    return batch.with_columns_seq(
        kv_usage=pl.max_horizontal(*POOLS),
        rate_per_req=pl.when((pl.col("phase") == "decode") & (pl.col("running_req") > 0)).then(
            pl.col("gen_throughput") / pl.col("running_req")
        ),
        cache_hit_rate=pl.when((pl.col("phase") == "prefill") & (prompt > 0)).then(
            pl.col("cached_token") / prompt
        ),
        lines=pl.col("lines").fill_null(1),
    )


def rank_text() -> pl.Expr:
    """Return the printed rank text of a row, such as `DP1 TP4`; null for a row without ranks."""
    words = [
        pl.when(pl.col(column).is_not_null()).then(
            pl.concat_str(pl.lit(word), pl.col(column).cast(pl.String))
        )
        for column, word in RANK_WORDS.items()
    ]
    text = pl.concat_str(words, separator=" ", ignore_nulls=True)
    return pl.when(text != "").then(text).alias("rank")


def time_span(*frames: pl.DataFrame) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last stamp in the frames; None where no row has one."""
    times = pl.concat([frame["time"] for frame in frames])
    first, last = times.min(), times.max()
    return (
        first if isinstance(first, datetime) else None,
        last if isinstance(last, datetime) else None,
    )


def from_to(kind: str, first: tuple[str | None, int], last: tuple[str | None, int]) -> str:
    """Say which lines are meant by the first and the last, as (source, line_no)."""
    if first == last:
        return f"{kind} {first[1]}"
    one, other = (f" of {PurePath(source or '').name}" for source, _ in (first, last))
    if first[0] == last[0]:
        one = other = ""
    return f"{kind}s {first[1]}{one} to {last[1]}{other}"
