"""Logs in the shape of real ones, each with a cause that is easily mistaken, judged by hand."""

from dataclasses import replace

import pytest
from synth import sessions

from loganalyze import plan, rules
from loganalyze.capacity import pool
from loganalyze.report import words

SIZES = "chunked_prefill_size=8192, max_prefill_tokens=16384"


def stamp(second, rank="TP0"):
    minute, rest = divmod(int(second), 60)
    return (
        f"[2026-07-25 {10 + minute // 60}:{minute % 60:02}:{rest:02}{' ' + rank if rank else ''}]"
    )


def args(**values):
    said = ", ".join(f"{k}={v!r}" for k, v in {"model_path": "/m", **values}.items())
    return f"{stamp(0, '')} server_args=ServerArgs({said})"


def size(tokens, cap, rank="TP0", free=6.1):
    return (
        f"{stamp(1, rank)} max_total_num_tokens={tokens}, {SIZES}, max_running_requests={cap}, "
        f"context_len=262144, available_gpu_mem={free:.2f} GB"
    )


def decode(second, running, fields, rate, queue=0, rank="TP0", graph=True):
    return (
        f"{stamp(second, rank)} Decode batch, #running-req: {running}, {fields}, "
        f"cuda graph: {graph}, gen throughput (token/s): {rate:.2f}, #queue-req: {queue}"
    )


def prefill(second, fields, running, queue=0, seqs=1, new=351, cached=36, rank="TP0", more=""):
    return (
        f"{stamp(second, rank)} Prefill batch, #new-seq: {seqs}, #new-token: {new}, "
        f"#cached-token: {cached}, {fields}, #running-req: {running}, #queue-req: {queue}, "
        f"{more}cuda graph: False, input throughput (token/s): 117.00"
    )


def plain(tokens, token):
    return f"#token: {token}, token usage: {token / tokens:.2f}"


def judged(lines):
    """Return the findings by code, and the verdict."""
    data = sessions("\n".join(lines) + "\n")
    outcomes = rules.run(data)
    assert not [o for o in outcomes if o.status == "error"]
    return {f.code: f for f in rules.findings(outcomes)}, rules.conclude(outcomes, data)


def changes(finding):
    """Return flag -> (present, proposed) of what a finding advises."""
    return {a.flag: (a.present, a.proposed) for a in finding.actions if a.flag}


# -- flags that DP attention divides ----------------------------------------------------------

RANKS = [f"DP{i} TP{i}" for i in range(8)]


def dp_log(arguments, cap, running, token, queue, lines=60):
    """Eight ranks of 400,000 tokens each, a line a rank and second."""
    out = [arguments] if arguments else []
    out += [size(400_000, cap, rank) for rank in RANKS]
    for i in range(lines):
        fields = plain(400_000, token + 100 * (i % 5))
        out += [decode(60 + i, running, fields, 560, queue, rank) for rank in RANKS]
    return out


DP = {"dp_size": 8, "tp_size": 8, "enable_dp_attention": True}


@pytest.mark.parametrize(
    ("arguments", "present"), [(args(max_running_requests=128, **DP), 128), (None, 128)]
)
def test_the_cap_is_proposed_for_the_server_and_not_for_a_rank(arguments, present):
    # 16 run and 24 wait on each of 8 ranks: 40 x 8 = 320; 16 x 8 = 128 now.
    found, _ = judged(dp_log(arguments, 16, 16, 54_400, 24))
    assert changes(found["RUN001"])["--max-running-requests"] == (present, 320)


def test_a_cap_against_retractions_is_the_servers_too():
    # 400,000 / 13,000 tokens a request: 30 fit, 1.2 x 30 = 36 on each rank, 288 in all.
    lines = dp_log(args(max_running_requests=512, **DP), 64, 30, 390_000, 9)
    thrown = [
        f"{stamp(60 + i, rank)} KV cache pool is full. Retract requests. #retracted_reqs: 1, "
        "#new_tokens_gained: 9000, #new_token_ratio: 0.0980 -> 0.3000"
        for i in range(0, 60, 3)
        for rank in RANKS
    ]
    found, _ = judged(sorted(lines + thrown, key=lambda line: line[:21]))
    assert changes(found["KV004"])["--max-running-requests"] == (512, 288)


def test_the_plan_shows_the_present_cap_of_the_server():
    (data,) = sessions("\n".join(dp_log(args(**DP), 16, 16, 54_400, 24)) + "\n")
    measured = replace(data, session=replace(data.session, capacity=pool.measure(data)))
    (cap,) = [
        one
        for one in plan.make([measured], plan.Wish(), []).levers
        if one.flag and one.flag.startswith("--max-running-requests")
    ]
    assert cap.present == 128
    # 400,000 x 8 / about 3,412 tokens a request.
    assert 936 <= cap.proposed <= 940


