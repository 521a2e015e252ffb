"""The levers of a plan: what they promise, in which order, with which flag and risk."""

import json
from dataclasses import replace

import made
import pytest
from click.testing import CliRunner
from model_configs import GLM52, GPT_OSS_120B, KIMI, LLAMA_70B, QWEN3_NEXT
from synth import planted

from loganalyze import plan
from loganalyze.capacity.server import Given
from loganalyze.cli import main
from loganalyze.errors import InputError, UsageError
from loganalyze.model import Coverage, Finding, Report, Verdict
from loganalyze.plan import Changes, Wish
from loganalyze.report import plan_to_text, to_json

ARGS = {
    "mem_fraction_static": 0.88,
    "kv_cache_dtype": "auto",
    "tp_size": 8,
    "decode_log_interval": 40,
    "schedule_conservativeness": 0.3,
}

#: 40 requests with 3,750 tokens each in a pool of 159,277.
FULL = [made.decode(40, 150_000, pool=159_277)] * 60


def founding(lines=FULL, tokens=159_277, args=None, number=1, **config):
    """Return a session like the founding case's: 10.42 GiB of KV, 9.2 GiB free."""
    settings = {
        "kv_pool_tokens": tokens,
        "kv_pool_gib": round(tokens * 70_272 / 2**30, 2),
        "kv_pool_line": 1,
        "available_gpu_mem_gib": 9.2,
    }
    return made.session(
        lines, tokens, args={**ARGS, **(args or {})}, number=number, **{**settings, **config}
    )


def levers(data, *what_if, **wish):
    """Return the plan's levers by name."""
    given = wish.pop("given", Given(config=KIMI, gpu_mem_gib=94.04))
    asked = tuple(plan.read_changes(text) for text in what_if)
    made_plan = plan.make([data], Wish(given=given, what_if=asked, **wish))
    return {lever.name: lever for lever in made_plan.levers}


@pytest.mark.parametrize(
    ("fraction", "tokens"), [("0.93", 231_120), ("0.95", 259_858), ("0.85", 116_171)]
)
def test_a_memory_fraction(fraction, tokens):
    lever = levers(founding(), f"mem-fraction={fraction}")[f"memory fraction {fraction}"]
    assert lever.kv_tokens == pytest.approx(tokens, rel=1e-3)
    assert lever.flag == f"--mem-fraction-static {fraction}"
    assert (lever.present, lever.proposed) == (0.88, float(fraction))


def test_what_a_memory_fraction_leaves():
    found = levers(founding(), "mem-fraction=0.93", "mem-fraction=0.97")
    # 9.2 - 0.05 x 94.04 = 4.5 GiB; 9.2 - 0.09 x 94.04 = 0.7 GiB.
    assert found["memory fraction 0.93"].memory_left_gib == pytest.approx(4.50, abs=0.01)
    assert "less than the 5 GiB advised" in found["memory fraction 0.93"].risk
    assert found["memory fraction 0.97"].memory_left_gib == pytest.approx(0.74, abs=0.01)
    assert "out of memory is likely" in found["memory fraction 0.97"].risk


def test_the_offered_fraction_keeps_six_gib_of_much():
    # (9.2 - 6) / 94.04 = 0.034 more.
    lever = levers(founding())["memory fraction 0.91"]
    assert lever.memory_left_gib == pytest.approx(9.2 - 0.03 * 94.04)


def test_host_memory_decodes_nothing():
    found = plan.make(
        [founding()],
        Wish(
            given=Given(config=KIMI),
            what_if=(plan.read_changes("host-mem-gib=300"), plan.read_changes("hicache-size=48")),
        ),
    )
    hosts = [lever for lever in found.levers if lever.host_tokens is not None]
    assert [lever.host_tokens for lever in hosts] == [572_992, 683_060]
    for lever in hosts:
        assert lever.more_decodes == 0
        assert lever.kv_tokens == 159_277
        assert lever.gain is None
        assert "0 more active decodes" in lever.note
        assert "GPU slots" in lever.note
    assert found.levers[-2:] == hosts  # whatever else there is does more
    assert hosts[0].flag == "--enable-hierarchical-cache --hicache-size 40"


