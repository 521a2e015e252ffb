"""Comparisons of simulated runs, whose truth is known."""

import json
import re
from pathlib import Path

import pytest

from loganalyze.compare import compare, regressions
from loganalyze.errors import InputError, UsageError
from loganalyze.report import compare_html, compare_json, compare_markdown


def measures(pair):
    return {one.name: one for one in pair.differences}


def holds(one, truth):
    return one.effect.low <= truth <= one.effect.high


# -- the founding case --------------------------------------------------------------------


@pytest.fixture(scope="module")
def larger_pool(seeds_small, seeds):
    return compare(seeds_small, seeds)


@pytest.fixture(scope="module")
def hicache_on(seeds_without_hicache, seeds):
    return compare(seeds_without_hicache, seeds)


def test_the_larger_pool_is_what_was_changed(larger_pool):
    (pair,) = larger_pool.pairs
    assert [(s.name, s.before, s.after) for s in pair.settings] == [
        ("mem_fraction_static", 0.85, 0.88)
    ]
    pool = next(s for s in pair.sizes if s.name == "KV capacity")
    assert (pool.before, pool.after) == (116171, 159277)
    assert round(100 * (pool.ratio - 1), 1) == 37.1


def test_the_larger_pool_gives_a_fifth_more_throughput(larger_pool):
    found = measures(larger_pool.pairs[0])
    assert found["throughput"].verdict == "better"
    assert holds(found["throughput"], 1.20)  # 694 / 573 token/s over eight seeds: 1.21
    assert found["running"].verdict == "better"
    assert found["waiting"].verdict == "better"


def test_a_larger_pool_does_not_change_the_step(larger_pool):
    rate = measures(larger_pool.pairs[0])["rate_per_req"]
    assert rate.verdict == "no difference shown"
    assert rate.effect.mid == pytest.approx(1.0, abs=0.005)


def test_both_are_saturated_all_the_time(larger_pool):
    found = measures(larger_pool.pairs[0])
    assert found["saturated"].verdict == "no difference shown"
    assert found["saturated"].before > 0.9


def test_the_peak_of_the_first_minutes_is_left_out(larger_pool):
    # Throughput is above 1,300 token/s in the first minutes and 570 to 700 afterwards.
    for side in (larger_pool.before, larger_pool.pairs[0].after):
        assert 150 < side.left_out["warm-up"] < 400
        assert side.levels["throughput"] < 750
        assert side.settled[0].start > side.session.start


def test_the_hierarchical_cache_shows_no_difference(hicache_on):
    (pair,) = hicache_on.pairs
    assert {s.name for s in pair.settings} == {"enable_hierarchical_cache", "hicache_size"}
    verdicts = {one.name: one.verdict for one in pair.differences}
    assert set(verdicts.values()) == {"no difference shown"}, verdicts
    assert holds(measures(pair)["throughput"], 1.0)


def test_the_mirror_image_is_worse(seeds, seeds_small):
    (pair,) = compare(seeds, seeds_small).pairs
    assert measures(pair)["throughput"].verdict == "worse"
    assert "-27.1%" in pair.headline  # 116,171 / 159,277


def test_a_run_against_itself_shows_no_difference(seeds):
    (pair,) = compare(seeds, seeds).pairs
    assert {one.verdict for one in pair.differences} == {"no difference shown"}
    assert all(one.effect.mid in (0.0, 1.0) for one in pair.differences)
    assert any("same session" in note for note in pair.notes)


def test_the_same_logs_give_the_same_bytes(larger_pool, seeds_small, seeds):
    again = compare(seeds_small, seeds)
    assert compare_html.render(again) == compare_html.render(larger_pool)
    assert compare_markdown.render(again) == compare_markdown.render(larger_pool)
    assert compare_json.to_dict(again) == compare_json.to_dict(larger_pool)


# -- servers that are slower --------------------------------------------------------------


@pytest.fixture(scope="module")
def chat(simulated):
    return simulated("healthy_chat", duration=700)


def test_a_step_of_ten_percent_more_is_found_and_measured(simulated, chat):
    slow = simulated("healthy_chat", duration=700, inject=[{"t": 1, "kind": "rate", "mult": 1.10}])
    found = compare(chat, slow)
    rate = measures(found.pairs[0])["rate_per_req"]
    assert rate.verdict == "worse"
    assert holds(rate, 1 / 1.10)
    assert measures(found.pairs[0])["throughput"].verdict == "worse"


def test_another_day_of_the_same_load_shows_no_difference(simulated, chat):
    other = simulated("healthy_chat", seed=1, duration=700)
    found = compare(chat, other)
    assert measures(found.pairs[0])["rate_per_req"].verdict == "no difference shown"
    assert measures(found.pairs[0])["throughput"].verdict == "no difference shown"
    assert regressions(found, 0.01) == []


