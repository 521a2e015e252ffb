"""What shows that requests wait although KV has room."""

from __future__ import annotations

from loganalyze.model import Evidence
from loganalyze.rules.held import Held, shown


def waiting_with_room(held: Held, label: str) -> list[Evidence]:
    """Return the usage of the pool that has room, called `label`, and the requests that wait."""
    return [
        shown(
            label,
            held.mean("full_usage"),
            "",
            held.line("full_token_usage"),
            "time-weighted",
            3,
        ),
        shown(
            "waiting requests",
            held.mean("queue"),
            "requests",
            held.line("queue_req"),
            "time-weighted mean",
            1,
        ),
    ]
