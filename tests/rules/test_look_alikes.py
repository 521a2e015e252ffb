"""Pairs of logs that differ in one thing, and the cause that it decides, by hand."""

from dataclasses import replace
from datetime import timedelta

import pytest
from synth import sessions

from loganalyze import rules, signals, thin
from loganalyze.model import Severity
from loganalyze.rules.planted import START, B, Writer


def log_of(*writers):
    """Return the lines of writers in the order of their stamps."""
    lines = [line for w in writers for line in w.text]
    return "\n".join(sorted(lines, key=lambda line: line[1:20])) + "\n"


def found(log):
    return {one.code: one for one in rules.findings(rules.run(sessions(log)))}


# -- a pool that is full while prefill takes most of the time --------------------------------


@pytest.mark.parametrize(
    ("second", "waiting", "full"),
    [((1, 404), 500, True), ((2, 4_096), 500, False), ((1, 404), 0, False)],
)
def test_prompts_longer_than_a_chunk_tell_by_their_last_batch_what_ends_admission(
    second, waiting, full
):
    """Usage 0.92 and prompts of 4,500 tokens in chunks of 4,096: the first is always full.

    A last batch of 404 tokens with 500 waiting had no KV for the next; one that is filled up
    with the next prompt had; and with nobody waiting after it none wanted any.
    """
    w = Writer(chunked_prefill_size=4096)
    for i in range(60):
        for _ in range(12 + 2 * (i % 4)):
            w.prefill(1, 4_096, 22, waiting, usage=0.92)
            w.prefill(*second, 22, waiting, usage=0.92)
        w.decode(22, 92_000, waiting)
    assert ("KV001" in found(log_of(w))) == full


# -- the speculative cap ----------------------------------------------------------------------


@pytest.mark.parametrize(("said", "named"), [("48", True), ("32", False)])
def test_the_message_that_speculation_reset_the_cap(said, named):
    """Of 0.5.4 and later; the arguments here do not show it. Another number is another cap."""
    w = Writer(pool=400_000, cap=48)
    w.text.insert(0, f"[2026-03-02 09:00:00] Max running requests is reset to {said} for spec.")
    for i in range(120):
        w.decode(48, 60_000 + 500 * (i % 7), 20)
    cap = found(log_of(w))["RUN001"]
    assert ("speculative decoding reset the cap to 48" in cap.summary) == named
    assert (cap.evidence[0].label == "cap reset to" and cap.evidence[0].line_no == 1) == named


# -- what a pass of admission charges ---------------------------------------------------------


def admitting(new_token):
    """28 run at usage 0.75 of 60,000 with conservativeness 0.3; each pass lets in two.

    Free are 15,000 tokens. new_token_ratio stands at 0.3 x 0.7 x 0.14 = 0.0294, so 28 running
    reserve 3,372; one more request asks for 4,096 and its prompt.
    """
    w = Writer(pool=60_000, schedule_conservativeness=0.3)
    for _ in range(40):  # 1,600 steps: the ratio has long come down
        w.decode(28, 45_000, 9)
    for _ in range(40):
        w.prefill(2, new_token, 26, 9, usage=0.75)
        w.decode(28, 45_000, 9)
    (rank,) = signals.build(sessions(log_of(w))[0]).ranks
    return rank.grid.row(-1, named=True)


def test_a_pass_charges_what_it_lets_in():
    last = admitting(1200)
    # 3,372 + 4,096 + 600 = 8,068, x 1.35 = 10,892 < 15,000: there seems to be room.
    assert last["need"] == pytest.approx(8_068, abs=5)
    assert last["starved"] is False
    # The two that came in were charged 4,096 each: (8,068 + 7,951) x 1.35 = 21,626 > 15,000.
    assert last["charged"] is True


@pytest.mark.parametrize(("new", "careful"), [(1_500, True), (8_192, False)])
def test_careful_admission_shows_in_short_batches_while_prefill_is_the_limit(new, careful):
    # 60 running reserve 60 x 401 tokens and the next one 4,096: 28,000 of the 30,000 free.
    w = Writer(pool=100_000)
    for i in range(150):
        for _ in range(round((12 + i % 3) * 1_500 / new)):
            w.prefill(1, new, 59, 40, usage=0.70)
        w.decode(60, 70_000, 40)
    codes = found(log_of(w))
    assert "PRE001" in codes
    assert ("ADM001" in codes) == careful
    if careful:
        assert codes["ADM001"].explained_by == "PRE001"


