"""Failed KV transfers between prefill and decode servers."""

from synth import outcomes, sessions, text

from loganalyze import rules


def failed(second, room, rank, reason, what="Prefill bootstrap"):
    return (
        f"[2026-03-02 09:{second // 60:02d}:{second % 60:02d} TP{rank}] {what} failed for request "
        f"rank={rank} req.rid='r{room}' req.bootstrap_room={room} with exception "
        f"KVTransferError(bootstrap_room={room}): {reason}"
    )


def test_a_log_of_nothing_else_counts_requests_and_not_lines():
    """Three requests, each told by four ranks; two timed out, one was aborted."""
    late = "Request timed out after 300.0s in KVPoll.Bootstrapping"
    lines = [
        failed(20 * k, 500 + k, rank, late if k else "Aborted by AbortReq.")
        for k in range(3)
        for rank in range(4)
    ]
    found = outcomes(text(lines))["PDT001"].finding
    assert found.summary == (
        "The KV transfer of 3 requests failed from 09:00:00: timed out (2), aborted (1)"
    )
    assert [(e.label, e.value, e.line_no) for e in found.evidence] == [
        ("requests whose transfer failed", 3, 1),
        ("Prefill bootstrap failed", 3, 1),
    ]
    assert "in 12 lines" in found.evidence[0].formula
    assert str(found.severity) == "warning"
    assert "not ready in time" in found.actions[0].text


def test_many_are_critical_and_spells_apart_are_told_apart():
    gone = "Failed to get kvcache from prefill instance, it might be dead"
    lines = [
        failed(at, 900 + at, 0, gone, "Decode transfer") for at in [*range(12), *range(1200, 1208)]
    ]
    found = outcomes(text(lines))["PDT001"].finding
    assert str(found.severity) == "critical"
    assert [(e.first_line, e.last_line) for e in found.episodes] == [(1, 12), (13, 20)]
    assert "server of the other side died" in found.actions[0].text


#: As an issue quotes them: without stamps, the reason's traceback before the requests.
QUOTED = """\
# prefill
Unexpected transfer worker error for room 7
Traceback (most recent call last):
  File "/srt/disaggregation/nixl/conn.py", line 9, in transfer_worker
    raise RuntimeError(
RuntimeError: PD Disaggregation does NOT support PD different TP sizes for such models yet.
Prefill transfer failed for request rank=0 req.rid='a' with exception PD Disaggregation does NOT \
support PD different TP sizes for such models yet.
INFO: 10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
Prefill transfer failed for request rank=0 req.rid='b' with exception PD Disaggregation does NOT \
support PD different TP sizes for such models yet.
"""


def test_a_server_that_goes_on_did_not_die_of_the_traceback_before():
    """Nor do lines without a room stand for one request."""
    data = sessions(QUOTED)
    outs = rules.run(data)
    assert rules.conclude(outs, data).primary == "PDT001"
    assert data[0].session.ended_by == "end_of_log"
    found = next(o.finding for o in outs if o.code == "PDT001")
    assert found.summary == (
        "The KV transfer of 2 requests failed: the two sides differ in TP size"
    )
    assert [e.line_no for e in found.evidence] == [7, 7]
    assert "the same --tp-size" in found.actions[0].text
