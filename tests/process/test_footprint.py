"""What processes load, and how much memory the supervisor takes."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_helpers import Trained, make_run_dir

pytestmark = pytest.mark.nightly

REPOSITORY = Path(__file__).parents[2]
HEAVY = {"torch", "stable_baselines3", "gymnasium", "mujoco"}
"""Imported by the worker only."""


@functools.cache
def loaded_by(*arguments: str) -> set[str]:
    """Top-level packages, and modules of this program, that a fresh interpreter loads."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "site" in names
    return {name if name.startswith("orchestrator") else name.split(".")[0] for name in names}


CLIENT = "client.control client.attach executors.local"
CHECK = (
    "import orchestrator.worker.robots.preflight_child as p; answer = p.check(p.ExaminationRequest("
)


def importing(modules: str) -> str:
    return "; ".join(f"import orchestrator.{module}" for module in modules.split())


OF_DRAWS = {
    "orchestrator.worker.envs.randomization.randomized_simulation",
    "orchestrator.worker.envs.randomization.randomized_fields",
}
"""Needed by jobs whose episodes draw properties of the robot."""
PROGRAMS: dict[str, tuple[str, set[str]]] = {
    "a supervisor": (
        importing("server.process executors.local api"),
        {
            *HEAVY,
            "numpy",
            "psutil",
            "matplotlib",
            "multiprocessing",
            "asyncio",
        },
    ),
    "who reads no job file": (importing(f"{CLIENT} ledger"), {"pydantic"}),
    "who reads a job file": (
        "from pathlib import Path; from orchestrator.jobfile import load; load(Path('jobs/robots.toml'))",
        {*HEAVY, "numpy", "jsonschema"},
    ),
    "a command": (importing("cli terminal.status_view machine.doctor"), HEAVY),
    "the package": (
        "import orchestrator",
        {*HEAVY, "numpy", "pydantic", "rich", "typer", "sqlite3"},
    ),
    "a worker before it is tied to its supervisor": (
        importing("worker.__main__"),
        {*HEAVY, "numpy", "pydantic", "rich", "typer"},
    ),
    "who looks at the machine": (
        "import orchestrator.machine.topology as m; m.detect()",
        {"psutil", "torch", "numpy", "mujoco", "rich", "pydantic"},
    ),
    "a task whose job draws nothing": (importing("worker.envs.vec_env"), OF_DRAWS),
    "a simulation of a job that draws nothing": (
        importing("worker.envs.simulation_factory worker.envs.changing_task"),
        {"torch", "stable_baselines3", "gymnasium", *OF_DRAWS},
    ),
    "whether a job qualifies": (
        importing("worker.training.fast.qualify"),
        {"torch", "stable_baselines3", "mujoco"},
    ),
    "the check of a robot": (
        f"{CHECK}xml='mjcf/hopper.xml', task='forward')); assert answer.problem is None",
        {"torch", "stable_baselines3", "gymnasium"},
    ),
    "a demand for the fast learner": (
        f"{CHECK}env='CartPole-v1', fast=True)); assert 'fast' in answer.problem",
        {"torch", "stable_baselines3"},
    ),
    "the robot of a task of Gymnasium": (
        "from orchestrator.worker.tasks import gymnasium_tasks as g;assert g.default_xml('gymnasium:Ant-v5').is_file()",
        {"gymnasium"},
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_more_is_loaded_than_is_needed(program: str) -> None:
    code, unwanted = PROGRAMS[program]
    assert not loaded_by("-c", code) & unwanted


def test_help_loads_nothing_that_it_does_not_need() -> None:
    loaded = loaded_by("-m", "orchestrator", "--help")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "psutil", "sqlite3", "matplotlib"}
    unwanted = ("orchestrator.jobfile", "orchestrator.worker", "orchestrator.server")
    assert not {name for name in loaded if name.startswith(unwanted)}


def test_who_looks_at_a_run_loads_nothing_that_reads_job_files(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path / "run", [Trained()]).root
    loaded = loaded_by("-m", "orchestrator", "status", str(run_dir))
    assert "orchestrator.client.run_snapshot" in loaded
    assert not loaded & {*HEAVY, "numpy", "matplotlib", "orchestrator.jobfile"}


def test_the_package_alone_loads_next_to_nothing() -> None:
    loaded = loaded_by("-c", "import orchestrator")
    assert {name.split(".")[1] for name in loaded if name.startswith("orchestrator.")} == {"core"}
