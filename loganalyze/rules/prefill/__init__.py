"""Rules on prefill: how much of the time it takes, and what it does to decoding.

Each module holds one rule, which its first line names. `chunks` holds none: it is the chunk size
that two rules cannot do without. Reports list the rules in the order of the imports.
"""

from loganalyze.rules.prefill import (  # noqa: F401, I001
    bound,
    interference,
    giant_prompt,
    cache_hits,
    small_chunks,
)
