"""Where the memory of a GPU goes, and how many KV tokens another share of it would hold.

    tokens = (mem_fraction x total - static) / bytes per token

`total` is the memory that was free before the weights were loaded, `static` what the weights
and everything else inside the fraction take. So all of a higher fraction goes to the pool:

    more tokens = more fraction x total / bytes per token

Why that matters: the fraction covers weights and pool together. Scaling the pool by the
fraction (0.93 / 0.85 - 1 = 9 %) is wrong where the weights take most of it; the pool of the
first case this was written for grew by 99 %.

Source: SGLang 0.4.6 `profile_max_num_token`, 0.5.23 `_profile_available_bytes`:
`available after weights - total x (1 - mem_fraction_static)`. All sizes are of one rank;
GiB = 2^30 bytes, as SGLang prints "GB".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from loganalyze.model import KvCell, ServerConfig, Session

GIB = 2**30

#: `hicache_size` counts bytes in decimal units (memory_pool_host.py).
HOST_GB = 10**9

#: SGLang counts at most this many tokens of a request's max_new_tokens at admission.
CLIP = 4096

#: The estimate new_token_ratio: its start at conservativeness 1, and its floor over its start.
_RATIO_START, _RATIO_FLOOR = 0.7, 0.14

#: --num-reserved-decode-tokens where it is not printed; a log is untrusted: none is larger.
_DECODE_RESERVE, _LARGEST_RESERVE = 512, 1 << 20

#: Margin on what admission asks for: an estimate, since requests may ask for fewer tokens.
NEED_MARGIN = 1.35

#: Log and formula agree within this.
AGREE = 0.01

#: Free memory after start-up: SGLang's guide asks for 5 to 8 GiB; under 2 a long prompt can
#: end the server.
KEEP_GIB = 5.0
RISK_GIB = 2.0

#: More than this is left over, down to `_GOOD_GIB`; of less, what is above `KEEP_GIB` is worth
#: having where it is a tenth of the pool.
_MUCH_GIB = 8.0
_GOOD_GIB = 6.0
_WORTH_SHARE = 0.1

#: Step by which a memory fraction is raised where the log does not tell the whole step: 1.6 GiB
#: of 80. And the highest one to propose: the rest is for activations and the CUDA context.
STEP = 0.02
HIGHEST = 0.97

#: Server arguments that decide the pool's size beside the fraction. Two starts that differ in
#: one of them say nothing about memory together.
_SAME = (
    "model_path", "tp_size", "pp_size", "dp_size", "enable_dp_attention", "dcp_size",
    "kv_cache_dtype", "dtype", "quantization", "speculative_algorithm", "max_total_tokens",
    "swa_full_tokens_ratio", "mamba_full_memory_ratio", "max_mamba_cache_size",
)  # fmt: skip


def left_gib(free_gib: float) -> float:
    """Return how much of the free memory after start-up is to stay free."""
    return _GOOD_GIB if free_gib > _MUCH_GIB else KEEP_GIB


def spare_gib(free_gib: float, pool_gib: float | None) -> float:
    """Return the free memory after start-up that the KV pool may have; 0 if it is not worth it.

    Args:
        free_gib: `available_gpu_mem`.
        pool_gib: size of the KV pool; None if not printed.
    """
    spare = free_gib - left_gib(free_gib)
    much = free_gib > _MUCH_GIB
    return spare if much or (pool_gib and spare >= _WORTH_SHARE * pool_gib) else 0.0


def higher_fraction(
    present: float, spare_gib: float | None, total_gib: float | None, highest: float = 1.0
) -> float | None:
    """Return the memory fraction to go to; None where there is no higher one.

    Args:
        present: `mem_fraction_static`.
        spare_gib: what the pool may have; None if not printed.
        total_gib: free before the weights; None if not known: then one `STEP` is proposed.
        highest: what crashes leave.
    """
    if not 0 < present < HIGHEST:  # a log says anything
        return None
    step = STEP if spare_gib is None or not total_gib else spare_gib / total_gib
    found = math.floor(min(present + step, HIGHEST, highest) * 100 + 1e-6) / 100
    return found if found > present else None


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a server: what its log says of memory; None where it says nothing.

    Attributes:
        session: session id.
        fraction: `mem_fraction_static`.
        tokens: pool size in tokens, per rank.
        bytes_per_token: from the printed size of the pool.
        free_gib: free after start-up (`available_gpu_mem`).
        total_gib: free before the weights (`Load weight begin`).
    """

    session: int
    fraction: float | None
    tokens: int | None
    bytes_per_token: float | None = None
    free_gib: float | None = None
    total_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of one rank's memory; None where nothing tells.

    Attributes:
        bytes_per_token, total_gib: and where each comes from, in words.
        static_gib: weights and whatever else the fraction holds beside the pool.
        per_fraction: tokens that the whole memory would hold: a fraction higher by 0.01 gives
            a hundredth of it. Two starts tell it without knowing the bytes.
        notes: agreements and conflicts between sources.
    """

    bytes_per_token: float | None = None
    bytes_from: str = ""
    total_gib: float | None = None
    total_from: str = ""
    static_gib: float | None = None
    per_fraction: float | None = None
    notes: tuple[str, ...] = ()


def start(session: Session) -> Start:
    """Return what the log of one session says of memory."""
    config, capacity = session.config, session.capacity
    fraction = config.arg("mem_fraction_static")
    known = isinstance(fraction, float) and 0 < fraction < 1
    return Start(
        session=session.id,
        fraction=float(fraction) if known else None,  # type: ignore[arg-type]
        tokens=capacity.kv_tokens if capacity.kv_tokens_source == "log" else None,
        bytes_per_token=capacity.bytes_per_token,
        free_gib=config.available_gpu_mem_gib,
        total_gib=config.avail_before_weights_gib,
    )


def alike(sessions: Sequence[Session], chosen: Session) -> list[Session]:
    """Return the sessions whose pool differs from the chosen one's by the fraction alone."""

    def same(other: Session) -> bool:
        ours, theirs = chosen.config.args, other.config.args
        return all(ours[name] == theirs[name] for name in _SAME if name in ours and name in theirs)

    return [s for s in sessions if s.id == chosen.id or same(s)]


