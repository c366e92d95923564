"""The worker process: the same numbers as stock Stable-Baselines3, and an answer for everything
that can happen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import pytest
import torch
import worker_helpers as helpers
from command_helpers import wait_until
from executor_helpers import until_it_waits
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import Progress
from orchestrator.core.processes.procfs import is_running
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.training import checkpoint, training_state

OWN_ENV = """
import gymnasium
import numpy as np
{head}


class Own(gymnasium.Env):
    render_mode = None

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.length = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return self.np_random.random(3, np.float32), {{}}

    def step(self, action):
        global STEPS
        STEPS -= 1
        self.length += 1
        reward = float(action[0])
        observation = self.np_random.random(3, np.float32)
        if STEPS <= 0:
            {after_step}
        return observation, reward, False, self.length == 10, {{}}


def make_env(xml, seed):
    return Own()
"""


def module(directory: Path, head: str, after_step: str) -> None:
    """An environment of the user's own, in which ``after_step`` runs from its STEPS-th step on."""
    (directory / "own_env.py").write_text(OWN_ENV.format(head=head, after_step=after_step))


def own(directory: Path, **changes: Any) -> WorkerSpec:
    return helpers.spec(entry_point="own_env:make_env", search_path=str(directory), **changes)


def wait_for(worker: helpers.Worker, phase: str) -> bool:
    """Wait until the worker tells that it is in ``phase``; False when it ends before."""
    with worker.channel.makefile("rb", buffering=0) as lines:
        return any(Progress.from_line(line).phase == phase for line in lines)


def stock_ppo(spec: WorkerSpec, directory: Path) -> tuple[Path, Path]:
    """What a user would have written by hand: ``model.zip`` and ``vecnormalize.pkl`` of
    ``PPO(...).learn()``."""
    assert spec.env is not None
    torch.set_num_threads(spec.threads)  # another number adds up in another order
    env_id = spec.env
    venv = DummyVecEnv([lambda: Monitor(gymnasium.make(env_id)) for _ in range(spec.n_envs)])
    hyperparameters = dict(spec.hyperparameters)
    if "learning_rate" in hyperparameters:
        hyperparameters["learning_rate"] = LinearSchedule(3e-4, 0.0, 1.0)
    env = VecNormalize(venv, gamma=0.98) if spec.normalize else venv
    model = PPO("MlpPolicy", env, seed=spec.seed, device="cpu", **hyperparameters)
    model.learn(spec.total_timesteps)
    model.save(directory / "stock.zip")
    if isinstance(env, VecNormalize):
        env.save(str(directory / "stock.pkl"))
    return directory / "stock.zip", directory / "stock.pkl"


def test_weights_are_those_of_stock_sb3_on_a_discrete_task(tmp_path: Path) -> None:
    spec = helpers.spec(env="CartPole-v1")
    paths = helpers.job(tmp_path / "job", spec)
    helpers.train_to_its_end(paths)
    stock, _ = stock_ppo(spec, tmp_path)
    assert helpers.same_bits(helpers.parameters(paths.model), helpers.parameters(stock))


def test_weights_and_statistics_are_those_of_stock_sb3_with_normalisation_and_schedule(
    tmp_path: Path,
) -> None:
    hyperparameters = {**helpers.SMALL_PPO, "learning_rate": "linear(3e-4, 0)", "gamma": 0.98}
    spec = helpers.spec(
        env="Hopper-v5", normalize=True, learner="sb3", hyperparameters=hyperparameters
    )
    paths = helpers.job(tmp_path / "job", spec)
    helpers.train_to_its_end(paths)
    stock, statistics = stock_ppo(spec, tmp_path)
    assert helpers.same_bits(helpers.parameters(paths.model), helpers.parameters(stock))
    assert helpers.normalization(paths.vecnormalize) == helpers.normalization(statistics)


