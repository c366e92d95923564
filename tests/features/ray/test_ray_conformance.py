"""The conformance suite of the executor of Ray: puppets on one node of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import PUPPET
from launcher_conformance import *  # noqa: F403 - the tests
from launcher_conformance import LocalStage, Script, Stage

from orchestrator.executors.launcher import Launch
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.ray_launcher import RayLauncher
from orchestrator.features.ray.transport import Transport
from orchestrator.machine.slots import RankSlot

pytestmark = pytest.mark.nightly


class RayStage(LocalStage):
    def __init__(self, root: Path, nodes: CompatibleNodes, node: str) -> None:
        super().__init__(root, RayLauncher(nodes=nodes, worker_command=PUPPET))
        self._node = node

    def launch(self, job_id: str, *scripts: Script) -> Launch:
        place = RankSlot(node=self._node, ranks=len(scripts), cores=len(scripts))
        return dataclasses.replace(super().launch(job_id, *scripts), cpus=(), rank_slots=(place,))


@pytest.fixture(params=["here", "elsewhere"])
def stage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ray_nodes: CompatibleNodes,
) -> Iterator[Stage]:
    here = ray_nodes.registry.driver_node
    node = here
    if request.param == "elsewhere":
        # As where a node sees no file of ours.
        monkeypatch.setattr(ray_nodes, "transport", Transport("stream"))
        node = next(one.node_id for one in ray_nodes.all if one.node_id != here)
    made = RayStage(tmp_path, ray_nodes, node)
    made.has_disk_of_its_own = request.param == "elsewhere"
    yield made
    made.executor.close()
