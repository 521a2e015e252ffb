"""The words of the program: frozen values, free of input and output.

`Report` is all that a renderer reads; its JSON form (`report/to_json.py`) is the contract
with other programs. Fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from html import escape
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from datetime import datetime

    import polars as pl

SCHEMA_VERSION = 1

Confidence = Literal["high", "medium", "low"]
Status = Literal["healthy", "degraded", "saturated", "undetermined"]
CheckStatus = Literal["fired", "clear", "not_applicable", "error"]
Scalar = str | int | float | bool | None


class Severity(IntEnum):
    """How bad a finding is; `warning` and above make the report a problem."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class LogSource:
    """One input as it was read. `kind` names what it was (file, gzip, stdin, ...)."""

    name: str
    size_bytes: int
    sha256: str
    kind: str
    tz: str | None
    lines: int


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The server's arguments and start-up sizes; every field is None where the log lacks it.

    `args` are the printed server arguments with secrets already removed; `args_removed` names
    those that lost their value. `defaults` holds the release's own value of those printed
    arguments whose default is known; `computed` names those that SGLang fills in itself while
    it starts, so that their value does not say who chose it.
    Sizes count per scheduler (per DP rank), as SGLang prints them.
    """

    args: Mapping[str, object] = field(default_factory=dict)
    args_removed: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    args_line: int | None = None
    kv_capacity_tokens: int | None = None
    capacity_line: int | None = None
    max_running_req: int | None = None
    max_prefill_tokens: int | None = None
    chunked_prefill_size: int | None = None
    context_len: int | None = None
    available_gpu_mem_gib: float | None = None
    kv_pool_tokens: int | None = None
    kv_pool_gib: float | None = None
    kv_pool_line: int | None = None
    kv_pool_dtype: str | None = None
    swa_pool_tokens: int | None = None
    mamba_slots: int | None = None
    host_pool_gb: float | None = None
    host_pool_tokens: int | None = None
    weights_gib: float | None = None
    avail_before_weights_gib: float | None = None
    model_type: str | None = None

    def arg(self, name: str, default: object = None) -> object:
        """Return one server argument, or `default` where the log does not print it."""
        return self.args.get(name, default)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the KV pool holds, measured from the log.

    Attributes:
        kv_tokens: pool size in tokens per DP rank.
        kv_tokens_source: `log` (printed) or `inferred` (median of #token / usage).
        bytes_per_token: per rank, from the printed pool size; None without one.
        tokens_per_req: sum(#token) / sum(#running-req) over settled decode lines.
        reserved_per_req: tokens that a PD decode server keeps free for each request beside
            those; 0 on other servers.
        requests_fit: floor(kv_tokens / (tokens_per_req + reserved_per_req)).
        rate_per_req: decode token/s per running request over the same lines.
        lines: first and last line of the span these were measured on; `line_sources` the logs
            that they are in, which may be two of a rotated set.
        notes: what limits these numbers, in plain words.
        other_pools: whether there are pools beside the full KV one (sliding window, Mamba
            states), so that what fits is what fits that one.
    """

    kv_tokens: int | None = None
    kv_tokens_source: Literal["log", "inferred"] | None = None
    kv_tokens_line: int | None = None
    bytes_per_token: float | None = None
    pool_gib: float | None = None
    tokens_per_req: float | None = None
    requests_fit: int | None = None
    rate_per_req: float | None = None
    max_running_req: int | None = None
    lines: tuple[int, int] | None = None
    line_sources: tuple[str, str] | None = None
    step_model: StepModel | None = None
    notes: tuple[str, ...] = ()
    reserved_per_req: int = 0
    other_pools: bool = False


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a decode step: t0 + a * running + b * tokens, and what prefill adds.

    dt = n * (t0 + a R + b T) + p0 * prefill batches + p1 * new tokens.
    `residual_sd` is the robust standard deviation of log(dt / fitted dt). `b_identified`: the
    lines tell the cost of a KV token; `identified`: that of a running request too. `note` says
    what they do not tell.
    """

    t0_s: float
    a_s: float
    b_s: float
    p0_s: float
    p1_s: float
    n_lines: int
    residual_sd: float
    identified: bool
    b_identified: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """One server process life. `ended_by`: stop, crash or end_of_log.

    `server` is the number of its server, from 1: several may write side by side into one log.
    """

    id: int
    source: str
    start: datetime | None
    end: datetime | None
    first_line: int
    last_line: int
    ended_by: Literal["stop", "crash", "end_of_log"]
    role: Literal["unified", "prefill", "decode"]
    release_range: tuple[str, str] | None
    config: ServerConfig
    capacity: Capacity = Capacity()
    server: int = 1


@dataclass(frozen=True, slots=True)
class SessionData:
    """What a rule sees: one session and its frames.

    `batch` has every row of the session in (source, line_no) order with derived columns;
    rows of other TP, PP or CP ranks are marked `duplicate`. `event`, `startup` and
    `request` follow their schemas. `timelines` are read through `timeline.of`: the rows that
    they were built from, and what was built; None: nothing yet. `copies` is how often each line
    stands in the log: all but one of them are `duplicate`.
    """

    session: Session
    batch: pl.DataFrame
    event: pl.DataFrame
    startup: pl.DataFrame
    request: pl.DataFrame
    timelines: tuple[pl.DataFrame, Sequence[Any]] | None = None
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of time in which a condition held. Times are null where no stamp was printed.

    `last_source` is the log of `last_line` where that is another one than `source`, as in a
    rotated set. None ends before it starts: a stamp of whole seconds may be earlier than one
    with milliseconds on a line above it, and such an episode is a moment.
    """

    start: datetime | None
    end: datetime | None
    first_line: int
    last_line: int
    rank: str | None = None
    source: str | None = None
    last_source: str | None = None

    def __post_init__(self) -> None:
        """Keep the end from lying before the start."""
        if self.start and self.end and self.end < self.start:
            object.__setattr__(self, "end", self.start)

    @property
    def duration_s(self) -> float:
        """Seconds from start to end; 0 where the log has no stamps."""
        return (self.end - self.start).total_seconds() if self.start and self.end else 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number with its origin. `quote` is filled from the log by the pipeline."""

    label: str
    value: Scalar
    unit: str = ""
    source: str | None = None
    line_no: int | None = None
    quote: str | None = None
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `present` and `proposed` are values of `flag` where there is one."""

    text: str
    flag: str | None = None
    present: Scalar = None
    proposed: Scalar = None
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found. The engine fills code, name, session, limits and `why`.

    `why` says how this makes a server slow: the rule's own text. `explained_by` is the code
    of the finding of the same session that this one follows from.
    """

    summary: str
    episodes: Sequence[Episode]
    evidence: Sequence[Evidence] = ()
    actions: Sequence[Action] = ()
    severity: Severity = Severity.WARNING
    confidence: Confidence = "medium"
    competing: str = ""
    code: str = ""
    name: str = ""
    session: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)
    explained_by: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What became of a rule over the whole log, and why."""

    code: str
    status: CheckStatus
    reason: str
    session: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A line that looked like an SGLang statistics line and could not be read."""

    source: str
    line_no: int
    text: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the log was understood. What is in no count is other text."""

    lines_total: int = 0
    lines_batch: int = 0
    lines_known: int = 0
    lines_unrecognised: int = 0
    lines_partial: int = 0
    by_kind: Mapping[str, int] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """One value over the buckets of a series: lists of equal length, None where no line fell."""

    min: Sequence[float | None]
    mean: Sequence[float | None]
    max: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """The reduced timeline of one rank of one session, at most 1,500 buckets.

    Attributes:
        session: session id.
        rank: rank text as printed (`DP1 TP0`), None where there is none.
        start: time of the first bucket's left edge; None where the log has no stamps.
        step: bucket width, in seconds; in lines where the log has no stamps.
        x: left edge of each bucket, in steps of `step` from `start`.
        first_line: first line that fell into each bucket.
        columns: name -> band. Names are batch columns.
        gaps: (start, end) of stretches in which the log was silent for longer than a server
            at work is. Nothing is drawn across them.
    """

    session: int
    rank: str | None
    source: str
    start: datetime | None
    step: float
    x: Sequence[int]
    first_line: Sequence[int]
    columns: Mapping[str, Band]
    gaps: Sequence[tuple[datetime, datetime]] = ()


