"""What shows that requests wait although KV has room."""

from __future__ import annotations

from loganalyze.model import Evidence
from loganalyze.rules.held import Held


def waiting_with_room(held: Held, label: str) -> list[Evidence]:
    """Return the usage of the pool that has room, called `label`, and the requests that wait."""
    return [
        held.averaged(label, "full_usage", "full_token_usage", "fraction", 2),
        held.averaged("waiting requests", "queue", "queue_req", "requests", 1),
    ]
