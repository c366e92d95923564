"""Every built-in task is learned by the job file that shows it, in under two minutes of one
core."""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import worker_helpers as worker
from command_helpers import REPOSITORY, succeed

from orchestrator.core.paths import JobPaths
from orchestrator.core.task_names import TASKS
from orchestrator.core.worker_spec import WorkerSpec

pytestmark = pytest.mark.nightly

JOBS = REPOSITORY / "jobs" / "tasks"
FILES = sorted(JOBS.glob("*.toml"))
CORE_S = 120.0
PATIENCE_S = 900.0
"""Only a failing test waits this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Of mean deterministic returns; the figures that were seen stand in the job files."""

    untrained_at_most: float
    trained_at_least: float


MARGINS = {
    "balance": Margin(untrained_at_most=150, trained_at_least=800),
    "forward": Margin(untrained_at_most=100, trained_at_least=1200),
    "reach": Margin(untrained_at_most=-50, trained_at_least=30),
    "stand": Margin(untrained_at_most=40, trained_at_least=100),
    "track": Margin(untrained_at_most=300, trained_at_least=500),
}


def test_every_built_in_task_has_a_job_file_and_a_margin() -> None:
    assert {path.stem for path in FILES} == set(TASKS) == set(MARGINS)


@pytest.mark.parametrize("jobs", FILES, ids=lambda path: path.stem)
def test_a_tasks_job_file_is_one_robot_one_seed_and_one_core(jobs: Path) -> None:
    document = tomllib.loads(jobs.read_text())
    (job,) = document["jobs"]
    settings = document["defaults"] | job
    assert settings["task"] == jobs.stem
    assert (jobs.parent / settings["xml"]).is_file()
    assert len(settings["seeds"]) == 1
    assert "resources" not in settings


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("jobs", FILES, ids=lambda path: path.stem)
def test_a_task_is_learned_by_its_job_file(jobs: Path, tmp_path: Path) -> None:
    trained = train(jobs, tmp_path / "trained")
    margin = MARGINS[jobs.stem]
    assert mean_return(untrained(trained, tmp_path / "untrained")) <= margin.untrained_at_most
    assert mean_return(trained) >= margin.trained_at_least
    assert core_seconds(trained) < CORE_S


def untrained(trained: Path, directory: Path) -> Path:
    """The same job, ended after its first rollout, with an update that changes next to nothing."""
    spec = WorkerSpec.from_json(JobPaths(trained).spec.read_text())
    hyperparameters = {**spec.hyperparameters, "learning_rate": 1e-12}
    steps = spec.n_envs * spec.hyperparameters["n_steps"]
    worker.train_again(
        JobPaths(trained), directory, total_timesteps=steps, hyperparameters=hyperparameters
    )
    return directory


def train(jobs: Path, run_dir: Path) -> Path:
    """→ the directory of the one job."""
    succeed("run", jobs, "--run-dir", run_dir, cwd=run_dir.parent)
    (job,) = (run_dir / "jobs").iterdir()
    return job


def mean_return(job: Path) -> float:
    return float(json.loads((job / "eval.json").read_text())["deterministic"]["mean"])


def core_seconds(job: Path) -> float:
    """Processor time of all iterations; where other work shares the machine, wall time would say
    nothing."""
    with (job / "timings.csv").open(newline="") as file:
        return sum(float(row["cpu_s"]) for row in csv.DictReader(file))
