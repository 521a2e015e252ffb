"""`loganalyze formats`: which lines are understood, and which of them a log has."""

from __future__ import annotations

import json

import click

from loganalyze.cli import _outputs, _shared


@click.command(
    epilog=_shared.examples(
        "loganalyze formats",
        "loganalyze formats server.log",
        "kubectl logs sglang-0 | loganalyze formats - --json",
    )
)
@click.argument("log", required=False, type=click.Path(allow_dash=True))
@_shared.json_option
def formats(log: str | None, as_json: bool) -> None:
    """List the line formats that are understood, or those that LOG speaks."""
    from loganalyze.cli import _texts

    facts: object
    if log is None:
        facts, text = _texts.formats()
    else:
        with _shared.progress([log]) as tick:
            facts, text = _texts.spoken(log, tick)
    _outputs.to_stdout(json.dumps(facts, indent=2) if as_json else text)
