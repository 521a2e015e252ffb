"""Documents against the code: what they list exists, and what they show is what is printed."""

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

from loganalyze import pipeline, rules
from loganalyze.cli import main
from loganalyze.report import to_json

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(main.commands)


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(line):
    """Parse a command line up to the point where the command would run."""
    words = shlex.split(line)
    assert words[0] == "loganalyze", line
    main.commands[words[1]].make_context(words[1], words[2:])


def called(text):
    """Return the `loganalyze ...` command lines in a text, out of their pipelines."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.removeprefix("$ ").split("  #")[0].split(" | "):
            if part.strip().startswith("loganalyze "):
                found.append(part.strip())
    return found


def test_the_generated_parts_are_up_to_date(generate):
    assert generate.generated(README) == README, "run `make docs`"


def test_the_rules_table_has_every_rule_once():
    table = README.partition("<!-- rules:start -->")[2].partition("<!-- rules:end -->")[0]
    codes = re.findall(r"^\| ([A-Z]{2,3}\d{3}) ", table, re.MULTILINE)
    assert codes == sorted(rules.all_rules())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples_that_parse(name):
    command = main.commands[name]
    assert command.help
    lines = called(command.epilog or "")
    assert len(lines) >= 2
    for line in lines:
        assert f" {name}" in line
        parse(line)


def test_the_examples_of_the_program_parse():
    for line in called(main.epilog):
        parse(line)


def test_examples_are_printed_one_to_a_line():
    help_text = main.commands["check"].get_help(click.Context(main.commands["check"]))
    assert "\n    loganalyze check server.log\n" in help_text


@pytest.mark.parametrize("document", ["README.md", "sample_logs/README.md", "reports/README.md"])
def test_documents_call_only_what_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    lines = [*called(text), *called("\n".join(re.findall(r"`(loganalyze [^`\n]*)`", text)))]
    for line in lines:
        words = shlex.split(line)
        assert words[1] in COMMANDS or words[1].startswith("-"), line
    if document == "README.md":
        assert len(lines) > 5


def test_the_readme_names_every_command_and_status():
    for name in COMMANDS:
        assert f"loganalyze {name}" in README
    for status in (0, 1, 2, 3, 130):
        assert re.search(rf"^\| {status} \|", README, re.MULTILINE)


def test_the_readme_names_every_field_of_the_json():
    report = pipeline.analyze(str(ROOT / "sample_logs" / "ticket_excerpt.log"))
    fields = README.partition("### The report as JSON")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w\[\].]+)`", fields))
    found = to_json.to_dict(report)
    assert found.keys() <= named
    (finding,) = found["findings"]
    for part in ("episodes", "evidence", "actions"):
        assert finding[part][0].keys() <= named


def test_files_that_the_documents_name_exist():
    for document in ("README.md", "sample_logs/README.md", "reports/README.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document}: {target}"


def test_make_targets_that_the_readme_names_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {t for words in re.findall(r"`?make ((?:[a-z]+ ?)+)`", README) for t in words.split()}
    assert {"report", "test"} <= targets
    assert named <= targets
