"""Killed at any instant and resumed: the same bits as never killed, with each learner, algorithm and
kind of environment. ``test_kill_and_resume.py`` shows it of a robot through the command."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths

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

TASK = {"task": "forward", "xml": "robot/robot.xml", "normalize": True}
JOBS: dict[str, dict[str, Any]] = {
    "hopper": {"env": "Hopper-v5", "normalize": True, "total_timesteps": 2048},
    "sac": {
        "algo": "sac",
        **TASK,
        "total_timesteps": 2048,
        "hyperparameters": {**helpers.SMALL["sac"], "gradient_steps": 2},
    },
    "discrete": {"env": "CartPole-v1", "total_timesteps": 2048},
    "hopper, stock learner": {
        "env": "Hopper-v5",
        "normalize": True,
        "total_timesteps": 2048,
        "learner": "sb3",
    },
    "ant": {"env": "Ant-v5", "normalize": True, "total_timesteps": 2048},
    "td3": {"algo": "td3", "total_timesteps": 2048},
    "a2c": {"algo": "a2c", "normalize": True, "total_timesteps": 2048},
    "class": {
        "algo": "sb3_contrib:TQC",
        **TASK,
        "total_timesteps": 2048,
        "hyperparameters": helpers.SMALL["sac"],
    },
}

TIMES = {"time/fps", "time/time_elapsed"}


def make_job(directory: Path, **changes: Any) -> JobPaths:
    given = helpers.algorithm(**changes) if "algo" in changes else helpers.spec(**changes)
    paths = helpers.job(directory, given)
    paths.robot.mkdir()
    (paths.robot / "robot.xml").write_text(ROBOT)
    return paths


def what_was_learnt(paths: JobPaths) -> list[Any]:
    """Parameters, statistics and every logged value that is not a time."""
    logged = [
        {key: value for key, value in row.items() if key not in TIMES}
        for row in helpers.rows(paths.progress_csv)
    ]
    statistics = helpers.normalization(paths.vecnormalize) if paths.vecnormalize.exists() else {}
    parameters = {
        name: tensor.numpy().tobytes() for name, tensor in helpers.parameters(paths.model).items()
    }
    iterations = [(row["iteration"], row["env_steps"]) for row in helpers.rows(paths.timings_csv)]
    return [parameters, statistics, logged, iterations]


def kill(
    worker: helpers.Worker, paths: JobPaths, *, after_a_checkpoint: bool, within_s: float
) -> bool:
    """SIGKILL at a random instant. False when the worker had ended by itself before."""
    before = set(paths.checkpoints.glob("*.pt"))
    while (
        after_a_checkpoint
        and set(paths.checkpoints.glob("*.pt")) <= before
        and worker.process.poll() is None
    ):
        time.sleep(0.001)
    try:
        worker.process.wait(random.uniform(0, within_s))
    except subprocess.TimeoutExpired:
        worker.process.send_signal(signal.SIGKILL)
    return worker.wait() == -signal.SIGKILL


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "twice"),
    [
        pytest.param(changes, name in ("sac", "a2c", "class"), id=name)
        for name, changes in JOBS.items()
    ],
)
def test_killed_and_resumed_learns_the_same_bits(
    tmp_path: Path, changes: dict[str, Any], twice: bool
) -> None:
    undisturbed = make_job(tmp_path / "undisturbed", **changes)
    record = helpers.train_to_its_end(undisturbed)
    is_stock = bool({"learner", "algo"} & changes.keys()) or changes.get("env") == "CartPole-v1"
    assert record.learner == ("sb3" if is_stock else "fast")
    assert record.wall_s is not None

    killed = make_job(tmp_path / "killed", **changes)
    with helpers.Worker(killed, 0) as worker:
        kill(worker, killed, after_a_checkpoint=True, within_s=0.3)
    if twice:
        with helpers.Worker(killed, 1) as worker:
            kill(worker, killed, after_a_checkpoint=False, within_s=record.wall_s)
    last, log = helpers.train_here(killed, 2)
    assert last.code == ExitCode.SUCCEEDED, log
    assert last.resumed_from is not None
    assert last.resumed_from >= 256
    assert what_was_learnt(killed) == what_was_learnt(undisturbed)
    assert last.ep_rew_mean_first == record.ep_rew_mean_first


IMAGES = """
import gymnasium
import numpy as np


