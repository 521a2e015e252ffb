"""What is known of one server's capacity, from its log, its model's config and the caller.

What the caller gives wins over what the log prints, which wins over what is worked out; every
value says where it comes from, and what disagrees is said in `notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from loganalyze import derive, fatal, timeline
from loganalyze.capacity import kv_bytes, memory, predict
from loganalyze.capacity.kv_bytes import Config, Layout, Setting
from loganalyze.capacity.memory import Memory
from loganalyze.errors import UsageError
from loganalyze.model import KvCell, Session, SessionData

#: The first release known to count draft layers in the pool's budget (0.5.13 does not).
DRAFT_COUNTED_FROM = (0, 5, 15)

#: So far below a fraction that crashed the next one stays.
BELOW_CRASH = 0.02

#: A log is untrusted: no size that a server has is larger.
_LARGEST = 1 << 20

_DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}

#: A pool printed N tokens; #token / usage must give it back within this.
_USAGE_AGREES = 0.02


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller says about the server; None leaves it to the log, else to the default.

    Attributes:
        config: the model's config.json.
        gpu_mem_gib: memory of one GPU; `weights_gib` what the weights take of it.
        mem_fraction, tp, pp, dcp, dp_attention, kv_dtype, page_size, ssm_dtype: as the server
            arguments of these names; `kv_layout`, `draft_layers`: see `kv_bytes.Setting`.
        tokens_per_req: KV tokens that one running request holds.
    """

    config: Config | None = None
    gpu_mem_gib: float | None = None
    weights_gib: float | None = None
    mem_fraction: float | None = None
    tp: int | None = None
    pp: int | None = None
    dcp: int | None = None
    dp_attention: int | None = None
    kv_dtype: str | None = None
    kv_layout: Layout | None = None
    draft_layers: int | None = None
    page_size: int | None = None
    ssm_dtype: str | None = None
    tokens_per_req: float | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it is; per rank where nothing else is said.

    Attributes:
        session: of the log; None without one.
        config, setting: of the model, and how it is served now.
        cells: by the config; `cell` the one that holds now, None where that is open.
        memory: bytes per token and memory; see there.
        tokens: of the pool.
        ranks: DP ranks, each with such a pool; `host_gpus`: GPUs of one host.
        free_gib: free GPU memory after start-up.
        latent: whether attention ranks keep copies of the same KV; None if not known.
        sixteen_bit: whether the pool has 16-bit elements; None if not known.
        pool_share: of additional memory, what goes to KV (the rest to Mamba states).
        cap: running cap; `cap_ranks`: ranks that share what --max-running-requests is given.
        load: what the settled lines say; None without such lines.
        leak: whether tokens are in use that no request holds: then the lines do not tell what
            a request holds.
        reserve: tokens that are kept free for each request beside what it holds.
        hicache: whether the hierarchical cache is on.
        crashed: (session, fraction) of starts of the same server that ended in a crash with
            a higher fraction than this one.
        died_of_memory: (session, fraction) of all starts that ran out of GPU memory, this one
            among them.
    """

    session: Session | None
    config: Config | None
    setting: Setting
    cells: tuple[KvCell, ...]
    cell: KvCell | None
    memory: Memory
    fraction: float | None
    page: int
    tokens: int | None
    ranks: int
    host_gpus: int
    free_gib: float | None
    latent: bool | None
    sixteen_bit: bool | None
    pool_share: float
    cap: int | None
    cap_ranks: int
    tokens_per_req: float | None
    tokens_per_req_from: str
    load: predict.Load | None
    notes: tuple[str, ...]
    hicache: bool = False
    crashed: tuple[tuple[int, float], ...] = ()
    died_of_memory: tuple[tuple[int, float], ...] = ()
    leak: bool = False
    reserve: int = 0

    @property
    def room_per_req(self) -> float | None:
        """Tokens of the pool that one more running request takes, its reserve among them."""
        return self.tokens_per_req + self.reserve if self.tokens_per_req else None

    @property
    def safe_fraction(self) -> float:
        """The highest fraction that leaves more memory than a start that died had; else 1."""
        lowest = min((f for _, f in (*self.crashed, *self.died_of_memory)), default=None)
        return 1.0 if lowest is None else round(lowest - BELOW_CRASH, 4)


def build(
    sessions: Sequence[SessionData],
    chosen: SessionData | None,
    given: Given,
    leak: bool = False,
) -> Server:
    """Collect what is known.

    Args:
        sessions: all sessions of the log; others of the same server help to solve the memory.
        chosen: the one asked about; None for a server that does not exist yet.
        given: what the caller says.
        leak: whether the chosen session is suspected to leak KV tokens.

    Raises:
        InputError: the model config cannot be used.
        UsageError: an impossible setting.
    """
    session = chosen.session if chosen else None
    args = _Args(session)
    setting = _setting(args, session, given)
    measured = session.capacity.bytes_per_token if session else None
    cells: tuple[KvCell, ...] = ()
    if given.config is not None:
        setting, cells = _cells(given.config, setting, measured)
    counted = _draft_counted(session)
    budget = tuple(
        replace(c, bytes_per_token=c.bytes_per_token + (c.draft_bytes_per_token if counted else 0))
        for c in cells
    )
    fraction = given.mem_fraction or args.number("mem_fraction_static")
    if fraction is not None and fraction >= 1:
        fraction = None
    starts = _starts(sessions, session, fraction)
    known = memory.solve(starts, budget, given.gpu_mem_gib)
    cell = memory.settle(cells, measured)[0] if cells else None
    tokens = session.capacity.kv_tokens if session else None
    if tokens is None and session is None:
        known, tokens = _from_nothing(given, cells, fraction, args.whole("page_size", 1))
    load = predict.load(chosen) if chosen else None
    per_req, per_req_from = _tokens_per_req(None if leak else session, given)
    ranks = setting.dp_attention if session is None else _ranks(args, load, setting)
    server = Server(
        session=session,
        config=given.config,
        setting=setting,
        cells=cells,
        cell=cell,
        memory=known,
        fraction=fraction,
        page=given.page_size or args.whole("page_size", 1),
        tokens=tokens,
        ranks=ranks,
        host_gpus=max(1, setting.tp * setting.pp // args.whole("nnodes", 1)),
        free_gib=session.config.available_gpu_mem_gib if session else None,
        latent=_latent(chosen, cells),
        sixteen_bit=_sixteen_bit(setting, cell),
        pool_share=_pool_share(args, cells),
        cap=session.config.max_running_req if session else None,
        cap_ranks=sharing_ranks(chosen) if chosen else setting.dp_attention,
        tokens_per_req=per_req,
        tokens_per_req_from=per_req_from,
        load=load,
        notes=known.notes,
        hicache=args.on("enable_hierarchical_cache"),
        crashed=_crashed(sessions, starts, fraction),
        died_of_memory=_died_of_memory(sessions),
        leak=leak,
        reserve=memory.decode_reserve(session) if session else 0,
    )
    return replace(server, notes=(*server.notes, *_checks(server, chosen, args)))


def sharing_ranks(data: SessionData) -> int:
    """Return how many DP ranks share what is given for the whole server; 1 if none do.

    Ranks of DP attention share it, replicas of plain data parallelism do not. Without printed
    arguments the rank words tell them apart: attention ranks have TP ranks of their own.

    Source:
        ServerArgs: chunked_prefill_size // dp_size; ModelRunner: max_running_requests // dp_size.
    """
    args = data.session.config.args
    if args:
        size = args.get("dp_size")
        attention = args.get("enable_dp_attention") is True
        return size if attention and isinstance(size, int) and size > 0 else 1
    last, own_tp = (
        data.batch.filter(pl.col("dp_rank") > 0)
        .select_seq(pl.col("dp_rank").max(), (pl.col("tp_rank").fill_null(0) > 0).all())
        .row(0)
    )
    return int(last) + 1 if last and own_tp else 1


class _Args:
    """The printed server arguments, read by type."""

    def __init__(self, session: Session | None) -> None:
        self._args = session.config.args if session else {}

    def number(self, name: str) -> float | None:
        """Return a positive number; None where it is not printed or none."""
        value = self._args.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 < value < _LARGEST else None

    def whole(self, name: str, default: int) -> int:
        """Return a positive whole number, or the default."""
        value = self._args.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        usable = whole and 0 < value < _LARGEST  # type: ignore[operator]
        return value if usable else default  # type: ignore[return-value]

    def text(self, name: str) -> str | None:
        """Return a text that is not empty."""
        value = self._args.get(name)
        return value if isinstance(value, str) and value else None

    def on(self, name: str) -> bool:
        """Whether a flag is printed as set."""
        return self._args.get(name) is True


def _setting(args: _Args, session: Session | None, given: Given) -> Setting:
    dp = args.whole("dp_size", 1) if args.on("enable_dp_attention") else 1
    printed = session.config.kv_pool_dtype if session else None
    dtype = _DTYPES.get((printed or "").removeprefix("torch."))
    asked = args.text("kv_cache_dtype")
    if asked not in kv_bytes.ELEMENT:
        asked = None
    return Setting(
        tp=given.tp or args.whole("tp_size", 1),
        pp=given.pp or args.whole("pp_size", 1),
        dcp=given.dcp or args.whole("dcp_size", 1),
        dp_attention=given.dp_attention or dp,
        kv_dtype=given.kv_dtype or dtype or asked or "auto",
        kv_layout=given.kv_layout or _layout(args),
        draft_layers=_draft_layers(args, given),
        swa_ratio=args.number("swa_full_tokens_ratio") or 0.8,
        swa_memory=not args.on("disable_hybrid_swa_memory"),
        ssm_dtype=given.ssm_dtype or args.text("mamba_ssm_dtype"),
    )


def _layout(args: _Args) -> Layout | None:
    """Return the fp8 layout that the printed sparse-attention backends use.

    Source:
        SGLang 0.5.9 `calculate_mla_kv_cache_dim` (nsa_*), 0.5.23 (dsa_*).
    """
    backends = {
        args.text(f"{kind}_{phase}_backend")
        for kind in ("nsa", "dsa")
        for phase in ("prefill", "decode")
    } - {None}
    if not backends:
        return None
    return "trtllm" if "trtllm" in backends else "flashmla"


def _draft_layers(args: _Args, given: Given) -> int:
    """Return the layers of the draft model: given, else the model's own draft head if used."""
    if given.draft_layers is not None:
        return given.draft_layers
    algorithm = (args.text("speculative_algorithm") or "").upper()
    own = args.text("speculative_draft_model_path") in (None, args.text("model_path"))
    if algorithm in ("EAGLE", "NEXTN") and own and given.config is not None:
        return kv_bytes.draft_layers(given.config)
    return 0


