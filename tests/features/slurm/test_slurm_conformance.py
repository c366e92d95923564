"""The conformance suite of the executor of Slurm: puppets in one pilot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import PUPPET
from launcher_conformance import *  # noqa: F403 - the tests
from launcher_conformance import LocalStage, Script, Stage

from orchestrator.executors.launcher import Launch
from orchestrator.features.slurm.pilot_registry import PilotRegistry
from orchestrator.features.slurm.slurm_launcher import SlurmLauncher
from orchestrator.machine.slots import RankSlot

pytestmark = pytest.mark.nightly


class SlurmStage(LocalStage):
    def __init__(self, root: Path, pilots: PilotRegistry) -> None:
        super().__init__(root, SlurmLauncher(pilots=pilots, worker_command=PUPPET))
        (self._pilot,) = (pilot.name for pilot in pilots.present)

    def launch(self, job_id: str, *scripts: Script) -> Launch:
        place = RankSlot(node=self._pilot, ranks=len(scripts), cores=len(scripts))
        return dataclasses.replace(super().launch(job_id, *scripts), cpus=(), rank_slots=(place,))


@pytest.fixture
def stage(tmp_path: Path, slurm_pilots: PilotRegistry) -> Iterator[Stage]:
    made = SlurmStage(tmp_path, slurm_pilots)
    yield made
    made.executor.close()
