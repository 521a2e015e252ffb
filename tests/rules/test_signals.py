"""The clock, the states and the step model that all rules stand on, by hand."""

from datetime import timedelta

import polars as pl
import pytest
from synth import START, capacity, decode, sessions, text

from loganalyze import rules, signals, timeline
from loganalyze.capacity import steps
from loganalyze.rules import held
from loganalyze.rules.admission import starved
from loganalyze.rules.planted import P0, P1, T0, A, B, Writer


def one_rank(log):
    (rank,) = signals.build(sessions(log)[0]).ranks
    return rank


def log_of(writer):
    return "\n".join(writer.text) + "\n"


# -- timeline -------------------------------------------------------------------------------


@pytest.mark.parametrize(("goes_on", "chunk"), [(True, 2_048), (False, None)])
def test_the_chunk_size_is_told_by_prompts_that_go_on(goes_on, chunk):
    """Without start-up lines: full batches after which nobody more runs are parts of a prompt.

    Prompts that all have 2,048 tokens each add a running request.
    """
    w = Writer(startup=False)
    for running in range(6, 10):
        for batch in range(5):
            w.prefill(1, 2_048, running + (0 if goes_on else batch), 9, usage=0.5)
        w.prefill(1, 300, running + (0 if goes_on else 5), 9, usage=0.5)
        w.decode(running + (1 if goes_on else 6), 50_000, 9)
    rank = one_rank(log_of(w))
    assert rank.timeline.chunk == chunk
    started = rank.grid["started"].sum()
    assert started == (4 if goes_on else 24)


def test_lines_of_one_second_are_spread_over_it():
    rank = one_rank(text(capacity(), decode(usage=[0.5] * 4, every_s=0.5)))
    assert rank.lines["t"].to_list() == [0.25, 0.75, 1.25, 1.75]


def test_a_clock_set_back_goes_on():
    late = decode(usage=[0.5] * 3, start_s=0)
    (one,) = timeline.build(sessions(text(decode(usage=[0.5] * 30, start_s=100), late))[0])[:1]
    assert one.lines["t"].is_sorted()


def test_without_stamps_the_decode_interval_is_the_clock():
    # 40 steps x 10 requests / 400 token/s = 1 s a line.
    rank = one_rank(text(decode(usage=[0.5] * 50, stamps=False)))
    assert rank.clock == "steps"
    assert rank.span_s == pytest.approx(49.0)


def test_prefill_lines_print_the_batch_before_the_new_requests():
    w = Writer()
    w.prefill(5, 900, 20)
    w.decode(25, 9_000)
    rank = one_rank(log_of(w))
    assert rank.lines["running"].to_list() == [25, 25]


def lines_of(*lines):
    """Return decode lines of (second, running, token/s)."""
    return text(
        [
            f"[{START + timedelta(seconds=at):%Y-%m-%d %H:%M:%S} TP0] Decode batch, #running-req: "
            f"{running}, #token: 5000, token usage: 0.05, cuda graph: True, "
            f"gen throughput (token/s): {rate:.2f}, #queue-req: 0"
            for at, running, rate in lines
        ]
    )


@pytest.mark.parametrize(
    ("rate", "came", "interval_s", "batch"),
    [
        (60, 20, 10.0, 15.0),  # 40 x 20 / 60 = 13.3 s, but 10 passed: 60 x 10 = 40 x 15
        (60, 2, 40 * 20 / 60, 20.0),  # the same requests go on: another number of steps
        (80, 20, 10.0, 20.0),  # as stamped
        (400, 20, 2.0, 20.0),  # 2 of 10 s: lines are missing, and what they tell stays
    ],
)
def test_stamps_say_the_interval_where_the_batches_at_its_ends_do_not(
    rate, came, interval_s, batch
):
    decode = lines_of(*((10 * n, 20, rate) for n in range(15))).splitlines()
    prefill = (
        "Prefill batch, #new-seq: {}, #new-token: 900, #cached-token: 0, token usage: 0.05, "
        "#running-req: 0, #queue-req: 0"
    )
    log = [part for line in decode for part in (line, f"{line[:26]}{prefill.format(came)}")]
    last = one_rank(text(log)).lines.filter("decode").row(-1, named=True)
    assert (last["dt_s"], last["r_mean"]) == (pytest.approx(interval_s), pytest.approx(batch))


