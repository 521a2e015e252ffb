"""PRE002: prefills interrupt decoding, and running requests stutter."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import (
    act,
    all_episodes,
    confidence,
    hold,
    largest_prefill,
    over,
    shown,
    spell,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "PRE002",
    "prefill-interference",
    severity=Severity.WARNING,
    needs=("new_token", "gen_throughput"),
    limits={
        "duty": Limit(0.35, "fraction", "share of the time spent on prefill"),
        "stall_s": Limit(
            1.0, "s", "a run of prefills this long makes every running request stutter"
        ),
        "per_minute": Limit(4.0, "stalls", "such runs in a minute"),
        "report_s": Limit(60.0, "s", "shortest spell"),
    },
    after=("PRE001",),
)
def prefill_interference(case: Case, limits: Limits) -> Finding | Clear:
    """Prefills interrupt decoding: running requests stutter.

    What it flags:
        Prefill takes more than `duty` of the time (but not most of it) in runs of `stall_s` or
        longer, several a minute, while requests are decoding.
    Why it is slow:
        During a run of prefill batches no running request gets a token; the time between tokens
        jumps by the length of the run, and throughput falls by the share of time.
    Not this rule:
        Short prefills between decode steps, which are normal, and prefill taking most of the
        time (PRE001).
    What to do:
        --enable-mixed-chunk, with smaller chunks if need be, or PD disaggregation.
    Source:
        Scheduler: prefill has priority, and chunks of one prompt run back to back.
    """
    if case.excerpt:
        raise NotApplicable(f"{case.length} is too little")
    case.need_all_lines()
    models = [rank.model for rank in case.ranks if rank.model]
    if not models:
        raise NotApplicable("it has too few decode lines to fit the step model (12 are needed)")
    if case.arg("enable_mixed_chunk"):
        return Clear("mixed chunks are on: prefill and decode share their passes")
    if any(as_float(rank.lines["lines"].max(), 1.0) > 1 for rank in case.ranks):
        raise NotApplicable(
            "it is so long that its lines were merged, and runs of prefills cannot be told from "
            "single ones"
        )

    def judge(rank: Rank) -> list[Span]:
        runs = _runs(rank)
        if runs is None:
            return []
        long = runs.filter(pl.col("length") >= limits["stall_s"])
        if not long.height:
            return []
        counted = long.group_by(cell=(pl.col("t") / rank.step_s).floor().cast(pl.Int64)).len()
        stalls = pl.Series([0]).new_from_index(0, rank.grid.height)
        stalls = stalls.scatter(counted["cell"], counted["len"])
        many = rank.past_sum(stalls, 60.0) >= limits["per_minute"]
        duty = rank.mean("duty", 31.0)
        high = many & (duty > limits["duty"]) & (duty <= 0.5) & ~rank.grid["gap"]
        return at_least(joined(spans(high), rank.cells(30)), rank.cells(limits["report_s"]))

    found = hold(case.ranks, judge)
    if not found:
        return Clear("no runs of prefills long enough to be felt, several a minute")
    worst = found[0]
    runs = _runs(worst.rank)
    longest = runs.sort("length").row(-1, named=True) if runs is not None and runs.height else None
    evidence = [
        shown(
            "share of time spent on prefill",
            worst.mean("duty"),
            formula=f"modelled time of prefill batches / time, fitted, {over(worst.prefill)}",
            digits=3,
        ),
        shown(
            "throughput lost to prefill",
            worst.mean("duty"),
            "",
            (None, None),
            "throughput x (1 - share)",
            3,
        ),
        *largest_prefill(worst),
    ]
    if longest:
        evidence.append(
            shown(
                "longest run of prefills",
                longest["length"],
                "s",
                (longest["source"], longest["line_no"]),
                "modelled time of consecutive prefill batches",
                1,
            )
        )
    chunk = case.signals.session.config.chunked_prefill_size
    return Finding(
        summary=f"Prefills interrupt decoding {spell(case, found)}: they take "
        f"{worst.mean('duty') or 0:.0%} of the time in runs of a second or more",
        episodes=all_episodes(found),
        evidence=evidence,
        actions=[
            *act(
                case,
                "Run prefill chunks and decodes in one pass",
                "enable-mixed-chunk",
                True,
                "no stutters; gen throughput then under-reports",
            ),
            *(
                act(
                    case,
                    "With mixed chunks, smaller ones: each pass gets shorter",
                    "chunked-prefill-size",
                    chunk // 2,
                    "alone it does not help: all chunks of a prompt come before the next decode",
                    chunk,
                )
                if chunk and chunk > 2048
                else []
            ),
            *act(case, "Give prefill its own servers (PD disaggregation)"),
        ],
        severity=Severity.WARNING,
        confidence=confidence(case, found),
        competing="prefill as the limit (PRE001) excluded: it takes less than half of the time",
    )


def _runs(rank: Rank) -> pl.DataFrame | None:
    """Return runs of consecutive prefill lines while requests decode: t, line, modelled length.

    None without a step model, and where lines were merged: nobody knows then which followed which.
    """
    model = rank.model
    if model is None or model.p0_s + model.p1_s <= 0 or rank.timeline.merged:
        return None
    lines = rank.lines.with_columns_seq(run=pl.col("prefill").rle_id())
    return (
        lines.filter(pl.col("prefill") & (pl.col("running_req") > 0))
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("t", "source", "line_no").first(),
            length=(model.p0_s + model.p1_s * pl.col("new_token")).sum(),
        )
    )
