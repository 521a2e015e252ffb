"""LNG001: reading KV takes most of a decode step."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from loganalyze.capacity import steps
from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Finding, Severity, StepModel
from loganalyze.rules.held import act, all_episodes, confidence, hold, shown, spell, these
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "LNG001",
    "long-context",
    severity=Severity.INFO,
    needs=("token|full_token", "gen_throughput"),
    limits={
        "share": Limit(0.5, "fraction", "share of the step that reads KV"),
        "window_s": Limit(21.0, "s", "window"),
        "report_s": Limit(60.0, "s", "shortest spell"),
        "join_s": Limit(30.0, "s", "holes up to this long are closed"),
    },
    after=("PRE001", "THR002"),
)
def long_context(case: Case, limits: Limits) -> Finding | Clear:
    """Reading KV takes most of a decode step: contexts are long.

    What it flags:
        More than `share` of the modelled step time spent on KV tokens (b x tokens), for
        `report_s` or longer.
    Why it is slow:
        Attention reads all KV of all running requests in every step. As contexts grow, the rate
        per request falls although nothing else changed.
    Not this rule:
        A slower GPU (THR002): here the model explains the rate.
    What to do:
        fp8 KV halves the bytes; DP attention or DCP for MLA models; shorter contexts.
    Source:
        The fitted step model, t0 + a R + b T.
    """
    if not any(rank.model for rank in case.ranks):
        raise NotApplicable("it has too few decode lines to fit the step model (12 are needed)")
    known = case.signals.capacity.bytes_per_token is not None
    models = {rank.label: _model(case, rank) for rank in case.ranks}

    def judge(rank: Rank) -> list[Span]:
        model = models[rank.label]
        if model is None or not (model.b_identified or known):
            return []
        read = rank.mean(_attention(model), limits["window_s"])
        high = (read > limits["share"]) & ~rank.grid["gap"]
        high = high & (rank.grid["running"].fill_null(0) > 0)
        return at_least(
            joined(spans(high), rank.cells(limits["join_s"])), rank.cells(limits["report_s"])
        )

    found = hold(case.ranks, judge)
    if not found:
        shares = [
            rank.select(_attention(model)).max()
            for rank in case.ranks
            if (model := models[rank.label])
        ]
        top = max((as_float(share, 0.0) for share in shares), default=0.0)
        return Clear(f"reading KV took at most {top:.0%} of a step, by the fitted model")
    worst = found[0]
    model = models[worst.rank.label]
    share = worst.average(_attention(model)) if model else 0.0
    return Finding(
        summary=f"Reading KV takes {share:.0%} of each decode step {spell(case, found)}: "
        "contexts are long",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "share of the step that reads KV",
                share,
                "",
                worst.line("t_mean"),
                f"b x #token / modelled step, over {these(worst.decode)}",
                3,
            ),
            shown(
                "time per KV token and step",
                (model.b_s if model else 0.0) * 1e9,
                "ns",
                (None, None),
                "b of the fitted model",
                2,
            ),
            worst.averaged("KV tokens held", "token", "t_mean", "tokens", 0),
        ],
        actions=[
            *(
                act(case, "Store KV in fp8: half the bytes to read", "kv-cache-dtype", "fp8_e4m3")
                if "fp8" not in str(case.arg("kv_cache_dtype"))
                else []
            ),
            *act(case, "Shorter contexts, where the task allows"),
        ],
        severity=Severity.INFO,
        confidence=confidence(case, found, inferred=model is None or not model.b_identified),
        competing=_rival(case, model),
    )


def _attention(model: StepModel) -> pl.Expr:
    """Return the share of a modelled step that reads KV, over the grid."""
    read = model.b_s * pl.col("own_token")
    return read / (model.t0_s + model.a_s * pl.col("running") + read)


def _rival(case: Case, model: StepModel | None) -> str:
    if model and not model.b_identified:
        return model.note
    if "THR002" in case.earlier:
        return "a slower GPU (THR002), which the model of the lines before it leaves apart"
    return "a slower GPU (THR002) excluded: step times did not jump"


def _model(case: Case, rank: Rank) -> StepModel | None:
    """Return the rank's step model; of the lines before a jump of step times, if there was one.

    One model of two speeds gives the difference to whatever grew meanwhile, as KV tokens do.
    """
    jump = case.earlier.get("THR002")
    rows = rank.timeline.lines
    for one in jump.episodes if jump else ():
        if one.rank == rank.label:
            at = (pl.col("source") == one.source) & (pl.col("line_no") == one.first_line)
            before = rows[: int(rows.select_seq(at.arg_max()).item() or 0)]
            part = replace(rank.timeline, lines=before)
            return steps.fit_timeline(part, case.signals.capacity.bytes_per_token)
    return rank.model
