"""Throughput at another pool size: sums by hand, and the simulator with that pool."""

from dataclasses import replace

import made
import pytest

from loganalyze import plan
from loganalyze.capacity import predict
from loganalyze.capacity.predict import Change
from loganalyze.model import Estimate

#: 40 requests hold 100,000 of 108,000 tokens; a step takes 30 + 20 + 10 = 60 ms.
FULL = made.decode(40, 100_000)
SATURATED = [FULL] * 60


def gain(data, change, **more):
    return predict.estimate(predict.load(data), change, **more)


@pytest.mark.parametrize(
    ("change", "by_hand"),
    [
        # 80 requests: 30 + 40 + 20 = 90 ms.
        (Change(pool=2), (80 / 90) / (40 / 60)),
        # ... with half the bytes a token: 30 + 40 + 10 = 80 ms.
        (Change(pool=2, kv_bytes=0.5), (80 / 80) / (40 / 60)),
        # 60 requests: 30 + 30 + 15 = 75 ms.
        (Change(pool=1.5), (60 / 75) / (40 / 60)),
        # 20 requests: 30 + 10 + 5 = 45 ms.
        (Change(pool=0.5), (20 / 45) / (40 / 60)),
        # A cap of 50: 30 + 25 + 12.5 = 67.5 ms.
        (Change(pool=2, cap=50), (50 / 67.5) / (40 / 60)),
        # 140 run or wait, so two servers have 70 each, of which 40 fit: twice as much.
        (Change(servers=2), 2.0),
        # Four servers have 35 each: 30 + 17.5 + 8.75 = 56.25 ms.
        (Change(servers=4), 4 * (35 / 56.25) / (40 / 60)),
        (Change(), 1.0),
    ],
)
def test_by_hand(change, by_hand):
    found = gain(made.session(SATURATED), change)
    assert found.mid == pytest.approx(by_hand, rel=1e-6)
    assert found.low < found.mid < found.high


def test_it_is_never_in_proportion_and_never_a_bare_number():
    found = gain(made.session(SATURATED), Change(pool=2))
    assert found.high < 2
    assert found.low <= found.mid * 0.95
    assert found.high >= found.mid * 1.05


def test_no_more_run_than_run_or_wait():
    # 20 wait, so 60 can run at most: 30 + 30 + 15 = 75 ms.
    found = gain(made.session([made.decode(40, 100_000, queue=20)] * 60), Change(pool=5))
    assert found.mid == pytest.approx((60 / 75) / (40 / 60))


def test_the_printed_cap_binds():
    data = made.session(SATURATED, max_running_req=50)
    assert gain(data, Change(pool=2)).mid == pytest.approx((50 / 67.5) / (40 / 60))


@pytest.mark.parametrize(
    ("lines", "config", "words"),
    [
        (SATURATED, {}, "the KV pool: requests waited for it on 100%"),
        ([made.decode(40, 30_000, queue=0)] * 60, {}, "nothing waits"),
        ([made.decode(48, 30_000)] * 60, {"max_running_req": 48}, "the running cap"),
        ([made.decode(20, 10_000)] * 60, {}, "neither KV pool nor cap"),
        (
            [made.decode(40, 30_000, mamba_usage=1.0)] * 60,
            {},
            "the Mamba state slots",
        ),
        (
            [made.decode(40, 30_000, full_token_usage=0.28, swa_token_usage=0.75)] * 60,
            {},
            "the sliding-window KV pool",
        ),
        ([made.decode(40, 30_000, queue=None)] * 60, {}, "it prints no queue"),
        # 40 x 4,096 x 0.098 + 4,096 = 20 thousand tokens are kept free of 50.
        ([made.decode(40, 25_000, pool=50_000)] * 60, {"tokens": 50_000}, "may still write"),
    ],
)
def test_what_holds_throughput_back(lines, config, words):
    assert words in predict.load(made.session(lines, **config)).limit


@pytest.mark.parametrize(
    "lines",
    [
        [made.decode(40, 30_000, queue=0)] * 60,
        [made.decode(20, 10_000)] * 60,
        [made.decode(40, 30_000, mamba_usage=1.0)] * 60,
    ],
)
def test_a_larger_pool_does_nothing_where_it_is_not_the_limit(lines):
    assert gain(made.session(lines), Change(pool=2)).mid == pytest.approx(1.0)


def test_a_raised_cap_lets_in_those_that_wait():
    lines = [made.decode(48, 48_000, queue=52, pool=400_000)] * 60
    data = made.session(lines, tokens=400_000, max_running_req=48)
    # 48: 30 + 24 + 4.8 = 58.8 ms; 100: 30 + 50 + 10 = 90 ms.
    assert gain(data, Change(cap=200)).mid == pytest.approx((100 / 90) / (48 / 58.8))
    assert gain(data, Change(pool=2)).mid == pytest.approx(1.0)


def test_between_the_crests_of_a_full_pool_it_is_still_the_limit():
    # Usage saw-tooths: 0.95, then 0.6 as requests finish together.
    wave = ([made.decode(40, 102_600)] * 5 + [made.decode(26, 65_000)] * 5) * 6
    assert predict.load(made.session(wave)).bound_share == 1.0


