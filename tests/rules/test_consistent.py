"""One report does not contradict itself: advice, numbers and causes of several rules, by hand."""

import pytest
from synth import capacity, decode, outcomes, planted, read, sessions, text, without

from loganalyze import analyze, rules
from loganalyze import capacity as measured
from loganalyze.errors import UsageError
from loganalyze.model import Action, Estimate, Finding, Severity
from loganalyze.rules.held import gain_text
from loganalyze.rules.planted import PLANTED, Writer
from loganalyze.rules.registry import Outcome


def log_of(writer):
    return "\n".join(writer.text) + "\n"


def fired(log):
    """Return all findings of a log, by code and session."""
    found = rules.findings(rules.run(sessions(log)))
    return {(one.code, one.session): one for one in found}


def conclude(log):
    data = sessions(log)
    return rules.conclude(rules.run(data), data)


def full(w, lines=120):
    for i in range(lines):
        w.decode(30, 95_000 + 100 * (i % 9), 10)


def fraction(finding):
    """Return the memory fractions that a finding proposes."""
    return [a.proposed for a in finding.actions if a.flag == "--mem-fraction-static"]


# -- a memory fraction that killed a server ---------------------------------------------------


def died_and_restarted(first, second, message="torch.OutOfMemoryError: CUDA out of memory."):
    w = Writer(free_gb=9.2, mem_fraction_static=first)
    full(w)
    w.line("Scheduler hit an exception: Traceback (most recent call last):")
    w.text.append(message)
    w.raw("Received sigquit from a child process. It usually means the child failed.")
    w.wait(90)
    w.start(100_000, 512, 9.2, mem_fraction_static=second)
    full(w)
    return log_of(w)


def test_the_session_that_ran_out_of_memory_is_never_sent_higher():
    found = fired(died_and_restarted(0.93, 0.88))
    assert fraction(found["CRS001", 1]) == fraction(found["KV001", 1]) == []
    # It runs at 0.88 again, which 0.93 - 0.02 allows.
    assert "keep --mem-fraction-static at 0.88" in found["CRS001", 1].actions[0].text
    assert any(a.flag == "--kv-cache-dtype" for a in found["KV001", 1].actions)


@pytest.mark.parametrize(
    ("second", "proposed"),
    [(0.88, [0.90]), (0.90, [0.91]), (0.91, []), (0.93, []), (0.95, [])],
)
def test_others_stop_two_hundredths_below_it(second, proposed):
    # Steps of 0.02 from the present fraction, at most 0.93 - 0.02.
    found = fired(died_and_restarted(0.93, second))["KV001", 2]
    assert fraction(found) == proposed
    said = [a.text for a in found.actions if a.flag == "--mem-fraction-static"]
    assert all("session 1 ran out of GPU memory at 0.93" in text for text in said)


def test_where_a_crash_limits_the_fraction_the_effect_is_that_of_the_limit(tmp_path):
    """0.05 of the memory held 50,000 tokens, 13.97 GiB / 100,000 each: 0.03 are 30,000."""
    w = Writer(free_gb=20.0, pool=150_000, mem_fraction_static=0.93)
    full(w)
    w.line("Scheduler hit an exception: Traceback (most recent call last):")
    w.text.append("torch.OutOfMemoryError: CUDA out of memory.")
    w.wait(90)
    w.start(100_000, 512, 20.0, mem_fraction_static=0.88)
    full(w)
    (tmp_path / "server.log").write_text(log_of(w))
    report = analyze([tmp_path / "server.log"])
    found = {(f.code, f.session): f for f in report.findings}
    (more,) = [a for a in found["KV001", 2].actions if a.flag == MEMORY_FLAG]
    # 6.985 GiB / 0.05 = 139.7 in all. 20 - 6 = 14 GiB are 0.1 of it; the crash leaves 0.03, 4.19.
    assert (more.present, more.proposed) == (0.88, 0.91)
    assert more.effect.startswith("4.2 GiB hold 30,000 more tokens (+30% KV)")
    died = found["CRS001", 1].actions[0].text
    assert "keep --mem-fraction-static at 0.88" in died
    assert died.endswith("for a larger KV pool 0.91 at most")


