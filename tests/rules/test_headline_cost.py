"""What the primary cause cost, in the words of the headline: worked out by hand."""

from datetime import timedelta

import pytest
from synth import START, capacity, decode, sessions, text

from loganalyze import rules
from loganalyze.model import Verdict


def at(second: float) -> str:
    return f"[{START + timedelta(seconds=second):%Y-%m-%d %H:%M:%S} TP0]"


def prefill(second: float, new_seq: int, new_token: int = 100) -> str:
    return (
        f"{at(second)} Prefill batch, #new-seq: {new_seq}, #new-token: {new_token}, "
        "#cached-token: 0, token usage: 0.96, #running-req: 10, #queue-req: 12"
    )


def retract(second: float, n: int) -> str:
    return (
        f"{at(second)} KV cache pool is full. Retract requests. #retracted_reqs: {n}, "
        "#new_tokens_gained: 311, #new_token_ratio: 0.4213 -> 0.9871"
    )


def verdict(*extra: str, queue: int = 12, running: list[int] | int = 10) -> Verdict:
    lines = [*decode(usage=[0.96] * 401, queue=queue, running=running), *extra]
    data = sessions(text(capacity(), sorted(lines)))
    return rules.conclude(rules.run(data), data)


def test_the_time_waited_is_shared_by_those_that_were_admitted():
    # 12 wait for 400 s, and 20 are admitted: 12 x 400 / 20 = 240 s.
    found = verdict(*(prefill(20 * k + 10.5, 1) for k in range(20)))
    assert found.primary == "KV001"
    assert found.cost == "it cost each request about 4 min of waiting"
    assert f"; {found.cost}; " in found.headline
    assert found.headline.index(found.cost) < found.headline.index("room for")


def test_the_cost_is_that_of_the_rank_that_is_meant():
    # 12 wait on rank 0 for 400 s, where 20 are admitted; nobody waits on rank 1.
    full = [*decode(usage=[0.96] * 401, queue=12, running=10)]
    full += [prefill(20 * k + 10.5, 1) for k in range(20)]
    free = decode(usage=[0.90] * 401, queue=0, running=10)
    lines = [line.replace(" TP0]", " DP0 TP0]", 1) for line in full]
    lines += [line.replace(" TP0]", " DP1 TP1]", 1) for line in free]
    data = sessions(text(capacity(), sorted(lines)))
    findings, found = rules.concluded(rules.run(data), data)
    assert found.cost == "it cost each request on DP0 TP0 about 4 min of waiting"
    assert findings[0].evidence[0].label == "waiting time of a request on DP0 TP0"


def test_a_request_that_was_thrown_back_counts_once():
    # 30 admissions, 10 of them of requests that ran before: 12 x 400 / 20 = 240 s again.
    found = verdict(*(prefill(20 * k + 10.5, 2 - k % 2) for k in range(20)), retract(100, 10))
    assert found.cost == "it cost each request about 4 min of waiting"


def test_a_prompt_in_chunks_is_one_request():
    # 20 prompts of 8192 + 8192 + 100 tokens, 60 #new-seq in all: 12 x 400 / 20 = 240 s again.
    chunks = [
        prefill(20 * k + at, 1, tokens)
        for k in range(20)
        for at, tokens in ((8.1, 8192), (9.1, 8192), (10.1, 100))
    ]
    data = sessions(text(capacity(), sorted([*decode(usage=[0.96] * 401, queue=12), *chunks])))
    findings, found = rules.concluded(rules.run(data), data)
    assert found.cost == "it cost each request about 4 min of waiting"
    formula = next(e.formula for e in findings[0].evidence if e.label.startswith("waiting time"))
    assert "60 #new-seq - 40 chunks that go on with a prompt - 0 retracted" in formula


def test_of_those_that_ran_at_first_all_that_no_longer_run_finished_or_wait():
    # 20 are admitted and 20 fewer run in the end, so that 40 finished: 12 x 400 / 40 = 120 s.
    fewer = [30 - k // 20 for k in range(401)]
    found = verdict(*(prefill(20 * k + 10.5, 1) for k in range(20)), running=fewer)
    assert found.cost == "it cost each request about 2 min of waiting"


def test_a_log_without_prefill_lines_cannot_tell_how_long_a_request_waited():
    assert verdict().cost == ""
    assert "of waiting" not in verdict().headline


def test_a_death_costs_the_requests_that_were_in_the_server():
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.27 GiB."
    end = [f"{at(60)} Scheduler hit an exception: Traceback (most recent call last):", error]
    lines = decode(usage=[0.5] * 61, running=30, queue=2)
    data = sessions(text(capacity(), lines, end))
    found = rules.conclude(rules.run(data), data)
    assert (found.primary, found.cost) == (
        "CRS001",
        "lost with it: 30 running and 2 waiting requests",
    )
    # Its last line is of a batch that 30 ran before, 29 still waiting: 3 requests joined, of which
    # one is not yet prefilled to its end.
    last = prefill(59.9, 3, 8192).replace("#running-req: 10", "#running-req: 30")
    more = [*lines[:60], last.replace("#queue-req: 12", "#queue-req: 29")]
    data = sessions(text(capacity(), more, end))
    assert rules.conclude(rules.run(data), data).cost == (
        "lost with it: 33 running and 29 waiting requests"
    )
    late = [line.replace(at(60), at(600)) for line in end]  # idle since: nothing is known
    data = sessions(text(capacity(), lines, late))
    assert rules.conclude(rules.run(data), data).cost == ""


def test_drafts_that_are_no_longer_accepted_cost_tokens_of_each_step():
    # 3.00 tokens of a step for 200 s, then 1.20 for 300 s: 1 - 1.2 / 3 = 60 % fewer.
    lines = [
        line.replace("cuda graph", f"accept len: {3.0 if i < 200 else 1.2:.2f}, cuda graph")
        for i, line in enumerate(decode(usage=[0.4] * 500))
    ]
    data = sessions(text(capacity(), lines))
    found = rules.conclude(rules.run(data), data)
    assert found.primary == "SPC001"
    assert found.cost == "a decode step yields 60% fewer tokens than at first"
    assert f"; {found.cost}" in found.headline


@pytest.mark.parametrize(("light", "takes_more"), [(600, True), (120, False)])
def test_a_server_that_took_little_for_a_while_alone_is_not_said_to_take_more(light, takes_more):
    """Of ten minutes that many seconds at usage 0.2 with 10 running; then 0.82 with 300."""
    heavy = 600 - light
    lines = decode(usage=[0.2] * light + [0.82] * heavy, running=[10] * light + [300] * heavy)
    data = sessions(text(capacity(), lines))
    found = rules.conclude(rules.run(data), data)
    assert found.status == "healthy"
    assert ("the server could take more" in found.headline) == takes_more
