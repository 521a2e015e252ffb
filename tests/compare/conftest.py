"""Logs that the tests of `compare` share."""

import pytest


@pytest.fixture(scope="session")
def simulated(simulated):
    """Return names, which is what `compare` takes: `LOG#SESSION`."""
    return lambda *args, **changes: str(simulated(*args, **changes))


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
