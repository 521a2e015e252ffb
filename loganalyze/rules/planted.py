"""Small logs with a known cause, written as an SGLang 0.5.9 server would print them.

`Writer` is a server reduced to its clock: a decode line advances it by the time of 40 steps
of a fixed step model, a prefill line by the time of its tokens, and `gen throughput` follows
from both. The logs of `PLANTED` show one cause each, with its usual companions; `selfcheck`
runs the rules over them, so that "nothing found" in a real log can be believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

_GIB = 2**30

#: Step model of the planted server: seconds a step, per request, per KV token; per prefill
#: batch and per prompt token.
T0, A, B, P0, P1 = 0.020, 1e-4, 5e-8, 0.010, 1e-4

#: KV bytes per token: B x 3 TB/s, so that the model's prior agrees with the planted server.
CELL = 150_000

START = datetime(2026, 3, 2, 9, 0, 0)


class Writer:
    """Writes the log of one server.

    Attributes:
        t: seconds since the start.
        slow: factor on every step, for clocks that were lowered.
        text: the lines so far.
    """

    def __init__(
        self,
        pool: int = 100_000,
        cap: int = 512,
        *,
        rank: str = " TP0",
        startup: bool = True,
        ready: bool = True,
        free_gb: float = 6.0,
        **args: object,
    ) -> None:
        self.pool, self.rank = pool, rank
        self.t = 0.0
        self.slow = 1.0
        self.text: list[str] = []
        self._pending = 0.0
        if startup:
            self.start(pool, cap, free_gb, ready=ready, **args)

    def start(
        self, pool: int, cap: int, free_gb: float, *, ready: bool = True, **args: object
    ) -> None:
        """Print what a server prints as it starts."""
        self.pool = pool
        shown = {
            "model_path": "/models/planted",
            "mem_fraction_static": 0.85,
            "kv_cache_dtype": "auto",
            "max_running_requests": None,
            "chunked_prefill_size": 8192,
            "schedule_conservativeness": 1.0,
            "page_size": 1,
            "tp_size": 1,
            "dp_size": 1,
            "decode_log_interval": 40,
            "enable_hierarchical_cache": False,
            **args,
        }
        self.raw(
            "server_args=ServerArgs(" + ", ".join(f"{k}={v!r}" for k, v in shown.items()) + ")"
        )
        size = pool * CELL / _GIB
        self.line(f"KV Cache is allocated. #tokens: {pool}, KV size: {size:.2f} GB")
        self.line(
            f"max_total_num_tokens={pool}, chunked_prefill_size={shown['chunked_prefill_size']}, "
            f"max_prefill_tokens=16384, max_running_requests={cap}, context_len=32768, "
            f"available_gpu_mem={free_gb:.2f} GB"
        )
        if ready:
            self.raw("The server is fired up and ready to roll!")

    def line(self, message: str) -> None:
        """Print a line of the scheduler."""
        self.text.append(f"[{self._stamp()}{self.rank}] {message}")

    def raw(self, message: str) -> None:
        """Print a line of the main process."""
        self.text.append(f"[{self._stamp()}] {message}")

    def wait(self, seconds: float) -> None:
        """Print nothing for a while; the next decode line's throughput includes it."""
        self.t += seconds
        self._pending += seconds

    def decode(
        self,
        running: int,
        token: int,
        queue: int = 0,
        *,
        accept: float | None = None,
        graph: bool = True,
        usage: str | None = None,
        between: str = "",
    ) -> None:
        """Print the decode line that ends 40 steps.

        Args:
            running: requests in the batch.
            token: KV tokens in use.
            queue: waiting requests.
            accept: accepted tokens a step; None without speculation.
            graph: whether a CUDA graph was replayed.
            usage: the text of tokens and usages; by default that of a plain pool.
            between: fields to print between usage and `cuda graph`.
        """
        step = (T0 + A * running + B * token) * self.slow * (1.0 if graph else 1.6)
        took = 40 * step + self._pending
        self.t += 40 * step
        self._pending = 0.0
        tokens = 40 * running * (accept or 1.0)
        pool = usage or f"#token: {token}, token usage: {token / self.pool:.2f}"
        spec = f"accept len: {accept:.2f}, accept rate: {accept / 4:.2f}, " if accept else ""
        self.line(
            f"Decode batch, #running-req: {running}, {pool}, {spec}{between}cuda graph: {graph}, "
            f"gen throughput (token/s): {tokens / took:.2f}, #queue-req: {queue}"
        )

    def prefill(
        self,
        seqs: int,
        new: int,
        running: int,
        queue: int = 0,
        *,
        cached: int = 0,
        usage: float = 0.0,
        pool: str | None = None,
    ) -> None:
        """Print the prefill line of a batch of `seqs` requests with `new` tokens."""
        took = P0 + P1 * new
        self.t += took
        self._pending += took
        self.line(
            f"Prefill batch, #new-seq: {seqs}, #new-token: {new}, #cached-token: {cached}, "
            f"{pool or f'token usage: {usage:.2f}'}, #running-req: {running}, "
            f"#queue-req: {queue}, input throughput (token/s): {new / took:.2f}, "
            "cuda graph: False"
        )

    def retract(self, count: int, gained: int, ratio: float) -> None:
        """Print a retraction."""
        self.line(
            f"KV cache pool is full. Retract requests. #retracted_reqs: {count}, "
            f"#new_tokens_gained: {gained}, #new_token_ratio: 0.0980 -> {ratio:.4f}"
        )

    def _stamp(self) -> str:
        return (START + timedelta(seconds=self.t)).strftime("%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True, slots=True)
class Planted:
    """Logs with known causes.

    Attributes:
        name: what they show.
        shows: the codes of the rules that must fire.
        logs: writes them: file name -> text.
    """

    name: str
    shows: tuple[str, ...]
    logs: Callable[[], dict[str, str]]


def _one(*writers: Writer) -> dict[str, str]:
    return {f"server{i}.log": "\n".join(w.text) + "\n" for i, w in enumerate(writers, 1)}


def _steady(w: Writer, seconds: float, running: int, token: int, queue: int = 0) -> None:
    """Decode at a steady load, with a request finishing and another one starting now and then."""
    end, i = w.t + seconds, 0
    while w.t < end:
        wave = (i % 7) - 3
        if i % 4 == 3:
            w.prefill(1, 300, max(1, running - 1), queue, usage=token / w.pool)
        w.decode(running, token + wave * token // 60, queue)
        i += 1


def _saturation() -> dict[str, str]:
    w = Writer(enable_hierarchical_cache=True, free_gb=14.0, schedule_conservativeness=0.3)
    clients = 60
    w.prefill(clients, 6000, 0)
    held = 6_000
    while held < 95_000:
        w.decode(clients, held)
        held += 40 * clients
    for i in range(260):
        # Requests grow from 1,600 to 3,300 tokens: fewer and fewer fit.
        running = max(29, clients - i) - i % 3
        usage = 0.99 - 0.02 * (i % 4)
        if i % 5 == 0:
            w.prefill(1, 100, running - 1, clients - running, usage=usage)
        w.decode(running, int(usage * w.pool), clients - running)
        if i % 4 == 3:
            w.retract(1, 1_200, 0.3)
    return _one(w)


def _near_full() -> dict[str, str]:
    w = Writer()
    _steady(w, 150, 30, 90_000)
    return _one(w)


def _cap() -> dict[str, str]:
    w = Writer(pool=400_000, cap=16)
    _steady(w, 120, 16, 30_000, queue=40)
    return _one(w)


def _careful_admission() -> dict[str, str]:
    w = Writer(pool=60_000)
    w.prefill(70, 7000, 0, 300, usage=0.1)
    for i in range(30):
        w.decode(70, 25_000 + 100 * i, 300)
    _steady(w, 120, 80, 30_000, queue=300)
    return _one(w)


def _cold_start() -> dict[str, str]:
    w = Writer(pool=400_000)
    w.slow = 2.5
    w.prefill(60, 9000, 0, 500, usage=0.03)
    for i in range(40):
        w.decode(60, 10_000 + 2_400 * i // 2, 500)
    return _one(w)


def _latch() -> dict[str, str]:
    w = Writer(pool=400_000, startup=True)
    _steady(w, 40, 60, 100_000)
    for i in range(50):
        w.decode(60, 100_000 + 2_400 * i // 4, 80)
    return _one(w)


def _after_retraction() -> dict[str, str]:
    w = Writer(schedule_conservativeness=0.05)
    for i in range(60):
        w.decode(30 - i % 2, 96_000 + 50 * (i % 5), 40)
    w.retract(2, 6_000, 0.6)
    for i in range(60):
        w.decode(20 + i % 2, 70_000 + 100 * (i % 9), 50)
    return _one(w)


def _lora_queue() -> dict[str, str]:
    w = Writer(
        pool=400_000, enable_lora=True, max_loras_per_batch=2, schedule_conservativeness=0.3
    )
    _steady(w, 150, 8, 6_000, queue=60)
    return _one(w)


def _prefill_bound() -> dict[str, str]:
    w = Writer(pool=400_000, chunked_prefill_size=2048)
    for i in range(40):
        for _ in range(16 + 3 * (i % 4)):
            w.prefill(1, 2048, 12, 25, usage=0.3)
        w.decode(12 + i % 3, 110_000 + 900 * (i % 5), 25)
    return _one(w)


def _interference() -> dict[str, str]:
    w = Writer(pool=400_000, chunked_prefill_size=8192)
    for i in range(160):
        if i % 2 == 0:
            for _ in range(2):
                w.prefill(1, 6000, 20, usage=0.2)
        w.decode(20 + i % 4, 80_000 + 900 * (i % 7))
    return _one(w)


def _giant_prompt() -> dict[str, str]:
    w = Writer(pool=400_000, chunked_prefill_size=8192)
    _steady(w, 60, 20, 60_000)
    for i in range(14):
        w.prefill(1, 8192, 20, usage=0.15 + 0.02 * i)
    _steady(w, 60, 20, 170_000)
    return _one(w)


def _cache_hits_fall() -> dict[str, str]:
    w = Writer(pool=400_000)
    for i in range(1900):
        hit = 700 if i < 950 else 100
        w.prefill(1, 1000 - hit, 10, cached=hit, usage=0.1)
        w.decode(10 + i % 2, 40_000 + 200 * (i % 7))
    return _one(w)


def _light_load() -> dict[str, str]:
    w = Writer(pool=400_000)
    _steady(w, 150, 6, 8_000)
    w.wait(60)
    w.prefill(6, 1800, 0)
    _steady(w, 60, 6, 8_000)
    for running in (6, 5, 4, 3, 2, 1, 1):
        w.decode(running, 1_300 * running)
    return _one(w)


def _overload() -> dict[str, str]:
    w = Writer(pool=400_000, cap=32)
    for i in range(700):
        if i % 4 == 3:
            w.prefill(1, 300, 31, i // 3, usage=0.2)
        w.decode(32, 80_000 + 500 * (i % 9), i // 3)
    return _one(w)


def _long_context() -> dict[str, str]:
    w = Writer(pool=2_000_000)
    w.prefill(8, 8000, 0)
    for i in range(160):
        w.decode(8 - i % 2, 100_000 + 8_000 * i)
    return _one(w)


def _stall() -> dict[str, str]:
    w = Writer(pool=400_000)
    _steady(w, 60, 20, 30_000)
    w.wait(75)
    _steady(w, 60, 20, 30_000)
    return _one(w)


def _crash() -> dict[str, str]:
    w = Writer(free_gb=1.2)
    _steady(w, 60, 20, 30_000)
    w.line("Scheduler hit an exception: Traceback (most recent call last):")
    w.text.append("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.")
    w.raw("Received sigquit from a child process. It usually means the child failed.")
    w.wait(90)
    w.start(80_000, 512, 3.0, mem_fraction_static=0.80)
    _steady(w, 60, 20, 30_000)
    return _one(w)


def _slower_gpu() -> dict[str, str]:
    w = Writer(pool=400_000, tp_size=2)
    _steady(w, 150, 20, 30_000)
    w.slow = 1.4
    _steady(w, 150, 20, 30_000)
    return _one(w)


def _collapse_after_retraction() -> dict[str, str]:
    w = Writer()
    for i in range(40):
        w.decode(20, 97_000 + 60 * (i % 20), 3)
    w.retract(1, 4_000, 0.4)
    w.slow = 6.0
    for i in range(20):
        w.decode(19, 93_000 + 60 * i, 3)
    return _one(w)


def _no_graph() -> dict[str, str]:
    w = Writer(pool=400_000, cuda_graph_max_bs=32)
    _steady(w, 60, 24, 40_000)
    for i in range(40):
        w.decode(40 + i % 3, 60_000 + 500 * (i % 5), graph=False)
    return _one(w)


def _few_accepted() -> dict[str, str]:
    w = Writer(pool=400_000, speculative_algorithm="EAGLE", speculative_num_steps=3)
    for accept in (3.0, 1.2):
        for i in range(130):
            w.decode(20 + i % 2, 50_000 + 400 * (i % 5), accept=accept)
    return _one(w)


def _uneven_ranks() -> dict[str, str]:
    ranks = [
        Writer(pool=50_000, rank=f" DP{i} TP{i}", startup=i == 0, dp_size=4, tp_size=4)
        for i in range(4)
    ]
    for i in range(120):
        ranks[0].decode(24, 47_000 + 100 * (i % 9), 30)
        for other in ranks[1:3]:
            other.t = ranks[0].t
            other.decode(4, 6_000 + 50 * (i % 7))
    lines = sorted(line for w in ranks for line in w.text[3:])
    return {"server1.log": "\n".join([*ranks[0].text[:3], *lines]) + "\n"}


def _idle_ranks() -> dict[str, str]:
    ranks = [
        Writer(pool=200_000, rank=f" DP{i} TP{i}", startup=i == 0, dp_size=2, tp_size=2)
        for i in range(2)
    ]
    ranks[1].prefill(1, 300, 0)
    ranks[1].decode(1, 400)
    for i in range(120):
        ranks[0].decode(12, 20_000 + 100 * (i % 9))
    ranks[1].t = ranks[0].t
    ranks[1].prefill(1, 300, 0)
    ranks[1].decode(1, 400)
    lines = sorted(line for w in ranks for line in w.text if "batch" in line)
    return {"server1.log": "\n".join([*ranks[0].text[:3], *lines]) + "\n"}


def _window_pool() -> dict[str, str]:
    w = Writer(pool=400_000, swa_full_tokens_ratio=0.1)
    for i in range(110):
        small = 37_000 + 200 * (i % 9)
        w.decode(
            30 + i % 3,
            90_000,
            50,
            usage=f"#full token: 90000, full token usage: 0.22, #swa token: {small}, "
            f"swa token usage: {small / 40_000:.2f}",
        )
    return _one(w)


def _state_slots() -> dict[str, str]:
    w = Writer(pool=400_000, cap=48)
    for i in range(110):
        w.decode(
            48,
            40_000,
            30,
            usage=f"#full token: {40_000 + i % 5}, full token usage: 0.10, mamba num: 48, "
            "mamba usage: 1.00",
        )
    return _one(w)


def _failed_requests() -> dict[str, str]:
    w = Writer(pool=400_000)
    for i in range(120):
        w.prefill(1, 300, 19, usage=0.1)
        w.decode(20, 40_000 + 50 * (i % 5))
        status = "500 Internal Server Error" if i % 4 == 3 else "200 OK"
        w.raw(f'INFO:     127.0.0.1:5{i:04d} - "POST /v1/chat/completions HTTP/1.1" {status}')
    return _one(w)


def _pd_decode() -> dict[str, str]:
    w = Writer(disaggregation_mode="decode")
    for transfer, waiting, held in ((2, 40, 90_000), (12, 0, 30_000)):
        for i in range(110):
            w.decode(
                30 + i % 2,
                held + 100 * (i % 7),
                between=f"pre-allocated usage: 0.05, #prealloc-req: {waiting}, "
                f"#transfer-req: {transfer}, #retracted-req: 0, ",
            )
    return _one(w)


def _pd_prefill() -> dict[str, str]:
    w = Writer(disaggregation_mode="prefill")
    for _ in range(400):
        w.t += 0.2
        w.line(
            "Prefill batch, #new-seq: 1, #new-token: 900, #cached-token: 0, token usage: 0.05, "
            "#running-req: 0, #queue-req: 0, #prealloc-req: 24, #inflight-req: 1, "
            "input throughput (token/s): 3000.00, cuda graph: False"
        )
    return _one(w)


def _failed_transfers() -> dict[str, str]:
    w = Writer(disaggregation_mode="decode")
    for i in range(80):
        w.decode(20 + i % 2, 30_000, between="pre-allocated usage: 0.05, #transfer-req: 3, ")
        if i % 3 == 0:
            for rank in (0, 1):
                w.text.append(
                    f"[{w._stamp()} TP{rank}] Decode transfer failed for request rank={rank} "
                    f"decode_req.req.rid='r{i}' decode_req.req.bootstrap_room={7000 + i} with "
                    f"exception KVTransferError(bootstrap_room={7000 + i}): Failed to get kvcache "
                    "from prefill instance, it might be dead"
                )
    return _one(w)


def _leak() -> dict[str, str]:
    w = Writer(pool=200_000, cap=512)
    for i in range(2600):
        leaked = max(0, i - 700) * 45
        if i % 2 == 0:
            w.prefill(4, 1200, 20, usage=0.1)
        w.decode(20 + i % 2 * 4, 9_000 + leaked)
        if w.t > 1500:
            break
    return _one(w)


def _oversized() -> dict[str, str]:
    w = Writer(pool=20_000)
    _steady(w, 60, 4, 6_000)
    w.decode(1, 500, 1)
    w.wait(90)
    w.prefill(1, 300, 1, 1)
    w.decode(1, 600, 1)
    return _one(w)


def _shared_prefixes() -> dict[str, str]:
    w = Writer()
    for i in range(150):
        w.prefill(4, 400, 36, 30, cached=12_000, usage=0.95)
        w.decode(40, 95_000 + 100 * (i % 9), 30)
    return _one(w)


def _two_servers() -> dict[str, str]:
    busy, spare = Writer(), Writer()
    _steady(busy, 150, 30, 95_000, queue=20)
    _steady(spare, 150, 4, 6_000)
    return _one(busy, spare)


PLANTED = (
    Planted(
        "a full KV pool, warm-up and retractions",
        ("KV001", "KV004", "KV006", "KV007", "KV008", "WRM001", "CLI002"),
        _saturation,
    ),
    Planted("a pool nearly full", ("KV003",), _near_full),
    Planted("running requests at their cap", ("RUN001",), _cap),
    Planted("admission that reserves too much", ("ADM001",), _careful_admission),
    Planted("a burst on a cold server", ("ADM003",), _cold_start),
    Planted("an admission latch", ("ADM002",), _latch),
    Planted("careful admission after a retraction", ("KV005",), _after_retraction),
    Planted("a queue without a KV cause", ("QUE001",), _lora_queue),
    Planted("prefill as the limit", ("PRE001", "PRE005"), _prefill_bound),
    Planted("prefills that interrupt decoding", ("PRE002",), _interference),
    Planted("a giant prompt", ("PRE003",), _giant_prompt),
    Planted("falling cache hits", ("PRE004",), _cache_hits_fall),
    Planted("light load, idle time, drain", ("CLI001", "IDL001", "DRN001"), _light_load),
    Planted("overload", ("OVR001",), _overload),
    Planted("long contexts", ("LNG001",), _long_context),
    Planted("a stall", ("HNG001",), _stall),
    Planted("a crash out of memory", ("CRS001",), _crash),
    Planted("a slower GPU", ("THR002", "TPS001"), _slower_gpu),
    Planted("a collapse after a retraction", ("THR003",), _collapse_after_retraction),
    Planted("steps without a CUDA graph", ("GRF001",), _no_graph),
    Planted("few accepted drafts", ("SPC001",), _few_accepted),
    Planted("one full DP rank of four", ("DPI001",), _uneven_ranks),
    Planted("an idle DP rank", ("DPI002",), _idle_ranks),
    Planted("a full sliding-window pool", ("SWA001",), _window_pool),
    Planted("all Mamba slots taken", ("MAM001",), _state_slots),
    Planted("backlogs of a PD decode server", ("PDD001", "PDD002"), _pd_decode),
    Planted("a PD prefill server that waits", ("PDP001",), _pd_prefill),
    Planted("KV transfers that fail", ("PDT001",), _failed_transfers),
    Planted("requests answered with errors", ("ERR001",), _failed_requests),
    Planted("a KV leak", ("KV010",), _leak),
    Planted("a request larger than the pool", ("KV009",), _oversized),
    Planted("shared prefixes in a full pool", ("KV002",), _shared_prefixes),
    Planted("two servers, one of them full", ("LBL001",), _two_servers),
)