def test_concurrency_is_tokens_by_tokens_held():
    given = Given(config=KIMI, tokens_per_req=4290)
    found = plan.make([founding()], Wish(given=given))
    assert int(found.now.concurrency) == 37
    low = founding(tokens=116_171)
    given = Given(config=KIMI, tokens_per_req=4116)
    assert round(plan.make([low], Wish(given=given)).now.concurrency, 1) == 28.2


def test_measured_throughput_and_rate():
    line = made.decode(35, 150_158, queue=115, pool=159_277, gen_throughput=606.88)
    found = plan.make([founding([line])], Wish())
    assert found.now.throughput.mid == pytest.approx(606.88)
    assert round(found.now.throughput.mid / 35, 2) == 17.34
    assert found.tokens_per_req == pytest.approx(150_158 / 35, abs=0.06)


def test_fp8_doubles_the_pool_and_not_the_throughput():
    lever = levers(founding())["KV in fp8_e4m3"]
    assert lever.kv_tokens == 2 * 159_277
    # 80 run: 30 + 40 + 15 = 85 ms; 40: 30 + 20 + 15 = 65 ms.
    assert lever.gain.mid == pytest.approx((80 / 85) / (40 / 65), rel=1e-3)
    assert lever.gain.high < 2
    assert lever.throughput.mid == pytest.approx(lever.gain.mid * 40 / 0.060, rel=1e-3)
    assert "accuracy" in lever.risk


def test_changes_are_worked_out_alone_and_together():
    found = levers(founding(), "mem-fraction=0.93,kv-dtype=fp8,hicache-size=48")
    both = found["memory fraction 0.93 + KV in fp8"]
    assert both.kv_tokens == pytest.approx(2 * 231_120, rel=1e-3)
    assert both.flag == "--mem-fraction-static 0.93 --kv-cache-dtype fp8_e4m3"
    assert {"memory fraction 0.93", "KV in fp8", "hierarchical cache"} <= set(found)


def test_dp_attention_pays_with_attention_weights():
    # 9.77 GiB of attention weights, on 2 GPUs each instead of 8: 3.66 GiB or 55,979 tokens
    # less per rank; 4 x (159,277 - 55,979). Over 8 ranks it would be 8 x 28,660.
    found = levers(founding())
    lever = found["DP attention over 4"]
    assert lever.kv_tokens == 4 * 103_298
    assert lever.flag == "--enable-dp-attention --dp-size 4"
    assert levers(founding(), "dp-attention=8")["DP attention over 8"].kv_tokens == pytest.approx(
        8 * 28_660, rel=1e-3
    )
    steady = levers(founding())["KV in fp8_e4m3"].gain
    wide = lever.gain.high / lever.gain.low
    assert wide > steady.high / steady.low  # other collectives: less is known


def test_without_a_config_dp_attention_is_named_and_not_guessed():
    pool = [{"kind": "kv_cache_allocated", "kv_size_gb": 10.42, "num_tokens": 159_277}]
    data = made.session(FULL, 159_277, args=ARGS, startup=pool)
    lever = levers(data, given=Given())["DP attention over 8"]
    assert lever.kv_tokens is None
    assert lever.gain is None
    assert "--model-config" in lever.note


def test_grouped_heads_are_not_replicated():
    found = levers(founding(), given=Given(config=LLAMA_70B))
    assert not any("DP attention" in name or "context parallel" in name for name in found)


def test_the_most_effective_comes_first():
    found = plan.make([founding()], Wish(given=Given(config=KIMI, gpu_mem_gib=94.04)))
    gains = [lever.gain.mid for lever in found.levers if lever.gain]
    assert len(gains) >= 4
    assert gains == sorted(gains, reverse=True)
    assert found.limit.startswith("the KV pool")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("admission that reserves too much", ["--schedule-conservativeness 0.3"]),
        ("a full sliding-window pool", ["--swa-full-tokens-ratio 0.2", "--chunked-prefill-size"]),
        ("all Mamba slots taken", ["--mamba-full-memory-ratio", "--mamba-ssm-dtype bfloat16"]),
        ("backlogs of a PD decode server", ["--num-reserved-decode-tokens 256"]),
        ("running requests at their cap", []),
    ],
)
def test_a_plan_offers_first_what_the_check_advises_against_the_queue(name, flags):
    found = plan.make(planted(name), Wish()).levers
    unweighed = [one for one in found if "the log does not tell by how much" in one.note]
    assert found[: len(unweighed)] == unweighed
    assert len(unweighed) == len(flags)
    for one, flag in zip(unweighed, flags, strict=True):
        assert one.flag.startswith(flag)
        assert one.gain is None
        assert one.throughput is None


