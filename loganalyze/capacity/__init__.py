"""Capacity: what the KV pool holds, and how long a decode step takes.

`pool.measure` reads pool size, tokens and rate per request from a session's log;
`steps.fit` fits the step model that predicts throughput at another size.
"""

from loganalyze.capacity.pool import measure
from loganalyze.capacity.steps import fit

__all__ = ["fit", "measure"]