def test_replicas_of_plain_data_parallelism_each_take_the_whole_flag():
    found, _ = judged(
        dp_log(args(max_running_requests=16, dp_size=8, tp_size=1), 16, 16, 54_400, 24)
    )
    assert changes(found["RUN001"])["--max-running-requests"] == (16, 40)


def test_a_flag_without_a_value_is_printed_without_one():
    found, _ = judged(
        [args(enable_hierarchical_cache=True), size(100_000, 512)]
        + [decode(60 + i, 30, plain(100_000, 95_000), 600, 20) for i in range(120)]
    )
    (action,) = [a for a in found["KV008"].actions if a.flag]
    assert words.change(action) == "without --enable-hierarchical-cache"


# -- the running cap --------------------------------------------------------------------------


def mamba(token, num, usage, tokens=400_000):
    return (
        f"#full token: {token}, full token usage: {token / tokens:.2f}, mamba num: {num}, "
        f"mamba usage: {usage:.2f}"
    )


CUTS = [
    "max_running_requests was reduced from the requested 74 to 26 (per dp worker) due to the "
    "available KV cache capacity.",
    "max_running_requests reduced from the requested 74 to 26 (per dp worker), bound by "
    "mamba_state_pool (max_mamba_cache_size=131 / 5 slots per request)",
    None,
]


@pytest.mark.parametrize("cut", CUTS)
def test_a_cap_that_the_server_cut_is_not_raised_by_asking_again(cut):
    found, _ = judged(
        [args(max_running_requests=74, tp_size=1)]
        + ([f"{stamp(1)} {cut}"] if cut else [])
        + [size(400_000, 26)]
        + [decode(60 + i, 26, mamba(90_000, 78, 0.6), 900, 48) for i in range(120)]
    )
    cap = found["RUN001"]
    shown = {e.label: e for e in cap.evidence}
    assert shown["cap set by the server"].value == "74 asked for, 26 granted"
    assert shown["cap set by the server"].line_no == (2 if cut else 1)
    assert "KV usage 0.2" in cap.summary  # 90,000 / 400,000, and not the 0.60 of the states
    assert list(changes(cap)) == [
        "--mamba-full-memory-ratio",
        "--mamba-ssm-dtype",
        "--disable-radix-cache",
    ]


def test_a_cap_cut_for_want_of_kv_asks_for_kv():
    found, _ = judged(
        [args(max_running_requests=74, kv_cache_dtype="auto"), f"{stamp(1)} {CUTS[0]}"]
        + [size(400_000, 26)]
        + [decode(60 + i, 26, plain(400_000, 90_000), 900, 48) for i in range(120)]
    )
    assert "--max-running-requests" not in changes(found["RUN001"])
    assert changes(found["RUN001"])["--kv-cache-dtype"] == ("auto", "fp8_e4m3")


def test_half_of_a_small_cap_is_not_the_cap():
    lines = [args(), size(400_000, 4)]
    for i in range(100):
        lines.append(decode(60 + i, 2, plain(400_000, 40_000 + 80 * i), 80, 3))
    found, _ = judged(lines)
    assert "RUN001" not in found
    assert "ADM002" in found["QUE001"].competing  # prefill lines may have been filtered out


def test_the_arguments_tell_the_cap_of_a_rank_where_no_capacity_line_does():
    # 128 // 8 = 16; 15 run on every rank, one prompt in chunks holds the last place.
    lines = [args(max_running_requests=128, chunked_prefill_size=8192, **DP)]
    for i in range(100):
        fields = plain(400_000, 60_000 + 40 * i)
        lines += [decode(60 + i, 15, fields, 560, 1, rank) for rank in RANKS]
    found, verdict = judged(lines)
    assert verdict.primary == "RUN001"
    assert "cap of 16" in found["RUN001"].summary
    shown = {e.label: e for e in found["RUN001"].evidence}
    assert shown["running cap"].formula == "max_running_requests as asked for / 8 DP ranks"
    assert shown["running cap"].line_no == 1


def test_one_spell_of_all_ranks_is_one():
    lines = [args(dp_size=4, enable_dp_attention=True), size(400_000, 16)]
    for i in range(120):
        for rank in range(4):
            fields = plain(400_000, 60_000 + 16 * i)
            lines.append(decode(60 + i, 16, fields, 480, 2, rank=f"DP{rank} TP{rank}"))
    found, _ = judged(lines)
    assert len(found["RUN001"].episodes) == 4
    assert "spells" not in found["RUN001"].summary
    assert "2 waiting per rank" in found["RUN001"].summary


