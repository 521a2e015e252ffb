"""What is handed out: a wheel and a source distribution that are whole and that work.

The environment is fresh but for its dependencies: it gets links to what the wheel declares,
and to nothing else that is installed here, so that it needs no network.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import loganalyze

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "loganalyze"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CASE = ROOT / "sample_logs" / "founding_case.log"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of what a clean clone holds, as far as packaging may look at it."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("loganalyze", "tests/fuzz"):
        hidden = shutil.ignore_patterns("__pycache__", "corpus")
        shutil.copytree(ROOT / name, copy / name, ignore=hidden)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copy(Path(__file__), copy / "tests")
    return copy


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    """Return the source distribution, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """Return the folder of commands of an environment that holds the wheel and its needs."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    for dist in needed(PROJECT["dependencies"]):
        for top in {Path(str(file)).parts[0] for file in dist.files or []} - {".."}:
            if not (site / top).exists() and top != "__pycache__":
                (site / top).symlink_to(dist.locate_file(top))
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", built[1]], check=True, capture_output=True)
    return home / "bin"


def needed(requirements):
    """Return the distributions that requirements name, and those that these need."""
    found, left = {}, list(requirements)
    while left:
        one = Requirement(left.pop())
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found[one.name] = importlib.metadata.distribution(one.name)
            left += found[one.name].requires or []
    return found.values()


def run(command, *arguments, **options):
    return subprocess.run(
        [command, *arguments],
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def files_of(folder):
    """Return the files of the package, as they stand in the repository."""
    return {
        str(path.relative_to(folder.parent))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == files_of(PACKAGE)
    assert {"loganalyze/py.typed", "loganalyze/rules/flags.toml"} <= packed
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_source_distribution_holds_what_builds_it_and_no_tests(built):
    with tarfile.open(built[0]) as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    assert files_of(PACKAGE) <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert not {name for name in names if name.startswith("tests")}


def test_the_main_job_is_done_in_a_fresh_environment(environment, tmp_path):
    page = tmp_path / "page.html"
    done = run(environment / "loganalyze", "report", CASE, "-o", page, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "SATURATED KV001" in done.stdout
    assert "mem-fraction-static" in page.read_text(encoding="utf-8")


def test_the_library_works_in_a_fresh_environment(environment, tmp_path):
    code = f"import loganalyze; print(loganalyze.analyze({str(CASE)!r}).verdict.primary)"
    done = run(environment / "python", "-c", code, cwd=tmp_path)
    assert done.stdout == "KV001\n", done.stderr


def test_the_version_is_the_same_everywhere(environment, built):
    version = loganalyze.__version__
    assert (
        run(environment / "loganalyze", "--version").stdout == f"loganalyze, version {version}\n"
    )
    assert f"loganalyze-{version}" in built[0].name
    assert f"loganalyze-{version}-" in built[1].name
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == version


def test_every_dependency_is_bounded_with_a_reason():
    """Each stands below a comment, and has a lowest and an excluded highest version."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    everything = [
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    ]
    for line in everything:
        one = Requirement(line)
        if one.name == "loganalyze":
            continue
        assert {s.operator for s in one.specifier} == {">=", "<"}, line
        if line in PROJECT["dependencies"]:
            before = text.partition(f'    "{line}"')[0].splitlines()[-1]
            assert before.lstrip().startswith("#"), f"{line}: say why"


def locked():
    """Return what requirements-dev.txt holds: (requirement, number of hashes)."""
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return [
        (
            Requirement(line.partition("--hash")[0]),
            len(re.findall(r"--hash=sha256:[0-9a-f]{64}", line)),
        )
        for line in lines
    ]


def test_the_lock_holds_what_the_project_asks_for():
    pins = locked()
    assert all(n_hashes for _, n_hashes in pins)
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    for one in map(Requirement, asked):
        if one.name == "loganalyze":  # an extra of its own, whose requirements are locked
            continue
        versions = [
            spec.version
            for pin, _ in pins
            if pin.name.replace("-", ".") == one.name.replace("-", ".")
            for spec in pin.specifier
            if spec.operator == "=="
        ]
        assert versions, f"{one.name} is not locked: run `make lock`"
        assert all(one.specifier.contains(v) for v in versions), f"{one}: run `make lock`"


def test_the_lock_names_no_place():
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash)", text, re.MULTILINE)


def instructions():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def test_the_image_is_small_pinned_and_not_run_by_root():
    stages = [words.split()[0] for name, words in instructions() if name == "FROM"]
    assert len(stages) == 2  # what builds it is not in it
    assert len(set(stages)) == 1
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", stages[0])
    users = [words for name, words in instructions() if name == "USER"]
    assert users
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])
    assert ["ENTRYPOINT", '["loganalyze"]'] in instructions()
    assert instructions()[-1] == ["CMD", '["--help"]']


def test_the_image_is_built_from_what_a_clone_holds(tree):
    copied = [
        word
        for name, words in instructions()
        if name == "COPY" and not words.startswith("--from")
        for word in words.split()[:-1]
    ]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    for name in copied:
        assert (tree / name).exists()
        assert f"!{name}" in ignored