def test_flags_that_the_release_lacks_are_not_offered():
    assert not any("context parallel" in name for name in levers(founding()))
    asked = levers(founding(), "dcp=8")["decode context parallel 8"]
    assert asked.flag == ""
    assert asked.kv_tokens is None
    assert "no --dcp-size" in asked.note
    data = founding()
    late = replace(data, session=replace(data.session, release_range=("0.5.16", "0.5.17")))
    offered = levers(late)["decode context parallel 8"]
    assert offered.kv_tokens == 8 * 159_277
    assert offered.flag == "--dcp-size 8"


def test_a_cap_that_binds():
    lines = [made.decode(48, 48_000, queue=52, pool=400_000)] * 60
    data = made.session(lines, 400_000, args=ARGS, max_running_req=48)
    found = levers(data, given=Given())
    raised = found["running cap 400"]
    assert raised.flag == "--max-running-requests 400"
    assert raised.gain.mid == pytest.approx((100 / 90) / (48 / 58.8))
    assert "running cap of 48 per rank binds before" in found["KV in fp8_e4m3"].note


def test_a_fraction_that_crashed_is_not_offered_again():
    crashed = founding(tokens=231_120, args={"mem_fraction_static": 0.93}, number=1)
    crashed = replace(crashed, session=replace(crashed.session, ended_by="crash"))
    again = founding(number=2, available_gpu_mem_gib=12.0)
    wish = Wish(session=2, what_if=(plan.read_changes("mem-fraction=0.94"),))
    (asked,) = [
        x for x in plan.make([crashed, again], wish).levers if x.name == "memory fraction 0.94"
    ]
    assert "session 1 ran with 0.93 and crashed" in asked.risk
    # 12 GiB free would allow 0.95.
    offered = {x.name for x in plan.make([crashed, again], Wish(session=2)).levers}
    assert "memory fraction 0.91" in offered


def out_of_memory(fraction, **more):
    session = founding(
        args={"mem_fraction_static": fraction},
        events=[{"kind": "exception", "message": "torch.OutOfMemoryError: CUDA out of memory."}],
        **more,
    )
    return replace(session, session=replace(session.session, ended_by="crash"))


def test_a_fraction_that_ran_out_of_memory_is_a_limit():
    # 9.2 GiB free: 3.2 of 94.04 GiB would allow 0.93 + 0.03.
    alone = plan.make([out_of_memory(0.93)], Wish(given=Given(config=KIMI, gpu_mem_gib=94.04)))
    assert not any("fraction" in x.name for x in alone.levers)
    assert any(
        "above 0.91 is offered: session 1 ran with 0.93 and ran out" in n for n in alone.notes
    )
    # From 0.90 the same 3.2 GiB would allow 0.93; 0.91 is 0.02 below what died.
    # 231,120 - 0.03 x 1,436,860 tokens of the whole memory = 188,014.
    later = founding(tokens=188_014, args={"mem_fraction_static": 0.90}, number=2)
    both = [out_of_memory(0.93, tokens=231_120), later]
    found = {x.name: x for x in plan.make(both, Wish(session=2)).levers}
    assert "stay at 0.91 or below: session 1" in found["memory fraction 0.91"].note
    assert not [n for n in found if "0.9" in n and "0.91" not in n]
    # 60 requests of 3,750 tokens need more than 0.91 holds.
    wanted = plan.make(both, Wish(session=2, target_concurrency=60))
    assert {x.proposed for x in wanted.levers if x.name.startswith("memory fr")} <= {0.91, None}