def test_a_pass_that_its_budget_ended_was_not_short_of_kv():
    # Prompts of 4,096 fill the chunk of 8,192; 3,372 + 4,096 + 4,096 = 11,564 x 1.35 > 15,000
    # would be too little as it is, so only what was charged is looked at.
    assert admitting(8192)["admitted"] == 0
    assert admitting(1200)["admitted"] == 2


# -- ranks together ---------------------------------------------------------------------------


def ranks(per_minute, minutes=4):
    """Two DP ranks that each retract so many requests a minute, evenly."""
    writers = [Writer(pool=100_000, rank=f" DP{i} TP{i}", dp_size=2) for i in range(2)]
    writers[1].text = []
    for w in writers:
        thrown = 0
        while w.t < 60 * minutes:
            w.decode(20, 97_000, 3)
            if w.t * per_minute / 60 >= thrown + 1:
                thrown += 1
                w.retract(1, 3_000, 0.1)
    return found(log_of(*writers))


@pytest.mark.parametrize(("per_minute", "storm"), [(4, True), (2, False)])
def test_retractions_of_all_ranks_count_together(per_minute, storm):
    """The limit is six a minute: twice four are a storm, twice two are none."""
    assert ("KV004" in ranks(per_minute)) == storm


def test_a_rank_that_falls_silent_early_stops_no_rule():
    first, second = (Writer(pool=100_000, rank=f" DP{i} TP{i}") for i in range(2))
    second.text = []
    for w, seconds in ((first, 200), (second, 900)):
        while w.t < seconds:
            w.decode(20, 95_000, 10)
    outcomes = rules.run(sessions(log_of(first, second)))
    assert [o.reason for o in outcomes if o.status == "error"] == []


# -- silence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("admitted", "cause"), [(False, "KV009"), (True, "HNG001")])
def test_silence_over_an_empty_pool(admitted, cause):
    """A prefill line has admitted something, so the request in front is not too large."""
    w = Writer(pool=100_000)
    for _ in range(60):
        w.decode(1, 2_000, 0)
    w.decode(1, 2_000, 2)
    if admitted:
        w.prefill(1, 500, 0, 2, usage=0.02)
    w.wait(120)
    for _ in range(60):
        w.decode(2, 3_000, 0)
    codes = {code for code, one in found(log_of(w)).items() if one.explained_by is None}
    assert cause in codes
    assert ("KV009" in codes) == (not admitted)


def test_an_empty_pool_before_and_through_a_silence_is_one_spell():
    idle = (
        "Decode batch, #running-req: 0, #token: 0, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 0.00, #queue-req: 5"
    )
    w = Writer(pool=100_000)
    for _ in range(60):
        w.decode(1, 2_000, 0)
    for second in range(260):
        w.line(idle)
        w.wait(300 if second == 200 else 1)
    (one,) = found(log_of(w))["KV009"].episodes
    assert one.duration_s > 400


# -- a slower GPU under open arrivals ---------------------------------------------------------