def test_a_pd_decode_server_at_its_cap_waits_in_preallocation():
    lines = [args(disaggregation_mode="decode"), size(4_000_000, 128)]
    for i in range(120):
        fields = plain(4_000_000, 1_400_000) + (
            ", pre-allocated usage: 0.00, #prealloc-req: 40, #transfer-req: 0, #retracted-req: 0"
        )
        lines.append(decode(60 + i, 128, fields, 4000))
    found, verdict = judged(lines)
    assert verdict.primary == "RUN001"
    assert "40 waiting" in found["RUN001"].summary
    # 128 + 40 of those 4,000,000 / 10,937 = 365 that KV has room for.
    assert changes(found["RUN001"])["--max-running-requests"] == (128, 168)


# -- Mamba states -----------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "advised"), [(1, False), (3, True)])
def test_the_prefix_cache_is_given_up_only_where_it_takes_slots(slots, advised):
    found, _ = judged(
        [args(), size(2_000_000, 64)]
        + [
            decode(60 + i, 20, mamba(300_000, 20 * slots, 1.0, 2_000_000), 1174, 6)
            for i in range(60)
        ]
    )
    shown = {e.label: e.value for e in found["MAM001"].evidence}
    assert shown["state slots per running request"] == slots
    off = [a for a in found["MAM001"].actions if a.flag == "--disable-radix-cache"]
    assert [words.change(a) for a in off] == (["--disable-radix-cache"] if advised else [])


# -- a share of prefill that nothing shows ----------------------------------------------------


def starting(seconds, decodes):
    """A full pool in which a request is let in every third second, a decode line each second."""
    lines = []
    for i in range(seconds):
        if i % 3 == 2:
            lines.append(prefill(i, "token usage: 0.92", 39, 29, more="#pending-token: 11000, "))
        if decodes:
            lines.append(
                decode(i, 40, plain(88_000, 80_000 + 90 * (i % 5)), 1600, 30, graph=False)
            )
    return lines


@pytest.mark.parametrize("seconds", [600, 11])  # enough lines for a model, and too few
def test_prefill_lines_among_decode_lines_are_not_a_share_of_time(seconds):
    # 1,600 token/s / 40 requests x 40 steps: a decode line takes the second that it covers.
    found, verdict = judged(starting(seconds, decodes=True))
    assert verdict.primary == "KV001"
    assert "PRE001" not in found


def test_prefill_lines_alone_are_one():
    found, _ = judged(starting(120, decodes=False))
    (share, *_) = found["PRE001"].evidence
    assert share.value == 0.8
    assert share.formula.startswith("no step model")
    assert found["PRE001"].confidence == "low"


def test_mixed_batches_decode_without_a_decode_line():
    found, _ = judged([args(enable_mixed_chunk=True), *starting(120, decodes=False)])
    assert "PRE001" not in found


# -- a pool that fills without a queue --------------------------------------------------------


def window(token, swa, tokens, n_swa):
    return (
        f"#full token: {token}, full token usage: {token / tokens:.2f}, #swa token: {swa}, "
        f"swa token usage: {swa / n_swa:.2f}, accept len: 3.10, accept rate: 0.52"
    )


def test_a_window_pool_filled_by_one_request_again_and_again():
    # 260 tokens a second into 78,000: full after 300 s, thrown back, and anew.
    lines = [args(speculative_algorithm="DFLASH"), size(778_000, 64)]
    for again in range(2):
        at = 60 + 310 * again
        for i in range(1, 301):
            lines.append(decode(at + i, 1, window(260 * i, 260 * i, 778_000, 78_000), 260))
        lines.append(
            f"{stamp(at + 301)} KV cache pool is full. Retract requests. #retracted_reqs: 1, "
            "#new_tokens_gained: 78000, #new_token_ratio: 0.0980 -> 1.0000"
        )
    found, verdict = judged(lines)
    assert (verdict.status, verdict.primary) == ("saturated", "SWA001")
    lost = found["SWA001"]
    # Usage grows from 0.60 to 1.00 in each spell: 0.80 on average.
    assert "pool is too full for the next request" in lost.summary
    assert "2 times a running request was thrown back" in lost.summary
    assert "tokens that left the window are not freed" in lost.summary
    assert lost.actions[0].text.startswith("Upgrade, or test without speculative decoding")
    shown = {e.label: e.value for e in lost.evidence}
    kept = "sliding-window tokens per request, as many as full-attention tokens"
    assert shown[kept] == 78_000
    # From usage 0.60 (180 s) to the retraction, twice.
    assert [e.duration_s for e in lost.episodes] == pytest.approx([120, 120], abs=5)