@pytest.mark.nightly
def test_models_load_where_this_package_is_not_installed(tmp_path: Path) -> None:
    changes = {
        "hyperparameters": {**helpers.SMALL_PPO, "clip_range": "linear(0.2, 0.1)"},
        "normalize": True,
    }
    files = []
    for env, learner in (("CartPole-v1", "sb3"), ("Pendulum-v1", "fast")):
        given = helpers.spec(**changes, env=env, policy_kwargs={"activation_fn": "relu"})
        paths = helpers.job(tmp_path / learner, given)
        record, log = helpers.train_here(paths)
        assert (record.code, record.learner) == (ExitCode.SUCCEEDED, learner), log
        files += [str(paths.model), str(paths.vecnormalize)]
    program = (
        "import pickle, sys; sys.modules['orchestrator'] = None\n"
        "import numpy\n"
        "from stable_baselines3 import PPO\n"
        "for model, normalization in (sys.argv[1:3], sys.argv[3:]):\n"
        "    model = PPO.load(model, device='cpu')\n"
        "    with open(normalization, 'rb') as file: normalization = pickle.load(file)\n"
        "    action, _ = model.predict(numpy.zeros(model.observation_space.shape, 'f4'), deterministic=True)\n"
        "    steps = {int(state['step']) for state in model.policy.optimizer.state.values()}\n"
        "    mean = normalization.obs_rms.mean\n"
        "    print(model.clip_range, model.num_timesteps, mean.shape, model.action_space.contains(action), steps)"
    )
    command = [sys.executable, "-W", "error", "-c", program, *files]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    schedule = "FloatSchedule(LinearSchedule(start=0.2, end=0.1, end_fraction=1.0))"
    assert answer.stdout.splitlines() == [
        f"{schedule} 512 ({size},) True {{32}}" for size in (4, 3)
    ], answer.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error_not_a_training_on_the_cpu(tmp_path: Path) -> None:
    record, _ = helpers.train_here(helpers.job(tmp_path, helpers.spec(device="cuda")))
    assert record.code == ExitCode.ERROR
    assert "resources.gpus asks for a GPU, but PyTorch" in record.message


def test_every_row_of_progress_holds_what_belongs_to_its_iteration(tmp_path: Path) -> None:
    paths = helpers.job(tmp_path, helpers.spec())
    helpers.train_here(paths)
    table = helpers.rows(paths.progress_csv)
    assert [row["time/total_timesteps"] for row in table] == ["128", "256", "384", "512"]
    assert [row["train/n_updates"] for row in table] == ["2", "4", "6", "8"]
    assert all(cell for row in table for cell in row.values())


REPORT = """
import os, sys, time
STEPS = 150
UNNEEDED = {'torch._dynamo', 'pandas', 'matplotlib', 'tensorboard', 'tqdm', 'rich'}

def report():
    if STEPS == 0:
        threads = len(os.listdir('/proc/self/task'))
        print('LOADED', sorted(UNNEEDED & set(sys.modules)), 'THREADS', threads, flush=True)
"""
"""A module of an environment that tells, at some step, what is loaded that no training needs."""
NOTHING_UNNEEDED = "LOADED [] THREADS 2"
"""One thread for training, one for the lifeline."""


@pytest.mark.nightly
@pytest.mark.parametrize("learner", ["fast", "sb3"])
def test_no_compiler_is_loaded_and_no_thread_too_many(learner: str, tmp_path: Path) -> None:
    module(tmp_path, REPORT, after_step="report()")
    paths = helpers.job(tmp_path / "job", own(tmp_path, learner=learner))
    with helpers.Worker(paths, channel=True) as worker:
        assert worker.wait() == ExitCode.SUCCEEDED, worker.log
        assert NOTHING_UNNEEDED in worker.log


def test_python_error_is_told_with_the_users_own_line(tmp_path: Path) -> None:
    module(tmp_path, "STEPS = 3", after_step="raise KeyError('left knee')")
    paths = helpers.job(tmp_path / "job", own(tmp_path))
    record, _ = helpers.train_here(paths)
    assert record.code == ExitCode.ERROR
    line = next(
        n
        for n, text in enumerate((tmp_path / "own_env.py").read_text().splitlines(), 1)
        if "left knee" in text
    )
    assert record.message == f"KeyError: 'left knee' ({tmp_path / 'own_env.py'}:{line})"
    assert "KeyError" in record.traceback