@pytest.mark.parametrize("slow", [1.4, 1.0])
def test_steps_that_slow_down_while_the_batch_grows(slow):
    """A slow server lets its batch grow beyond all seen; the step model tells the two apart."""
    w = Writer(pool=400_000)
    for i in range(150):
        w.decode(20 + i % 9, 30_000 + 700 * (i % 11))
    w.slow = slow
    for i in range(150):
        w.decode(28 + i // 3, 40_000 + 900 * i)
    w.slow = 1.0
    for i in range(150):
        w.decode(78 - i // 3, 175_000 - 900 * i)
    jump = found(log_of(w)).get("THR002")
    assert (jump is not None) == (slow > 1)
    if jump:
        assert jump.evidence[0].value == pytest.approx(slow, rel=0.05)


# -- careful admission, and what looks like it --------------------------------------------------


def test_what_is_left_when_a_server_drains_says_nothing_of_those_before():
    """300 wait for 200 s with usage 0.5; then the queue is empty, and the longest stay.

    80 running ask for 80 x 4,096 x 0.098 + 4,096 = 36,209 tokens; 30,000 of 60,000 are free.
    The last eight hold 3,000 tokens each: 80 such would fill the pool four times.
    """
    w = Writer(pool=60_000)
    for i in range(200):
        if i % 4 == 3:
            w.prefill(1, 300, 79, 300, usage=0.5)
        w.decode(80, 30_000, 300)
    end = w.t
    for left in range(70, 7, -3):
        w.decode(left, 24_000 + 80 * left, 0)
    (episode,) = found(log_of(w))["ADM001"].episodes
    held = (episode.end - episode.start).total_seconds()
    assert held > 0.9 * end


# -- warm-up, and waves of requests -------------------------------------------------------------


@pytest.mark.parametrize(("crest", "warms"), [(4_000, False), (1_300, True)])
def test_a_wave_of_long_requests_is_no_change_of_the_mix(crest, warms):
    """Tokens per request at 1,000, with crests of 90 s every 300; then 3,000 for good.

    3,000 are beyond what 1,300 reach, and within what 4,000 do.
    """
    w = Writer(pool=400_000, cap=64)
    while w.t < 1_500:
        high = w.t % 300 >= 210
        w.decode(20, 20 * (crest if high else 1_000), 0)
    change = w.t
    while w.t < change + 900:
        w.decode(20, 20 * int(1_000 + 2_000 * min(1.0, (w.t - change) / 120)), 0)
    warm_up = found(log_of(w)).get("WRM001")
    begins = [e.start for e in warm_up.episodes] if warm_up else []
    assert any(at >= START + timedelta(seconds=change - 300) for at in begins) == warms


def twenty(w, until, tokens, every):
    """Twenty requests run, of `tokens(t)` each, and one more starts every so many seconds."""
    begun = w.t
    while w.t < until:
        if every and w.t // every > begun // every:
            w.prefill(1, 30, 19, 0)
        begun = w.t
        w.decode(20, 20 * int(tokens(w.t)), 0)


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("later", [None, 2_500, 400])
def test_a_warm_up_ends_at_the_level_that_it_climbs_to(later, every):
    """From 0 to 1,000 tokens per request in 60 s, so 850 at 51 s; what comes later counts not."""
    w = Writer(pool=400_000, cap=64)
    twenty(w, 300, lambda t: 1 + 999 * min(1.0, t / 60), every)
    if later:
        twenty(w, 1_300, lambda _: later, every)
    warm_up = found(log_of(w))["WRM001"]
    end = (warm_up.episodes[0].end - START).total_seconds()
    assert end == pytest.approx(51, abs=3)
    assert warm_up.evidence[0].value == pytest.approx(1_000, abs=20)


@pytest.mark.parametrize(("every", "span"), [(1, (250, 292)), (10, (0, 292))])
def test_a_level_that_is_left_within_a_few_lifetimes_was_no_level(every, span):
    """From 1,000 tokens per request to 2,000 in 60 s, so 1,700 at 42 s; then for 190 s.

    Of 20 requests one of which starts every second each lives 20 s, and in 250 s twelve
    generations came: the mix is another. One that starts every 10 s lives 200 s: those of the
    start are still growing.
    """
    w = Writer(pool=400_000, cap=64)
    twenty(w, 500, lambda t: 1_000 + 1_000 * min(1.0, max(0.0, t - 250) / 60), every)
    (one,) = found(log_of(w))["WRM001"].episodes
    spent = tuple((at - START).total_seconds() for at in (one.start, one.end))
    assert spent == pytest.approx(span, abs=15)


# -- prefill without decode lines ---------------------------------------------------------------


@pytest.mark.parametrize(("new_token", "held"), [(8_192, True), (100, False)])
def test_prefill_that_computes_next_to_nothing_is_no_limit(new_token, held):
    """A prefill batch every 4 s and no decode line: 2,048 tokens a second, or 25."""
    w = Writer(pool=400_000)
    for _ in range(60):
        w.decode(20, 40_000)
    for _ in range(60):
        w.prefill(1, new_token, 0, 9, usage=0.6)
        w.wait(4)
    assert ("PRE001" in found(log_of(w))) == held


# -- a cold start that passes, or that nobody sees pass ----------------------------------------


def cold(*, decodes, then=20):
    """A burst on a cold server, and four minutes in which one request is let in every 10 s."""
    w = Writer(pool=400_000)
    w.prefill(60, 9000, 0, 500, usage=0.03)
    for i in range(24):
        w.wait(10)
        w.prefill(1, 150, 60 + i, 499 - i, usage=0.03)
        for _ in range(decodes):
            w.decode(60 + i, 10_000 + 1000 * i, 499 - i)
    for _ in range(then):
        w.decode(84, 30_000, 470)
    return {one.code: one for one in rules.run(sessions(log_of(w)))}["ADM003"]


def test_a_cold_start_passes_by_itself_if_decode_lines_show_the_steps():
    assert cold(decodes=8).reason.endswith("this passes by itself")
    late = cold(decodes=0)
    assert "for most of it no decode line is printed" in late.reason
    assert late.finding.confidence == "low"
    assert "it has no decode lines" in cold(decodes=0, then=0).reason


# -- a small sliding-window pool ---------------------------------------------------------------


@pytest.mark.parametrize(("used", "blocks"), [(4_000, True), (3_000, False)])
def test_a_small_window_pool_blocks_by_what_the_next_request_asks_for(used, blocks):
    """14 x 4096 x 0.7 x 0.14 x 0.1 + 4096 = 4,658, with the margin 6,288, of which 10,000 - used
    are free; the full pool has 310,000.
    """
    w = Writer(pool=400_000, schedule_conservativeness=0.1)
    pools = (
        f"#full token: 90000, full token usage: 0.22, #swa token: {used}, "
        f"swa token usage: {used / 10_000:.2f}"
    )
    for _ in range(90):
        w.decode(14, 90_000, 40, usage=pools)
    assert ("SWA001" in found(log_of(w))) is blocks


# -- long contexts, and a GPU that became slower ------------------------------------------------


def test_a_slower_gpu_does_not_make_contexts_long():
    """A step takes 20 ms + 2 ms for 20 requests + 1 to 7.5 ms to read 20,000 to 150,000 tokens.

    So it reads for a quarter of the time at most. Most hold few before the GPU becomes slow, and
    most hold many from then on: one model of both speeds gives the difference to the tokens.
    """
    w = Writer(pool=400_000)
    for slow, usual, seldom in ((1.0, 20_000, 150_000), (1.6, 150_000, 20_000)):
        w.slow = slow
        for i in range(300):
            w.decode(20 + i % 3, (usual if i % 5 else seldom) + 100 * (i % 7))
    assert signals.build(sessions(log_of(w))[0]).ranks[0].model.b_s > 2 * B
    one = found(log_of(w))
    assert "THR002" in one
    assert "LNG001" not in one


# -- rows that stand for several lines ----------------------------------------------------------


@pytest.mark.parametrize("width", [1, 16, 64])
@pytest.mark.parametrize(("every", "code"), [(4, "QUE001"), (10_000, "ADM002")])
def test_a_row_for_a_minute_tells_of_the_prefills_in_it(width, every, code):
    """60 wait and 14 run for 20 minutes with KV free: one is let in every 4th line, or none."""
    w = Writer(pool=400_000, enable_lora=True, max_loras_per_batch=2)
    w.prefill(14, 4_200, 0, 60)
    for i in range(1_400):
        if i % every == every - 1:
            w.prefill(1, 300, 13, 60, usage=0.03)
        w.decode(14, 12_000 + 100 * (i % 7), 60)
    (data,) = sessions(log_of(w))
    merged = replace(data, batch=thin.thin(data.batch, width))
    fired = {one.code for one in rules.findings(rules.run([merged]))}
    assert fired & {"QUE001", "ADM002"} == {code}


# -- requests that hold more than a while before ----------------------------------------------


def grown(earlier):
    """Return KV006 where 60 requests of 500 tokens become 38 of 2,500, and 30 wait.

    `earlier` is what ran for the minutes before: (running, tokens). One request ends every
    fifth line, so a request lives for some 190 to 300 lines of a second and more.
    """
    w = Writer()
    for i in range(400):
        running, token = earlier if i < 300 else (60, 30_000)
        if i % 5 == 0:
            w.prefill(1, 100, running - 1, usage=token / 100_000)
        w.decode(running, token + 10 * (i % 9))
    for i in range(60):
        w.decode(60 - i * 22 // 60, 30_000 + i * 1_080, 30)
    for i in range(300):
        if i % 5 == 0:
            w.prefill(1, 100, 37, 30, usage=0.95)
        w.decode(38, 95_000 + 10 * (i % 9), 30)
    return {one.code: one for one in rules.run(sessions(log_of(w)))}["KV006"].finding


def test_requests_that_held_as_much_a_while_before_are_no_new_mix():
    again = grown((38, 95_000))
    assert again.severity == Severity.INFO
    assert "this is a refill, no new mix" in again.summary
    assert "requests held 2,501" in again.summary  # 95,040 / 38, the mean of 95,000 to 95,080
    new = grown((60, 33_000))
    assert new.severity == Severity.WARNING
    assert "the mix of requests changed" in new.summary
    assert new.confidence == "high"


def test_requests_that_all_came_of_late_may_just_be_young():
    # 40 run, each with 550 tokens, and then 60 with 500: as they age these hold more.
    maybe = grown((40, 22_000))
    assert maybe.confidence == "low"
    assert "running requests rose from 40 to 60" in maybe.competing
