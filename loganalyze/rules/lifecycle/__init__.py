"""Rules on the life of the server: crashes, hangs, idle times, warm-up and the end of a job.

Each module holds one rule, which its first line names. `remedies` holds none: it is what to do
about a death or a hang. Reports list the rules in the order of the imports.
"""

from loganalyze.rules.lifecycle import (  # noqa: F401, I001
    crash,
    stall,
    idle,
    warm_up,
    drain,
)
