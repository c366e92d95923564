"""Ray's private names, one test each: after an upgrade of Ray, what fails here is to be adapted in ``internals.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from command_helpers import environment
from ray_helpers import Cluster

from orchestrator.executors.ray import internals
from orchestrator.executors.ray.connection import Connection, connect
from orchestrator.machine.topology import detect

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def connection(ray_cluster: Cluster) -> Iterator[Connection]:
    connected = connect(ray_cluster.address, detect())
    yield connected
    connected.close()


@pytest.mark.usefixtures("connection")
def test_worker_messages_are_hidden() -> None:
    from ray._private import worker

    assert worker._worker_logs_enabled is False


def test_only_an_unknown_node_is_declared_dead(connection: Connection) -> None:
    assert not internals.is_declared_dead(connection.node)
    assert internals.is_declared_dead("ab" * 28)


def test_the_head_reports_its_versions(connection: Connection) -> None:
    versions = json.loads(internals.cluster_metadata(connection.head) or b"{}")
    assert versions["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["ray_version"]


def test_free_resources_are_listed_by_node(connection: Connection) -> None:
    assert internals.available_resources()[connection.node]["CPU"] == 4


def test_rays_command_line_runs() -> None:
    program = "from orchestrator.executors.ray.internals import ray_command; ray_command()"
    shown = subprocess.run(
        [sys.executable, "-c", program, "start", "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    for option in ("--node-ip-address", "--temp-dir", "--include-log-monitor", "--object-store-memory"):
        assert option in shown.stdout
