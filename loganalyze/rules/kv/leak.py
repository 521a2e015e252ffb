"""KV010: KV tokens that no running request accounts for, by a mass balance."""

from __future__ import annotations

import math

import polars as pl

from loganalyze.episodes import Span, at_least, joined, point, spans
from loganalyze.model import Action, Evidence, Finding, Severity
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    hold,
    need_pool_size,
    pool_evidence,
    shown,
    spell,
    whole,
)
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, slope


@rule(
    "KV010",
    "kv-leak",
    severity=Severity.CRITICAL,
    needs=("token|full_token", "new_token", "gen_throughput"),
    limits={
        "window_s": Limit(240.0, "s", "window of the mass balance"),
        "turnover": Limit(3.0, "x", "completions per running request that the window needs"),
        "output_factor": Limit(1.6, "x", "output tokens held over mean output, at most"),
        "excess": Limit(0.08, "fraction", "tokens nobody holds, over pool size"),
        "report_s": Limit(360.0, "s", "how long the excess must stand and grow"),
        "short_excess": Limit(
            0.25, "fraction", "the excess that tells in a log too short to see it grow"
        ),
    },
    explains=("KV001", "KV004", "KV005", "KV006", "ADM001", "QUE001", "WRM001"),
)
def kv_leak(case: Case, limits: Limits) -> Finding | Clear:
    """KV tokens are in use that no running request accounts for, and their number grows.

    What it flags:
        Tokens in use beyond running x (mean prompt + 1.6 x mean output) by more than `excess`
        of the pool, for `report_s` and growing, where enough requests complete to know the
        means. In a log too short for that, by more than `short_excess` all through it. Or
        SGLang's own leak message.
    Why it is slow:
        Leaked tokens are neither free, nor cached, nor running: the pool shrinks until little
        can be admitted.
    Not this rule:
        Long contexts (few completions: not judged), shared prefixes, open sessions, and
        saturation with few long requests (KV001).
    What to do:
        Upgrade, restart, test without the prefix cache, and report it.
    Source:
        Mass balance by Little's law; SGLang checks for leaks only when idle.
    """
    said = case.data.event.filter(
        pl.col("kind").str.contains("leak")
        | pl.col("message").fill_null("").str.contains("(?i)leak detected")
    )
    if said.height:
        row = said.row(0, named=True)
        where = (row["source"], row["line_no"])
        return Finding(
            summary="SGLang reports a KV memory leak",
            episodes=[point(row)],
            evidence=[shown("leak message", str(row["message"] or row["kind"]), "", where)],
            actions=_leak_actions(case),
            severity=Severity.CRITICAL,
            confidence="high",
        )
    need_pool_size(case)
    for rank in case.ranks:
        _need_its_own_pool(rank)
    if any(_cuts_unseen(case, rank) for rank in case.ranks):
        raise NotApplicable(
            "the chunks of long prompts cannot be told from requests: its start-up lines with "
            "chunked_prefill_size are missing, or it is so long that its lines were merged"
        )
    if case.signals.span_s < limits["window_s"] + limits["report_s"]:
        return _leak_in_short_log(case, limits)
    found = hold(case.ranks, lambda rank: _leaking(rank, limits))
    if not found:
        return Clear("the tokens in use fit the running requests")
    excess = as_float(_balance(found[0].rank, limits)["excess"].max(), 0.0)
    return Finding(
        summary=f"Up to {_unaccounted(found, excess)}, growing {spell(case, found)}",
        episodes=all_episodes(found),
        evidence=_excess_evidence(case, found, excess, "completions of 240 s"),
        actions=_leak_actions(case),
        severity=Severity.CRITICAL,
        confidence="low" if case.arg("enable_hierarchical_cache") else confidence(case, found),
        competing="growing chat histories or open sessions can look like a leak",
    )


#: The pool may be inferred from usage, which is printed with two decimals.
_BEYOND = 1.05


