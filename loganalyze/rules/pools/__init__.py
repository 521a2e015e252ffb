"""Rules on the pools of hybrid models and on the queues of disaggregated servers.

Each module names its rules in its first line. `evidence` holds none: it is what the rules on
hybrid models show. Reports list the rules in the order of the imports.
"""

from loganalyze.rules.pools import (  # noqa: F401, I001
    sliding_window,
    state_slots,
    pd_queues,
)
