"""Run groups of inputs on a Ray cluster: plain remote tasks, one core each.

The driver keeps the state and writes the results, as on one machine; tasks read their inputs
themselves, from an object store or a file system that every node has, and return bytes. Ray
retries what a lost worker or node was at. A group that is lost again and again is tried in
halves, until the input that kills its worker is found.

Why plain tasks (2026-11): ray.data wants pandas and pyarrow, and a group of files has no
rows to exchange.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from loganalyze import __version__
from loganalyze.errors import InputError, UsageError
from loganalyze.scan.local import WORKER_BYTES, Result, Tasks

if TYPE_CHECKING:
    from loganalyze.scan.work import Group, Settings

#: Inputs of a group: a task costs Ray a millisecond, and its results a transfer.
GROUP = 50
#: How often Ray itself runs a task again whose worker was lost.
_RETRIES = 3
#: Tasks handed over for each core: the one that runs, and one that waits on it.
_AHEAD = 2


def _analyze(version: str, tasks: Tasks, settings: Settings) -> Group:
    """Analyse a group on a node of the cluster."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before Polars is loaded
    if version != __version__:
        raise RuntimeError(f"the nodes have loganalyze {__version__}, the scan {version}")

    from loganalyze.scan import work

    return work.analyze(tasks, settings)


def _knock(address: str) -> None:
    """Raise OSError where nothing listens: Ray itself would end the process."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class Cluster:
    """A connection to a Ray cluster. Used as a context: leaving it cancels what still runs.

    Attributes:
        cores: how many tasks may run at a time.
        read: bytes of all inputs that are done.
    """

    def __init__(self, settings: Settings, address: str | None, jobs: int) -> None:
        """Connect.

        Args:
            settings: for every task.
            address: of the cluster; by default RAY_ADDRESS, else that of this machine.
            jobs: tasks at a time; 0: as many as there are cores.

        Raises:
            UsageError: Ray is not installed.
            InputError: there is no cluster.
        """
        where = address or os.environ.get("RAY_ADDRESS") or "auto"
        if where.rpartition(":")[0] in ("127.0.0.1", "localhost"):
            # Ray turns a loopback address into the machine's own, where no head node listens
            # that was started with --node-ip-address 127.0.0.1; this setting keeps it.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray
        except ImportError:
            raise UsageError(
                "--engine ray needs the package ray", hint="pip install 'loganalyze[cluster]'"
            ) from None
        self._ray, self._settings = ray, settings
        self.read = 0
        try:
            _knock(where)
            ray.init(address=where, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(
                f"no Ray cluster at {where} ({str(error).splitlines()[0]})",
                hint="start one with `ray start --head`, or name it with --address",
            ) from None
        found = int(ray.cluster_resources().get("CPU", 1))
        self.cores = min(jobs or found, found)
        self._remote = ray.remote(
            num_cpus=1, memory=WORKER_BYTES, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )(_analyze)
        self._running: dict[Any, Tasks] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def run(self, groups: Iterator[Tasks]) -> Iterator[Result | None]:
        """Yield results as they come, in any order; None now and then while there are none."""
        suspects: deque[Tasks] = deque()
        more = True
        while True:
            while (more or suspects) and len(self._running) < self.cores * _AHEAD:
                tasks = suspects.popleft() if suspects else next(groups, None)
                if tasks is None:
                    more = False
                    continue
                reference = self._remote.remote(__version__, tasks, self._settings)
                self._running[reference] = tasks
            if not self._running:
                return
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=0.2)
            if not done:
                yield None
            for reference in done:
                tasks = self._running.pop(reference)
                result = self._taken(reference, tasks, suspects)
                if result is not None:
                    self.read += sum(max(0, task.found.size) for task in tasks)
                    yield result

    def _taken(self, reference: Any, tasks: Tasks, suspects: deque[Tasks]) -> Result | None:  # noqa: ANN401
        """Return a result; None where the group was lost and is to be tried in halves."""
        errors = self._ray.exceptions
        try:
            return Result(tasks, self._ray.get(reference))
        except errors.RayTaskError as error:
            raise InputError(
                f"the cluster cannot run the scan: {str(error.cause or error).splitlines()[0]}",
                hint="every node needs the same loganalyze[remote] as this machine",
            ) from None
        except errors.RayError:
            if len(tasks) == 1:
                return Result(tasks, None)
            half = len(tasks) // 2
            suspects.extend([tasks[:half], tasks[half:]])
            return None
