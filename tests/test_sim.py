"""The rules against the simulator's truth: a few short scenarios; all of them as a benchmark."""

import contextlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loganalyze import rules, signals, thin
from loganalyze.rules import selfcheck

sys.path.insert(0, str(Path(__file__).parent))
from sim_adapter import detections

#: The simulator leaves its files to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: What the full scoring must reach: F1 in seconds. The rest must reach `OTHER`.
TARGETS = {
    "kv_saturated": 0.97,
    "conservative_admission": 0.85,
    "kv_leak": 0.85,
    "warmup": 0.80,
}
OTHER = 0.90


def judge(path):
    """Return findings and verdict of a log."""
    data = selfcheck.read({path.name: path.read_text(encoding="utf-8")})
    outcomes = rules.run(data)
    assert not [o for o in outcomes if o.status == "error"]
    return rules.findings(outcomes), rules.conclude(outcomes, data)


# -- smoke: short scenarios with parameters of their own --------------------------------------

GAMMA = {"kind": "gamma", "cv": 0.6, "lo": 16, "hi": 6000}


def phase(**kwargs):
    shape = {"t0": 0, "prompt": {**GAMMA, "mean": 300}, "out": {**GAMMA, "mean": 900}}
    return {**shape, "max_new": 6144, **kwargs}


SMOKE = {
    "saturated": (
        {
            "capacity": 120_000,
            "conservativeness": 0.3,
            "phases": [
                phase(workers=120, max_new=10240, out={**GAMMA, "mean": 4000, "hi": 10000})
            ],
        },
        "saturated",
        "KV001",
        True,
    ),
    "capped": (
        {
            "capacity": 400_000,
            "max_running": 20,
            "max_running_set": True,
            "phases": [phase(workers=50)],
        },
        "degraded",
        "RUN001",
        True,
    ),
    "light": (
        {"capacity": 400_000, "phases": [phase(workers=6)]},
        "healthy",
        None,
        False,
    ),
    "careful": (
        {
            "capacity": 60_000,
            "phases": [phase(workers=90, max_new=16384, out={**GAMMA, "mean": 200})],
        },
        "degraded",
        "ADM001",
        True,
    ),
    "prefill": (
        {
            "capacity": 400_000,
            "phases": [
                phase(
                    workers=30,
                    prompt={**GAMMA, "mean": 5000, "hi": 16000},
                    out={**GAMMA, "mean": 40},
                )
            ],
        },
        "degraded",
        "PRE001",
        True,
    ),
}


@pytest.mark.parametrize("name", SMOKE)
def test_smoke(name, simulator, tmp_path):
    config, status, primary, problem = SMOKE[name]
    sim = simulator.Sim(name, {"duration": 500, **config}, 5, str(tmp_path))
    sim.run()
    found, verdict = judge(tmp_path / f"{name}.log")
    assert (verdict.status, verdict.primary) == (status, primary)
    assert any(f.severity >= 1 for f in found) == problem


def test_one_saturation_is_one_episode(simulator, tmp_path):
    config = SMOKE["saturated"][0]
    sim = simulator.Sim("one", {"duration": 700, **config}, 3, str(tmp_path))
    sim.run()
    truth, _ = simulator.label(sim)
    found, _ = judge(tmp_path / "one.log")
    (kv001,) = [f for f in found if f.code == "KV001"]
    assert len(kv001.episodes) == len(truth["kv_saturated"]) == 1


