"""Documents against the code: what they list exists, and what they show is what is printed."""

import gzip
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loganalyze import cli, formats, pipeline, rules, schema, server_args, sources, streams
from loganalyze.cli import _shared, main
from loganalyze.follow import loop
from loganalyze.report import to_json
from loganalyze.rules import flags
from loganalyze.rules.planted import Writer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(main.commands)
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for folder in (".", "docs", "reports", "sample_logs")
    for page in sorted((ROOT / folder).glob("*.md"))
}
pages = pytest.mark.parametrize("page", PAGES)
#: The two pages that a reader follows step by step.
STEPS = ("docs/add-a-format.md", "docs/add-a-rule.md")


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
                found.append(part.strip().split("`")[0])
    return found


def test_the_generated_parts_are_up_to_date(generate):
    for document in generate.DOCUMENTS:
        assert generate.generated(document, PAGES[document]) == PAGES[document], "run `make docs`"


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


@pages
def test_documents_call_only_what_exists(page):
    """Up to the point where the command would run: commands, options, kinds of values."""
    text = PAGES[page]
    lines = [*called(text), *called("\n".join(re.findall(r"`(loganalyze [^`\n]*)`", text)))]
    for line in lines:
        words = shlex.split(line)
        assert words[1] in COMMANDS or words[1].startswith("-"), line
        if words[1] in COMMANDS and len(words) > 2 and not {"--help", "[OPTIONS]"} & set(words):
            parse(line.replace("CODE.limit=", "KV001.enter_usage=").replace("...", "x"))
    if page == "README.md":
        assert len(lines) > 20


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


def anchors(text):
    """Return the anchors that GitHub gives the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pages
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


@pages
def test_files_that_a_page_names_exist(page):
    for name in re.findall(
        r"`((?:loganalyze|tests|docs|sample_logs|reports)/[\w./*-]*)`", PAGES[page]
    ):
        assert list(ROOT.glob(name.rstrip("/"))) or name.startswith("reports/founding"), name


@pages
def test_options_rules_and_limits_that_a_page_names_exist(page):
    text = PAGES[page]
    own = {o for c in main.commands.values() for p in c.params for o in p.opts}
    servers = {f"--{name}" for name in flags.all_flags()}
    others = {"--help", "--version", "--log-requests", "--log-level", "--log-requests-level"}
    others |= {"--prefix", "--label", "--decode-log-interval"}  # of kubectl, srun and the server
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - own - servers - others
    if page not in ("CHANGELOG.md", "docs/cluster.md"):  # these tell of other programs, too
        assert not named
    codes = set(re.findall(r"\b[A-Z]{3}\d{3}\b|\bKV\d{3}\b", text))
    assert codes <= rules.all_rules().keys() | ({"IMG001"} if page in STEPS else set())
    for code, limit in re.findall(r"\b([A-Z]{2,3}\d{3})\.([a-z_]+)\b", text):
        assert limit in rules.all_rules()[code].limits


def test_every_option_is_explained():
    for name, command in main.commands.items():
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, f"{name} {option.name}"


def test_exit_statuses_are_those_of_the_code():
    assert (_shared.FAIL_ON_REACHED, cli.UNUSABLE, _shared.SOME_UNREADABLE) == (1, 2, 3)
    assert cli.INTERRUPTED == 130


def test_limits_that_the_security_page_states_are_those_of_the_code():
    table = PAGES["SECURITY.md"].partition("## Limits")[2]
    for limit in (
        sources.MAX_LINE,
        sources.KEEP_HEAD,
        sources.KEEP_TAIL,
        streams.MAX_RATIO,
        server_args.MAX_CHARS,
        pipeline._QUOTE_CHARS,
    ):
        assert f"{limit:,} " in table
    assert streams.MAX_RATIO_FROM == 256 << 20


def test_frames_and_kinds_that_the_readme_lists_are_those_of_the_code():
    table = README.partition("<!-- formats:start -->")[2].partition("<!-- formats:end -->")[0]
    assert set(re.findall(r"^\| (\w+) \| `", table, re.MULTILINE)) == set(schema.FRAMES)
    assert set(re.findall(r"`(\w+)`", table)) == {one.kind for one in formats.load()}


def test_make_targets_that_the_readme_names_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {t for words in re.findall(r"`?make ((?:[a-z]+ ?)+)`", README) for t in words.split()}
    assert {"report", "test"} <= targets
    assert named <= targets


# Examples that run ------------------------------------------------------------------------

#: What needs a network, a cluster, a desktop, or a folder of this machine.
ELSEWHERE = re.compile(r"s3://|--engine ray|--webhook|--on-finding|/var/log|/shared")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with every file that an example names."""
    place = tmp_path_factory.mktemp("workplace")
    writer = Writer()
    for _ in range(2):  # two lives of one server
        for k in range(45):
            writer.decode(30, 95_000 + 100 * (k % 9), 20)
        writer.start(100_000, 512, 6.0)
        writer.decode(30, 95_000, 20)
    log = "\n".join(writer.text) + "\n"
    for name in ("server", "nightly", "before", "after", "main", "branch", "rank0", "rank1"):
        (place / f"{name}.log").write_text(log)
    (place / "server.log.1").write_text(log.replace("2026-03-02", "2026-03-01"))
    older = log.replace("2026-03-02", "2026-02-28").encode()
    (place / "server.log.2.gz").write_bytes(gzip.compress(older))
    for folder in ("runs/a", "nightly", "reports"):
        (place / folder).mkdir(parents=True)
        if folder != "reports":
            (place / folder / "server.log").write_text(log)
    with tarfile.open(place / "old-logs.tar.gz", "w:gz") as archive:
        archive.add(place / "server.log.1", "server.log")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
    }
    (place / "config.json").write_text(json.dumps(config))
    scan = [sys.executable, "-m", "loganalyze", "scan", "nightly", "-o", "archive"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(scan, cwd=place, env=environment, check=True, capture_output=True)
    return place


EXAMPLES = [
    line
    for command in main.commands.values()
    for line in (command.epilog or "").splitlines()
    if "loganalyze " in line and not ELSEWHERE.search(line)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=str.strip)
def test_each_example_of_the_help_runs(workplace, monkeypatch, tmp_path, example):
    before, _, line = example.partition("loganalyze ")
    line, _, after = line.partition(" | ")
    args = shlex.split(line)
    monkeypatch.chdir(workplace)
    if args[0] == "follow":  # a file is followed for ever
        whole = loop.run
        monkeypatch.setattr(
            loop, "run", lambda *a, **k: whole(*a, **k | {"is_over": lambda: True})
        )
    stdin = (workplace / "server.log").read_text() if before.strip() else None
    if args[0] == "scan" or args[:2] == ["follow", "-"]:  # they need a process of their own
        args = [str(tmp_path / "out") if word == "archive/" else word for word in args]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "loganalyze", *args]
        pipes = {"input": stdin or "", "capture_output": True, "text": True}
        done = subprocess.run(command, env=environment, check=False, **pipes)
        status, printed, told = done.returncode, done.stdout, done.stderr
    else:
        done = CliRunner().invoke(main, [*args, *(["--force"] if "-o" in args[:3] else [])], stdin)
        status, printed, told = done.exit_code, done.stdout, done.stderr
    assert status in (0, 1), told
    if "jq" in after:
        try:
            read = json.loads(printed)
        except json.JSONDecodeError:
            read = json.loads(printed.splitlines()[0])  # one object a line
        for field in re.findall(r"^jq \.(\w+)$", after.strip()):
            assert field in read


