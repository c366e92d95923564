"""What is imported where: the contracts of import-linter, and what a process loads at run time."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "orchestrator"
HEAVY = {"torch", "stable_baselines3", "gymnasium", "mujoco"}
"""Imported by the worker only."""


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(["lint-imports"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_two_modules_have_the_same_name() -> None:
    counts = Counter(path.stem for path in PACKAGE.rglob("*.py"))
    assert {stem for stem, count in counts.items() if count > 1} <= {"__init__", "__main__", "base"}


def test_no_two_classes_have_the_same_name() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    counts = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert not {name for name, count in counts.items() if count > 1}


def test_the_top_of_the_package_is_its_entry_points() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 6


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_worker_imports_training_libraries_not_even_late(path: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names.add(str(node.module).split(".")[0])
    assert path.is_relative_to(PACKAGE / "worker") or not names & HEAVY
    if path.is_relative_to(PACKAGE / "core"):
        assert names <= {"orchestrator", *sys.stdlib_module_names}


def loaded_by(*arguments: str) -> set[str]:
    """Top-level packages, and modules of this program, that a fresh interpreter loads."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "site" in names
    return {name if name.startswith("orchestrator") else name.split(".")[0] for name in names}


def test_help_loads_nothing_that_it_does_not_need() -> None:
    loaded = loaded_by("-m", "orchestrator", "--help")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "psutil", "sqlite3", "matplotlib"}
    assert not {name for name in loaded if name.startswith(("orchestrator.jobfile", "orchestrator.worker"))}


@pytest.mark.parametrize(
    "module", ["supervisor.supervisor", "experiment.session", "experiment.control", "executors.local", "api"]
)
def test_the_supervisor_loads_nothing_heavy(module: str) -> None:
    loaded = loaded_by("-c", f"import orchestrator.{module}")
    assert not loaded & {*HEAVY, "numpy", "psutil", "matplotlib", "multiprocessing", "asyncio"}
    assert "orchestrator.executors.fake" not in loaded


@pytest.mark.parametrize("module", ["supervisor.supervisor", "experiment.control", "executors.local", "ledger"])
def test_only_who_reads_job_files_loads_pydantic(module: str) -> None:
    assert "pydantic" not in loaded_by("-c", f"import orchestrator.{module}")


def test_a_worker_is_tied_to_its_supervisor_before_anything_heavy_is_loaded() -> None:
    loaded = loaded_by("-c", "import orchestrator.worker.__main__")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "rich", "typer"}
