"""The controllers of docs/deploy.md, run against a simulated robot, move it as the policy does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import pytest
import worker_helpers as helpers
from export_helpers import export, job
from numpy.typing import NDArray

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.export.worker import numpy_policy
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.training import trained_policy

DOCUMENT = helpers.REPOSITORY / "docs/deploy.md"
STEPS = 15
"""After more, contacts have made a difference of rounding large."""
ROBOT_IN_C = """
#include <stdio.h>
#include <stdlib.h>
#include "walker.h"
struct sensors {
    float angular_velocity[3], gravity[3];
    float position[WALKER_JOINTS], velocity[WALKER_JOINTS];
};
static void take(float *values, size_t count)
{
    if (fread(values, sizeof *values, count, stdin) != count) exit(0);
}
void read_sensors(struct sensors *sensors)
{
    take(sensors->angular_velocity, 3);
    take(sensors->gravity, 3);
    take(sensors->position, WALKER_JOINTS);
    take(sensors->velocity, WALKER_JOINTS);
}
void read_command(float *command) { take(command, WALKER_COMMANDS); }
void write_ctrl(const float *ctrl)
{
    fwrite(ctrl, sizeof *ctrl, WALKER_ACTIONS, stdout);
    fflush(stdout);
}
void stop_robot(void) { fputs("stopped", stderr); }
"""


class Sensors(NamedTuple):
    angular_velocity: NDArray[Any]
    gravity: NDArray[Any]
    position: NDArray[Any]
    velocity: NDArray[Any]


class Robot:
    """A quadruped in plain MuJoCo, with the sensors of the document."""

    def __init__(self, xml: Path, qpos: NDArray[Any], qvel: NDArray[Any], steps: int) -> None:
        self.model = load_model(xml)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = qpos
        self.data.qvel[:] = qvel
        self._steps = steps

    def read(self) -> Sensors:
        axes = np.zeros(9)
        mujoco.mju_quat2Mat(axes, self.data.qpos[3:7])
        return Sensors(
            angular_velocity=self.data.qvel[3:6].copy(),
            gravity=axes.reshape(3, 3).T @ [0.0, 0.0, -1.0],
            position=self.data.qpos[7:].copy(),
            velocity=self.data.qvel[6:].copy(),
        )

    def write(self, ctrl: NDArray[Any]) -> None:
        self.data.ctrl[:] = ctrl
        mujoco.mj_step(self.model, self.data, nstep=self._steps)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_policy_that_observes_something_else_does_not_compile(tmp_path: Path) -> None:
    options = {"observe": "proprioception", "history": 2}
    other = job(tmp_path / "walker", "quadruped", task="track", task_options=options)
    shutil.copyfile(export(other, ".h"), tmp_path / "walker.h")
    [code] = re.findall(r"```c\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "controller.c").write_text(code)
    command = ["cc", "-std=c99", "-c", "controller.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "fits" in done.stderr


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> JobPaths:
    folder = tmp_path_factory.mktemp("walker")
    options = {"observe": "proprioception"}
    return job(folder / "walker", "quadruped", task="track", task_options=options, scale=0.1)


class Expected(NamedTuple):
    """How the policy moves the robot in the environment of its training."""

    poses: NDArray[Any]
    """``(STEPS + 1, nq)``"""
    qvel: NDArray[Any]
    command: NDArray[Any]
    physics_steps: int


@pytest.fixture(scope="module")
def expected(walker: JobPaths) -> Expected:
    spec = WorkerSpec.from_json(walker.spec.read_text())
    venv: Any = env_factory.make(spec, walker.root, n_envs=1, seed=0)
    model = trained_policy.load_model(spec, walker, venv, None)
    env: Any = trained_policy.normalized_env(spec, walker, venv, None)
    observation = env.reset()
    states = venv.simulation.states
    qvel = states.qvel[0].copy()
    command = states.goals[0].copy()
    poses = [states.qpos[0].copy()]
    for _ in range(STEPS):
        actions, _ = model.predict(observation, deterministic=True)
        observation, *_ = env.step(actions)
        poses.append(venv.simulation.states.qpos[0].copy())
    return Expected(np.array(poses), qvel, command, venv.simulation.task.frame_skip)


def robot_of(walker: JobPaths, expected: Expected) -> Robot:
    spec = WorkerSpec.from_json(walker.spec.read_text())
    xml = walker.root / str(spec.xml)
    return Robot(xml, expected.poses[0], expected.qvel, expected.physics_steps)


def test_the_controller_in_python_moves_the_robot_as_the_policy_does(
    walker: JobPaths, expected: Expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(str(numpy_policy.__file__), tmp_path / "numpy_policy.py")
    [code] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "controller.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "numpy_policy", raising=False)
    import controller  # type: ignore[import-not-found]

    robot = robot_of(walker, expected)
    poses: list[NDArray[Any]] = []
    stops: list[bool] = []

    class Driven:
        def read(self) -> Sensors:
            poses.append(robot.data.qpos.copy())
            sensors = robot.read()
            if len(poses) <= STEPS:
                return sensors
            return sensors._replace(gravity=np.full(3, np.nan))

        def command(self) -> NDArray[Any]:
            return expected.command

        def write(self, ctrl: NDArray[Any]) -> None:
            robot.write(ctrl)

        def stop(self) -> None:
            stops.append(True)

    with pytest.raises(ValueError, match="sensors give"):
        controller.drive(Driven(), export(walker, ".npz"))
    assert stops == [True]
    np.testing.assert_allclose(np.array(poses), expected.poses, rtol=0, atol=1e-4)
    del sys.modules["controller"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_controller_in_c_moves_the_robot_as_the_policy_does(
    walker: JobPaths, expected: Expected, tmp_path: Path
) -> None:
    shutil.copyfile(export(walker, ".h"), tmp_path / "walker.h")
    [code] = re.findall(r"```c\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "controller.c").write_text(code)
    (tmp_path / "robot.c").write_text(ROBOT_IN_C)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
    command = ["cc", *flags, "controller.c", "robot.c", "-o", "controller", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    robot = robot_of(walker, expected)
    poses = [robot.data.qpos.copy()]
    with subprocess.Popen(
        [tmp_path / "controller"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(STEPS):
            values = np.concatenate([*robot.read(), expected.command]).astype(np.float32)
            process.stdin.write(values.tobytes())
            process.stdin.flush()
            ctrl = np.frombuffer(process.stdout.read(4 * robot.model.nu), np.float32)
            robot.write(ctrl)
            poses.append(robot.data.qpos.copy())
        process.stdin.write(np.full(len(values), np.nan, np.float32).tobytes())
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, b"stopped")
    np.testing.assert_allclose(np.array(poses), expected.poses, rtol=0, atol=1e-4)
