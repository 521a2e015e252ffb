"""What the page says in rows: key numbers, captions, capacity, levers, arguments, events.

Everything here is worked out from the report alone and handed to the template as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loganalyze.lengths import covered
from loganalyze.model import (
    Action,
    Capacity,
    Check,
    Episode,
    Estimate,
    Finding,
    Lever,
    Report,
    Session,
)
from loganalyze.report import charts, words
from loganalyze.report.charts import Panel, Timeline
from loganalyze.report.phase import Phase

STATUS_WORDS: Mapping[str, str] = {
    "saturated": "Saturated",
    "degraded": "Degraded",
    "healthy": "Healthy",
    "undetermined": "Undetermined",
}
#: What a status word promises, for readers who see it for the first time.
STATUS_MEANING: Mapping[str, str] = {
    "saturated": "A memory pool was full while requests waited for it.",
    "degraded": "Something other than a full memory pool slowed or stopped this server.",
    "healthy": "No check found anything that slows this server.",
    "undetermined": "The log holds too little to judge.",
}

#: Server arguments that decide about memory, admission and speed: shown first.
FIRST_ARGS = (
    "model_path",
    "served_model_name",
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "enable_dp_attention",
    "dcp_size",
    "mem_fraction_static",
    "max_total_tokens",
    "kv_cache_dtype",
    "max_running_requests",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "context_length",
    "schedule_policy",
    "schedule_conservativeness",
    "page_size",
    "disable_radix_cache",
    "enable_hierarchical_cache",
    "hicache_size",
    "hicache_ratio",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode",
    "disable_cuda_graph",
    "disaggregation_mode",
    "attention_backend",
    "quantization",
    "swa_full_tokens_ratio",
    "mamba_full_memory_ratio",
    "load_balance_method",
)


#: Arguments without a default.
_REQUIRED = ("model_path",)

#: What waiting is, by column; a request in one of these queues decodes nothing.
_WAITING: Mapping[str, str] = {
    "queue_req": "waited",
    "prealloc_req": "waited for preallocation",
    "transfer_req": "had their KV in transfer",
    "inflight_req": "had their KV in transfer",
}


class KeyNumber(NamedTuple):
    """A number that a reader looks for first."""

    name: str
    value: str
    unit: str
    note: str


class Row(NamedTuple):
    """One measured quantity: its value, the formula or origin, and the line."""

    name: str
    value: str
    origin: str
    line: str


class LeverRow(NamedTuple):
    """One thing that could be changed. `formula` has the arithmetic, line by line."""

    name: str
    flag: str
    tokens: str
    fit: str
    throughput: str
    memory: str
    note: str
    formula: Sequence[str]


class Argument(NamedTuple):
    """One server argument; `mark` says what is worth knowing about its value, `note` the rest."""

    name: str
    value: str
    mark: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one or several sessions: in full, or what `changed` from before.

    `unknown` counts those whose default is not known, so that nothing could be marked.
    """

    sessions: list[int]
    line: str
    changed: bool
    first: Sequence[Argument]
    rest: Sequence[Argument]
    unknown: int = 0


@dataclass(slots=True)
class Event:
    """One kind of event over all sessions: how often, and where its first and last stand."""

    name: str
    n: int = 0
    requests: int = 0
    first: tuple[str, str] | None = None
    last: tuple[str, str] | None = None


def title(report: Report) -> str:
    """Return the title of the page: status and log."""
    names = [words.basename(s.name) for s in report.sources]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    first = words.shorten(names[0], 80) if names else "no log"
    return f"{STATUS_WORDS[report.verdict.status]}: {first}{more}"


def first_action(report: Report) -> Action | None:
    """Return the first thing to do."""
    return next(iter(report.cause.actions), None) if report.cause else None


def period(report: Report) -> str:
    """Say from when to when the log runs."""
    starts = [s.start for s in report.sessions if s.start]
    ends = [s.end for s in report.sessions if s.end]
    return words.span(min(starts), max(ends)) if starts and ends else "no time stamps"