def _draft_counted(session: Session | None) -> bool:
    """Whether the release takes the draft's layers out of the pool's budget."""
    low = session.release_range[0] if session and session.release_range else None
    if low is None:
        return session is None
    digits = tuple(int(part) for part in low.split(".")[:3] if part.isdigit())
    return digits >= DRAFT_COUNTED_FROM


def _cells(
    config: Config, setting: Setting, measured: float | None
) -> tuple[Setting, tuple[KvCell, ...]]:
    """Return the cells of a config, and the setting with the KV dtype that the log confirms.

    Where `auto` may mean 8 or 16 bits, the log's size line decides.
    """
    if setting.kv_dtype != "auto" or measured is None:
        if setting.kv_dtype == "auto" and kv_bytes.asks_for_fp8(config):
            raise UsageError(
                "the model's config asks for an 8-bit KV cache; whether auto follows it "
                "depends on the release",
                hint="give --kv-dtype fp8_e4m3 or bfloat16",
            )
        return setting, kv_bytes.cells(config, setting)
    found = []
    for dtype in ("bfloat16", "fp8_e4m3"):
        one = replace(setting, kv_dtype=dtype)
        found += [(one, cell) for cell in kv_bytes.cells(config, one)]
    near = min(found, key=lambda item: abs(item[1].pool_bytes_per_token / measured - 1))
    return near[0], kv_bytes.cells(config, near[0])