def pd_decode(running, token, prealloc, transfer=0, ahead=0.0, pool=100_000):
    """Return one line of a PD decode server, which queues nothing but for preallocation."""
    return made.decode(
        running,
        token,
        queue=0,
        pool=pool,
        prealloc_req=prealloc,
        transfer_req=transfer,
        retracted_req=0,
        pre_allocated_usage=ahead,
    )


def test_the_reserve_of_a_pd_decode_server_fills_its_pool():
    # 120 requests of 300 tokens use 0.36 of the pool, and 120 x 512 tokens keep 0.61 free.
    data = made.session([pd_decode(120, 36_000, 100)] * 60, tokens=100_000, role="decode")
    load = predict.load(data)
    assert load.bound_share == 1.0
    assert "the KV pool, 512 tokens of it kept free for each request held" in load.limit
    # 120: 30 + 60 + 3.6 = 93.6 ms. All 220: 30 + 110 + 6.6 = 146.6 ms.
    found = predict.estimate(load, Change(pool=2))
    assert found.mid == pytest.approx((220 / 146.6) / (120 / 93.6))


def test_a_lower_reserve_leaves_room():
    # 120 x 128 tokens keep 0.15 free beside 0.36.
    args = {"num_reserved_decode_tokens": 128}
    lines = [pd_decode(120, 36_000, 100)] * 60
    load = predict.load(made.session(lines, tokens=100_000, role="decode", args=args))
    assert (load.bound_share, load.limited_by) == (0.0, "other")


def test_a_pd_decode_server_is_measured_while_requests_wait_for_room():
    # 130 requests of 600 tokens: 0.52, and 130 x 512 tokens are 0.44 of the pool. Later two run
    # with 500 tokens each, while 38 in transfer hold 0.38 of the pool: no warm-up before it.
    full = pd_decode(130, 78_000, 60, pool=150_000)
    late = pd_decode(2, 58_000, 0, transfer=38, ahead=0.38, pool=150_000)
    load = predict.load(made.session([full] * 30 + [late] * 60, tokens=150_000, role="decode"))
    assert load.bound_share == pytest.approx(29 / 89)  # the first line has no interval
    assert load.throughput == pytest.approx(40 * 130 / 2.4)
    assert load.lines["tokens"].to_list() == [78_000.0] * 29


def test_few_lines_give_a_wide_range():
    found = gain(made.session([FULL], model=False), Change(pool=2))
    # Between a tenth and nine tenths of the step do not depend on the batch.
    assert found.low == pytest.approx(2 / 1.9, rel=0.08)
    assert found.high == pytest.approx(2 / 1.1, rel=0.08)
    assert found.low < found.mid < found.high


def test_where_requests_and_tokens_move_together_fp8_has_a_wide_range():
    lines = [made.decode(r, 2_500 * r, queue=100) for r in range(30, 42)] * 8
    together = gain(made.session(lines), Change(pool=2, kv_bytes=0.5))
    apart = [
        made.decode(r, 2_500 * r + 4_000 * (i % 7 - 3), queue=100)
        for i, r in enumerate(list(range(30, 42)) * 8)
    ]
    told = gain(made.session(apart), Change(pool=2, kv_bytes=0.5))
    assert together.high - together.low > told.high - told.low


def test_a_known_bandwidth_narrows_what_tokens_may_cost():
    # 70,272 bytes at 702.72 GB/s are 0.1 us a token; at 45 % of the peak 0.222 us.
    lines = [made.decode(r, 2_500 * r) for r in range(30, 42)] * 8
    data = made.session(lines)
    free = gain(data, Change(pool=2, kv_bytes=0.5))
    known = gain(data, Change(pool=2, kv_bytes=0.5), bandwidth=702.72e9, cell=70_272)
    assert known.low > free.low


def test_prefill_that_takes_most_of_the_time_is_the_limit():
    # 1,000 new tokens of 4 ms each are 4 of the 5 s of each interval.
    prompt = {"phase": "prefill", "new_seq": 1, "new_token": 1_000, "running_req": 40,
              "queue_req": 0, "token_usage": 0.28}  # fmt: skip
    line = made.decode(40, 30_000, queue=0, dt_s=5.0)
    args = {"decode_log_interval": 40}
    slow = made.session([prompt, line] * 60, model=replace(made.MODEL, p1_s=0.004), args=args)
    found = predict.load(slow)
    assert found.limited_by == "prefill"
    assert "prefill: it takes 80% of the time" in found.limit
    fast = made.session([prompt, line] * 60, model=replace(made.MODEL, p1_s=0.002), args=args)
    assert "nothing waits" in predict.load(fast).limit  # 40 % of the time


