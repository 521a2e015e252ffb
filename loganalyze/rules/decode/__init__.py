"""Rules on decode speed: is a step slower than its batch and context explain?

Each module holds one rule, which its first line names. Reports list the rules in the order of the
imports.
"""

from loganalyze.rules.decode import (  # noqa: F401, I001
    graph,
    accept_length,
    long_context,
    step_time,
    after_event,
)
