"""KV002: locked prefixes or open sessions hold the KV pool."""

from __future__ import annotations

import polars as pl

from loganalyze.episodes import at_least, spans
from loganalyze.model import Action, Finding, Severity
from loganalyze.rules.held import act, all_episodes, hold, shown, spell, these, whole
from loganalyze.rules.registry import Case, Clear, Limit, Limits, rule


@rule(
    "KV002",
    "kv-held-by-prefixes",
    severity=Severity.WARNING,
    needs=("kv_usage", "running_req"),
    limits={
        "hit_share": Limit(0.5, "fraction", "share of prompt tokens from the cache"),
        "held_factor": Limit(1.5, "x", "tokens held over running x (prompt + output): no leak"),
        "idle_usage": Limit(0.1, "fraction", "usage that nothing running explains"),
        "report_s": Limit(30.0, "s", "shortest spell of usage without running requests"),
    },
    after=("KV001",),
)
def kv_held_by_prefixes(case: Case, limits: Limits) -> Finding | Clear:
    """The KV pool is held by locked prefixes or sessions more than by running requests.

    What it flags:
        A saturated pool (KV001) while more than `hit_share` of the prompt tokens come from
        the prefix cache, so that shared prefixes hold a good part of it; or usage above
        `idle_usage` with nothing running, on a server with sessions or hierarchical cache.
    Why it is slow:
        A prefix in use is locked: it cannot be evicted while any running request shares it,
        while a copy to the host is in flight, or while a session is open.
    Not this rule:
        Evictable cache, which never counts as used. Tokens that nothing accounts for are a
        leak (KV010).
    What to do:
        Close sessions, shorten shared prompts, write to the host selectively, or upgrade:
        later releases release write-through locks at every step.
    Source:
        RadixCache.inc_lock_ref; the log prints no protected size, so confidence is limited.
    """
    idle_held = hold(
        case.ranks,
        lambda rank: at_least(
            spans(
                rank.select(
                    (pl.col("running") == 0)
                    & (pl.col("queue") == 0)
                    & (pl.col("usage") > limits["idle_usage"])
                    & ~pl.col("gap")
                )
            ),
            rank.cells(limits["report_s"]),
        ),
    )
    keeps = bool(case.arg("enable_hierarchical_cache")) or bool(
        case.arg("enable_streaming_session")
    )
    if keeps and idle_held:
        return Finding(
            summary=f"KV stays in use with nothing running {spell(case, idle_held)}",
            episodes=all_episodes(idle_held),
            evidence=[idle_held[0].averaged("usage", "usage", "kv_usage", "fraction", 2)],
            actions=_unlock(case),
            severity=Severity.WARNING,
            confidence="low",
            competing="a leak (KV010) looks the same from the log",
        )
    if "KV001" not in case.earlier:
        return Clear("the pool was not saturated, and no usage remained with nothing running")
    for rank in case.ranks:
        totals = rank.grid.select_seq(
            pl.col("new_token", "cached_token", "completed", "decoded").sum()
        ).row(0, named=True)
        hit, new, done = totals["cached_token"], totals["new_token"], totals["completed"]
        if min(hit, new) < 0 or hit <= limits["hit_share"] * (hit + new) or done < 3:
            continue  # counts below zero are damage
        held = whole(rank)
        per_req = held.tokens_per_req
        full = (hit + new) / done + totals["decoded"] / done
        if per_req and per_req <= limits["held_factor"] * full:
            own = case.earlier["KV001"]
            return Finding(
                summary=f"{hit / (hit + new):.0%} of prompt tokens come from cached prefixes, "
                "which stay locked while in use: they hold part of the full KV pool",
                episodes=own.episodes,
                evidence=[
                    shown(
                        "prompt tokens from the cache",
                        hit / (hit + new),
                        "",
                        held.line("cached_token"),
                        "cached / (cached + new)",
                        3,
                    ),
                    shown(
                        "tokens per running request",
                        per_req,
                        "tokens",
                        held.line("kv_usage"),
                        f"sum #token / sum #running-req of {these(held.decode)}",
                        0,
                    ),
                    shown(
                        "prompt and output of a request",
                        full,
                        "tokens",
                        (None, None),
                        "(new + cached + decoded) / completions",
                        0,
                    ),
                ],
                actions=_unlock(case),
                severity=Severity.WARNING,
                confidence="low",
                competing="running requests hold these prefixes as well; the log prints no "
                "protected size",
            )
    return Clear("cached prefixes are a small part of the prompts of the saturated server")


def _unlock(case: Case) -> list[Action]:
    return [
        *act(
            case,
            "Close sessions that are no longer used, and shorten prompts that many requests share",
        ),
        *(
            act(
                case,
                "Copy only prefixes that are used again to the host",
                "hicache-write-policy",
                "write_through_selective",
                "fewer prefixes locked by copies",
            )
            if case.arg("enable_hierarchical_cache")
            else []
        ),
    ]
