#!/usr/bin/env python3
"""Write the generated parts of README.md: `make docs`.

What stands between `<!-- rules:start -->` and `<!-- rules:end -->` comes from the code, and
what stands between `<!-- run: COMMAND -->` and `<!-- end -->` is what that command prints. So
no list is kept by hand and no output shown that is not real; a test compares them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402
from click.testing import CliRunner  # noqa: E402

from loganalyze import rules  # noqa: E402
from loganalyze.cli import main  # noqa: E402

README = ROOT / "README.md"


def rules_table() -> str:
    """Return one row per rule: code, name, severity at worst, what it says."""
    rows = ["| code | name | at worst | what it finds |", "|---|---|---|---|"]
    for _, rule in sorted(rules.all_rules().items()):
        rows.append(f"| {rule.code} | `{rule.name}` | {rule.severity} | {rule.summary} |")
    return "\n".join(rows)


def commands_table() -> str:
    """Return one row per command: how it is called, and its first sentence."""
    rows = ["| command | what it does |", "|---|---|"]
    for name in main.list_commands(click.Context(main)):
        command = main.commands[name]
        usage = " ".join(
            ["loganalyze", name, *command.collect_usage_pieces(click.Context(command))]
        )
        first = (command.help or "").split("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{usage.replace('|', chr(92) + '|')}` | {first} |")
    return "\n".join(rows)


PARTS = {"rules": rules_table, "commands": commands_table}


def output_of(command: str) -> str:
    """Return a console block: a command as typed and what it prints, run in this folder.

    Args:
        command: `loganalyze ...`, with at most one `| head -N` or `| tail -N` behind it.
    """
    called, _, cut = command.partition(" | ")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        result = CliRunner().invoke(main, shlex.split(called)[1:])
    finally:
        os.chdir(before)
    if result.exit_code not in (0, 1):
        raise SystemExit(f"{command}: exit status {result.exit_code}\n{result.stderr}")
    printed = result.stdout.rstrip().splitlines()
    if cut:
        which, _, lines = cut.partition(" -")
        printed = printed[: int(lines)] if which == "head" else printed[-int(lines) :]
    return "\n".join(["```console", f"$ {command}", *printed, "```"])


def generated(text: str) -> str:
    """Return the README's text with every generated part made anew."""
    for name, make in PARTS.items():
        between = re.compile(rf"(<!-- {name}:start -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text, count = between.subn(lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text)
        assert count == 1, f"README.md needs one pair of markers for {name}"
    return re.sub(
        r"(<!-- run: (.*?) -->\n).*?(<!-- end -->)",
        lambda m: f"{m[1]}{output_of(m[2])}\n{m[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    README.write_text(generated(README.read_text(encoding="utf-8")), encoding="utf-8")
