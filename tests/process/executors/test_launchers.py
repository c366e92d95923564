"""The conformance suite of the local executor, and of the fake one that simulations use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import PUPPET, make_launch, make_rank_group
from fake_launcher import NEVER, Behaviour, FakeLauncher
from launcher_conformance import *  # noqa: F403 - the tests
from launcher_conformance import SAID, LocalStage, Script, Stage

from orchestrator.executors.executor import Event
from orchestrator.executors.launcher import Launch
from orchestrator.executors.processes import Processes


class FakeStage(Stage):
    simulates = True

    def __init__(self, root: Path) -> None:
        self.executor = FakeLauncher(behave=lambda launch: self._fates[launch.job_id])
        self._root = root
        self._fates: dict[str, Behaviour] = {}

    def launch(self, job_id: str, *scripts: Script) -> Launch:
        """Of ranks that all do the same, and say nothing but what all say."""
        (script,) = set(scripts)
        assert not script.says
        end = script.exits if script.dies is None else -script.dies
        self._fates[job_id] = Behaviour(
            after_s=NEVER if end is None else 1.0,
            returncode=end,
            progress_every_s=0.5,
            progress=SAID,
            exits_within_s=NEVER if script.when_asked is None else 0.1,
            returncode_asked=script.when_asked or 0,
        )
        if len(scripts) == 1:
            return make_launch(self._root, job_id)
        return make_rank_group(self._root, job_id, *([] for _ in scripts))

    def until_asked(self, job_id: str) -> list[Event]:
        """At once: nothing lies between."""
        return []

    def until_saved(self, job_id: str) -> None:
        assert isinstance(self.executor, FakeLauncher)
        assert [handle.job_id for handle in self.executor.checkpoints] == [job_id]


@pytest.fixture(params=["fake", "local"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    made: Stage = FakeStage(tmp_path)
    if request.param == "local":
        made = LocalStage(tmp_path, Processes(worker_command=PUPPET))
    yield made
    made.executor.close()