def test_a_burst_whose_batches_are_full_is_not_admitted_carefully(simulator, tmp_path):
    """After an idle time the first decode interval shows little prefill; the batches tell."""
    sim = simulator.Sim(
        "bursts",
        {
            "duration": 460,
            **SMALL,
            "step": {"t0": 0.0118, "a": 3e-5, "b": 6.1e-8},
            "prefill": {"p0": 0.0082, "p1": 4.1e-5, "p2": 8.2e-10, "load": 1.4e-6},
            "capacity": 577_000,
            "phases": [
                {**load_of(gamma(600, 0.8, 30, 6000), gamma(350, 0.8, 8, 2000)), **burst}
                for burst in (
                    {"t0": 10, "burst": (690, 4), "warm": False, "max_new": 1024},
                    {"t0": 410, "burst": (690, 4), "warm": False, "max_new": 1024},
                )
            ],
        },
        7,
        str(tmp_path),
    )
    sim.run()
    assert "conservative_admission" not in simulator.label(sim)[0]
    found, _ = judge(tmp_path / "bursts.log")
    assert not {f.code for f in found} & {"ADM001", "ADM003", "KV005"}


def test_a_pool_that_young_requests_will_fill_is_not_kept_free_by_admission(simulator, tmp_path):
    """Of a small pool usage says little: what a request may decode is a tenth of it."""
    config = {
        "duration": 600,
        "capacity": 36_000,
        "conservativeness": 0.3,
        "phases": [phase(workers=60, prompt={**GAMMA, "mean": 600}, out={**GAMMA, "mean": 1800})],
    }
    sim = simulator.Sim("small", config, 1, str(tmp_path))
    sim.run()
    truth, _ = simulator.label(sim)
    found, _ = judge(tmp_path / "small.log")
    (careful,) = [f for f in found if f.code == "ADM001"]
    assert careful.episodes
    ((first, end),) = truth["kv_saturated"]
    for one in careful.episodes:
        start, stop = ((t - sim.log.base).total_seconds() for t in (one.start, one.end))
        assert stop < first or start > end


def test_a_server_that_slows_down_was_no_busier_with_prefill_before(simulator, tmp_path):
    """Clocks slow prefill and decode alike: the share of each stays what it was."""
    config = {
        "duration": 900,
        "capacity": 124_000,
        "noise": 0.03,
        "inject": [{"t": 400, "kind": "rate", "mult": 1.8}],
        "phases": [
            phase(workers=105, prompt={**GAMMA, "mean": 360}, out={**GAMMA, "mean": 170, "lo": 8})
        ],
    }
    sim = simulator.Sim("slower", config, 1, str(tmp_path))
    sim.run()
    path = tmp_path / "slower.log"
    (data,) = selfcheck.read({path.name: path.read_text(encoding="utf-8")})
    (rank,) = signals.build(data).ranks
    for first, end in ((60, 400), (400, 900)):
        true = sum(one["prefill"] for one in sim.sec[first:end]) / (end - first)
        assert 0.4 < true < 0.5  # prefill is not the limit, at no time
        assert rank.grid["duty"][first:end].mean() < true + 0.02
    outcomes = rules.run([data])
    assert rules.conclude(outcomes, [data]).primary == "THR002"


def test_young_requests_that_fill_the_pool_keep_the_others_out(simulator, tmp_path):
    """Nobody is let in while a burst grows to fill the pool: KV is what the others wait for."""
    config = {
        "duration": 420,
        "capacity": 300_000,
        "step": {"t0": 0.03, "a": 3e-4, "b": 3e-8},
        "phases": [
            phase(workers=130, max_new=65_536, out={**GAMMA, "cv": 0.3, "mean": 6000, "hi": 20000})
        ],
    }
    sim = simulator.Sim("growing", config, 1, str(tmp_path))
    sim.run()
    truth, _ = simulator.label(sim)
    assert "queue_no_kv" not in truth
    assert truth["kv_saturated"][0][0] < 60
    found, verdict = judge(tmp_path / "growing.log")
    assert "QUE001" not in {f.code for f in found}
    assert verdict.primary == "KV001"


def seen_and_true(simulator, folder, config, seed=1):
    """Run a scenario and return what was found, the verdict, and the truth: kind -> spans."""
    sim = simulator.Sim("x", config, seed, str(folder))
    sim.run()
    truth, _ = simulator.label(sim)
    found, verdict = judge(folder / "x.log")
    seen = {
        finding.code: [
            tuple((t - sim.log.base).total_seconds() for t in (one.start, one.end))
            for one in finding.episodes
        ]
        for finding in found
    }
    return seen, verdict, truth


