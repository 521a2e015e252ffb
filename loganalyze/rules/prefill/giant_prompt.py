"""PRE003: a very long prompt stops decoding while its chunks are computed."""

from __future__ import annotations

from typing import Any

import polars as pl

from loganalyze.episodes import joined
from loganalyze.lengths import duration
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import Held, act, all_episodes, shown, spell
from loganalyze.rules.prefill.chunks import need_chunk_size
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule


@rule(
    "PRE003",
    "giant-prompt",
    severity=Severity.WARNING,
    needs=("new_token", "new_seq"),
    limits={
        "chunks": Limit(3.0, "chunks", "consecutive full chunks of one prompt"),
        "stall_s": Limit(10.0, "s", "decoding stands still for this long"),
    },
    explains=("ADM001", "ADM002", "ADM003", "QUE001"),
)
def giant_prompt(case: Case, limits: Limits) -> Finding | Clear:
    """A very long prompt stops decoding while its chunks are computed.

    What it flags:
        At least `chunks` prefill lines in a row that fill the chunk with one or two requests,
        lasting `stall_s` or longer while others are running.
    Why it is slow:
        The chunks of one prompt run back to back, and no running request gets a token meanwhile.
    Not this rule:
        Many prompts at once (PRE001).
    What to do:
        A server of its own for such prompts, PD disaggregation, or mixed chunks, which let others
        decode meanwhile. The chunk size does not help: all chunks of a prompt are computed before
        anything else.
    Source:
        Scheduler: one chunked request at a time, prefill first.
    """
    chunk = need_chunk_size(case)
    case.need_all_lines()
    pieces: list[Held] = []
    worst: dict[str, Any] | None = None
    for rank in case.ranks:
        full = (
            pl.col("prefill")
            & pl.col("cut")
            & (pl.col("new_seq") <= 2)
            & (pl.col("running_req") > 0)
        )
        rows = rank.lines.select_seq(
            "t",
            "source",
            "line_no",
            "new_token",
            ends=pl.col("t").shift(-1),
            full=full.fill_null(False),
        )
        if rank.clock != "stamps" or not rows["full"].any():
            continue
        runs = (
            rows.with_columns_seq(run=pl.col("full").rle_id())
            .filter("full")
            .group_by("run", maintain_order=True)
            .agg(
                pl.len(),
                pl.col("t", "source", "line_no").first(),
                pl.col("ends").last(),
                pl.col("new_token").sum(),
            )
            .filter(
                (pl.col("len") >= limits["chunks"])
                & (pl.col("ends") - pl.col("t") >= limits["stall_s"])
            )
        )
        if not runs.height:
            continue
        row = runs.sort(pl.col("ends") - pl.col("t")).row(-1, named=True)
        if worst is None or row["ends"] - row["t"] > worst["ends"] - worst["t"]:
            worst = row
        pieces.append(
            Held(
                rank,
                joined(
                    [
                        (int(a / rank.step_s), int(b / rank.step_s) + 1)
                        for a, b in runs.select_seq("t", "ends").iter_rows()
                    ],
                    0,
                ),
            )
        )
    if worst is None:
        return Clear(f"no prompt stopped decoding for {limits['stall_s']:.0f} s")
    episodes = all_episodes(pieces)
    most = max(episodes, key=lambda e: e.duration_s).duration_s
    longest = f", {duration(most)} the longest" if len(episodes) > 1 else ""
    allowed = case.signals.session.config.context_len
    one = not allowed or worst["new_token"] <= allowed
    what = (
        f"A prompt of at least {worst['new_token']:,} tokens"
        if one
        else f"Long prompts one after the other, {worst['new_token']:,} tokens together,"
    )
    return Finding(
        summary=f"{what} stopped decoding {spell(case, pieces)}{longest}",
        episodes=episodes,
        evidence=[
            shown(
                "chunks computed back to back",
                worst["len"],
                "chunks",
                (str(worst["source"]), int(worst["line_no"])),
                f"#new-token at the chunk size of {chunk}",
            )
        ],
        actions=[
            *act(case, "Send very long prompts to a server of their own"),
            *act(
                case,
                "Run prefill chunks and decodes in one pass",
                "enable-mixed-chunk",
                True,
                "running requests go on decoding; waiting ones still wait",
            ),
            *act(case, "Give prefill its own servers (PD disaggregation)"),
        ],
        severity=Severity.WARNING,
        confidence="medium",
        competing="many long prompts in a row are prefill-bound (PRE001)",
    )