def test_another_crash_says_nothing_about_memory():
    hung = founding(events=[{"kind": "watchdog_timeout", "message": "timeout"}])
    hung = replace(hung, session=replace(hung.session, ended_by="crash"))
    assert "memory fraction 0.91" in levers(hung)


def test_what_a_fraction_leaves_of_a_card_of_unknown_size_is_not_known():
    found = levers(founding(), "mem-fraction=0.9", given=Given())["memory fraction 0.9"]
    assert found.memory_left_gib is None
    assert "memory left is not known" in found.risk


def uneven(number=1, release=("0.5.9", "0.5.9")):
    # DP0 is full (0.94) with 100 waiting, DP1 runs 10 with 0.09.
    full = {**made.decode(40, 150_000, pool=159_277, dt_s=2.4), "dp_rank": 0}
    empty = {**made.decode(10, 15_000, queue=0, pool=159_277, dt_s=2.4), "dp_rank": 1}
    data = founding([full, empty] * 60, args={"dp_size": 2, "enable_dp_attention": True})
    return replace(data, session=replace(data.session, release_range=release))


@pytest.mark.parametrize(
    ("release", "flag"),
    [
        ("0.5.9", "--load-balance-method total_tokens"),
        ("0.5.4", "--load-balance-method shortest_queue"),
    ],
)
def test_one_full_rank_is_balanced_first(release, flag):
    found = plan.make([uneven(release=(release, release))], Wish())
    first, *others = found.levers
    assert first.flag == flag
    # min((40 + 10 + 100) / 2, 40) = 40 on each: 80 instead of 50, in steps as long as now.
    assert "80 requests would run instead of 50" in first.note
    assert first.gain.mid == pytest.approx(80 / 50)
    assert "on DP0 alone" in found.limit
    assert "100% of the lines after warm-up" in found.limit
    assert [x for x in others if x.name.startswith("KV in")]
    assert all("helps DP0 alone" in x.note for x in others if x.name.startswith("KV in"))


def test_full_ranks_are_not_uneven():
    both = [{**line, "dp_rank": rank} for line in FULL for rank in (0, 1)]
    found = plan.make([founding(both, args={"dp_size": 2})], Wish())
    assert not [x for x in found.levers if x.name.startswith("even load")]


def test_nothing_is_extrapolated_from_a_leak():
    leak = Finding("leak", [], code="KV010", session=1)
    found = plan.make([founding()], Wish(target_concurrency=50), [leak])
    assert "suspected KV leak" in found.limit
    assert found.target_tokens is None
    assert {x.reaches_target for x in [found.now, *found.levers]} == {None}
    assert {x.gain for x in found.levers} == {None}
    given = plan.make([founding()], Wish(given=Given(tokens_per_req=2_000)), [leak])
    # 159,277 / 2,000
    assert given.now.concurrency == pytest.approx(79.6385)
    other = plan.make([founding()], Wish(), [replace(leak, session=2)])
    assert "leak" not in other.limit


def test_two_sessions_replace_the_size_of_the_card():
    low = founding(tokens=116_171, args={"mem_fraction_static": 0.85}, number=1)
    found = plan.make(
        [low, founding(number=2)],
        Wish(given=Given(config=KIMI), session=2, what_if=(Changes(mem_fraction=0.93),)),
    )
    assert found.total_gib == pytest.approx(94.04, abs=0.01)
    assert any(x.kv_tokens == pytest.approx(231_120, rel=1e-4) for x in found.levers)


def test_without_the_size_of_the_card_the_memory_itself_is_offered():
    found = plan.make([founding()], Wish())
    (lever,) = [x for x in found.levers if x.name == "3.2 GiB more for the pool"]
    assert lever.kv_tokens == pytest.approx(159_277 + 3.2 * 2**30 / 70_272, rel=1e-3)
    assert lever.memory_left_gib == pytest.approx(6.0)
    assert "available_gpu_mem of about 6.0 GB" in lever.note
    assert any("--gpu-mem-gib" in note for note in found.notes)