def solve(
    starts: Sequence[Start],
    cells: Sequence[KvCell] = (),
    total_gib: float | None = None,
) -> Memory:
    """Work out bytes per token, total and static memory from one or more starts.

    Two starts with different fractions give total / bytes per token, exactly; what either
    prints then gives the other. Free memory after start-up closes the system where no size
    line was printed: it falls by what the pool grows.

    Args:
        starts: of the same server; the last is the one asked about.
        cells: bytes per token from the model's config; several where a choice is open.
        total_gib: memory of the card, where the caller knows it.
    """
    if not starts:
        return Memory()
    chosen = starts[-1]
    notes: list[str] = []
    pair = _pair(starts)
    cell, cell_from = _bytes(starts, pair, cells, total_gib, notes)
    total, total_from = _total(starts, pair, cell, total_gib, notes)
    static = None
    if None not in (total, cell, chosen.fraction, chosen.tokens):
        static = total * chosen.fraction - chosen.tokens * cell / GIB  # type: ignore[operator]
        if static <= 0:
            notes.append(
                f"{chosen.tokens:,} tokens of {cell:,.0f} bytes do not fit into "
                f"{chosen.fraction:g} of {total:.2f} GiB: one of these numbers is off"
            )
            static = None
    per_fraction = None
    if pair is not None:
        tokens, fraction = _more(pair)
        per_fraction = tokens / fraction
    elif total is not None and cell is not None:
        per_fraction = total * GIB / cell
    return Memory(cell, cell_from, total, total_from, static, per_fraction, tuple(notes))


def printed_conservativeness(config: ServerConfig) -> float:
    """Return the printed --schedule-conservativeness (after DP attention's x0.3), else 1."""
    printed = config.arg("schedule_conservativeness")
    return float(printed) if isinstance(printed, int | float) else 1.0


def token_ratio(conservativeness: float) -> tuple[float, float]:
    """Return the new_token_ratio of a server that has just started, and the lowest.

    Source:
        SGLANG_INIT_NEW_TOKEN_RATIO, SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR.
    """
    start = min(_RATIO_START * conservativeness, 1.0)
    return start, start * _RATIO_FLOOR


