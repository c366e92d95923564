"""What is imported where; ``tests/process/test_footprint.py`` looks at what processes load."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "orchestrator"
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
