"""`loganalyze explain`: what the rules check and why, and what the server's flags do."""

from __future__ import annotations

import json

import click

from loganalyze.cli import _outputs, _shared


@click.command(
    epilog=_shared.examples(
        "loganalyze explain",
        "loganalyze explain KV001",
        "loganalyze explain --flag mem-fraction-static",
        "loganalyze explain KV001 --json | jq .limits",
    )
)
@click.argument("code", required=False, shell_complete=_shared.complete_code)
@click.option(
    "--flag",
    metavar="NAME",
    shell_complete=_shared.complete_flag,
    help="Say what a flag of the server does, and in which releases; `list` names them all.",
)
@_shared.json_option
def explain(code: str | None, flag: str | None, as_json: bool) -> None:
    """Say what a rule checks and why, with its limits. Without CODE, list all rules."""
    from loganalyze.cli import _texts

    if code and flag:
        raise click.UsageError("Give a rule or --flag, not both.")
    if flag:
        facts, text = _texts.flags() if flag == "list" else _texts.flag(flag)
    else:
        facts, text = _texts.rule(code) if code else _texts.rules()
    _outputs.to_stdout(json.dumps(facts, indent=2) if as_json else text)