def reserved_tokens(running: Any, conservativeness: float, max_new: int = CLIP) -> Any:  # noqa: ANN401 - a number or a Polars expression
    """Return the tokens that admission keeps free, once its estimate has settled.

    A share of what the running requests may still write, and the next one's in full:

        running x m x ratio + m,  m = min(max_new, 4096),  ratio = 0.7 x 0.14 x conservativeness

    Source:
        SGLang PrefillAdder.add_one_req; new_token_ratio decays to 0.14 of its start.
    """
    m = min(max_new, CLIP)
    return running * (m * token_ratio(conservativeness)[1]) + m


def decode_reserve(session: Session) -> int:
    """Return the KV tokens that are kept free for each request held: 0 but on PD decode servers.

    Source:
        SGLang DecodePreallocQueue: available - 512 x (running + transferring + waiting), of
        which a request takes its prompt and 512 more.
    """
    if session.role != "decode":
        return 0
    printed = session.config.arg("num_reserved_decode_tokens")
    whole = isinstance(printed, int) and not isinstance(printed, bool)
    if whole and 0 <= printed <= _LARGEST_RESERVE:  # type: ignore[operator]
        return printed  # type: ignore[return-value]
    return _DECODE_RESERVE


def admission_usage(
    tokens: int, running: float, conservativeness: float, prompt: float, max_new: int = CLIP
) -> float:
    """Return the usage above which a request of `prompt` tokens is not admitted."""
    kept: float = reserved_tokens(running, conservativeness, max_new)
    return 1 - (kept + prompt) / tokens


def tokens_in(gib: float, cell: float, page: int = 1) -> int:
    """Return the tokens that fit into some memory."""
    return whole_pages(gib * GIB / cell, page)


def host_tokens(size_bytes: float, cell: float, page: int = 1) -> int:
    """Return the tokens that one rank's share of host memory holds."""
    return whole_pages(size_bytes / cell, page)


