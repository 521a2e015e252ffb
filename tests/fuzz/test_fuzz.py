"""The fuzzer's targets hold on its corpus, and on what a short guided run makes of it.

The long runs are made by hand: `python tests/fuzz/fuzz.py TARGET`.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import corpus
import pytest
import targets

HERE = Path(__file__).parent
SEEDS = [
    pytest.param(path.parent.name, path, id=f"{path.parent.name}-{path.name}")
    for path in sorted((HERE / "corpus").rglob("*"))
    if path.is_file()
]
#: Executions of a short run: with the imports, a few seconds each.
RUNS = {"sources": 400, "parser": 120, "server_args": 400}


@pytest.fixture(autouse=True)
def small_bombs(monkeypatch):
    monkeypatch.setattr(targets.streams, "MAX_RATIO_FROM", targets.BOMB)


@pytest.mark.parametrize(("target", "path"), SEEDS)
def test_every_promise_holds_on_the_corpus(target, path):
    targets.TARGETS[target](path.read_bytes())


def test_every_target_has_its_corpus():
    made = corpus.seeds()
    assert made.keys() == targets.TARGETS.keys()
    for target, files in made.items():
        kept = {path.name for path in (HERE / "corpus" / target).iterdir()}
        assert {name for name in kept if not name.startswith("find-")} == files.keys()


@pytest.mark.parametrize(
    ("target", "data", "broken"),
    [
        ("sources", b"\0\0\0\0a line\n", "lines were miscounted"),
        ("parser", b"\0\0\0\0a line\n", "the size of blocks changes"),
        ("server_args", b"ServerArgs(a=1)", "what was printed is not read back"),
    ],
)
def test_a_broken_promise_is_found(target, data, broken, monkeypatch):
    """The oracle can fail: with one fault put into each part, it does."""
    if target == "sources":
        monkeypatch.setattr(targets.sources, "_count_lines", lambda data: data.count(b"\n") + 1)
    elif target == "parser":
        monkeypatch.setattr(targets, "_parsed", lambda path, size, which: ({}, (None, size)))
    else:
        monkeypatch.setattr(targets.server_args, "parse", lambda text: {"a": text})
    with pytest.raises(AssertionError, match=broken):
        targets.TARGETS[target](data)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python"
)
@pytest.mark.parametrize("target", RUNS)
def test_a_short_guided_run_finds_nothing(target, tmp_path):
    command = [sys.executable, HERE / "fuzz.py", target, f"-runs={RUNS[target]}", "-seed=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS[target]} runs" in done.stderr
