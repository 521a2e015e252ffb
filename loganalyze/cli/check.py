"""`loganalyze check`: the verdict in the terminal."""

from __future__ import annotations

from typing import Unpack

import click

from loganalyze.cli import _outputs, _shared


@click.command(
    epilog=_shared.examples(
        "loganalyze check server.log",
        "kubectl logs sglang-0 | loganalyze check -",
        "loganalyze check server.log.2.gz server.log.1 server.log",
        "loganalyze check server.log --json | jq .verdict",
        "loganalyze check server.log --profile batch --set KV001.enter_usage=0.95",
        "loganalyze check nightly.log --fail-on critical",
    )
)
@_shared.log_argument
@_shared.json_option
@_shared.fail_on_option
@_shared.analysis_options
@click.pass_context
def check(
    ctx: click.Context,
    logs: tuple[str, ...],
    as_json: bool,
    fail_on: str | None,
    **choices: Unpack[_shared.Choices],
) -> None:
    """Say why a server was slow, and which log lines show it.

    LOG is a file, plain or compressed, or `-` for standard input. Several are analysed
    together: the parts of a rotated log, the ranks of one server, or several servers.
    """
    found = _shared.analyze(ctx, logs, drawn=as_json, **choices)
    if as_json:
        from loganalyze.report import to_json

        _outputs.to_stdout(to_json.dumps(found))
    else:
        from loganalyze.report import to_text

        color, width = _shared.use_color(), _shared.width()
        _outputs.to_stdout(to_text.render(found, color=color, width=width))
    ctx.exit(_shared.exit_code(found, fail_on))
