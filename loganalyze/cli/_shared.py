"""What several commands share: arguments, options, progress, colour, exit status."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypedDict, Unpack

import click

from loganalyze.errors import UsageError, utf8

if TYPE_CHECKING:
    from loganalyze.filters import Filters
    from loganalyze.model import Report, Unreadable

#: Smaller inputs are done before a bar would help anyone.
PROGRESS_FROM_BYTES = 32_000_000

FAIL_ON_REACHED = 1
SOME_UNREADABLE = 3


def complete_code(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Return the codes of rules that begin with what was typed, for the shell."""
    from loganalyze import rules

    return [code for code in rules.all_rules() if code.startswith(typed.upper())]


def complete_limit(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Return `CODE.limit=` for every limit that begins with what was typed, for the shell."""
    from loganalyze import rules

    names = (f"{c}.{limit}=" for c, rule in rules.all_rules().items() for limit in rule.limits)
    return [name for name in names if name.startswith(typed)]


def complete_flag(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """Return the server's flags that begin with what was typed, for the shell."""
    from loganalyze.rules import flags

    return [name for name in flags.all_flags() if name.startswith(typed.lstrip("-"))]


def _settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Return the values of --set as {"KV001.enter_usage": 0.95}."""
    settings = {}
    for value in values:
        name, _, number = value.partition("=")
        code, dot, limit = name.strip().partition(".")
        try:
            settings[code.upper() + dot + limit] = float(number)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not like KV001.enter_usage=0.95") from None
    return settings


class Chosen(TypedDict):
    """What `choosing_options` add to a command, as typed."""

    since: str | None
    until: str | None
    ranks: tuple[str, ...]
    sources: tuple[str, ...]


class Choices(Chosen):
    """What `analysis_options` add to a command, as typed."""

    settings: dict[str, float]
    config: str | None
    profile: Literal["online", "batch"] | None
    redact: bool


def examples(*lines: str) -> str:
    """Return the end of a help text: command lines, one below the other."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


log_argument = click.argument(
    "logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(allow_dash=True)
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["warning", "critical"]),
    help="Exit with status 1 if a finding is at least this severe.",
)
force_option = click.option("--force", is_flag=True, help="Replace outputs that exist already.")
redact_option = click.option(
    "--no-redact",
    "redact",
    flag_value=False,
    default=True,
    help="Keep keys, host names, addresses and home paths, which are left out otherwise.",
)

_CHOOSING_OPTIONS = (
    click.option(
        "--since",
        metavar="TIME",
        help="Look only at what came after: 2026-02-24 12:03, 12:03, or -30m "
        "for the log's last half hour.",
    ),
    click.option("--until", metavar="TIME", help="Look only at what came before."),
    click.option(
        "--rank",
        "ranks",
        multiple=True,
        metavar="RANK",
        help="Look only at a rank, written as the log does: DP1, or 'DP1 TP4'.",
    ),
    click.option(
        "--source", "sources", multiple=True, metavar="LOG", help="Look only at one of the logs."
    ),
)
_JUDGING_OPTIONS = (
    click.option(
        "--profile",
        type=click.Choice(["online", "batch"]),
        help="What the server is for: users who wait, or jobs that do not. "
        "Changes the verdict's words, never the facts.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="CODE.limit=NUMBER",
        callback=_settings,
        shell_complete=complete_limit,
        help="Change a limit of a rule; `loganalyze explain CODE` lists them.",
    ),
    click.option(
        "--config",
        type=click.Path(),
        metavar="FILE.toml",
        help="Take limits of rules from a file ([KV001] enter_usage = 0.95); --set wins over it.",
    ),
)


def choosing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what chooses a part of the log: --since, --until, --rank and --source."""
    for option in reversed(_CHOOSING_OPTIONS):
        command = option(command)
    return command


def judging_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what chooses how logs are judged: --profile, --set and --config."""
    for option in reversed(_JUDGING_OPTIONS):
        command = option(command)
    return command


