"""From changes to levers: tokens, requests, throughput, flag, risk, and the arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loganalyze.capacity import memory, predict
from loganalyze.capacity.memory import GIB
from loganalyze.capacity.server import Server
from loganalyze.model import Action, Estimate, Finding, Lever
from loganalyze.plan.after import After, missing_fraction, pool_after
from loganalyze.plan.asked import HOST, Changes, Wish
from loganalyze.plan.usual import WORTH_GIB, balance_method, expanded, has_flag, usual

NO_DECODES = (
    "0 more active decodes: a decode step reads KV in GPU memory alone. A prefix in host memory "
    "must be loaded back into free GPU slots before a request can use it; what it saves is the "
    "prefill of prefixes that come back"
)


def levers(now: Server, wish: Wish) -> list[Lever]:
    """Return what can be changed, the most effective first.

    Without a log that tells throughput, the order is that of the tokens.
    """
    sets = [*expanded(wish.what_if), *usual(now, wish)]
    first = [_even_lever(now, wish, now.load.uneven)] if now.load and now.load.uneven else []
    unique = list(dict.fromkeys(sets))
    found = [_lever(now, changes, wish) for changes in unique]

    def effect(one: Lever) -> tuple[bool, float, float]:
        return (
            one.host_tokens is None,
            one.gain.mid if one.gain else 0.0,
            float(one.kv_tokens or 0),
        )

    return [*first, *sorted(found, key=effect, reverse=True)]


#: Causes of a queue that a flag mends which no memory arithmetic can weigh.
_ADVISED = ("ADM001", "ADM002", "SWA001", "MAM001", "PDD001")


def advised(now: Server, findings: Sequence[Finding]) -> list[Lever]:
    """Return what the findings advise against a queue and no other lever does, unweighed."""
    weighed = {f"--{name}" for name, _ in _FLAGS.values()}
    return [
        Lever(
            name=_typed(action).lstrip("-"),
            flag=_typed(action),
            present=action.present,
            proposed=action.proposed,
            memory_left_gib=now.free_gib,
            note=f"{one.code}: {'; '.join(filter(None, (action.text, action.effect)))}; the log "
            "does not tell by how much",
        )
        for one in findings
        if one.code in _ADVISED and one.explained_by is None
        for action in one.actions
        if action.flag and action.flag not in weighed
    ]


def _typed(action: Action) -> str:
    """Return an action's flag as it is typed; a value that has to be tried stands in brackets."""
    value = action.proposed
    if value is None or value is True:
        return str(action.flag)
    tried = isinstance(value, str) and value.startswith(("higher", "lower"))
    return f"{action.flag} ({value})" if tried else f"{action.flag} {_value(value)}"


def _even_lever(now: Server, wish: Wish, uneven: predict.Uneven) -> Lever:
    """Return the lever that spreads the load over the DP ranks: the same pools, all in use."""
    total = now.tokens * now.ranks if now.tokens is not None else None
    method = balance_method(now)
    rate = now.load.throughput if now.load else None
    return Lever(
        name="even load over the DP ranks",
        flag=f"--load-balance-method {method}" if method else "",
        proposed=method,
        kv_tokens=total,
        concurrency=_fit(now, total),
        more_decodes=0.0,
        gain=uneven.gain,
        throughput=predict.scaled(uneven.gain, rate) if rate else None,
        eta_s=_eta(now, wish, uneven.gain),
        memory_left_gib=now.free_gib,
        reaches_target=_reaches(now, wish, total),
        note=f"{uneven.even:.0f} requests would run instead of {uneven.running:.0f}; do not pin "
        "sessions to ranks in front of the server"
        + ("" if method else "; total_tokens from 0.5.8, shortest_queue before"),
        formula=uneven.formula,
    )


def present(now: Server, wish: Wish) -> Lever:
    """Return the present state as a lever that changes nothing."""
    total = now.tokens * now.ranks if now.tokens is not None else None
    rate = now.load.throughput if now.load else None
    measured = Estimate(rate, rate, rate) if rate else None
    return Lever(
        name="as it is",
        kv_tokens=total,
        concurrency=_fit(now, total),
        more_decodes=0.0,
        throughput=measured,
        eta_s=_eta(now, wish, Estimate(1.0, 1.0, 1.0)),
        memory_left_gib=now.free_gib,
        reaches_target=_reaches(now, wish, total),
        note=_measured_on(now.load) if now.load else "",
    )


def _measured_on(load: predict.Load) -> str:
    """Say what the present throughput is the mean of."""
    held = ", while the pool held requests back" if bool(load.lines["bound"].all()) else ""
    lines = f"{load.lines.height:,} decode lines after warm-up"
    return f"decode throughput now: tokens decoded / time of {lines}{held}"


