"""KV004: running requests are thrown back to the queue, and what that wastes."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.lengths import duration
from loganalyze.model import Action, Finding, Severity
from loganalyze.rules import flags
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    cells_of,
    confidence,
    hold,
    length_s,
    minimum,
    shown,
    spell,
    spells_of,
    sum_of,
    whole,
)
from loganalyze.rules.kv.evidence import capacity_of
from loganalyze.rules.kv.room import left_over_memory
from loganalyze.rules.registry import (
    NO_STATISTICS,
    Case,
    Clear,
    Limit,
    Limits,
    NotApplicable,
    rule,
)
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, retractions


@rule(
    "KV004",
    "retraction-storm",
    severity=Severity.CRITICAL,
    limits={
        "per_minute": Limit(
            6.0, "requests", "retracted requests in 60 s; SGLang's guide accepts about 1"
        ),
        "report_s": Limit(30.0, "s", "shortest spell"),
        "join_s": Limit(60.0, "s", "holes up to this long are closed"),
        "note_share": Limit(0.02, "fraction", "wasted share of work below which it is a note"),
        "critical_share": Limit(
            0.10, "fraction", "wasted share of work above which it is critical"
        ),
    },
    after=("KV001",),
)
def retraction_storm(case: Case, limits: Limits) -> Finding | Clear:
    """Running requests are thrown back to the queue over and over.

    What it flags:
        At least `per_minute` retracted requests of all ranks within 60 s, for `report_s` or
        longer, on the ranks that they came from.
    Why it is slow:
        When the next decode step does not fit the pool even after evicting the prefix cache,
        the requests with the fewest output tokens are thrown back, their KV is freed, and all
        of it is computed again later.
    Not this rule:
        Single retractions, which SGLang's guide accepts at about one a minute. `Testing
        retraction` lines are a debug mode.
    What to do:
        Give the pool more room first (KV001). Then reserve more per request
        (--schedule-conservativeness up to 1.3), or cap running requests at about 1.2 times
        what fits.
    Source:
        ScheduleBatch.retract_decode; SGLang docs, "Hyperparameter Tuning".
    """
    if not case.ranks:
        return _without_statistics(case, limits)
    if case.signals.servers > 1:
        raise NotApplicable(case.doubt)
    total = sum(rank.lost for rank in case.ranks)

    def judge(rank: Rank) -> list[Span]:
        together = case.signals.once("lost", lambda: sum_of(case.ranks, pl.col("retracted")))
        many = rank.past_sum(cells_of(rank, together), 60.0) >= limits["per_minute"]
        many = many & (rank.past_sum("retracted", 60.0) > 0)
        found = at_least(
            joined(spans(many), rank.cells(30)), minimum(case, limits["report_s"]) / rank.step_s
        )
        return joined(found, rank.cells(limits["join_s"]))

    found = hold(case.ranks, judge) if total else []
    if not found:
        return Clear(
            f"{total:,.0f} retracted requests, never {limits['per_minute']:.0f} in a minute"
        )
    waste, formula = _waste(case)
    grade = (
        Severity.INFO
        if waste < limits["note_share"]
        else Severity.CRITICAL
        if waste > limits["critical_share"]
        else Severity.WARNING
    )
    worst = found[0]
    lost = sum(held.total("retracted") for held in found)
    rate = 60 * lost / max(length_s(found), 1.0)
    return Finding(
        summary=f"{lost:,.0f} requests thrown back to the queue, "
        f"{'' if case.excerpt else f'{rate:.1f} a minute, '}"
        f"{spell(case, found)}; tokens computed again are about {waste:.1%} of those decoded",
        episodes=all_episodes(found),
        evidence=[
            shown(
                "retracted requests",
                int(lost),
                "requests",
                _first_retraction(case, worst),
                "sum of #retracted_reqs in the episodes",
            ),
            shown(
                "tokens computed again over tokens decoded", waste, "", (None, None), formula, 4
            ),
        ],
        actions=_fewer_retractions(case, worst),
        severity=grade,
        confidence=confidence(case, found),
        competing="KV001 is the usual cause"
        if "KV001" in case.earlier
        else "a full pool with a queue (KV001) excluded: hardly anything waits",
    )


def _without_statistics(case: Case, limits: Limits) -> Finding | Clear:
    """Judge a log of retractions alone, as another node or a higher log level leaves it."""
    events = retractions(case.data, None).drop_nulls("time").sort("time")
    lost = pl.col("num_retracted_reqs").fill_null(1)
    many = events.with_columns_seq(n=lost.rolling_sum_by("time", "60s")).filter(
        pl.col("n") >= limits["per_minute"]
    )
    if not many.height:
        raise NotApplicable(NO_STATISTICS)
    start = many["time"][0] - timedelta(seconds=60)
    spell_of = events.filter(pl.col("time").is_between(start, many["time"][-1]))
    episodes = spells_of(spell_of, limits["join_s"])
    length = sum(one.duration_s for one in episodes)
    total = int(spell_of.select_seq(lost.sum()).item())
    if length < limits["report_s"]:
        raise NotApplicable(NO_STATISTICS)
    first = spell_of.row(0, named=True)
    return Finding(
        summary=f"{total} requests thrown back to the queue, {60 * total / length:.1f} a minute, "
        f"for {duration(length)} from {first['time']:%H:%M:%S}: the KV pool was full while "
        "decoding; there are no statistics lines to tell what that wastes",
        episodes=episodes,
        evidence=[
            shown(
                "retracted requests",
                total,
                "requests",
                (first["source"], first["line_no"]),
                "sum of #retracted_reqs in the episodes",
            )
        ],
        actions=act(
            case,
            "Look at the log that has the statistics lines (of the first node, at --log-level "
            "info), then give the KV pool more room",
        ),
        severity=Severity.WARNING,
        confidence="low",
        competing="a full pool with a queue (KV001), which only statistics lines show",
    )


def _first_retraction(case: Case, held: Held) -> tuple[str | None, int | None]:
    first = held.episodes[0]
    events = case.data.event.filter(
        (pl.col("kind") == "retract") & (pl.col("line_no") >= first.first_line)
    )
    return (events["source"][0], int(events["line_no"][0])) if events.height else (None, None)


def _waste(case: Case) -> tuple[float, str]:
    """Return tokens thrown away over tokens decoded in the whole log, and how it was estimated.

    The whole log, because what a storm throws back is computed again after it.
    """
    events = case.data.event.filter(
        (pl.col("kind") == "retract")
        & ~pl.col("duplicate").fill_null(False)
        & ~pl.col("debug").fill_null(False)
    )
    decoded = sum(float(rank.grid["decoded"].sum()) for rank in case.ranks)
    gained = events["new_tokens_gained"]
    if gained.drop_nulls().len():
        again = as_float(gained.sum(), 0.0)
        formula = "sum of #new_tokens_gained / tokens decoded, whole log"
    else:
        # The youngest are thrown back; half a mean request is an upper guess.
        again = (
            sum(
                float(rank.grid["retracted"].sum()) * (whole(rank).tokens_per_req or 0.0)
                for rank in case.ranks
            )
            / 2
        )
        formula = "retracted x half the tokens per request / tokens decoded, whole log"
    return (again / decoded if decoded else 0.0), formula


#: Running requests over those that fit at which few are thrown back and few slots stay empty.
_CAP_OVER_FIT = 1.2


def _fewer_retractions(case: Case, held: Held) -> list[Action]:
    if "KV001" in case.earlier:
        out = act(case, "Give the KV pool more room: see KV001")
    else:
        out = left_over_memory(case, held) or act(
            case, "Give the KV pool more room first: fp8 KV, more GPUs or replicas (see KV001)"
        )
    c = case.arg("schedule_conservativeness")
    if not isinstance(c, int | float) or c < 1.3:
        proposed = 1.0 if isinstance(c, int | float) and c < 1.0 else 1.3
        out += act(
            case,
            "Reserve more KV per running request",
            "schedule-conservativeness",
            proposed,
            "fewer retractions; throughput within 3%",
        )
    capacity = capacity_of(case)
    fits, per_req = capacity.requests_fit, capacity.tokens_per_req
    if fits and per_req:  # the numbers that KV001 and the capacity table print
        cap = max(1, round(_CAP_OVER_FIT * fits))
        if not held.rank.cap or cap < held.rank.cap:
            present = held.rank.cap if case.arg("max_running_requests") is None else None
            out += act(
                case,
                f"Cap running requests at about {_CAP_OVER_FIT:g} times what fits: "
                f"{fits:,} at {per_req:,.0f} tokens each in today's pool; raise it with the pool",
                flags.CAP,
                cap,
                "about half the retractions at 1% less throughput",
                present,
            )
    if case.signals.session.role == "decode":
        out += act(
            case,
            "Keep the KV of retracted requests in host memory",
            "disaggregation-decode-enable-offload-kvcache",
            True,
        )
    return out
