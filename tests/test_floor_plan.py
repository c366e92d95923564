"""Who may import whom, read from the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "orchestrator"

FLOORS = """
errors wording
contract
job
policy waiting
cgroup gpu
machine threads claims
slots
spec
ledger
executors.base
executors.sentinel executors.process executors.fake
executors.gang
executors.local
summary
reporting
recorder running
roster leaving job_directory
launching
supervisor
rundir
provenance preflight pictures signals
mirror
cluster.address cluster.settings cluster.state
cluster.access
cluster.question
executors.ray
engine
reconcile recorded
session
checks checking
doctor
control tables
views
display check_view
statistics
bench
verify report compare cluster
api
cli
__init__
__main__
"""
"""Each module may import from the rows above its own. A package is one place; within, its modules are free."""

HEAVY = {"torch", "stable_baselines3", "gymnasium", "mujoco"}
"""They live in the worker only (and in preflight's child process)."""

FOR_WORKERS = {"errors", "contract", "cgroup", "worker"}
"""What the worker side may see of this package."""

FLOOR = {name: number for number, row in enumerate(FLOORS.split("\n")) for name in row.split()}


def module_name(path: Path) -> str:
    """``orchestrator/spec/check.py`` → ``spec.check``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def place(name: str) -> str:
    """The entry of the table that ``name`` belongs to: itself, or the innermost package around it that has one."""
    while name not in FLOOR and "." in name:
        name = name.rpartition(".")[0]
    return name


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names that ``path`` imports, at whatever level, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def resolved(dotted: str) -> str | None:
    """``orchestrator.ledger.Ledger`` → ``ledger``; None for other packages' names."""
    first, *rest = dotted.split(".")
    if first != "orchestrator":
        return None
    while rest and not (PACKAGE.joinpath(*rest).is_dir() or PACKAGE.joinpath(*rest).with_suffix(".py").exists()):
        rest.pop()
    return ".".join(rest) or "__init__"


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
SUPERVISOR_SIDE = [name for name in SOURCES if name.split(".")[0] != "worker"]
WORKER_SIDE = [name for name in SOURCES if name.split(".")[0] == "worker"]


@pytest.mark.parametrize("name", SUPERVISOR_SIDE)
def test_a_module_imports_only_from_the_floors_above(name: str) -> None:
    mine = place(name)
    if name == "executors":
        assert not list(imports(SOURCES[name]))
        return
    assert mine in FLOOR, f"{name} has no place in the table: give it one"
    for dotted, line in imports(SOURCES[name]):
        other = resolved(dotted)
        if other is None or place(other) == mine:
            continue
        assert place(other) != "worker", f"{name}:{line} imports {dotted}; nothing imports the worker"
        assert place(other) in FLOOR, f"{name}:{line} imports {dotted}, which has no place in the table"
        assert FLOOR[place(other)] < FLOOR[mine], f"{name}:{line} imports {dotted} from its own floor or one below"


@pytest.mark.parametrize("name", SUPERVISOR_SIDE)
def test_the_supervisor_side_imports_nothing_heavy_not_even_late(name: str) -> None:
    for dotted, line in imports(SOURCES[name]):
        assert dotted.split(".")[0] not in HEAVY, f"{name}:{line} imports {dotted}"


@pytest.mark.parametrize("name", WORKER_SIDE)
def test_the_worker_sees_little_of_the_supervisors_side(name: str) -> None:
    for dotted, line in imports(SOURCES[name]):
        other = resolved(dotted)
        assert other is None or other.split(".")[0] in FOR_WORKERS, f"{name}:{line} imports {dotted}"


def test_the_architecture_document_names_every_place() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Who may import whom") :]
    places = {name.removeprefix("executors.") for name in FLOOR if not name.startswith("__")}
    assert [name for name in sorted(places) if f"`{name}`" not in table and f"`{name}/`" not in table] == []


def test_every_place_in_the_table_is_taken() -> None:
    assert FLOOR.keys() <= {place(name) for name in SOURCES}


@pytest.mark.parametrize(
    "name", ["contract", "errors", "job", "policy", "waiting", "executors.base", "executors.sentinel"]
)
def test_the_lowest_floors_need_the_standard_library_only(name: str) -> None:
    for dotted, line in imports(SOURCES[name]):
        first = dotted.split(".")[0]
        assert first in {"orchestrator", *sys.stdlib_module_names}, f"{name}:{line} imports {dotted}"


def loaded_by(*arguments: str) -> set[str]:
    """Top-level packages, and our own modules, that a fresh interpreter loads."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "site" in names
    return {name if name.startswith("orchestrator") else name.split(".")[0] for name in names}


def test_help_loads_nothing_that_it_does_not_need() -> None:
    loaded = loaded_by("-m", "orchestrator", "--help")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "psutil", "sqlite3", "matplotlib"}
    assert not {name for name in loaded if name.startswith(("orchestrator.jobfile", "orchestrator.worker"))}


@pytest.mark.parametrize("module", ["supervisor", "session", "control", "executors.local", "api"])
def test_the_supervisor_loads_nothing_heavy(module: str) -> None:
    loaded = loaded_by("-c", f"import orchestrator.{module}")
    assert not loaded & {*HEAVY, "numpy", "psutil", "matplotlib", "multiprocessing", "asyncio"}
    assert "orchestrator.executors.fake" not in loaded


@pytest.mark.parametrize("module", ["supervisor", "control", "executors.local", "ledger"])
def test_only_who_reads_job_files_loads_pydantic(module: str) -> None:
    assert "pydantic" not in loaded_by("-c", f"import orchestrator.{module}")


def test_a_worker_is_tied_to_its_supervisor_before_anything_heavy_is_loaded() -> None:
    loaded = loaded_by("-c", "import orchestrator.worker.__main__")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "rich", "typer"}