def test_images_that_are_not_ready_are_no_lack_of_clients():
    lines = [args(), size(400_000, 64)]
    for i in range(100):
        more = "waiting-image-req: 47, "
        lines.append(prefill(60 + i, "token usage: 0.05", 2, 0, new=3000, more=more))
    found, verdict = judged(lines)
    assert "CLI001" not in found
    assert verdict.primary == "QUE001"
    assert "47 wait for their images" in found["QUE001"].summary
    assert "encoder" in found["QUE001"].actions[0].text


# -- a queue that the log does not explain ----------------------------------------------------


def test_a_queue_with_an_unknown_cap_names_the_cap_first():
    """Whether places change hands does not show: the log has decode lines only."""
    lines = [f"{stamp(1)} KV Cache is allocated. #tokens: 750000, KV size: 40.00 GB"]
    lines += [decode(60 + i, 32, plain(750_000, 157_000 + 9 * i), 693, 5) for i in range(135)]
    found, _ = judged(lines)
    queue = found["QUE001"]
    assert "although KV and prefill leave room" in queue.summary
    assert queue.competing.startswith("the running cap (RUN001): 32 run in every decode line")


def test_only_features_that_may_be_on_are_candidates():
    off = {"enable_lora": None, "lora_paths": None, "hicache_storage_backend": None}
    lines = [args(prefill_decode_interval=400, schedule_policy="fcfs", **off), size(750_000, 16)]
    for i in range(120):
        lines.append(prefill(60 + i, "token usage: 0.00", 1, 2))
        lines.append(decode(60 + i, 1, plain(750_000, 900), 40, 2))
    found, _ = judged(lines)
    (action,) = found["QUE001"].actions
    assert "--prefill-decode-interval" in action.text
    assert "LoRA" not in found["QUE001"].summary + action.text


# -- decode steps without a graph -------------------------------------------------------------


def test_one_decode_line_beside_another_ranks_prefill_is_no_missing_graph():
    spec = "accept len: 2.67, accept rate: 0.67"
    found, verdict = judged(
        [prefill(i, "token usage: 0.71", 95, 2, 4, 14_208, 0, f"DP{i} TP0") for i in (0, 1)]
        + [decode(1, 96, f"{plain(590_000, 398_976)}, {spec}", 1609, 5, "DP0 TP0", graph=False)]
    )
    assert "GRF001" not in found
    assert verdict.status == "undetermined"


def test_few_decode_lines_without_a_graph_are_counted_as_such():
    lines = [prefill(0, "token usage: 0.10", 3, 0)]
    lines += [decode(i, 4, plain(100_000, 9_000), 400, graph=i > 2) for i in range(1, 5)]
    found, _ = judged(lines)
    assert "in 2 of 4 decode lines" in found["GRF001"].summary


@pytest.mark.parametrize(
    ("given", "running", "flags"),
    [
        ({"disable_cuda_graph": True}, 30, ["--disable-cuda-graph"]),
        ({"disable_decode_cuda_graph": True}, 30, ["--disable-decode-cuda-graph"]),
        # Nobody says: too few for a size that is not captured by default, or perhaps too many.
        ({}, 8, ["--disable-cuda-graph"]),
        ({}, 30, ["--disable-cuda-graph", "--cuda-graph-max-bs-decode"]),
        ({"disable_cuda_graph": False}, 30, ["--cuda-graph-max-bs-decode"]),
    ],
)
def test_graphs_that_no_decode_line_replays_may_be_switched_off(given, running, flags):
    lines = [args(schedule_policy="fcfs", cuda_graph_max_bs_decode=None, **given)] if given else []
    newest = ", fwd occupancy: 90.00%, fwd+idle occupancy: 95.00%"  # 0.5.21 on
    lines += [
        decode(i, running, plain(100_000, 9_000), 400, graph=False) + newest for i in range(60)
    ]
    found, verdict = judged(lines)
    assert verdict.primary == "GRF001"
    assert [a.flag for a in found["GRF001"].actions] == flags
    assert (f"{flags[0]} is set" in found["GRF001"].summary) == any(given.values())
    _, short = judged(lines[:10])
    assert short.primary == (None if any(given.values()) else "GRF001")


@pytest.mark.parametrize("at_first", [152, 100])
def test_a_missing_graph_costs_what_steps_of_like_batches_say(at_first):
    # A step takes 20 ms with a graph, running / 0.020 token/s, and 30 ms without: 1.5 times.
    # Nobody knows what 164 running would take with one where no more than 100 ran with it.
    lines = [args(cuda_graph_max_bs=160, max_running_requests=512)]
    for i in range(120):
        running, step = (at_first, 0.020) if i < 60 else (164, 0.030)
        fields = plain(700_000, 1_000 * running)
        lines.append(decode(60 + i, running, fields, running / step, graph=i < 60))
    graph = judged(lines)[0]["GRF001"]
    assert "more than 160 requests run" in graph.summary
    (cost,) = [e for e in graph.evidence if e.label.startswith("step time")]
    if at_first == 152:
        assert (cost.value, cost.unit) == (pytest.approx(1.5, rel=0.01), "x")
        assert "to 164 running, without, against 59 at 152, with" in cost.formula
    else:
        assert cost.value.startswith("cannot tell from this log")


