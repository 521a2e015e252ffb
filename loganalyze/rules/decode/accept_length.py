"""SPC001: speculative decoding drafts tokens that are not accepted."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Finding, Severity
from loganalyze.rules.held import act, all_episodes, confidence, hold, severity, shown, spell
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float


@rule(
    "SPC001",
    "low-accept-length",
    severity=Severity.CRITICAL,
    needs=("accept_len", "running_req"),
    limits={
        "share_of_early": Limit(0.7, "x", "accept length over the session's early median"),
        "floor": Limit(1.3, "tokens", "accept length below which drafting hardly pays"),
        "early_s": Limit(120.0, "s", "time that sets the early median"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(30.0, "s", "shortest spell"),
    },
    explains=("THR002",),
)
def low_accept_length(case: Case, limits: Limits) -> Finding | Clear:
    """Speculative decoding drafts tokens that are not accepted.

    What it flags:
        Accept length below `share_of_early` of the session's early median, or below `floor`,
        for `report_s` or longer.
    Why it is slow:
        Each step pays for drafting and verifying. With an accept length of 1.0 (the bonus token
        alone) a step yields what plain decoding yields, at a higher price.
    Not this rule:
        A slower GPU (THR002): rates are compared per accepted token there.
    What to do:
        Fewer draft steps, another draft model, or none. Exactly 1.00 all the time points to a
        draft out of step with its target: test without the prefix cache.
    Source:
        accept len counts the bonus token; break-even: 1 + draft cost / step time.
    """

    def judge(rank: Rank) -> list[Span]:
        accept = rank.grid["accept"]
        early = as_float(accept.drop_nulls().head(rank.cells(limits["early_s"])).median())
        if early is None:
            return []
        limit = max(limits["share_of_early"] * early, limits["floor"])
        low = rank.holds(pl.col("accept") < limit, 0.6, limits["window_s"])
        return at_least(joined(spans(low), rank.cells(20)), rank.cells(limits["report_s"]))

    if case.excerpt:
        raise NotApplicable(f"{case.length} is too little to compare accept lengths")
    found = hold(case.ranks, judge)
    if not found:
        low = as_float(case.data.batch["accept_len"].min(), 0.0)
        return Clear(
            f"accept length never fell for {limits['report_s']:.0f} s; lowest line {low:.2f}"
        )
    worst = found[0]
    first = worst.rank.grid["accept"].drop_nulls().head(worst.rank.cells(limits["early_s"]))
    early = as_float(first.median(), 0.0)
    now = worst.mean("accept") or 0.0
    dead = worst.decode.filter(pl.col("accept_len") == 1.0).height > 0.9 * max(
        worst.decode.height, 1
    )
    steps_now = case.arg("speculative_num_steps")
    actions = act(
        case,
        "Fewer draft steps",
        "speculative-num-steps",
        max(1, steps_now // 2) if isinstance(steps_now, int) else "lower",
        "less work for drafts that are thrown away",
    )
    if dead:
        actions += act(
            case,
            "An accept length of exactly 1.00 points to a draft out of step: test "
            "without the prefix cache",
            "disable-radix-cache",
            True,
        )
    actions += act(case, "Compare with speculative decoding off at this load")
    return Finding(
        summary=f"Few drafted tokens are accepted {spell(case, found)}: accept length "
        f"{now:.2f}, at first {early:.2f}",
        episodes=all_episodes(found),
        evidence=[
            worst.averaged(
                "accept length, bonus token included", "accept", "accept_len", "tokens", 2
            ),
            shown(
                "accept length at first",
                early,
                "tokens",
                (None, None),
                f"median of the first {limits['early_s']:.0f} s",
                2,
            ),
        ],
        actions=actions,
        severity=severity(case, found),
        confidence=confidence(case, found, config=True),
        competing="requests of another kind draft less well; the log does not show their content",
    )