def analysis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what chooses a part of the log, how it is judged and shown; see `Choices`."""
    return choosing_options(judging_options(redact_option(command)))


def filters(chosen: Chosen | Choices) -> Filters:
    """Return the part of the log that was chosen."""
    from loganalyze.filters import Filters

    return Filters(chosen["since"], chosen["until"], chosen["ranks"], chosen["sources"])


def analyze(
    ctx: click.Context, logs: Sequence[str], *, drawn: bool = True, **choices: Unpack[Choices]
) -> Report:
    """Run the pipeline with a progress bar, and name on standard error what was not readable.

    The report has timelines and a plan where it is `drawn`.
    """
    from loganalyze import pipeline

    overrides = read_config(choices["config"]) | choices["settings"]
    with progress(logs) as tick:
        report = pipeline.analyze(
            *logs,
            overrides=overrides,
            profile=choices["profile"],
            filters=filters(choices),
            on_progress=tick,
            command=ctx.obj,
            redact=choices["redact"],
            drawn=drawn,
        )
    print_unreadable(report.unreadable)
    return report


def print_unreadable(inputs: Sequence[Unreadable]) -> None:
    """Name on standard error every input that could not be used, and why."""
    for item in inputs:
        print_error(f"{item.name}: {item.message}", item.hint)


def read_config(path: str | None) -> dict[str, float]:
    """Return the limits in a TOML file as {"KV001.enter_usage": 0.95}."""
    import tomllib

    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8-sig") as file:
            tables = tomllib.loads(file.read())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="--config names a TOML file") from error
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, no UTF-8, a huge number
        raise UsageError(f"{path}: not TOML: {error}", hint=_CONFIG_HINT) from error
    limits: dict[str, float] = {}
    for code, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {code} is no table", hint=_CONFIG_HINT)
        for name, value in table.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise UsageError(f"{path}: {code}.{name} is not a number", hint=_CONFIG_HINT)
            limits[f"{code}.{name}"] = math.inf if abs(value) > 1e300 else float(value)

    from loganalyze import rules

    try:
        return rules.checked_overrides(limits)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None


_CONFIG_HINT = "one table per rule: [KV001], and under it enter_usage = 0.95"


@contextlib.contextmanager
def progress(logs: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
    """Give a function that moves a bar by a number of bytes, or None where no bar is shown.

    There is a bar on standard error when that is a terminal, for inputs of known size that
    are long enough.
    """
    size = sum(os.path.getsize(path) for path in logs if os.path.isfile(path))
    if size < PROGRESS_FROM_BYTES or not is_terminal(sys.stderr):
        yield None
        return
    with click.progressbar(length=size, label="reading", file=sys.stderr) as bar:
        yield bar.update


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether someone looks at a stream; Python has None for one that was closed."""
    return stream is not None and stream.isatty()


def use_color() -> bool:
    """Tell whether standard output takes colour: a terminal, and no NO_COLOR."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(sys.stdout) and not plain


def width() -> int:
    """Return how many columns to fill: those of the terminal, or 100 where there is none."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else 100


def exit_code(report: Report, fail_on: str | None) -> int:
    """Return the exit status of an analysis: see the README's table."""
    from loganalyze.model import Severity

    if fail_on and any(f.severity >= Severity[fail_on.upper()] for f in report.findings):
        return FAIL_ON_REACHED
    return SOME_UNREADABLE if report.unreadable else 0


def print_error(message: str, hint: str = "") -> None:
    """Print `loganalyze: ...` and `hint: ...` to standard error."""
    for name, text in (("loganalyze", message), ("hint", hint)):
        if text:
            tell(f"{name}: {text}")


def tell(line: str) -> None:
    """Print a line to standard error."""
    to_stderr(printable(line) + "\n")


def to_stderr(text: str) -> None:
    """Print to standard error; where that takes nothing, the exit status still says it."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True, nl=False)


def printable(line: str) -> str:
    """Return a line without control characters: file names hold any, and terminals obey."""
    return "".join(c if c.isprintable() else "?" for c in utf8(line))
