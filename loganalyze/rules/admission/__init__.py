"""Rules on admission and load: why requests wait with KV free, or do not come at all.

Each module names its rules in its first line. `starved` holds none: it is the condition that the
rules of `reserve` share. Reports list the rules in the order of the imports.
"""

from loganalyze.rules.admission import (  # noqa: F401, I001
    running_cap,
    reserve,
    unexplained,
    load,
)
