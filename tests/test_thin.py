"""Reducing a very long log must lose no extreme, no sum and no count."""

from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synth import sessions

from loganalyze import rules, schema, thin, timeline
from loganalyze.rules.planted import PLANTED
from loganalyze.rules.selfcheck import read

T0 = datetime(2026, 1, 1)


def batch(rows):
    """Return a batch frame of (second, phase, usage, queue, running, throughput, new_token)."""
    return schema.conform(
        pl.DataFrame(
            {
                "source": ["a.log"] * len(rows),
                "line_no": list(range(1, len(rows) + 1)),
                "time": [T0 + timedelta(seconds=r[0]) for r in rows],
                "phase": [r[1] for r in rows],
                "token_usage": [r[2] for r in rows],
                "queue_req": [r[3] for r in rows],
                "running_req": [r[4] for r in rows],
                "gen_throughput": [r[5] if r[1] == "decode" else None for r in rows],
                "new_token": [r[6] if r[1] == "prefill" else None for r in rows],
                "lines": [1] * len(rows),
            },
            schema_overrides={"gen_throughput": pl.Float64, "new_token": pl.Int64},
        ),
        schema.BATCH,
    )


def test_a_cell_keeps_its_last_line_and_its_extremes():
    rows = [
        (0, "decode", 0.50, 3, 10, 100.0, 0),  # line 1: lowest usage
        (1, "decode", 0.90, 3, 11, 110.0, 0),  # line 2: highest usage
        (2, "decode", 0.60, 9, 12, 120.0, 0),  # line 3: longest queue
        (3, "decode", 0.61, 3, 12, 115.0, 0),  # line 4: nothing of note
        (4, "decode", 0.62, 2, 40, 990.0, 0),  # line 5: most running, shortest queue, fastest
        (5, "decode", 0.63, 3, 12, 116.0, 0),  # line 6: nothing of note
        (6, "decode", 0.64, 3, 12, 117.0, 0),  # line 7: last
    ]
    kept = thin.thin(batch(rows), 8)
    assert kept["line_no"].to_list() == [1, 2, 3, 5, 7]
    assert kept["lines"].to_list() == [0, 0, 0, 0, 7]


def test_prefill_lines_are_summed_into_one_and_states_carry_no_sums():
    rows = [
        (0, "prefill", 0.95, 7, 10, 0.0, 100),  # line 1: highest usage and queue
        (1, "prefill", 0.20, 1, 10, 0.0, 200),  # line 2: lowest usage and queue
        (2, "prefill", 0.50, 2, 10, 0.0, 300),  # line 3: last
        (9, "prefill", 0.50, 2, 10, 0.0, 400),  # line 4: next cell
    ]
    kept = thin.thin(batch(rows), 8)
    assert kept["line_no"].to_list() == [1, 2, 3, 4]
    assert kept["new_token"].to_list() == [None, None, 600, 400]
    assert kept["lines"].to_list() == [0, 0, 3, 1]


def test_a_decode_line_keeps_what_was_prefilled_since_the_one_before():
    rows = [
        (
            0,
            "prefill",
            0.5,
            1,
            4,
            0.0,
            100,
        ),  # before the first decode line: nobody knows what else
        (0, "decode", 0.5, 1, 4, 10.0, 0),
        (1, "prefill", 0.5, 1, 4, 0.0, 200),
        (1, "prefill", 0.5, 1, 4, 0.0, 300),
        (2, "decode", 0.5, 1, 4, 10.0, 0),  # last of the first cell: 2 batches, 500 tokens
        (4, "prefill", 0.5, 1, 4, 0.0, 50),
        (5, "decode", 0.5, 1, 4, 10.0, 0),
        (6, "decode", 0.5, 1, 4, 10.0, 0),  # last of the second: none since the line before
        (9, "prefill", 0.5, 1, 4, 0.0, 70),
        (9, "decode", 0.5, 1, 4, 10.0, 0),  # last of the third: 1 batch, 70 tokens
    ]

    def told(kept):
        lines = kept.filter((pl.col("phase") == "decode") & (pl.col("lines") > 0))
        return list(lines.select("line_no", "last_prefill", "last_new_token").iter_rows())

    fine = thin.thin(batch(rows), 1)
    assert told(fine) == [(2, None, None), (5, 2, 500), (7, 1, 50), (8, 0, 0), (10, 1, 70)]
    wide = [(5, 2, 500), (8, 0, 0), (10, 1, 70)]
    assert told(thin.thin(fine, 4)) == told(thin.thin(batch(rows), 4)) == wide


