"""What all tests share."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes by their parameter, not by what they hold.

    The workers of a parallel run must collect tests of the same names, and packed bytes hold
    the time of their packing.
    """
    return argname if isinstance(val, bytes) else None