def key_numbers(report: Report) -> Iterator[KeyNumber]:
    """Yield the levels of the log, what fits, and how long the primary finding held."""
    worst = charts.worst(report)
    decodes = any(s.role == "decode" for s in report.sessions)
    for column, name, unit in (
        ("kv_usage", "KV pool usage", "fraction"),
        ("running_req", "running requests", ""),
        ("queue_req", "waiting requests", ""),
        ("prealloc_req", "in preallocation queue", ""),
        ("transfer_req", "KV in transfer", ""),
        ("gen_throughput", "decode throughput", "token/s"),
    ):
        level = charts.stats(report, column, worst)
        if column == "queue_req" and level and not level.peak and decodes:
            continue  # a decode server's requests wait elsewhere
        if level and (level.peak or column not in ("prealloc_req", "transfer_req")):
            middle, peak = _level(level.median, unit), _level(level.peak, unit)
            alone = len(report.sources) == 1
            where = words.place(None if alone else level.peak_source, level.peak_line)
            note = f"median; peak {peak} near {where}"
            if middle == peak:
                only = _level(level.least, unit) == peak
                note = "the only value" if only else f"median and peak, near {where}"
            if column == "kv_usage" and words.several_pools(report):
                name = "usage of the fullest pool"
            yield KeyNumber(name, middle, "" if unit == "fraction" else unit, note)
    session = _judged(report)
    if session:
        ranks = len({s.rank for s in report.series if s.session == session.id})
        which = f", session {session.id}" if len(report.sessions) > 1 else ""
        for k in _capacity_numbers(session.capacity, words.pool_name(report)):
            name = f"{k.name}, per rank" if ranks > 1 and k.unit == "" else k.name
            yield k._replace(name=name, note=k.note + which)
    if report.cause:
        yield from _time_in(report.cause, report.sessions)


def measured(report: Report) -> str:
    """Say whose levels the key numbers are, and over which time."""
    of, worst = charts.key_of(report), charts.worst(report)
    own = [s for s in report.series if worst in (None, of(s))]
    key = worst or (of(own[0]) if own else None)
    sessions = [s for s in report.sessions if s.id in {one.session for one in own}]
    if key is None or not sessions:
        return ""
    alone = worst is None and all(s.role == "unified" for s in sessions)
    who = "" if alone else f" of {charts.rank_name(report, key)}"
    starts, ends = [s.start for s in sessions if s.start], [s.end for s in sessions if s.end]
    when = f", {words.span(min(starts), max(ends))}" if starts and ends else ""
    lives = f", over {len(sessions)} sessions" if len(sessions) > 1 else ""
    return f"Levels{who}{when}{lives}: the median, and the peak near its line."


def _level(value: float, unit: str) -> str:
    if unit == "fraction":
        return words.number(float(value), unit)
    return words.number(round(value, 1) if value < 10 else round(value))


def _judged(report: Report) -> Session | None:
    """Return the session that the verdict speaks of, else the longest one."""
    wanted = report.cause.session if report.cause else None
    for s in report.sessions:
        if s.id == wanted:
            return s
    return max(report.sessions, key=lambda s: s.last_line - s.first_line, default=None)


def _capacity_numbers(c: Capacity, pool: str) -> Iterator[KeyNumber]:
    if c.requests_fit is not None and c.tokens_per_req is not None:
        each = words.number(round(c.tokens_per_req))
        kept = f" + {c.reserved_per_req:,} kept free" if c.reserved_per_req else ""
        note = f"{pool}: {words.number(c.kv_tokens)} tokens / {each}{kept} each"
        yield KeyNumber("requests that fit", words.number(c.requests_fit), "", note)
    if c.rate_per_req is not None:
        rate = words.number(c.rate_per_req)
        one_log = c.line_sources is None or len(set(c.line_sources)) == 1
        lines = f", lines {c.lines[0]} to {c.lines[1]}" if c.lines and one_log else ""
        yield KeyNumber("decode rate per request", rate, "token/s", f"mean{lines}")


def _time_in(f: Finding, sessions: Sequence[Session]) -> Iterator[KeyNumber]:
    """Yield the time within a finding's episodes; ranks at the same time count once."""
    spans = covered(f.episodes)
    seconds = sum((b - a).total_seconds() for a, b in spans)
    if seconds:
        note = _share(f, seconds, sessions) + words.plural(len(spans), "spell")
        yield KeyNumber(f"time in {f.code}", words.duration(seconds), "", note)


def _share(f: Finding, seconds: float, sessions: Sequence[Session]) -> str:
    """Say which share of its session's time a finding held, as its claim does.

    Empty where it did not hold within one session: a server that is down is in none.
    """
    own = next((s for s in sessions if s.id == f.session), None)
    if own is None or own.start is None or own.end is None or own.end <= own.start:
        return ""
    if not all(e.start and e.end and own.start <= e.start <= e.end <= own.end for e in f.episodes):
        return ""
    part = seconds / (own.end - own.start).total_seconds()
    whole = f"session {own.id}" if len(sessions) > 1 else "the log"
    return f"{_percent(part) if part >= 0.005 else _UNDER} of {whole}, "


