"""`loganalyze scan`: an archive of logs, one page, and a dataset."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import click

from loganalyze.cli import _outputs, _shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loganalyze.scan.archive import Summary

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _size(ctx: click.Context, param: click.Parameter, text: str | None) -> int:
    """Return a size such as 800M or 4G in bytes; 0 where none was given."""
    if text is None:
        return 0
    match = re.fullmatch(r"([0-9.]+) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or not match[1].strip("."):
        raise click.BadParameter(f"{text!r} is not like 800M or 4G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _pattern(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Return a regular expression that compiles."""
    try:
        re.compile(text or "")
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no pattern: {error}") from None
    return text


@click.command(
    epilog=_shared.examples(
        "loganalyze scan /var/log/sglang -o archive/",
        "loganalyze scan 'runs/*/server*.log*' old-logs.tar.gz -o archive/ --reports all",
        "loganalyze scan s3://logs/sglang/2026/ -o archive/ --host '/(node[0-9]+)/'",
        "loganalyze scan /shared/logs -o archive/ --engine ray --address auto",
        "loganalyze scan nightly/ -o archive/ --fail-on critical --json | jq .headline",
    )
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH|PATTERN|URL...")
@click.option(
    "-o", "--output", required=True, metavar="DIR", help="Folder of results, new or of a scan."
)
@click.option(
    "--reports",
    "pages",
    type=click.Choice(["all", "problems", "none"]),
    default="problems",
    show_default=True,
    help="Which runs get a page of their own.",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes; by default one a core.")
@click.option(
    "--memory",
    callback=_size,
    metavar="SIZE",
    help="Memory for all processes of this machine, such as 4G: it is not exceeded, a log that "
    "needs more is listed as not read. By default most of what is free.",
)
@click.option(
    "--host",
    callback=_pattern,
    metavar="REGEX",
    help="Finds a log's host in its name (the first group); by default its nearest folder "
    "that is no date or number.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where to run: on this machine, or on a Ray cluster.",
)
@click.option("--address", metavar="ADDRESS", help="Address of the Ray cluster, or `auto`.")
@_shared.json_option
@_shared.fail_on_option
@_shared.judging_options
@_shared.redact_option
@click.pass_context
def scan(
    ctx: click.Context,
    paths: tuple[str, ...],
    output: str,
    pages: Literal["all", "problems", "none"],
    jobs: int | None,
    memory: int,
    host: str | None,
    engine: Literal["local", "ray"],
    address: str | None,
    as_json: bool,
    fail_on: str | None,
    profile: Literal["online", "batch"] | None,
    settings: dict[str, float],
    config: str | None,
    redact: bool,
) -> None:
    """Analyse an archive of logs: one page, a report per problem, and a dataset.

    PATH is a folder, a file, an archive, a pattern, or an address (s3://, gs://, az://,
    http://). Run it again at any time: what has not changed is skipped, what grew is read on,
    and what was interrupted is finished.
    """
    from loganalyze.scan import archive

    if address and engine == "local":
        raise click.UsageError("--address is for --engine ray.")
    options = archive.Options(
        pages=pages,
        jobs=jobs or 0,
        memory=memory,
        engine=engine,
        address=address,
        host=host,
        overrides=_overrides(config, settings),
        profile=profile,
        redact=redact,
    )
    line = _Line()
    done = archive.scan(paths, output, options, _teller(line, as_json, redact), line.show)
    line.clear()
    for text in _said(done, output):
        if as_json:
            _shared.tell(text)
        else:
            _outputs.to_stdout(_shared.printable(text))
    ctx.exit(_status(done, fail_on))


def _overrides(config: str | None, settings: dict[str, float]) -> dict[str, float]:
    overrides = _shared.read_config(config) | settings
    if overrides:  # rules are slow to load, and a scan with nothing to do needs none
        from loganalyze import rules

        overrides = rules.checked_overrides(overrides)
    return overrides


def _teller(line: _Line, as_json: bool, redact: bool) -> Callable[[Mapping[str, Any], str], None]:
    """Return what tells about a run: its row as JSON, or what could not be read."""
    from loganalyze.redact import Redactor
    from loganalyze.report import to_json

    redactor = Redactor(keep=not redact)
    from loganalyze.reading import PARTLY

    def tell(row: Mapping[str, Any], way: str) -> None:
        if row["error"]:
            line.clear()
            _shared.print_error(f"{row['log']}: {row['error']}", row["hint"] or "")
        elif row.get("unread"):
            line.clear()
            _shared.print_error(f"{row['log']}: {row['unread']}", PARTLY)
        if as_json:
            line.clear()
            _outputs.to_stdout(json.dumps({"how": way, **to_json.plain(redactor.run(row))}))

    return tell


def _status(done: Summary, fail_on: str | None) -> int:
    """Return the exit status: see the README's table."""
    if done.interrupted:
        return 130
    reached = {"warning": ("warning", "critical"), "critical": ("critical",)}
    if done.worst in reached.get(fail_on or "", ()):
        return _shared.FAIL_ON_REACHED
    if not done.runs and not done.copies:
        return 2
    return _shared.SOME_UNREADABLE if done.unreadable or done.partly else 0


def _said(done: Summary, output: str) -> list[str]:
    from loganalyze.report import words

    now = done.totals
    said = words.runs_in_trouble(now.problems, now.runs)
    left_out = words.left_out(now.failed, now.copies, now.within)
    said += f"; {left_out}" if left_out else ""
    done_with = [
        (done.read, "read"),
        (done.grown, "read on"),
        (done.unchanged, "unchanged"),
        (done.moved, "moved"),
        (done.partly, "of them only in part"),
    ]
    found = [
        (done.copies, "copies" if done.copies > 1 else "copy"),
        (done.unreadable, "not readable"),
        (done.other, "no logs" if done.other > 1 else "no log"),
        (done.empty, "empty"),
    ]
    lists = [", ".join(f"{n:,} {what}" for n, what in x if n) for x in (done_with, found)]
    # What is unchanged is counted as what it is as well.
    parts = ("; of all " if done.unchanged else ", ").join(filter(None, lists)) or "none finished"
    head = "interrupted: " if done.interrupted else ""
    return [
        f"{head}{done.inputs:,} input{'s' * (done.inputs != 1)} ({parts}) in {done.seconds:.1f} s",
        f"{said}: {output.rstrip('/')}/index.html",
    ]


class _Line:
    """A line of progress on standard error, where that is a terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._next = 0.0
        self._terminal = _shared.is_terminal(sys.stderr)

    def show(self, done: Summary) -> None:
        """Say how far the scan is, at most five times a second."""
        now = time.monotonic()
        if not self._terminal or now < self._next:
            return
        self._next = now + 0.2
        rate = done.bytes_done / max(done.seconds, 0.1)
        left = (done.bytes_total - done.bytes_done) / rate if rate else 0
        text = (
            f"{done.files_done:,} of {done.files_total:,} files, {rate / 1e6:,.0f} MB/s, "
            f"{left:,.0f} s left, {done.unreadable:,} failed"
        )
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)
        self._shown = True

    def clear(self) -> None:
        """Take the line away before something else is printed."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._shown = False