def test_the_lines_around_the_longest_silence_of_a_cell_stay():
    rows = [(s, "decode", 0.5, 1, 4, 10.0, 0) for s in (0, 1, 30, 31, 47, 48, 70, 71)]
    kept = thin.thin(batch(rows), 64)
    # Line 1 stands for all extremes; 29 s are longer than 16; line 6 ends the first cell, and
    # is the line before the second one's silence of 22 s.
    assert kept["line_no"].to_list() == [1, 2, 3, 6, 7, 8]
    assert kept["quiet_s"].to_list() == [None, 1, 29, 1, 22, 1]
    assert kept["lines"].to_list() == [0, 0, 0, 6, 0, 2]


def test_each_rank_has_its_own_silences():
    silent, steady = (0, 1, 30, 31, 47, 48, 70, 71), tuple(range(0, 72, 9))
    times = sorted([(s, 0) for s in silent] + [(s, 1) for s in steady])
    rows = batch([(s, "decode", 0.5, 1, 4, 10.0, 0) for s, _rank in times])
    rows = rows.with_columns(dp_rank=pl.Series([rank for _, rank in times], dtype=pl.Int32))
    kept = thin.thin(rows, 64)

    def seconds(rank):
        of = kept.filter(pl.col("dp_rank") == rank)
        return [(time - T0).total_seconds() for time in of["time"]]

    # As above, whatever another rank printed in between: of that one, the first and the last
    # line of the first cell stay.
    assert seconds(0) == [0, 1, 30, 48, 70, 71]
    assert seconds(1) == [0, 63]


def test_without_stamps_a_row_takes_as_long_as_the_lines_that_it_stands_for():
    line = "#running-req: 30, #token: 98490, token usage: 0.98, gen throughput (token/s): 480.00"
    (data,) = sessions(f"[gpu_id=0] Decode batch. {line}, #queue-req: 105\n" * 4_000)
    merged = replace(data, batch=thin.thin(data.batch, 4))
    assert merged.batch.height < 500
    for one in (data, merged):
        # 40 steps x 30 tokens / 480 token/s = 2.5 s for each line.
        assert timeline.of(one)[0].lines["t"][-1] == pytest.approx(2.5 * 4_000, rel=0.05)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.sampled_from(["decode", "prefill"]),
        st.sampled_from([0.1, 0.5, 0.9, 1.0]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from([0.0, 10.0, 20.0]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=60,
).map(sorted)


@settings(deadline=None)
@given(ROWS)
def test_reducing_twice_is_reducing_once_and_nothing_is_lost(rows):
    whole = batch(rows)
    once = thin.thin(whole, 8)
    assert thin.thin(thin.thin(whole, 2), 8).equals(once)
    assert once["lines"].sum() == len(rows)
    assert once["new_token"].sum() == whole["new_token"].sum()
    for column in ("token_usage", "queue_req", "running_req", "gen_throughput"):
        assert once[column].max() == whole[column].max()
        assert once[column].min() == whole[column].min()


@pytest.mark.parametrize("step_s", [1, 4, 16])
def test_what_another_rank_prefilled_is_spread_over_the_cell_that_stands_for_it(step_s):
    """Ten prompts of 100 tokens each second on DP1; 40 steps of DP0 take one second."""
    text = ""
    for second in range(160):
        stamp = f"{T0 + timedelta(seconds=second):%Y-%m-%d %H:%M:%S}"
        text += (
            f"[{stamp} DP1 TP1] Prefill batch, #new-seq: 1, #new-token: 100, #cached-token: 0, "
            "token usage: 0.10, #running-req: 5, #queue-req: 0\n"
        ) * 10
        text += (
            f"[{stamp} DP0 TP0] Decode batch, #running-req: 10, #token: 5000, token usage: 0.50, "
            "cuda graph: True, gen throughput (token/s): 400.00, #queue-req: 0\n"
        )
    (session,) = sessions(text)
    reduced = replace(session, batch=thin.thin(session.batch, step_s))
    first = timeline.build(reduced)[0].lines.filter(pl.col("t").is_between(32, 144))
    assert first["last_beside_prefill"].is_between(9, 11).all()
    assert first["last_beside_new_token"].is_between(900, 1100).all()
    # Over the whole cell, all of them count.
    assert first["beside_prefill"].mean() == pytest.approx(10 * step_s, rel=0.1)


#: What these rules look for stands between single lines; merged ones cannot tell it.
_OF_SINGLE_LINES = {"PRE002", "PRE003"}
#: Its running requests swing from line to line, and every cell of 4 s ends on the higher ones.
_SWINGS = "a KV leak"


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
@pytest.mark.parametrize("step_s", [1, 4])
def test_rules_find_the_same_where_lines_are_merged(planted, step_s):
    whole = read(planted.logs())
    merged = [replace(one, batch=thin.thin(one.batch, step_s)) for one in whole]
    found = {f.code for f in rules.findings(rules.run(merged))}
    usual = {f.code for f in rules.findings(rules.run(whole))}
    assert found <= usual or planted.name == _SWINGS
    if step_s == 1:
        assert usual - found <= _OF_SINGLE_LINES