def seconds(spans):
    return {second for first, end in spans for second in range(int(first), int(end))}


@pytest.mark.parametrize("decode_lines_only", [False, True])
def test_a_pool_that_a_few_requests_fill_is_full_below_a_usage_of_ninety(
    decode_lines_only, simulator, tmp_path
):
    """One more of such requests does not fit from 0.7 on, and usage saw-tooths."""
    config = {
        "duration": 500,
        **SMALL,
        "step": {"t0": 0.018, "a": 6e-5, "b": 1.6e-7},
        "capacity": 20_000,
        "phases": [
            load_of(gamma(2500, 0.3, 8, 6000), gamma(700, 0.4, 8, 1000), workers=20, max_new=1000)
        ],
    }
    sim = simulator.Sim("x", config, 3, str(tmp_path))
    sim.run()
    log = tmp_path / "x.log"
    if decode_lines_only:
        kept = [line for line in log.open() if "Prefill batch" not in line]
        log.write_text("".join(kept), encoding="utf-8")
    truth = seconds(simulator.label(sim)[0]["kv_saturated"])
    usage = [one["usage"] for one in sim.sec]
    assert len(truth) > 400
    assert sum(usage[second] >= 0.9 for second in truth) < len(truth) / 3
    found, verdict = judge(log)
    assert verdict.primary == "KV001"
    (full,) = [one for one in found if one.code == "KV001"]
    seen = seconds(
        [(t - sim.log.base).total_seconds() for t in (one.start, one.end)] for one in full.episodes
    )
    assert len(seen & truth) / len(seen | truth) > 0.85


def test_careful_admission_is_named_where_prompts_come_in_chunks(simulator, tmp_path):
    """Chunks explain a queue where they take the time; here they take a tenth of it."""
    config = {
        "duration": 500,
        **SMALL,
        "step": {"t0": 0.018, "a": 6e-5, "b": 1.6e-7},
        "chunk": 2048,
        "capacity": 16_000,
        "phases": [load_of(gamma(3000, 0.2, 2100, 4000), 250, workers=12)],
    }
    seen, verdict, truth = seen_and_true(simulator, tmp_path, config)
    (careful,) = truth["conservative_admission"]
    assert careful[1] - careful[0] > 400
    assert verdict.primary == "ADM001"
    assert len(seconds(seen["ADM001"]) & seconds([careful])) > 400


def test_prompts_computed_before_the_first_decode_line_are_prefill(simulator, tmp_path):
    """The decode line that ends them has none before it, so only the prefill lines tell."""
    config = {
        "duration": 420,
        **LARGE,
        "capacity": 4_000_000,
        "phases": [load_of(gamma(40_000, 0.3), 3000, workers=30, max_new=9000)],
    }
    seen, verdict, truth = seen_and_true(simulator, tmp_path, config)
    lines = (tmp_path / "x.log").read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if "Decode batch" in line)
    assert sum("Prefill batch" in line for line in lines[:first]) > 50
    ((start, end),) = truth["prefill_bound"][:1]
    assert "queue_no_kv" not in truth
    assert end - start > 60
    assert "QUE001" not in seen
    assert verdict.primary == "PRE001"
    assert seen["PRE001"][0] == pytest.approx((start, end), abs=20)


def test_a_small_window_pool_is_short_of_what_one_pass_charges(simulator, tmp_path):
    """A pass charges each that it lets in in full, so one comes in for each that leaves."""
    config = {
        "duration": 420,
        **SMALL,
        "capacity": 600_000,
        "swa": {"capacity": 24_000, "window": 512, "slack": 0},
        "conservativeness": 0.02,
        "phases": [load_of(3200, 1200, workers=110)],
    }
    seen, verdict, truth = seen_and_true(simulator, tmp_path, config)
    assert verdict.primary == "SWA001"
    assert len(truth["swa_exhausted"]) == len(seen["SWA001"]) == 1
    assert seen["SWA001"][0] == pytest.approx(truth["swa_exhausted"][0], abs=45)


