"""The command line: arguments in, one library call, text out, an exit status.

Commands import the library inside their functions, so that `loganalyze --help` and shell
completion load nothing but click.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from loganalyze import __version__, docstrings
from loganalyze.cli._shared import examples, print_error
from loganalyze.cli.check import check
from loganalyze.cli.compare import compare
from loganalyze.cli.explain import explain
from loganalyze.cli.export import export
from loganalyze.cli.follow import follow
from loganalyze.cli.formats import formats
from loganalyze.cli.plan import plan
from loganalyze.cli.query import query
from loganalyze.cli.report import report
from loganalyze.cli.scan import scan
from loganalyze.cli.selfcheck import selfcheck
from loganalyze.errors import LogAnalyzeError, missing_package, utf8

#: Exit statuses of every command (the README has the table).
UNUSABLE = 2
INTERRUPTED = 130


class Program(click.Group):
    """The group of all commands; it alone turns what went wrong into words and a status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order in which they are added: the main ones first."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what each command does in its first sentence, whole: click would cut it."""
        rows = [(name, one.get_short_help_str(limit=200)) for name, one in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 (click's own)
    ) -> click.Context:
        """Keep the command line as typed in `ctx.obj`: a report says how to make it again."""
        typed = utf8(shlex.join(["loganalyze", *args]))
        return super().make_context(info_name, args, parent, obj=typed, **extra)

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,  # noqa: ANN401 (click's own)
    ) -> object:
        """Run one command and exit with its status; print errors as `loganalyze: ...`."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        for stream in (sys.stdout, sys.stderr):  # file names and logs hold any bytes
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            status = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            status = UNUSABLE
        except click.ClickException as error:
            status = _fail(_plain(error.format_message()), _usage_hint(error))
        except LogAnalyzeError as error:
            status = _fail(error.message, error.hint)
        except click.Abort:
            status = _fail("interrupted", status=INTERRUPTED)
        except OSError as error:
            status = _fail(*_told(error))
        except Exception as error:
            if missing := missing_package(error):
                sys.exit(_fail(missing.message, missing.hint))
            # A mistake of ours. Python's own exit status would be 1, which means
            # "--fail-on was reached", so it cannot be left to Python.
            if os.environ.get("LOGANALYZE_DEBUG"):
                raise
            status = _fail(
                f"internal error: {type(error).__name__}",
                "set LOGANALYZE_DEBUG=1 to see where; please report that and the command",
            )
        _let_go_of_streams()
        sys.exit(status)


def _let_go_of_streams() -> None:
    """Leave nothing for Python to print at its end: failing there, it exits with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, hint: str = "", status: int = UNUSABLE) -> int:
    """Print an error and return its exit status."""
    print_error(message, hint)
    return status


def _told(error: OSError) -> tuple[str, str]:
    """Return what the system refused, in our form, and the next step where there is one."""
    try:
        os.getcwd()
    except OSError:
        return "the present folder no longer exists", "`cd` to one that does"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}", ""


def _plain(message: str) -> str:
    """Return a message of click in our form: no capital, no full stop."""
    message = " ".join(message.split())
    return message[:1].lower() + message[1:].rstrip(".")


def _usage_hint(error: click.ClickException) -> str:
    """Return the command that was meant, or the help of the one that was misused."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        said = error.message.lower()
        files = [word for word in shlex.split(context.obj or "") if os.path.isfile(word)]
        if files and "no such command" in said:
            return f"try `loganalyze check {shlex.quote(files[0])}`"
        if files and "extra argument" in said and context.info_name == "plan":
            return f"try `loganalyze plan --log {shlex.quote(files[0])}`"
    return f"see `{context.command_path} --help`" if context else ""


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "loganalyze check server.log",
        "loganalyze report server.log -o report.html",
        "loganalyze explain KV001",
    ),
)
@click.version_option(__version__, prog_name="loganalyze")
def main() -> None:
    """Say why an SGLang server was slow, from its log alone."""


for _command in (
    check,
    report,
    scan,
    query,
    compare,
    plan,
    follow,
    export,
    explain,
    formats,
    selfcheck,
):
    main.add_command(_command)
for _command in (main, *main.commands.values()):
    if _command.help is None and _command.callback is not None:  # python -OO
        _command.help = docstrings.read(_command.callback)
