"""Reports written by hand, one per situation that a page has to survive.

The numbers of `founding` are those of the project's founding case; the rest is invented
and only has to be plausible. Nothing here comes from the analyser.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from loganalyze.model import (
    Action,
    Band,
    Capacity,
    Check,
    Coverage,
    Episode,
    Estimate,
    EventCount,
    Evidence,
    Finding,
    Lever,
    LogSource,
    Plan,
    Report,
    Sample,
    Series,
    ServerConfig,
    Session,
    Severity,
    StepModel,
    Unreadable,
    Verdict,
)

START = datetime(2026, 2, 24, 11, 30)
LINE = (
    "[2026-02-24 12:03:07 TP0] Decode batch, #running-req: 35, #token: 150158, token usage: 0.94, "
    "cuda graph: True, gen throughput (token/s): 606.88, #queue-req: 115"
)
#: Text that tries to become markup, a mention, a terminal command or a layout.
HOSTILE = (
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "'; window.pwned=1; //{{ 7*7 }}{% raw %}",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \x00\x08\x7f",
    "\u202eevil\u202c \u2066x\u2069 a\u200bb \ud800 \U000e0041",
    "` ``` | @everyone [link](javascript:alert(1)) ![i](http://x.invalid/p.png) <b>",
    "]]><!-- --> \u2028 \u2029 &lt;b&gt; \r\n# heading\n/close\n* item",
    "A" * 10_000,
    "<a href='javascript:window.pwned=1'>click</a>",
    "<style>*{display:none}</style>",
)


def at(seconds: float) -> datetime:
    """Return the time that many seconds after the start of the log."""
    return START + timedelta(seconds=seconds)


def series(
    columns: Mapping[str, Callable[[float], float | None]],
    *,
    seconds: float,
    step: float,
    session: int = 1,
    rank: str | None = "TP0",
    source: str = "server.log",
    offset: float = 0,
    holes: Sequence[tuple[float, float]] = (),
    seed: int = 7,
) -> Series:
    """Draw a timeline: each column's function of time, with a band of some width."""
    rng = random.Random(seed)
    x = [i for i in range(int(seconds // step)) if not any(a <= i * step < b for a, b in holes)]
    bands = {}
    for name, value in columns.items():
        low: list[float | None] = []
        mean: list[float | None] = []
        high: list[float | None] = []
        for i in x:
            v = value(i * step)
            if v is None:
                low.append(None)
                mean.append(None)
                high.append(None)
                continue
            spread = abs(v) * 0.06 * rng.random()
            top = min(1.0, v + spread) if "usage" in name or name.endswith("rate") else v + spread
            low.append(round(max(0.0, v - spread), 4))
            mean.append(round(v, 4))
            high.append(round(max(top, v), 4))
        bands[name] = Band(tuple(low), tuple(mean), tuple(high))
    return Series(
        session=session,
        rank=rank,
        source=source,
        start=at(offset),
        step=step,
        x=tuple(x),
        first_line=tuple(10 + 2 * i for i in range(len(x))),
        columns=bands,
        gaps=tuple((at(offset + a), at(offset + b)) for a, b in holes),
    )


def _running(t: float) -> float:
    if t < 110:
        return min(121.0, 30 + t)
    return 44 + 20 * math.cos((t - 110) / 95) * math.exp(-((t - 110) % 600) / 500)


def _usage(t: float) -> float:
    if t < 110:
        return 0.06 + 0.87 * t / 110
    return min(1.0, 0.92 + 0.07 * math.sin(t / 47))


def _throughput(t: float) -> float:
    r = _running(t)
    return r / (0.0345 + 0.000469 * r + 4.5e-8 * 4_290 * r * 0.9) * 0.93


FOUNDING_COLUMNS: dict[str, Callable[[float], float | None]] = {
    "kv_usage": _usage,
    "running_req": _running,
    "queue_req": lambda t: max(0.0, 150 - _running(t)),
    "gen_throughput": _throughput,
    "rate_per_req": lambda t: _throughput(t) / _running(t),
    "new_token": lambda t: 300 + 250 * abs(math.sin(t / 33)),
    "cache_hit_rate": lambda t: 0.02 + 0.01 * math.sin(t / 200),
    "token": lambda t: 159_277 * _usage(t),
}

ARGS: dict[str, object] = {
    "model_path": "/models/Kimi-K2.5",
    "tokenizer_path": "/models/Kimi-K2.5",
    "trust_remote_code": True,
    "host": "[host]",
    "api_key": "[removed]",
    "mem_fraction_static": 0.88,
    "kv_cache_dtype": "auto",
    "max_running_requests": None,
    "max_total_tokens": None,
    "chunked_prefill_size": 8192,
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 0.3,
    "page_size": 1,
    "tp_size": 8,
    "dp_size": 1,
    "enable_dp_attention": False,
    "decode_log_interval": 40,
    "enable_hierarchical_cache": True,
    "hicache_size": 48,
    "hicache_write_policy": "write_through",
    "disable_radix_cache": False,
    "speculative_algorithm": None,
    "cuda_graph_max_bs": 512,
    "watchdog_timeout": 300,
    "lora_paths": [],
}

CONFIG = ServerConfig(
    args=ARGS,
    args_removed=("api_key", "host"),
    defaults={
        "mem_fraction_static": 0.9,
        "kv_cache_dtype": "auto",
        "schedule_conservativeness": 1.0,
        "enable_hierarchical_cache": False,
        "hicache_size": 0,
        "tp_size": 1,
        "schedule_policy": "fcfs",
        "page_size": 1,
    },
    args_line=1,
    kv_capacity_tokens=159_277,
    capacity_line=5,
    max_running_req=2_048,
    max_prefill_tokens=16_384,
    chunked_prefill_size=8_192,
    context_len=262_144,
    available_gpu_mem_gib=9.2,
    kv_pool_tokens=159_277,
    kv_pool_gib=10.42,
    kv_pool_line=2,
    host_pool_gb=48.0,
)

CAPACITY = Capacity(
    kv_tokens=159_277,
    kv_tokens_source="log",
    kv_tokens_line=5,
    bytes_per_token=70_244.6,
    pool_gib=10.42,
    tokens_per_req=4_290.2,
    requests_fit=37,
    rate_per_req=17.34,
    max_running_req=2_048,
    lines=(220, 1_526),
    step_model=StepModel(
        t0_s=0.0345,
        a_s=0.000469,
        b_s=4.5e-8,
        p0_s=0.045,
        p1_s=0.00022,
        n_lines=1_120,
        residual_sd=0.031,
        identified=True,
        b_identified=True,
    ),
    notes=(
        "The batch swings between young and old requests: 37 is the mean, 24 to 82 the range.",
    ),
)

SESSION = Session(
    id=1,
    source="server.log",
    start=START,
    end=at(2_698),
    first_line=1,
    last_line=1_526,
    ended_by="end_of_log",
    role="unified",
    release_range=("0.5.9", "0.5.23"),
    config=CONFIG,
    capacity=CAPACITY,
)

SOURCE = LogSource(
    name="server.log",
    size_bytes=249_534,
    sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    kind="file",
    tz=None,
    lines=1_526,
)

KV001 = Finding(
    code="KV001",
    name="kv-saturation",
    severity=Severity.CRITICAL,
    confidence="high",
    session=1,
    summary=(
        "The KV pool was full while requests waited, for 42 min 41 s: 44 requests ran, "
        "106 waited on average."
    ),
    why=(
        "A request joins the running batch only when its tokens fit the pool. Once it is "
        "full, waiting time grows with the queue, and TTFT with it."
    ),
    episodes=(Episode(at(137), at(2_698), 118, 1_526, "TP0", "server.log"),),
    evidence=(
        Evidence("usage, time-weighted mean", 0.91, "fraction", "server.log", 612, LINE),
        Evidence("usage, peak", 1.0, "fraction", "server.log", 733, LINE.replace("0.94", "1.00")),
        Evidence("running requests, mean", 43.9, "requests", "server.log", 612),
        Evidence("waiting requests, mean", 106.2, "requests", "server.log", 612),
        Evidence(
            "requests that fit",
            37,
            "requests",
            "server.log",
            5,
            "[2026-02-24 11:30:00 TP0] max_total_num_tokens=159277, chunked_prefill_size=8192, "
            "max_prefill_tokens=16384, max_running_requests=2048, context_len=262144, "
            "available_gpu_mem=9.20 GB",
            formula="159,277 tokens / 4,290.2 tokens per running request",
        ),
        Evidence("could have been seen at", "11:31:20, 47 s before", "", "server.log", 61),
        Evidence("throughput, share of the unsaturated level", 0.54, "fraction"),
    ),
    actions=(
        Action(
            "Give the KV pool more of the GPU: 9.2 GiB were left free after start-up.",
            flag="--mem-fraction-static",
            present=0.88,
            proposed=0.93,
            effect="231,120 tokens (+45 %), about 54 requests fit, throughput ×1.22 [1.15, 1.30]",
        ),
        Action(
            "Store the KV cache in 8 bits; check the accuracy of your model.",
            flag="--kv-cache-dtype",
            present="auto",
            proposed="fp8_e4m3",
            effect="318,554 tokens (×2), throughput ×1.50 [1.40, 1.60], not ×2",
        ),
        Action(
            "This model's KV is copied to all 8 GPUs; data-parallel attention stores it once.",
            flag="--enable-dp-attention",
            present=False,
            proposed=True,
            effect="up to ×8 the tokens; needs --dp-size",
        ),
    ),
    competing="RUN001 (running cap): the cap is 2,048 and 121 requests ran at most.",
    limits={"enter_usage": 0.9, "hold_usage": 0.8, "min_s": 30.0},
)

KV004 = Finding(
    code="KV004",
    name="retraction-storm",
    severity=Severity.WARNING,
    confidence="high",
    session=1,
    summary=(
        "256 running requests were thrown back to the queue in 12 spells; "
        "4 % of the work was lost."
    ),
    episodes=tuple(
        Episode(
            at(300 + 180 * i), at(380 + 180 * i), 180 + 90 * i, 220 + 90 * i, "TP0", "server.log"
        )
        for i in range(12)
    ),
    evidence=(
        Evidence(
            "retracted requests",
            256,
            "requests",
            "server.log",
            402,
            "[2026-02-24 11:41:12 TP0] KV cache pool is full. Retract requests. "
            "#retracted_reqs: 1, #new_tokens_gained: 5120, #new_token_ratio: 0.0300 -> 0.3920",
        ),
        Evidence("work computed again", 4.1, "percent"),
    ),
    actions=(
        Action(
            "Cap the batch a little above what fits.",
            flag="--max-running-requests",
            present=None,
            proposed=56,
            effect="2.2 retractions a minute instead of 4.8, throughput −1 %",
        ),
    ),
    limits={"n60": 6.0, "sustain_s": 30.0},
    explained_by="KV001",
)

KV008 = Finding(
    code="KV008",
    name="hicache-no-decode-capacity",
    severity=Severity.INFO,
    confidence="high",
    session=1,
    summary="Hierarchical cache is on (48 GB per rank) and adds no running request.",
    why="Decoding reads the device pool only; host copies must be loaded back into it first.",
    episodes=(),
    evidence=(Evidence("prompt tokens found in the cache", 0.02, "fraction", "server.log", 40),),
    actions=(
        Action(
            "Free the host memory, unless prefixes repeat.",
            flag="--enable-hierarchical-cache",
            present=True,
            proposed=False,
            effect="no change of throughput",
        ),
    ),
    explained_by="KV001",
)

CLI002 = Finding(
    code="CLI002",
    name="closed-loop-client",
    severity=Severity.INFO,
    confidence="medium",
    session=1,
    summary="Running plus waiting requests stay at 150: the client keeps 150 open and waits.",
    episodes=(Episode(at(60), at(2_698), 60, 1_526, "TP0", "server.log"),),
    evidence=(Evidence("running + waiting", 150, "requests", "server.log", 612, LINE),),
)

CHECKED = (
    Check("KV001", "fired", "1 finding", 1, "kv-saturation"),
    Check("KV004", "fired", "1 finding", 1, "retraction-storm"),
    Check("KV008", "fired", "1 finding", 1, "hicache-no-decode-capacity"),
    Check("CLI002", "fired", "1 finding", 1, "closed-loop-client"),
    Check("RUN001", "clear", "121 of 2,048 requests ran at most", 1, "running-cap"),
    Check(
        "PRE001", "clear", "prefill took 7 % of the time, the limit is 50 %", 1, "prefill-bound"
    ),
    Check(
        "ADM001",
        "clear",
        "the pool was above 0.87 whenever requests waited",
        1,
        "conservative-admission",
    ),
    Check(
        "THR002", "clear", "step time within 3 % of the fitted model throughout", 1, "rate-change"
    ),
    Check("GRF001", "clear", "every decode batch replayed a graph", 1, "cuda-graph-off"),
    Check("HNG001", "clear", "the longest silence was 4 s", 1, "stall"),
    Check("CRS001", "clear", "one server life, no exception", 1, "crash"),
    Check("SWA001", "not_applicable", "the log has no sliding-window pool", 1, "swa-exhausted"),
    Check("MAM001", "not_applicable", "the log has no Mamba pool", 1, "mamba-slots"),
    Check(
        "SPC001",
        "not_applicable",
        "no accept length: speculative decoding is off",
        1,
        "low-accept",
    ),
    Check("DPI001", "not_applicable", "one DP rank", 1, "dp-imbalance"),
    Check(
        "TPS001",
        "not_applicable",
        "only TP0 logs; --enable-metrics-for-all-schedulers would show the others",
        1,
        "tp-straggler",
    ),
    Check("KV010", "error", "the rule failed: division by zero", 1, "kv-leak"),
)

EVENTS = (
    EventCount(
        "retract",
        214,
        1,
        "server.log",
        402,
        1_498,
        at(660),
        at(2_650),
        tuple(at(660 + 10 * i) for i in range(200)),
        256,
    ),
    EventCount("retract_abort", 0, 1),
    EventCount("exception", 0, 1),
    EventCount("watchdog_timeout", 0, 1),
    EventCount("health_check_failed", 0, 1),
    EventCount(
        "http_4xx",
        3,
        1,
        "server.log",
        700,
        910,
        at(1_200),
        at(1_600),
        (at(1_200), at(1_400), at(1_600)),
    ),
    EventCount("http_5xx", 0, 1),
)

PLAN = Plan(
    session=1,
    now=Lever("as it is", kv_tokens=159_277, concurrency=37.1),
    levers=(
        Lever(
            "KV cache in fp8",
            "--kv-cache-dtype fp8_e4m3",
            "auto",
            "fp8_e4m3",
            kv_tokens=318_554,
            concurrency=74.2,
            more_decodes=37.1,
            gain=Estimate(1.40, 1.50, 1.60),
            memory_left_gib=9.2,
            risk="Check the accuracy of your model.",
            formula=("159,277 x 2 = 318,554 tokens", "318,554 / 4,290.2 = 74.2 requests"),
        ),
        Lever(
            "more memory for the pool",
            "--mem-fraction-static 0.93",
            0.88,
            0.93,
            kv_tokens=231_120,
            concurrency=53.8,
            more_decodes=16.7,
            gain=Estimate(1.15, 1.22, 1.30),
            memory_left_gib=4.5,
            formula=("(0.93 - 0.88) x 94.04 GiB / 70,272 bytes = 71,843 tokens",),
        ),
        Lever(
            "host memory (hierarchical cache)",
            "--hicache-size 48",
            kv_tokens=159_277,
            host_tokens=683_060,
            concurrency=37.1,
            more_decodes=0.0,
            gain=Estimate(1.0, 1.0, 1.0),
            note="0 more active decodes.",
        ),
    ),
    limit="The KV pool limits how many requests run.",
    notes=("Log and formula agree within 0.1 %.",),
)

COVERAGE = Coverage(
    lines_total=1_526,
    lines_batch=1_212,
    lines_known=1_474,
    lines_unrecognised=0,
    by_kind={
        "decode": 1_004,
        "prefill": 208,
        "retract": 214,
        "access": 42,
        "server_args": 1,
        "capacity": 1,
    },
)


def founding() -> Report:
    """The founding case: saturated for 43 of 45 minutes."""
    return Report(
        tool_version="0.1.0",
        sources=(SOURCE,),
        verdict=Verdict(
            "saturated",
            "KV001",
            "The KV pool was full from 11:32:17 to the end of the log (42 min 41 s): 44 requests "
            "ran, 106 waited, and throughput was 54 % of what this server gave before.",
            "high",
        ),
        sessions=(SESSION,),
        findings=(KV001, KV004, KV008, CLI002),
        checked=CHECKED,
        coverage=COVERAGE,
        series=(series(FOUNDING_COLUMNS, seconds=2_698, step=2),),
        command="loganalyze report server.log -o founding.html",
        events=EVENTS,
        redacted={"api_key": 1, "client addresses": 42},
        plan=PLAN,
    )


def healthy() -> Report:
    """Chat traffic well inside capacity: nothing to do."""
    columns: dict[str, Callable[[float], float | None]] = {
        "kv_usage": lambda t: 0.31 + 0.06 * math.sin(t / 90) + 0.03 * math.sin(t / 11),
        "running_req": lambda t: 18 + 5 * math.sin(t / 90) + 2 * math.sin(t / 11),
        "queue_req": lambda t: 0.0,
        "gen_throughput": lambda t: 410 + 80 * math.sin(t / 90) + 30 * math.sin(t / 11),
        "rate_per_req": lambda t: 22.5 - 1.2 * math.sin(t / 90),
        "cache_hit_rate": lambda t: 0.55 + 0.05 * math.sin(t / 70),
        "new_token": lambda t: 900 + 300 * math.sin(t / 13),
        "token": lambda t: 50_000.0,
    }
    return Report(
        tool_version="0.1.0",
        sources=(SOURCE,),
        verdict=Verdict(
            "healthy",
            None,
            "Nothing slowed this server: no queue in 30 min, the KV pool at 0.37 at most.",
            "high",
        ),
        sessions=(SESSION,),
        findings=(),
        checked=tuple(c for c in CHECKED if c.status in ("clear", "not_applicable")),
        coverage=COVERAGE,
        series=(series(columns, seconds=1_800, step=2),),
        command="loganalyze report server.log",
        events=tuple(EventCount(e.kind, 0, 1) for e in EVENTS),
    )


def dp8() -> Report:
    """Eight DP ranks, the first one full, the last one idle for a while."""
    rows = []
    for dp in range(8):
        level = 0.97 if dp == 0 else 0.25 + 0.05 * dp

        def usage(t: float, level: float = level, dp: int = dp) -> float:
            return min(1.0, level + 0.05 * math.sin(t / 60 + dp))

        def running(t: float, level: float = level, dp: int = dp) -> float:
            return 40 * level + 4 * math.sin(t / 60 + dp)

        rows.append(
            series(
                {
                    "kv_usage": usage,
                    "running_req": running,
                    "queue_req": (lambda t: 20 + t / 60) if dp == 0 else (lambda t: 0.0),
                    "gen_throughput": lambda t, r=running: 12 * r(t),
                    "rate_per_req": lambda t, dp=dp: 12 + 0.4 * math.sin(t / 60 + dp),
                    "cache_hit_rate": lambda t, dp=dp: 0.3 + 0.02 * dp,
                },
                seconds=1_800,
                step=5,
                rank=f"DP{dp} TP0",
                seed=dp,
                holes=((900, 1_080),) if dp == 7 else (),
            )
        )
    finding = Finding(
        code="DPI001",
        name="dp-imbalance",
        severity=Severity.CRITICAL,
        confidence="high",
        session=1,
        summary="DP0 was full with 50 requests waiting while seven ranks were half empty.",
        episodes=(Episode(at(120), at(1_750), 300, 5_000, "DP0 TP0", "server.log"),),
        evidence=(
            Evidence(
                "usage, DP0", 0.97, "fraction", "server.log", 812, LINE.replace("TP0", "DP0 TP0")
            ),
            Evidence("usage, DP1", 0.3, "fraction", "server.log", 813),
        ),
        actions=(
            Action(
                "Spread requests by tokens.",
                flag="--load-balance-method",
                present="round_robin",
                proposed="total_tokens",
                effect="about 30 % of the running slots were lost",
            ),
        ),
    )
    return Report(
        tool_version="0.1.0",
        sources=(SOURCE,),
        verdict=Verdict(
            "degraded", "DPI001", "One of eight DP ranks carried a fifth of the load.", "high"
        ),
        sessions=(SESSION,),
        findings=(finding,),
        checked=CHECKED[4:],
        coverage=COVERAGE,
        series=tuple(rows),
        command="loganalyze report server.log",
    )


def excerpt() -> Report:
    """One pasted line: a verdict with low confidence, no timeline worth drawing."""
    capacity = Capacity(
        kv_tokens=159_742,
        kv_tokens_source="inferred",
        tokens_per_req=4_290.2,
        requests_fit=37,
        rate_per_req=17.34,
        lines=(1, 1),
        notes=("Inferred from one line: ±0.5 %.",),
    )
    when = datetime(2026, 2, 24, 12, 3, 7)
    return Report(
        tool_version="0.1.0",
        sources=(LogSource("-", 162, "ab" * 32, "stdin", None, 1),),
        verdict=Verdict(
            "saturated",
            "KV001",
            "The KV pool is full (0.94) while 115 requests wait; one line cannot say how long.",
            "low",
        ),
        sessions=(
            Session(
                1,
                "-",
                when,
                when,
                1,
                1,
                "end_of_log",
                "unified",
                ("0.5.4", "0.5.23"),
                ServerConfig(),
                capacity,
            ),
        ),
        findings=(
            Finding(
                code="KV001",
                name="kv-saturation",
                severity=Severity.CRITICAL,
                confidence="low",
                session=1,
                summary="The KV pool is full (0.94) while 115 requests wait.",
                episodes=(Episode(when, when, 1, 1, "TP0", "-"),),
                evidence=(Evidence("token usage", 0.94, "fraction", "-", 1, LINE),),
                actions=(
                    Action(
                        "Give the KV pool more of the GPU.",
                        flag="--mem-fraction-static",
                        effect="cannot be sized: the log lacks the start-up lines",
                    ),
                ),
                competing="RUN001 (running cap): the cap is not in this excerpt.",
            ),
        ),
        checked=(
            Check("KV001", "fired", "1 finding", 1, "kv-saturation"),
            Check(
                "KV004", "not_applicable", "one line is no stretch of time", 1, "retraction-storm"
            ),
        ),
        coverage=Coverage(lines_total=1, lines_batch=1, lines_known=1, by_kind={"decode": 1}),
        series=(
            Series(
                1,
                "TP0",
                "-",
                when,
                1.0,
                (0,),
                (1,),
                {
                    "kv_usage": Band((0.94,), (0.94,), (0.94,)),
                    "running_req": Band((35.0,), (35.0,), (35.0,)),
                    "queue_req": Band((115.0,), (115.0,), (115.0,)),
                    "gen_throughput": Band((606.88,), (606.88,), (606.88,)),
                    "rate_per_req": Band((17.34,), (17.34,), (17.34,)),
                },
            ),
        ),
        command="loganalyze report -",
    )


def restarts() -> Report:
    """A day with three restarts: capacity changes, one stall, one crash loop at night."""
    bounds = [(0, 21_000), (21_300, 40_000), (40_240, 70_000), (70_900, 86_400)]
    sessions = []
    rows = []
    for i, (a, b) in enumerate(bounds, start=1):
        pool = (159_277, 231_120, 159_277, 116_171)[i - 1]
        load = (0.4, 0.8, 0.97, 0.6)[i - 1]
        capacity = Capacity(
            kv_tokens=pool,
            kv_tokens_source="log",
            kv_tokens_line=1_000 * i + 5,
            tokens_per_req=4_100.0,
            requests_fit=int(pool / 4_100),
            rate_per_req=16.0,
            lines=(1_000 * i + 20, 1_000 * i + 900),
        )
        sessions.append(
            Session(
                i,
                "server.log",
                at(a),
                at(b),
                1_000 * i,
                1_000 * i + 999,
                "crash" if i < 4 else "end_of_log",
                "unified",
                ("0.5.9", "0.5.9"),
                CONFIG,
                capacity,
            )
        )

        def usage(t: float, load: float = load) -> float:
            return max(0.0, min(1.0, load + 0.15 * math.sin(t / 2_000) + 0.05 * math.sin(t / 300)))

        def running(t: float, pool: int = pool, u: Callable[[float], float] = usage) -> float:
            return pool / 4_100 * u(t)

        rows.append(
            series(
                {
                    "kv_usage": usage,
                    "running_req": running,
                    "queue_req": lambda t, u=usage: max(0.0, (u(t) - 0.85) * 900),
                    "gen_throughput": lambda t, r=running: 17 * r(t),
                    "rate_per_req": lambda t: 17.0,
                },
                seconds=b - a,
                step=30,
                session=i,
                offset=a,
                seed=i,
                holes=((9_000, 9_600),) if i == 3 else (),
            )
        )
    crash = Finding(
        code="CRS001",
        name="crash",
        severity=Severity.CRITICAL,
        confidence="high",
        session=1,
        summary="The server died three times; each time CUDA ran out of memory while decoding.",
        episodes=tuple(
            Episode(
                at(bounds[i][1]),
                at(bounds[i + 1][0]),
                1_000 * (i + 1) + 998,
                1_000 * (i + 2),
                None,
                "server.log",
            )
            for i in range(3)
        ),
        evidence=(
            Evidence(
                "exception",
                "torch.OutOfMemoryError",
                "",
                "server.log",
                1_998,
                "[2026-02-24 17:20:00 TP3] Scheduler hit an exception: torch.OutOfMemoryError",
            ),
        ),
        actions=(
            Action(
                "Leave more memory to the kernels.",
                "--mem-fraction-static",
                0.93,
                0.88,
                "one crash less a day",
            ),
        ),
    )
    saturated = Finding(
        code="KV001",
        name="kv-saturation",
        severity=Severity.CRITICAL,
        confidence="high",
        session=3,
        summary="The KV pool was full while requests waited, for 6 h 12 min in 4 spells.",
        episodes=tuple(
            Episode(
                at(41_000 + 7_000 * i),
                at(45_000 + 7_000 * i),
                3_010 + 100 * i,
                3_090 + 100 * i,
                "TP0",
                "server.log",
            )
            for i in range(4)
        ),
        evidence=(Evidence("usage, mean", 0.96, "fraction", "server.log", 3_050, LINE),),
        actions=(
            Action(
                "Add replicas, or store KV in 8 bits.",
                "--kv-cache-dtype",
                "auto",
                "fp8_e4m3",
                "twice the tokens",
            ),
        ),
    )
    return Report(
        tool_version="0.1.0",
        sources=(SOURCE,),
        verdict=Verdict(
            "degraded",
            "CRS001",
            "The server died three times in 24 h, out of GPU memory each time.",
            "high",
        ),
        sessions=tuple(sessions),
        findings=(crash, saturated),
        checked=CHECKED[4:],
        coverage=COVERAGE,
        series=tuple(rows),
        command="loganalyze report server.log",
        events=(
            EventCount(
                "exception",
                3,
                1,
                "server.log",
                1_998,
                3_998,
                at(20_999),
                at(69_999),
                (at(20_999), at(39_999), at(69_999)),
            ),
        ),
    )


def crowded() -> Report:
    """A server that died every two hours of a day, each life short: much to name in little room.

    The cap and what fits lie next to each other, as do the last restarts.
    """
    base = restarts()
    starts = [7_200 * i for i in range(12)] + [85_000]
    capacity = replace(base.sessions[0].capacity, requests_fit=69, max_running_req=64)
    lives = [
        replace(
            base.sessions[0], id=i, start=at(a), end=at(a + 900), ended_by="crash",
            capacity=capacity,
        )
        for i, a in enumerate(starts, start=1)
    ]  # fmt: skip
    columns = {"kv_usage": lambda t: 0.9, "running_req": lambda t: 64.0, "queue_req": lambda t: t}
    rows = [series(columns, seconds=900, step=30, session=s.id, offset=a)
            for s, a in zip(lives, starts, strict=True)]  # fmt: skip
    return replace(base, sessions=tuple(lives), series=tuple(rows))


def hostile() -> Report:
    """Every text of the report is an attack."""
    bad = HOSTILE
    when = at(10)
    finding = Finding(
        code="KV001",
        name=bad[0],
        severity=Severity.CRITICAL,
        confidence="low",
        session=1,
        summary=" ".join(bad),
        why=bad[1],
        competing=bad[2] + bad[5],
        episodes=(Episode(when, at(50), 1, 5, bad[1], bad[0]),),
        evidence=tuple(Evidence(t, t, t, t, i + 1, t, t) for i, t in enumerate(bad)),
        actions=tuple(Action(t, t, t, t, t) for t in bad),
        limits={bad[0]: 1.0},
    )
    config = ServerConfig(
        args=dict(zip(bad, bad, strict=True))
        | {"model_path": bad[0], "nested": {bad[1]: [bad[2]]}}
    )
    session = Session(
        1,
        bad[0],
        START,
        at(100),
        1,
        99,
        "crash",
        "unified",
        (bad[0], bad[1]),
        config,
        Capacity(kv_tokens=10, notes=tuple(bad)),
    )
    columns: dict[str, Callable[[float], float | None]] = {
        "kv_usage": lambda t: 0.5,
        "gen_throughput": lambda t: 100.0 + t,
        "running_req": lambda t: 3.0 + t,
    }
    return Report(
        tool_version=bad[0],
        sources=tuple(LogSource(t, 1, t, t, t, 1) for t in bad),
        verdict=Verdict("saturated", "KV001", " ".join(bad), "low"),
        sessions=(session,),
        findings=(finding,),
        checked=tuple(Check(t, "clear", t, 1, t) for t in bad)
        + tuple(Check(t, "error", t) for t in bad),
        coverage=Coverage(
            10,
            1,
            2,
            7,
            1,
            dict.fromkeys(bad, 1),
            tuple(Sample(t, i, t) for i, t in enumerate(bad)),
            bad,
        ),
        series=tuple(series(columns, seconds=100, step=1, rank=t, source=bad[0]) for t in bad[:8]),
        unreadable=tuple(Unreadable(t, t, t) for t in bad),
        command=" ".join(bad),
        events=tuple(EventCount(t, 1, 1, t, 1, 2, when, when, (when,), 1) for t in bad),
        redacted=dict.fromkeys(bad, 1),
    )


def heavy() -> Report:
    """More of everything than a page may hold: 12 sessions, 48 ranks, 60 findings, long lines."""
    base = founding()
    long_line = LINE + " " + "x" * 3_000
    rng = random.Random(3)
    noise: dict[str, Callable[[float], float | None]] = {
        name: (
            lambda t, n=name: rng.random() * (1 if "usage" in n or n == "cache_hit_rate" else 500)
        )
        for name in (
            *FOUNDING_COLUMNS,
            "full_token_usage",
            "swa_token_usage",
            "mamba_usage",
            "accept_len",
        )
    }
    sessions = tuple(
        Session(
            i,
            "server.log",
            at(i * 600),
            at(i * 600 + 590),
            i * 900 + 1,
            i * 900 + 890,
            "crash",
            "unified",
            ("0.5.9", "0.5.9"),
            ServerConfig(args={f"arg_{k}": "v" * 300 for k in range(400)}),
            CAPACITY,
        )
        for i in range(1, 41)
    )
    findings = tuple(
        Finding(
            summary=f"Finding {i}: " + "words " * 60,
            episodes=tuple(
                Episode(at(10 * k), at(10 * k + 9), k + 1, k + 2, f"DP{k % 48} TP0", "server.log")
                for k in range(400)
            ),
            evidence=tuple(
                Evidence(f"value {k}", rng.random(), "fraction", "server.log", k + 1, long_line)
                for k in range(20)
            ),
            actions=tuple(
                Action("Do this. " * 20, "--flag", 1, 2, "effect " * 20) for _ in range(10)
            ),
            code=f"KV{i:03d}",
            name=f"rule-{i}",
            session=1 + i % 40,
            severity=Severity(i % 3),
            why="because " * 40,
            competing="or else " * 40,
        )
        for i in range(120)
    )
    return Report(
        tool_version="0.1.0",
        sources=tuple(
            LogSource(f"rank{i}.log", 10, "ab" * 32, "file", None, 1) for i in range(300)
        ),
        verdict=base.verdict,
        sessions=sessions,
        findings=findings,
        checked=tuple(Check(f"X{i}", "clear", "reason " * 40, 1 + i % 40) for i in range(2_000)),
        coverage=Coverage(
            10**9,
            10**8,
            10**8,
            10**6,
            5,
            {f"kind_{i}": i for i in range(200)},
            tuple(Sample("server.log", i, long_line) for i in range(10)),
            ("note " * 50,) * 20,
        ),
        series=tuple(
            series(noise, seconds=400, step=5, rank=f"DP{dp} TP0", session=1 + dp % 40, seed=dp)
            for dp in range(48)
        ),
        events=tuple(
            EventCount(
                f"kind_{i}",
                200,
                1 + i % 40,
                "server.log",
                1,
                2,
                at(0),
                at(900),
                tuple(at(4 * k) for k in range(200)),
            )
            for i in range(200)
        ),
    )


ALL: dict[str, Callable[[], Report]] = {
    "founding": founding,
    "healthy": healthy,
    "dp8": dp8,
    "excerpt": excerpt,
    "restarts": restarts,
    "crowded": crowded,
    "hostile": hostile,
    "heavy": heavy,
}
