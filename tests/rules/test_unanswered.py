"""Health checks that fail: of a server that hangs, and of one whose batches go on."""

from dataclasses import replace

import pytest
from synth import outcomes, sessions

from loganalyze import rules, thin
from loganalyze.rules.planted import Writer

FAILED = (
    "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
    "tic start time: 09:00:00. last_heartbeat time: 09:00:00"
)


def served(chunks=0):
    """Return a writer whose server decoded for a minute, then computed chunks of 1 s each."""
    w = Writer(pool=900_000)
    for _ in range(60):
        w.decode(20, 30_000)
    for chunk in range(chunks):
        w.prefill(1, 8192, 20, 1, usage=0.04 + 0.009 * chunk)
        w.wait(1)
    return w


def stall(w, width=None):
    """Return what is said; with a width, of lines that were merged to a grid as wide (s)."""
    (data,) = sessions("\n".join(w.text) + "\n")
    if width:
        data = replace(data, batch=thin.thin(data.batch, width), timelines=None)
    return {one.code: one for one in rules.run([data])}["HNG001"].finding


def test_a_long_prefill_answers_no_check_and_is_no_hang():
    """The check fails in the middle of 80 chunks of a second or two."""
    w = served(40)
    w.raw(FAILED)
    w.text += [line for line in served(80).text if "Prefill" in line][40:]
    for _ in range(20):
        w.decode(21, 330_000, 1)
    found = stall(w)
    assert found.summary.startswith("A health check failed at ")
    assert "while prefills went on" in found.summary
    assert (str(found.severity), found.explained_by) == ("warning", "PRE003")
    assert "SGLANG_HEALTH_CHECK_TIMEOUT" in found.actions[0].text


def test_decoding_that_goes_on_shows_a_front_end_that_hangs():
    w = served()
    for _ in range(2):
        w.raw(FAILED)
        for _ in range(30):
            w.decode(20, 30_000)
    found = stall(w)
    assert found.summary.startswith("2 health checks failed from ")
    assert "although decoding went on" in found.summary
    assert (str(found.severity), found.confidence) == ("critical", "medium")
    assert "detokenizer" in found.actions[0].text


def test_a_line_of_an_endless_interval_stops_nothing():
    w = served()
    w.line(
        "Decode batch, #running-req: 9999999999999999, #token: 30000, token usage: 0.03, "
        "cuda graph: True, gen throughput (token/s): 0.01, #queue-req: 0"
    )
    w.raw(FAILED)
    for _ in range(30):
        w.decode(20, 30_000)
    assert "although decoding went on" in stall(w).summary


@pytest.mark.parametrize("silence", [11, 60])
def test_a_check_that_fails_in_a_silence_is_a_hang(silence):
    """11 s after the last line: none in the second half of the 20 s that the check waited."""
    w = served()
    w.wait(silence)
    w.raw(FAILED)
    found = stall(w)
    assert found.summary.startswith("The server reports that it hangs: Health check failed, ")
    assert (str(found.severity), found.confidence) == ("critical", "high")


def test_a_prefill_server_that_hangs_says_so():
    """Its silences say nothing, its watchdog does."""
    w = Writer(pool=900_000, disaggregation_mode="prefill")
    for _ in range(40):
        w.prefill(1, 8192, 0)
    w.wait(300)
    quiet = "\n".join(w.text) + "\n"
    assert outcomes(quiet)["HNG001"].finding is None
    w.line("Watchdog timeout (self.watchdog_timeout=300)")
    assert "Watchdog timeout" in stall(w).summary


@pytest.mark.parametrize("width", [None, 4, 32])
def test_merged_lines_tell_a_busy_server_from_one_that_hangs(width):
    """A line every second or two; the check fails among them, or into a silence of 60 s."""
    for silence, said in (
        (0, "although decoding went on"),
        (60, "hangs: Health check failed, 1 min after its last statistics line"),
    ):
        w = served()
        w.wait(silence)
        w.raw(FAILED)
        for _ in range(60):
            w.decode(20, 30_000)
        assert said in stall(w, width).summary


@pytest.mark.parametrize("width", [None, 4, 32])
def test_merged_prefills_are_told_from_decoding(width):
    """No decode line in the 80 s of chunks, and many in the cells around them."""
    w = served(40)
    w.raw(FAILED)
    w.text += [line for line in served(80).text if "Prefill" in line][40:]
    for _ in range(60):
        w.decode(21, 330_000, 1)
    assert "while prefills went on" in stall(w, width).summary


def test_a_hang_that_is_only_reported_says_no_silence_of_merged_lines():
    """The watchdog speaks among lines that are a second or two apart."""
    w = served()
    w.line("Watchdog timeout (self.watchdog_timeout=300)")
    for _ in range(60):
        w.decode(20, 30_000)
    for width in (None, 64):
        assert "after its last statistics line" not in stall(w, width).summary
