"""The conformance suite of executors over the local one, with puppets as workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_conformance import *  # noqa: F403
from executor_conformance import Stage
from executor_helpers import PUPPET
from fake_launcher import SimulatedLocal
from launcher_conformance import LocalStage, Script
from supervisor_helpers import make_machine

from orchestrator.core.job import Job
from orchestrator.executors.processes import Processes
from orchestrator.machine.slots import SlotPool


class LocalExecutorStage(Stage):
    def __init__(self, root: Path) -> None:
        local = Processes(worker_command=PUPPET)
        self.executor = SimulatedLocal(local, SlotPool(make_machine(2)))
        self._stage = LocalStage(root, local)

    def prepare(self, job: Job, number: int, *scripts: Script) -> Path:
        launch = self._stage.launch(job.job_id, *scripts)
        (launch.job_dir / "attempts" / str(number)).mkdir(parents=True, exist_ok=True)
        return launch.job_dir


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LocalExecutorStage]:
    made = LocalExecutorStage(tmp_path)
    yield made
    made.executor.close()
