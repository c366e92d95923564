"""The controllers of docs/deploy.md, run against a simulated robot, move it as the policy does."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from controller_helpers import DOCUMENT, Robot, Sensors, compiled_controller
from export_helpers import export, job
from numpy.typing import NDArray

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.export.worker import numpy_policy
from orchestrator.worker.envs import env_factory
from orchestrator.worker.training import trained_policy

STEPS = 15
"""After more, contacts have made a difference of rounding large."""


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


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_policy_that_observes_as_many_other_numbers_is_not_run_in_c(
    walker: JobPaths, tmp_path: Path
) -> None:
    header = tmp_path / "other.h"
    header.write_text(export(walker, ".h").read_text().replace('"angular velocity x"', '"up x"'))
    controller = compiled_controller(header, tmp_path)
    done = subprocess.run([controller], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_policy_that_observes_something_else_is_not_run_in_python(
    controller: Any, tmp_path: Path
) -> None:
    other = job(tmp_path / "walker", "quadruped", task="track")
    with pytest.raises(ValueError, match="does not observe proprioception"):
        controller.Controller(export(other, ".npz"))


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


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the document."""
    shutil.copyfile(str(numpy_policy.__file__), tmp_path / "numpy_policy.py")
    [code] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "controller.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("controller")
    for name in ("numpy_policy", "controller"):
        del sys.modules[name]


def test_the_controller_in_python_moves_the_robot_as_the_policy_does(
    walker: JobPaths, expected: Expected, controller: Any
) -> None:
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


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_controller_in_c_moves_the_robot_as_the_policy_does(
    walker: JobPaths, expected: Expected, tmp_path: Path
) -> None:
    controller = compiled_controller(export(walker, ".h"), tmp_path)
    robot = robot_of(walker, expected)
    poses = [robot.data.qpos.copy()]
    with subprocess.Popen(
        [controller],
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
