"""Write results: all or nothing, and never over something that was there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import click

from loganalyze.cli import _shared
from loganalyze.errors import UsageError

STDIO = "-"


def check_outputs(outputs: Sequence[str | None], inputs: Sequence[str], force: bool) -> None:
    """Refuse outputs that cannot or must not be written, before anything is read.

    Args:
        outputs: paths as given; `-` is standard output, None an output not asked for.
        inputs: paths of the logs.
        force: existing files may be replaced; a log that is also an input never is.

    Raises:
        UsageError: two outputs in one place, an existing file, a directory, an input, a place
            that cannot be written to.
    """
    given = [output for output in outputs if output is not None]
    if len({_place(output) for output in given}) < len(given):
        raise UsageError("two outputs go to the same place", hint="give each its own file")
    logs = {_place(path) for path in inputs if path != STDIO}
    for output in given:
        if output == STDIO:
            if sys.stdout is None:
                raise UsageError("-: standard output is closed", hint="name a file")
            continue
        if _place(output) in logs:
            raise UsageError(f"{output}: is the log itself", hint="choose another output")
        if os.path.isdir(output):
            raise UsageError(f"{output}: is a directory", hint="name a file in it")
        if os.path.isfile(output) and not force:
            raise UsageError(f"{output}: exists already", hint="--force replaces it")
        _check_folder(output)


def write_all(outputs: Sequence[tuple[str, str | bytes]]) -> None:
    """Write outputs that are all complete already, and say where each went."""
    for output, text in outputs:
        write(output, text)
        if output != STDIO:
            _shared.tell(f"wrote {output}")


def write(output: str, content: str | bytes) -> None:
    """Write one output, whole or not at all."""
    if output == STDIO:
        to_stdout(content)
        return
    with whole(output) as path:
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode("utf-8", errors="replace")
        )


@contextlib.contextmanager
def whole(output: str) -> Iterator[Path]:
    """Give a path to write to; what stands there at the end becomes the output.

    A reader sees the old file or the whole new one, nothing between, and after an error the
    old one. Folders on the way are made. Standard output, a device or a pipe is written to
    at the end, from a temporary file.
    """
    try:
        if output == STDIO or _is_stream(output):
            with tempfile.TemporaryDirectory() as folder:
                beside = Path(folder, "output")
                yield beside
                with beside.open("rb") as file:
                    if output == STDIO:
                        _copy_to_stdout(file)
                    else:
                        with open(output, "wb") as stream:
                            shutil.copyfileobj(file, stream)
            return
        target = Path(os.path.realpath(output))  # what a link points to is replaced, not it
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            yield beside
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror or error}", hint=_NOT_WRITTEN) from error


_NOT_WRITTEN = "nothing was written there; choose another place or free some room"


def to_stdout(content: str | bytes) -> bool:
    """Print a result; a reader that has left (`| head`) is no error.

    Returns:
        Whether it was there to read it.
    """
    try:
        click.echo(content, nl=isinstance(content, str) and not content.endswith("\n"))
    except BrokenPipeError:
        _drop_stdout()
        return False
    except OSError as error:
        raise _not_printed(error) from error
    return True


def _not_printed(error: OSError) -> UsageError:
    return UsageError(
        f"standard output: {error.strerror or error}", hint="the result could not be printed"
    )


def _copy_to_stdout(file: IO[bytes]) -> None:
    try:
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        raise _not_printed(error) from error


def _drop_stdout() -> None:
    """Send what is still to be flushed nowhere, so that Python's exit stays quiet."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_folder(output: str) -> None:
    """Refuse an output in a folder that cannot be made or written to."""
    if _is_stream(output):
        return
    place = Path(os.path.realpath(output))
    folder = next(parent for parent in place.parents if parent.exists())
    if not folder.is_dir():
        raise UsageError(f"{output}: {folder} is not a folder", hint="choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{output}: {folder} may not be written to", hint="choose another place")


def _is_stream(output: str) -> bool:
    """Tell whether an output is a device or a pipe, `>(...)` and /dev/stdout among them."""
    return os.path.exists(output) and not os.path.isfile(output)


def _place(path: str) -> str:
    """Return where a path leads, so that two names of one file are seen as one."""
    return path if path == STDIO else os.path.realpath(path)
