"""PRE004: the prefix cache finds less than it used to."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import joined, spans
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import Held, act, alike, confidence, over, shown, spell
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.timeline import as_float

#: The hit rate that one prefill line prints.
_HIT_RATE = pl.col("cached_token") / (pl.col("cached_token") + pl.col("new_token"))


@rule(
    "PRE004",
    "cache-hits-fell",
    severity=Severity.WARNING,
    needs=("new_token", "cached_token"),
    limits={
        "window_s": Limit(600.0, "s", "window of the hit rate"),
        "drop": Limit(0.2, "fraction", "fall of the hit rate"),
        "same_prompts": Limit(0.3, "fraction", "prompt length may change by this much"),
        "min_tokens": Limit(20000.0, "tokens", "prompt tokens in a window to judge it"),
    },
)
def cache_hits_fell(case: Case, limits: Limits) -> Finding | Clear:
    """The prefix cache finds less than it used to, with prompts as long as before.

    What it flags:
        The share of prompt tokens found in the cache, over `window_s`, falling by `drop` or
        more while the mean prompt stays about as long.
    Why it is slow:
        Every token not found is computed again, which takes time from decoding.
    Not this rule:
        A low hit rate as such: the log does not show how much could be shared.
    What to do:
        If the pool is not full of running requests, distinct sessions push each other out:
        hierarchical cache or routing by session helps. Beyond 128 waiting requests the longest-
        prefix-first policy is off.
    Source:
        cached / (cached + new) tokens of prefill lines, without those of retracted requests.
    """
    if case.signals.span_s < 2 * limits["window_s"]:
        raise NotApplicable(
            f"it covers less than {2 * limits['window_s'] / 60:.0f} min, two windows of "
            "the hit rate"
        )
    seen = 0.0
    for rank in case.ranks:
        w = limits["window_s"]
        # Retracted requests are computed again without hits: such times are left out.
        calm = rank.past_sum("retracted", 60.0) == 0
        new = rank.past_sum(rank.grid["new_token"] * calm, w)
        hit = rank.past_sum(rank.grid["cached_token"] * calm, w)
        seqs = rank.past_sum(rank.grid["started"] * calm, w)
        size = rank.cells(w)
        frame = (
            pl.DataFrame({"new": new, "hit": hit, "seq": seqs})
            .with_columns_seq(
                rate=pl.when(pl.col("new") + pl.col("hit") >= limits["min_tokens"]).then(
                    pl.col("hit") / (pl.col("new") + pl.col("hit"))
                ),
                prompt=(pl.col("new") + pl.col("hit")) / pl.col("seq"),
            )
            .with_columns_seq(
                before=pl.col("rate").shift(size),
                prompt_before=pl.col("prompt").shift(size),
            )
        )
        seen = max(seen, as_float(frame["rate"].max(), 0.0))
        fell = frame.select_seq(
            (
                (pl.int_range(pl.len()) >= 2 * size - 1)
                & (pl.col("before") - pl.col("rate") >= limits["drop"])
                & (
                    (pl.col("prompt") / pl.col("prompt_before")).log().abs()
                    <= limits["same_prompts"]
                )
            ).fill_null(False)
        ).to_series()
        found = joined(spans(fell), size)
        if not found:
            continue
        held = Held(rank, [(max(0, first - size), end) for first, end in found])
        ends = frame.with_row_index("end", 1).filter(fell)
        worst = ends.sort(pl.col("before") - pl.col("rate")).row(-1, named=True)
        middle = worst["end"] - size
        before, after = (
            Held(rank, [(max(0, end - size), end)]).prefill for end in (middle, worst["end"])
        )
        roomy = (held.mean("usage") or 0.0) < 0.6
        return Finding(
            summary=f"The prefix cache found {worst['rate']:.0%} of the prompt tokens, down "
            f"from {worst['before']:.0%}, with prompts as long as before, "
            f"{spell(case, [held])}",
            episodes=held.episodes,
            evidence=[
                shown(
                    "hit rate before",
                    worst["before"],
                    "",
                    alike(before, _HIT_RATE, worst["before"]),
                    f"#cached-token / (#cached-token + #new-token), {over(before)}",
                    3,
                ),
                shown(
                    "hit rate after",
                    worst["rate"],
                    "",
                    alike(after, _HIT_RATE, worst["rate"]),
                    f"#cached-token / (#cached-token + #new-token), {over(after)}",
                    3,
                ),
                held.averaged(
                    "mean usage, without evictable cache", "usage", "kv_usage", "fraction", 2
                ),
            ],
            actions=[
                *(
                    act(
                        case,
                        "Keep evicted prefixes in host memory: sessions push each "
                        "other out of the GPU cache",
                        "enable-hierarchical-cache",
                        True,
                    )
                    if roomy and not case.arg("enable_hierarchical_cache")
                    else []
                ),
                *act(case, "Route requests of one session to the same server"),
            ],
            severity=Severity.WARNING,
            confidence=confidence(case, [held]),
            competing="prompts that share less look the same",
        )
    return Clear(f"the hit rate did not fall with prompts of the same length; highest {seen:.0%}")
