"""What all tests share."""

import gc
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

SIM = Path(__file__).parent / "sim"

# No test may fail because the machine is busy: no limit of time. The same inputs each time, so
# that what the tests say of a commit is the commit's. To look further:
# `pytest --hypothesis-profile=default`, and `make fuzz`.
settings.register_profile(
    "same",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
settings.load_profile("same")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes by their parameter, not by what they hold.

    The workers of a parallel run must collect tests of the same names, and packed bytes hold
    the time of their packing.
    """
    return argname if isinstance(val, bytes) else None


def _load(name: str) -> ModuleType:
    """Load a module of the simulator anew: its table of scenarios is changed by its users."""
    spec = importlib.util.spec_from_file_location(name, SIM / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def simulator() -> ModuleType:
    """Return the simulator, to run scenarios of a test's own."""
    return _load("simulate")


@pytest.fixture(scope="module")
def score() -> ModuleType:
    """Return what holds findings against the simulator's truth."""
    return _load("score")


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes one scenario, with changes, and gives the log's path.

    Logs are made once a run. The simulator draws its random numbers by the scenario's name and
    the seed, so the name stays: a log must not depend on which others were made before it.
    """
    simulator = _load("simulate")
    given = dict(simulator.SC)
    made: dict[str, Path] = {}

    def make(
        scenario: str, seed: int = 0, without: tuple[str, ...] = (), **changes: object
    ) -> Path:
        key = repr((scenario, seed, without, sorted(changes.items())))
        if key not in made:
            config = {k: v for k, v in given[scenario].items() if k not in without}
            simulator.sc(scenario, **{**config, **changes})
            folder = tmp_path_factory.mktemp("sim")
            with warnings.catch_warnings():  # the simulator leaves its files to be closed
                warnings.simplefilter("ignore", ResourceWarning)
                simulator.run_one(scenario, seed, str(folder))
                gc.collect()
            made[key] = folder / f"{scenario}.log"
        return made[key]

    return make