def test_the_effect_of_all_steps_does_not_read_as_that_of_the_first():
    """Free are 9.2 GiB, 6 of them to stay; the whole memory is not printed."""
    w = Writer(free_gb=9.2, mem_fraction_static=0.88)
    full(w)
    (more,) = [a for a in fired(log_of(w))["KV001", 1].actions if a.flag == MEMORY_FLAG]
    assert more.proposed == 0.90
    # 3.2 GiB x 100,000 tokens / 13.97 GiB
    said = "0.9 first; all steps together, 3.2 GiB, hold 22,906 more tokens (+23% KV)"
    assert more.effect.startswith(said)


def test_a_sentence_names_a_log_without_its_folder():
    died = sessions(died_and_restarted(0.93, 0.88))
    beside = read(next(p for p in PLANTED if "LBL001" in p.shows).logs())
    assert "/" in died[0].session.source
    found = rules.findings(rules.run(died)) + rules.findings(rules.run(beside))
    assert {"CRS001", "KV001", "LBL001"} <= {one.code for one in found}
    told = [one.summary for one in found] + [a.text for one in found for a in one.actions]
    assert any("(server1.log:" in text for text in told)
    assert not [text for text in told if "/server" in text]


def test_a_death_that_was_no_lack_of_memory_bounds_nothing():
    found = fired(died_and_restarted(0.93, 0.93, "RuntimeError: NCCL communicator was aborted"))
    assert fraction(found["KV001", 2]) == [0.95]


def test_memory_that_ran_out_before_the_watchdog_is_the_cause():
    w = Writer()
    full(w)
    w.line("Decode out of memory. Try to lower your batch size.")
    w.wait(60)
    w.line("Watchdog timeout (self.watchdog_timeout=300)")
    w.raw("Received sigquit from a child process. It usually means the child failed.")
    found = fired(log_of(w))
    assert found["CRS001", 1].explained_by is None


# -- one name for each throughput --------------------------------------------------------------


def test_every_throughput_says_what_of_and_over_which_span():
    outcomes = rules.run(planted("a full KV pool, warm-up and retractions"))
    shown = [e for f in rules.findings(outcomes) for e in f.evidence if e.unit == "token/s"]
    named = {e.label: e.formula for e in shown}
    assert {label.split(",")[0].split(" of ")[0] for label in named} <= {
        "decode throughput",
        "decode throughput while saturated",
        "decode throughput reached unsaturated",
        "decode throughput afterwards",
        "decode rate per request",
    }
    spans = ("episodes", "wall time", "30 s", "median after", "lines")
    assert len(named) >= 5
    for label, formula in named.items():
        assert any(span in formula for span in spans), (label, formula)


# -- one flag, one step, one direction --------------------------------------------------------


def test_a_flag_is_not_moved_both_ways():
    def outcome(code, severity, proposed, present=1.0, session=1):
        way = Action("Reserve otherwise", "--schedule-conservativeness", present, proposed)
        found = Finding("said", [], actions=[way], severity=severity, code=code, session=session)
        return Outcome(code, "fired", "", found, session)

    found = rules.findings(
        [
            outcome("ADM003", Severity.INFO, 0.3),
            outcome("KV004", Severity.CRITICAL, 1.3),
            outcome("KV005", Severity.WARNING, 1.1),
            outcome("ADM003", Severity.INFO, 0.3, session=2),
        ]
    )
    advice = {(one.code, one.session): one.actions[0] for one in found}
    assert advice["KV004", 1].proposed == 1.3
    assert advice["KV005", 1].proposed == 1.1
    assert advice["ADM003", 2].proposed == 0.3
    undone = advice["ADM003", 1]
    assert (undone.flag, undone.proposed) == (None, None)
    assert "KV004 is worse here and asks for 1.3" in undone.text


@pytest.mark.parametrize("total", [None, 80.0])
def test_the_plan_and_the_finding_take_the_same_step(tmp_path, total):
    # Of 9.2 GiB 6 are kept: 3.2 / 80 = 0.04 more; where the log does not print the 80, by trial.
    w = Writer(free_gb=9.2)
    if total:
        w.text.insert(1, f"[2026-03-02 09:00:00 TP0] Load weight begin. avail mem={total:.2f} GB")
    full(w)
    log = tmp_path / "server.log"
    log.write_text(log_of(w))
    report = analyze(log)
    assert report.plan is not None
    levers = [x for x in report.plan.levers if x.flag.startswith(MEMORY_FLAG)]
    lever = min(levers, key=lambda x: len(x.flag))  # the one that moves nothing else
    action = next(
        a for f in report.findings if f.code == "KV001" for a in f.actions if a.flag == MEMORY_FLAG
    )
    if total:
        assert lever.proposed == action.proposed == 0.89
        assert lever.flag == "--mem-fraction-static 0.89"
    else:
        assert "in steps of 0.02" in lever.flag
        assert "in steps of 0.02" in action.text
        assert action.proposed == 0.87


