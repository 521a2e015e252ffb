"""RUN001: requests wait because running requests stand at their cap."""

from __future__ import annotations

import polars as pl

from loganalyze.capacity import memory, predict
from loganalyze.capacity.server import sharing_ranks
from loganalyze.episodes import Span, at_least, joined, spans
from loganalyze.model import Action, Evidence, Finding, Severity
from loganalyze.rules import flags
from loganalyze.rules.admission.candidates import held_back
from loganalyze.rules.held import (
    Held,
    act,
    all_episodes,
    confidence,
    config_line,
    gain_text,
    gains,
    hold,
    minimum,
    severity,
    shown,
    spell,
    waiting,
)
from loganalyze.rules.kv.room import more_room
from loganalyze.rules.pools.state_slots import state_levers
from loganalyze.rules.registry import Case, Clear, Limit, Limits, NotApplicable, rule
from loganalyze.signals import Rank
from loganalyze.timeline import as_float, near_cap

#: Lines with a queue that show a cap which is not printed; fewer than the second must all
#: stand at it.
_FEWEST_ROWS, _ENOUGH_ROWS = 10, 20

#: A higher cap is advised up to here of what it may bring at best: where running requests never
#: moved, the log does not tell what more of them would cost.
_WORTH_TRYING = 1.05

#: From the first line with a queue to the last, so many decode lines must have one.
_WAITS_SHARE = 0.75

#: So often must new requests have taken the places of others.
_TAKEN_OVER = 3


@rule(
    "RUN001",
    "running-cap",
    severity=Severity.CRITICAL,
    needs=("running_req", "queue_req"),
    limits={
        "share": Limit(0.5, "fraction", "share of the window at the cap with a queue"),
        "window_s": Limit(15.0, "s", "window"),
        "report_s": Limit(25.0, "s", "shortest spell"),
        "mode_share": Limit(
            0.6,
            "fraction",
            "share of lines with a queue that stand at the highest running count, from "
            "which an unprinted cap is inferred",
        ),
        "join_s": Limit(20.0, "s", "holes up to this long are closed"),
    },
    explains=("QUE001", "OVR001", "ADM002", "KV001"),
    after=("MAM001",),
    at_once=True,
)
def running_cap(case: Case, limits: Limits) -> Finding | Clear:
    """Requests wait because running requests stand at their cap.

    What it flags:
        Running requests at max_running_requests (but for 2 or 3 %, fewer of a small cap) with a
        queue, at any KV usage. On a PD decode server requests that wait for preallocation count as
        a queue. Where the log does not print the cap, it is inferred if running requests stand
        at their highest count most of the time that requests wait, while others take the places
        of those that finish.
    Why it is slow:
        Beyond the cap nothing is admitted, however much KV is free. Speculative decoding resets
        the cap to 48 unless it is set; a small pool or Mamba slots lower it too.
    Not this rule:
        A full pool with running requests below the cap (KV001).
    What to do:
        Raise --max-running-requests, and the largest captured CUDA graph with it, as long as
        KV room is left; with a full pool raising the cap changes nothing, and a server that
        granted less than was asked for needs room first.
    Source:
        Scheduler.get_num_allocatable_reqs; ServerArgs (speculative decoding: 48).
    """
    mamba = "MAM001" in case.earlier
    caps = {id(rank): rank.cap or _inferred_cap(case, rank, limits) for rank in case.ranks}

    def judge(rank: Rank) -> list[Span]:
        cap = caps[id(rank)]
        if not cap:
            return []
        at_cap = (pl.col("running") >= (near_cap(cap) if rank.cap else cap - 0.5)) & (
            waiting(case) > 0
        )
        if mamba:
            at_cap = at_cap & (pl.col("mamba_usage").fill_null(0.0) < 0.95)
        held = rank.holds(at_cap, limits["share"], limits["window_s"])
        found = joined(
            spans(held), rank.cells(limits["join_s"]), rank.select(waiting(case)).fill_null(0) > 0
        )
        return at_least(found, minimum(case, limits["report_s"]) / rank.step_s)

    found = hold(case.ranks, judge)
    if not found:
        if not any(caps.values()):
            raise NotApplicable(
                "the cap is unknown: the max_total_num_tokens= line with "
                "max_running_requests= is missing"
            )
        top = max((_top(case, rank) for rank in case.ranks), default=0)
        cap = next(cap for cap in caps.values() if cap)
        return Clear(f"at most {top} requests ran with a queue, the cap is {cap}")
    worst = found[0]
    cap = caps[id(worst.rank)] or 0
    inferred = worst.rank.cap is None
    usage = worst.mean("full_usage")
    full = max(usage or 0.0, worst.mean("swa_usage") or 0.0) >= 0.9
    queue = worst.average(waiting(case))
    cut = _cut_by_server(case, cap)
    config = case.signals.session.config
    summary = (
        f"Running requests stand at their cap of {cap}{' (inferred)' if inferred else ''} "
        f"{spell(case, found, waiting(case, printed=True) > 0)}: {queue:,.0f} waiting"
        f"{' per rank' if len(found) > 1 else ''}"
    )
    if usage is not None:
        summary += f", KV usage {usage:.2f}"
    if full:
        summary += "; the pool is nearly full as well, so a higher cap alone would help little"
    reset = [] if inferred else _reset_by_speculation(case, cap)
    if reset:
        summary += f"; speculative decoding reset the cap to {cap}, since none was set"
    if cut:
        summary += f"; the server set this cap itself, for want of {_short_of(case)}"
    level = confidence(case, found)
    return Finding(
        summary=summary,
        episodes=all_episodes(found),
        evidence=[
            *reset,
            *cut,
            shown(
                "running cap",
                cap,
                "requests",
                config_line(
                    case,
                    config.args_line if config.capacity_line is None else config.capacity_line,
                ),
                _cap_from(case, inferred),
            ),
            worst.averaged("running requests", "running", "running", "requests", 1),
            worst.averaged(
                "waiting requests", waiting(case), waiting(case, printed=True), "requests", 1
            ),
            worst.averaged("mean usage", "usage", "kv_usage", "fraction", 2),
        ],
        actions=_room_for_cap(case, worst) if cut else _raise_cap(case, worst, cap, full),
        severity=severity(case, found),
        confidence="medium" if inferred and level == "high" else level,
        competing="KV saturation (KV001): the pool is full at the cap"
        if full
        else _one_short(case, worst, cap)
        or f"KV saturation (KV001) excluded: usage {usage or 0:.2f} at the cap",
    )


