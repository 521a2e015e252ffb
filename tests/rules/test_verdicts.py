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
    # 13,000 tokens a request: 1.2 x 400,000 / 13,000 = 37 on each rank, 296 in all.
    lines = dp_log(args(max_running_requests=512, **DP), 64, 30, 390_000, 9)
    thrown = [
        f"{stamp(60 + i, rank)} KV cache pool is full. Retract requests. #retracted_reqs: 1, "
        "#new_tokens_gained: 9000, #new_token_ratio: 0.0980 -> 0.3000"
        for i in range(0, 60, 3)
        for rank in RANKS
    ]
    found, _ = judged(sorted(lines + thrown, key=lambda line: line[:21]))
    assert changes(found["KV004"])["--max-running-requests"] == (512, 296)


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
