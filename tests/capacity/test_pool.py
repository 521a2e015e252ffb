"""What requests hold, where the mix of requests changed."""

from datetime import datetime, timedelta

import pytest

from loganalyze import analyze


def log_of(tmp_path, each):
    """Return a log: 200 lines with 20 running of `each` tokens, then 30 full ones of 2,000."""
    clock = datetime(2026, 3, 2, 10)
    lines = [f"[{clock} TP0] max_total_num_tokens=100000, max_running_requests=512"]
    for k in range(230):
        clock += timedelta(seconds=3)
        running, token, queue = (20, 20 * each, 0) if k < 200 else (49, 98_000, 10)
        lines.append(
            f"[{clock} TP0] Decode batch, #running-req: {running}, #token: {token}, token usage: "
            f"{token / 100_000:.2f}, cuda graph: True, gen throughput (token/s): "
            f"{running * 15}.00, #queue-req: {queue}"
        )
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("each", "held", "fit", "first"),
    [
        # A mix of 300 tokens each does not fill the pool, one of 2,000 does.
        (300, 2000.0, 50, 202),
        # (200 x 20 x 1,900 + 30 x 98,000) / (200 x 20 + 30 x 49): one mix, all lines count.
        (1900, 1926.9, 51, 2),
    ],
)
def test_room_is_that_for_the_mix_that_filled_the_pool(tmp_path, each, held, fit, first):
    (session,) = analyze(log_of(tmp_path, each)).sessions
    capacity = session.capacity
    assert (capacity.tokens_per_req, capacity.requests_fit) == (held, fit)
    assert capacity.lines == (first, 231)
    assert any("of another mix" in note for note in capacity.notes) == (each == 300)


def test_the_fullest_lines_of_a_saw_tooth_are_no_mix_of_their_own(tmp_path):
    """Ten lines a wave: 20 young requests hold 2,500 tokens each, the 10 oldest 9,500.

    (8 x 50,000 + 2 x 95,000) / (8 x 20 + 2 x 10) = 3,277.8 each, of which 30 fit.
    """
    clock = datetime(2026, 3, 2, 10)
    lines = [f"[{clock} TP0] max_total_num_tokens=100000, max_running_requests=512"]
    for k in range(400):
        clock += timedelta(seconds=2)
        running, token = (20, 50_000) if k % 10 < 8 else (10, 95_000)
        lines.append(
            f"[{clock} TP0] Decode batch, #running-req: {running}, #token: {token}, token usage: "
            f"{token / 100_000:.2f}, cuda graph: True, gen throughput (token/s): "
            f"{running * 15}.00, #queue-req: 5"
        )
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    (session,) = analyze(str(path)).sessions
    assert session.capacity.tokens_per_req == pytest.approx(3277.8, abs=0.1)
    assert session.capacity.requests_fit == 30