def _starts(
    sessions: Sequence[SessionData], session: Session | None, fraction: float | None
) -> list[memory.Start]:
    """Return the starts of the same server, the chosen one last."""
    if session is None:
        return []
    alike = memory.alike([data.session for data in sessions], session)
    others = [memory.start(other) for other in alike if other.id != session.id]
    return [*others, replace(memory.start(session), fraction=fraction)]


def _crashed(
    sessions: Sequence[SessionData], starts: Sequence[memory.Start], fraction: float | None
) -> tuple[tuple[int, float], ...]:
    """Return the starts of the same server that crashed with a higher fraction."""
    ended = {data.session.id: data.session.ended_by for data in sessions}
    return tuple(
        (one.session, one.fraction)
        for one in starts
        if one.fraction is not None
        and fraction is not None
        and one.fraction > fraction
        and ended[one.session] == "crash"
    )


def _died_of_memory(sessions: Sequence[SessionData]) -> tuple[tuple[int, float], ...]:
    """Return (session, fraction) of the starts that ended out of GPU memory."""
    out = []
    for data in sessions:
        fraction = _Args(data.session).number("mem_fraction_static")
        if fraction is None or data.session.ended_by != "crash":
            continue
        events = data.event.filter(pl.col("kind").is_in([*fatal.DEADLY, *fatal.ERRORS]))
        if any(fatal.cause(row) in fatal.GPU_MEMORY for row in events.iter_rows(named=True)):
            out.append((data.session.id, fraction))
    return tuple(out)


