"""`loganalyze follow`: the verdict while it happens."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal

import click

from loganalyze.cli import _outputs, _shared
from loganalyze.errors import InputError

if TYPE_CHECKING:
    from loganalyze.follow import Change, Follower

#: Seconds between lines of plain output while nothing changes.
PLAIN_S = 60.0


@click.command(
    epilog=_shared.examples(
        "loganalyze follow server.log",
        "kubectl logs -f sglang-0 | loganalyze follow -",
        "loganalyze follow rank0.log rank1.log --json",
        "loganalyze follow server.log --on-finding 'notify-send saturated'",
        "loganalyze follow server.log --webhook https://chat/hook --metrics 9400",
    )
)
@_shared.log_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per change of state.")
@click.option(
    "--on-finding",
    metavar="CMD",
    help="Run a command when a finding begins, becomes critical, and is over, with the finding "
    "as JSON on its standard input. No shell runs it.",
)
@click.option("--webhook", metavar="URL", help="Post the same JSON to a URL, with retries.")
@click.option(
    "--metrics",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve Prometheus metrics on http://127.0.0.1:PORT/metrics.",
)
@_shared.judging_options
@_shared.redact_option
@click.pass_context
def follow(
    ctx: click.Context,
    logs: tuple[str, ...],
    as_json: bool,
    on_finding: str | None,
    webhook: str | None,
    metrics: int | None,
    settings: dict[str, float],
    config: str | None,
    profile: Literal["online", "batch"] | None,
    redact: bool,
) -> None:
    """Watch logs while they are written, and tell when something slows a server.

    LOG is a file, which need not exist yet and may be rotated, or - for standard input. What
    is in a file already is read first; then each saturation gives one alert and one all-clear,
    and a word between if it becomes critical.
    """
    from loganalyze import rules
    from loganalyze.follow import Follower, loop, notify
    from loganalyze.follow.metrics import Server
    from loganalyze.redact import Redactor

    overrides = rules.checked_overrides(_shared.read_config(config) | settings)
    channels: list[notify.Channel] = []
    if on_finding is not None:
        channels.append(notify.Command(on_finding))
    if webhook is not None:
        channels.append(notify.Webhook(webhook))
    follower = Follower(overrides, profile, Redactor(keep=not redact))
    screen = _Screen(follower, as_json)
    server = Server(metrics, lambda: screen.latest) if metrics is not None else None
    if server is not None:
        screen.note(f"metrics on http://127.0.0.1:{server.port}/metrics")
    notifier = notify.Notifier(channels, screen.note)

    def on_change(change: Change) -> None:
        screen.change(change)
        if change.finding is not None:
            from loganalyze.report import follow_json

            notifier.tell(follow_json.alert(change))

    try:
        loop.run(
            logs,
            follower,
            on_change=on_change,
            on_status=screen.status,
            on_note=screen.note,
            is_over=lambda: screen.deserted and not channels and server is None,
        )
    except KeyboardInterrupt:
        raise click.Abort from None
    except InputError:
        screen.close()
        raise
    finally:
        notifier.close()
        if server is not None:
            server.close()
        screen.close()


class _Screen:
    """Where changes and the view go: a terminal, plain lines, or JSON.

    Attributes:
        latest: the last status, which other threads may read.
        deserted: whether the reader of standard output has left (`| head`).
    """

    def __init__(self, follower: Follower, as_json: bool) -> None:
        self.latest = follower.status()
        self.deserted = False
        self._follower = follower
        self._json = as_json
        self._live = not as_json and _shared.is_terminal(sys.stdout)
        self._lines: list[str] = []
        self._drawn = 0
        self._began = False
        self._said = 0.0

    def change(self, change: Change) -> None:
        """Tell one change of state."""
        from loganalyze.report import follow_json, follow_text

        if self._json:
            whole = change.event == "end" and self._follower.statistics
            report = self._follower.report() if whole else None
            self._write(follow_json.change(change, report))
            return
        self._print(follow_text.change(change, len(self.latest.names) > 1))
        self._said = time.monotonic()

    def status(self) -> None:
        """Redraw the view; as plain lines, say what is followed, and the values once a minute."""
        from loganalyze.report import follow_text, words

        self.latest = self._follower.status()
        if self._live:
            lines = follow_text.view(self.latest, _shared.width(), _shared.use_color())
            if lines != self._lines or not self._drawn:
                self._erase()
                click.echo("\n".join(lines))
                self._lines, self._drawn = lines, len(lines)
        elif not (self._json or self._began):
            self.note(
                f"following {', '.join(words.clean(words.name(n)) for n in self.latest.names)}"
            )
            self._began = True
        elif not self._json and time.monotonic() - self._said >= PLAIN_S:
            if self.latest.now.line:
                self._print(follow_text.values(self.latest))
            self._said = time.monotonic()

    def note(self, text: str) -> None:
        """Say what a person should know, on standard error."""
        self._erase()
        _shared.print_error(text)

    def close(self) -> None:
        """Leave the last view where it is."""
        self._drawn = 0

    def _print(self, line: str) -> None:
        self._erase()
        self._write(line)

    def _write(self, line: str) -> None:
        self.deserted |= not _outputs.to_stdout(line)

    def _erase(self) -> None:
        """Take the view away, so that the next output stands in its place."""
        if self._drawn:
            click.echo(f"\x1b[{self._drawn}A\x1b[J", nl=False)
            self._drawn = 0
