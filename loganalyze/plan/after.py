"""The pool after a set of changes: memory arithmetic, and nothing in proportion to a flag."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loganalyze.capacity import kv_bytes, memory
from loganalyze.capacity.memory import GIB
from loganalyze.capacity.server import Server
from loganalyze.model import KvCell
from loganalyze.plan.asked import Changes


@dataclass(frozen=True, slots=True)
class After:
    """The server after a set of changes.

    `tokens` per rank (None where it cannot be told), `kv_bytes` bytes read per token
    afterwards / now, `split` and `weights` see `predict.Change`.
    """

    tokens: int | None
    ranks: int
    kv_bytes: float
    split: int
    free_gib: float | None
    formula: tuple[str, ...] = ()
    note: str = ""
    weights: float = 0.0


def pool_after(now: Server, changes: Changes) -> After:
    """Work out the pool after a set of changes.

    tokens' = (tokens + more fraction x tokens of the whole memory - what unsharded attention
    weights take) / (bytes afterwards / bytes now)
    """
    formula: list[str] = []
    notes: list[str] = []
    setting = replace(
        now.setting,
        kv_dtype=changes.kv_dtype or now.setting.kv_dtype,
        dp_attention=changes.dp_attention or now.setting.dp_attention,
        dcp=changes.dcp or now.setting.dcp,
    )
    ratio, words, note = _bytes_ratio(now, setting)
    notes += [note] if note else []
    ranks = now.ranks // now.setting.dp_attention * setting.dp_attention
    split = max(1, setting.dp_attention // now.setting.dp_attention)
    free = now.free_gib
    if now.tokens is None or ratio is None:
        kept = None if changes.mem_fraction or changes.pool_gib else free
        return After(None, ranks, ratio or 1.0, split, kept, (), "; ".join(notes))
    more = weights = 0.0
    cell = now.memory.bytes_per_token
    size = f" x {cell:,.0f} bytes = {now.tokens * cell / GIB:.2f} GiB" if cell else ""
    formula.append(f"pool now: {now.tokens:,} tokens{size} per rank")
    if changes.mem_fraction is not None:
        if now.fraction is None or now.memory.per_fraction is None:
            note = missing_fraction(now)
            return After(None, ranks, ratio, split, None, tuple(formula), note)
        step = changes.mem_fraction - now.fraction
        added = step * now.memory.per_fraction * now.pool_share
        more += added
        formula.append(
            f"fraction {now.fraction:g} to {changes.mem_fraction:g}: {step:+.3f} x "
            f"{now.memory.per_fraction:,.0f} tokens of the whole memory"
            + (f" x {now.pool_share:.3f} for KV" if now.pool_share < 1 else "")
            + f" = {added:+,.0f} tokens"
        )
        if free is not None:
            total = now.memory.total_gib
            free = free - step * total if total is not None else None
    if changes.pool_gib is not None and cell:
        added = changes.pool_gib * GIB / cell * now.pool_share
        more += added
        formula.append(f"{changes.pool_gib:g} GiB / {cell:,.0f} bytes = {added:+,.0f} tokens")
        free = free - changes.pool_gib if free is not None else None
    if split > 1:
        found = _unsharded(now, setting.attn_tp)
        if found is None:
            notes.append(
                f"cannot tell: {split} pools, each without what attention weights take that are "
                "no longer sharded; --model-config tells how much"
            )
            return After(None, ranks, ratio, split, free, tuple(formula), "; ".join(notes))
        weights, words_lost = found
        more -= weights
        formula.append(words_lost)
    if ratio != 1:
        formula.append(words)
    after = memory.whole_pages((now.tokens + more) / ratio, now.page)
    if (after, ranks) != (now.tokens, now.ranks):
        left = f"{now.tokens:,}"
        if more:
            left = f"({left} {'+' if more > 0 else '-'} {abs(more):,.0f})"
        formula.append(
            (f"{left} / {ratio:.4g}" if ratio != 1 else left)
            + f" = {after:,} tokens per rank"
            + (f" x {ranks} ranks = {after * ranks:,}" if ranks > 1 else "")
        )
    return After(after, ranks, ratio, split, free, tuple(formula), "; ".join(notes), weights)


def missing_fraction(now: Server) -> str:
    """Say what the log lacks to tell what another memory fraction would hold."""
    if now.fraction is None:
        return "cannot tell: the log prints no mem_fraction_static; give --mem-fraction"
    if now.memory.bytes_per_token is None:
        return (
            "cannot tell: no line prints the pool's size in GB; give --model-config, or a log of "
            "a start with another fraction"
        )
    return (
        'cannot tell: no "Load weight begin. avail mem=" line; give --gpu-mem-gib, or a log of '
        "a start with another fraction"
    )


def _bytes_ratio(now: Server, setting: kv_bytes.Setting) -> tuple[float | None, str, str]:
    """Return bytes per token afterwards / now, the words for it, and what limits it."""
    if setting == now.setting:
        return 1.0, "", ""
    kv_bytes.check(setting)
    if now.config is not None and now.cells:
        before = now.cell or max(now.cells, key=_size)
        found = kv_bytes.cells(now.config, setting)
        same = [cell for cell in found if cell.assumes == before.assumes]
        after = same[0] if same else max(found, key=_size)
        note = ""
        if len(found) > 1 and not same:
            note = f"with {after.assumes}, the larger of {len(found)} possibilities"
        words = (
            f"bytes per token: {after.formula} = {_size(after):,.0f} instead of "
            f"{before.formula} = {_size(before):,.0f}"
        )
        return _size(after) / _size(before), words, note
    ratio, said, note = 1.0, [], ""
    if setting.kv_dtype != now.setting.kv_dtype:
        element = kv_bytes.element_bytes(now.setting.kv_dtype)
        other = kv_bytes.element_bytes(setting.kv_dtype)
        ratio *= other / element
        said.append(f"{other:g} instead of {element:g} bytes an element")
        if now.sixteen_bit is None:
            note = "if the pool has 16-bit elements now: the log does not print its dtype"
    moved = (setting.dp_attention, setting.dcp) != (now.setting.dp_attention, now.setting.dcp)
    if moved and not now.latent:
        return None, "", "cannot tell: it depends on the KV heads; give --model-config"
    if setting.dcp != now.setting.dcp:
        ratio *= now.setting.dcp / setting.dcp
        said.append(f"the latent shared by {setting.dcp} ranks")
    return ratio, "; ".join(said), note


def _size(cell: KvCell) -> float:
    return cell.bytes_per_token + cell.draft_bytes_per_token


def _unsharded(now: Server, attn_tp: int) -> tuple[float, str] | None:
    """Return the tokens that attention weights take once fewer GPUs share them."""
    found = kv_bytes.attention_weight_bytes(now.config) if now.config is not None else None
    cell = now.memory.bytes_per_token
    if found is None or not cell:
        return None
    weights, words = found
    more = weights / now.setting.pp * (1 / attn_tp - 1 / now.setting.attn_tp)
    return more / cell, (
        f"attention weights {words} = {weights / GIB:.2f} GiB, on {attn_tp} instead of "
        f"{now.setting.attn_tp} GPUs each: {more / GIB:.2f} GiB more per GPU = "
        f"{more / cell:,.0f} tokens fewer"
    )