def test_the_largest_graph_is_not_said_where_nobody_printed_it():
    lines = [size(700_000, 512)]
    for i in range(120):
        running = 100 if i < 60 else 164
        lines.append(decode(60 + i, running, plain(700_000, 99_000), 5_000, graph=i < 60))
    assert "164 or more requests run, and at most 100 ran with a graph" in (
        judged(lines)[0]["GRF001"].summary
    )


# -- more requests than complete ---------------------------------------------------------------


def test_arrivals_count_what_joined_the_queue_and_what_joined_the_batch():
    # Each minute 30 start, running requests grow by 2 and the queue by 10: 28 complete, 40
    # arrive. After eleven minutes the queue of 110 drains again, which is no more overload.
    lines = [size(4_000_000, 512)]
    for i in range(780):
        running = 30 + min(i, 660) // 30
        queue = i // 6 if i < 660 else 110 - (i - 660) // 2
        if i % 2 == 0:
            lines.append(prefill(60 + i, "token usage: 0.01", running - 1, queue))
        fields = plain(4_000_000, 1_000 * running)
        lines.append(decode(60 + i, running, fields, 40 * running, queue))
    overload = judged(lines)[0]["OVR001"]
    value = {e.label: e.value for e in overload.evidence}
    assert value["growth of the queue"] == pytest.approx(10, rel=0.02)
    assert value["completions"] == pytest.approx(28, rel=0.02)
    assert value["arrivals"] == pytest.approx(40, rel=0.02)
    assert f"grows by {value['growth of the queue']} a minute" in overload.summary
    (episode,) = overload.episodes
    assert 600 <= episode.duration_s <= 660


# -- giant prompts ----------------------------------------------------------------------------


def giants():
    """A prompt of 40 chunks, 1.4 s each, in which 12 running requests wait; then they decode."""
    lines = [args(chunked_prefill_size=8192), size(4_000_000, 256)]
    at = 60.0
    for _ in range(6):
        for i in range(40):
            more = f"#pending-token: {8192 * (40 - i)}, "
            usage = f"token usage: {0.05 + 8192 * i / 4_000_000:.2f}"
            lines.append(prefill(at, usage, 12, 18, 1, 8192, 0, more=more))
            at += 1.4
        lines.append(prefill(at, "token usage: 0.14", 12, 0, 18, 3000, 0))
        for _ in range(20):
            at += 1
            lines.append(decode(at, 30, plain(4_000_000, 500_000), 1200))
    return lines


def test_those_behind_a_giant_prompt_wait_for_it_and_not_for_admission():
    found, verdict = judged(giants())
    assert verdict.primary == "PRE003"
    assert {"ADM001", "ADM002", "ADM003"}.isdisjoint(found)
    assert found["PRE001"].explained_by == "PRE003"
    # All chunks of a prompt are computed before the next decode, however small they are.
    advice = {**changes(found["PRE001"]), **changes(found["PRE003"])}
    assert "--chunked-prefill-size" not in advice
    assert "server of their own" in found["PRE003"].actions[0].text


# -- a full KV pool ---------------------------------------------------------------------------


def thrown(second, count=1, gained=9000):
    return (
        f"{stamp(second, 'TP0')} KV cache pool is full. Retract requests. "
        f"#retracted_reqs: {count}, #new_tokens_gained: {gained}, "
        "#new_token_ratio: 0.0980 -> 0.3000"
    )


def test_two_requests_that_hold_the_whole_pool():
    lines = [decode(5 * i, 2, plain(300_000, 300_000), 11) for i in range(5)]
    found, verdict = judged([*lines, thrown(26)])
    assert verdict.primary == "KV001"
    assert "with running requests thrown back in 5 of 5 lines" in verdict.headline
    assert "two requests hold the whole pool, 150,000 tokens each" in verdict.headline
    assert "outputs that never stop" in found["KV001"].actions[0].text
    assert "KV003" not in found


