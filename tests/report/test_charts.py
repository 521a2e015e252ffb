from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest
import samples

from loganalyze.model import Band, Capacity, Report, Series, StepModel
from loganalyze.report import charts, live, phase

START = datetime(2026, 2, 24, 11, 30)
T0 = 1_771_932_600_000.0  # 2026-02-24 11:30:00 as if UTC, in milliseconds


def one_series(
    x: Sequence[int],
    columns: dict[str, Sequence[float | None]],
    *,
    step: float = 2,
    start: datetime | None = START,
    rank: str | None = "TP0",
    session: int = 1,
    source: str = "server.log",
    gaps: Sequence[tuple[datetime, datetime]] = (),
) -> Series:
    bands = {name: Band(tuple(v), tuple(v), tuple(v)) for name, v in columns.items()}
    lines = tuple(100 + i for i in range(len(x)))
    return Series(session, rank, source, start, step, tuple(x), lines, bands, gaps)


def report(*series: Series, **changes: object) -> Report:
    return replace(samples.healthy(), series=series, **changes)


def usage(n: int) -> dict[str, list[float]]:
    return {"kv_usage": [0.5] * n}


def test_a_silence_breaks_the_curve_and_nothing_else_does() -> None:
    x = [0, 1, 2, 3, 40, 41, 42]  # 74 s without a line; usual distance 2 s
    t = charts.timeline(report(one_series(x, usage(7))))
    assert t
    (curve,) = t.of("usage")
    assert curve.parts == [(0, 4), (4, 7)]
    assert curve.x[:2] == [T0, T0 + 2_000]


def test_a_log_that_always_prints_slowly_has_no_gap() -> None:
    t = charts.timeline(report(one_series([0, 30, 60, 90, 125], usage(5))))
    assert t
    assert t.of("usage")[0].parts == [(0, 5)]


def test_a_known_gap_breaks_the_curve_even_within_one_bin_distance() -> None:
    gap = (datetime(2026, 2, 24, 11, 30, 3), datetime(2026, 2, 24, 11, 30, 4))
    t = charts.timeline(report(one_series([0, 1, 2, 3], usage(4), gaps=(gap,))))
    assert t
    assert t.of("usage")[0].parts == [(0, 2), (2, 4)]
    assert t.gaps == [(T0 + 3_000, T0 + 4_000)]


def test_null_bins_are_left_out_and_never_drawn_as_zero() -> None:
    t = charts.timeline(report(one_series([0, 1, 2], {"kv_usage": [0.5, None, 0.7]})))
    assert t
    (curve,) = t.of("usage")
    assert list(curve.mean) == [0.5, 0.7]
    assert list(curve.first_line) == [100, 102]


def test_coarse_bins_keep_every_extreme() -> None:
    s = Series(
        1,
        None,
        "a.log",
        START,
        2,
        (0, 1, 2, 5),
        (10, 11, 12, 13),
        {"kv_usage": Band((0.1, 0.2, None, 0.5), (0.2, 0.4, None, 0.5), (0.3, 0.9, None, 0.5))},
    )
    out = charts.coarsen(s, 2)
    assert (out.step, list(out.x), list(out.first_line)) == (4, [0, 1, 2], [10, 12, 13])
    band = out.columns["kv_usage"]
    assert list(band.min) == [0.1, None, 0.5]
    assert list(band.mean) == [pytest.approx(0.3), None, 0.5]
    assert list(band.max) == [0.9, None, 0.5]


def test_the_pools_of_a_hybrid_model_are_drawn_instead_of_their_maximum() -> None:
    columns = {
        "kv_usage": [0.9, 0.9],
        "full_token_usage": [0.3, 0.3],
        "swa_token_usage": [0.9, 0.9],
    }
    t = charts.timeline(report(one_series([0, 1], columns)))
    assert t
    assert [c.label for c in t.of("usage")] == ["full attention", "sliding window"]
    assert [c.hue for c in t.of("usage")] == [0, 1]


def test_a_panel_of_zeros_is_said_and_not_drawn() -> None:
    t = charts.timeline(report(one_series([0, 1], {**usage(2), "queue_req": [0, 0]})))
    assert t
    assert [p.id for p in t.panels] == ["usage"]
    assert [p.id for p in t.flat] == ["waiting"]


def test_one_point_is_no_timeline() -> None:
    assert charts.timeline(samples.excerpt()) is None
    assert charts.timeline(report()) is None


def test_without_stamps_x_is_the_line_number() -> None:
    t = charts.timeline(report(one_series([0, 1, 2], usage(3), start=None)))
    assert t
    assert not t.by_time
    assert (t.x0, t.x1) == (100, 102)


def test_what_fits_and_the_cap_are_drawn_where_they_matter() -> None:
    session = replace(samples.SESSION, capacity=Capacity(requests_fit=37, max_running_req=2_048))
    t = charts.timeline(
        report(one_series([0, 1], {"running_req": [30.0, 35.0]}), sessions=(session,))
    )
    assert t
    assert [(r.label, r.y) for r in t.references] == [("37 fit the KV pool", 37.0)]
    assert t.tops["running"] == 40