def test_a_regression_counts_from_its_size_on(simulated, chat):
    slow = simulated("healthy_chat", duration=700, inject=[{"t": 1, "kind": "rate", "mult": 1.10}])
    found = compare(chat, slow)
    assert {one.name for _, one in regressions(found, 0.05)} == {"throughput", "rate_per_req"}
    assert regressions(found, 0.20) == []


def test_another_load_is_not_comparable(simulated, chat):
    more = simulated("client_limited", duration=700)
    throughput = measures(compare(chat, more).pairs[0])["throughput"]
    assert throughput.verdict == "not comparable"
    assert re.search(r"the load differs: \d+ requests in the system before, 7", throughput.reason)


def test_longer_requests_are_not_comparable(simulated, seeds):
    chat_like = {"kind": "gamma", "mean": 1500, "cv": 0.8, "lo": 16, "hi": 8192}
    phase = {"t0": 0, "workers": 150, "spread": 2.0, "max_new": 10240, "out": chat_like}
    short = simulated(
        "seeds_replay",
        phases=[phase | {"prompt": {"kind": "gamma", "mean": 80, "cv": 0.5, "lo": 10, "hi": 400}}],
    )
    found = measures(compare(short, seeds).pairs[0])
    for name in ("throughput", "running", "usage", "waiting", "saturated"):
        assert found[name].verdict == "not comparable"
        assert "output tokens per request" in found[name].reason
    assert found["rate_per_req"].verdict == "no difference shown"


def test_a_higher_running_cap_is_better_and_its_rate_has_no_like(simulated):
    capped = simulated("running_cap_spec48", duration=500)
    higher = simulated("running_cap_spec48", duration=500, max_running=96)
    found = measures(compare(capped, higher).pairs[0])
    assert found["throughput"].verdict == "better"
    assert found["running"].before == pytest.approx(48, abs=0.5)
    assert found["running"].after == pytest.approx(96, abs=1)
    assert found["rate_per_req"].verdict == "not comparable"
    assert "48 to 48" in found["rate_per_req"].reason


# -- what is settled, and which session ---------------------------------------------------


def test_idle_time_and_drains_are_left_out(simulated):
    batches = simulated("idle_batches")
    side = compare(batches, batches).before
    assert side.left_out["idle"] > 1000
    assert side.left_out["drain"] > 20
    assert side.settled_s < 120


def test_too_little_settled_time_is_said(simulated):
    batches = simulated("idle_batches")
    (pair,) = compare(batches, batches).pairs
    assert {one.verdict for one in pair.differences} == {"not comparable"}
    assert "without warm-up, pauses and end; 120 s are needed" in pair.differences[0].reason
    assert pair.load == []


def test_sessions_of_one_log(simulated):
    log = simulated("crash_restart")
    found = compare(f"{log}#1", f"{log}#2")
    assert [found.before.session.id, found.pairs[0].after.session.id] == [1, 2]
    pool = next(s for s in found.pairs[0].sizes if s.name == "KV capacity")
    assert (pool.before, pool.after) == (231120, 159277)
    (note,) = found.before.notes
    assert note.startswith("it did not end well: The server died at 11:45:00: out of GPU memory")
    assert found.pairs[0].headline.endswith(" The server of the run before died.")
    assert found.pairs[0].after.notes == []
    assert all(f.session == 1 for f in found.before.report.findings)


def test_of_several_sessions_the_longest_is_taken_and_said(simulated):
    log = simulated("crash_restart")
    side = compare(log, log).before
    assert side.session.id == 2  # the second life is the longer one: 1,620 s against 900 s
    assert "session 2 of 2" in side.notes[0]


def test_a_session_that_is_not_there(seeds):
    with pytest.raises(UsageError, match="has no session 3") as error:
        compare(f"{seeds}#3", seeds)
    assert "1 to 1" in error.value.hint


def test_a_file_whose_name_ends_like_a_session(seeds, tmp_path):
    odd = tmp_path / "server.log#1"
    odd.write_bytes(Path(seeds).read_bytes())
    assert compare(str(odd), seeds).before.session.id == 1


def test_a_log_that_is_missing_does_not_stop_the_others(seeds, seeds_small, tmp_path):
    gone = str(tmp_path / "gone.log")
    found = compare(seeds_small, gone, seeds)
    assert [p.after.name for p in found.pairs] == [seeds]
    assert [u.name for u in found.unreadable] == [gone]
    with pytest.raises(InputError):
        compare(gone, seeds)
    with pytest.raises(InputError):
        compare(seeds, gone)


# -- forms of JSON ------------------------------------------------------------------------


def test_the_json_says_it_all(larger_pool):
    out = json.loads(compare_json.dumps(larger_pool))
    assert out["schema_version"] == 1
    (pair,) = out["pairs"]
    first = pair["differences"][0]
    assert first["name"] == "throughput"
    assert first["verdict"] == "better"
    assert first["effect"]["low"] < first["effect"]["mid"] < first["effect"]["high"]
    assert out["before"]["session"]["capacity"]["kv_tokens"] == 116171
    assert len(out["reports"]) == 2
    assert out["reports"][1]["series"]
