"""Where Python runs with less than usual: optimised, warnings as errors, no locale, no home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loganalyze import docstrings, rules
from loganalyze.rules import registry

ROOT = Path(__file__).parents[1]
CASE = "sample_logs/founding_case.log"

BARE = {"PATH": os.environ["PATH"]}
PLACES = {
    "optimised": (["-OO"], BARE),
    "warnings are errors": ([], {**BARE, "PYTHONWARNINGS": "error"}),
    "no locale": ([], {**BARE, "LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}),
    "no home": ([], {**BARE, "HOME": "/nonexistent"}),
    "nothing at all": ([], {}),
}


def python(options, environment, *arguments):
    """Run loganalyze without a terminal, from a closed standard input."""
    return subprocess.run(
        [sys.executable, *options, "-m", "loganalyze", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize("place", PLACES)
def test_the_main_job_is_done(place, tmp_path):
    options, environment = PLACES[place]
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    done = python(options, environment, "report", CASE, "-o", str(page), "--markdown", str(text))
    assert done.stderr.decode(errors="replace").splitlines() == [
        f"wrote {page}",
        f"wrote {text}",
    ]
    assert done.returncode == 0
    assert b"SATURATED" in done.stdout
    assert "Saturated" in text.read_text(encoding="utf-8")
    assert "mem-fraction-static" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["explain", "KV001"]])
def test_texts_are_the_same_without_docstrings(arguments):
    usual, optimised = (python(options, BARE, *arguments) for options in ([], ["-OO"]))
    assert optimised.stdout == usual.stdout
    assert usual.stdout
    assert optimised.returncode == 0


def test_without_docstrings_and_source_rules_still_judge(monkeypatch):
    """As in an installation of compiled files alone."""

    def judge(case, limits):
        raise NotImplementedError

    monkeypatch.setattr(docstrings.inspect, "getsource", lambda function: _no_source())
    assert docstrings.read(judge) is None
    monkeypatch.setattr(registry, "sys", _Optimised)
    summary, sections = registry._documentation(judge)
    assert "python -OO dropped the text" in summary
    assert tuple(sections) == registry.SECTIONS


def test_a_rule_without_its_texts_is_refused():
    def judge(case, limits):
        raise NotImplementedError

    with pytest.raises(ValueError, match="judge: the docstring needs the sections"):
        rules.rule("XYZ001", "no-texts", severity=registry.Severity.INFO)(judge)


class _Optimised:
    class flags:
        optimize = 2


def _no_source():
    raise OSError("could not get source code")
