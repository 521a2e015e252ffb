"""An archive to scan, and the program run on it."""

import subprocess
import sys

import pytest
from scanned import ROOT, log_text


@pytest.fixture
def archive(tmp_path):
    """A folder of six logs on two hosts, three of them with a full KV pool."""
    folder = tmp_path / "logs"
    for host, full in (("node1", (True, False, True)), ("node2", (False, True, False))):
        (folder / host).mkdir(parents=True)
        for k, is_full in enumerate(full):
            text = log_text(full=is_full, start=f"2026-03-0{k + 2} 10:00:00", seed=k)
            (folder / host / f"server{k}.log").write_text(text)
    return folder


@pytest.fixture
def run():
    """Run the program as a user does, in a process of its own."""

    def run(*arguments, check=None, **options):
        done = subprocess.run(
            [sys.executable, "-m", "loganalyze", *map(str, arguments)],
            cwd=options.pop("cwd", ROOT),
            capture_output=True,
            text=True,
            timeout=300,
            **options,
        )
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    return run