def test_free_memory_is_measured_against_the_pool():
    # 6.56 - 5 = 1.56 GiB of 36 GiB are 0.04, which gives 1.44 GiB: 45 % of 3.18 GiB.
    start = [
        args(mem_fraction_static=0.72, kv_cache_dtype="fp8_e4m3"),
        f"{stamp(1)} Load weight begin. avail mem=36.00 GB",
        f"{stamp(1)} KV Cache is allocated. #tokens: 37000, KV size: 3.18 GB",
        size(37_000, 2048, free=6.56),
    ]
    lines = [decode(60 + i, 30, plain(37_000, 35_400), 600, 9) for i in range(120)]
    found, _ = judged(start + lines)
    assert changes(found["KV001"])["--mem-fraction-static"] == (0.72, 0.76)
    assert "1.4 GiB hold" in found["KV001"].actions[0].effect
    assert "(+45% KV)" in found["KV001"].actions[0].effect
    # The same memory beside a pool of 31.8 GiB is no tenth of it.
    start[2] = f"{stamp(1)} KV Cache is allocated. #tokens: 37000, KV size: 31.80 GB"
    found, _ = judged(start + lines)
    assert "--mem-fraction-static" not in changes(found["KV001"])


def test_retractions_without_a_full_pool_name_memory_first():
    start = [
        args(mem_fraction_static=0.72, schedule_conservativeness=0.1),
        f"{stamp(1)} KV Cache is allocated. #tokens: 37000, KV size: 3.18 GB",
        size(37_000, 2048, free=6.56),
    ]
    lines = []
    for i in range(80):
        lines.append(decode(60 + i, 30, plain(37_000, 30_000), 600))
        if i % 6 == 5:
            lines.append(thrown(60 + i))
    found, _ = judged(start + lines)
    assert "KV001" not in found
    assert found["KV004"].actions[0].flag == "--mem-fraction-static"


def slow_lines(graph):
    """A minute at 0.25 s a line with a graph, a minute at 1 s a line, all of them full."""
    lines = [args(), size(100_000, 512)]
    for i in range(240):
        fields = plain(100_000, 95_000 + 40 * (i % 9))
        lines.append(decode(60 + i / 4, 30, fields, 40 * 30 / 0.25, 9))
    for i in range(60):
        fields = plain(100_000, 95_000 + 40 * (i % 9))
        lines.append(decode(120 + i, 30, fields, 40 * 30 / 1.0, 9, graph=graph))
    return lines


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (True, "but 60 of them took more than twice the modelled time"),
        (False, "the GPU is not slower than usual; 60 intervals without a CUDA graph left out"),
    ],
)
def test_the_server_is_called_healthy_by_the_lines_that_the_model_is_about(graph, said):
    found, _ = judged(slow_lines(graph))
    (step,) = [e for e in found["KV001"].evidence if e.label.startswith("step time against")]
    assert said in step.formula


def test_a_collapse_is_seen_through_a_batch_that_grew():
    # 4 x 40 / 429 = 0.37 s a line; afterwards 6 x 40 / 24 = 10 s: 27 times, 18 of them at least
    # not the batch's.
    lines = [size(2_650_000, 64)]
    for i in range(60):
        lines.append(decode(i, 4, plain(2_650_000, 2_400_000), 429))
    lines.append(thrown(60))
    for i in range(12):
        lines.append(decode(70 + 7 * i, 6, plain(2_650_000, 2_400_000), 24, 1))
    found, verdict = judged(lines)
    assert verdict.primary == "THR003"
    shown = {e.label: e.value for e in found["THR003"].evidence}
    assert shown["step time after the event over before"] == 17.9  # 429 / 24


# -- disaggregated servers --------------------------------------------------------------------


def pd_fields(tokens, token, prealloc, transfer):
    return (
        f"{plain(tokens, token)}, pre-allocated usage: 0.00, #prealloc-req: {prealloc}, "
        f"#transfer-req: {transfer}, #retracted-req: 0"
    )


def test_the_rank_with_requests_in_preallocation_is_the_one_to_name():
    usages = (0.67, 0.30, 0.20, 0.50, 0.09, 0.94)
    lines = [args(disaggregation_mode="decode", dp_size=6, enable_dp_attention=True)]
    for i in range(120):
        for rank, usage in enumerate(usages):
            fields = pd_fields(100_000, int(usage * 100_000), 21 if rank == 0 else 0, 0)
            lines.append(decode(60 + i, 20, fields, 800, rank=f"DP{rank} TP{rank}"))
    found, _ = judged(lines)
    uneven = found["DPI001"]
    assert "DP0 TP0 at usage 0.67 with 21 waiting, DP4 TP4 at 0.09 with 0" in uneven.summary
    shown = {e.label: e for e in uneven.evidence}
    assert shown["waiting on DP0 TP0"].value == 21
    assert shown["waiting on DP0 TP0"].line_no == 2
    assert found["DPI001"].summary.count("DP0 TP0") == 1


