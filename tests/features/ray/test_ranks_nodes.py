"""What ranks on several nodes of a cluster are told of each other and of their network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from executor_helpers import PUPPET, Order, make_rank_group, until_exit

from orchestrator.core.processes.environment_variables import RANKS_SECRET_VARIABLE
from orchestrator.features.ray import node_attempt
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.node_attempt import GLOO_INTERFACE_VARIABLE
from orchestrator.features.ray.ray_launcher import RayLauncher
from orchestrator.machine.slots import RankSlot

pytestmark = pytest.mark.nightly

LOOK: list[Order] = [("look", None), ("exit", 0)]


@pytest.fixture
def executor(ray_nodes: CompatibleNodes) -> Iterator[RayLauncher]:
    executor = RayLauncher(nodes=ray_nodes, worker_command=PUPPET)
    yield executor
    executor.close()


def seen(root: Path, executor: RayLauncher, job_id: str) -> list[dict[str, str]]:
    """The environment of each of two ranks, on a node each."""
    rank_slots = tuple(RankSlot(node=node.node_id, cores=3) for node in executor.nodes.all[:2])
    launch = dataclasses.replace(
        make_rank_group(root, job_id, LOOK, LOOK), cpus=(), rank_slots=rank_slots
    )
    handle = executor.submit(launch)
    assert until_exit(executor, handle)[handle].returncode == 0
    return [
        json.loads((launch.job_dir / name).read_text()) for name in ("seen.json", "seen-1.json")
    ]


def test_ranks_over_nodes_have_a_secret_in_common_that_no_other_attempt_has(
    tmp_path: Path, executor: RayLauncher
) -> None:
    secrets = [
        {rank[RANKS_SECRET_VARIABLE] for rank in seen(tmp_path, executor, job_id)}
        for job_id in ("a", "b")
    ]
    (first,), (second,) = secrets
    assert len(first) == len(second) == 64
    assert first != second
    written = [
        path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith("seen")
    ]
    assert written
    assert not [path for path in written if first.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.0.2", {GLOO_INTERFACE_VARIABLE: "ib0"}),
        ("fe80::2", {GLOO_INTERFACE_VARIABLE: "eth0"}),
        ("10.9.9.9", {}),
    ],
)
@pytest.mark.usefixtures("ray_cluster")
def test_the_interface_is_found_by_address(
    monkeypatch: pytest.MonkeyPatch, address: str, expected: dict[str, str]
) -> None:
    import ray

    addresses = {
        "lo": ["127.0.0.1"],
        "eth0": ["192.168.0.2", "fe80::2%eth0"],
        "ib0": ["02:42:ac", "10.1.0.2"],
    }
    there = {name: [SimpleNamespace(address=one) for one in has] for name, has in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: address)
    monkeypatch.delenv(GLOO_INTERFACE_VARIABLE, raising=False)
    assert node_attempt._interface() == expected
    monkeypatch.setenv(GLOO_INTERFACE_VARIABLE, "eth7")
    assert node_attempt._interface() == {}, "the user of this node has chosen"