@dataclass(frozen=True, slots=True)
class EventCount:
    """How often one kind of event was logged in a session; zero is a statement.

    Attributes:
        kind: an event kind (`retract`, `kv_oom`, ...) or `http_4xx`, `http_5xx`.
        count: events; one that several ranks printed counts once.
        first_line, last_line, start, end: the first and the last of them.
        times: when they happened: all of them, or an even choice of at most 200.
        total: requests these events touched, where they say it (retractions).
    """

    kind: str
    count: int
    session: int | None = None
    source: str | None = None
    first_line: int | None = None
    last_line: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    times: Sequence[datetime] = ()
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer: one word, one sentence, the cause's code.

    `cost` is that part of the headline which says what the cause cost; empty where nobody
    waited for it, or where the log cannot tell.
    """

    status: Status
    primary: str | None
    headline: str
    confidence: Confidence
    cost: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An input that was named and could not be analysed, with the reason and the next step."""

    name: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Everything a reader is told.

    `redacted` counts what was removed, kind -> how often; `redacts` is False where nothing was
    to be removed (`--no-redact`), so that the report may hold keys, hosts and user names.
    """

    tool_version: str
    sources: Sequence[LogSource]
    verdict: Verdict
    sessions: Sequence[Session]
    findings: Sequence[Finding]
    checked: Sequence[Check]
    coverage: Coverage
    series: Sequence[Series]
    unreadable: Sequence[Unreadable] = ()
    command: str = ""
    events: Sequence[EventCount] = ()
    redacted: Mapping[str, int] = field(default_factory=dict)
    redacts: bool = True
    schema_version: int = SCHEMA_VERSION
    plan: Plan | None = None

    @property
    def is_problem(self) -> bool:
        """Whether any finding is a warning or worse."""
        return any(f.severity >= Severity.WARNING for f in self.findings)

    @property
    def cause(self) -> Finding | None:
        """The finding that the verdict rests on; the first, where several sessions have it."""
        return next((f for f in self.findings if f.code == self.verdict.primary), None)

    def __repr__(self) -> str:
        """Say what it is in one line: in full, a report fills a page."""
        n = len(self.findings)
        parts = [str(self.verdict.status), *filter(None, [self.verdict.primary])]
        parts.append(f"{n} finding{'s' * (n != 1)}")
        names = [source.name for source in self.sources]
        logs = names[0] if len(names) == 1 else f"{len(names)} logs"
        return f"<Report: {', '.join(parts)}, of {logs}>"

    def _repr_html_(self) -> str:
        """Show verdict and findings where a notebook ends in a report."""
        cells = "".join(
            f"<tr><td>{f.code}</td><td>{f.severity}</td><td>{escape(f.summary)}</td></tr>"
            for f in self.findings
        )
        head = f"<b>{self.verdict.status}</b>: {escape(self.verdict.headline)}"
        return f"<p>{head}</p><table>{cells}</table>" if cells else f"<p>{head}</p>"


@dataclass(frozen=True, slots=True)
class KvCell:
    """What one token of the pool takes on one rank (of the fullest pipeline stage).

    Attributes:
        kind: gqa, mla, dsa, swa or state.
        bytes_per_token: of memory, for each token of `max_total_num_tokens`. With a
            sliding-window pool its share is in it; draft layers are not.
        pool_bytes_per_token: what `KV size / #tokens` of the (full-attention) pool shows.
        draft_bytes_per_token: what the draft layers add.
        copies: on how many ranks of an attention group the same bytes lie.
        formula: the arithmetic, to be checked by hand.
        assumes: what the config does not say, and this cell takes for granted.
        swa_bytes_per_token: of one token of the sliding-window pool; `swa_ratio` of its size
            to the full pool's, `window` in tokens.
        state_bytes: of one state slot; `state_formula` its arithmetic.
    """

    kind: Literal["gqa", "mla", "dsa", "swa", "state"]
    bytes_per_token: float
    pool_bytes_per_token: float
    draft_bytes_per_token: float
    copies: float
    formula: str
    assumes: str = ""
    swa_bytes_per_token: float = 0.0
    swa_ratio: float = 0.0
    window: int | None = None
    state_bytes: int = 0
    state_formula: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction: the middle, and the range that should hold the truth nine times in ten."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that could be changed, and what it would do.

    Attributes:
        name: in words, such as `KV cache in fp8`.
        flag: exactly what to put on the command line; empty where no flag does it, or the
            log's release has none.
        kv_tokens: tokens that running requests can hold afterwards, over all ranks.
        host_tokens: tokens of one rank's host memory; no running request can use them.
        concurrency: requests that fit at the same time; None where tokens per request is not
            known.
        more_decodes: requests that fit in addition to now.
        gain: throughput afterwards / now; `throughput` in token/s, over all ranks.
        eta_s: seconds until the remaining work is done.
        memory_left_gib: free GPU memory after the change.
        reaches_target: whether the wanted concurrency fits; None where none was given.
        risk, note: in plain words.
        formula: the arithmetic, line by line.
    """

    name: str
    flag: str = ""
    present: Scalar = None
    proposed: Scalar = None
    kv_tokens: int | None = None
    host_tokens: int | None = None
    concurrency: float | None = None
    more_decodes: float | None = None
    gain: Estimate | None = None
    throughput: Estimate | None = None
    eta_s: Estimate | None = None
    memory_left_gib: float | None = None
    reaches_target: bool | None = None
    risk: str = ""
    note: str = ""
    formula: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What would help, and by how much, in order of effect.

    Attributes:
        session: the session it was made for; None for a plan without a log.
        now: the present state, in the form of a lever that changes nothing.
        levers: what can be changed, best first.
        limit: what keeps throughput where it is, in plain words.
        tokens_per_req: KV tokens held by one running request, and `tokens_per_req_from`.
        bytes_per_token: memory of one KV token on one rank, and `bytes_from`.
        total_gib, static_gib: memory of one rank before the weights; weights and the rest.
        target_concurrency, target_tokens: what was asked for, and the tokens it needs.
        cells: bytes per token by the model's config; several where it leaves a choice open;
            empty without a config.
        notes: what was compared, what disagrees, and what could not be told.
    """

    session: int | None
    now: Lever
    levers: Sequence[Lever]
    limit: str = ""
    tokens_per_req: float | None = None
    tokens_per_req_from: str = ""
    bytes_per_token: float | None = None
    bytes_from: str = ""
    total_gib: float | None = None
    static_gib: float | None = None
    target_concurrency: int | None = None
    target_tokens: int | None = None
    cells: Sequence[KvCell] = ()
    notes: Sequence[str] = ()


# -- before and after ---------------------------------------------------------------------

ChangeVerdict = Literal["better", "worse", "no difference shown", "not comparable", "differs"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the range that holds the truth 95 times in 100."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a session. Times are None where the log has no stamps."""

    start: datetime | None
    end: datetime | None
    first_line: int
    last_line: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs that are compared.

    Attributes:
        name: as given on the command line, with `#N` where one session of a log was named.
        report: the report of that session alone.
        settled: the stretches that are compared; `settled_s` their length together.
        left_out: seconds left out, by reason: warm-up, drain, idle, silence.
        levels: means over the settled time, by measure; None where the log lacks it.
        notes: what a reader must know about this side.
    """

    name: str
    report: Report
    settled: Sequence[Stretch]
    settled_s: float
    left_out: Mapping[str, float]
    levels: Mapping[str, float | None]
    notes: Sequence[str] = ()

    @property
    def session(self) -> Session:
        """The session."""
        return self.report.sessions[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """A server argument that differs.

    `incidental` is true for those that do not touch speed or memory (ports, names, seeds).
    Lines are those of `server_args=` in each log.
    """

    name: str
    before: object
    after: object
    before_line: int | None
    after_line: int | None
    incidental: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the server, on both sides; `ratio` is after / before, None where unknown."""

    name: str
    unit: str
    before: float | None
    after: float | None
    ratio: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a change did to one measure.

    Attributes:
        name: throughput, rate_per_req, running, usage, waiting, retractions, hit_rate or
            saturated.
        label: in words, with what was held equal.
        before, after: the measure on both sides, over what was compared.
        kind: whether `effect` is after / before (`ratio`) or after - before (`difference`).
        effect: None where the sides cannot be compared.
        verdict: better and worse are said only where the interval excludes "no change".
        reason: why not comparable, or on what the verdict rests.
    """

    name: str
    label: str
    unit: str
    before: float | None
    after: float | None
    kind: Literal["ratio", "difference"]
    effect: Interval | None
    verdict: ChangeVerdict
    reason: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One run against the first.

    Attributes:
        settings_known: whether both logs print their server arguments.
        load: the load on both sides (requests in the system, arrivals, lengths), with the
            ratio after / before; it is a condition, not a result, so its verdict is only
            `no difference shown`, `differs` or `not comparable` (not known).
        differences: what changed, throughput first.
    """

    after: Side
    settings: Sequence[Setting]
    settings_known: bool
    sizes: Sequence[Size]
    load: Sequence[Difference]
    differences: Sequence[Difference]
    headline: str
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run and what became of it: everything that the forms of `compare` read."""

    tool_version: str
    before: Side
    pairs: Sequence[Pair]
    command: str = ""
    unreadable: Sequence[Unreadable] = ()
    schema_version: int = SCHEMA_VERSION
