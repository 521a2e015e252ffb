"""The shape of the code: who may import whom, and what importing the library loads."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "loganalyze"

#: From the bottom up: a module imports only what stands before it here, or its own package.
LAYERS = [
    "errors",
    "docstrings",
    "schema",
    "model",
    "lengths",
    "releases",
    "streams",
    "archives",
    "programs",
    "sources",
    "guesses",
    "parts",
    "tails",
    "mend",
    "entries",
    "stamps",
    "formats",
    "tables",
    "prefixes",
    "records",
    "lines",
    "strangers",
    "frames",
    "search",
    "parse",
    "server_args",
    "defaults",
    "redact",
    "config",
    "derive",
    "duplicates",
    "filters",
    "servers",
    "fatal",
    "sessions",
    "timeline",
    "mixed",
    "series",
    "events",
    "capacity",
    "thin",
    "store",
    "reading",
    "export",
    "signals",
    "episodes",
    "rules",
    "plan",
    "pipeline",
    "compare",
    "follow",
    "report",
    "api",
    "scan",
    "cli",
    "__main__",
]

#: Which third-party packages live under which part only.
HOMES = {"click": {"cli"}, "plotly": {"report"}, "jinja2": {"report"}}

MODULES = [m for m in sorted(PACKAGE.rglob("*.py")) if m != PACKAGE / "__init__.py"]


def layer(module):
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(module, *, whole=True):
    """Return the full names that a file imports: wherever in its code, or as it loads only."""
    names = set()
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if whole else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def by_name(module):
    return str(module.relative_to(PACKAGE))


@pytest.mark.parametrize("module", MODULES, ids=by_name)
def test_imports_point_upwards(module):
    own = layer(module)
    assert own in LAYERS, f"give {own} a place in LAYERS"
    allowed = {*LAYERS[: LAYERS.index(own) + 1], "__version__"}
    used = {n.split(".")[1] for n in imported(module) if n.startswith("loganalyze.")}
    assert used <= allowed, f"{own} imports from above: {sorted(used - allowed)}"


def test_no_module_imports_itself_in_a_circle():
    """Of what is imported as a module loads; what a function imports waits until it is called."""
    modules = {f"loganalyze.{by_name(m)[:-3]}".replace("/", "."): m for m in MODULES}
    needs = {}
    for name, module in modules.items():
        used = imported(module, whole=False)
        needs[name] = {u if u in modules else u.rpartition(".")[0] for u in used} & set(modules)
    assert len(list(graphlib.TopologicalSorter(needs).static_order())) == len(modules)


@pytest.mark.parametrize("module", MODULES, ids=by_name)
def test_a_toolkit_is_imported_only_where_it_belongs(module):
    packages = {name.split(".")[0] for name in imported(module)}
    strays = {p for p, homes in HOMES.items() if p in packages and layer(module) not in homes}
    assert not strays


def loaded_by(statement):
    """Return the top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split("\n")[-2].split())


@pytest.mark.parametrize("statement", ["import loganalyze", "import loganalyze.pipeline"])
def test_the_library_loads_no_toolkit(statement):
    assert not loaded_by(statement) & HOMES.keys()


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"]])
def test_help_loads_nothing_but_click(arguments):
    heavy = {"polars", "plotly", "jinja2", "stringzilla", "isal", "numpy"}
    statement = (
        f"from loganalyze.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass"
    )
    loaded = loaded_by(statement)
    assert "click" in loaded
    assert not loaded & heavy
