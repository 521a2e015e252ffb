"""The same scan on a Ray cluster of two nodes, with a worker and a node killed in mid-run."""

import os
import signal
import subprocess
import sys
import threading
import time

import polars as pl
import pytest
from scanned import ROOT, needed
from test_remote import s3  # noqa: F401 - a fixture

from loganalyze.scan import archive as library
from loganalyze.scan import dataset

# Nodes on the loopback address: Ray's test clusters know no other on an offline machine.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
ray = needed("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Ray's own modules
    pytest.mark.skipif(sys.platform == "win32", reason="Ray's clusters need Linux or macOS"),
]


@pytest.fixture(scope="module")
def cluster(s3):  # noqa: F811
    """Two nodes of two cores each on this machine; nodes inherit the store's keys."""
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(ROOT))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": 2, "object_store_memory": 100 << 20, "memory": 2 << 30}
    made = Cluster(initialize_head=True, head_node_args={**size, "node_ip_address": "127.0.0.1"})
    made.second = made.add_node(**size, node_ip_address="127.0.0.1")
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


def tables(out):
    """Return the dataset, in an order that does not depend on who was first."""
    return {
        name: pl.read_parquet(sorted((out / "dataset" / name).glob("*"))).sort(pl.all())
        for name in dataset.TABLES
    }


def workers():
    """Return the processes that run tasks of this cluster."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    lines = (line.split(None, 1) for line in listed.stdout.splitlines()[1:])
    return [int(pid) for pid, name in lines if name.startswith("ray::_analyze")]


def kill_one(killed):
    """Kill a worker as soon as one is at work."""
    for _ in range(2_000):
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            return
        time.sleep(0.02)


def test_a_cluster_gives_what_one_machine_gives(cluster, s3, tmp_path, monkeypatch):  # noqa: F811
    from scanned import log_text

    for k in range(36):
        body = log_text(full=k % 3 == 0, lines=120, seed=k).encode()
        s3.put_object(Bucket="logs", Key=f"many/node{k % 4}/run{k:02d}.log", Body=body)
    monkeypatch.setattr("loganalyze.scan.cluster.GROUP", 3)
    options = library.Options(engine="ray", address=cluster.address)
    killed = []
    killer = threading.Thread(target=kill_one, args=(killed,))
    killer.start()
    removed = []

    def tick(done):
        if done.files_done >= 9 and not removed:  # a whole node goes, with what it was at
            cluster.remove_node(cluster.second, allow_graceful=False)
            removed.append(True)

    done = library.scan(["s3://logs/many/"], str(tmp_path / "ray"), options, None, tick)
    killer.join()
    assert killed
    assert removed
    assert (done.read, done.unreadable, done.totals.problems) == (36, 0, 12)
    library.scan(["s3://logs/many/"], str(tmp_path / "one"), library.Options(jobs=2))
    on_cluster, on_one = tables(tmp_path / "ray"), tables(tmp_path / "one")
    for name in dataset.TABLES:
        assert on_cluster[name].equals(on_one[name]), name
    pages = [sorted(p.name for p in (tmp_path / o / "reports").iterdir()) for o in ("ray", "one")]
    assert pages[0] == pages[1]
    assert len(pages[0]) == 12
    again = library.scan(["s3://logs/many/"], str(tmp_path / "ray"), options)
    assert again.unchanged == 36


def test_no_cluster_is_said(run, archive, tmp_path):
    where = ["--engine", "ray", "--address", "127.0.0.1:1"]
    done = run("scan", archive, "-o", tmp_path / "out", *where)
    assert done.returncode == 2
    assert "no Ray cluster at 127.0.0.1:1" in done.stderr