def whole_pages(tokens: float, page: int) -> int:
    """Round down to whole pages, as SGLang does; never below 0."""
    # The margin keeps a quotient that is whole but for rounding from losing a token.
    return max(0, int(tokens + 1e-6) // page * page)


def settle(cells: Sequence[KvCell], measured: float | None) -> tuple[KvCell | None, str]:
    """Choose the cell that the log's size line confirms, and say whether they agree.

    Args:
        cells: from the model's config; never empty.
        measured: bytes per token of the log's size line; None without one.

    Returns:
        The confirmed cell, the only one, or None where nothing chooses between several; and
        a sentence, empty where there is nothing to compare.
    """
    if measured is None:
        return (cells[0], "") if len(cells) == 1 else (None, _open(cells))
    near = min(cells, key=lambda cell: abs(cell.pool_bytes_per_token - measured))
    apart = measured / near.pool_bytes_per_token - 1
    if abs(apart) <= AGREE:
        chosen = f" ({near.assumes})" if len(cells) > 1 else ""
        return near, (
            f"log and formula agree: {measured:,.0f} bytes per token printed, {near.formula} = "
            f"{near.pool_bytes_per_token:,.0f}{chosen}"
        )
    return near, (
        f"log and formula disagree by {apart:+.1%}: the log's pool takes {measured:,.0f} bytes "
        f"per token, {near.formula} = {near.pool_bytes_per_token:,.0f}. "
        + _which_is_off(measured / near.pool_bytes_per_token)
    )


def _open(cells: Sequence[KvCell]) -> str:
    choices = "; ".join(f"{c.bytes_per_token:,.0f} bytes with {c.assumes}" for c in cells)
    return f"the config leaves this open, and no size line decides: {choices}"


def _which_is_off(ratio: float) -> str:
    """Say which of log and formula to doubt, and what would bring them together."""
    known = (
        (2.0, "the pool is stored in 16 bits, not 8: correct --kv-dtype"),
        (0.5, "the pool is stored in 8 bits, not 16: correct --kv-dtype"),
        (4.0, "that is 4 times as much: correct --tp, --dp-attention or --pp"),
        (8.0, "that is 8 times as much: correct --tp, --dp-attention or --pp"),
        (0.25, "that is a quarter: correct --tp, --dp-attention or --pp"),
        (0.125, "that is an eighth: correct --tp, --dp-attention or --pp"),
    )
    # The size line is what was allocated, so the log is right about its own pool.
    start = "The log is right, it prints what was allocated; the formula's input is off: "
    for factor, words in known:
        if abs(ratio / factor - 1) <= AGREE:
            return start + words
    return start + "is this the config.json of the served model, and its TP, PP and KV dtype?"


def _pair(starts: Sequence[Start]) -> tuple[Start, Start] | None:
    """Return the two starts whose fractions are furthest apart, smaller first."""
    usable = [s for s in starts if s.fraction is not None and s.tokens]
    pairs = [
        (a, b) if a.fraction < b.fraction else (b, a)  # type: ignore[operator]
        for a, b in combinations(usable, 2)
        if (b.fraction - a.fraction) * (b.tokens - a.tokens) > 0  # type: ignore[operator]
    ]
    return max(pairs, key=lambda p: p[1].fraction - p[0].fraction, default=None)  # type: ignore[operator]


def _more(pair: tuple[Start, Start]) -> tuple[int, float]:
    """Return how many tokens and how much fraction the second start has more."""
    low, high = pair
    assert low.tokens is not None
    assert high.tokens is not None
    assert low.fraction is not None
    assert high.fraction is not None
    return high.tokens - low.tokens, high.fraction - low.fraction


def _bytes(
    starts: Sequence[Start],
    pair: tuple[Start, Start] | None,
    cells: Sequence[KvCell],
    total_gib: float | None,
    notes: list[str],
) -> tuple[float | None, str]:
    """Return bytes of memory per token and their source: printed, config, arithmetic."""
    printed = next((s for s in reversed(starts) if s.bytes_per_token), None)
    measured = printed.bytes_per_token if printed else None
    if cells:
        cell, said = settle(cells, measured)
        if said:
            notes.append(said)
        agrees = measured is None or said.startswith("log and formula agree")
        if cell is not None and agrees:
            return cell.bytes_per_token, f"model config: {cell.formula}"
    if measured is not None and printed is not None:
        return measured, f"pool size printed in session {printed.session}"
    if pair is None:
        return None, ""
    tokens, fraction = _more(pair)
    low, high = pair
    if low.free_gib is not None and high.free_gib is not None and low.free_gib > high.free_gib:
        freed = low.free_gib - high.free_gib
        off = 0.01 / freed
        if off <= 0.05:
            return freed * GIB / tokens, (
                f"free memory fell by {freed:.2f} GiB for {tokens:,} more tokens between sessions "
                f"{low.session} and {high.session} (within {off:.1%})"
            )
    known = next((s.total_gib for s in reversed(starts) if s.total_gib), total_gib)
    if known is not None:
        return fraction * known * GIB / tokens, (
            f"{fraction:g} of {known:.2f} GiB holds {tokens:,} tokens (sessions {low.session} "
            f"and {high.session})"
        )
    return None, ""


def _total(
    starts: Sequence[Start],
    pair: tuple[Start, Start] | None,
    cell: float | None,
    total_gib: float | None,
    notes: list[str],
) -> tuple[float | None, str]:
    """Return memory before the weights and its source: arithmetic, printed, given."""
    printed = next((s.total_gib for s in reversed(starts) if s.total_gib), None)
    if pair is not None and cell is not None:
        tokens, fraction = _more(pair)
        solved = tokens * cell / fraction / GIB
        words = f"{tokens:,} tokens x {cell:,.0f} bytes / {fraction:g} of the memory"
        for other, name in ((printed, "the log prints"), (total_gib, "the given size is")):
            if other is not None and abs(solved / other - 1) > 0.03:
                notes.append(
                    f"two sessions give {solved:.2f} GiB ({words}), {name} {other:.2f} GiB: "
                    "the bytes per token are off, or the sessions differ in more than "
                    "mem_fraction_static"
                )
                return other, name
        return solved, words
    if printed is not None:
        return printed, "free before the weights were loaded, as printed"
    if total_gib is not None:
        return total_gib, "as given; what is free before the weights is 1 to 2 GiB less"
    return None, ""
