"""What all tests share."""

from hypothesis import HealthCheck, settings

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
