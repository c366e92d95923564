"""Stages that begin when a condition holds: real trainings."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.curriculum.part import STAGE, CurriculumSettings

HOPPER = helpers.REPOSITORY / "mjcf/hopper.xml"
OPTIONS = {
    "max_episode_steps": "linear(20, 41)",
    "push_speed": "stages(0, 0.5, 1)",
    "push_period_s": 0.2,
    "healthy_reward": "linear(1, 0, 0.5)",
}
CURRICULUM = CurriculumSettings(advance=("rollout/ep_len_mean > 5",) * 2, episodes=4)


def spec(algo: str, learner: str, **changes: Any) -> WorkerSpec:
    given: dict[str, Any] = {
        "task": "stand",
        "xml": "robot/hopper.xml",
        "learner": learner,
        "eval_episodes": 2,
        "normalize": True,
        "task_options": OPTIONS,
        "randomize": {
            "push.speed": "uniform(0, stages(0, 0.2, 0.6))",
            "push.period": "uniform(0.1, 0.2)",
        },
        "parts": {"curriculum": CURRICULUM},
        "total_timesteps": 2600,
    }
    return helpers.algorithm(algo, **given | changes)


def with_curriculum(**changes: Any) -> WorkerSpec:
    """PPO with another curriculum."""
    parts = {"curriculum": dataclasses.replace(CURRICULUM, **changes)}
    return spec("ppo", "fast", parts=parts)


def advanced_at(record: ExitRecord) -> list[int]:
    return list(record.parts["curriculum"].advanced_at)


def job(directory: Path, given: WorkerSpec) -> JobPaths:
    paths = helpers.job(directory, given)
    paths.robot.mkdir()
    shutil.copy(HOPPER, paths.robot)
    return paths


SHORT = {"ppo": {"total_timesteps": 900}}
"""Whose stages begin within few iterations."""
WAYS = [
    ("ppo", "fast"),
    pytest.param("ppo", "sb3", marks=pytest.mark.nightly),
    *(pytest.param(algo, "auto", marks=pytest.mark.nightly) for algo in ("sac", "td3")),
]


@pytest.mark.parametrize(("algo", "learner"), WAYS)
def test_a_training_that_is_resumed_in_each_of_its_stages_has_the_same_weights(
    tmp_path: Path, algo: str, learner: str
) -> None:
    given = spec(algo, learner, **SHORT.get(algo, {}))
    whole, parts = (job(tmp_path / name, given) for name in ("whole", "parts"))
    record, log = helpers.train_here(whole)
    assert record.code == ExitCode.SUCCEEDED, log
    rows = helpers.rows(whole.progress_csv)
    stages = [int(row[STAGE]) for row in rows]
    assert stages == sorted(stages)
    assert set(stages) == {1, 2, 3}
    ends = [int(rows[stages.index(stage) - 1]["time/total_timesteps"]) for stage in (2, 3)]
    assert advanced_at(record) == ends
    assert [
        int(steps.replace(",", "")) for steps in re.findall(r"begins at ([\d,]+) env_steps", log)
    ] == ends
    for number, steps in enumerate((ends[0] - 1, ends[0] + 1, ends[1] + 1)):
        parts.spec.write_text(dataclasses.replace(given, pause_at=steps).to_json())
        assert helpers.train_here(parts, number)[0].code == ExitCode.PAUSED
    parts.spec.write_text(given.to_json())
    resumed, log = helpers.train_here(parts, 3)
    assert resumed.code == ExitCode.SUCCEEDED, log
    assert resumed.weights_sha256 == record.weights_sha256
    assert advanced_at(resumed) == ends
    assert parts.eval.read_bytes() == whole.eval.read_bytes()


@pytest.mark.nightly
def test_a_stage_waits_for_its_condition_and_for_enough_episodes_of_its_own(tmp_path: Path) -> None:
    never = job(tmp_path / "never", with_curriculum(advance=("rollout/ep_rew_mean > 1e9",) * 2))
    record, log = helpers.train_here(never)
    assert (record.code, advanced_at(record)) == (ExitCode.SUCCEEDED, []), log
    assert {row[STAGE] for row in helpers.rows(never.progress_csv)} == {"1"}
    given = dataclasses.replace(with_curriculum(episodes=100), total_timesteps=600)
    record, log = helpers.train_here(job(tmp_path / "rare", given))
    assert advanced_at(record) == [], log


def test_trainings_without_stages_have_no_column(tmp_path: Path) -> None:
    plain = job(
        tmp_path / "plain",
        spec("ppo", "fast", parts={}, randomize={}, task_options={}, total_timesteps=256),
    )
    record, log = helpers.train_here(plain)
    assert (record.code, record.parts) == (ExitCode.SUCCEEDED, {}), log
    assert json.loads(plain.attempt(0).exit.read_text())["parts"] == {}
    assert STAGE not in helpers.rows(plain.progress_csv)[0]
