"""A real worker trains on a node that is lost; it resumes elsewhere from the synchronised files,
bit-identically."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import worker_helpers as worker
from command_helpers import wait_until
from file_helpers import tree
from file_sync_helpers import synchronise

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender, outgoing_chunks

pytestmark = pytest.mark.nightly

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
"""The worker stops itself in the middle of a rollout, so that it cannot end before it is killed."""
STOP_AFTER = 700
"""In env_steps of an attempt."""
SPECS: dict[str, dict[str, Any]] = {
    "ppo": {
        "env_kwargs": {"of": "CartPole-v1"},
        "total_timesteps": 2048,
        "checkpoint_every": 256,
        "normalize": True,
    },
    "sac": {
        "algo": "sac",
        "env_kwargs": {"of": "Pendulum-v1"},
        "total_timesteps": 2048,
        "checkpoint_every": 512,
    },
}


def write_spec(folder: Path, changes: dict[str, Any]) -> WorkerSpec:
    (folder / "stopping.py").write_text(STOPPING)
    whole = {"entry_point": "stopping:make", "search_path": str(folder), **changes}
    return worker.algorithm(**whole) if "algo" in whole else worker.spec(**whole)


class RemoteTraining:
    """An attempt in another directory, whose files are synchronised with the driver's."""

    def __init__(self, driver: JobPaths, root: Path, number: int) -> None:
        self._number, self._steps = number, 0
        self.paths, self.driver = JobPaths(root), driver
        copy = Receiver(root, durable=False)
        for chunk in outgoing_chunks(driver.root):
            copy.apply(chunk)
        self._sender, self._receiver = Sender.of_copy(root), Receiver(driver.root)

    def run_until_lost(self) -> None:
        """Train until the worker stops itself and a new checkpoint has been received; then kill
        it."""
        before = newest(self.driver)
        with worker.Worker(self.paths, self._number, STOP_AFTER=str(STOP_AFTER)) as process:

            def can_be_lost() -> bool:
                synchronise(self._sender, self._receiver)
                has_stopped = psutil.Process(process.process.pid).status() == psutil.STATUS_STOPPED
                return has_stopped and newest(self.driver) > before

            wait_until(can_be_lost, "the worker to stop, and a checkpoint to be received")
            process.process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL

    def run(self) -> int:
        """Train to the end. Returns the exit code, once every file has been received."""
        with worker.Worker(self.paths, self._number) as process:

            def has_ended() -> bool:
                synchronise(self._sender, self._receiver)
                return process.process.poll() is not None

            wait_until(has_ended, "the end of the worker")
            synchronise(self._sender, self._receiver)
            assert not self._sender.is_incomplete
            self._receiver.close()
            return process.wait()

    @property
    def record(self) -> ExitRecord:
        return ExitRecord.from_json(self.driver.attempt(self._number).exit.read_text())


def newest(paths: JobPaths) -> int:
    return max(
        (int(path.stem.rpartition("-")[2]) for path in paths.checkpoints.glob("*.pt")), default=0
    )


@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS.keys())
def test_a_training_whose_node_is_lost_resumes_on_another_node_bit_identically(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = write_spec(tmp_path, changes)
    undisturbed, log = worker.run(worker.job(tmp_path / "undisturbed", spec))
    assert undisturbed.code == ExitCode.SUCCEEDED, log
    driver = worker.job(tmp_path / "driver", spec)

    RemoteTraining(driver, tmp_path / "first", 0).run_until_lost()
    reached = newest(driver)
    assert 0 < reached < STOP_AFTER
    RemoteTraining(driver, tmp_path / "second", 1).run_until_lost()
    assert f"resumed at {reached} env_steps" in (driver.attempt(1).worker_log).read_text()
    then_reached = newest(driver)
    assert reached < then_reached < spec.total_timesteps

    third = RemoteTraining(driver, tmp_path / "third", 2)
    assert third.run() == ExitCode.SUCCEEDED, driver.attempt(2).worker_log.read_text()
    assert third.record.weights_sha256 == undisturbed.weights_sha256
    assert third.record.resumed_from == then_reached
    assert worker.same_bits(
        worker.parameters(driver.model), worker.parameters(tmp_path / "undisturbed/model.zip")
    )
    iterations = [row["iteration"] for row in worker.rows(driver.timings_csv)]
    assert iterations == [
        row["iteration"] for row in worker.rows(tmp_path / "undisturbed/timings.csv")
    ]
    on_node, at_driver = tree(third.paths.root), tree(driver.root)
    assert at_driver.items() >= on_node.items()
    assert {name for name in at_driver if name not in on_node} == {
        f"attempts/{number}/worker.log" for number in (0, 1)
    }