def _cut_by_server(case: Case, cap: int) -> list[Evidence]:
    """Return what shows that the server lowered what was asked for to this cap, if it did.

    Releases from 0.5.14 say so; the arguments of older ones are what was asked for.
    """
    config = case.signals.session.config
    said = case.data.startup.filter(
        (pl.col("kind") == "max_running_requests_cut") & (pl.col("granted") == cap)
    )
    if said.height:
        row = said.row(0, named=True)
        asked, where = row["requested"], (row["source"], row["line_no"])
    else:
        value = config.args.get("max_running_requests")
        asked = value // sharing_ranks(case.data) if isinstance(value, int) else 0
        where = config_line(case, config.args_line)
        if asked <= cap or config.max_running_req != cap:
            return []
    words = f"{asked:,} asked for, {cap:,} granted" if asked else f"{cap:,} granted"
    return [shown("cap set by the server", words, "", where)]


def _has_states(case: Case) -> bool:
    """Whether requests also need a Mamba state slot."""
    return bool(case.data.batch["mamba_usage"].count())


def _short_of(case: Case) -> str:
    return "Mamba state slots, or of KV" if _has_states(case) else "KV room"


def _room_for_cap(case: Case, held: Held) -> list[Action]:
    """What lets a server grant a higher cap: asking for one does not.

    Where requests need Mamba states, those bind although the message speaks of the KV cache.
    """
    return state_levers(case, held) if _has_states(case) else more_room(case, held)


def _one_short(case: Case, held: Held, cap: int) -> str:
    """Name the fault of releases in which a prompt in chunks keeps a place that nobody uses."""
    top = as_float(held.lines["running_req"].max(), 0.0)
    chunked = (case.signals.session.config.chunked_prefill_size or -1) > 0
    if top != cap - 1 or not chunked:
        return ""
    return (
        f"never more than {cap - 1} of {cap} run: in some releases a prompt in chunks keeps a "
        "place (#30294, #38118), and admission then waits for a request to finish (ADM002)"
    )


def _cap_from(case: Case, inferred: bool) -> str:
    if inferred:
        return "inferred: the most frequent and highest running count"
    if case.signals.session.config.capacity_line is not None:
        return "max_running_requests"
    ranks = sharing_ranks(case.data)
    return "max_running_requests as asked for" + (f" / {ranks} DP ranks" if ranks > 1 else "")


def _inferred_cap(case: Case, rank: Rank, limits: Limits) -> int | None:
    """Return the cap that running requests betray by standing still at it, or None.

    What else keeps them still: a full pool, a setting that holds requests back (QUE001), and a
    batch that nobody leaves (ADM002). Where KV usage moves, prefills start new requests, or tokens
    fall, others take the places of those that finish, up to the same number.
    """
    if held_back(case) or as_float(rank.lines["waiting_image_req"].max(), 0.0) > 0:
        return None
    rows = rank.lines.filter((waiting(case, printed=True) > 0) & (pl.col("running") > 0))
    decode = rows.filter("decode")
    if rows.height < _FEWEST_ROWS or not decode.height:
        return None
    if float(rows["t"][-1] - rows["t"][0]) < limits["report_s"]:  # anything stands still so long
        return None
    span = rank.lines.filter(
        "decode", pl.col("row").is_between(pl.lit(rows["row"][0]), pl.lit(rows["row"][-1]))
    )
    if decode.height < _WAITS_SHARE * span.height:  # a request waits for a step or two at times
        return None
    top = int(as_float(decode["running"].max(), 0.0))
    still = decode.filter(pl.col("running") == top)
    # Running requests that stand still in a full pool stand at what fits.
    if as_float(still["kv_usage"].median(), 0.0) >= 0.87:
        return None
    usual = still.height > limits["mode_share"] * decode.height
    if decode.height < _ENOUGH_ROWS:  # so few lines must all stand there
        usual = rows.filter(pl.col("running") >= top - 0.5).height >= 0.9 * rows.height
    moves = decode["kv_usage"].drop_nulls()
    varied = moves.len() > 1 and as_float(moves.std(), 0.0) >= 0.01
    return top if usual and (varied or _taken_over(case, rank, still, top)) else None