def _need_its_own_pool(rank: Rank) -> None:
    """Refuse to weigh tokens against a pool that is not theirs: none holds more than it has.

    Raises:
        NotApplicable: a line of the rank prints more tokens in use than its pool has.
    """
    rows = rank.lines.drop_nulls("own_token")
    if not rank.kv_tokens or not rows.height:
        return
    at = int(rows["own_token"].arg_max() or 0)
    most = as_float(rows["own_token"][at], 0.0)
    if most > _BEYOND * rank.kv_tokens:
        raise NotApplicable(
            f"line {rows['line_no'][at]} prints {most:,.0f} tokens in use, more than the pool of "
            f"{rank.kv_tokens:,} has: that pool size and these lines do not belong together"
        )


def _unaccounted(found: list[Held], excess: float) -> str:
    return (
        f"{excess:,.0f} KV tokens ({excess / (found[0].rank.kv_tokens or 1):.0%} of the pool) are "
        "in use that no running request accounts for"
    )


def _excess_evidence(
    case: Case, found: list[Held], excess: float, completions: str
) -> list[Evidence]:
    return [
        *pool_evidence(case),
        shown(
            "tokens that nobody holds",
            excess,
            "tokens",
            found[0].line("kv_usage"),
            f"#token - running x (mean prompt + 1.6 x mean output), {completions}",
            0,
        ),
    ]


def _leak_in_short_log(case: Case, limits: Limits) -> Finding:
    """Return the leak that a short log shows beyond doubt of size.

    Once the batch has turned over several times, what its requests hold is bounded by the
    prompts and outputs that the log itself shows.

    Raises:
        NotApplicable: it shows none, which says little in so short a time.
    """
    found: list[Held] = []
    excess = 0.0
    for rank in case.ranks:
        nobody = None if case.excerpt else _held_by_nobody(rank, limits)
        if nobody is not None and as_float(nobody.min(), 0.0) > limits["short_excess"] * (
            rank.kv_tokens or math.inf
        ):
            found.append(whole(rank))
            excess = max(excess, as_float(nobody.max(), 0.0))
    if not found:
        raise NotApplicable(
            f"it covers less than the {limits['window_s'] + limits['report_s']:.0f} s "
            "that a mass balance needs"
        )
    return Finding(
        summary=f"About {_unaccounted(found, excess)}, {spell(case, found)}; the log is too short "
        "to see them grow",
        episodes=all_episodes(found),
        evidence=_excess_evidence(case, found, excess, "completions of the log"),
        actions=_leak_actions(case),
        severity=Severity.CRITICAL,
        confidence="low" if case.arg("enable_hierarchical_cache") else "medium",
        competing="open sessions or locked prefixes hold tokens too; ten minutes of log would "
        "tell",
    )


def _held_by_nobody(rank: Rank, limits: Limits) -> pl.Series | None:
    """Return the tokens that nobody holds, as means of 30 s; None without enough completions."""
    cells = rank.grid.filter(pl.col("running").is_not_null())
    if not cells.height:
        return None
    done, decoded, prompt = cells.select_seq(
        pl.col("completed").sum(),
        pl.col("decoded").sum(),
        (pl.col("new_token") + pl.col("cached_token")).sum(),
    ).row(0)
    running = as_float(cells["running"].mean(), 0.0)
    started = done + cells["running"][-1] - cells["running"][0]
    if done < max(limits["turnover"] * running, 20.0) or started <= 0:
        return None
    each = prompt / started + limits["output_factor"] * decoded / done
    now, token = rank.mean("running", 30.0), rank.mean("own_token", 30.0)
    nobody: pl.Series = (token - now * each).drop_nulls()
    return nobody


#: Prompts are cut at so many tokens at the least, on a server that sets nothing.
_LEAST_CHUNK = 2048


def _cuts_unseen(case: Case, rank: Rank) -> bool:
    """Whether many prompts are cut into chunks that the lines do not tell from requests."""
    chunk = case.signals.session.config.chunked_prefill_size
    if rank.timeline.merged:
        least = _LEAST_CHUNK if chunk is None else chunk
        tokens, batches = rank.grid.select_seq(pl.col("new_token", "n_prefill").sum()).row(0)
        return bool(least) and bool(tokens > 0.3 * least * batches)
    if chunk is not None:
        return False
    # Batches of exactly the largest size, again and again, end at the chunk size.
    new = rank.lines.filter("prefill")["new_token"].drop_nulls()
    if not new.len():
        return False
    full = new.filter(new == new.max())
    return full.len() >= 3 and float(full.sum()) > 0.3 * float(new.sum())


