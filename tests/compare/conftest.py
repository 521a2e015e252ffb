"""Logs of the simulator, made once for all tests of a run."""

import gc
import importlib.util
import sys
import warnings
from pathlib import Path

import pytest

SIM = Path(__file__).parents[1] / "sim" / "simulate.py"


def load_simulator():
    spec = importlib.util.spec_from_file_location("simulate", SIM)
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """Return a function that writes one scenario, with changes, and gives the log's path."""
    simulator = load_simulator()
    made = {}

    def make(scenario, seed=0, without=(), **changes):
        key = repr((scenario, seed, without, sorted(changes.items())))
        if key not in made:
            config = {k: v for k, v in simulator.SC[scenario].items() if k not in without}
            name = f"{scenario}_{len(made)}"
            simulator.sc(name, **{"desc": config.pop("desc"), **config, **changes})
            folder = tmp_path_factory.mktemp("sim")
            with warnings.catch_warnings():  # the simulator leaves its files to be closed
                warnings.simplefilter("ignore", ResourceWarning)
                simulator.run_one(name, seed, str(folder))
                gc.collect()
            made[key] = str(folder / f"{name}.log")
        return made[key]

    return make


@pytest.fixture(scope="session")
def seeds(simulated):
    """The founding case: 159,277 tokens, mem-fraction 0.88, hierarchical cache on."""
    return simulated("seeds_replay")


@pytest.fixture(scope="session")
def seeds_small(simulated):
    """The same load on the pool of mem-fraction 0.85."""
    return simulated("seeds_replay", capacity=116171, mem_fraction=0.85)


@pytest.fixture(scope="session")
def seeds_without_hicache(simulated):
    return simulated("seeds_replay", without=("host_capacity", "hicache_size"))