def _lever(now: Server, changes: Changes, wish: Wish) -> Lever:
    if all(name in HOST for name in changes.names):
        return _host_lever(now, changes, wish)
    for name in changes.names:
        if name in _FLAGS and not has_flag(now, _FLAGS[name][0]):
            flag = "--" + _FLAGS[name][0]
            return Lever(name=_title(changes), note=f"this release has no {flag}")
    after = pool_after(now, changes)
    servers = changes.replicas or 1
    total = after.tokens * after.ranks * servers if after.tokens is not None else None
    gain = _gain(now, changes, after, wish)
    fits, fits_now = _fit(now, total), _fit(now, now.tokens * now.ranks if now.tokens else None)
    rate = now.load.throughput if now.load else None
    formula = list(after.formula)
    if fits is not None and now.tokens_per_req and total is not None:
        each = f"{now.tokens_per_req:,.0f}"
        if now.reserve:
            each = f"({each} + {now.reserve:,} kept free)"
        formula.append(f"{total:,} / {each} tokens per request = {fits:.1f} requests")
    if gain is not None and now.load is not None:
        formula.append(_step_words(now, gain))
    return Lever(
        name=_title(changes),
        flag=_flag(changes),
        present=_present(now, changes),
        proposed=_proposed(changes),
        kv_tokens=total,
        concurrency=fits,
        more_decodes=fits - fits_now if fits is not None and fits_now is not None else None,
        gain=gain,
        throughput=predict.scaled(gain, rate) if gain and rate else None,
        eta_s=_eta(now, wish, gain) if gain else None,
        memory_left_gib=after.free_gib,
        reaches_target=_reaches(now, wish, total),
        risk=_risk(now, changes, after),
        note=_note(now, changes, after, fits),
        formula=formula,
    )


def _host_lever(now: Server, changes: Changes, wish: Wish) -> Lever:
    """Return the lever of the hierarchical cache: host tokens, and no decode more."""
    cell = now.memory.bytes_per_token
    if changes.hicache_size is not None:
        size = changes.hicache_size * memory.HOST_GB
        words = f"{changes.hicache_size:g} x 1e9 bytes per rank"
    else:
        assert changes.host_mem_gib is not None
        size = changes.host_mem_gib * GIB / now.host_gpus
        words = f"{changes.host_mem_gib:g} GiB / {now.host_gpus} ranks"
    tokens = memory.host_tokens(size, cell, now.page) if cell else None
    total = now.tokens * now.ranks if now.tokens is not None else None
    flag_size = max(1, int(size / memory.HOST_GB))
    return Lever(
        name="hierarchical cache",
        present="on" if now.hicache else None,
        flag=(
            f"--enable-hierarchical-cache --hicache-size {flag_size}"
            if has_flag(now, "hicache-size")
            else "--enable-hierarchical-cache"
        ),
        proposed=f"{size / memory.HOST_GB:.1f} GB per rank",
        kv_tokens=total,
        host_tokens=tokens,
        concurrency=_fit(now, total),
        more_decodes=0.0,
        memory_left_gib=now.free_gib,
        reaches_target=_reaches(now, wish, total),
        risk=f"{size * now.host_gpus / GIB:,.0f} GiB of host memory are pinned",
        note=NO_DECODES,
        formula=(f"{words} / {cell:,.0f} bytes per token = {tokens:,} host tokens per rank",)
        if cell
        else ("cannot tell the host tokens: bytes per token are not known",),
    )


