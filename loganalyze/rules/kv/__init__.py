"""Rules on the KV pool: is it full, what fills it, and what that costs.

Each module holds one rule, which its first line names. `room` and `evidence` hold none: they are
what several rules advise and show. Reports list the rules in the order of the imports.
"""

from loganalyze.rules.kv import (  # noqa: F401, I001
    saturation,
    prefixes,
    nearly_full,
    retractions,
    longer_requests,
    pool_size,
    host_cache,
    never_admissible,
    leak,
)
