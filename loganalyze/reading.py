"""Read every input that was named, whatever the state of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from loganalyze import capacity, filters, sessions, timeline
from loganalyze.errors import InputError, utf8
from loganalyze.filters import Filters
from loganalyze.frames import Frames
from loganalyze.guesses import guess, of_other_server
from loganalyze.model import SessionData, Unreadable
from loganalyze.parse import Parser
from loganalyze.sources import Source, open_sources
from loganalyze.store import Store

#: What is said of a log that could not be read to its end.
PARTLY = "what could be read was analysed"


class Keeper(Protocol):
    """What records are put into as they are read."""

    def add(self, frames: Frames) -> None:
        """Take one chunk."""


def read_all(
    parser: Parser,
    store: Keeper,
    paths: Sequence[str],
    on_progress: Callable[[int], None] | None,
) -> tuple[list[Source], list[Unreadable]]:
    """Read logs into a store; one that fails or holds no SGLang line never stops the others.

    Args:
        parser: turns lines into records.
        store: keeps them.
        paths: log files; `-` is standard input.
        on_progress: called with the number of bytes read since the last call.

    Returns:
        The sources that hold SGLang lines, and what could not be used, or not whole.

    Raises:
        InputError: no input could be used; the message names the first and says why.
    """
    errors: list[InputError] = []
    opened = open_sources(paths, errors.append)
    failed = [_unreadable(error, paths) for error in errors]
    read: list[Source] = []
    for source in opened:
        try:
            found = _read_one(parser, store, source, on_progress)
        except InputError as error:
            failed.append(_unreadable(error, [source.name]))
            continue
        if found:
            read.append(source)
            if source.notes:
                failed.append(Unreadable(source.name, "; ".join(source.notes), PARTLY))
        else:
            looks_like, hint = guess(source)
            lines = f"{source.lines:,} line{'s' * (source.lines != 1)}"
            message = "; ".join([f"no SGLang line in {lines}", *source.notes])
            hint = f"looks like {looks_like}; {hint}"
            coverage = parser.coverage(source)
            if coverage.lines_unrecognised:
                first = coverage.samples[0]
                where = f"the first on line {first.line_no}"
                if first.text.startswith("... "):
                    where = f"inside of other text, {where}; {hint}"
                else:
                    where = f"cut off, {where}; pass the log with whole lines"
                hint = f"{coverage.lines_unrecognised:,} of them look like its statistics {where}"
            failed.append(Unreadable(source.name, message, hint))
    if not read:
        raise InputError(f"{failed[0].name}: {failed[0].message}", hint=failed[0].hint)
    return read, failed


def measured(store: Store, read: Sequence[Source], chosen: Filters) -> list[SessionData]:
    """Return the sessions of what was read, cut to the filters, with measured capacity.

    Raises:
        InputError: the filters leave nothing.
        UsageError: a filter that cannot be read.
    """
    found = sessions.split(Frames(**store.frames()), rotated(read))
    return [_measured(data) for data in filters.apply(found, chosen)]


def _measured(data: SessionData) -> SessionData:
    data = timeline.carried(data)
    return replace(data, session=replace(data.session, capacity=capacity.measure(data)))


def rotated(read: Sequence[Source]) -> dict[str, str]:
    """Return {source: rotated set} for the sources that are parts of one."""
    members = Counter(source.group for source in read)
    return {source.name: source.group for source in read if members[source.group] > 1}


def _unreadable(error: InputError, names: Sequence[str]) -> Unreadable:
    """Return the failure with the input's name apart from the message."""
    name = next((n for n in map(utf8, names) if error.message.startswith(f"{n}: ")), "-")
    message = error.message.removeprefix(f"{name}: ").removeprefix("standard input: ")
    return Unreadable(name, message, error.hint)


#: Kinds of events that any program in Python may print, and how many chunks of no more than
#: these are kept back.
_ANYONES = {"traceback", "error", "killed", "exit_code", "process_aborted", "collective_timeout"}
_HELD = 64


def _read_one(
    parser: Parser, store: Keeper, source: Source, on_progress: Callable[[int], None] | None
) -> bool:
    """Put the records of a source into the store; tell whether there were any.

    A log with no more than tracebacks and the like may be another server's.
    """
    sure, held = False, list[Frames]()
    for chunk in parser.read(source, on_progress):
        kinds = set(chunk.event["kind"].unique())
        sure |= bool(chunk.batch.height or chunk.startup.height or kinds - _ANYONES)
        held.append(chunk)
        if sure or len(held) > _HELD:
            for each in held:
                store.add(each)
            sure, held = True, []
    found = any(chunk.event.height for chunk in held)
    if not sure and found and of_other_server(source):
        return False
    for each in held:
        store.add(each)
    return sure or found