def _taken_over(case: Case, rank: Rank, still: pl.DataFrame, top: int) -> bool:
    """Whether new requests took the places of others while `top` requests ran."""
    started = rank.lines.filter((pl.col("new_seq") > 0) & (pl.col("running") == top)).height
    token = pl.coalesce("token", "full_token", "gpu_token")
    fell = as_float(still.select_seq((token.diff() < 0).sum()).item(), 0.0)
    # A PD decode server prints no prefill lines, and lets nothing wait there but for a place.
    queued = case.signals.session.role == "decode" and bool((still["queue_req"] > 0).all())
    return queued or max(started, fell) >= _TAKEN_OVER


def _top(case: Case, rank: Rank) -> int:
    running = pl.col("running").filter(waiting(case, printed=True) > 0)
    return int(as_float(rank.lines.select_seq(running.max()).item(), 0.0))


def _raise_cap(case: Case, held: Held, cap: int, full: bool) -> list[Action]:
    per_req, n = held.tokens_per_req, held.rank.kv_tokens
    reserve = case.signals.capacity.reserved_per_req
    fits = int(n / (per_req + reserve)) if n and per_req else None
    such = f"about {fits} such requests of {per_req:,.0f} tokens" if fits else ""
    room = []
    if full:
        room = act(
            case,
            "Give the KV pool more room as well: it is nearly full at this cap"
            + (f", {such} fit" if fits else ""),
        )
        if fits is None or fits <= cap:
            return room
    queue = held.average(waiting(case))
    want = max(cap + 1, min(round(cap + queue), fits or 10**9))
    effect = f"KV has room for {such}{_or_fewer(case, held, fits)}" if fits else ""
    load = case.load
    gain = None
    if load is not None and load.model is not None:
        gain = predict.estimate(load, predict.Change(cap=want))
        # Where running requests never moved, the fit may give them all of a step's time.
        untold = not gains(gain) and gain.high >= _WORTH_TRYING
        effect += "; what it brings is not in the log" if untold else f"; {gain_text(gain)}"
    present = cap if case.arg("max_running_requests") is None else None
    out = act(case, "Raise the running cap", flags.CAP, want, effect.lstrip("; "), present)
    for flag in ("cuda-graph-max-bs-decode", "cuda-graph-max-bs"):
        graph = case.arg(flag.replace("-", "_"))
        if isinstance(graph, int) and graph < want:
            out += act(case, "Capture graphs up to the new batch size", flag, want)
            break
    if gain is not None and gain.high < _WORTH_TRYING:
        return room or act(case, "Add a replica or send less load: a higher cap gains nothing")
    return out + room


#: Fewer requests than this share of those that fit are worth a word.
_FEWER = 0.9


def _or_fewer(case: Case, held: Held, fits: int) -> str:
    """Say how many of those that fit admission lets in if clients ask for very many tokens."""
    per_req, n = held.tokens_per_req, held.rank.kv_tokens
    if not per_req or not n or case.signals.session.role == "decode":
        return ""
    c = memory.printed_conservativeness(case.signals.session.config)
    one, more = (memory.reserved_tokens(running, c) for running in (0, 1))
    let_in = int((n - one) / (per_req + more - one))
    if let_in >= _FEWER * fits:
        return ""
    return (
        f", of which admission lets in about {max(let_in, round(held.mean('running') or 0))} if "
        f"clients ask for {memory.CLIP:,} tokens or more (max_tokens)"
    )


#: The cap that speculative decoding sets where none is asked for.
_SPECULATIVE_CAP = 48


def _reset_by_speculation(case: Case, cap: int) -> list[Evidence]:
    """Return what shows that speculative decoding set the cap; nothing if it did not.

    Releases from 0.5.4 say so; older ones reset it as silently as they print the arguments.
    """
    said = case.data.startup.filter(
        (pl.col("kind") == "max_running_requests_spec") & (pl.col("granted") == cap)
    )
    if said.height:
        row = said.row(0, named=True)
        formula = "Max running requests is reset"
        return [shown("cap reset to", cap, "requests", (row["source"], row["line_no"]), formula)]
    config = case.signals.session.config
    algorithm = config.args.get("speculative_algorithm")
    if not algorithm or config.args.get("max_running_requests", cap) is not None:
        return []
    ranks = case.arg("dp_size") if case.arg("enable_dp_attention") else 1
    if cap != _SPECULATIVE_CAP // (ranks if isinstance(ranks, int) and ranks > 0 else 1):
        return []
    formula = f"speculative_algorithm, with max_running_requests=None: reset to {_SPECULATIVE_CAP}"
    where = config_line(case, config.args_line)
    return [shown("speculative decoding", str(algorithm), "", where, formula)]