def test_what_retracted_requests_compute_again_does_not_grow():
    prompts = [{"phase": "prefill", "new_seq": 1, "new_token": 1_000, "running_req": 40,
                "queue_req": 100, "token_usage": 0.93}, FULL] * 60  # fmt: skip
    slow = replace(made.MODEL, p1_s=0.0012)  # 1.2 s of prefill in every interval
    args = {"decode_log_interval": 40}
    fresh = gain(made.session(prompts, model=slow, args=args), Change(pool=2))
    lost = [{"source": "made.log", "line_no": 12, "kind": "retract", "num_retracted_reqs": 5,
             "new_tokens_gained": 30_000}]  # fmt: skip
    again = gain(made.session(prompts, model=slow, args=args, events=lost), Change(pool=2))
    # 40 steps of 60 ms and 1.2 s; 40 of 90 ms and 2.4 s, of which half would not grow.
    assert fresh.mid == pytest.approx((80 / (90 + 60)) / (40 / (60 + 30)), rel=1e-6)
    assert again.mid == pytest.approx((80 / (90 + 15 + 30)) / (40 / (60 + 30)), rel=1e-6)


def test_ranks_count_together():
    both = [{**FULL, "dp_rank": rank} for _ in range(40) for rank in (0, 1)]
    found = predict.load(made.session(both))
    assert found.ranks == 2
    assert found.throughput == pytest.approx(2 * 40 / 0.060)


def test_lines_after_a_silence_do_not_count():
    data = made.session(SATURATED)
    late = data.batch.with_row_index().with_columns(
        time=made.pl.when(made.pl.col("index") >= 40)
        .then(made.pl.col("time") + made.timedelta(hours=1))
        .otherwise("time")
    )
    assert predict.load(data).lines.height == 59  # the first has no interval
    cut = replace(data, batch=late.drop("index"))
    assert predict.load(cut).lines.height == 58


def test_no_decode_line_gives_no_answer():
    assert predict.load(made.session([])) is None


def test_time_left():
    assert predict.time_left(1_000, Estimate(10.0, 20.0, 40.0)) == Estimate(25.0, 50.0, 100.0)
    assert predict.scaled(Estimate(1.0, 2.0, 3.0), 2.0) == Estimate(2.0, 4.0, 6.0)


# -- against the simulator -----------------------------------------------------------------


@pytest.fixture(scope="module")
def simulator(simulator):
    simulator.sc("replay_double", **{**simulator.SC["seeds_replay"], "capacity": 318_554})
    return simulator


def measured(simulator, name, seed, folder):
    """Run a scenario; return its log and its generated token/s from second 900 to the end."""
    settings = {key: value for key, value in simulator.SC[name].items() if key != "desc"}
    run = simulator.Sim(name, settings, seed, str(folder))
    run.run()
    settled = [second["gen"] for second in run.sec[900:]]
    return folder / f"{name}.log", sum(settled) / len(settled)


def judged(simulator, seed, folder):
    """Return (estimate, truth) of doubling the pool in bf16 and by fp8."""
    log, now = measured(simulator, "seeds_replay", seed, folder)
    (data,) = plan.read_logs([str(log)])
    load = predict.load(data)
    return [
        (
            predict.estimate(load, change, cell=data.session.capacity.bytes_per_token),
            measured(simulator, name, seed, folder)[1] / now,
        )
        for name, change in (
            ("replay_double", Change(pool=2)),
            ("seeds_fp8_double", Change(pool=2, kv_bytes=0.5)),
        )
    ]


def test_a_doubled_pool_in_the_simulator(simulator, tmp_path):
    for found, truth in judged(simulator, 0, tmp_path):
        assert found.mid == pytest.approx(truth, rel=0.10)
        assert found.low <= truth <= found.high


def test_a_doubled_pool_of_a_pd_decode_server_in_the_simulator(simulator, tmp_path):
    # Before its link slows down at second 900, preallocation waits for room all the time.
    rates = {}
    for pool in (150_000, 300_000):
        settings = {**simulator.SC["pd_decode_backlog"], "capacity": pool, "duration": 600}
        settings.pop("desc")
        run = simulator.Sim(f"pd_{pool}", settings, 0, str(tmp_path))
        run.run()
        settled = [second["gen"] for second in run.sec[60:]]
        rates[pool] = sum(settled) / len(settled)
    (data,) = plan.read_logs([str(tmp_path / "pd_150000.log")])
    load = predict.load(data)
    found = predict.estimate(load, Change(pool=2), cell=data.session.capacity.bytes_per_token)
    truth = rates[300_000] / rates[150_000]
    assert load.throughput == pytest.approx(rates[150_000], rel=0.03)
    assert found.mid == pytest.approx(truth, rel=0.10)
    assert found.low <= truth <= found.high


@pytest.mark.bench
def test_a_doubled_pool_in_ten_seeds(simulator, tmp_path):
    answers = [judged(simulator, seed, tmp_path) for seed in range(10)]
    for kind in zip(*answers, strict=True):
        for found, truth in kind:
            print(f"{found.mid:.3f} [{found.low:.3f} to {found.high:.3f}], true {truth:.3f}")
            assert found.mid == pytest.approx(truth, rel=0.10)
        assert sum(found.low <= truth <= found.high for found, truth in kind) >= 8
