"""The record of a cluster's node, and the end of its processes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator

import pytest
from cluster_helpers import cluster_home  # noqa: F401 - a fixture

from orchestrator.core.errors import UsageError
from orchestrator.features.ray.cluster import down, node_state
from orchestrator.features.ray.cluster.node_state import LocalNode, NodeProcess
from orchestrator.machine.process_identity import boot_id, process_start


def node(**changes: object) -> LocalNode:
    made = LocalNode(
        role="node",
        cluster="10.0.0.1:6379",
        address="10.0.0.2",
        insecure=False,
        mark=f"mark-{os.getpid()}-{id(changes)}",
        directory="/nonexistent",
        started="2026-11-20 12:00:00 UTC",
        boot=boot_id(),
        processes=(),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def recorded(process: subprocess.Popen[bytes], *, later: float = 0.0) -> NodeProcess:
    begun = process_start(process.pid)
    assert begun is not None
    return NodeProcess(name="raylet", pid=process.pid, start=begun + later)


def test_a_record_comes_back_as_it_was(bystander: subprocess.Popen[bytes]) -> None:
    assert node_state.load() is None
    assert node_state.local_cluster() is None
    kept = node(processes=(recorded(bystander),))
    node_state.save(kept)
    assert node_state.load() == kept
    assert node_state.local_cluster() == "10.0.0.1:6379"
    node_state.delete()
    assert node_state.load() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"processes": [{}]}', '{"processes": 1}'])
def test_a_damaged_record_is_refused(text: str) -> None:
    node_state.save(node())
    node_state.path().write_text(text)
    with pytest.raises(UsageError, match="not a valid record of a cluster's node"):
        node_state.load()


def test_a_process_that_has_reused_a_pid_is_not_ended(bystander: subprocess.Popen[bytes]) -> None:
    node_state.save(node(processes=(recorded(bystander, later=1.0),)))
    assert node_state.local_cluster() is None
    assert down.down() == [
        "nothing to end: 10.0.0.2, a node of the cluster at 10.0.0.1:6379 had already ended"
    ]
    assert bystander.poll() is None
    assert node_state.load() is None


def test_after_a_reboot_no_recorded_process_is_ended(bystander: subprocess.Popen[bytes]) -> None:
    node_state.save(node(processes=(recorded(bystander),), boot="another"))
    assert down.down()[0].startswith("nothing to end: ")
    assert bystander.poll() is None


def test_one_command_at_a_time() -> None:
    with (
        node_state.exclusive(),
        pytest.raises(UsageError, match="another `cluster` command is running"),
    ):
        down.down()
    assert down.down()[0].startswith("nothing to end")