def test_a_cell_weighs_its_intervals_by_their_time():
    """40 x 10 / 100 = 4 s at 100 token/s and 0.25 s at 1,600, both ending in one second."""
    rank = one_rank(lines_of((0, 10, 400), (5, 10, 100), (5, 10, 1600)))
    assert rank.grid["rate"][5] == pytest.approx((4 * 100 + 0.25 * 1600) / 4.25)


def test_a_cut_prompt_does_not_run_yet():
    w = Writer(chunked_prefill_size=2048)
    w.prefill(3, 2048, 20)
    w.prefill(2, 700, 22)
    rank = one_rank(log_of(w))
    # 20 + 3 - the one that was cut; 22 + 2, of which one goes on.
    assert rank.lines["running"].to_list() == [22, 24]
    assert rank.lines["continued"].to_list() == [False, True]


def test_completions_are_exact():
    w = Writer()
    w.decode(20, 9_000)
    w.prefill(6, 900, 17)
    w.decode(23, 9_500)
    w.retract(2, 500, 0.3)
    w.decode(20, 9_300)
    rank = one_rank(log_of(w))
    # 20 + 6 - 23 = 3 finished; then 23 - 2 retracted - 20 = 1.
    assert rank.lines.filter("decode")["completed"].to_list() == [None, 3, 1]


def test_idle_and_busy_silences():
    w = Writer(pool=400_000)
    for i in range(20):
        w.decode(4, 2_000 + i)
    w.wait(60)
    w.decode(4, 2_100)
    w.wait(60)
    w.prefill(4, 400, 0)
    for i in range(20):
        w.decode(4, 2_000 + i)
    gaps = one_rank(log_of(w)).gaps
    assert [gap.idle for gap in gaps] == [False, True]
    assert [round(gap.duration_s) for gap in gaps] == [pytest.approx(61, abs=1)] * 2


def test_duplicates_and_other_pipeline_ranks_are_left_out():
    lines = [
        line.replace(" TP0", f" PP{pp} TP0") for line in decode(usage=[0.5] * 30) for pp in (0, 1)
    ]
    rank = one_rank(text(lines))
    assert rank.lines.height == 30
    assert set(rank.lines["pp_rank"]) == {0}


# -- new_token_ratio ------------------------------------------------------------------------


def test_ratio_falls_from_its_start_to_its_floor():
    w = Writer(pool=400_000)
    for i in range(20):
        w.decode(10, 3_000 + i)
    ratio = one_rank(log_of(w)).lines["ratio"]
    # 0.7, less (0.7 - 0.098) / 600 a step, 40 steps a line; the floor after 15 lines.
    assert ratio[0] == pytest.approx(0.7)
    assert ratio[4] == pytest.approx(0.7 - 4 * 40 * 0.602 / 600)
    assert ratio[-1] == pytest.approx(0.098)


def test_a_retraction_sets_the_ratio():
    w = Writer()
    for i in range(30):
        w.decode(30, 96_000 + i)
    w.retract(1, 3_000, 0.41)
    w.decode(29, 93_000)
    rank = one_rank(log_of(w))
    assert rank.lines["ratio"][-1] == pytest.approx(0.41 - 40 * 0.602 / 600)


def test_a_log_without_its_start_begins_at_the_floor():
    rank = one_rank(text(decode(usage=[0.5] * 30)))
    assert rank.lines["ratio"][0] == pytest.approx(0.098)


# -- step model -----------------------------------------------------------------------------


