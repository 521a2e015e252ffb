"""A log that the tests of `follow` share."""

import pytest


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