_UNDER = "under 1%"


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f}%"


def timeline_caption(report: Report, t: Timeline) -> str:
    """Say what the timeline shows, in its own numbers."""
    said = []
    worst = charts.worst(report)
    usage = charts.stats(report, "kv_usage", worst)
    if usage:
        middle, peak = _level(usage.median, "fraction"), _level(usage.peak, "fraction")
        pool = "usage of the fullest pool" if words.several_pools(report) else "KV usage"
        said.append(f"{pool} was typically {middle}, at most {peak}")
    waits = [
        (_WAITING[c], w) for c in _WAITING if (w := charts.stats(report, c, worst)) and w.peak
    ]
    for words_of, wait in waits:
        middle, peak = _level(wait.median, ""), _level(wait.peak, "")
        said.append(f"typically {middle} requests {words_of}, at most {peak}")
    if not waits and charts.stats(report, "queue_req", worst):
        said.append("no request waited")
    if worst and said:
        said[0] = f"on {charts.rank_name(report, worst)}, {said[0]}"
    flat = [p.title.lower() for p in t.flat if p.id != "waiting"]
    if flat:
        said.append(f"always 0 and not drawn: {', '.join(flat)}")
    text = "; ".join(said) or "what the log prints over time"
    return f"{text[0].upper()}{text[1:]}."


_FIT_UNKNOWN = "How many requests would fit is not known from this log."


def phase_caption(report: Report, p: Phase) -> str:
    """Say whether the cloud of the phase plot reaches the ceiling."""
    if p.at_ceiling is None:
        return f"{f'{p.rank} alone. ' if p.rank else ''}{_FIT_UNKNOWN}"
    where = f"{p.rank} alone: " if p.rank else ""
    if p.at_ceiling < 0.005:
        said = f"{where}80% of what fits the KV pool never ran at once"
    else:
        said = (
            f"{where}for {_percent(p.at_ceiling)} of the time, at least 80% of what fits "
            "the KV pool was running"
        )
    said = said if where else said[0].upper() + said[1:]
    if report.verdict.primary == "KV001" and p.at_ceiling >= 0.5:
        return f"{said}: with requests of this length the pool is the ceiling."
    return f"{said}."