def test_balancing_says_what_an_even_load_gives():
    """Of 63 requests 30 would run on each rank: 2 x 600 token/s instead of 600 + 60."""
    lines = [args(dp_size=2), size(100_000, 512)]
    for i in range(240):
        for rank, usage, running, queue in ((0, 0.9, 30, 30), (1, 0.09, 3, 0)):
            fields = plain(100_000, int(usage * 100_000))
            name = f"DP{rank} TP{rank}"
            lines.append(decode(60 + i, running, fields, 20 * running, queue, rank=name))
    found, _ = judged(lines)
    assert found["DPI001"].actions[0].effect == (
        # x 1.82, within 15 % for what ranks that wait for each other cost: x e^-0.15 to x e^0.15.
        "60 requests run instead of 33, about 1.82 times the throughput (1.56 to 2.11)"
    )


def test_a_transfer_queue_holds_requests_whose_prefill_is_not_done():
    lines = [args(disaggregation_mode="decode"), size(100_000, 512)]
    lines += [decode(60 + i, 10, pd_fields(100_000, 20_000, 0, 22), 400) for i in range(120)]
    found, _ = judged(lines)
    late = found["PDD002"]
    assert (
        "22 in the transfer queue, waiting for their prefill or for the transfer" in late.summary
    )
    assert late.actions[0].text.startswith("Look at the prefill servers first")
    assert late.confidence == "medium"


@pytest.mark.parametrize(
    ("seqs", "bootstrap", "queue", "cause"), [(4, 7, 1, "PRE001"), (1, 9, 0, "PDP001")]
)
def test_a_busy_prefill_server_does_not_wait_for_decode_servers(seqs, bootstrap, queue, cause):
    """A pass takes 4, and during it 7 come: they wait for the next pass. Not so 9 for 1."""
    wait = f"#prealloc-req: {bootstrap}, #inflight-req: 4, "
    lines = [args(disaggregation_mode="prefill", max_prefill_tokens=16384)]
    lines += [
        prefill(60 + i, "token usage: 0.32", 0, queue, seqs, 3584 * seqs, 0, more=wait)
        for i in range(180)
    ]
    found, verdict = judged(lines)
    assert verdict.primary == cause
    assert {"PRE001", "PDP001"} & set(found) == {cause}
    if cause == "PRE001":
        assert "one batch after another" in found[cause].summary
        assert "Add prefill servers" in [a.text for a in found[cause].actions]
        assert "share of time" not in found[cause].evidence[0].label


@pytest.mark.parametrize(("new_token", "waits"), [(8_192, True), (8_000, False)])
def test_a_pass_takes_the_prompts_that_it_begins(new_token, waits):
    """Full passes of 3 #new-seq begin 2 and go on with one, so 5 waiting are more than 2 x 2.

    Those that are not full begin 3.
    """
    wait = "#prealloc-req: 5, #inflight-req: 1, "
    lines = [args(disaggregation_mode="prefill"), size(100_000, 512)]
    lines += [
        prefill(60 + i, "token usage: 0.32", 0, 0, 3, new_token, 0, more=wait) for i in range(180)
    ]
    found, _ = judged(lines)
    assert ("PDP001" in found) is waits


def test_a_transfer_queue_that_requests_pass_quickly_is_no_backlog():
    """5 of 105 wait for their KV, so requests do for a twentieth of their time there."""
    lines = [args(disaggregation_mode="decode"), size(100_000, 512)]
    lines += [decode(60 + i, 100, pd_fields(100_000, 20_000, 0, 5), 4000) for i in range(120)]
    found, verdict = judged(lines)
    assert "PDD002" not in found
    assert verdict.status == "healthy"
    few, short = judged(lines[:12])
    assert "PDD002" not in few
    assert short.status == "undetermined"


@pytest.mark.parametrize("storm", [False, True])
def test_a_decode_server_that_retracts_is_not_told_to_reserve_less(storm):
    """Nor is a full pool nearly full with nothing waiting: 30 wait for preallocation."""
    lines = [
        args(disaggregation_mode="decode", num_reserved_decode_tokens=512),
        size(200_000, 512),
    ]
    for i in range(240):
        lines.append(decode(60 + i, 48, pd_fields(200_000, 196_000, 30, 0), 1500))
        if storm and i % 6 == 5:
            lines.append(
                f"{stamp(60 + i)} KV cache pool is full. Retract requests. #retracted_reqs: 1, "
                "#new_tokens_gained: 4000, #new_token_ratio: 0.1000 -> 0.3000"
            )
    found, verdict = judged(lines)
    assert verdict.primary == "PDD001"
    assert ("--num-reserved-decode-tokens" in changes(found["PDD001"])) is not storm
    assert "--kv-cache-dtype" in changes(found["PDD001"])
    assert "KV003" not in found