MEMORY_FLAG = "--mem-fraction-static"


# -- what requests hold on a PD decode server -------------------------------------------------

PD = (
    "server_args=ServerArgs(model_path='/m', disaggregation_mode='decode', "
    "decode_log_interval=40, mem_fraction_static=0.88, max_running_requests=None)"
)


def pd_line(second, running, token, fields):
    return (
        f"[2026-03-02 09:{second // 60:02}:{second % 60:02} TP0] Decode batch, "
        f"#running-req: {running}, #token: {token}, token usage: {token / 100_000:.2f}, {fields}"
        "#prealloc-req: 9, #transfer-req: 30, #retracted-req: 0, cuda graph: True, "
        "gen throughput (token/s): 400.00, #queue-req: 0"
    )


def pd_log(running, token, fields):
    lines = [pd_line(i, running, token, fields) for i in range(120)]
    return text(f"[2026-03-02 09:00:00] {PD}", capacity(), lines)


def test_preallocated_tokens_are_not_those_of_running_requests():
    # 75,000 in use of 100,000, of which 0.60 x 100,000 wait for their transfer: 15,000 / 10.
    (one,) = sessions(pd_log(10, 75_000, "pre-allocated usage: 0.60, "))
    found = measured.measure(one)
    # Beside what it holds, 512 tokens are kept free for each: 100,000 / 2,012.
    assert (found.tokens_per_req, found.requests_fit) == (1_500, 49)


def test_without_that_share_requests_in_transfer_hold_as_much_as_running_ones():
    # 75,000 / (10 running + 30 in transfer).
    data = without(sessions(pd_log(10, 75_000, "")), "pre_allocated_usage")
    found = measured.measure(data[0])
    assert (found.tokens_per_req, found.requests_fit) == (1_875, 41)  # 100,000 / 2,387


def test_a_line_that_prints_neither_cannot_tell():
    data = without(sessions(pd_log(10, 75_000, "")), "pre_allocated_usage", "transfer_req")
    found = measured.measure(data[0])
    assert (found.tokens_per_req, found.requests_fit) == (None, None)
    assert any("cannot be told" in note for note in found.notes)


# -- several causes ---------------------------------------------------------------------------


def test_the_headline_names_a_second_cause_at_another_time():
    # Two minutes with 20 waiting for room, then two with 30 in transfer and room.
    def line(second):
        late = second >= 120
        return (
            f"[2026-03-02 09:{second // 60:02}:{second % 60:02} TP0] Decode batch, "
            f"#running-req: 10, #token: {30_000 if late else 80_000}, "
            f"token usage: {0.30 if late else 0.80:.2f}, pre-allocated usage: 0.10, "
            f"#prealloc-req: {0 if late else 20}, #transfer-req: {30 if late else 1}, "
            "#retracted-req: 0, cuda graph: True, gen throughput (token/s): 400.00, #queue-req: 0"
        )

    log = text(f"[2026-03-02 09:00:00] {PD}", capacity(), [line(i) for i in range(240)])
    verdict = conclude(log)
    assert verdict.primary == "PDD001"
    assert "from 09:00:00" in verdict.headline
    assert "; then PDD002: KV of requests arrives late" in verdict.headline
    assert "from 09:02:00" in verdict.headline


def test_causes_at_the_same_time_are_one_headline():
    verdict = conclude(text(capacity(), decode(usage=[0.95] * 400, queue=9)))
    assert "; then " not in verdict.headline


# -- one capacity -----------------------------------------------------------------------------


def test_the_verdict_and_the_capacity_print_one_number():
    # Young requests of 2,500 tokens at first, of 4,000 later: settled are the later ones.
    log = text(
        capacity(),
        decode(usage=[0.95] * 60, queue=9, running=38),
        decode(usage=[0.96] * 120, queue=9, running=24, start_s=60),
    )
    found = fired(log)["KV001", 1]
    shown = {e.label: e for e in found.evidence}
    assert "room for about 25 at 4,000 tokens each" in found.summary
    assert shown["tokens per running request"].value == 4_000
    assert "lines 62 to 181" in shown["tokens per running request"].formula


