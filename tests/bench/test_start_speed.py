"""How long it takes until someone reads a help text; run with `pytest -m bench`."""

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"]])
def test_help_is_there_at_once(arguments):
    """CPU time, the least of five: 0.15 s on the slowest machine that runs this."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "loganalyze", *arguments], check=True, capture_output=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    print(f"\n{' '.join(arguments)}: {min(times):.3f} s of CPU time")
    assert min(times) < 0.15
