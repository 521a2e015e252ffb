"""Runs commands as a user does, and looks at what they print and leave behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from loganalyze.cli import main

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_logs"
EXCERPT = SAMPLES / "ticket_excerpt.log"
FOUNDING = SAMPLES / "founding_case.log"

#: What a terminal may obey: C0 but newline and tab, DEL, C1, and what reorders text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def run(*args, stdin=None):
    """Run a command in this process."""
    return CliRunner().invoke(main, [os.fspath(a) for a in args], input=stdin)


def process(*args, before="", **options):
    """Run a command in a process of its own, after a line of Python, and wait for its end."""
    code = f"{before}\nfrom loganalyze.cli import main\nmain({[os.fspath(a) for a in args]!r})"
    environment = options.pop("env", os.environ) | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False, **options
    )


def tree(folder):
    """Return every file below a folder with its contents."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_clean(text):
    """Check that text is valid UTF-8 and holds nothing that a terminal would obey."""
    text = text.decode() if isinstance(text, bytes) else text
    text.encode()
    found = CONTROL.search(text)
    assert not found, text[max(0, found.start() - 60) : found.end() + 20]


def assert_refused(result):
    """Check that a command ended with one clear line, a hint at most, and status 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    first, *hints = result.stderr.splitlines()
    assert first.startswith("loganalyze: ")
    assert "internal error" not in first
    assert all(line.startswith("hint: ") for line in hints)
    assert len(hints) <= 1
    assert_clean(result.stderr)


def strict_json(text):
    """Read JSON as the strictest reader does: no NaN, no half of a character."""

    def refuse(constant):
        raise AssertionError(constant)

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value
