"""A suspended worker that continues when its job has a later attempt: it ends, and touches nothing
any more."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import worker_helpers as helpers
from command_helpers import wait_until
from file_helpers import tree
from gymnasium import spaces
from replay_helpers import Training
from stable_baselines3.common.buffers import ReplayBuffer

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec

STOPPING = """
import os, signal
import gymnasium

class Stopping(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        Stopping.steps += 1
        if Stopping.steps == int(os.environ.get("STOP_AT", "0")):
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.env.step(action)

def make(xml=None, seed=0):
    return Stopping(gymnasium.make("CartPole-v1"))
"""
"""Its own signal comes in the middle of a rollout: no file is half written."""
TOTAL = 1024
IN_TRAINING, IN_EVALUATION = 600, TOTAL + 5


def job(directory: Path, of_ranks: int = 1) -> JobPaths:
    directory.mkdir()
    (directory / "stopping.py").write_text(STOPPING)
    return helpers.job(directory, spec(directory, of_ranks))


def spec(directory: Path, of_ranks: int = 1) -> WorkerSpec:
    return helpers.spec(
        entry_point="stopping:make",
        search_path=str(directory),
        total_timesteps=TOTAL,
        eval_episodes=1,
        ranks=of_ranks,
        hyperparameters=helpers.SMALL_PPO,
    )


def until_stopped(pid: int) -> None:
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it stops")


def without_log(paths: JobPaths) -> dict[str, bytes]:
    return {
        name: content for name, content in tree(paths.root).items() if not name.endswith(".log")
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> ExitRecord:
    return helpers.train_to_its_end(job(tmp_path_factory.mktemp("undisturbed") / "job"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "channel"),
    [
        pytest.param(IN_TRAINING, True, id="in training, at its next progress"),
        pytest.param(IN_EVALUATION, False, id="in evaluation, at its next file"),
    ],
)
def test_a_suspended_worker_leaves_the_job_to_the_attempt_that_came_after_it(
    undisturbed: ExitRecord, tmp_path: Path, place: int, channel: bool
) -> None:
    paths = job(tmp_path / "disturbed")
    with helpers.Worker(paths, 0, channel=channel, STOP_AT=str(place)) as suspended:
        until_stopped(suspended.process.pid)
        then, log = helpers.train_here(paths, 1)
        assert then.code == ExitCode.SUCCEEDED, log
        assert then.weights_sha256 == undisturbed.weights_sha256
        left = without_log(paths)
        if place == IN_TRAINING:  # that it is to leave, and save, it hears at the same moment
            suspended.process.send_signal(signal.SIGTERM)
        suspended.process.send_signal(signal.SIGCONT)
        assert suspended.wait() == ExitCode.ORPHANED, suspended.log
    assert without_log(paths) == left


def test_nothing_is_written_once_the_job_is_somebody_elses(tmp_path: Path) -> None:
    class SomebodyElsesError(Exception):
        pass

    is_somebody_elses: list[bool] = []

    def refuse() -> None:
        if is_somebody_elses:
            raise SomebodyElsesError

    box = spaces.Box(-1, 1, (2,), np.float32)
    training = Training(tmp_path, ReplayBuffer(8, box, box, n_envs=2), before_writing=refuse)
    training.save(2)
    left = tree(tmp_path)
    is_somebody_elses.append(True)
    with pytest.raises(SomebodyElsesError):
        training.save(4)
    assert tree(tmp_path) == left


def test_a_worker_that_finds_the_folder_of_the_next_attempt_ends_and_writes_nothing(
    tmp_path: Path,
) -> None:
    paths = helpers.job(tmp_path, helpers.spec(env="CartPole-v1"))
    paths.attempt(1).root.mkdir(parents=True)
    paths.attempt(0).root.mkdir()
    left = without_log(paths)
    with helpers.Worker(paths, 0) as worker:
        assert worker.wait() == ExitCode.ORPHANED, worker.log
    assert without_log(paths) == left