def test_a_short_slow_time_in_a_long_log_is_found(simulator, tmp_path):
    config = {
        "duration": 1500,
        **SMALL,
        "capacity": 260_000,
        "inject": [
            {"t": 300, "kind": "rate", "mult": 1.3, "end": 480},
            {"t": 480, "kind": "rate", "mult": 1.0, "label": False},
        ],
        "phases": [load_of(900, 280, workers=20, max_new=2048)],
    }
    seen, verdict, truth = seen_and_true(simulator, tmp_path, config)
    assert verdict.primary == "THR002"
    assert len(truth["rate_change"]) == len(seen["THR002"]) == 1
    assert seen["THR002"][0] == pytest.approx(truth["rate_change"][0], abs=15)


def test_a_long_time_at_the_cap_ends_a_saturation(simulator, tmp_path):
    """Most of the pool is in use, and at times all of it: what the queue waits for is the cap."""
    config = {
        "duration": 700,
        **SMALL,
        "step": {"t0": 0.0123, "a": 2.4e-5, "b": 5.9e-8},
        "capacity": 222_000,
        "max_running": 78,
        "conservativeness": 0.3,
        "phases": [
            load_of(660, gamma(3100, 0.5, 8, 25_000), workers=300, spread=100.0, max_new=8485)
        ],
    }
    seen, verdict, truth = seen_and_true(simulator, tmp_path, config)
    assert verdict.primary == "RUN001"
    assert truth["running_cap"][-1][1] - truth["kv_saturated"][-1][1] > 300
    assert len(truth["kv_saturated"]) == len(seen["KV001"]) == 1
    assert seen["KV001"][0] == pytest.approx(truth["kv_saturated"][0], abs=40)


def test_prompts_that_come_in_at_the_start_do_not_end_a_warm_up(simulator, tmp_path):
    """Before its request runs a prompt is held by the few that do: many tokens for each."""
    config = {
        "duration": 1300,
        **SMALL,
        "capacity": 450_000,
        "chunk": 4096,
        "phases": [
            load_of(
                gamma(26_000, 0.4),
                gamma(36_000, 0.3, 100, 60_000),
                workers=5,
                spread=30.0,
                max_new=65_536,
            )
        ],
    }
    seen, _, truth = seen_and_true(simulator, tmp_path, config, 3)
    ((start, end),) = truth["warmup"]
    assert end - start > 120
    assert len(seen["WRM001"]) == 1
    assert seen["WRM001"][0] == pytest.approx((start, end), abs=45)


# -- the full scoring --------------------------------------------------------------------------


@pytest.mark.bench
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores(seed, simulator, score, tmp_path):
    truth, found = tmp_path / "truth", tmp_path / "found"
    found.mkdir()
    for name in simulator.SC:
        simulator.run_one(name, seed, str(truth))
        findings, _ = judge(truth / f"{name}.log")
        text = json.dumps(detections(findings))
        (found / f"{name}.json").write_text(text, encoding="utf-8")
    result, _ = score.score(str(truth), str(found))
    with contextlib.redirect_stdout(io.StringIO()) as table:
        score.show(result)
    print(table.getvalue())
    result.pop("healthy", None)  # judged by is_problem
    short = {k: v["F1"] for k, v in result.items() if v["F1"] < TARGETS.get(k, OTHER)}
    assert not short
    assert result["kv_saturated"]["false_alarm_scenarios"] == []
    assert result["kv_saturated"]["frag"] <= 1.2
    for kind in ("prefill_bound", "conservative_admission"):
        assert min(result[kind]["epP"], result[kind]["epR"]) >= 0.8