@pytest.mark.parametrize(
    ("data", "given", "words"),
    [
        (founding(args={"mem_fraction_static": None}), Given(), "give --mem-fraction"),
        (founding(kv_pool_gib=None), Given(), "give --model-config"),
        (founding(), Given(), "give --gpu-mem-gib"),
    ],
)
def test_what_is_missing_for_a_fraction_is_named(data, given, words):
    lever = levers(data, "mem-fraction=0.93", given=given)["memory fraction 0.93"]
    assert lever.kv_tokens is None
    assert words in lever.note


def test_a_pool_without_memory_left_is_said():
    lever = levers(founding(), "mem-fraction=0.70")["memory fraction 0.7"]
    assert lever.kv_tokens == 0
    assert "the server does not start" in lever.risk
    assert lever.gain is None


def test_a_target_names_the_tokens_and_who_reaches_it():
    given = Given(config=KIMI, gpu_mem_gib=94.04, tokens_per_req=4000)
    found = plan.make([founding()], Wish(given=given, target_concurrency=50))
    assert found.target_tokens == 200_000
    assert found.now.reaches_target is False
    by_name = {x.name: x for x in found.levers}
    # 200,000 - 159,277 = 40,723 tokens of 1,436,860: 0.0284 more.
    assert by_name["memory fraction 0.909"].reaches_target is True
    assert by_name["KV in fp8_e4m3"].reaches_target is True
    assert by_name["hierarchical cache"].reaches_target is False


def test_the_time_that_is_left():
    found = plan.make([founding()], Wish(remaining_tokens=2_400_000))
    # 40 requests in steps of 60 ms are 667 token/s.
    assert found.now.eta_s.mid == pytest.approx(2_400_000 / (40 / 0.060), rel=1e-3)
    lever = next(x for x in found.levers if x.name == "KV in fp8_e4m3")
    assert lever.eta_s.mid == pytest.approx(found.now.eta_s.mid / lever.gain.mid, rel=1e-6)
    assert lever.eta_s.low < lever.eta_s.mid < lever.eta_s.high


def test_the_time_of_requests_goes_by_those_that_finish():
    one = {
        "phase": "prefill",
        "new_seq": 1,
        "new_token": 100,
        "running_req": 39,
        "queue_req": 100,
        "token_usage": 0.94,
    }
    found = plan.make([founding([one, *FULL[:1]] * 60)], Wish(remaining_requests=1_000))
    # One starts and one finishes in each 2.4 s.
    assert found.now.eta_s.mid == pytest.approx(1_000 * 2.4, rel=0.01)
    silent = plan.make([founding()], Wish(remaining_requests=1_000))
    assert silent.now.eta_s is None
    assert any("no request finished" in note for note in silent.notes)


def test_log_and_formula_that_disagree_are_named():
    found = plan.make(
        [founding(kv_pool_gib=5.21)], Wish(given=Given(config=KIMI, kv_dtype="bf16"))
    )
    (note,) = [n for n in found.notes if "disagree" in n]
    assert "8 bits, not 16" in note
    assert found.bytes_per_token == pytest.approx(5.21 * 2**30 / 159_277)


def test_an_automatic_dtype_is_read_off_the_size_line():
    found = plan.make([founding(kv_pool_gib=5.21)], Wish(given=Given(config=KIMI)))
    assert found.bytes_per_token == 35_136
    assert not any("fp8" in lever.name for lever in found.levers)


def test_what_fits_a_pd_decode_server_counts_its_reserve():
    # 120 requests hold 300 tokens each: 100,000 / (300 + 512) = 123.2; 300,000 / 812 = 369.5.
    line = made.decode(120, 36_000, queue=0, pool=100_000, pre_allocated_usage=0.0, prealloc_req=9)
    data = made.session([line] * 60, 100_000, role="decode")
    assert data.session.capacity.requests_fit == 123
    found = plan.make([data], Wish(target_concurrency=130, what_if=(Changes(replicas=3),)))
    assert found.now.concurrency == pytest.approx(100_000 / 812)
    assert found.target_tokens == 130 * 812
    assert found.now.reaches_target is False
    three = next(lever for lever in found.levers if lever.name == "3 servers")
    assert three.concurrency == pytest.approx(300_000 / 812)
    assert "300,000 / (300 + 512 kept free) tokens per request = 369.5 requests" in three.formula


