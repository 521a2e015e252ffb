"""The rule on requests that the server answers with an error."""

from __future__ import annotations

import polars as pl

from loganalyze.model import Action, Finding, Severity
from loganalyze.rules.held import act, event_text, shown, spells_of
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.timeline import as_float

#: What a server that is overrun answers; the cause of its queue is then the cause of these.
_REFUSED = 503
_OVERRUN = ("RUN001", "SWA001", "MAM001", "PDD001", "PRE001", "KV001", "ADM001", "OVR001")


@rule(
    "ERR001",
    "requests-fail",
    severity=Severity.CRITICAL,
    limits={
        "requests": Limit(5.0, "requests", "fewest requests that were answered with an error"),
        "share": Limit(0.01, "fraction", "of all requests, from which it is reported"),
        "critical_share": Limit(0.10, "fraction", "of all requests, from which it is critical"),
        "unserved": Limit(
            20.0, "requests", "fewest where the log does not show how many were served"
        ),
    },
    after=_OVERRUN,
)
def requests_fail(case: Case, limits: Limits) -> Finding | Clear:
    """The server answers requests with errors.

    What it flags:
        POST requests with an HTTP status of 500 or above in the access log, health checks left
        out, by their share of all requests: those and the new sequences of the prefill lines.
    Why it is slow:
        Whoever sent such a request got no answer, often after having waited, and sends it again.
    Not this rule:
        A status of 400 to 499, which is the client's doing, and a server that died (CRS001).
    What to do:
        500: read the error that the log prints at that time. 503: the server was not ready, shut
        down, or refused more than --max-queued-requests; see what made them wait.
    Source:
        uvicorn's access lines, http_server.py.
    """
    access = case.data.request.filter(pl.col("kind") == "access")
    if not access.height:
        raise NotApplicable("it has no failed access line; they are printed at --log-level info")
    failed = access.filter(
        (pl.col("status") >= 500)
        & (pl.col("method") == "POST")
        & ~pl.col("path").fill_null("").str.contains("health")
    ).sort("line_no")
    served = sum(as_float(rank.lines["started"].sum(), 0.0) for rank in case.ranks)
    share = failed.height / max(1.0, failed.height + served)
    fewest = limits["requests"] if served else limits["unserved"]
    if failed.height < fewest or share < limits["share"]:
        return Clear(f"{failed.height} requests were answered with a status of 500 or above")
    counts = failed.group_by("status").len().sort("len", descending=True).rows()
    first = failed.row(0, named=True)
    since = f" from {first['time']:%H:%M:%S}" if first["time"] else ""
    episodes = spells_of(failed)
    spells = f" in {len(episodes)} spells" if len(episodes) > 1 else ""
    statuses = ", ".join(f"{n:,} with {status}" for status, n in counts)
    of_all = f" ({share:.0%} of all)" if served else ""
    refused = counts[0][0] == _REFUSED
    return Finding(
        summary=f"{failed.height:,} requests{of_all} were answered with an error{since}{spells}: "
        f"{statuses}",
        episodes=episodes,
        evidence=[
            shown(
                "requests answered with an error",
                failed.height,
                "requests",
                (first["source"], first["line_no"]),
                "access lines of POST requests with a status of 500 or above",
            ),
            *(
                [shown("requests served", int(served), "requests", formula="sum of #new-seq")]
                if served
                else []
            ),
        ],
        actions=_actions(case, failed, refused=refused),
        severity=Severity.CRITICAL
        if share >= limits["critical_share"] and failed.height >= limits["unserved"]
        else Severity.WARNING,
        confidence="high" if failed.height >= limits["unserved"] else "medium",
        competing="errors of the clients excluded: a status of 400 to 499 is not counted",
        explained_by=next((c for c in _OVERRUN if c in case.earlier), None) if refused else None,
    )


def _actions(case: Case, failed: pl.DataFrame, *, refused: bool) -> list[Action]:
    if refused:
        limit = case.arg("max_queued_requests")
        return act(
            case,
            "See what they met: a server that was not ready or shut down, or the limit of "
            "--max-queued-requests"
            + (f" ({limit})" if isinstance(limit, int) else "")
            + ", which refuses what would only wait",
        )
    near = case.data.event.filter(
        pl.col("kind").is_in(["exception", "traceback", "error", "kv_oom", "leak"])
        & (pl.col("line_no") <= int(failed["line_no"][-1]))
    ).sort("line_no")
    text = "Read the errors that the log prints before these lines"
    if near.height:
        row = near.row(0, named=True)
        text += f", the first in line {row['line_no']}: {event_text(row)}"
    return act(case, text)