def _from_nothing(
    given: Given, cells: Sequence[KvCell], fraction: float | None, page: int
) -> tuple[Memory, int | None]:
    """Return memory and pool of a server that has no log."""
    if not cells:
        return Memory(total_gib=given.gpu_mem_gib), None
    # Where the layout is open, the larger cell: fewer tokens are promised than there may be.
    cell = max(cells, key=lambda one: one.bytes_per_token)
    per_token = cell.bytes_per_token + cell.draft_bytes_per_token
    total, weights = given.gpu_mem_gib, given.weights_gib
    notes = [] if len(cells) == 1 else [memory.settle(cells, None)[1]]
    per_fraction = total * memory.GIB / per_token if total else None
    known = Memory(
        bytes_per_token=per_token if len(cells) == 1 else None,
        bytes_from=f"model config: {cell.formula}" if len(cells) == 1 else "",
        total_gib=total,
        total_from="as given" if total else "",
        static_gib=weights,
        per_fraction=per_fraction,
        notes=tuple(notes),
    )
    if total is None or weights is None or fraction is None:
        return known, None
    budget = total * fraction - weights
    if cell.kind == "state":
        budget /= 1 + _STATE_RATIO
    return known, memory.tokens_in(budget, per_token, given.page_size or page)


_STATE_RATIO = 0.9


def _pool_share(args: _Args, cells: Sequence[KvCell]) -> float:
    """Return the share of additional memory that becomes KV.

    A model with Mamba states splits memory between both pools at --mamba-full-memory-ratio,
    unless the number of states is fixed.
    """
    if not any(cell.kind == "state" for cell in cells) or args.number("max_mamba_cache_size"):
        return 1.0
    return 1 / (1 + (args.number("mamba_full_memory_ratio") or _STATE_RATIO))


def _tokens_per_req(session: Session | None, given: Given) -> tuple[float | None, str]:
    if given.tokens_per_req is not None:
        return given.tokens_per_req, "as given"
    capacity = session.capacity if session else None
    if capacity is None or capacity.tokens_per_req is None:
        return None, ""
    files = capacity.line_sources or (None, None)
    ends = list(zip(files, capacity.lines, strict=True)) if capacity.lines else []
    lines = f" ({derive.from_to('line', *ends)})" if ends else ""
    return capacity.tokens_per_req, (
        f"sum of #token / sum of #running-req over the decode lines after warm-up{lines}: what a "
        "request holds at a moment. It is not the mean length of finished requests: long ones "
        "are seen more often"
    )


def _ranks(args: _Args, load: predict.Load | None, setting: Setting) -> int:
    printed = args.whole("dp_size", 0)
    return printed or max(load.ranks if load else 1, setting.dp_attention)