def test_the_log_s_own_lines_are_compared():
    agree = plan.make([founding()], Wish()).notes
    assert any("agrees with the printed 159,277" in note for note in agree)
    off = [made.decode(40, 150_000, pool=120_000)] * 60
    assert any("DISAGREES" in note for note in plan.make([founding(off)], Wish()).notes)
    sent = plan.make([made.session(FULL, 159_277, role="decode")], Wish()).notes
    # 1 - 40 x 512 / 159,277 = 0.87; PrefillAdder, which the estimate is of, has no say there.
    assert any("preallocation stops at usage 0.87" in note for note in sent)
    assert not any("admission stops" in note for note in sent)
    other = plan.make([founding(kv_pool_tokens=150_000)], Wish()).notes
    assert any("line 1 allocates 150,000 tokens, line 2 counts 159,277" in n for n in other)
    assert any("admission stops at usage 0.9" in note for note in agree)


def test_every_number_has_its_arithmetic():
    found = levers(founding(), "mem-fraction=0.93,kv-dtype=fp8")
    said = "\n".join(found["memory fraction 0.93 + KV in fp8"].formula)
    for part in ("159,277 tokens x 70,272 bytes = 10.42 GiB", "+0.050 x 1,436,", "576",
                 "tokens per request", "30.0 ms + 0.500 ms x running"):  # fmt: skip
        assert part in said.replace("(512 + 64)", "576")


def test_window_pools_bound_the_requests_too():
    data = made.session(
        [made.decode(40, 60_000, pool=100_000)] * 60, 100_000, args={**ARGS, "tp_size": 1}
    )
    found = plan.make([data], Wish(given=Given(config=GPT_OSS_120B, tokens_per_req=100.0)))
    # 100,000 / 100 = 1,000 in full; 80,000 / 100 = 800 in the window pool.
    assert found.now.concurrency == pytest.approx(800)
    longer = plan.make([data], Wish(given=Given(config=GPT_OSS_120B, tokens_per_req=2_000.0)))
    assert longer.now.concurrency == pytest.approx(50)


def test_states_take_their_share_of_more_memory():
    data = founding(args={"tp_size": 1}, kv_pool_gib=159_277 * 24_576 / 2**30)
    found = levers(data, "mem-fraction=0.89", given=Given(config=QWEN3_NEXT, gpu_mem_gib=80.0))
    more = found["memory fraction 0.89"].kv_tokens - 159_277
    assert more == pytest.approx(0.01 * 80 * 2**30 / 24_576 / 1.9, rel=1e-3)


# -- without a log -------------------------------------------------------------------------


def test_a_server_that_does_not_exist_yet():
    given = Given(config=KIMI, tp=8, gpu_mem_gib=94.04, weights_gib=72.33, mem_fraction=0.88)
    found = plan.make([], Wish(given=given))
    assert found.session is None
    assert found.now.kv_tokens == pytest.approx(159_277, rel=2e-3)
    assert found.now.throughput is None
    assert all(lever.throughput is None for lever in found.levers)
    assert found.cells[0].copies == 8


def test_both_layouts_are_said_where_the_config_does_not_tell():
    found = plan.make([], Wish(given=Given(config=GLM52, tp=8, kv_dtype="fp8_e4m3")))
    assert [cell.bytes_per_token for cell in found.cells] == [55_224, 61_464]
    assert found.bytes_per_token is None
    text = plan_to_text.render(found, explain=False, width=100)
    assert "55,224" in text
    assert "61,464" in text
    chosen = Given(config=GLM52, tp=8, kv_dtype="fp8_e4m3", kv_layout="flashmla")
    assert plan.make([], Wish(given=chosen)).bytes_per_token == 61_464


def test_the_size_line_tells_the_layout():
    data = founding(kv_pool_gib=159_277 * 61_464 / 2**30)
    found = plan.make([data], Wish(given=Given(config=GLM52, kv_dtype="fp8_e4m3")))
    assert found.bytes_per_token == 61_464


