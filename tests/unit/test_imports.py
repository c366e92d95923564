"""What is imported where; ``tests/process/test_footprint.py`` looks at what processes load."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "orchestrator"
HEAVY = {"torch", "stable_baselines3", "gymnasium", "mujoco"}
"""Imported by the worker only."""


def test_the_top_of_the_package_is_its_entry_points() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 6


def test_only_the_worker_imports_training_libraries_not_even_late() -> None:
    for path in PACKAGE.rglob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
                names.add(str(node.module).split(".")[0])
        folders = path.relative_to(PACKAGE).parts[:-1]
        is_in_worker = folders[:1] == ("worker",) or folders[0::2][:2] == ("features", "worker")
        assert is_in_worker or not names & HEAVY, path
        if path.is_relative_to(PACKAGE / "core"):
            assert names <= {"orchestrator", *sys.stdlib_module_names}, path


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
    for path in Path(__file__).parent.glob("*.py"):
        modules = imported_by(path)
        assert not {module.split(".")[0] for module in modules} & HEAVY, path
        assert not {module for module in modules if module.startswith("orchestrator.worker")}, path