def varied(count=240, **kwargs):
    """Return a log whose running requests, tokens and prefills move apart."""
    w = Writer(pool=400_000, **kwargs)
    for i in range(count):
        for k in range(i % 3):
            w.prefill(2, 300 + 170 * ((i + k) % 5), 20)
        w.decode(20 + 6 * (i // 12 % 7), 50_000 + 25_000 * (i // 20 % 9))
    return log_of(w)


def test_the_fit_finds_the_planted_model():
    model = steps.fit(sessions(varied())[0])
    assert model.identified
    assert model.t0_s == pytest.approx(T0, rel=0.05)
    assert model.a_s == pytest.approx(A, rel=0.15)
    assert model.b_s == pytest.approx(B, rel=0.05)
    assert model.p0_s == pytest.approx(P0, rel=0.25)
    assert model.p1_s == pytest.approx(P1, rel=0.1)


def test_the_fit_survives_outliers():
    lines = varied().splitlines()
    spoiled = [
        line.replace("gen throughput (token/s): ", "gen throughput (token/s): 0")
        if i % 17 == 0
        else line
        for i, line in enumerate(lines)
    ]
    spoiled = [
        line[: line.rindex(": ", 0, line.rindex(", #queue")) + 2]
        + "99.00"
        + line[line.rindex(", #queue") :]
        if "Decode" in line and i % 17 == 0
        else line
        for i, line in enumerate(spoiled)
    ]
    model = steps.fit(sessions("\n".join(spoiled) + "\n")[0])
    assert model.t0_s == pytest.approx(T0, rel=0.1)


def test_too_few_lines_are_not_fitted():
    assert steps.fit(sessions(varied(count=steps.MIN_LINES // 2))[0]) is None


def test_constant_tokens_do_not_identify_b():
    w = Writer(pool=400_000)
    for i in range(80):
        w.decode(20 + i % 9, 50_000)
    model = steps.fit(sessions(log_of(w))[0])
    assert not model.identified
    assert "KV tokens hardly moved" in model.note


def test_constant_running_requests_tell_b_and_not_a():
    """Every step is t0 + 8 a + b T: any split of the first two explains the lines."""
    w = Writer(pool=400_000)
    for i in range(240):
        w.decode(8, 50_000 + 10_000 * (i % 9))
    data = sessions(log_of(w))
    model = steps.fit(data[0])
    assert (model.identified, model.b_identified) == (False, True)
    assert model.b_s == pytest.approx(B, rel=0.05)
    assert model.t0_s + 8 * model.a_s == pytest.approx(T0 + 8 * A, rel=0.02)
    found = next(f for f in rules.findings(rules.run(data)) if f.code == "CLI001")
    (twice,) = [e for e in found.evidence if "twice the requests" in e.label]
    assert "cannot tell from this log: running requests hardly moved" in twice.value


def test_unknowns_are_never_negative():
    model = steps.fit(sessions(varied())[0])
    assert min(model.t0_s, model.a_s, model.b_s, model.p0_s, model.p1_s) >= 0


def test_duty_is_the_share_of_prefill():
    w = Writer(pool=400_000)
    for i in range(120):
        for _ in range(i % 5):
            w.prefill(1, 1900, 20)
        w.decode(20 + i % 7, 60_000 + 5_000 * (i % 9))
    rank = one_rank(log_of(w))
    line = rank.lines.filter(pl.col("decode") & (pl.col("n_prefill") == 4)).row(0, named=True)
    # 4 x (0.01 + 0.19) s of prefill against 40 steps.
    decoding = 40 * (T0 + A * line["running_req"] + B * line["token"])
    assert line["duty"] == pytest.approx(0.8 / (0.8 + decoding), abs=0.03)


@pytest.mark.parametrize("together", [True, False])
def test_the_prefill_of_one_rank_is_waited_for_by_those_that_step_with_it(together):
    ranks = [
        Writer(
            pool=400_000,
            rank=f" DP{i} TP{i}",
            startup=i == 0,
            dp_size=2,
            enable_dp_attention=together,
        )
        for i in (0, 1)
    ]
    log = list(ranks[0].text)
    ranks[0].text.clear()
    passed = prefilled = 0.0
    for i in range(160):
        running, token = 20 + 6 * (i // 12 % 7), 50_000 + 25_000 * (i // 20 % 6)
        for _ in range(2 + i % 5):
            ranks[1].prefill(1, 4_000, running)
            ranks[0].wait(P0 + P1 * 4_000)
            prefilled += P0 + P1 * 4_000
        for w in ranks:
            w.decode(running, token)
            log += w.text
            w.text.clear()
        passed = ranks[0].t
    idle, busy = signals.build(sessions("\n".join(log) + "\n")[0]).ranks
    # 4 x 0.41 s against 40 steps of about 0.0294 s, on average.
    assert prefilled / passed == pytest.approx(1.64 / (1.64 + 1.18), abs=0.02)
    assert busy.grid["duty"].mean() == pytest.approx(prefilled / passed, abs=0.06)
    expected = prefilled / passed if together else 0.0
    assert idle.grid["duty"].mean() == pytest.approx(expected, abs=0.06)
    # What the other rank computes is no slower step of this one.
    if together:
        assert idle.model.t0_s == pytest.approx(T0, rel=0.15)
        assert idle.lines["residual"].abs().median() < 0.03


def test_the_grid_is_bounded(monkeypatch):
    monkeypatch.setattr(signals, "MAX_CELLS", 50)
    rank = one_rank(text(capacity(), decode(usage=[0.5] * 200)))
    assert rank.grid.height <= 50
    assert rank.step_s == 4


def test_states_are_null_in_gaps():
    rank = one_rank(text(decode(usage=[0.5] * 30), decode(usage=[0.7] * 30, start_s=100)))
    inside = rank.grid.filter("gap")
    assert inside["usage"].null_count() == inside.height == 70
    assert rank.grid["t"][-1] == 129
    assert START.year == 2026


def test_what_running_requests_grow_to_leaves_out_those_that_come_later():
    # 10 requests decode 40 tokens a second each, from 50,000 on; 5 of 600 tokens join at 10.5 s.
    alone = [0.5 + 0.004 * i for i in range(11)]
    joined = [0.5 + 0.03 + 0.004 * i + 0.002 * (i - 10) for i in range(11, 31)]
    prefill = (
        f"[{START + timedelta(seconds=10):%Y-%m-%d %H:%M:%S} TP0] Prefill batch, #new-seq: 5, "
        "#new-token: 3000, #cached-token: 0, token usage: 0.57, #running-req: 10, #queue-req: 3"
    )
    rank = one_rank(
        text(
            capacity(),
            decode(usage=alone),
            prefill,
            decode(usage=joined, running=15, rate=600.0, start_s=11),
        )
    )
    # The first 10 hold 62,000 at the end; the pool then holds 69,000. One more brings a prompt of
    # 600 and decodes 1,200 beside them.
    assert rank.grid["full_usage"][0] == 0.5
    assert rank.filled[0] == pytest.approx(0.638, abs=0.005)


def test_without_prefill_lines_the_next_request_is_as_large_as_the_others():
    rank = one_rank(text(capacity(), decode(usage=[0.8] * 30, running=4)))
    assert rank.filled[10] == pytest.approx(0.8 * 5 / 4)


def test_without_start_up_lines_the_largest_batch_bounds_the_token_budget():
    at = f"[{START:%Y-%m-%d %H:%M:%S} TP0]"
    sizes = [(1, 600), (1, 400), (4, 2000)]
    prefills = [
        f"{at} Prefill batch, #new-seq: {n}, #new-token: {size}, #cached-token: 0, "
        "token usage: 0.50, #running-req: 10, #queue-req: 3"
        for n, size in sizes
    ]
    rank = one_rank(text(prefills))
    # A usual prompt has 500 tokens: with one more two are still below 2000.
    assert rank.lines["short"].to_list() == [True, True, False]


def test_the_need_is_shown_at_a_line_where_more_is_asked_for_than_is_free():
    at = f"[{START:%Y-%m-%d %H:%M:%S} TP0]"
    prefill = (
        f"{at} Prefill batch, #new-seq: 4, #new-token: 400, #cached-token: 0, "
        "token usage: 0.90, #running-req: 0, #queue-req: 3"
    )
    after = decode(usage=[0.5], running=4, queue=3, start_s=1)
    rank = one_rank(text(capacity(), prefill, after))
    free, need = starved.at_one_line(held.whole(rank))
    # The estimate starts at 0.7: 4 x 4096 x 0.7 + 4 x 4096 x 0.3 + 4096 + 400 / 4 tokens.
    assert (free.value, need.value) == (10_000, 20_580)
    assert free.line_no == need.line_no == 2
    assert "in 1 of 2 lines with requests waiting" in free.formula
    # At usage 0.5 and 0.6 there is more than that: the line with the least to spare is shown.
    rank = one_rank(text(capacity(), prefill.replace("0.90", "0.60"), after))
    free, need = starved.at_one_line(held.whole(rank))
    assert (free.label, free.value) == ("free KV where least was to spare", 40_000)
    assert (need.value, need.line_no) == (20_580, 2)
