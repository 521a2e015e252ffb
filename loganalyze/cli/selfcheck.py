"""`loganalyze selfcheck`: whether the rules find what was planted for them."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from loganalyze.cli import _outputs, _shared

#: Back to the line's start, and clear it.
_CLEAR = "\r\x1b[K"


@click.command(
    epilog=_shared.examples(
        "loganalyze selfcheck",
        "loganalyze selfcheck --json | jq '.[] | select(.passed | not)'",
    )
)
@_shared.json_option
@click.pass_context
def selfcheck(ctx: click.Context, as_json: bool) -> None:
    """Run every rule on a small log that shows what it is made for.

    So that "nothing found" can be believed. The exit status is 1 if a rule misses its log.
    """
    from loganalyze import rules
    from loganalyze.rules import selfcheck as library

    terminal = _shared.is_terminal(sys.stderr)

    def tell(planted: str) -> None:
        click.echo(f"{_CLEAR}checking: {planted}", nl=False, err=True)

    found = library.run(tell if terminal else None)
    click.echo(_CLEAR if terminal else "", nl=False, err=True)
    total, passed = len(rules.all_rules()), sum(one.passed for one in found)
    lines = [
        f"{'found ' if one.passed else 'MISSED'}  {one.code:6}  {one.planted}"
        + ("" if one.passed else f": {one.answer}")
        for one in found
    ]
    text = "\n".join([*lines, f"{passed} of {total} rules find what was planted for them."])
    facts = [dataclasses.asdict(one) for one in found]
    _outputs.to_stdout(json.dumps(facts, indent=2) if as_json else text)
    ctx.exit(0 if passed == total else _shared.FAIL_ON_REACHED)