@pytest.mark.parametrize(
    ("normalize", "learner"),
    [(False, "fast"), (True, "fast"), (False, "sb3")],
    ids=["plain", "normalised", "stock"],
)
@pytest.mark.parametrize(
    ("after_step", "message"),
    [
        ("reward = float('nan')", "rewards are not finite: nan"),
        ("reward = float('inf')", "rewards are not finite: "),
        (
            "observation = np.full(3, np.nan, np.float32)",
            "observations are not finite: nan",
        ),
    ],
    ids=["nan reward", "inf reward", "nan observation"],
)
def test_numbers_that_are_not_finite_end_as_diverged(
    tmp_path: Path, after_step: str, message: str, normalize: bool, learner: str
) -> None:
    module(tmp_path, "STEPS = 304", after_step=after_step)
    given = own(tmp_path, normalize=normalize, learner=learner)
    paths = helpers.job(tmp_path / "job", given)
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.DIVERGED, log
    assert record.message.startswith("iteration 3 (env_steps ")
    assert message in record.message
    # The checkpoint from before stands and is sound.
    state = checkpoint.load(max(paths.checkpoints.glob("*.pt")).read_bytes())
    assert state["counters"]["num_timesteps"] == 256
    assert all(torch.isfinite(tensor).all() for tensor in state["policy"].values())
    assert not paths.model.exists()


@pytest.mark.parametrize(
    "changes", [{"env": "Hopper-v5"}, {"task": "forward"}], ids=["gymnasium", "built-in task"]
)
def test_unstable_physics_ends_as_diverged_and_names_the_robot(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    # Motors strong enough to tear the robot apart.
    source = Path(gymnasium.__file__).parent / "envs/mujoco/assets/hopper.xml"
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "torn.xml").write_text(
        source.read_text().replace('gear="200.0"', 'gear="2e11"')
    )
    record, log = helpers.train_here(
        helpers.job(tmp_path, helpers.spec(**changes, xml="robot/torn.xml"))
    )
    assert record.code == ExitCode.DIVERGED, log
    assert "torn" in record.message


@pytest.mark.nightly
def test_full_disk_ends_at_the_last_whole_checkpoint_and_goes_on_once_there_is_space(
    tmp_path: Path,
) -> None:
    undisturbed = helpers.job(tmp_path / "undisturbed", own(tmp_path, total_timesteps=512))
    fill = (
        "import errno, os\n"
        "STEPS = 300\n"
        "def disk_is_full():\n"
        "    def fsync(descriptor):\n"
        "        raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    if not os.environ.get('SPACE'):\n"
        "        os.fsync = fsync"
    )
    module(tmp_path, fill, after_step="disk_is_full()")
    with mock.patch.dict(os.environ, SPACE="1"):
        helpers.train_here(undisturbed)
    paths = helpers.job(tmp_path / "job", own(tmp_path, total_timesteps=512))
    with helpers.Worker(paths) as worker:
        assert worker.wait() == ExitCode.DISK_FULL, worker.log
        assert not worker.attempt.exit.exists()
        assert not list(paths.root.rglob("*.tmp"))
    with mock.patch.dict(os.environ, SPACE="1"):
        record, log = helpers.train_here(paths, 1)
    assert (record.code, record.resumed_from) == (ExitCode.SUCCEEDED, 256), log
    assert helpers.same_bits(helpers.parameters(paths.model), helpers.parameters(undisturbed.model))


@pytest.mark.parametrize(
    ("env", "learner"),
    [pytest.param("CartPole-v1", "sb3", marks=pytest.mark.nightly), ("Pendulum-v1", "fast")],
)
def test_sigterm_leaves_at_the_next_iteration_with_a_whole_checkpoint(
    env: str, learner: str, tmp_path: Path
) -> None:
    paths = helpers.job(
        tmp_path, helpers.spec(env=env, total_timesteps=10_000_000, checkpoint_every=10_000_000)
    )
    with helpers.Worker(paths, channel=True) as worker:
        wait_for(worker, "training")
        os.kill(worker.process.pid, signal.SIGHUP)
        os.kill(worker.process.pid, signal.SIGTERM)
        assert worker.wait() == ExitCode.INTERRUPTED, worker.log
        assert worker.record.message.startswith("stopped on request; the checkpoint at ")
        assert worker.record.learner == learner
        assert [path.name for path in paths.checkpoints.iterdir()] == [
            f"checkpoint-{worker.record.env_steps:012d}.pt"
        ]


