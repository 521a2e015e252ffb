"""The size of the prefill chunks, for rules that cannot judge without it."""

from __future__ import annotations

from loganalyze.rules.registry import Case, NotApplicable


def need_chunk_size(case: Case) -> int:
    """Return the chunk size of one DP rank, in tokens.

    Raises:
        NotApplicable: it is not printed, or prompts are not computed in chunks.
    """
    chunk = case.signals.session.config.chunked_prefill_size
    if not chunk or chunk <= 0:
        raise NotApplicable(
            "the chunk size is unknown: the max_total_num_tokens= line with "
            "chunked_prefill_size= is missing, or chunking is off"
        )
    return chunk
