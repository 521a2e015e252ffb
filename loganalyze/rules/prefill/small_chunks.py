"""PRE005: prefill is the limit and its chunks are small."""

from __future__ import annotations

import polars as pl

from loganalyze.model import Finding, Severity
from loganalyze.rules.held import act, shown
from loganalyze.rules.prefill.chunks import need_chunk_size
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule


@rule(
    "PRE005",
    "chunk-too-small",
    severity=Severity.WARNING,
    needs=("new_token", "gen_throughput"),
    limits={
        "chunk": Limit(2048.0, "tokens", "chunk size up to which it is called small"),
        "share": Limit(0.8, "fraction", "share of prefill lines that fill the chunk"),
    },
    after=("PRE001",),
)
def chunk_too_small(case: Case, limits: Limits) -> Finding | Clear:
    """Prefill is the limit and its chunks are small.

    What it flags:
        A prefill-bound server (PRE001) with a queue, whose prefill lines nearly all fill a chunk
        of `chunk` tokens or less. DP attention divides the chunk size by the DP size.
    Why it is slow:
        Each chunk pays for a pass over the weights; small chunks do not fill the GPU.
    Not this rule:
        Small chunks on a server that decodes most of the time: they keep it smooth.
    What to do:
        A larger --chunked-prefill-size.
    Source:
        ServerArgs: chunked_prefill_size // dp_size with DP attention.
    """
    chunk = need_chunk_size(case)
    bound = case.earlier.get("PRE001")
    if bound is None or chunk > limits["chunk"]:
        return Clear(f"chunks of {chunk} tokens" + ("" if bound is None else ", large enough"))
    lines = case.data.batch.filter(
        (pl.col("phase") == "prefill")
        & (pl.col("queue_req").fill_null(0) > 0)
        & (pl.col("lines") > 0)
    )
    # A row that stands for several lines may hold as many full chunks as its tokens make.
    lines = lines.with_columns_seq(
        full=pl.min_horizontal(pl.col("new_token").fill_null(0) // chunk, "lines")
    )
    n_lines, n_full = lines.select_seq(pl.col("lines", "full").sum()).row(0)
    if n_lines < 10:
        return Clear("prefill was the limit, but nothing waited")
    if n_full < limits["share"] * n_lines:
        return Clear(f"{n_full / n_lines:.0%} of the prefill lines fill the chunk")
    first = lines.filter(pl.col("full") > 0).row(0, named=True)
    return Finding(
        summary=f"{n_full / n_lines:.0%} of the prefill batches fill the small chunk "
        f"of {chunk} tokens while prefill is the limit",
        episodes=bound.episodes,
        evidence=[
            shown(
                "chunk size",
                chunk,
                "tokens",
                (first["source"], first["line_no"]),
                "chunked_prefill_size, per DP rank",
            )
        ],
        actions=act(
            case,
            "Larger prefill chunks",
            "chunked-prefill-size",
            4 * chunk,
            "fewer passes for the same prompts",
            chunk,
        ),
        severity=Severity.WARNING,
        confidence="medium",
        competing="GPUs that larger chunks do not make faster: then PRE001 alone is the cause",
    )
