"""What processes load, and how much memory the supervisor takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY = {"torch", "stable_baselines3", "gymnasium", "mujoco"}
"""Imported by the worker only."""


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(["lint-imports"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


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
    "module",
    [
        "supervisor.supervisor",
        "experiment.session",
        "experiment.control",
        "executors.local",
        "api",
        "pool.pool_supervisor",
    ],
)
def test_the_supervisor_loads_nothing_heavy(module: str) -> None:
    loaded = loaded_by("-c", f"import orchestrator.{module}")
    assert not loaded & {*HEAVY, "numpy", "psutil", "matplotlib", "multiprocessing", "asyncio"}
    assert "orchestrator.executors.fake" not in loaded


@pytest.mark.parametrize("module", ["supervisor.supervisor", "experiment.control", "executors.local", "ledger"])
def test_only_who_reads_job_files_loads_pydantic(module: str) -> None:
    assert "pydantic" not in loaded_by("-c", f"import orchestrator.{module}")


def test_the_package_alone_loads_next_to_nothing() -> None:
    loaded = loaded_by("-c", "import orchestrator")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "rich", "typer", "sqlite3"}
    assert {name.split(".")[1] for name in loaded if name.startswith("orchestrator.")} == {"core"}


def test_a_worker_is_tied_to_its_supervisor_before_anything_heavy_is_loaded() -> None:
    loaded = loaded_by("-c", "import orchestrator.worker.__main__")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "rich", "typer"}


def test_a_thousand_jobs_pending_take_the_supervisor_less_than_150_mib() -> None:
    code = (
        "import tempfile, pathlib\n"
        "from benchmarks.pending_jobs import supervise\n"
        "with tempfile.TemporaryDirectory() as root: print(supervise(pathlib.Path(root), 1000))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert 10 < float(done.stdout) < 150  # of 300: a connection to a cluster, which is not made here, takes some 60


def test_reading_a_job_file_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.jobfile import load; load(Path(sys.argv[1]));"
        "heavy = {'torch', 'stable_baselines3', 'gymnasium', 'mujoco', 'numpy', 'jsonschema'} & sys.modules.keys();"
        "sys.exit(' '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code, "jobs/robots.toml"], cwd=REPOSITORY, check=True)