def _latent(data: SessionData | None, cells: Sequence[KvCell]) -> bool | None:
    """Whether ranks keep copies of the same KV: by the config, else by the pool's line.

    A pool with one buffer for K and V is that of a latent (MLA), which is never split by
    heads.
    """
    if cells:
        return cells[0].copies > 1
    if data is None:
        return None
    pools = data.startup.filter(pl.col("kind").is_in(["kv_cache_allocated"]))
    if pools["kv_size_gb"].drop_nulls().len():
        return True
    if pools["k_size_gb"].drop_nulls().len():
        return None
    kind = data.session.config.model_type
    return True if kind and kv_bytes.keeps_latent(kind) else None


def _sixteen_bit(setting: Setting, cell: KvCell | None) -> bool | None:
    if setting.kv_dtype != "auto":
        return setting.kv_dtype in ("bf16", "bfloat16", "fp16", "float16")
    return True if cell is not None else None


# -- what can be compared ------------------------------------------------------------------


def _checks(server: Server, data: SessionData | None, args: _Args) -> list[str]:
    """Compare the log's own lines with each other, and say what limits the answers."""
    if data is None or server.session is None:
        return []
    config, capacity = server.session.config, server.session.capacity
    said: list[str] = []
    pool, printed = config.kv_pool_tokens, config.kv_capacity_tokens
    if pool and printed and abs(pool / printed - 1) > memory.AGREE:
        said.append(
            f"line {config.kv_pool_line} allocates {pool:,} tokens, line {config.capacity_line} "
            f"counts {printed:,}: the scheduler uses the latter"
        )
    seen = _from_usage(data)
    if capacity.kv_tokens and capacity.kv_tokens_source == "log" and seen:
        apart = seen / capacity.kv_tokens - 1
        verdict = "agrees with" if abs(apart) <= _USAGE_AGREES else "DISAGREES with"
        said.append(
            f"#token / token usage gives {seen:,.0f} tokens, which {verdict} the printed "
            f"{capacity.kv_tokens:,}"
        )
    said += list(capacity.notes)
    if capacity.step_model and capacity.step_model.note:
        said.append(f"step model: {capacity.step_model.note}")
    if server.tokens and server.load and server.load.running >= 1:
        said.append(_admission(server, data, args))
    return said


def _from_usage(data: SessionData) -> float | None:
    """Return the median of #token / usage where usage is at least 0.3."""
    rows = data.batch.filter(
        (pl.col("phase") == "decode") & ~pl.col("duplicate").fill_null(False)
    ).select_seq(
        token=pl.coalesce("token", "full_token", "gpu_token"),
        usage=pl.coalesce("token_usage", "full_token_usage", "gpu_token_usage"),
    )
    rows = rows.filter((pl.col("usage") >= 0.3) & (pl.col("token") > 0))
    value = rows.select_seq((pl.col("token") / pl.col("usage")).median()).item()
    return float(value) if value is not None else None


def _admission(server: Server, data: SessionData, args: _Args) -> str:
    assert server.tokens is not None
    assert server.load is not None
    running = server.load.running
    if data.session.role == "decode":
        reserve = memory.decode_reserve(data.session)
        usage = 1 - reserve * running / server.tokens
        printed = data.session.config.arg("num_reserved_decode_tokens") == reserve
        source = "as printed" if printed else "SGLang's default, not printed"
        return (
            f"preallocation stops at usage {max(usage, 0):.2f}, or where a prompt does not fit "
            f"below it, with {running:.0f} running requests (num_reserved_decode_tokens "
            f"{reserve}, {source})"
        )
    c = args.number("schedule_conservativeness")
    known = c if c is not None else 1.0
    lines = pl.concat([one.lines.select_seq("new_token", "started") for one in timeline.of(data)])
    prompts = lines.drop_nulls("started")
    new, seqs = prompts["new_token"].sum(), prompts["started"].sum()
    prompt = float(new) / float(seqs) if seqs else 0.0
    usage = memory.admission_usage(server.tokens, running, known, prompt)
    source = "as printed" if c is not None else "SGLang's default, not printed"
    return (
        f"admission stops at usage {max(usage, 0):.2f} or above with {running:.0f} "
        f"running requests (conservativeness {known:g}, {source}; max_new_tokens of 4,096 or "
        "more)"
    )
