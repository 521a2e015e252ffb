"""Run groups of inputs on the cores of this machine, one process each.

Processes are spawned, never forked: a fork of Polars' thread pool hangs. Each is given its
next group before it is done with the present one, so that none waits while results are
written. A process that dies takes nothing with it: what it was given is done by others, and
the group it was at is tried alone, in halves, until the input that kills it is found.

Memory is a promise: each process has a share, looks at its own use every 20 ms, and ends
itself when that is beyond. Its group is then tried alone, with the shares of all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loganalyze.errors import InputError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from loganalyze.scan.work import Group, Settings, Task

#: What a process needs at most, measured on logs of any size: see docs/cluster.md.
WORKER_BYTES = 600_000_000
#: What is left to the process that holds the state.
OWN_BYTES = 300_000_000
#: With less no log can be read.
LEAST_BYTES = 2 * OWN_BYTES
#: How often a process looks at its use, and how it ends when that is beyond its share.
_LOOK_S, _BEYOND = 0.02, 77
#: A process that has used this part of its share is replaced when it is done with a group.
_WORN = 0.75
#: Inputs of a group. An input takes some 0.1 s at least, handing over a group 5 ms; what is in
#: a group that is killed has to be done again.
GROUP = 8
#: Groups that a process has been given: the one it is at, and the next.
_AHEAD = 2

#: How many processes in a row may die before they have started.
_STARTS = 3

Tasks = Sequence["Task"]


class Result(NamedTuple):
    """What became of a group: its result, or that it killed its process.

    `beyond`: it did so by needing more than this many bytes; 0: nothing tells why.
    """

    tasks: Tasks
    group: Group | None
    beyond: int = 0


def jobs_for(cores: int, memory: int, groups: int) -> int:
    """Return how many processes to run: one a core, as memory allows, none without work."""
    return max(1, min(cores, (memory - OWN_BYTES) // WORKER_BYTES, groups))


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return how many bytes to use at most: four fifths of what is free, within the cgroup."""
    free = 4 << 30
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(li.split()[1]) << 10 for li in lines if li.startswith("MemAvailable"))
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        free = min(free, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return free * 4 // 5


class Pool:
    """Processes that analyse groups. Used as a context: leaving it ends them at once.

    Attributes:
        read: bytes that all processes have read so far.
    """

    def __init__(self, settings: Settings, jobs: int, memory: int) -> None:
        """Make a pool; processes start when there is work.

        Args:
            settings: for every process.
            jobs: how many processes.
            memory: bytes for all of them and for this one, `LEAST_BYTES` or more.
        """
        self._context = multiprocessing.get_context("spawn")
        self._counters: list[Any] = []
        self._settings, self._jobs = settings, jobs
        self._memory = memory - OWN_BYTES
        self._stillborn = 0
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    @property
    def read(self) -> int:
        """Bytes read so far."""
        return sum(counter.value for counter in self._counters)

    def run(self, groups: Iterator[Tasks]) -> Iterator[Result | None]:
        """Yield results as they come, in any order; None now and then while there are none."""
        suspects: deque[Tasks] = deque()
        more = True
        while True:
            while more and self._free():
                tasks = next(groups, None)
                more = tasks is not None
                if tasks:
                    self._give(tasks)
            busy = [w for w in self._workers if w.given]
            if not busy:
                if not suspects:
                    return
                self._give_alone(suspects.popleft())  # whoever dies now is to blame
                continue
            ready = wait([w.pipe for w in busy], timeout=0.2)
            if not ready:
                yield None
            for worker in [w for w in busy if w.pipe in ready]:
                yield from self._taken(worker, suspects)

    def _taken(self, worker: _Worker, suspects: deque[Tasks]) -> Iterator[Result]:
        """Take a result, or find out what the process died of."""
        try:
            result = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            self._stillborn += not worker.ready
            if self._stillborn > _STARTS:
                raise InputError(
                    "the processes that read logs cannot start",
                    hint="a script that scans needs `if __name__ == '__main__':`",
                ) from None
            tasks, *others = worker.given
            for other in others:
                self._give(other)
            if not worker.alone:
                suspects.append(tasks)
            elif len(tasks) > 1:
                half = len(tasks) // 2
                suspects.extend([tasks[:half], tasks[half:]])
            else:
                beyond = self._memory if worker.process.exitcode == _BEYOND else 0
                yield Result(tasks, None, beyond)
            return
        if result is None:
            worker.ready, self._stillborn = True, 0
            return
        group, leaves = result
        tasks = worker.given.popleft()
        if leaves:
            self._bury(worker)
            for other in worker.given:
                self._give(other)
        yield Result(tasks, group)

    def _bury(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()

    def _free(self) -> bool:
        if len(self._workers) < self._jobs:
            return True
        return any(len(w.given) < _AHEAD for w in self._workers)

    def _give(self, tasks: Tasks) -> None:
        """Give a group to the process that has the fewest, or to a new one."""
        worker = min(self._workers, key=lambda w: len(w.given), default=None)
        if worker is None or (worker.given and len(self._workers) < self._jobs):
            worker = self._start()
        worker.given.append(tasks)
        with contextlib.suppress(OSError):  # dead already: its pipe will tell
            worker.pipe.send(tasks)

    def _give_alone(self, tasks: Tasks) -> None:
        """Give a group to a process that has the memory of all."""
        if not (self._workers and self._workers[0].alone):
            self._end()
            self._start(alone=True)
        self._give(tasks)

    def _start(self, *, alone: bool = False) -> _Worker:
        ours, theirs = self._context.Pipe()
        counter = self._context.RawValue("q", 0)  # of one writer: needs no lock
        self._counters.append(counter)
        before = os.environ.get("POLARS_MAX_THREADS")
        os.environ["POLARS_MAX_THREADS"] = before or "1"  # the processes share the cores
        share = self._memory if alone else self._memory // self._jobs
        process = self._context.Process(
            target=_work, args=(theirs, self._settings, counter, share), daemon=True
        )
        try:
            process.start()
        finally:
            if before is None:
                del os.environ["POLARS_MAX_THREADS"]
            else:
                os.environ["POLARS_MAX_THREADS"] = before
        theirs.close()
        worker = _Worker(process, ours, alone=alone)
        self._workers.append(worker)
        return worker


class _Worker:
    def __init__(self, process: BaseProcess, pipe: Connection[Any, Any], *, alone: bool) -> None:
        self.process, self.pipe, self.alone = process, pipe, alone
        self.given: deque[Tasks] = deque()
        self.ready = False


def _work(pipe: Connection[Any, Any], settings: Settings, counter: Any, share: int) -> None:  # noqa: ANN401
    """Analyse groups until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scan itself decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    given: queue.SimpleQueue[Tasks] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, given), daemon=True).start()
    threading.Thread(target=_watch, args=(share,), daemon=True).start()

    from loganalyze.scan import work

    pipe.send(None)  # the start went well

    def count(n: int) -> None:
        counter.value += n

    while True:
        group = work.analyze(given.get(), settings, count)
        leaves = _peak() > _WORN * share
        pipe.send((group, leaves))
        if leaves:
            return


def _receive(pipe: Connection[Any, Any], given: queue.SimpleQueue[Tasks]) -> None:
    """Take groups from the pipe as they come; when the scan is gone, so are we."""
    while True:
        try:
            given.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)


def _watch(share: int) -> None:
    """End this process when it has used more memory than its share."""
    while _peak() <= share:
        time.sleep(_LOOK_S)
    os._exit(_BEYOND)


def _peak() -> int:
    """Return the most memory that this process has used, in bytes; 0 where unknown."""
    with contextlib.suppress(OSError, StopIteration):
        # Not from getrusage: it counts what the parent had when this process was started.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
