"""The rule on KV transfers that fail between prefill and decode servers."""

from __future__ import annotations

import polars as pl

from loganalyze.model import Action, Finding, Severity
from loganalyze.rules.held import act, shown, spells_of
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule

#: What to do about the reason of most failures; see `transfer_failed` in event.toml.
_ADVICE = {
    "aborted": "They were aborted while they waited: compare the time-outs of router and clients "
    "with the wait, and look for the server of the other side that made them wait",
    "timed out": "The other side was not ready in time: a prefill server waits for KV room on the "
    "decode server, a decode server for the prefill's queue; look at both logs for the same "
    "bootstrap_room",
    "the peer could be dead": "Look whether the server of the other side died at that time (its "
    "log's end, its restarts), then at the link and the firewall between the two",
    "the prefill server did not answer": "See that the decode server reaches the prefill server's "
    "bootstrap port, and that all its ranks had registered",
    "sending failed": "Look at the link: network cards, RDMA devices, the transfer backend's own "
    "lines on both sides",
    "connection lost": "Look whether the server of the other side died at that time, then at the "
    "link",
    "the two sides differ in TP size": "Give prefill and decode servers the same --tp-size: the "
    "KV cache of this model cannot be transferred between different ones",
}


@rule(
    "PDT001",
    "pd-transfers-fail",
    severity=Severity.CRITICAL,
    limits={
        "requests": Limit(1.0, "requests", "fewest requests whose transfer failed"),
        "critical": Limit(20.0, "requests", "from which it is critical"),
    },
    explains=("PDD002", "PDP001"),
)
def transfers_fail(case: Case, limits: Limits) -> Finding | Clear:
    """KV transfers between prefill and decode servers fail.

    What it flags:
        `Prefill` or `Decode` `bootstrap`, `handshake` or `transfer failed for request`. All ranks
        print each: requests are counted, by their bootstrap room where it is printed.
    Why it is slow:
        Each such request is answered with an error after it has waited, often minutes; its
        prefill was for nothing where it had been computed.
    Not this rule:
        Transfers that only take long (PDD002), and requests that wait for KV room (PDD001).
    What to do:
        It depends on the reason that most lines give, which the finding names.
    Source:
        DecodeTransferQueue.pop_transferred, PrefillBootstrapQueue.pop_bootstrapped,
        process_disagg_prefill_inflight_queue; KVTransferError.
    """
    rows = case.data.event.filter(pl.col("kind") == "transfer_failed").sort("line_no")
    if not rows.height and case.signals.session.role == "unified":
        raise NotApplicable("it is not the log of a disaggregated server")
    rows = rows.filter(
        pl.when(pl.col("bootstrap_room").is_null())  # some releases print none for a prefill
        .then(~pl.col("duplicate").fill_null(False))
        .otherwise(pl.col("bootstrap_room").is_first_distinct())
    )
    if rows.height < limits["requests"]:
        return Clear("no failed KV transfer is printed")
    total = case.data.event.filter(pl.col("kind") == "transfer_failed").height
    steps = _counted(rows, pl.concat_str(pl.col("phase"), pl.col("step"), separator=" "))
    reasons = _counted(rows, pl.col("message").fill_null("another reason"))
    first = rows.row(0, named=True)
    n = f"{rows.height:,} request" + "s" * (rows.height != 1)
    why = ", ".join(
        reason if len(reasons) == 1 else f"{reason} ({count:,})" for reason, count in reasons[:3]
    ) + (f" and {len(reasons) - 3} more reasons" if len(reasons) > 3 else "")
    since = f" from {first['time']:%H:%M:%S}" if first["time"] else ""
    episodes = spells_of(rows)
    spells = f" in {len(episodes)} spells" if len(episodes) > 1 else ""
    return Finding(
        summary=f"The KV transfer of {n} failed{since}{spells}: {why}",
        episodes=episodes,
        evidence=[
            shown(
                "requests whose transfer failed",
                rows.height,
                "requests",
                (first["source"], first["line_no"]),
                f"different bootstrap_room in {total:,} lines of all ranks",
            ),
            *(
                shown(f"{step} failed", count, "requests", _first_of(rows, step))
                for step, count in steps
            ),
        ],
        actions=_actions(case, reasons),
        severity=Severity.CRITICAL if rows.height >= limits["critical"] else Severity.WARNING,
        confidence="high",
        competing="transfers that are only slow (PDD002) excluded: these ended in an error",
    )


def _counted(rows: pl.DataFrame, what: pl.Expr) -> list[tuple[str, int]]:
    """Return the values of an expression with their numbers of rows, most frequent first."""
    counts = rows.group_by(what.alias("what"), maintain_order=True).agg(n=pl.len())
    return list(counts.sort("n", descending=True, maintain_order=True).iter_rows())


def _first_of(rows: pl.DataFrame, step: str) -> tuple[str, int]:
    phase, name = step.split(" ")
    row = rows.filter((pl.col("phase") == phase) & (pl.col("step") == name)).row(0, named=True)
    return row["source"], row["line_no"]


def _actions(case: Case, reasons: list[tuple[str, int]]) -> list[Action]:
    named = [_ADVICE[reason] for reason, _ in reasons if reason in _ADVICE]
    texts = named[:2] or [
        "Look at the transfer backend's lines around these, on both sides, for the same "
        "bootstrap_room"
    ]
    return [action for text in texts for action in act(case, text)]