def test_the_cap_against_retractions_is_that_of_the_printed_capacity():
    # 25 fit at 4,000 tokens, measured after the storm, in which requests held 2,500: 1.2 x 25.
    storm = [
        f"[2026-03-02 09:00:{i:02}] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
        "#new_tokens_gained: 5000, #new_token_ratio: 0.5000 -> 0.6000"
        for i in range(2, 50)
    ]
    before = decode(usage=[0.95] * 60, queue=9, running=38)
    lines = sorted([*before, *storm], key=lambda line: line[12:20])
    after = decode(usage=[0.96] * 120, queue=9, running=24, start_s=60)
    found = fired(text(capacity(), lines, after))
    cap = next(a for a in found["KV004", 1].actions if a.flag == "--max-running-requests")
    assert "about 1.2 times what fits: 25 at 4,000 tokens each" in cap.text
    assert cap.text.endswith("in today's pool; raise it with the pool")
    assert cap.proposed == 30
    assert "room for about 25 at 4,000 tokens each" in found["KV001", 1].summary


def test_leaked_tokens_are_not_what_requests_hold():
    # 24 running with 12,000 tokens for 400 lines; then 40 more tokens leak each line.
    w = Writer(pool=200_000)
    for i in range(1600):
        if i % 2 == 0:
            w.prefill(4, 1200, 20, usage=0.1)
        w.decode(20 + i % 2 * 4, 9_000 + max(0, i - 400) * 100)
    data = sessions(log_of(w))
    split = rules.leaks_left_out(data, outcomes := rules.run(data))
    assert any(o.code == "KV010" and o.finding for o in outcomes)
    # From 9,000 to 129,000 tokens with 22 running on average; 9,000 / 22 while nothing leaked.
    assert measured.measure(data[0]).tokens_per_req > 3_000
    assert split[0].session.capacity.tokens_per_req == pytest.approx(9_000 / 22, rel=0.25)
    assert any("nobody holds" in note for note in split[0].session.capacity.notes)


def test_a_leak_that_cannot_be_judged_yet_is_named():
    # Two minutes: 30 running with 3,200 each, at the end 20 with 4,800 each.
    running = [30.0] * 40 + [25.0] * 40 + [20.0] * 40
    found = fired(text(capacity(), decode(usage=[0.96] * 120, queue=9, running=running)))
    one = found["KV001", 1]
    assert one.confidence == "medium"
    assert "KV010" in one.competing
    assert "3,200 to 4,800" in one.competing


def test_steady_saturation_names_no_leak():
    one = fired(text(capacity(), decode(usage=[0.96] * 120, queue=9, running=30)))["KV001", 1]
    assert one.confidence == "high"
    assert "KV010" not in one.competing


# -- predicted gains --------------------------------------------------------------------------


def test_what_gains_nothing_is_not_the_first_advice():
    # One waits behind 200: even an endless pool runs 201.
    w = Writer(free_gb=9.2)
    for i in range(200):
        if i % 5 == 0:
            w.prefill(1, 300, 199, 1, usage=0.95)
        w.decode(200 - i % 3, 95_000 + 100 * (i % 9), 1)
    flags = [a.flag for a in fired(log_of(w))["KV001", 1].actions]
    assert flags.index("--mem-fraction-static") > flags.index("--kv-cache-dtype")
    assert flags[-1] == "--mem-fraction-static"


@pytest.mark.parametrize(
    ("low", "mid", "high", "said"),
    [
        (1.04, 1.16, 1.29, "about 1.16 times the throughput (1.04 to 1.29)"),
        (1.161, 1.16, 1.29, "the low end of those that the lines allow"),
        (1.04, 1.29, 1.292, "the high end of those that the lines allow"),
    ],
)
def test_a_range_holds_its_middle_or_says_why(low, mid, high, said):
    assert said in gain_text(Estimate(low, mid, high))


# -- which pool is full -----------------------------------------------------------------------


