"""THR003: decode steps became slow just after an event that the log names."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from loganalyze.model import Finding, Severity
from loganalyze.rules.held import Held, act, event_text, severity, shown, spell
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.timeline import as_float


@rule(
    "THR003",
    "slow-after-event",
    severity=Severity.CRITICAL,
    needs=("gen_throughput", "running_req"),
    limits={
        "within_s": Limit(30.0, "s", "time between the event and the jump"),
        "factor": Limit(2.0, "x", "step time after over before that tells without a long log"),
        "lines": Limit(4.0, "lines", "decode lines needed before and after"),
        "around_s": Limit(120.0, "s", "time around the event that is compared"),
    },
    after=("THR002",),
    explains=("THR002", "TPS001", "KV001", "KV003", "KV004", "KV005", "ADM001", "ADM002"),
)
def slow_after_event(case: Case, limits: Limits) -> Finding | Clear:
    """Decode steps became slow just after an event that the log names.

    What it flags:
        Step times that at least double (`factor`) just after a retraction, a refused flush, or
        another event, beyond what more running requests explain at worst (in proportion); or a
        lasting jump of step time (THR002) within `within_s` after one.
    Why it is slow:
        A known class of faults: after some events decoding stays slow although batch, context and
        graph are the same.
    Not this rule:
        A jump without an event nearby (THR002), and retractions as such (KV004).
    What to do:
        Restart to recover, upgrade, and report it with the lines around the event.
    Source:
        #26248 (decode collapse after a retraction).
    """
    events = case.data.event.filter(
        ~pl.col("duplicate").fill_null(False)
        & ~pl.col("debug").fill_null(False)
        & ~pl.col("kind").is_in(["ready", "health_check_failed", "sigterm", "graceful_exit"])
    ).sort("line_no")
    collapse = _collapse(case, events, limits)
    if collapse is not None:
        row, held, factor = collapse
        name = _event_name(str(row["kind"]))
        return Finding(
            summary=f"Decode steps take {factor:.1f} times as long after {name}, for the number "
            f"of running requests, {spell(case, [held])}",
            episodes=held.episodes,
            evidence=[
                shown("event", event_text(row), "", (row["source"], row["line_no"])),
                shown(
                    "step time after the event over before",
                    factor,
                    "x",
                    held.line("gen_throughput", least=True),
                    "median of running x accepted / throughput; over the growth of the batch",
                    1,
                ),
            ],
            actions=act(
                case, "Restart to recover, upgrade, and report it with the lines around the event"
            ),
            severity=severity(case, [held]) if not case.excerpt else Severity.CRITICAL,
            confidence="medium",
            competing="another change at the same moment",
        )
    jump = case.earlier.get("THR002")
    if jump is None:
        return Clear("step times did not jump after an event")
    first = jump.episodes[0]
    if first.start is None:
        raise NotApplicable("its lines carry no stamps")
    near = events.filter(
        pl.col("time").is_not_null()
        & (pl.lit(first.start) - pl.col("time"))
        .dt.total_seconds()
        .is_between(-2, limits["within_s"])
    )
    if not near.height:
        return Clear(f"no event within {limits['within_s']:.0f} s before the jump of step times")
    row = near.row(-1, named=True)
    return Finding(
        summary=f"{jump.summary}, just after {_event_name(row['kind'])}",
        episodes=jump.episodes,
        evidence=[
            shown("event", event_text(row), "", (row["source"], row["line_no"])),
            *jump.evidence,
        ],
        actions=[
            *act(
                case, "Restart to recover, upgrade, and report it with the lines around the event"
            ),
            *jump.actions,
        ],
        severity=jump.severity,
        confidence="medium" if jump.confidence == "high" else "low",
        competing="chance: THR002 without a link to the event",
    )


#: What the events are called after which steps may be slow.
_EVENTS = {
    "retract": "a retraction",
    "retract_abort": "a request that was aborted for want of KV",
    "flush_refused": "a refused cache flush",
    "exception": "an exception",
    "traceback": "a traceback",
    "error": "an error",
    "leak": "a leak that SGLang reports",
    "watchdog_timeout": "a message of the watchdog",
    "transfer_failed": "a KV transfer that failed",
    "jit_compile": "kernels that were compiled",
    "input_too_long": "a request that was refused as too long",
    "pyspy_missing": "a stack dump",
}


def _event_name(kind: str) -> str:
    return _EVENTS.get(kind, f"the event {kind}")


def _collapse(
    case: Case, events: pl.DataFrame, limits: Limits
) -> tuple[dict[str, Any], Held, float] | None:
    """Return (event, spans, factor) of the first event after which steps took far longer."""
    first = as_float(events["line_no"].min(), math.inf)
    for rank in case.ranks:
        if as_float(rank.lines["line_no"].max(), 0.0) < first:  # no line follows any of them
            continue
        pure = (
            pl.col("decode")
            & (pl.col("lines") == 1)
            & (pl.col("gen_throughput") > 0)
            & (pl.col("running_req") > 0)
            & pl.col("cuda_graph").fill_null(True)
            & (pl.col("n_prefill").fill_null(0) == 0)
        )
        rows = rank.lines.select_seq(
            "t",
            "line_no",
            r=pl.col("running_req"),
            per_step=pl.col("running_req")
            * pl.col("accept_len").fill_null(1.0)
            / pl.col("gen_throughput"),
            pure=pure,
        ).filter("pure")
        for row in _before_a_jump(events, rows, limits).iter_rows(named=True):
            at = as_float(rank.lines.filter(pl.col("line_no") <= row["line_no"])["t"].max())
            if at is None:
                continue
            before = rows.filter(
                (pl.col("line_no") < row["line_no"]) & (pl.col("t") >= at - limits["around_s"])
            ).tail(40)
            # The first interval after it still holds the event itself.
            after = rows.filter(
                (pl.col("line_no") > row["line_no"]) & (pl.col("t") <= at + limits["around_s"])
            )[1:]
            r0 = as_float(before["r"].median())
            if r0 is None:
                continue
            before = before.filter(pl.col("r").is_between(0.6 * r0, 1.4 * r0))
            # A larger batch takes longer, at worst in proportion to it.
            after = after.filter(pl.col("r").is_between(0.6 * r0, 4 * r0)).with_columns_seq(
                per_step=pl.col("per_step") / (pl.col("r") / r0).clip(lower_bound=1.0)
            )
            if min(before.height, after.height) < limits["lines"]:
                continue
            factor = as_float(after["per_step"].median(), 0.0) / as_float(
                before["per_step"].median(), 1.0
            )
            lower = as_float(after["per_step"].quantile(0.25), 0.0) / as_float(
                before["per_step"].quantile(0.75), 1.0
            )
            if factor >= limits["factor"] and lower >= 0.75 * limits["factor"]:
                span = (int(at / rank.step_s), int(float(after["t"][-1]) / rank.step_s) + 1)
                return row, Held(rank, [span]), factor
    return None


#: Lines on each side of an event for a first look, and how many events are looked at closely.
_GLANCE_LINES = 20
_CLOSE_LOOKS = 100


def _before_a_jump(events: pl.DataFrame, rows: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    """Return the events after which steps look slower: most logs hold many, and few of those.

    One event of a burst tells as much as all of them.
    """
    step = pl.col("per_step")
    ahead = step.reverse().rolling_median(_GLANCE_LINES, min_samples=2).reverse()
    looks = rows.select_seq(
        "line_no",
        jump=ahead.shift(-1) / step.rolling_median(_GLANCE_LINES, min_samples=2),
    )
    return (
        events.with_columns_seq(burst=pl.col("line_no") // 50)
        .unique(["kind", "burst"], keep="last", maintain_order=True)
        .sort("line_no")
        .join_asof(looks.sort("line_no"), on="line_no")
        .filter(pl.col("jump") >= 0.6 * limits["factor"])
        .head(_CLOSE_LOOKS)
    )
