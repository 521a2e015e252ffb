"""The running cap of a server whose start-up line is not in the log, by hand."""

from datetime import timedelta

import pytest
from synth import START, sessions, text

from loganalyze import rules


def stamp(second):
    return f"[{START + timedelta(seconds=second):%Y-%m-%d %H:%M:%S} TP0]"


def decode(second, running, token, queue):
    return (
        f"{stamp(second)} Decode batch, #running-req: {running}, #token: {token}, token usage: "
        f"{token / 100_000:.2f}, cuda graph: True, gen throughput (token/s): {40 * running}.00, "
        f"#queue-req: {queue}"
    )


def prefill(second, running, queue):
    return (
        f"{stamp(second)} Prefill batch, #new-seq: 2, #new-token: 200, #cached-token: 0, "
        f"token usage: 0.20, #running-req: {running}, #queue-req: {queue}"
    )


def steady(seconds, *, prefills=True, grow=0, args=""):
    """32 run every second and 9 wait; two leave and two come in every third second."""
    lines = [f"{stamp(0)} server_args=ServerArgs(model_path='m', {args}tp_size=1)"] if args else []
    for second in range(seconds):
        if prefills and second % 3 == 2:
            lines.append(prefill(second, 30, 9))
        lines.append(decode(second, 32, 20_000 + grow * second, 9))
    return text(lines)


def outcomes(log):
    return {one.code: one for one in rules.run(sessions(log))}


def test_running_requests_that_are_replaced_at_once_stand_at_their_cap():
    """Usage stands at 0.20: only the prefills show that places change hands."""
    found = outcomes(steady(90))["RUN001"].finding
    assert found.summary.startswith("Running requests stand at their cap of 32 (inferred)")


@pytest.mark.parametrize(("step", "named"), [(3, True), (1, False)])
def test_so_they_do_in_a_short_log_of_some_time(step, named):
    """15 lines over 33 s show a cap; over 11 s anything stands still."""
    lines = []
    for i in range(12):
        if i % 3 == 2:
            lines.append(prefill(step * i, 30, 9))
        lines.append(decode(step * i, 32, 20_000, 9))
    found = outcomes(text(lines))["RUN001"].finding
    assert (found is not None) == named
    assert not named or found.confidence == "low"


def test_a_batch_that_nobody_joins_shows_no_cap():
    """Tokens grow by what 32 requests decode, and no prefill is printed: nobody came or left."""
    seen = outcomes(steady(90, prefills=False, grow=20))
    assert seen["RUN001"].status == "not_applicable"
    assert seen["ADM002"].status == "not_applicable"  # prefill lines may have been filtered out
    assert "no prefill lines" in seen["ADM002"].reason
    assert "ADM002" in seen["QUE001"].finding.competing


def test_adapters_that_do_not_fit_a_batch_look_like_a_cap():
    seen = outcomes(steady(90, args="enable_lora=True, max_loras_per_batch=2, "))
    assert seen["RUN001"].finding is None
    assert "LoRA" in seen["QUE001"].finding.summary


@pytest.mark.parametrize(("running", "named"), [(32, True), (30, False)])
def test_it_is_the_highest_count_that_they_stand_at(running, named):
    """A third of the lines at the highest count is no cap."""
    lines = [
        decode(second, 32 if second % 3 == 0 else running, 20_000 + 3_000 * (second % 5), 9)
        for second in range(90)
    ]
    assert (outcomes(text(lines))["RUN001"].finding is not None) == named


def test_a_request_that_waits_for_a_step_at_times_shows_no_cap():
    """Every other line shows one waiting: 32 run because 32 clients ask."""
    lines = []
    for second in range(90):
        if second % 3 == 2:
            lines.append(prefill(second, 30, 0))
        lines.append(decode(second, 32, 20_000, second % 2))
    assert outcomes(text(lines))["RUN001"].finding is None


def test_the_room_behind_a_cap_is_less_for_clients_that_ask_for_many_tokens():
    """8 of 1,500 tokens run at a cap of 8: 40,000 / 1,500 = 26 fit, with conservativeness 1.

    Of each admission may keep 4,096 x 0.098 = 401 tokens, and 4,096 for the next one:
    (40,000 - 4,096) / (1,500 + 401) = 18.9.
    """
    lines = [f"{stamp(0)} server_args=ServerArgs(model_path='m', schedule_conservativeness=1.0)"]
    lines.append(f"{stamp(0)} max_total_num_tokens=40000, max_running_requests=8")
    for second in range(120):
        lines.append(
            f"{stamp(second)} Decode batch, #running-req: 8, #token: {11_900 + second % 3 * 100}, "
            f"token usage: 0.30, cuda graph: True, gen throughput (token/s): 320.00, "
            "#queue-req: 30"
        )
    (raised,) = [
        one
        for one in outcomes(text(lines))["RUN001"].finding.actions
        if one.flag == "--max-running-requests"
    ]
    assert "room for about 26 such requests of 1,500 tokens" in raised.effect
    assert "of which admission lets in about 18 if clients ask for 4,096 tokens" in raised.effect
