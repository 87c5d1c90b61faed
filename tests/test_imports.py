"""Who may import whom: data flows one way, and the array modules need numpy, torch and safetensors alone."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "rootbeam"

# A module imports only from its own row and the rows above it. A name is a folder or a file of the package.
ROWS = (
    ("core",),
    ("metrics", "intervals"),
    ("data",),
    ("learn",),
    ("index",),
    ("search",),
    ("ladder",),
    ("task", "stages"),
    ("rungs",),
    ("train",),
    ("evaluate",),
    ("model",),
    ("prepare",),
    ("recommender",),
    ("compare", "tune"),
    ("demonstrate",),
    ("cli", "doctor"),
)
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}

# These need arrays only, so that a training run can be shipped to any machine that has torch.
ARRAY_MODULES = (
    "core.types",
    "core.tree",
    "metrics",
    "intervals",
    "data.history",
    "learn",
    "index",
    "search",
    "ladder",
    "task",
    "stages",
    "rungs",
    "train",
)
ARRAY_PACKAGES = {"numpy", "torch", "safetensors"}
BLOCKED = {
    *("polars", "msgspec", "typer", "rich", "altair", "vl_convert", "optuna", "implicit", "scipy"),
    *("pandas", "pyarrow", "sklearn", "click", "threadpoolctl", "pytrec_eval", "hypothesis", "pytest"),
}


def module_name(path: Path) -> str:
    """`data.history` of src/rootbeam/data/history.py; the name within the package."""
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCES.rglob("*.py"))}


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


def is_type_checking(node: ast.AST) -> bool:
    """Whether the node is `if TYPE_CHECKING:`, whose body never runs."""
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return name == "TYPE_CHECKING"


def running_nodes(tree: ast.AST, *, called: bool) -> Iterator[ast.AST]:
    """All nodes that can run: not those behind TYPE_CHECKING, and bodies of functions only if `called`."""
    for child in ast.iter_child_nodes(tree):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for otherwise in child.orelse:
                yield otherwise
                yield from running_nodes(otherwise, called=called)
            continue
        yield child
        if called or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from running_nodes(child, called=called)


def imported(source: str, module: str, is_package: bool = False, *, called: bool = True) -> set[str]:
    """Full dotted names that the source imports; `from a import b` gives both `a` and `a.b`."""
    package = ["rootbeam", *module.split(".")] if module else ["rootbeam"]
    if not is_package:
        package = package[:-1]
    names: set[str] = set()
    for node in running_nodes(ast.parse(source), called=called):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def imports_of(module: str, *, called: bool = True) -> set[str]:
    path = MODULES[module]
    return imported(path.read_text(), module, path.name == "__init__.py", called=called)


def top_names(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def rows_reached(names: set[str]) -> set[str]:
    """`data` of rootbeam.data.history: the rows of the package that the names lead to."""
    return {name.split(".")[1] for name in names if name.startswith("rootbeam.")} & RANK.keys()


# --- the parser itself ---


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.nn as nn", {"torch.nn"}),
        ("from polars import DataFrame", {"polars", "polars.DataFrame"}),
        ("def f():\n    import polars", {"polars"}),
        (
            "class A:\n    async def f(self):\n        from . import ids",
            {"rootbeam.data", "rootbeam.data.ids"},
        ),
        ("from ..core import types", {"rootbeam.core", "rootbeam.core.types"}),
        ("from .split import split", {"rootbeam.data.split", "rootbeam.data.split.split"}),
        ("try:\n    import optuna\nexcept ImportError:\n    import rich", {"optuna", "rich"}),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import numpy", {"numpy"}),
        ("import typing\nif typing.TYPE_CHECKING:\n    import torch", {"typing"}),
        ("def f():\n    if TYPE_CHECKING:\n        import torch", set()),
        ("text = 'import torch'", set()),
    ],
)
def test_the_parser_finds_every_import_that_can_run(source: str, expected: set[str]) -> None:
    assert imported(source, "data.history") == expected


def test_the_parser_can_leave_out_what_runs_only_when_called() -> None:
    source = (
        "import numpy\nif numpy:\n    import torch\ndef f():\n    import polars\nclass A:\n    import rich"
    )
    assert imported(source, "data.arrays", called=False) == {"numpy", "torch", "rich"}


# --- the rules ---


def test_every_module_has_a_row() -> None:
    strangers = {module for module in MODULES if module and module.partition(".")[0] not in RANK}
    assert strangers - {"__main__"} == set(), (
        "give the new module a row in ROWS, and a line in ARCHITECTURE.md"
    )


@pytest.mark.parametrize("module", [module for module in MODULES if module.partition(".")[0] in RANK])
def test_a_module_imports_from_its_row_or_above(module: str) -> None:
    own = RANK[module.partition(".")[0]]
    below = {name for name in rows_reached(imports_of(module)) if RANK[name] > own}
    assert below == set(), f"{module} imports from rows below its own"


@pytest.mark.parametrize("module", [module for module in MODULES if within(module, ARRAY_MODULES)])
def test_array_modules_import_array_packages_alone(module: str) -> None:
    allowed = ARRAY_PACKAGES | sys.stdlib_module_names | {"rootbeam"}
    assert top_names(imports_of(module)) - allowed == set()


def test_package_inits_import_nothing() -> None:
    inits = {m: imports_of(m, called=False) for m, path in MODULES.items() if path.name == "__init__.py"}
    light = set(sys.stdlib_module_names)
    assert {m: top_names(names) - light for m, names in inits.items()} == {m: set() for m in inits}


def test_nothing_outside_the_declared_dependencies_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    declared = {line.split(">=")[0].partition("[")[0].replace("-", "_") for line in lines}
    known = declared | sys.stdlib_module_names | {"rootbeam", "vl_convert", "pytrec_eval"}
    found = {module: top_names(imports_of(module)) - known for module in MODULES}
    assert {module: names for module, names in found.items() if names} == {}


# --- the rules at work, in an interpreter where the other packages are not to be had ---

BLOCKER = f"""
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {sorted(BLOCKED)!r}:
            raise ImportError(name + ' is blocked by this test')

sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def import_with_others_blocked(modules: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKER, *modules], capture_output=True, text=True)


def test_the_blocker_blocks() -> None:
    result = import_with_others_blocked(["polars"])
    assert result.returncode == 1
    assert "polars is blocked by this test" in result.stderr


def test_array_modules_import_with_the_other_packages_blocked() -> None:
    names = [m for m in MODULES if within(m, ARRAY_MODULES)]
    result = import_with_others_blocked(["rootbeam", *(f"rootbeam.{name}" for name in names)])
    assert result.returncode == 0, result.stderr
