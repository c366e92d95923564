"""Killed at any instant and resumed: the same bits as never killed."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers

from orchestrator.contract import ExitCode, JobPaths

ROBOT = """
<mujoco><option timestep="0.01"/>
  <worldbody><geom type="plane" size="9 9 1"/>
    <body name="torso" pos="0 0 0.6"><freejoint/><geom type="capsule" size="0.08" fromto="-0.2 0 0 0.2 0 0"/>
      <body name="leg" pos="0.2 0 0"><joint name="hip" axis="0 1 0" range="-60 60" limited="true"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0.1 0 -0.5"/></body>
      <body name="arm" pos="-0.2 0 0"><joint name="knee" axis="0 1 0" range="-60 60" limited="true"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 -0.1 0 -0.5"/></body>
    </body></worldbody>
  <actuator><motor joint="hip" gear="40" ctrllimited="true" ctrlrange="-1 1"/>
    <motor joint="knee" gear="40" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>
"""

JOBS: dict[str, dict[str, Any]] = {
    "discrete": {"env": "CartPole-v1", "total_timesteps": 3072},
    "hopper": {"env": "Hopper-v5", "normalize": True, "total_timesteps": 2048},
    "ant": {"env": "Ant-v5", "normalize": True, "total_timesteps": 2048},
    "built-in task": {"task": "forward", "xml": "robot/robot.xml", "normalize": True, "total_timesteps": 3072},
}

TIMES = {"time/fps", "time/time_elapsed"}


def make_job(directory: Path, **changes: Any) -> JobPaths:
    paths = helpers.job(directory, helpers.spec(**changes))
    paths.robot.mkdir()
    (paths.robot / "robot.xml").write_text(ROBOT)
    return paths


def what_was_learnt(paths: JobPaths) -> list[Any]:
    """Parameters, statistics and every logged value that is not a time."""
    logged = [{key: value for key, value in row.items() if key not in TIMES} for row in helpers.rows(paths.progress_csv)]
    statistics = helpers.normalization(paths.vecnormalize) if paths.vecnormalize.exists() else {}
    parameters = {name: tensor.numpy().tobytes() for name, tensor in helpers.parameters(paths.model).items()}
    iterations = [(row["iteration"], row["env_steps"]) for row in helpers.rows(paths.timings_csv)]
    return [parameters, statistics, logged, iterations]


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS.keys())
def test_killed_and_resumed_learns_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    undisturbed = make_job(tmp_path / "undisturbed", **changes)
    begun = time.monotonic()
    record, log = helpers.run(undisturbed)
    took_s = time.monotonic() - begun
    assert record.code == ExitCode.SUCCEEDED, log
    assert record.first_step_s is not None

    killed = make_job(tmp_path / "killed", **changes)
    resumed = False
    for number in range(3):
        with helpers.Worker(killed, number) as worker:
            try:
                worker.process.wait(random.uniform(record.first_step_s, took_s))
            except subprocess.TimeoutExpired:
                worker.process.send_signal(signal.SIGKILL)
            if worker.wait() == ExitCode.SUCCEEDED:
                break
            resumed |= any(killed.checkpoints.glob("*.pt"))
    else:
        last, log = helpers.run(killed, 3)
        assert last.code == ExitCode.SUCCEEDED, log
        assert (last.resumed_from is not None) == resumed
    assert what_was_learnt(killed) == what_was_learnt(undisturbed)