def timeline_rows(t: Timeline, slots: int = 24) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the timeline as numbers.

    A panel has one column, or one for each quantity that its colours tell apart: a mean over
    two pools would be that of none.

    Returns:
        Heads of the columns, and rows (from, one cell a column), empty where nothing was logged.
    """
    width = (t.x1 - t.x0) / slots
    columns = [(p, label) for p in t.panels for label, _ in t.keys(p.id) or [("", 0)]]
    cells: list[list[list[tuple[float, float]]]] = [[[] for _ in columns] for _ in range(slots)]
    at = {(p.id, label): i for i, (p, label) in enumerate(columns)}
    for c in t.curves:
        if c.kind == "value":
            column = at.get((c.panel, c.label), at.get((c.panel, "")))
            assert column is not None
            for x, mean, high in zip(c.x, c.mean, c.high, strict=True):
                slot = min(int((x - t.x0) / width), slots - 1)
                cells[slot][column].append((mean, high))
    rows = []
    for k, row in enumerate(cells):
        said = [_cell(values, p.unit) for values, (p, _) in zip(row, columns, strict=True)]
        if any(said):
            rows.append((_when(t.x0 + k * width, t.by_time), said))
    return [_head(p, label) for p, label in columns], rows


def _head(panel: Panel, label: str) -> str:
    unit = f", {panel.unit}" if panel.unit not in ("", "fraction") else ""
    return f"{panel.title}{f': {label}' if label else ''}{unit}"


def _cell(values: Sequence[tuple[float, float]], unit: str) -> str:
    if not values:
        return ""
    mean = sum(v[0] for v in values) / len(values)
    return f"{_level(mean, unit)} (max {_level(max(v[1] for v in values), unit)})"


def _when(x: float, by_time: bool) -> str:
    return words.moment(charts.time_of(x)) if by_time else f"line {x:,.0f}"


def checks(checked: Sequence[Check]) -> dict[str, list[tuple[list[Check], list[int]]]]:
    """Group checks by status; the same answer in several sessions is one row.

    Of those that could not be made, several with the same reason are one row too.

    Returns:
        clear, not_applicable and error -> (checks, ids of their sessions).
    """
    out: dict[str, dict[tuple[str, str], tuple[list[Check], list[int]]]] = {
        "clear": {},
        "not_applicable": {},
        "error": {},
    }
    for check in checked:
        if check.status in out:
            key = check.code if check.status == "clear" else ""
            row, seen = out[check.status].setdefault((key, check.reason), ([], []))
            if check.code not in [one.code for one in row]:
                row.append(check)
            if check.session is not None and check.session not in seen:
                seen.append(check.session)
    return {status: list(rows.values()) for status, rows in out.items()}


def capacity_rows(s: Session) -> Iterator[Row]:
    """Yield what a session's server could hold, each with its formula and line."""
    c, config = s.capacity, s.config
    pool_line = words.place(s.source, c.kv_tokens_line)
    size_line = words.place(s.source, config.kv_pool_line)
    start_line = words.place(s.source, config.capacity_line)
    span = ""
    if c.lines:
        first, last = c.line_sources or (s.source, s.source)
        other = last if last != first else None
        span = words.place_of(Episode(None, None, *c.lines, None, first, other))
    each = words.number(round(c.tokens_per_req, 1)) if c.tokens_per_req is not None else ""
    if c.kv_tokens is not None:
        inferred = "worked out: median of #token / token usage"
        origin = "printed at start-up" if c.kv_tokens_source == "log" else inferred
        yield Row("KV pool", f"{c.kv_tokens:,} tokens a rank", origin, pool_line)
    if c.pool_gib is not None:
        dtype = f", {config.kv_pool_dtype}" if config.kv_pool_dtype else ""
        size = f"{c.pool_gib:,.2f} GiB a rank"
        yield Row("KV pool size", size, f"printed at start-up{dtype}", size_line)
    if c.bytes_per_token is not None:
        value = f"{round(c.bytes_per_token):,} bytes a rank"
        yield Row("KV bytes per token", value, "pool size / pool tokens", "")
    if each:
        formula = "sum of #token / sum of #running-req over the decode lines after warm-up"
        yield Row("KV tokens held per running request", f"{each} tokens", formula, span)
    if c.requests_fit is not None:
        taken = f"{each or '?'} tokens"
        if c.reserved_per_req:
            taken = f"({taken} + {c.reserved_per_req:,} kept free for each request)"
        formula = f"{words.number(c.kv_tokens)} tokens / {taken}, rounded down"
        yield Row("requests that fit", f"{c.requests_fit:,}", formula, "")
    if c.rate_per_req is not None:
        formula = "sum of gen throughput / sum of #running-req over the same lines"
        rate = words.number(c.rate_per_req, "token/s")
        yield Row("decode rate per request", rate, formula, span)
    if c.max_running_req is not None:
        cap = f"{c.max_running_req:,} requests"
        yield Row("running cap", cap, "max_running_requests", start_line)
    if config.available_gpu_mem_gib is not None:
        free = f"{config.available_gpu_mem_gib:,.2f} GiB"
        yield Row("GPU memory left free", free, "available_gpu_mem after start-up", start_line)
    for name, amount, unit in (
        ("sliding-window pool", config.swa_pool_tokens, "tokens"),
        ("Mamba state slots", config.mamba_slots, "slots"),
        ("host pool (hierarchical cache)", config.host_pool_tokens, "tokens"),
        ("host pool size", config.host_pool_gb, "GB (1e9 bytes) a rank"),
        ("context length", config.context_len, "tokens"),
    ):
        if amount is not None:
            yield Row(name, words.number(amount, unit), "printed at start-up", "")
    m = c.step_model
    if m:
        parts = (
            f"{1e3 * m.t0_s:.3g} ms",
            f"{1e3 * m.a_s:.3g} ms × running",
            f"{1e6 * m.b_s:.3g} µs × tokens",
        )
        fit = f"fitted to {words.plural(m.n_lines, 'line')}; usual error {m.residual_sd:.1%}"
        unsure = f"cannot be told: {m.note or 'load and lengths hardly changed'}"
        yield Row(
            "time of a decode step", " + ".join(parts), fit if m.identified else unsure, span
        )


