"""The loop of `follow`: read what came, judge it, tell what changed, wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from loganalyze.errors import InputError, UsageError
from loganalyze.follow import Change, Follower
from loganalyze.follow.tail import FileTail, PipeTail
from loganalyze.sources import open_sources

#: Seconds between looks at files that did not grow.
POLL_S = 0.5
#: A log is said to be none of SGLang after so many lines without one, or sooner once nothing has
#: come for so many seconds: a server's first lines may be those of a script around it.
FOREIGN_LINES, FOREIGN_S = 50, 5.0
#: Seconds between calls of `on_status` while nothing changes.
STATUS_S = 1.0


def run(
    paths: Sequence[str],
    follower: Follower,
    *,
    on_change: Callable[[Change], None],
    on_status: Callable[[], None],
    on_note: Callable[[str], None],
    poll_s: float = POLL_S,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Follow logs until they end: standard input at its end, files never.

    Args:
        paths: files, which need not exist yet; `-` is standard input.
        follower: judges the lines.
        on_change: called for each change of state.
        on_status: called after lines came, and every second.
        on_note: called with what a person should know, such as a rotation.
        poll_s: seconds between looks at a file.
        is_over: asked after each round; for callers that stop by themselves.

    Raises:
        InputError: a file is there and cannot be read, or standard input held no SGLang line.
        UsageError: a log was named twice.
    """
    if len(set(paths)) < len(paths):
        raise UsageError("a log is named twice", hint="name each log once")
    tails: list[FileTail | PipeTail] = [
        PipeTail() if path == "-" else FileTail(path) for path in paths
    ]
    for tail in tails:
        follower.add(tail.name, "stdin" if tail.path == "-" else "file")
    _history(tails, follower, on_change, on_note)
    unknown = {tail.name for tail in tails}
    on_status()
    last_line = last_status = time.monotonic()
    last_of = dict.fromkeys((tail.name for tail in tails), last_line)
    while not is_over():
        came = False
        for tail in tails:
            if _round(tail, follower, on_change, on_note, poll_s / len(tails)):
                came, last_of[tail.name] = True, time.monotonic()
        now = time.monotonic()
        last_line = now if came else last_line
        for change in follower.tick(now - last_line, {n: now - t for n, t in last_of.items()}):
            on_change(change)
        unknown = _foreign(unknown, follower, now - last_line, on_note)
        if came or now - last_status >= STATUS_S:
            on_status()
            last_status = now
        if all(isinstance(tail, PipeTail) and tail.ended for tail in tails):
            break
        if not came and not any(isinstance(t, PipeTail) and not t.ended for t in tails):
            time.sleep(poll_s)
    for tail in tails:
        for change in follower.push(tail.name, tail.finish()):
            on_change(change)
    said = follower.foreign(tails[0].name)
    if said is not None and not follower.spoken:
        raise InputError(
            f"no SGLang line in {follower.lines:,} line{'s' * (follower.lines != 1)}",
            hint=f"it looks like {said[0]}; {said[1]}",
        )
    ended = follower.finish()
    if not follower.statistics and not ended[-1].active:
        raise InputError(
            f"no decode or prefill line in {follower.lines:,} lines",
            hint="they are printed at --log-level info while requests run",
        )
    for change in ended:
        on_change(change)


def _foreign(
    unknown: set[str], follower: Follower, quiet_s: float, on_note: Callable[[str], None]
) -> set[str]:
    """Say once of each log that it is none of SGLang, and return those that are not known yet."""
    left = set()
    for name in sorted(unknown):
        lines = follower.lines_of(name)
        if not lines or (lines < FOREIGN_LINES and quiet_s < FOREIGN_S):
            left.add(name)
            continue
        said = follower.foreign(name)
        if said:
            where = "standard input" if name == "-" else name
            on_note(
                f"{where}: no SGLang line in {lines:,} lines, it looks like {said[0]}; "
                f"{said[1]}; still waiting for one"
            )
    return left


def _history(
    tails: Sequence[FileTail | PipeTail],
    follower: Follower,
    on_change: Callable[[Change], None],
    on_note: Callable[[str], None],
) -> None:
    """Read what files hold already, without judging every moment of it."""
    for tail in tails:
        if isinstance(tail, PipeTail):
            continue
        _check(tail.path)
        while True:
            data = _read(tail)
            follower.push(tail.name, data, history=True)
            if tail.caught_up:
                break
        if tail.waiting:
            on_note(f"{tail.name}: not there yet; waiting for it")
    if follower.lines:
        for change in follower.catch_up():
            on_change(change)


def _check(path: str) -> None:
    """Refuse what is there already and cannot grow line by line.

    To open a pipe without a writer would wait for ever, and a device never ends.
    """
    if not os.path.exists(path) or (os.path.isfile(path) and os.path.getsize(path) == 0):
        return
    (source, *more) = open_sources([path])
    if more or source.kind != "file":
        raise InputError(
            f"{path}: is not a plain text file ({source.kind})",
            hint=f"for what is complete already use: loganalyze check {path}",
        )


def _round(
    tail: FileTail | PipeTail,
    follower: Follower,
    on_change: Callable[[Change], None],
    on_note: Callable[[str], None],
    wait_s: float,
) -> bool:
    """Take everything that a log has now; tell whether anything came."""
    came = False
    while True:
        was_waiting, rotations = tail.waiting, tail.rotations
        data = tail.read(wait_s) if isinstance(tail, PipeTail) else _read(tail)
        if was_waiting and not tail.waiting:
            on_note(f"{tail.name}: found")
        if tail.rotations > rotations:
            on_note(f"{tail.name}: rotated; going on with the new file")
        came |= bool(data)
        for change in follower.push(tail.name, data):
            on_change(change)
        if tail.caught_up or not data:
            return came


def _read(tail: FileTail) -> bytes:
    try:
        return tail.read()
    except OSError as error:
        raise InputError(
            f"{tail.path}: cannot be read ({error.strerror})", hint="name a log file"
        ) from error
