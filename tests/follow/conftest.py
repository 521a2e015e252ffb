"""Logs of the simulator, made once for all tests of a run."""

import gc
import importlib.util
import sys
import warnings
from pathlib import Path

import pytest

SIM = Path(__file__).parents[1] / "sim" / "simulate.py"


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """Return a function that writes one scenario, with changes, and gives the log's path."""
    spec = importlib.util.spec_from_file_location("simulate", SIM)
    simulator = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = simulator
    spec.loader.exec_module(simulator)
    made = {}

    def make(scenario, seed=0, **changes):
        key = repr((scenario, seed, sorted(changes.items())))
        if key not in made:
            name = f"{scenario}_{len(made)}"
            simulator.sc(name, **{**simulator.SC[scenario], **changes})
            folder = tmp_path_factory.mktemp("sim")
            with warnings.catch_warnings():  # the simulator leaves its files to be closed
                warnings.simplefilter("ignore", ResourceWarning)
                simulator.run_one(name, seed, str(folder))
                gc.collect()
            made[key] = folder / f"{name}.log"
        return made[key]

    return make


@pytest.fixture(scope="session")
def saturated(simulated):
    """A server that is quiet, then saturated for eight minutes, then quiet again."""
    short = {"kind": "gamma", "mean": 280, "cv": 0.5, "lo": 16, "hi": 1200}
    long = {"kind": "gamma", "mean": 1500, "cv": 0.5, "lo": 64, "hi": 4096}
    prompt = {"kind": "gamma", "mean": 80, "cv": 0.5, "lo": 10, "hi": 400}
    base = {"spread": 2.0, "prompt": prompt, "max_new": 4096}
    return simulated(
        "seeds_replay",
        capacity=60000,
        duration=1200,
        phases=[
            {"t0": 0, "workers": 12, "out": short, **base},
            {"t0": 240, "workers": 120, "out": long, **base},
            {"t0": 660, "workers": 12, "out": short, **base},
        ],
    )
