"""A KV leak in a log too short for ten minutes of balance, and what looks like one."""

import pytest

from loganalyze import rules
from loganalyze.rules import selfcheck

#: 20 requests run; each has a prompt of 400 and an output of 600 tokens: at most
#: 400 + 1.6 x 600 = 1,360 tokens each, 27,200 in all.
POOL = 100_000
STARTUP = (
    "[2026-02-24 11:30:00 TP0] max_total_num_tokens={pool}, chunked_prefill_size={chunk}, "
    "max_prefill_tokens=16384, max_running_requests=2048, context_len=32768, "
    "available_gpu_mem=8.00 GB"
)


def log(token, *, started=2, new_token=800, chunk=8192):
    """Return 180 s: each 2 s a decode line of 40 steps, and a prefill of `started` requests.

    40 steps x 20 running = 800 tokens in 2 s: 400 token/s. As many start as finish.
    """
    lines = [STARTUP.format(pool=POOL, chunk=chunk)] if chunk else []
    for i in range(90):
        second = 2 * i
        stamp = f"[2026-02-24 11:{30 + second // 60}:{second % 60:02d} TP0]"
        usage = token / POOL
        lines += [
            f"{stamp} Prefill batch, #new-seq: {started}, #new-token: {new_token}, "
            f"#cached-token: 0, token usage: {usage:.2f}, #running-req: {20 - started}, "
            "#queue-req: 0, ",
            f"{stamp} Decode batch, #running-req: 20, #token: {token}, token usage: {usage:.2f}, "
            "cuda graph: True, gen throughput (token/s): 400.00, #queue-req: 0, ",
        ]
    return "\n".join(lines) + "\n"


def outcome(text):
    (found,) = [o for o in rules.run(selfcheck.read({"a.log": text})) if o.code == "KV010"]
    return found


def test_tokens_that_nobody_can_hold():
    # 180 completions of 20 running: turned over 9 times. 800 x 90 / 180 = 400 output tokens,
    # 400 prompt tokens: at most 20 x (400 + 640) = 20,800 of the 85,000 in use are held.
    found = outcome(log(85_000))
    assert found.status == "fired"
    assert found.finding.confidence == "medium"
    (excess,) = [e for e in found.finding.evidence if e.label == "tokens that nobody holds"]
    assert excess.value == pytest.approx(64_200, rel=0.03)


def test_tokens_that_requests_may_hold():
    assert outcome(log(30_000)).status == "not_applicable"  # 9,200 of 100,000 beyond: too little


def test_few_completions_tell_nothing():
    # One request every 40 s: long contexts, not a leak.
    lines = log(85_000).splitlines()
    kept = [x for i, x in enumerate(lines) if "Prefill" not in x or i % 40 == 1]
    kept = [x.replace("#running-req: 18", "#running-req: 20") for x in kept]
    assert outcome("\n".join(kept) + "\n").status == "not_applicable"


def test_chunks_of_long_prompts_are_no_requests():
    # Without start-up lines each chunk of 8,192 tokens looks like a request of its own.
    found = outcome(log(85_000, started=1, new_token=8192, chunk=None))
    assert found.status == "not_applicable"
    assert "chunked_prefill_size" in found.reason


def test_a_pool_that_holds_less_than_is_in_use_is_another_servers():
    # 85,000 of 100,000 tokens; then one line of 120,000: as where logs of two servers are one.
    text = log(85_000).replace("#token: 85000", "#token: 120000", 1)
    found = outcome(text)
    assert found.status == "not_applicable"
    assert "120,000 tokens in use" in found.reason
    assert "pool of 100,000" in found.reason
