"""Which of several causes is named first, and what a log of events alone shows."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from synth import outcomes, sessions, text

from loganalyze import rules
from loganalyze.model import Episode, Finding, Severity
from loganalyze.rules.planted import Writer
from loganalyze.rules.registry import Outcome

START = datetime(2026, 3, 2, 9, 0, 0)


def fired(code, *minutes, severity=Severity.WARNING, ranks=1):
    """Return the outcome of a rule that held from and to these minutes, on several ranks."""
    episodes = [
        Episode(START + timedelta(minutes=a), START + timedelta(minutes=b), int(60 * a) + 1,
                int(60 * b) + 1, None, "server.log")
        for a, b in minutes
        for _ in range(ranks)
    ]  # fmt: skip
    finding = Finding(
        code=code, session=1, summary=code, episodes=episodes, severity=severity, confidence="high"
    )
    return Outcome(code, "fired", code, finding, 1)


def order(*found):
    return [one.code for one in rules.findings(found)]


def test_a_short_spell_of_an_earlier_cause_does_not_go_before_a_long_one_of_another():
    """10 minutes at the cap, then 43 of a full pool: the pool."""
    assert order(fired("RUN001", (0, 10)), fired("KV001", (15, 40), (42, 60))) == [
        "KV001",
        "RUN001",
    ]


def test_it_does_not_matter_that_the_server_was_started_again_between_them():
    """10 minutes at the cap, then 43 of a full pool after a restart, at stamps of their own."""
    later = fired("KV001", (15, 58))
    assert later.finding is not None
    later = replace(later, finding=replace(later.finding, session=2), session=2)
    assert order(fired("RUN001", (0, 10)), later) == ["KV001", "RUN001"]


def test_causes_of_about_the_same_length_go_by_the_order():
    assert order(fired("RUN001", (0, 10)), fired("KV001", (15, 30))) == ["RUN001", "KV001"]


def test_ranks_that_share_a_time_do_not_add_to_it():
    assert order(fired("RUN001", (0, 10)), fired("KV001", (15, 30), ranks=8)) == [
        "RUN001",
        "KV001",
    ]


@pytest.mark.parametrize(("until", "first"), [(42, "KV001"), (46, "ADM001")])
def test_the_more_two_causes_share_the_longer_must_the_later_one_of_the_order_have_held(
    until, first
):
    """Of 10 minutes a fifth: 2 + 8 / 5 times as long, so 36 minutes; of 34 and of 38 held."""
    assert order(fired("KV001", (0, 10)), fired("ADM001", (8, until)))[0] == first


def test_a_moment_within_a_long_wait_is_not_the_first_cause():
    """One KV transfer that failed at the end of six minutes of waiting for room."""
    assert order(fired("PDT001", (5, 5)), fired("PDP001", (0, 6.5))) == ["PDP001", "PDT001"]


@pytest.mark.parametrize("code", ["CRS001", "HNG001"])
def test_a_dead_server_is_the_first_cause_however_late_it_died(code):
    found = [fired(code, (60, 60)), fired("KV001", (0, 60))]
    assert order(*found) == [code, "KV001"]


def test_severity_goes_before_time():
    found = [fired("KV001", (0, 60)), fired("RUN001", (0, 10), severity=Severity.CRITICAL)]
    assert order(*found) == ["RUN001", "KV001"]


# -- requests that fail -----------------------------------------------------------------------


def answering(status, every, args=""):
    w = Writer(pool=400_000)
    for i in range(120):
        w.prefill(1, 300, 19, usage=0.1)
        w.decode(20, 40_000)
        if i % every == 0:
            w.raw(f'INFO:     127.0.0.1:50000 - "POST /v1/completions HTTP/1.1" {status}')
    return "\n".join(w.text) + "\n"


def test_a_server_that_answers_errors_is_not_healthy():
    """20 of 140 requests: 14 %."""
    data = sessions(answering("500 Internal Server Error", 6))
    found = rules.run(data)
    verdict = rules.conclude(found, data)
    assert (verdict.status, verdict.primary) == ("degraded", "ERR001")
    assert "20 requests (14% of all) were answered with an error" in verdict.headline
    assert next(o.finding.severity for o in found if o.code == "ERR001") == Severity.CRITICAL


def test_a_request_that_the_client_got_wrong_is_no_error_of_the_server():
    assert outcomes(answering("400 Bad Request", 6))["ERR001"].status == "clear"


def test_requests_that_a_full_server_refuses_are_explained_by_what_fills_it():
    w = Writer()
    for i in range(150):
        w.decode(30, 95_000 + 100 * (i % 9), 40)
        w.raw('INFO:     127.0.0.1:50000 - "POST /generate HTTP/1.1" 503 Service Unavailable')
    found = {f.code: f for f in rules.findings(rules.run(sessions("\n".join(w.text) + "\n")))}
    assert found["ERR001"].explained_by == "KV001"


# -- retractions without statistics -----------------------------------------------------------


def thrown_back(count, apart):
    return text(
        [
            f"[{START + timedelta(seconds=i * apart):%Y-%m-%d %H:%M:%S} TP9] "
            "KV cache pool is full. Retract requests. #retracted_reqs: 2, "
            "#new_token_ratio: 0.0980 -> 0.1919"
            for i in range(count)
        ]
    )


def test_retractions_alone_are_a_storm():
    """Two every 10 s: 12 a minute, over 190 s."""
    found = outcomes(thrown_back(20, 10))["KV004"].finding
    assert found.summary.startswith("40 requests thrown back to the queue, 12.6 a minute")
    assert found.confidence == "low"


@pytest.mark.parametrize(("count", "apart"), [(2, 5), (20, 60)])
def test_a_few_retractions_alone_are_not(count, apart):
    assert outcomes(thrown_back(count, apart))["KV004"].status == "not_applicable"


# -- requests that wait for a cause that a short log does not show -----------------------------


def decodes(queue, seconds=50):
    return [
        f"[{START + timedelta(seconds=i):%Y-%m-%d %H:%M:%S} TP0] Decode batch, #running-req: "
        f"{8 + i % 3}, #token: {9000 + 40 * i}, token usage: 0.10, cuda graph: True, "
        f"gen throughput (token/s): 340.00, #queue-req: {queue if i % 4 else 0}"
        for i in range(seconds)
    ]


@pytest.mark.parametrize(
    ("queue", "status"), [(30, "undetermined"), (1, "healthy"), (0, "healthy")]
)
def test_a_server_with_a_queue_is_not_healthy_for_want_of_time(queue, status):
    """A queue without KV cause takes a minute to tell; one request at times is none."""
    data = sessions(text(decodes(queue)))
    verdict = rules.conclude(rules.run(data), data)
    assert verdict.status == status
    assert ("why requests wait: 22 on average at usage 0.10" in verdict.headline) == (queue == 30)


def passes(tokens, batches=60):
    """Two decode lines of 40 steps, each after so many prefill batches; too few for a model."""
    lines = [f"[{START:%Y-%m-%d %H:%M:%S} TP0] max_total_num_tokens=400000, "
             "chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=512, "
             "context_len=32768, available_gpu_mem=6.00 GB"]  # fmt: skip
    for i in range(4 * (batches + 1)):
        at = f"[{START + timedelta(seconds=i // 4):%Y-%m-%d %H:%M:%S} TP0]"
        lines.append(
            f"{at} Decode batch, #running-req: 8, #token: 60000, token usage: 0.15, cuda graph: "
            f"True, gen throughput (token/s): {320 * 4 / (batches + 1):.2f}, #queue-req: 0"
            if i % (batches + 1) == batches
            else f"{at} Prefill batch, #new-seq: 1, #new-token: {tokens}, #cached-token: 0, "
            "token usage: 0.15, #running-req: 7, #queue-req: 0"
        )
    return text(lines)


def test_more_long_prefill_batches_than_decode_steps_take_most_of_the_time():
    """60 batches to 40 steps, each at least as long as a step: 60 %."""
    found = outcomes(passes(6000))["PRE001"].finding
    assert "60%" in found.summary


def test_short_prefill_batches_or_few_do_not_without_a_model():
    assert outcomes(passes(60))["PRE001"].status == "not_applicable"
    assert outcomes(passes(6000, batches=30))["PRE001"].status == "not_applicable"
