"""A real worker trains away, its node is lost, and the training goes on from what had come home: the same bits."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as worker
from mirror_helpers import bring, tree

from orchestrator.contract import ExitCode, ExitRecord, JobPaths, WorkerSpec
from orchestrator.mirror import Home, Source, outgoing

LOOK_EVERY_S = 0.02
"""Between scans: short beside a training, so that it is not over before it is killed."""
SPECS: dict[str, dict[str, Any]] = {
    "ppo": {"total_timesteps": 8192, "checkpoint_every": 256, "normalize": True},
    "sac": {"algo": "sac", "total_timesteps": 6144, "checkpoint_every": 512},
}


def given(changes: dict[str, Any]) -> WorkerSpec:
    return worker.algorithm(**changes) if "algo" in changes else worker.spec(**changes)


class Away:
    """An attempt on another machine, whose files come home."""

    def __init__(self, home: JobPaths, root: Path, number: int) -> None:
        self._number, self._steps = number, 0
        self.paths, self.home = JobPaths(root), home
        copy = Home(root, durable=False)
        for piece in outgoing(home.root):
            copy.apply(piece)
        self._source, self._to_home = Source.of_copy(root), Home(home.root)

    def run(self, *, until_steps: int | None = None) -> int:
        """Train, to the end or until a checkpoint of so many env_steps or more is home; then all is lost at once."""
        with worker.Worker(self.paths, self._number) as process:
            while process.process.poll() is None:
                bring(self._source, self._to_home)
                if until_steps is not None and newest(self.home) >= until_steps:
                    process.process.send_signal(signal.SIGKILL)
                    return process.wait()
                time.sleep(LOOK_EVERY_S)
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
    spec = given(changes)
    undisturbed, log = worker.run(worker.job(tmp_path / "undisturbed", spec))
    assert undisturbed.code == ExitCode.SUCCEEDED, log
    home = worker.job(tmp_path / "home", spec)

    assert Away(home, tmp_path / "first", 0).run(until_steps=1) == -signal.SIGKILL
    reached = newest(home)
    second = Away(home, tmp_path / "second", 1)
    assert second.run(until_steps=reached + 1024) == -signal.SIGKILL
    assert f"resumed at {reached} env_steps" in (home.attempt(1).worker_log).read_text()

    third = Away(home, tmp_path / "third", 2)
    assert third.run() == ExitCode.SUCCEEDED, home.attempt(2).worker_log.read_text()
    assert third.record.weights_sha256 == undisturbed.weights_sha256
    assert third.record.resumed_from is not None
    assert third.record.resumed_from >= reached + 1024
    assert worker.same_bits(worker.parameters(home.model), worker.parameters(tmp_path / "undisturbed/model.zip"))
    iterations = [row["iteration"] for row in worker.rows(home.timings_csv)]
    assert iterations == [row["iteration"] for row in worker.rows(tmp_path / "undisturbed/timings.csv")]
    there, here = tree(third.paths.root), tree(home.root)
    assert here.items() >= there.items()
    assert {name for name in here if name not in there} == {f"attempts/{number}/worker.log" for number in (0, 1)}