class Images(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def __init__(self):
        self.action_space = gymnasium.spaces.Discrete(3)
        self.render_mode = None

    def observe(self):
        return self.np_random.integers(0, 256, (36, 36, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        reward = float(action == self.action_space.sample())
        return self.observe(), reward, self.np_random.random() < 0.1, False, {}


def make_env(xml, seed):
    return Images()
"""


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"env": "FrozenLake-v1"}, id="arrays among the attributes"),
        pytest.param(
            {"entry_point": "images:make_env", "policy": "CnnPolicy"},
            id="images, and samples of its action space",
        ),
    ],
)
@pytest.mark.nightly
def test_stopped_again_and_again_learns_the_same_bits(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    (tmp_path / "images.py").write_text(IMAGES)
    changes |= {
        "search_path": str(tmp_path),
        "normalize": True,
        "checkpoint_every": 128,
        "total_timesteps": 768,
    }
    undisturbed, stopped = (
        make_job(tmp_path / name, **changes) for name in ("undisturbed", "stopped")
    )
    helpers.train_to_its_end(undisturbed)
    stops = 2
    for number in range(stops):
        with helpers.Worker(stopped, number) as worker:
            before = set(stopped.checkpoints.glob("*.pt"))
            while set(stopped.checkpoints.glob("*.pt")) <= before and worker.process.poll() is None:
                time.sleep(0.001)
            worker.process.terminate()
            worker.wait()
    helpers.train_to_its_end(stopped, stops)
    assert what_was_learnt(stopped) == what_was_learnt(undisturbed)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobPaths, ExitRecord]:
    """A finished job; not to be changed."""
    paths = make_job(tmp_path_factory.mktemp("trained") / "job", eval_episodes=1)
    record = helpers.train_to_its_end(paths)
    return paths, record


def copy_of(trained: JobPaths, directory: Path) -> JobPaths:
    shutil.copytree(trained.root, directory)
    return JobPaths(directory)


def test_damaged_newest_checkpoint_gives_way_to_the_one_before(
    trained_once: tuple[JobPaths, ExitRecord], tmp_path: Path
) -> None:
    undisturbed, _ = trained_once
    for name, damage in {
        "cut short": cut_short,
        "one bit wrong": flip_a_bit,
        "empty": empty,
    }.items():
        paths = copy_of(undisturbed, tmp_path / name)
        damage(paths.checkpoints / "checkpoint-000000000512.pt")
        (paths.checkpoints / ".checkpoint-000000000768.pt.1.tmp").write_bytes(
            b"killed while writing"
        )
        record, log = helpers.train_here(paths, 1)
        assert (record.code, record.resumed_from) == (ExitCode.SUCCEEDED, 256), log
        assert "checkpoint-000000000512.pt is damaged" in log
        assert what_was_learnt(paths) == what_was_learnt(undisturbed)
        assert sorted(path.name for path in paths.checkpoints.iterdir()) == [
            "checkpoint-000000000256.pt",
            "checkpoint-000000000512.pt",
            "checkpoint-000000000512.pt.damaged",
        ]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def test_killed_after_the_last_iteration_needs_no_more_training(
    trained_once: tuple[JobPaths, ExitRecord], tmp_path: Path
) -> None:
    trained, first = trained_once
    paths = copy_of(trained, tmp_path / "job")
    weights = helpers.parameters(paths.model)
    paths.model.unlink()
    record, log = helpers.train_here(paths, 1)
    assert (record.code, record.resumed_from, record.first_step_s) == (
        ExitCode.SUCCEEDED,
        512,
        None,
    ), log
    assert helpers.same_bits(helpers.parameters(paths.model), weights)
    assert (record.ep_rew_mean, record.eval_mean) == (first.ep_rew_mean, first.eval_mean)


def test_checkpoint_of_other_settings_is_refused(
    trained_once: tuple[JobPaths, ExitRecord], tmp_path: Path
) -> None:
    paths = copy_of(trained_once[0], tmp_path / "job")
    paths.spec.write_text(helpers.spec(seed=4, eval_episodes=1).to_json())
    record, _ = helpers.train_here(paths, 1)
    assert record.code == ExitCode.ERROR
    assert "was written under other settings of this job" in record.message


@pytest.mark.nightly
def test_environment_that_cannot_be_saved_begins_new_episodes_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text(
        "import gymnasium\n"
        "class Hidden(gymnasium.Wrapper):\n"
        "    def __init__(self, env):\n"
        "        super().__init__(env)\n"
        "        self.generator = (number for number in range(10))\n"
        "def make_env(xml, seed):\n"
        "    return Hidden(gymnasium.make('CartPole-v1'))\n"
    )
    changes = {
        "entry_point": "hidden:make_env",
        "search_path": str(tmp_path),
        "total_timesteps": 4096,
    }
    paths = make_job(tmp_path / "job", **changes)
    with helpers.Worker(paths) as worker:
        assert kill(worker, paths, after_a_checkpoint=True, within_s=0)
    record, log = helpers.train_here(paths, 1)
    assert record.code == ExitCode.SUCCEEDED, log
    assert "generator" in log, log
    assert "new episodes begin" in log, log