def test_draft_layers_take_memory_of_the_pool_from_0_5_15_on():
    given = Given(config=KIMI, gpu_mem_gib=94.04, draft_layers=1)
    data = founding()
    old = levers(data, "mem-fraction=0.93", given=given)["memory fraction 0.93"].kv_tokens
    late = replace(data, session=replace(data.session, release_range=("0.5.16", "0.5.16")))
    new = levers(late, "mem-fraction=0.93", given=given)["memory fraction 0.93"].kv_tokens
    assert old - 159_277 == pytest.approx(0.05 * 94.04 * 2**30 / 70_272, rel=1e-3)
    assert new - 159_277 == pytest.approx(0.05 * 94.04 * 2**30 / (70_272 + 1_152), rel=1e-3)


@pytest.mark.parametrize(
    "asks", [{"kv_cache_scheme": {"num_bits": 8}}, {"kv_cache_quant_algo": "FP8"}]
)
def test_a_checkpoint_with_kv_scales_needs_a_dtype(asks):
    config = {**LLAMA_70B, "quantization_config": asks}
    with pytest.raises(UsageError, match="8-bit KV cache"):
        plan.make([], Wish(given=Given(config=config)))


# -- what is asked -------------------------------------------------------------------------


def test_what_if_takes_sglang_s_spellings_too():
    text = "mem-fraction-static=0.93, --kv-cache-dtype=fp8_e4m3,dp_size=8,dcp-size=2"
    assert plan.read_changes(text) == Changes(
        mem_fraction=0.93, kv_dtype="fp8_e4m3", dp_attention=8, dcp=2
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed=2", "does not know 'speed'"),
        ("mem-fraction=high", "not a number"),
        ("mem-fraction=1.2", "out of range"),
        ("dp-attention=0", "out of range"),
        ("dp-attention=1.5", "not a number"),
        ("hicache-size=nan", "out of range"),
        (" , ", "names no change"),
    ],
)
def test_what_if_refuses_nonsense(text, words):
    with pytest.raises(UsageError, match=words):
        plan.read_changes(text)


@pytest.mark.parametrize(
    ("what_if", "words"), [("kv-dtype=int4", "int4"), ("dp-attention=3", "cannot be split")]
)
def test_impossible_changes_are_errors(what_if, words):
    for config in (KIMI, None):
        with pytest.raises(UsageError, match=words):
            levers(founding(), what_if, given=Given(config=config))


def test_questions_without_an_answer():
    with pytest.raises(InputError, match="nothing to plan with"):
        plan.make([], Wish())
    with pytest.raises(UsageError, match="not both"):
        plan.make([founding()], Wish(remaining_requests=1, remaining_tokens=1))
    with pytest.raises(UsageError, match="no session 7"):
        plan.make([founding()], Wish(session=7))


def test_a_report_has_the_plan_of_the_fullest_session():
    assert plan.for_report([], []) is None
    assert plan.for_report([made.session([], tokens=None)], []) is None
    empty = made.session([], tokens=159_277, number=2)
    found = plan.for_report([founding(), empty], [])
    assert found.session == 1
    assert found == plan.make([founding(), empty], Wish(session=1))


@pytest.mark.parametrize(
    "args",
    [
        {"tp_size": 10**9, "page_size": -3, "kv_cache_dtype": "made_up"},
        {"tp_size": 8, "dp_size": 3, "enable_dp_attention": True},
        {"mem_fraction_static": 7.5, "schedule_conservativeness": float("nan")},
        {"mem_fraction_static": float("inf"), "dp_size": 10**12, "nnodes": 0},
        {"tp_size": "8", "swa_full_tokens_ratio": None, "model_path": ["x"]},
    ],
)
def test_arguments_that_no_server_has_never_break_a_report(args):
    found = plan.for_report([founding(args=args)], [])
    assert found is None or found.now.kv_tokens == 159_277


def test_releases_before_0_4_6_take_e5m2():
    data = founding()
    old = replace(data, session=replace(data.session, release_range=("0.4.3", "0.4.3.post2")))
    assert "KV in fp8_e5m2" in levers(old, given=Given())
    assert "KV in fp8_e4m3" in levers(data, given=Given())