def test_checkpoints_by_time_fall_on_every_iteration_that_ends_later_and_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: dict[str, list[int]] = {}
    capture = training_state.capture

    def noted(model: Any, loop: Any) -> dict[str, Any]:
        saved[name].append(model.num_timesteps)
        return capture(model, loop)

    monkeypatch.setattr(training_state, "capture", noted)
    intervals: dict[str, dict[str, float | None]] = {
        "always": {"checkpoint_every": None, "checkpoint_every_s": 1e-9},
        "never": {"checkpoint_every": None, "checkpoint_every_s": 1e9},
        "steps": {"checkpoint_every": 256},
    }
    weights = set()
    for name, interval in intervals.items():
        saved[name] = []
        record = helpers.train_to_its_end(helpers.job(tmp_path / name, helpers.spec(**interval)))
        weights.add(record.weights_sha256)
    assert saved == {"always": [128, 256, 384, 512], "never": [512], "steps": [256, 512]}
    assert len(weights) == 1


def test_worker_and_its_children_end_when_the_supervisors_end_of_the_channel_closes(
    tmp_path: Path,
) -> None:
    fork = (
        "import subprocess, sys\n"
        "STEPS = 5\n"
        "def fork():\n"
        "    if STEPS == 0:\n"
        "        child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "        print('CHILD', child.pid, flush=True)"
    )
    module(tmp_path, fork, after_step="fork()")
    paths = helpers.job(tmp_path / "job", own(tmp_path, total_timesteps=10_000_000))
    with helpers.Worker(paths, channel=True) as worker:
        while (line := re.search(r"CHILD (\d+)\n", worker.log)) is None:  # not half of it
            assert wait_for(worker, "training")
        child = int(line[1])
        worker.channel.close()
        assert worker.wait() == -signal.SIGKILL
        wait_until(lambda: not is_running(child), "the child ends with it")


def test_worker_without_a_channel_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    paths = helpers.job(tmp_path, helpers.spec(total_timesteps=10_000_000))
    program = (
        "import subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-m', 'orchestrator.worker', sys.argv[1], '0'],"
        " start_new_session=True)\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(helpers.REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(paths.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        wait_until(lambda: paths.timings_csv.exists() or not is_running(worker), "it trains")
        assert is_running(worker)
        parent.kill()
    wait_until(lambda: not is_running(worker), "it ends with it")


@pytest.mark.nightly
def test_progress_is_told_at_most_twice_a_second_and_never_waited_for(tmp_path: Path) -> None:
    """And nothing is loaded that a training does not need."""
    # more than a second, however fast
    module(tmp_path, REPORT, after_step="report(); time.sleep(0.002)")
    paths = helpers.job(
        tmp_path / "job", own(tmp_path, learner="sb3", total_timesteps=512, eval_episodes=1)
    )
    with helpers.Worker(paths, channel=True) as worker:
        # Nobody reads until it is over: what does not fit is dropped.
        assert worker.wait() == ExitCode.SUCCEEDED, worker.log
        with worker.channel.makefile("rb") as lines:
            messages = [Progress.from_line(line) for line in lines]
        wall_s = worker.record.wall_s
        assert NOTHING_UNNEEDED in worker.log
    assert [messages[0].phase, messages[-1].phase] == ["starting", "evaluating"]
    assert wall_s is not None
    assert len(messages) <= 3 + 2 * wall_s
    training = [record for record in messages if record.phase == "training"]
    assert sorted(record.env_steps for record in training) == [
        record.env_steps for record in training
    ]
    assert training[-1].iteration > 0
    assert training[-1].ep_rew_mean is not None
    assert training[-1].learner == "sb3"
    assert 0 < (training[-1].cpu_share or 0) < 1.2


def test_a_worker_starts_no_thread_and_imports_nothing_before_it_is_set_up(tmp_path: Path) -> None:
    paths = helpers.job(tmp_path, helpers.spec(env="Pendulum-v1"))
    with helpers.Worker(paths, channel=True, goes=False) as worker:
        until_it_waits(worker.process.pid)
        assert os.listdir(f"/proc/{worker.process.pid}/task") == [str(worker.process.pid)]
        assert "libtorch" not in Path(f"/proc/{worker.process.pid}/maps").read_text()
        worker.channel.close()
        assert worker.wait() == ExitCode.ORPHANED


def test_entry_point_that_does_not_exist_is_named(tmp_path: Path) -> None:
    paths = helpers.job(tmp_path / "job", helpers.spec(entry_point="json:make_env"))
    record, _ = helpers.train_here(paths)
    assert record.code == ExitCode.ERROR
    assert record.message.startswith(
        "EntryPointError: module 'json' has nothing to call named 'make_env'"
    )
