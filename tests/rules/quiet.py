"""For each rule a log just short of its limit: it must stay quiet."""

from __future__ import annotations

from synth import capacity, decode, text

from loganalyze.rules.planted import Writer


def _lines(*writers: Writer) -> tuple[str, ...]:
    return tuple("\n".join(w.text) + "\n" for w in writers)


def steady(w: Writer, seconds: float, running: int, token: int, queue: int = 0) -> None:
    end, i = w.t + seconds, 0
    while w.t < end:
        if i % 4 == 3:
            w.prefill(1, 300, max(1, running - 1), queue, usage=token / w.pool)
        w.decode(running, token + (i % 7 - 3) * token // 60, queue)
        i += 1


def kv001():
    """Usage 0.89 with a queue for two minutes, 0.899 with one more of 100; the limit is 0.90."""
    return (text(capacity(), decode(usage=[0.89] * 120, queue=20, running=100)),)


def kv002():
    """49 % of the prompt tokens from the cache; the limit is one half."""
    w = Writer()
    for i in range(150):
        w.prefill(4, 510, 36, 30, cached=490, usage=0.95)
        w.decode(40, 95_000 + 100 * (i % 9), 30)
    return _lines(w)


def kv003():
    return (text(capacity(), decode(usage=[0.84] * 120)),)


def kv004():
    """Five retracted requests in a minute; the limit is six."""
    w = Writer()
    for i in range(40):
        w.decode(30, 95_000 + 100 * (i % 9), 10)
        if i % 8 == 4:
            w.retract(1, 3_000, 0.3)
    return _lines(w)


def kv005():
    """After a retraction usage is 0.88; KV counts as free below 0.87."""
    w = Writer(schedule_conservativeness=0.05)
    for i in range(60):
        w.decode(30, 96_000 + 50 * (i % 5), 40)
    w.retract(1, 3_000, 0.6)
    for i in range(60):
        w.decode(28, 88_000 + 50 * (i % 5), 42)
    return _lines(w)


def kv006():
    """Tokens per request grow 1.9 times while the pool fills; the limit is 2."""
    w = Writer()
    w.prefill(32, 8000, 0)
    for i in range(60):
        w.decode(32, 52_000 + 700 * i, 28 if i > 50 else 0)
    for i in range(200):
        w.decode(31 - i % 2, 96_000 + 300 * (i % 5), 29)
    return _lines(w)


def kv007():
    """9.5 GB free on a saturated server; the limit is 10."""
    w = Writer(free_gb=9.5)
    for i in range(120):
        w.decode(30, 95_000 + 100 * (i % 9), 10)
    return _lines(w)


def kv008():
    w = Writer(enable_hierarchical_cache=False)
    for i in range(120):
        w.decode(30, 95_000 + 100 * (i % 9), 10)
    return _lines(w)


def kv009():
    """The lines stop for 25 s; the limit is 30."""
    w = Writer(pool=20_000)
    steady(w, 60, 4, 6_000)
    w.decode(1, 500, 1)
    w.wait(25)
    w.decode(1, 600, 1)
    steady(w, 30, 4, 6_000)
    return _lines(w)


def kv010():
    """Tokens that nobody holds reach 5 % of the pool; the limit is 8 %."""
    w = Writer(pool=200_000)
    for i in range(1600):
        if i % 2 == 0:
            w.prefill(4, 1200, 20, usage=0.1)
        w.decode(20 + i % 2 * 4, 9_000 + min(10_000, max(0, i - 400) * 10))
    return _lines(w)


def run001():
    """96 running with a cap of 100: within 3 would count as standing at it."""
    w = Writer(pool=400_000, cap=100)
    steady(w, 90, 96, 60_000, queue=20)
    return _lines(w)


def adm001():
    """As planted, but usage is 0.88; KV counts as free below 0.85."""
    w = Writer(pool=60_000)
    for i in range(120):
        w.decode(70, 52_700 + 10 * (i % 9), 300)
    return _lines(w)


def adm002():
    """No prefill and no completion for 25 s; the limit is 30."""
    w = Writer(pool=400_000)
    steady(w, 60, 60, 100_000, queue=80)
    for i in range(20):
        w.decode(60, 100_000 + 200 * i, 80)
    steady(w, 60, 60, 100_000, queue=80)
    return _lines(w)


def adm003():
    """The estimate reaches its floor after 20 s; the limit is 25."""
    w = Writer(pool=400_000)
    w.prefill(60, 9000, 0, 500, usage=0.03)
    for i in range(60):
        w.decode(60, 10_000 + 1_200 * i, 500)
    return _lines(w)


def que001():
    """A queue for 50 s; the limit is 60."""
    w = Writer(pool=400_000, schedule_conservativeness=0.3)
    steady(w, 60, 8, 6_000)
    steady(w, 50, 8, 6_000, queue=60)
    steady(w, 60, 8, 6_000)
    return _lines(w)


def cli001():
    return (text(capacity(), decode(usage=[0.61] * 120, running=20)),)


def cli002():
    """Running + waiting swing by 10 %."""
    queue = [30 + 8 * (i // 60 % 2) for i in range(400)]
    return (text(capacity(), decode(usage=[0.95] * 400, running=30, queue=queue)),)


def idl001():
    """A silence of 11 s; the limit is 12."""
    w = Writer(pool=400_000)
    steady(w, 40, 6, 8_000)
    w.wait(11)
    w.prefill(6, 1800, 0)
    steady(w, 40, 6, 8_000)
    return _lines(w)


def ovr001():
    """The queue rises by 15 in ten minutes; the limit is 20."""
    queue = [i // 44 for i in range(660)]
    return (text(capacity(), decode(usage=[0.5] * 660, running=32, queue=queue)),)


def pre001():
    """Prefill takes 45 % of the time; the limit is one half."""
    w = Writer(pool=400_000)
    for i in range(150):
        for _ in range(3 + i % 2):
            w.prefill(1, 2048, 12, usage=0.3)
        w.decode(12 + i % 3, 60_000 + 2_000 * (i % 7))
    return _lines(w)


def pre002():
    """Runs of prefills of 0.6 s; one second would be felt."""
    w = Writer(pool=400_000)
    for i in range(160):
        w.prefill(1, 5900, 20, usage=0.2)
        w.decode(20 + i % 4, 80_000 + 900 * (i % 7))
    return _lines(w)


def pre003():
    """Two chunks in a row; the limit is three."""
    w = Writer(pool=400_000)
    steady(w, 60, 20, 60_000)
    for _ in range(2):
        w.prefill(1, 8192, 20, usage=0.2)
    steady(w, 60, 20, 76_000)
    return _lines(w)


def pre004():
    """The hit rate falls by 0.15; the limit is 0.20."""
    w = Writer(pool=400_000)
    for i in range(1800):
        hit = 700 if i < 900 else 550
        w.prefill(1, 1000 - hit, 10, cached=hit, usage=0.1)
        w.decode(10 + i % 2, 40_000 + 200 * (i % 7))
    return _lines(w)


def pre005():
    """Chunks of 4,096 tokens; up to 2,048 is small."""
    w = Writer(pool=400_000, chunked_prefill_size=4096)
    for i in range(40):
        for _ in range(8 + 3 * (i % 4)):
            w.prefill(1, 4096, 12, 25, usage=0.3)
        w.decode(12 + i % 3, 110_000 + 900 * (i % 5), 25)
    return _lines(w)


def grf001():
    """Ten seconds without a graph; the limit is 15."""
    w = Writer(pool=400_000)
    steady(w, 60, 24, 40_000)
    for _ in range(5):
        w.decode(40, 60_000, graph=False)
    steady(w, 60, 24, 40_000)
    return _lines(w)


def spc001():
    """The accept length falls to 0.73 of what it was; the limit is 0.70."""
    w = Writer(pool=400_000)
    for accept in (3.0, 2.2):
        for i in range(130):
            w.decode(20 + i % 2, 50_000 + 400 * (i % 5), accept=accept)
    return _lines(w)


def lng001():
    """Reading KV takes up to 48 % of a step (380,000 tokens of 50 ns against 20.8 ms)."""
    w = Writer(pool=2_000_000)
    w.prefill(8, 8000, 0)
    for i in range(160):
        w.decode(8 - i % 2, 60_000 + 2_000 * i)
    return _lines(w)


def thr002():
    """Steps 12 % slower; the limit is 20 %."""
    w = Writer(pool=400_000)
    steady(w, 150, 20, 30_000)
    w.slow = 1.12
    steady(w, 150, 20, 30_000)
    return _lines(w)


def thr003():
    """Steps 1.6 times as long for 40 s after a retraction; the limit is 2, or a lasting jump."""
    w = Writer()
    for i in range(60):
        w.decode(20, 97_000 + 60 * (i % 20), 3)
    w.retract(1, 4_000, 0.4)
    w.slow = 1.6
    for i in range(20):
        w.decode(19, 93_000 + 60 * i, 3)
    return _lines(w)


def tps001():
    w = Writer(pool=400_000, tp_size=8)
    steady(w, 200, 20, 30_000)
    return _lines(w)


def _ranks(pool: int, states: list[tuple[int, int, int]], count: int) -> tuple[str, ...]:
    """Return one log of DP ranks with (running, token, queue) each."""
    ranks = [
        Writer(pool=pool, rank=f" DP{i} TP{i}", startup=i == 0, dp_size=len(states))
        for i in range(len(states))
    ]
    for i in range(count):
        for w, (running, token, queue) in zip(ranks, states, strict=True):
            w.t = max(w.t, ranks[0].t)
            w.decode(running, token + 50 * (i % 7), queue)
    lines = sorted(line for w in ranks for line in w.text if "batch" in line)
    return ("\n".join([*ranks[0].text[:3], *lines]) + "\n",)


def dpi001():
    """Usage of the ranks 0.30 apart; the limit is 0.35."""
    return _ranks(50_000, [(20, 45_000, 20), (18, 30_500, 0)], 120)


def dpi002():
    """Each rank has one request: none is idle."""
    return _ranks(50_000, [(1, 3_000, 0), (1, 3_000, 0)], 120)


def _pools(extra: str, queue: int = 50) -> tuple[str, ...]:
    w = Writer(pool=400_000)
    for i in range(110):
        w.decode(30 + i % 3, 90_000, queue, usage=extra)
    return _lines(w)


def swa001():
    """Usage just below 0.6, and 61,500 tokens free where admission asks for 16,000 at most."""
    return _pools(
        "#full token: 90000, full token usage: 0.22, #swa token: 88500, swa token usage: 0.59"
    )


def mam001():
    return _pools("#full token: 40000, full token usage: 0.10, mamba num: 45, mamba usage: 0.94")


def _pd(prealloc: int, transfer: int, token: int) -> tuple[str, ...]:
    w = Writer(disaggregation_mode="decode")
    for i in range(110):
        w.decode(
            30,
            token + 100 * (i % 7),
            between=f"pre-allocated usage: 0.05, #prealloc-req: {prealloc}, "
            f"#transfer-req: {transfer}, #retracted-req: 0, ",
        )
    return _lines(w)


def pdd001():
    """Usage 0.50 + 0.05 preallocated; the limit is 0.60."""
    return _pd(40, 2, 50_000)


def pdd002():
    """Four transfers at a time; the limit is five."""
    return _pd(0, 4, 30_000)


def pdt001():
    """A PD decode server whose transfers all arrive."""
    return _pd(0, 4, 30_000)


def pdp001():
    """Four requests wait for bootstrap; the limit is five."""
    w = Writer(disaggregation_mode="prefill")
    for _ in range(400):
        w.t += 0.2
        w.line(
            "Prefill batch, #new-seq: 1, #new-token: 900, #cached-token: 0, token usage: 0.05, "
            "#running-req: 0, #queue-req: 0, #prealloc-req: 4, #inflight-req: 1, "
            "input throughput (token/s): 3000.00, cuda graph: False"
        )
    return _lines(w)


def hng001():
    """A silence of 25 s; the limit is 30."""
    w = Writer(pool=400_000)
    steady(w, 60, 20, 30_000)
    w.wait(25)
    steady(w, 60, 20, 30_000)
    return _lines(w)


def crs001():
    w = Writer(pool=400_000)
    steady(w, 60, 20, 30_000)
    w.raw("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    return _lines(w)


def wrm001():
    """Tokens per request settle within 10 s; the shortest warm-up to report is 15."""
    w = Writer(pool=400_000)
    w.prefill(30, 9000, 0)
    for i in range(150):
        w.decode(30, min(60_000, 20_000 + 6_000 * i))
    return _lines(w)


def drn001():
    """Four decode lines of falling running requests; the limit is five."""
    w = Writer(pool=400_000)
    steady(w, 60, 6, 8_000)
    w.prefill(1, 300, 5)
    for running in (6, 4, 2, 1):
        w.decode(running, 1_300 * running)
    return _lines(w)


def lbl001():
    """Usage of two servers 0.30 apart; the limit is 0.35."""
    busy, spare = Writer(), Writer()
    steady(busy, 150, 30, 95_000, queue=20)
    steady(spare, 150, 22, 65_000)
    return _lines(busy, spare)


def err001():
    """Four requests of 400 were answered with 500, and health checks with 503; five are told."""
    w = Writer(pool=400_000)
    for i in range(400):
        w.prefill(1, 300, 19, usage=0.1)
        w.decode(20, 40_000)
        if i % 100 == 50:
            w.line(
                'INFO:     127.0.0.1:50000 - "POST /generate HTTP/1.1" 500 Internal Server Error'
            )
        if i % 20 == 7:
            w.raw('INFO:     127.0.0.1:50001 - "GET /health HTTP/1.1" 503 Service Unavailable')
    return _lines(w)
