"""A real worker trains away, its node is lost, and the training goes on from what had come home: the same bits."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import worker_helpers as worker
from command_helpers import wait_until
from file_sync_helpers import bring, tree

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.ray.file_sync import Receiver, Sender, outgoing_chunks

STOPPING = """
import os, signal
import gymnasium

class Stopping(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        Stopping.steps += 1
        if Stopping.steps == int(os.environ.get("STOP_AFTER", "0")):
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.env.step(action)

def make(xml=None, seed=0, of=""):
    return Stopping(gymnasium.make(of))
"""
"""Its own signal holds it in the middle of a rollout: it cannot be over before it is killed."""
STOP_AFTER = 1200
"""env_steps of an attempt."""
SPECS: dict[str, dict[str, Any]] = {
    "ppo": {"env_kwargs": {"of": "CartPole-v1"}, "total_timesteps": 4096, "checkpoint_every": 256, "normalize": True},
    "sac": {"algo": "sac", "env_kwargs": {"of": "Pendulum-v1"}, "total_timesteps": 4096, "checkpoint_every": 512},
}


def given(folder: Path, changes: dict[str, Any]) -> WorkerSpec:
    (folder / "stopping.py").write_text(STOPPING)
    whole = {"entry_point": "stopping:make", "search_path": str(folder), **changes}
    return worker.algorithm(**whole) if "algo" in whole else worker.spec(**whole)


class Away:
    """An attempt on another machine, whose files come home."""

    def __init__(self, home: JobPaths, root: Path, number: int) -> None:
        self._number, self._steps = number, 0
        self.paths, self.home = JobPaths(root), home
        copy = Receiver(root, durable=False)
        for piece in outgoing_chunks(home.root):
            copy.apply(piece)
        self._source, self._to_home = Sender.of_copy(root), Receiver(home.root)

    def run_until_lost(self) -> None:
        """Train until it stops itself and a checkpoint of it has come home; then all is lost at once."""
        before = newest(self.home)
        with worker.Worker(self.paths, self._number, STOP_AFTER=str(STOP_AFTER)) as process:

            def is_to_be_lost() -> bool:
                bring(self._source, self._to_home)
                has_stopped = psutil.Process(process.process.pid).status() == psutil.STATUS_STOPPED
                return has_stopped and newest(self.home) > before

            wait_until(is_to_be_lost, "it stops, and a checkpoint comes home")
            process.process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL

    def run(self) -> int:
        """Train to the end. Returns the exit code, once all is home."""
        with worker.Worker(self.paths, self._number) as process:

            def has_ended() -> bool:
                bring(self._source, self._to_home)
                return process.process.poll() is not None

            wait_until(has_ended, "its end")
            bring(self._source, self._to_home)
            assert not self._source.is_behind
            self._to_home.close()
            return process.wait()

    @property
    def record(self) -> ExitRecord:
        return ExitRecord.from_json(self.home.attempt(self._number).exit.read_text())


def newest(paths: JobPaths) -> int:
    return max((int(path.stem.rpartition("-")[2]) for path in paths.checkpoints.glob("*.pt")), default=0)


@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS.keys())
def test_a_training_whose_node_is_lost_goes_on_elsewhere_with_the_same_bits(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = given(tmp_path, changes)
    undisturbed, log = worker.run(worker.job(tmp_path / "undisturbed", spec))
    assert undisturbed.code == ExitCode.SUCCEEDED, log
    home = worker.job(tmp_path / "home", spec)

    Away(home, tmp_path / "first", 0).run_until_lost()
    reached = newest(home)
    assert 0 < reached < STOP_AFTER
    Away(home, tmp_path / "second", 1).run_until_lost()
    assert f"resumed at {reached} env_steps" in (home.attempt(1).worker_log).read_text()
    then_reached = newest(home)
    assert reached < then_reached < spec.total_timesteps

    third = Away(home, tmp_path / "third", 2)
    assert third.run() == ExitCode.SUCCEEDED, home.attempt(2).worker_log.read_text()
    assert third.record.weights_sha256 == undisturbed.weights_sha256
    assert third.record.resumed_from == then_reached
    assert worker.same_bits(worker.parameters(home.model), worker.parameters(tmp_path / "undisturbed/model.zip"))
    iterations = [row["iteration"] for row in worker.rows(home.timings_csv)]
    assert iterations == [row["iteration"] for row in worker.rows(tmp_path / "undisturbed/timings.csv")]
    there, here = tree(third.paths.root), tree(home.root)
    assert here.items() >= there.items()
    assert {name for name in here if name not in there} == {f"attempts/{number}/worker.log" for number in (0, 1)}
