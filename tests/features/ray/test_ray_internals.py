"""Ray's private names: after an upgrade of Ray, what fails here is to be adapted in
``internals.py``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_helpers import finish, wait_until
from ray_helpers import Cluster

from orchestrator.features.ray import internals
from orchestrator.features.ray.connection import Connection, connect
from orchestrator.machine.topology import detect

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def connection(ray_cluster: Cluster) -> Iterator[Connection]:
    connected = connect(ray_cluster.address, detect())
    yield connected
    connected.close()


def test_only_an_unknown_node_is_declared_dead(connection: Connection) -> None:
    assert not internals.is_declared_dead(connection.node)
    assert internals.is_declared_dead("ab" * 28)


def test_the_head_reports_its_versions(connection: Connection) -> None:
    versions = json.loads(internals.cluster_metadata(connection.head) or b"{}")
    assert versions["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["ray_version"]


def test_free_resources_are_listed_by_node(connection: Connection) -> None:
    assert internals.available_resources()[connection.node]["CPU"] == 4


def test_rays_command_line_runs(tmp_path: Path) -> None:
    program = "from orchestrator.features.ray.internals import ray_command; ray_command()"
    shown = finish([sys.executable, "-c", program, "start", "--help"], cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for option in (
        "--node-ip-address",
        "--temp-dir",
        "--include-log-monitor",
        "--object-store-memory",
    ):
        assert option in shown.stdout


@pytest.mark.usefixtures("connection")
def test_a_task_that_waits_in_a_thread_keeps_its_cpus(tmp_path: Path) -> None:
    """Two tasks that need the same three CPUs wait for one that needs none, as do two of the fourth
    CPU, which give it up while they wait: when both of these have begun, the second of the others
    would have begun, too."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def end(go: Path) -> None:
        while not go.exists():
            time.sleep(0.02)

    def wait(begun: Path, awaited: list[Any], keep: bool) -> tuple[float, float]:
        began = time.time()
        begun.touch()
        if keep:
            internals.keeping_cpus(lambda: ray.get(awaited[0]))
        else:
            ray.get(awaited[0])
        return began, time.time()

    node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    awaited = [ray.remote(num_cpus=0)(end).remote(tmp_path / "go")]

    def begin(name: str, cpus: int) -> Any:
        task = ray.remote(wait).options(num_cpus=cpus, scheduling_strategy=node)
        return task.remote(tmp_path / name, awaited, cpus > 1)

    def await_begin(name: str) -> None:
        wait_until((tmp_path / name).exists, f"{name} has begun")

    keeping = [begin("first", 3)]
    await_begin("first")
    keeping.append(begin("second", 3))
    giving_up = [begin("third", 1)]
    await_begin("third")
    giving_up.append(begin("fourth", 1))
    await_begin("fourth")
    (tmp_path / "go").touch()
    (_, first_end), (second_start, _) = sorted(ray.get(keeping))
    ray.get(giving_up)
    assert second_start > first_end
