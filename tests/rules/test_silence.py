"""Silences: hangs, kernels that are compiled, and the idle end of a log."""

from datetime import timedelta

import pytest
from synth import START, capacity, outcomes, sessions, text
from synth import decode as decode_lines

import loganalyze
from loganalyze import rules
from loganalyze.rules.planted import Writer

PREFILL = (
    "Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: 0, token usage: 0.02, "
    "#running-req: {running}, #queue-req: 0, "
)


def at(second, message, rank=" TP0"):
    return f"[{START + timedelta(seconds=second):%Y-%m-%d %H:%M:%S}{rank}] {message}"


def health(first, last, every=30):
    access = 'INFO:     127.0.0.1:50000 - "GET /health HTTP/1.1" 200 OK'
    return [at(second, access, "") for second in range(first, last + 1, every)]


def first_prefill(seconds):
    """Return a log whose first decode line comes so many seconds after its only prefill line.

    40 steps of one request in that time: the printed throughput proves it was busy.
    """
    line = at(
        3 + seconds,
        "Decode batch. #running-req: 1, #token: 8014, token usage: 0.02, gen throughput "
        f"(token/s): {40 / seconds:.2f}, #queue-req: 0, ",
    )
    return [capacity(400_000), at(3, PREFILL.format(new=8009, running=0)), line]


@pytest.mark.parametrize("seconds", [400, 600])
def test_a_first_prefill_that_takes_minutes_is_no_hang_of_links(seconds):
    """Also where the silence is the only spacing of lines in the log."""
    found = outcomes(text(first_prefill(seconds)))["HNG001"].finding
    assert "8,009 tokens compiled its kernels, or they are slow" in found.summary
    assert (str(found.severity), found.confidence) == ("warning", "low")
    assert "hang" in found.competing
    assert "compile_deep_gemm" in found.actions[0].text


def test_kernels_that_are_compiled_while_serving():
    w = Writer(pool=400_000)
    for _ in range(60):
        w.decode(5, 9_000)
    w.prefill(1, 9000, 5)
    w.line("Entering DeepGEMM JIT Pre-Compile session. It may take a long time")
    w.line("Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=24576, K=1536, num_groups=1")
    w.wait(180)
    for _ in range(60):
        w.decode(6, 19_000)
    found = outcomes("\n".join(w.text) + "\n")["HNG001"].finding
    assert found.summary.startswith("No line for 3 min")
    assert found.summary.endswith("while kernels were compiled")
    assert (str(found.severity), found.confidence) == ("warning", "medium")


def test_a_silence_after_a_prefill_in_the_middle_may_be_that_prefill():
    w = Writer(pool=400_000)
    for _ in range(60):
        w.decode(5, 9_000)
    w.prefill(1, 9000, 5)
    w.wait(180)
    for _ in range(60):
        w.decode(6, 19_000)
    found = outcomes("\n".join(w.text) + "\n")["HNG001"].finding
    assert (str(found.severity), found.confidence) == ("critical", "medium")
    assert "the prefill of 9,000 tokens" in found.competing


def test_only_access_lines_after_requests_that_wait_are_a_hang():
    """120 lines to second 119, health checks from 130 to 3,730: one hour without a line."""
    busy = decode_lines(usage=[0.5] * 120, queue=3, running=1)
    found = outcomes(text(capacity(), busy, health(130, 3730)))["HNG001"].finding
    assert "Nothing was computed for 1 h 00 min" in found.summary
    assert "although 1 request was running and 3 waiting" in found.summary
    assert (str(found.severity), found.confidence) == ("critical", "medium")
    assert found.evidence[0].value == 3611
    assert "aborted by their clients" in found.competing


def test_only_access_lines_after_requests_that_could_end_are_idle_time():
    busy = decode_lines(usage=[0.5] * 120, queue=0, running=1)
    found = outcomes(text(capacity(), busy, health(130, 3730)))["HNG001"]
    assert found.status == "clear"
    assert "only access lines follow for 1 h 00 min" in found.reason


def test_a_log_that_just_ends_is_no_silence():
    busy = decode_lines(usage=[0.5] * 120, queue=3, running=1)
    found = outcomes(text(capacity(), busy))["HNG001"]
    assert (found.status, found.reason) == ("clear", "no silence of 30 s with requests running")


def test_a_log_of_retractions_alone_says_what_it_is():
    line = "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.1 -> "
    (one,) = sessions(text([at(k, f"{line}0.2", f" TP{9 + k}") for k in range(3)]))
    headline = rules.conclude(rules.run([one]), [one]).headline
    assert "but 6 retracted requests: the KV pool was full while decoding" in headline
    assert (
        "another node than the first, whose log, with TP0 to TP8, has the statistics" in headline
    )


def two_ranks(silent_s):
    """Return four hours of two DP ranks, a line each 4 s, with a silence of both in the third."""
    n, at_row = 3600, 2500
    usage = [0.3 + 0.2 * ((i // 7) % 5) / 5 for i in range(n)]
    usage[at_row - 1], usage[at_row] = 0.500, 0.504  # 40 steps of 10 requests, in 100,000 tokens
    rate = [100.0 + i % 11 for i in range(n)]
    rate[at_row] = 400 / max(silent_s, 4)
    lines = []
    for rank in (0, 1):
        made = decode_lines(every_s=4, usage=usage, rate=rate, rank=f" DP{rank} TP{rank}")
        later = decode_lines(
            every_s=4, start_s=silent_s, usage=usage, rate=rate, rank=f" DP{rank} TP{rank}"
        )
        lines.append(made[:at_row] + later[at_row:])
    return [capacity(), *(line for pair in zip(*lines, strict=True) for line in pair)]


def test_the_time_between_rows_of_a_reduced_log_is_no_silence(tmp_path, monkeypatch):
    def hang(silent_s):
        path = tmp_path / "server.log"
        path.write_text(text(two_ranks(silent_s)))
        found = [f for f in loganalyze.analyze(path).findings if f.code == "HNG001"]
        return [(e.start, e.end) for f in found for e in f.episodes]

    # Line 2,500 is printed at 9,996 s, the next one 4 s and the silence later.
    real = [(START + timedelta(seconds=9_996), START + timedelta(seconds=10_300))]
    assert (hang(0), hang(300)) == ([], real)
    monkeypatch.setattr("loganalyze.store.MAX_ROWS", 300)  # merged to minutes
    assert (hang(0), hang(300)) == ([], real)


def test_a_message_in_whole_seconds_does_not_end_before_the_line_above_it():
    # The last line is of 11:30:58.400; the watchdog's, below it, of 11:30:58.
    lines = [
        f"2026-02-24 11:30:{n:02},400 | INFO     | sglang.srt.managers.scheduler:1071 | Decode "
        "batch, #running-req: 4, #token: 4000, token usage: 0.04, cuda graph: True, gen "
        "throughput (token/s): 160.00, #queue-req: 0, "
        for n in range(59)
    ]
    lines.append(
        "[2026-02-24 11:30:58] Scheduler watchdog timeout (self.watchdog_timeout=300, "
        "self.soft=False)"
    )
    found = rules.findings(rules.run(sessions("\n".join(lines) + "\n")))
    (hang,) = [f for f in found if f.code == "HNG001"]
    (episode,) = hang.episodes
    assert episode.duration_s == 0
    assert episode.start == episode.end