def _balance(rank: Rank, limits: Limits) -> pl.DataFrame:
    """Return {excess, spread, ok}: tokens nobody holds, by a cautious and by a fair estimate."""
    w = limits["window_s"]
    done = rank.past_sum("completed", w)
    running = rank.select(pl.col("running").rolling_mean(rank.cells(w), min_samples=1))
    prompt = rank.past_sum(pl.col("new_token") + pl.col("cached_token"), w) / done
    out = rank.past_sum("decoded", w) / done
    lost = rank.past_sum("retracted", w)
    token, now = rank.mean("own_token", 60.0), rank.mean("running", 60.0)
    frame = pl.DataFrame(
        {
            "done": done,
            "running": running,
            "prompt": prompt,
            "out": out,
            "lost": lost,
            "token": token,
            "now": now,
        }
    )
    ok = (
        (pl.col("done") >= limits["turnover"] * pl.col("running"))
        & (pl.col("lost") == 0)
        & (pl.int_range(pl.len()) >= rank.cells(w))
    )
    frame = frame.with_columns_seq(ok=ok.fill_null(False))
    # How much output the requests of this server hold at a moment, over their mean output,
    # as it was at first: tells when the excess began, while 1.6 tells that there is one.
    early = frame.filter("ok").head(rank.cells(120))
    factor = early.select_seq(
        ((pl.col("token") / pl.col("now") - pl.col("prompt")) / pl.col("out")).median()
    ).item()
    fair = (
        min(limits["output_factor"], max(0.3, float(factor)))
        if factor is not None
        else limits["output_factor"]
    )
    return frame.select_seq(
        excess=pl.col("token")
        - pl.col("now") * (pl.col("prompt") + limits["output_factor"] * pl.col("out")),
        fair=pl.col("token") - pl.col("now") * (pl.col("prompt") + fair * pl.col("out")),
        ok="ok",
    )


def _leaking(rank: Rank, limits: Limits) -> list[Span]:
    """Return the span of a leak: from where it began to the end, since it never comes back."""
    if not rank.kv_tokens:
        return []
    b = _balance(rank, limits).with_columns_seq(t=rank.grid["t"])
    over = b.select_seq(
        pl.col("ok") & (pl.col("excess") > limits["excess"] * rank.kv_tokens)
    ).to_series()
    found = at_least(joined(spans(over), rank.cells(60)), rank.cells(limits["report_s"]))
    if not found:
        return []
    first, end = found[0]
    inside = b[first:end].filter("ok")
    growth = slope(inside["t"], inside["excess"])
    if (
        growth is None
        or growth * (end - first) * rank.step_s < 0.3 * limits["excess"] * rank.kv_tokens
    ):
        return []
    # It began where the line through its growth meets zero.
    growing = b[: first + rank.cells(limits["report_s"])].filter("ok")
    growing = growing.filter(pl.col("fair") > 0.02 * rank.kv_tokens)
    rise = slope(growing["t"], growing["fair"]) if growing.height > 10 else None
    began = first
    if rise and rise > 0:
        crossing = (
            as_float(growing["t"].mean(), 0.0) - as_float(growing["fair"].mean(), 0.0) / rise
        )
        began = int(min(max(crossing, 0.0) / rank.step_s, first))
    return [(began, rank.grid.height)]


def _leak_actions(case: Case) -> list[Action]:
    return [
        *act(case, "Restart the server to get the tokens back, and upgrade"),
        *act(
            case,
            "See whether it also happens without the prefix cache",
            "disable-radix-cache",
            True,
        ),
        *act(
            case,
            "Set SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY=1 to have SGLang check "
            "while busy, and report what it prints",
        ),
    ]
