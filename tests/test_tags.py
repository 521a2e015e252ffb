"""Lines of which only SGLang's rank words are left, or with a level behind its stamp."""

import pytest
from synth import sessions

DECODE = (
    "Decode batch, #running-req: 15, #token: 512, token usage: 0.65, cuda graph: True, "
    "gen throughput (token/s): 204.80, #queue-req: 3"
)


@pytest.mark.parametrize(
    "before", ["[TP0] ", "[DP0 TP1] ", "[2026-03-02 09:00:00 DP0 TP1] INFO sglang ", "  [TP0] "]
)
def test_they_are_read(before):
    (data,) = sessions(f"{before}{DECODE}\n")
    assert data.batch["queue_req"].to_list() == [3]
    assert data.batch["tp_rank"].to_list() == [int("TP1" in before)]


@pytest.mark.parametrize("tag", ["[ DP8 TP9 scheduler.py:222]", "[DP8 TP9]"])
def test_ranks_in_a_bracket_of_another_logger_are_read(tag):
    (data,) = sessions(f"2026-03-02 09:00:00 INFO 8888 {tag} {DECODE}\n")
    assert data.batch.select("dp_rank", "tp_rank").row(0) == (8, 9)


def test_an_exception_without_its_stamp_is_told_beside_its_bare_lines():
    (data,) = sessions(
        "[TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "scheduler.py", line 4546, in run_scheduler_process\n'
        "RuntimeError: Prefill out of memory. Try to lower your batch size.\n"
    )
    assert data.event["kind"].to_list() == ["exception"]
    assert "Prefill out of memory" in data.event["traceback"][0]


@pytest.mark.parametrize(
    "before", ["user said: [TP0] ", "[2026-03-02 09:00:00 TP0] so INFO sglang "]
)
def test_a_sentence_that_quotes_one_is_not(before):
    own = f"[2026-03-02 09:00:00 TP0] {DECODE}\n"
    (data,) = sessions(f"{own}{before}{DECODE}\n{own}")
    assert data.batch["line_no"].to_list() == [1, 3]
