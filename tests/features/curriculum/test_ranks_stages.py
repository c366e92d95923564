"""The ranks of one training begin a stage together."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import ranks_helpers as helpers
import worker_helpers as worker

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.curriculum.part import CurriculumSettings

pytestmark = pytest.mark.nightly

HOPPER = worker.REPOSITORY / "mjcf/hopper.xml"


def job(directory: Path, given: WorkerSpec) -> JobPaths:
    paths = worker.job(directory, given)
    paths.robot.mkdir()
    shutil.copy(HOPPER, paths.robot)
    return paths


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_all_ranks_begin_a_stage_at_the_same_env_steps_also_when_they_resume(
    tmp_path: Path, algo: str
) -> None:
    given = helpers.spec(
        algo,
        task="stand",
        xml="robot/hopper.xml",
        task_options={"max_episode_steps": 20, "push_speed": "stages(0, 1)", "push_period_s": 0.2},
        randomize={"push.speed": "uniform(0, linear(0, 0.5))"},
        parts={"curriculum": CurriculumSettings(advance=("rollout/ep_len_mean > 5",), episodes=4)},
    )
    whole, parts = (job(tmp_path / name, given) for name in ("whole", "parts"))
    first, second = helpers.run(whole)
    assert first.parts == second.parts
    assert first.weights_sha256 == second.weights_sha256
    [began] = first.parts["curriculum"].advanced_at
    parts.spec.write_text(dataclasses.replace(given, pause_at=began + 1).to_json())
    with helpers.Attempt(parts) as attempt:
        assert attempt.codes() == [ExitCode.PAUSED] * 2, attempt.log
    parts.spec.write_text(given.to_json())
    assert [record.weights_sha256 for record in helpers.run(parts, 1)] == [first.weights_sha256] * 2