@pytest.mark.bench
@pytest.mark.parametrize(
    "name", ["healthy_chat", "client_limited", "near_saturated_matched", "cache_full_evictable"]
)
def test_no_problem_where_there_is_none(name, simulator, tmp_path):
    simulator.run_one(name, 0, str(tmp_path))
    found, verdict = judge(tmp_path / f"{name}.log")
    assert not any(f.severity >= 1 for f in found)
    assert verdict.status == "healthy"


# -- scenarios of our own: other parameters, other mechanisms ----------------------------------

#: A small model on one GPU and a large one on eight: step and prefill times, KV bytes.
SMALL = {
    "step": {"t0": 0.0085, "a": 2.2e-5, "b": 4.4e-8},
    "prefill": {"p0": 0.006, "p1": 3.0e-5, "p2": 6e-10, "load": 1e-6},
    "bytes_per_token": 131072,
    "tp": 1,
    "context": 131072,
}
LARGE = {
    "step": {"t0": 0.022, "a": 3e-4, "b": 2.4e-8},
    "prefill": {"p0": 0.03, "p1": 9e-5, "p2": 1e-9, "load": 1e-6},
    "bytes_per_token": 40960,
    "tp": 8,
    "context": 131072,
}


def gamma(mean, cv=0.6, lo=8, hi=20000):
    return {"kind": "gamma", "mean": mean, "cv": cv, "lo": lo, "hi": hi}


def load_of(prompt, out, **kwargs):
    """Return a phase; lengths are means, or whole laws."""
    laws = [law if isinstance(law, dict) else gamma(law) for law in (prompt, out)]
    return {"t0": 0, "prompt": laws[0], "out": laws[1], "max_new": 4096, **kwargs}


#: name -> (configuration, primary finding or None, kind of the simulator, least F1).
OWN = {
    "waves_of_load": (
        {
            **LARGE,
            "duration": 3000,
            "capacity": 180_000,
            "conservativeness": 0.3,
            "phases": [
                load_of(500, 1500, workers=20, max_new=8192),
                load_of(500, 2500, t0=600, workers=160, max_new=8192),
                load_of(500, 1500, t0=1500, workers=15, max_new=8192, warm=False),
                load_of(500, 2500, t0=2100, workers=180, max_new=8192),
            ],
        },
        "KV001",
        "kv_saturated",
        0.97,
    ),
    "eight_full_ranks": (
        {
            "duration": 1200,
            "dp": 8,
            "tp": 8,
            "capacity": 40_000,
            "conservativeness": 0.3,
            "phases": [load_of(600, 2200, workers=320, max_new=6144)],
        },
        "KV001",
        "kv_saturated",
        0.97,
    ),
    "lines_are_rare": (
        {
            **LARGE,
            "duration": 2400,
            "capacity": 160_000,
            "conservativeness": 0.3,
            "log_interval": 200,
            "phases": [load_of(300, gamma(3000, 0.8, 32, 10000), workers=150, max_new=10240)],
        },
        "KV001",
        "kv_saturated",
        0.97,
    ),
    "pages_and_open_arrivals": (
        {
            **SMALL,
            "duration": 1200,
            "capacity": 100_000,
            "page_size": 16,
            "conservativeness": 0.7,
            "phases": [load_of(350, 200, rate=30, max_new=16384)],
        },
        "ADM001",
        "conservative_admission",
        0.97,
    ),
    "small_chunks": (
        {
            **SMALL,
            "duration": 1200,
            "capacity": 420_000,
            "chunk": 2048,
            "phases": [load_of(7000, 60, workers=24, max_new=512)],
        },
        "PRE001",
        "prefill_bound",
        0.97,
    ),
    "slow_while_the_batch_grows": (
        {
            **LARGE,
            "duration": 1800,
            "capacity": 500_000,
            "inject": [
                {"t": 700, "kind": "rate", "mult": 1.35, "end": 1300},
                {"t": 1300, "kind": "rate", "mult": 1.0, "label": False},
            ],
            "phases": [load_of(600, 600, rate=2.5, max_new=2048)],
        },
        "THR002",
        "rate_change",
        0.95,
    ),
    "open_arrivals_and_a_leak": (
        {
            **LARGE,
            "duration": 1800,
            "capacity": 300_000,
            "inject": [{"t": 300, "kind": "leak", "rate": 250.0}],
            "phases": [load_of(600, 700, rate=2.0, max_new=3072)],
        },
        "KV010",
        "kv_leak",
        0.90,
    ),
    "a_pd_decode_server": (
        {
            **SMALL,
            "duration": 1200,
            "capacity": 100_000,
            "pd": {"reserved": 512, "tok_s": 90_000.0},
            "radix": False,
            "phases": [load_of(1200, 500, workers=110, max_new=2048)],
        },
        "PDD001",
        "pd_prealloc_backlog",
        0.95,
    ),
    "a_window_pool": (
        {
            **SMALL,
            "duration": 1200,
            "release": (0, 5, 12),
            "capacity": 500_000,
            "swa": {"capacity": 40_000, "window": 4096, "slack": 64},
            "conservativeness": 0.1,
            "phases": [load_of(6000, 900, workers=60)],
        },
        "SWA001",
        "swa_exhausted",
        0.95,
    ),
    "growing_chats": (
        {
            **SMALL,
            "duration": 1500,
            "capacity": 200_000,
            "phases": [load_of(500, 300, workers=30, turns=8, think=3.0, max_new=1024)],
        },
        None,
        "client_limited",
        0.95,
    ),
    "long_contexts": (
        {
            **SMALL,
            "duration": 2000,
            "capacity": 900_000,
            "phases": [
                load_of(
                    gamma(20000, 0.3, 8, 60000),
                    gamma(30000, 0.3, 8, 60000),
                    workers=6,
                    max_new=65536,
                )
            ],
        },
        None,
        "long_context_slowdown",
        0.90,
    ),
}