def test_the_fitted_throughput_is_that_of_the_formula() -> None:
    # 40 requests with 160,000 tokens: 40 / (0.02 + 0.001 * 40 + 1e-7 * 160,000) = 40 / 0.076
    model = StepModel(
        0.02, 0.001, 1e-7, 0.05, 0.0002, 100, 0.03, identified=True, b_identified=True
    )
    session = replace(samples.SESSION, capacity=Capacity(tokens_per_req=4_000, step_model=model))
    columns = {
        "running_req": [40.0, 40.0],
        "token": [160_000.0, 160_000.0],
        "gen_throughput": [500.0, 500.0],
    }
    one = report(one_series([0, 1], columns), sessions=(session,))
    t = charts.timeline(one)
    assert t
    fitted = [c for c in t.of("throughput") if c.kind == "model"]
    assert fitted[0].mean[0] == pytest.approx(526.3158, abs=1e-3)
    not_sure = replace(session, capacity=Capacity(step_model=replace(model, b_identified=False)))
    t = charts.timeline(replace(one, sessions=(not_sure,)))
    assert t
    assert [c.kind for c in t.of("throughput")] == ["value"]


def test_episodes_are_lanes_worst_first_and_only_root_problems_shade() -> None:
    t = charts.timeline(samples.founding())
    assert t
    lanes = [(x.label, x.severity, list(x.findings), x.shade) for x in t.lanes]
    assert lanes == [
        ("KV001", "critical", [0], True),
        ("KV004", "warning", [1] * 12, False),
        ("CLI002", "info", [3], False),
        ("retract", "event", [], False),
        ("http_4xx", "event", [], False),
    ]
    assert t.lanes[0].spans == [(T0 + 137_000, t.x1)]
    assert len(t.lanes[1].spans) == 12


def test_one_rule_has_one_lane_over_all_sessions() -> None:
    base = samples.restarts()
    later = replace(base.findings[1], session=4, episodes=(samples.KV001.episodes[0],))
    t = charts.timeline(replace(base, findings=(*base.findings, later)))
    assert t
    assert [(x.label, list(x.findings)) for x in t.lanes[:2]] == [
        ("CRS001", [0, 0, 0]),
        ("KV001", [1, 1, 1, 1, 2]),
    ]


def test_colours_are_named_where_they_tell_columns_apart() -> None:
    columns = {"full_token_usage": [0.3, 0.3], "swa_token_usage": [0.9, 0.9], "queue_req": [1, 2]}
    t = charts.timeline(report(one_series([0, 1], columns)))
    assert t
    assert t.keys("usage") == [("full attention", 0), ("sliding window", 1)]
    assert t.keys("waiting") == []
    ranks = charts.timeline(samples.dp8())
    assert ranks
    assert ranks.keys("usage") == []


def test_restarts_stand_where_the_next_session_begins() -> None:
    t = charts.timeline(samples.restarts())
    assert t
    assert t.restarts == [
        (T0 + 21_300_000, "restart after crash"),
        (T0 + 40_240_000, "restart after crash"),
        (T0 + 70_900_000, "restart after crash"),
    ]
    fits = [r for r in t.references if r.panel == "running"]
    assert [r.label for r in fits] == [
        "38 fit the KV pool",
        "56 fit the KV pool",
        "38 fit the KV pool",
        "28 fit the KV pool",
    ]


def test_levels_too_near_for_two_labels_share_one() -> None:
    def labels(fit: int, cap: int) -> list[tuple[float, str]]:
        capacity = Capacity(requests_fit=fit, max_running_req=cap)
        session = replace(samples.SESSION, capacity=capacity)
        s = one_series([0, 1], {"running_req": [10, 60]})
        t = charts.timeline(report(s, sessions=(session,)))
        assert t
        return [(r.y, r.label) for r in t.references if r.panel == "running"]

    assert labels(69, 64) == [(69, "69 fit the KV pool, cap 64"), (64, "")]
    assert labels(64, 69) == [(64, ""), (69, "cap 69, 64 fit the KV pool")]
    assert labels(30, 64) == [(30, "30 fit the KV pool"), (64, "cap 64")]


def test_eight_ranks_have_a_line_each_and_the_named_one_stands_out() -> None:
    t = charts.timeline(samples.dp8())
    assert t
    assert [line.label for line in t.lines] == [f"DP{i} TP0" for i in range(8)]
    assert [line.quiet for line in t.lines] == [False] + [True] * 7
    assert len({line.hue for line in t.lines}) == 8


def test_of_many_ranks_the_telling_ones_are_drawn_and_the_range_of_all() -> None:
    many = [one_series([0, 1], {"kv_usage": [i / 40, i / 40]}, rank=f"DP{i}") for i in range(40)]
    t = charts.timeline(report(*many))
    assert t
    assert t.n_lines == 40
    assert [line.label for line in t.drawn] == [
        *("DP0", "DP1", "DP2", "DP3", "DP36", "DP37", "DP38", "DP39")
    ]
    assert {c.line for c in t.of("usage") if c.kind == "value"} == {0, 1, 2, 3, 36, 37, 38, 39}
    assert len({c.line for c in t.curves if c.kind == "value"}) == 40  # a reader can add the rest
    (both,) = [c for c in t.of("usage") if c.kind == "range"]
    assert (both.low[0], both.high[0]) == (0.0, 39 / 40)