# Steps that work as they are written ------------------------------------------------------

_APPLY = re.compile(
    r"<!-- apply: (?P<file>\S+) (?P<how>after|before|at)(?:: (?P<place>.+?)| the end) -->\n"
    r"```\w+\n(?P<text>.*?)```\n",
    re.DOTALL,
)


@pytest.mark.parametrize("page", STEPS)
def test_the_steps_of_a_page_work_as_written(page, tmp_path):
    steps = list(_APPLY.finditer(PAGES[page]))
    assert len(steps) == len(re.findall("<!-- apply:", PAGES[page])) >= 3
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "loganalyze", tmp_path / "loganalyze", ignore=skip)
    for name in ("synth.py", "test_formats.py", "rules"):
        source, target = ROOT / "tests" / name, tmp_path / "tests" / name
        target.parent.mkdir(exist_ok=True)
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, target)
    for step in steps:
        path = tmp_path / step["file"]
        text = path.read_text(encoding="utf-8")
        if step["how"] == "at":
            text += step["text"]
        else:
            assert text.count(step["place"]) == 1, step["place"]
            at = text.index(step["place"])
            at = text.index("\n", at) + 1 if step["how"] == "after" else at
            text = text[:at] + step["text"] + text[at:]
        path.write_text(text, encoding="utf-8")
    (command,) = re.findall(r"^python -m pytest -q (\S+)$", PAGES[page], re.MULTILINE)
    chosen = ["-k", "img001 or IMG001 or every_rule"] if "rules" in command else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", command, *chosen],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{tmp_path / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    lint = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml")]
    files = sorted({step["file"] for step in steps if step["file"].endswith(".py")})
    done = subprocess.run(
        [*lint, *files], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