@pytest.mark.bench
@pytest.mark.parametrize("name", OWN)
def test_own_scenarios(name, simulator, score, tmp_path, monkeypatch):
    config, primary, kind, least = OWN[name]
    monkeypatch.setitem(simulator.SC, name, {"desc": name, **config})
    simulator.run_one(name, 11, str(tmp_path))
    found, verdict = judge(tmp_path / f"{name}.log")
    assert verdict.primary == primary
    assert any(f.severity >= 1 for f in found) == (primary is not None)
    (tmp_path / "found").mkdir()
    text = json.dumps(detections(found))
    (tmp_path / "found" / f"{name}.json").write_text(text, encoding="utf-8")
    result, _ = score.score(str(tmp_path), str(tmp_path / "found"))
    assert result[kind]["F1"] >= least
    wrong = {k: v["false_alarm_scenarios"] for k, v in result.items() if k == "kv_saturated"}
    assert not any(wrong.values())
    if kind == "kv_saturated":
        assert result[kind]["frag"] <= 1.2


@pytest.mark.parametrize("width", [4, 16])
def test_merged_lines_still_show_that_prefill_is_the_limit(width, simulator, tmp_path):
    sim = simulator.Sim(
        "merged",
        {
            "duration": 400,
            **SMALL,
            "capacity": 420_000,
            "phases": [load_of(9000, 40, workers=40, max_new=256)],
        },
        5,
        str(tmp_path),
    )
    sim.run()
    (data,) = selfcheck.read({"merged.log": (tmp_path / "merged.log").read_text("utf-8")})
    merged = replace(data, batch=thin.thin(data.batch, width))
    assert merged.batch.height < data.batch.height
    outcomes = rules.run([merged])
    assert rules.conclude(outcomes, [merged]).primary == "PRE001"