def test_ranks_of_several_logs_are_named_with_their_log() -> None:
    t = charts.timeline(
        report(
            one_series([0, 1], usage(2), source="logs/a.log", rank=None),
            one_series([0, 1], usage(2), source="logs/b.log", rank="TP0"),
        )
    )
    assert t
    assert [line.label for line in t.lines] == ["a.log", "b.log TP0"]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (40, ["11:30:00", "11:30:10", "11:30:20", "11:30:30", "11:30:40"]),
        (2_698, ["11:30", "11:40", "11:50", "12:00", "12:10"]),
        (86_400, ["12:00", "16:00", "20:00", "00:00", "04:00", "08:00"]),
    ],
)
def test_ticks_fall_on_round_times(seconds: int, labels: list[str]) -> None:
    out = charts.ticks(T0, T0 + 1_000 * seconds, True)
    assert [label for _, label, _ in out] == labels
    days = [day for _, _, day in out if day]
    assert days == (["2026-02-24", "2026-02-25"] if seconds == 86_400 else ["2026-02-24"])


def test_ticks_of_lines_are_whole_numbers() -> None:
    assert [x for x, _, _ in charts.ticks(3, 11, False)] == [4, 6, 8, 10]
    assert [x for x, _, _ in charts.ticks(1, 3, False)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "top"), [(0.94, 1), (37, 40), (121, 160), (1_317, 1_600), (101, 120), (0.032, 0.04)]
)
def test_axes_end_at_numbers_that_halve_well(value: float, top: float) -> None:
    assert charts.nice(value) == pytest.approx(top)


def test_spans_that_touch_become_one() -> None:
    assert charts.merge([(5, 6), (0, 2), (1, 3), (3.5, 4)], 0.5) == [(0, 4), (5, 6)]


def test_levels_name_the_line_of_the_peak() -> None:
    s = one_series([0, 1, 2], {"kv_usage": [0.2, 0.9, 0.4]})
    level = charts.stats(report(s), "kv_usage")
    assert level == charts.Stats(0.4, 0.9, 101, "server.log", pytest.approx(0.5), 0.2)
    assert charts.stats(report(s), "queue_req") is None


def test_the_phase_plot_tells_how_much_of_the_cloud_is_at_the_ceiling() -> None:
    session = replace(samples.SESSION, capacity=Capacity(requests_fit=40))
    running = [10.0, 20.0, 30.0, 31.0, 32.0, 33.0, 38.0, 40.0, 41.0, 42.0]
    s = one_series(
        range(10), {"running_req": running, "gen_throughput": [17 * r for r in running]}
    )
    p = phase.lay_out(report(s, sessions=(session,)))
    assert p
    assert p.ceilings == [(40.0, "40 fit", "right")]
    assert p.at_ceiling == pytest.approx(0.6)  # 32 and above: 80 % of 40
    assert (p.age[0], p.age[-1]) == (0, 1)
    short = one_series(range(7), {"running_req": [1.0] * 7, "gen_throughput": [1.0] * 7})
    assert phase.lay_out(report(short)) is None


def test_a_ceiling_is_named_where_its_label_meets_no_other_line() -> None:
    capacity = Capacity(requests_fit=69, max_running_req=64)
    session = replace(samples.SESSION, capacity=capacity)
    running = [10.0 * i for i in range(8)]
    s = one_series(range(8), {"running_req": running, "gen_throughput": running})
    p = phase.lay_out(report(s, sessions=(session,)))
    assert p
    assert p.ceilings == [(64.0, "cap 64", "left"), (69.0, "69 fit", "right")]
    assert p.top_x == 80
    assert p.passes  # 70 ran once


def test_what_the_page_gets_rebuilds_the_curves() -> None:
    report = samples.restarts()
    t = charts.timeline(report)
    assert t
    out = json.loads(json.dumps(live.numbers(t, phase.lay_out(report))))
    lists = out["lists"]
    for sent, curve in zip(out["curves"], t.curves, strict=True):
        quantum = sent["quantum"]
        assert [sent["x0"] + i * sent["dx"] for i in lists[sent["x"]]] == pytest.approx(curve.x)
        mean = [v * quantum for v in lists[sent["mean"]]]
        assert mean == pytest.approx(curve.mean, abs=quantum)
        low = [m - d * quantum for m, d in zip(mean, lists[sent["low"]], strict=True)]
        high = [m + d * quantum for m, d in zip(mean, lists[sent["high"]], strict=True)]
        assert low == pytest.approx(curve.low, abs=2 * quantum)
        assert high == pytest.approx(curve.high, abs=2 * quantum)
        rows = [sum(lists[sent["rows"]][: i + 1]) for i in range(len(curve.first_line))]
        assert rows == list(curve.first_line)
        assert quantum <= (max(curve.high) or 1) / 1_000