@pytest.mark.parametrize(("running", "blocked"), [(300, True), (100, False)])
def test_the_reserve_of_a_decode_server_blocks_at_a_low_usage(running, blocked):
    """512 tokens for each of 300 requests are 0.61 of 250,000: with 0.40 used no prompt fits."""
    lines = [args(disaggregation_mode="decode"), size(250_000, 2048)]
    lines += [
        decode(60 + i, running, pd_fields(250_000, 100_000, 400, 0), 7500) for i in range(120)
    ]
    found, _ = judged(lines)
    assert ("PDD001" in found) is blocked
    if blocked:
        shares = [e.value for e in found["PDD001"].evidence if e.label.startswith("reserved")]
        assert shares == [pytest.approx(300 * 512 / 250_000, abs=0.001)]


@pytest.mark.parametrize(("used", "primary"), [(55_000, "PDD002"), (70_000, "PDD001")])
def test_preallocated_kv_is_part_of_the_usage_that_a_decode_server_prints(used, primary):
    """30,000 of the tokens used are preallocated; up to 0.6 of the pool there is room.

    The reserve is 512 x (20 running + 20 in transfer), 0.20 of it: 0.75 with 0.55, and below 0.95.
    """
    lines = [args(disaggregation_mode="decode"), size(100_000, 512)]
    fields = pd_fields(100_000, used, 30, 20).replace(
        "pre-allocated usage: 0.00", "pre-allocated usage: 0.30"
    )
    assert "0.30" in fields
    lines += [decode(60 + i, 20, fields, 1500) for i in range(120)]
    _, verdict = judged(lines)
    assert verdict.primary == primary


def test_transfers_that_never_end_keep_the_slots_of_those_who_wait():
    """63 transfers and 1 running are the 64 requests that the cap allows; KV is free."""
    lines = [args(disaggregation_mode="decode"), size(900_000, 64)]
    for i in range(40):
        lines.append(decode(60 + i, 40 - i, pd_fields(900_000, 200_000, 0, 1 + i), 1400))
    for i in range(200):
        lines.append(decode(100 + i, 1, pd_fields(900_000, 33_000, 50, 63), 38))
    found, verdict = judged(lines)
    assert verdict.primary == "PDD002"
    late = found["PDD002"].summary
    assert "more wait for preallocation at usage 0.0" in late
    assert late.endswith(": they hold the 64 request slots")
    assert "its transfers never end" in found["PDD002"].actions[1].text
    assert "DRN001" not in found  # nothing drains while requests wait for their KV


def test_requests_that_wait_for_preallocation_with_room_need_a_cause():
    """Neither KV nor the link nor the cap: why is not in the log, and it is not healthy."""
    lines = [args(disaggregation_mode="decode"), size(900_000, 256)]
    lines += [decode(60 + i, 6, pd_fields(900_000, 33_000, 50, 0), 200) for i in range(200)]
    _, verdict = judged(lines)
    assert verdict.status == "undetermined"
    assert "why requests wait: 50 on average at usage 0.04" in verdict.headline
    few = [args(disaggregation_mode="decode"), size(900_000, 256)]
    few += [decode(60 + i, 6, pd_fields(900_000, 33_000, 4, 0), 200) for i in range(200)]
    assert judged(few)[1].status == "healthy"


@pytest.mark.parametrize(("prealloc", "transfer"), [(30, 0), (0, 30)])
def test_one_line_of_a_disaggregated_server_shows_no_backlog(prealloc, transfer):
    line = decode(60, 10, pd_fields(100_000, 80_000, prealloc, transfer), 400)
    _, verdict = judged([args(disaggregation_mode="decode"), size(100_000, 512), line])
    assert verdict.status == "undetermined"


def test_a_rank_without_prefill_lines_stops_no_rule():
    lines = [prefill(i, "token usage: 0.20", 10, rank="DP1 TP1") for i in range(0, 700, 5)]
    for i in range(700):
        lines += [
            decode(i, 10, plain(100_000, 20_000), 400, rank=f"DP{rank} TP{rank}")
            for rank in (0, 1)
        ]
    judged(sorted(lines, key=lambda line: line[:21]))  # asserts that no rule failed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"log_level": "warning"}, "--log-level warning left them out: start the server with"),
        ({"decode_log_interval": 4_000}, "every --decode-log-interval steps (4,000 here); give"),
        ({}, "at --log-level info while requests run, a decode line every --decode-log-interval"),
    ],
)
def test_a_log_without_statistics_names_the_flag_that_logs_them(arguments, said):
    found, verdict = judged([args(**arguments), size(100_000, 512)])
    assert verdict.status == "undetermined"
    assert "it holds no decode or prefill line" in verdict.headline
    assert said in verdict.headline
    assert not found
