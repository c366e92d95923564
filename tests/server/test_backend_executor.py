"""The conformance suite of executors over the local backend, with puppets as workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_conformance import LocalStage, Script
from executor_helpers import PUPPET
from server_executor_conformance import *  # noqa: F403
from server_executor_conformance import Stage
from server_helpers import SimulatedBackend
from supervisor_helpers import make_machine

from orchestrator.core.job import Job
from orchestrator.executors.local import LocalExecutor
from orchestrator.server.backend_executor import BackendExecutor


class LocalBackendStage(Stage):
    def __init__(self, root: Path) -> None:
        local = LocalExecutor(worker_command=PUPPET)
        backend = SimulatedBackend(local, make_machine(2), None)  # type: ignore[arg-type]
        self.executor = BackendExecutor(backend=backend, now=time.monotonic)  # type: ignore[arg-type]
        self._stage = LocalStage(root, local)

    def prepare(self, job: Job, number: int, *scripts: Script) -> Path:
        launch = self._stage.launch(job.job_id, *scripts)
        (launch.job_dir / "attempts" / str(number)).mkdir(parents=True, exist_ok=True)
        return launch.job_dir


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LocalBackendStage]:
    made = LocalBackendStage(tmp_path)
    yield made
    made.executor.close()
