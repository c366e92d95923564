"""What is imported where; ``tests/process/test_footprint.py`` looks at what processes load."""

from __future__ import annotations

import ast
import functools
import re
import symtable
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "orchestrator"
HELPERS = (REPOSITORY / "tests/helpers", *REPOSITORY.glob("tests/features/*/helpers"))
OURS = re.compile(r"(orchestrator|benchmarks)(\.|$)|\w+_helpers$")
"""Modules that are of the repository, or should be."""
HEAVY = {"torch", "stable_baselines3", "gymnasium", "mujoco"}
"""Imported by the worker only."""


def test_the_top_of_the_package_is_its_entry_points() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 6


def packages(nodes: Iterable[ast.AST]) -> set[str]:
    """The packages that these nodes import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split(".")[0])
    return names


def test_importing_core_imports_nothing_but_the_standard_library() -> None:
    for path in (PACKAGE / "core").rglob("*.py"):
        imported = packages(ast.parse(path.read_text(encoding="utf-8")).body)
        assert imported <= {"orchestrator", *sys.stdlib_module_names}, path


@functools.cache
def imported_by(path: Path) -> frozenset[str]:
    """Modules that a file imports, also late, itself or through the helpers of tests."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    helpers = (REPOSITORY / f"tests/helpers/{module}.py" for module in modules)
    return frozenset(modules.union(*(imported_by(helper) for helper in helpers if helper.exists())))


def test_unit_tests_import_no_training_library() -> None:
    for path in Path(__file__).parent.rglob("*.py"):
        modules = imported_by(path)
        assert not {module.split(".")[0] for module in modules} & HEAVY, path
        assert not {module for module in modules if module.startswith("orchestrator.worker")}, path


@functools.cache
def names_in(module: str) -> frozenset[str] | None:
    """What can be imported from a module of the repository; None where it has no such module."""
    for root in (REPOSITORY, *HELPERS):
        path = root.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            table = symtable.symtable(file.read_text(encoding="utf-8"), str(file), "exec")
            own = {
                symbol.get_name()
                for symbol in table.get_symbols()
                if symbol.is_assigned() or symbol.is_imported()
            }
            below = {one.stem for one in path.iterdir()} if path.is_dir() else set()
            return frozenset(own | below)
    return None


def statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These and all within them, without their expressions, which are most of a tree."""
    for node in nodes:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            within = getattr(node, name, ())
            if isinstance(within, list):
                yield from statements(within)


def imported_names(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of what a file imports by name, also late, or replaces by
    ``setattr("module.name", …)``; the name is empty where the module itself is imported."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree) if ".setattr(" in source else statements(tree.body):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name, ""
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    yield node.lineno, module, "" if alias.name == "*" else alias.name
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(text)), *_]
            ):
                module, _, name = text.rpartition(".")
                while module and names_in(module) is None:  # "module.name.attribute"
                    module, _, name = module.rpartition(".")
                yield node.lineno, module, name


def missing_names(path: Path) -> list[str]:
    """What a file imports of the program, of benchmarks or of helpers of tests, and is not there."""
    missing = []
    for line, module, name in imported_names(path):
        names = names_in(module)
        if names is None and OURS.match(module):
            missing.append(f"{path}:{line}: there is no {module}")
        elif names is not None and name and name not in names:
            missing.append(f"{path}:{line}: {module} has no {name}")
    return missing


@pytest.mark.nightly
def test_what_tests_and_benchmarks_import_is_there() -> None:
    """Tests are read by no type checker, and those of the full tier are rarely run."""
    for folder in ("tests", "benchmarks", "docs", "examples"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            assert missing_names(path) == []
