"""Which of several causes is named first, and what a log of events alone shows."""

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


def test_causes_of_about_the_same_length_go_by_the_order():
    assert order(fired("RUN001", (0, 10)), fired("KV001", (15, 30))) == ["RUN001", "KV001"]


def test_ranks_that_share_a_time_do_not_add_to_it():
    assert order(fired("RUN001", (0, 10)), fired("KV001", (15, 30), ranks=8)) == [
        "RUN001",
        "KV001",
    ]


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