@pytest.mark.parametrize("other", ["swa token usage: 0.98", "mamba usage: 0.98"])
def test_another_pool_is_not_the_kv_pool(other):
    tokens = "#swa token: 9000, " if other.startswith("swa") else "mamba num: 98, "
    lines = [
        f"[2026-03-02 09:{i // 60:02}:{i % 60:02} TP0] Decode batch, #running-req: 10, "
        f"#full token: 30000, full token usage: 0.30, {tokens}{other}, cuda graph: True, "
        "gen throughput (token/s): 400.00, #queue-req: 9"
        for i in range(120)
    ]
    assert outcomes(text(capacity(), lines))["KV001"].status == "clear"


def test_an_excerpt_counts_lines_that_wait():
    # Ten lines; six of them with a queue.
    queue = [9.0] * 3 + [0.0, 9.0] * 3 + [0.0]
    found = fired(text(decode(usage=[0.95] * 10, queue=queue)))["KV001", 1]
    assert "in 6 of 10 lines" in found.summary


# -- clocks, caps and limits ------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "rate"), [(12, 1.0), (60, 0.01)])
def test_no_minutes_without_a_clock(lines, rate):
    # 40 steps x 10 requests / 1 token/s are 400 s a line: no clock, and too few lines for one.
    log = text(decode(usage=[0.95] * lines, queue=9, rate=rate, stamps=False))
    headline = conclude(log).headline
    assert f"{lines} statistics lines, without stamps" in headline
    assert " min" not in headline


@pytest.mark.parametrize(
    ("algorithm", "asked", "reset"),
    [("EAGLE", None, True), (None, None, False), ("EAGLE", 48, False)],
)
def test_speculation_that_reset_the_cap(algorithm, asked, reset):
    w = Writer(pool=400_000, cap=48, speculative_algorithm=algorithm, max_running_requests=asked)
    for i in range(120):
        w.decode(48, 60_000 + 500 * (i % 7), 20)
    found = fired(log_of(w))["RUN001", 1]
    assert ("speculative decoding reset the cap to 48" in found.summary) == reset
    assert (found.evidence[0].line_no == 1) == reset


@pytest.mark.parametrize("value", [-0.1, 1.01, 95])
def test_a_fraction_is_between_nought_and_one(value):
    with pytest.raises(UsageError, match="between 0 and 1"):
        rules.checked_overrides({"KV001.enter_usage": value})
    assert rules.checked_overrides({"KV001.enter_usage": 1, "KV001.report_s": 95})


# -- one spell, one length --------------------------------------------------------------------


def test_a_claim_tells_the_length_that_stands_beside_its_lines():
    """A line a second: full from second 60 to second 360, which is 5 min from stamp to stamp."""
    full = [0.4] * 60 + [0.99] * 301 + [0.4] * 120
    queue = [0] * 60 + [40] * 301 + [0] * 120
    found = outcomes(text(capacity(), decode(usage=full, queue=queue)))["KV001"].finding
    (episode,) = found.episodes
    assert episode.duration_s == 300
    assert " for 5 min (62% of the log) from " in found.summary


def test_a_silence_is_as_long_as_its_stamps_say_however_many_lines_share_a_second():
    """Four lines a second up to second 14, and from 109 on: 95 s from stamp to stamp.

    Ten requests decode 40 tokens each from line to line, over the silence as well.
    """
    usage = [0.3 + 0.004 * i for i in range(120)]
    before = decode(every_s=0.25, usage=usage[:60], rate=1600.0)
    after = decode(every_s=0.25, start_s=109, usage=usage[60:], rate=[4.2] + [1600.0] * 59)
    found = outcomes(text(capacity(), before, after))["HNG001"].finding
    (episode,) = found.episodes
    assert episode.duration_s == 95
    assert "No line for 1 min 35 s " in found.summary
    assert found.evidence[0].value == 95


def test_a_rate_is_that_of_the_length_beside_it():
    """A line a second; two requests are thrown back after every fifth line, for two minutes."""
    w = Writer()
    for i in range(300):
        w.decode(30, 95_000 + 100 * (i % 9), 10)
        if i % 5 == 4 and i < 120:
            w.retract(2, 3_000, 0.3)
    found = fired(log_of(w))["KV004", 1]
    (episode,) = found.episodes
    (count,) = [e.value for e in found.evidence if e.label == "retracted requests"]
    rate = 60 * count / episode.duration_s
    assert f"{count} requests thrown back to the queue, {rate:.1f} a minute, " in found.summary
