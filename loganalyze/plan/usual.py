"""Which changes are worth a look: those that were asked about, and the usual ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from loganalyze.capacity import kv_bytes, memory
from loganalyze.capacity.server import Server
from loganalyze.plan.after import pool_after
from loganalyze.plan.asked import HOST, Changes, Wish
from loganalyze.rules import flags

#: A lever that is offered frees at least this much memory for the pool.
WORTH_GIB = 0.5

#: Host pool of SGLang's default --hicache-ratio.
_HICACHE_RATIO = 2.0

#: More ranks are not tried.
_MOST_RANKS = 512


def expanded(what_if: Sequence[Changes]) -> list[Changes]:
    """Return each change alone, and those of one set together."""
    out: list[Changes] = []
    for changes in what_if:
        singles = [Changes(**{name: getattr(changes, name)}) for name in changes.names]
        active = {n: getattr(changes, n) for n in changes.names if n not in HOST}
        out += singles
        if len(active) > 1:
            out.append(Changes(**active))
    return out


def usual(now: Server, wish: Wish) -> list[Changes]:
    """Return the changes that are worth a look on this server."""
    asked = {name for changes in wish.what_if for name in changes.names}
    out: list[Changes] = []
    more = Changes() if "mem_fraction" in asked else _more_memory(now)
    if more.names:
        out.append(more)
    halves = now.sixteen_bit is not False and has_flag(now, "kv-cache-dtype")
    if halves and "kv_dtype" not in asked:
        fp8 = _fp8_name(now)
        out.append(Changes(kv_dtype=fp8))
        if more.names:
            out.append(replace(more, kv_dtype=fp8))
    if now.latent and now.setting.dp_attention == 1 and "dp_attention" not in asked:
        out += _best_split(now)
    shareable = now.latent and now.setting.dcp == 1 and now.setting.attn_tp > 1
    if shareable and "dcp" not in asked and has_flag(now, "dcp-size"):
        out.append(Changes(dcp=now.setting.attn_tp))
    capped = now.load is not None and now.load.limited_by == "cap"
    if capped and now.cap and now.tokens and now.room_per_req:
        fit = int(now.tokens * now.ranks / now.room_per_req)
        if fit > now.cap * now.ranks:
            out.append(Changes(max_running_requests=fit * now.cap_ranks // now.ranks))
    target = _fraction_for_target(now, wish)
    if target:
        out.append(Changes(mem_fraction=target))
    if now.tokens and not asked & set(HOST) and now.memory.bytes_per_token:
        size = now.session.config.host_pool_gb if now.session else None
        if size is None:
            size = _HICACHE_RATIO * now.tokens * now.memory.bytes_per_token / memory.HOST_GB
        out.append(Changes(hicache_size=round(size, 1)))
    return out


def _fp8_name(now: Server) -> str:
    """Return the fp8 format that the release takes: e5m2 alone before 0.4.6."""
    release = now.session.release_range if now.session else None
    old = release is not None and flags.release_key(release[0]) < flags.release_key("0.4.6")
    return "fp8_e5m2" if old else "fp8_e4m3"


def _more_memory(now: Server) -> Changes:
    """Return the change that leaves `memory.left_gib` free; no change if that is no gain.

    Where the log does not print what is free, a small step. Where the memory's size is not
    known, the memory itself: which fraction gives it then has to be tried.
    """
    if now.fraction is None or not now.tokens:
        return Changes()
    free = now.free_gib
    spare = None if free is None else free - memory.left_gib(free)
    if (spare is not None and spare < WORTH_GIB) or now.fraction >= now.safe_fraction:
        return Changes()
    if not now.memory.per_fraction or (spare is not None and not now.memory.total_gib):
        known = spare is not None and now.memory.bytes_per_token is not None
        return Changes(pool_gib=round(spare, 1)) if spare and known else Changes()
    found = memory.higher_fraction(now.fraction, spare, now.memory.total_gib, now.safe_fraction)
    return Changes(mem_fraction=found)


def _fraction_for_target(now: Server, wish: Wish) -> float | None:
    """Return the smallest fraction at which the wanted concurrency fits."""
    if not (wish.target_concurrency and now.room_per_req and now.tokens and now.fraction):
        return None
    if not now.memory.per_fraction:
        return None
    need = wish.target_concurrency * now.room_per_req / now.ranks - now.tokens
    found = now.fraction + need / (now.memory.per_fraction * now.pool_share)
    found = math.ceil(found * 1000 - 1e-6) / 1000
    highest = min(memory.HIGHEST, now.safe_fraction)
    return found if now.fraction < found <= highest else None


def _best_split(now: Server) -> list[Changes]:
    """Return the DP-attention size that gives the most tokens.

    More ranks mean fewer copies of the KV, and more of the attention weights on every GPU.
    """
    if not has_flag(now, "enable-dp-attention"):
        return []
    sizes = [k for k in range(2, min(now.setting.tp, _MOST_RANKS) + 1) if now.setting.tp % k == 0]
    sets = [Changes(dp_attention=k) for k in sizes]
    if now.config is None or kv_bytes.attention_weight_bytes(now.config) is None:
        return sets[-1:]

    def tokens(changes: Changes) -> int:
        after = pool_after(now, changes)
        return (after.tokens or 0) * after.ranks

    return sorted(sets, key=tokens)[-1:]


def balance_method(now: Server) -> str | None:
    """Return the value of --load-balance-method that goes by what ranks hold, by release.

    None where the log may come from a release that takes either.
    """
    found = now.session.release_range if now.session else None
    if found is None or not has_flag(now, "load-balance-method"):
        return None
    renamed = flags.release_key("0.5.8")
    if flags.release_key(found[0]) >= renamed:
        return "total_tokens"
    return "shortest_queue" if flags.release_key(found[1]) < renamed else None


def has_flag(now: Server, name: str) -> bool:
    """Whether the log's release has a flag of SGLang; any has, without a log."""
    if now.session is None:
        return True
    return flags.available(name, now.session.release_range, now.session.config.args)
