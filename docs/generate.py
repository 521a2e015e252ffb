#!/usr/bin/env python3
"""Write the generated parts of the documents: `make docs`.

What stands between `<!-- rules:start -->` and `<!-- rules:end -->` comes from the code, and
what stands between `<!-- run: COMMAND -->` and `<!-- end -->` is what that command prints. So
no list is kept by hand and no output shown that is not real; a test compares them.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402
from click.testing import CliRunner  # noqa: E402

from loganalyze import formats, rules  # noqa: E402
from loganalyze.cli import main  # noqa: E402

#: The documents with generated parts, and which.
DOCUMENTS = {"README.md": ("commands", "rules", "formats"), "docs/architecture.md": ("layers",)}


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


def formats_table() -> str:
    """Return one row per frame: its kinds of records, and what may stand before a line."""
    kinds: dict[str, list[str]] = {}
    for one in formats.load():
        kinds.setdefault(one.frame, []).append(f"`{one.kind}`")
    rows = ["| frame | kinds of records |", "|---|---|"]
    rows += [f"| {frame} | {', '.join(dict.fromkeys(names))} |" for frame, names in kinds.items()]
    before = ", ".join(wrapper.name for wrapper in formats.wrappers())
    return "\n".join([*rows, "", f"Before a line may stand: {before}."])


def layers_list() -> str:
    """Return the layers from the bottom up, as tests/test_architecture.py has them."""
    tree = ast.parse((ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    (layers,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    )
    return textwrap.fill(" → ".join(f"`{name}`" for name in layers), 100)


PARTS = {
    "rules": rules_table,
    "commands": commands_table,
    "formats": formats_table,
    "layers": layers_list,
}


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


def generated(document: str, text: str) -> str:
    """Return a document's text with every generated part made anew."""
    for name in DOCUMENTS[document]:
        between = re.compile(rf"(<!-- {name}:start -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text, count = between.subn(lambda m, make=PARTS[name]: f"{m[1]}{make()}\n{m[2]}", text)
        assert count == 1, f"{document} needs one pair of markers for {name}"
    return re.sub(
        r"(<!-- run: (.*?) -->\n).*?(<!-- end -->)",
        lambda m: f"{m[1]}{output_of(m[2])}\n{m[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for document in DOCUMENTS:
        path = ROOT / document
        path.write_text(generated(document, path.read_text(encoding="utf-8")), encoding="utf-8")