def _gain(now: Server, changes: Changes, after: After, wish: Wish) -> Estimate | None:
    if now.load is None or now.leak or not now.tokens or not after.tokens:
        return None
    cap = changes.max_running_requests
    return predict.estimate(
        now.load,
        predict.Change(
            pool=after.tokens * after.ranks / (now.tokens * now.ranks),
            kv_bytes=after.kv_bytes,
            cap=max(1, cap // now.cap_ranks) if cap else None,
            split=after.split,
            servers=changes.replicas or 1,
            weights=after.weights,
            layout=changes.dp_attention is not None or changes.dcp is not None,
        ),
        wish.bandwidth,
        now.memory.bytes_per_token,
    )


def _fit(now: Server, tokens: int | None) -> float | None:
    """Return how many requests some tokens hold.

    With a sliding-window pool, the tighter of both: there a request holds its window at most.
    """
    if tokens is None or not now.tokens_per_req or not now.room_per_req:
        return None
    fits = tokens / now.room_per_req
    cell = now.cell
    if cell is not None and cell.kind == "swa" and cell.window:
        held = min(now.tokens_per_req, float(cell.window))
        fits = min(fits, tokens * cell.swa_ratio / held)
    return fits


def _reaches(now: Server, wish: Wish, tokens: int | None) -> bool | None:
    fits = _fit(now, tokens)
    if wish.target_concurrency is None or fits is None:
        return None
    return fits >= wish.target_concurrency


def _eta(now: Server, wish: Wish, gain: Estimate) -> Estimate | None:
    """Return the seconds for the remaining work."""
    if now.load is None:
        return None
    if wish.remaining_tokens:
        rate = predict.scaled(gain, now.load.throughput)
        return predict.time_left(wish.remaining_tokens, rate)
    if wish.remaining_requests and now.load.completed_per_s:
        rate = predict.scaled(gain, now.load.completed_per_s)
        return predict.time_left(wish.remaining_requests, rate)
    return None


#: Change -> SGLang's flag, and how it is written.
_FLAGS = {
    "mem_fraction": ("mem-fraction-static", "--mem-fraction-static {}"),
    "kv_dtype": ("kv-cache-dtype", "--kv-cache-dtype {}"),
    "dp_attention": ("enable-dp-attention", "--enable-dp-attention --dp-size {}"),
    "dcp": ("dcp-size", "--dcp-size {}"),
    "max_running_requests": ("max-running-requests", "--max-running-requests {}"),
    "pool_gib": (
        "mem-fraction-static",
        f"--mem-fraction-static (higher, in steps of {memory.STEP:g})",
    ),
    "hicache_size": ("hicache-size", "--hicache-size {}"),
    "host_mem_gib": ("hicache-size", "--hicache-size {}"),
}

_TITLES = {
    "mem_fraction": "memory fraction {}",
    "pool_gib": "{} GiB more for the pool",
    "kv_dtype": "KV in {}",
    "dp_attention": "DP attention over {}",
    "dcp": "decode context parallel {}",
    "max_running_requests": "running cap {}",
    "replicas": "{} servers",
}


def _title(changes: Changes) -> str:
    said = [_TITLES.get(n, n).format(_value(getattr(changes, n))) for n in changes.names]
    return " + ".join(said)


def _flag(changes: Changes) -> str:
    parts = [
        _FLAGS[n][1].format(_flag_value(n, getattr(changes, n)))
        for n in changes.names
        if n in _FLAGS
    ]
    return " ".join(parts)


def _flag_value(name: str, value: object) -> str:
    return "fp8_e4m3" if (name, value) == ("kv_dtype", "fp8") else _value(value)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _present(now: Server, changes: Changes) -> str | float | int | None:
    if len(changes.names) != 1:
        return None
    values: Mapping[str, str | float | int | None] = {
        "mem_fraction": now.fraction,
        "kv_dtype": now.setting.kv_dtype,
        "dp_attention": now.setting.dp_attention,
        "dcp": now.setting.dcp,
        "max_running_requests": now.cap * now.cap_ranks if now.cap else None,
        "replicas": 1,
    }
    return values.get(changes.names[0])


def _proposed(changes: Changes) -> str | float | int | None:
    if len(changes.names) != 1:
        return None
    value: str | float | int = getattr(changes, changes.names[0])
    return value


def _risk(now: Server, changes: Changes, after: After) -> str:
    said: list[str] = []
    if after.tokens == 0:
        said.append("no memory would be left for KV: the server does not start")
    if changes.mem_fraction is not None or changes.pool_gib is not None:
        said.append(_memory_words(now, after.free_gib))
    if changes.mem_fraction is not None:
        said += [
            f"session {number} ran with {fraction:g} and {end}"
            for number, fraction, end in _ends(now)
            if fraction <= changes.mem_fraction
        ]
    if changes.kv_dtype:
        said.append("check accuracy, and that the attention backend takes this KV dtype")
    if changes.dp_attention:
        said.append("other collectives and step times than now; the chunk is divided by the ranks")
    if changes.dcp:
        said.append("a collective more in every layer")
    if changes.max_running_requests:
        said.append("CUDA graphs must be captured for this batch, or steps get slower")
    return "; ".join(filter(None, said))


def _ends(now: Server) -> list[tuple[int, float, str]]:
    """Return (session, fraction, how it ended) of the starts that set a limit."""
    died = [(number, fraction, "ran out of GPU memory") for number, fraction in now.died_of_memory]
    known = {number for number, _ in now.died_of_memory}
    return died + [(*one, "crashed") for one in now.crashed if one[0] not in known]


def _memory_words(now: Server, free: float | None) -> str:
    if free is None:
        why = (
            "the log has no available_gpu_mem"
            if now.free_gib is None
            else "the log does not print the card's memory before the weights"
        )
        return f"memory left is not known: {why}"
    if free < memory.RISK_GIB:
        return f"leaves {free:.1f} GiB: out of memory is likely"
    if free < memory.KEEP_GIB:
        return (
            f"leaves {free:.1f} GiB, less than the {memory.KEEP_GIB:g} GiB advised: a long "
            "prompt may run out of memory"
        )
    return f"leaves {free:.1f} GiB"


def _note(now: Server, changes: Changes, after: After, fits: float | None) -> str:
    said = [after.note] if after.note else []
    grows = changes.mem_fraction or changes.pool_gib or changes.kv_dtype
    if grows and now.load and now.load.uneven:
        said.append(f"helps {now.load.uneven.full} alone: the other ranks have room already")
    cap = now.cap if changes.max_running_requests is None else None
    if cap and fits and fits > cap * after.ranks * (changes.replicas or 1):
        said.append(f"the running cap of {cap} per rank binds before: raise it too")
    if (changes.mem_fraction or changes.pool_gib) and now.safe_fraction < 1:
        number, fraction, end = min(_ends(now), key=lambda one: one[1])
        said.append(
            f"stay at {now.safe_fraction:g} or below: session {number} ran with {fraction:g} "
            f"and {end}"
        )
    if changes.pool_gib is not None:
        said.append(
            f"raise it until the start-up line prints available_gpu_mem of about "
            f"{after.free_gib or memory.KEEP_GIB:.1f} GB: the log does not print the memory "
            "before the weights, so the value cannot be told"
        )
    if changes.replicas:
        said.append("load shared evenly; as many more GPUs")
    return "; ".join(said)


def _step_words(now: Server, gain: Estimate) -> str:
    model = now.load.model if now.load else None
    if model is None:
        return (
            f"throughput x {gain.mid:.2f}: too few lines for a step model, so any share of the "
            "step from a tenth to nine tenths is taken as independent of the batch"
        )
    return (
        f"step = {model.t0_s * 1e3:.1f} ms + {model.a_s * 1e3:.3f} ms x running + "
        f"{model.b_s * 1e9:.1f} ns x tokens ({model.n_lines} lines): every line after warm-up "
        "rescaled, "
        f"sum of requests / sum of steps = x {gain.mid:.2f} [{gain.low:.2f} to {gain.high:.2f}]"
    )


def notes(now: Server, wish: Wish) -> tuple[str, ...]:
    """Return what was compared, what disagrees, and what cannot be told."""
    said = list(now.notes)
    if now.reserve and now.tokens_per_req:
        said.append(
            f"what fits counts {now.reserve:,} tokens that are kept free for each request beside "
            "what it holds (num_reserved_decode_tokens)"
        )
    if now.leak and now.tokens_per_req is None:
        said.append(
            "what a request holds and what more room would give cannot be told from these lines: "
            "a part of what is in use belongs to no request, and a larger pool fills as well; "
            "--tokens-per-req says what a request really holds"
        )
    if now.memory.total_gib and now.memory.total_from and now.session:
        said.append(
            f"memory before the weights: {now.memory.total_gib:.2f} GiB ({now.memory.total_from})"
        )
    if now.session and now.memory.per_fraction is None:
        said.append(f"--mem-fraction-static: {missing_fraction(now)}")
    if now.safe_fraction < 1:
        ends = "; ".join(f"session {n} ran with {f:g} and {end}" for n, f, end in _ends(now))
        said.append(f"no memory fraction above {now.safe_fraction:g} is offered: {ends}")
    if now.session and now.free_gib is not None and now.free_gib - memory.KEEP_GIB < WORTH_GIB:
        said.append(
            f"{now.free_gib:.1f} GiB are free after start-up: raising the memory fraction "
            f"would leave less than the {memory.KEEP_GIB:g} GiB advised"
        )
    work = wish.remaining_requests or wish.remaining_tokens
    if work and now.load is None:
        said.append("no time can be given: no log tells the present speed")
    elif wish.remaining_requests and now.load and now.load.completed_per_s is None:
        said.append("no time can be given: no request finished after warm-up")
    for cell in now.cells:
        if cell.state_bytes:
            said.append(f"one state slot: {cell.state_formula} = {cell.state_bytes:,} bytes")
        if cell.copies > 1:
            said.append(f"every KV byte is stored on {cell.copies:g} ranks of an attention group")
    return tuple(dict.fromkeys(said))