def test_a_plan_survives_the_json_of_a_report():
    report = Report(
        tool_version="1",
        sources=(),
        verdict=Verdict("healthy", None, "", "low"),
        sessions=(),
        findings=(),
        checked=(),
        coverage=Coverage(),
        series=(),
        plan=plan.make([founding()], Wish(given=Given(config=KIMI), remaining_tokens=1_000)),
    )
    text = to_json.dumps(report)
    assert to_json.dumps(to_json.loads(text)) == text
    assert to_json.loads(text).plan.now == report.plan.now


def test_the_text_has_the_table_and_no_line_beyond_the_width():
    wish = Wish(
        given=Given(config=KIMI, gpu_mem_gib=94.04),
        what_if=(plan.read_changes("mem-fraction=0.93"),),
    )
    text = plan_to_text.render(plan.make([founding()], wish), explain=True, width=100)
    assert "memory fraction 0.93" in text
    assert "231,1" in text
    assert "0 more active decodes" in text.replace("\n         ", " ")
    assert max(map(len, text.splitlines())) <= 100


# -- the command ---------------------------------------------------------------------------

LOG = """\
[2026-02-24 12:00:00] server_args=ServerArgs(mem_fraction_static=0.88, tp_size=8, \
kv_cache_dtype='auto', decode_log_interval=40, hicache_size=0)
[2026-02-24 12:00:01 TP0] KV Cache is allocated. #tokens: 159277, KV size: 10.42 GB
[2026-02-24 12:00:02 TP0] max_total_num_tokens=159277, chunked_prefill_size=8192, \
max_prefill_tokens=16384, max_running_requests=2048, context_len=262144, \
available_gpu_mem=9.20 GB
"""


@pytest.fixture
def files(tmp_path):
    config, log = tmp_path / "config.json", tmp_path / "server.log"
    config.write_text(json.dumps(KIMI))
    lines = [
        f"[2026-02-24 12:{10 + i // 20:02}:{i % 20 * 3:02} TP0] Decode batch, #running-req: 35, "
        "#token: 150158, token usage: 0.94, cuda graph: True, gen throughput (token/s): 606.88, "
        "#queue-req: 115\n"
        for i in range(40)
    ]
    log.write_text(LOG + "".join(lines))
    return str(config), str(log)


def run(*args):
    return CliRunner().invoke(main, ["plan", *args])


def test_the_command_plans_from_a_log_and_a_config(files):
    config, log = files
    done = run(
        "--log", log, "--model-config", config, "--gpu-mem-gib", "94.04", "--json",
        "--what-if", "mem-fraction=0.93,host-mem-gib=300", "--tokens-per-request", "4290",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["bytes_per_token"] == 70_272
    assert int(found["now"]["concurrency"]) == 37
    by_name = {lever["name"]: lever for lever in found["levers"]}
    assert by_name["memory fraction 0.93"]["kv_tokens"] == pytest.approx(231_120, rel=1e-3)
    assert by_name["hierarchical cache"]["host_tokens"] == 572_992
    assert by_name["hierarchical cache"]["more_decodes"] == 0


def test_the_command_explains(files):
    config, log = files
    brief = run("--log", log, "--model-config", config)
    whole = run("--log", log, "--model-config", config, "--explain")
    assert brief.exit_code == whole.exit_code == 0
    assert "(512 + 64) x 61 layers x 1 byte = 35,136" not in brief.stdout
    assert "(512 + 64) x 61 layers x 1 byte = 35,136" in " ".join(whole.stdout.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--what-if", "speed=1"], "does not know 'speed'"),
        (["--model-config", "none.json"], "none.json"),
        ([], "nothing to plan with"),
        (["--mem-fraction", "1.5"], "0<x<1"),
    ],
)
def test_mistakes_end_with_2(args, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert done.exit_code == 2
    assert words in done.stderr


def test_an_unknown_architecture_ends_with_2(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_70B, "architectures": ["MadeUpForCausalLM"]}))
    done = run("--model-config", str(path))
    assert done.exit_code == 2
    assert "MadeUpForCausalLM" in done.stderr
