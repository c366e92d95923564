"""Training whose episodes are measured, for rungs: the same bits as one that is not, and the same
measures however it was interrupted."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.task_names import EFFORT
from orchestrator.core.worker_spec import WorkerSpec

slow = pytest.mark.nightly
QUADRUPED = helpers.REPOSITORY / "mjcf/quadruped.xml"
OWN = """
from dataclasses import dataclass

import numpy as np

from orchestrator.worker.tasks import Forward


class Paid(Forward):
    measures = {"paid": "sum", "height": "last"}

    def measure(self, before, action, after):
        rewards, _ = self.reward_and_terminated(before, action, after)
        return np.stack((rewards, after.qpos[:, 2]), axis=1)
"""


def training(folder: Path, **changes: Any) -> WorkerSpec:
    """Two environments whose episodes of 50 steps are cut by rollouts of 64."""
    (folder / "paid.py").write_text(OWN)
    given: dict[str, Any] = {
        "task": "paid:Paid",
        "xml": str(QUADRUPED),
        "task_options": {"max_episode_steps": 50, "terminate_when_unhealthy": False},
        "search_path": str(folder),
        "measure_training": True,
        "normalize": True,
        "checkpoint_every": 10_000,
    }
    algo = changes.pop("algo", "ppo")
    return helpers.algorithm(algo, total_timesteps=640, **given | changes)


def attempt(directory: Path, spec: WorkerSpec, number: int = 0) -> ExitRecord:
    paths = helpers.job(directory, spec)
    record, log = helpers.train_here(paths, number)
    assert record.code in (ExitCode.SUCCEEDED, ExitCode.PAUSED), log
    return record


@pytest.mark.parametrize(
    ("algo", "learner"),
    [
        ("ppo", "fast"),
        pytest.param("ppo", "sb3", marks=slow),
        pytest.param("sac", "sb3", marks=slow),
    ],
)
def test_measured_training_has_the_same_weights_and_the_means_of_its_last_episodes(
    algo: str, learner: str, tmp_path: Path
) -> None:
    spec = training(tmp_path, algo=algo, learner=learner)
    measured = attempt(tmp_path / "measured", spec)
    plain = attempt(tmp_path / "plain", dataclasses.replace(spec, measure_training=False))
    assert measured.weights_sha256 == plain.weights_sha256
    assert measured.ep_rew_mean == plain.ep_rew_mean
    assert plain.training_measures is None
    told = measured.training_measures
    assert told is not None
    assert list(told) == ["paid", "height", *EFFORT]
    assert told["paid"] == pytest.approx(measured.ep_rew_mean, abs=1e-5)
    assert 0 < (told["energy_j"] or 0) < 1e5
    assert ExitRecord.from_json(measured.to_json()) == measured


def test_each_row_of_progress_has_the_measures_of_its_last_episodes(tmp_path: Path) -> None:
    spec = training(tmp_path, learner="fast")
    measured = attempt(tmp_path / "measured", spec)
    attempt(tmp_path / "plain", dataclasses.replace(spec, measure_training=False))
    rows, plain = (
        list(csv.DictReader((tmp_path / name / "progress.csv").read_text().splitlines()))
        for name in ("measured", "plain")
    )
    names = [name for name in rows[0] if name.startswith("measures/")]
    assert names == [f"measures/{name}" for name in ("paid", "height", *EFFORT)]
    assert not [name for name in plain[0] if name.startswith("measures/")]
    paid = [row["measures/paid"] for row in rows]
    returns = [row["rollout/ep_rew_mean"] for row in rows]
    assert [float(value) if value else None for value in paid] == [
        pytest.approx(float(value), abs=1e-5) if value else None for value in returns
    ]
    told = measured.training_measures
    assert told is not None
    assert float(rows[-1]["measures/energy_j"]) == told["energy_j"]


MASS = {"body.trunk.mass": "uniform(2, 8)"}


@pytest.mark.parametrize(
    ("task", "randomize"),
    [
        ("paid:Paid", {}),
        ("track", MASS),
        pytest.param("paid:Paid", MASS, marks=pytest.mark.nightly),
        pytest.param("track", {}, marks=pytest.mark.nightly),
    ],
)
def test_paused_in_the_midst_of_episodes_measures_are_those_of_a_training_that_never_was(
    task: str, randomize: dict[str, str], tmp_path: Path
) -> None:
    spec = training(tmp_path, task=task, randomize=randomize)
    whole = attempt(tmp_path / "whole", spec)
    paused = tmp_path / "paused"
    at_rung = []
    for number, rung in enumerate((100, 300)):
        at_rung.append(attempt(paused, dataclasses.replace(spec, pause_at=rung), number))
    last = attempt(paused, spec, 2)
    assert [one.code for one in at_rung] == [ExitCode.PAUSED] * 2
    assert at_rung[0].training_measures != at_rung[1].training_measures
    assert last.weights_sha256 == whole.weights_sha256
    assert last.training_measures == whole.training_measures
    assert at_rung[1].training_measures is not None
    assert (at_rung[1].training_measures["energy_j"] or 0) > 0
    again = attempt(tmp_path / "again", dataclasses.replace(spec, pause_at=300))
    assert again.training_measures == at_rung[1].training_measures
    resumed_there = attempt(tmp_path / "again", dataclasses.replace(spec, pause_at=300), 1)
    assert resumed_there.training_measures == again.training_measures


ENVIRONMENT = """
import gymnasium
import numpy as np


class Counting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        is_over = self.count == 10
        info = {"measures": {"steps": self.count, "odd": float("nan")}} if is_over else {}
        return np.zeros(2, np.float32), 1.0, is_over, False, info


def make(xml=None, seed=0):
    return Counting()
"""


def test_measures_of_an_environment_of_the_users_own_count_in_training_too(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(ENVIRONMENT)
    spec = helpers.algorithm(
        "ppo",
        total_timesteps=256,
        entry_point="counting:make",
        search_path=str(tmp_path),
        measure_training=True,
    )
    assert attempt(tmp_path / "job", spec).training_measures == {"steps": 10.0, "odd": None}