def lever_rows(now: Lever, levers: Sequence[Lever]) -> list[LeverRow]:
    """Return what could be changed, the present state first."""
    return [_lever(now), *(_lever(x) for x in levers)]


def _lever(x: Lever) -> LeverRow:
    tokens = f"{x.kv_tokens:,}" if x.kv_tokens is not None else ""
    if x.host_tokens is not None:
        tokens = f"{tokens} and {x.host_tokens:,} in host memory".removeprefix(" and ")
    fit = ""
    if x.concurrency is not None:  # whole requests, as in the capacity table
        fit = f"{math.floor(x.concurrency):,}"
        if x.more_decodes is not None:
            before = math.floor(x.concurrency - x.more_decodes + 1e-9)
            fit += f" ({math.floor(x.concurrency) - before:+,})"
    said = [_range(x.gain, "×", 2), _range(x.throughput, "", 0, " token/s")]
    if x.eta_s:
        low, high = words.duration(x.eta_s.low), words.duration(x.eta_s.high)
        said.append(f"done in {words.duration(x.eta_s.mid)} ({low} to {high})")
    memory = f"{x.memory_left_gib:.1f} GiB" if x.memory_left_gib is not None else ""
    note = words.sentence(x.note, x.risk)
    throughput = "; ".join(p for p in said if p)
    return LeverRow(x.name, x.flag, tokens, fit, throughput, memory, note, tuple(x.formula))


def _range(e: Estimate | None, sign: str, digits: int, unit: str = "") -> str:
    if e is None:
        return ""
    low, mid, high = (f"{v:,.{digits}f}" for v in (e.low, e.mid, e.high))
    return f"{sign}{mid}{unit} ({low} to {high})" if low != high else f"{sign}{mid}{unit}"


def arguments(report: Report) -> list[Arguments]:
    """Return the server arguments: of the first session in full, then what changed."""
    proposed = {
        a.flag.lstrip("-").replace("-", "_"): f.code
        for f in reversed(report.findings)
        for a in f.actions
        if a.flag and a.proposed is not None
    }
    out: list[Arguments] = []
    before: Mapping[str, object] = {}
    for s in report.sessions:
        args = s.config.args
        if not args:
            continue
        if out and args == before:
            out[-1].sessions.append(s.id)
            continue
        names = [n for n in {**before, **args} if not out or args.get(n) != before.get(n)]
        rows = [_argument(n, s, proposed) for n in names]
        first = sorted(
            (r for r in rows if r.name in FIRST_ARGS), key=lambda r: FIRST_ARGS.index(r.name)
        )
        others = [r for r in rows if r.name not in FIRST_ARGS]
        marked = [r for r in others if r.mark]
        rest = [r for r in others if not r.mark]
        line = words.place(s.source, s.config.args_line)
        known = {*s.config.defaults, *s.config.computed, *s.config.args_removed, *_REQUIRED}
        unknown = len([n for n in names if n not in known and not n.startswith("_")])
        out.append(Arguments([s.id], line, bool(out), [*first, *marked], rest, unknown))
        before = args
    return out


def _argument(name: str, s: Session, proposed: Mapping[str, str]) -> Argument:
    config = s.config
    value = words.plain(config.args[name]) if name in config.args else "(not printed)"
    marks = []
    if name in config.args_removed:
        marks.append("value removed")
    elif name in config.defaults and config.args.get(name) != config.defaults[name]:
        marks.append(f"default {words.plain(config.defaults[name])}")
    if name in proposed:
        marks.append(f"{proposed[name]} proposes another value")
    computed = name in config.computed and config.args.get(name) is not None
    note = "computed by SGLang unless set" if computed else ""
    return Argument(name, value, "; ".join(marks), note)


def events(report: Report) -> list[Event]:
    """Return event counts over all sessions, those that happened first.

    Where the server logged its requests, no refused one and no failed one are counts too.
    """
    out: dict[str, Event] = {}
    for e in report.events:
        row = out.setdefault(e.kind, Event(words.EVENTS.get(e.kind, e.kind.replace("_", " "))))
        row.n += e.count
        row.requests += e.total or 0
        if e.count:
            row.first = row.first or (words.moment(e.start), words.place(e.source, e.first_line))
            row.last = (words.moment(e.end), words.place(e.source, e.last_line))
    for kind in ("http_4xx", "http_5xx") if report.coverage.by_kind.get("access") else ():
        out.setdefault(kind, Event(words.EVENTS[kind]))
    return sorted(out.values(), key=lambda row: not row.n)
