"""A Ray cluster of several nodes on this machine, shared by the tests that need one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster import access, settings
from orchestrator.executors.process import package_path
from orchestrator.executors.ray import connection
from orchestrator.executors.ray.connection import Connection
from orchestrator.executors.ray.fleet import Fleet
from orchestrator.executors.ray.keeper import Home
from orchestrator.executors.ray.nodes import Nodes
from orchestrator.executors.ray.pool import ClusterPool
from orchestrator.executors.ray.transport import Transport, Way
from orchestrator.machine import detect

NODE = {"num_cpus": 4, "object_store_memory": 100 << 20, "memory": 8 << 30, "include_dashboard": False}

QUICK_HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "6",
}
"""A node that does not answer is given up after seconds: here the network never stalls."""

TOKEN = secrets.token_hex(32)
"""Of all clusters of this process: Ray reads it once. It must not have been imported before the first one."""


class Cluster:
    """Nodes that were started for tests, on the loopback interface, with a token of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Of Ray's own files; short, as sockets have paths of at most 107 characters."""
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        os.environ[access.TOKEN_FILE_VARIABLE] = str(token)
        os.environ.update(access.environment(loopback=True) | settings.HEALTH | QUICK_HEALTH, RAY_TMPDIR=str(folder))
        os.environ.update(package_path())
        (folder / "ray").mkdir()  # a file with the latest cluster's address goes there
        from ray.cluster_utils import Cluster as RayCluster

        self._cluster = RayCluster(shutdown_at_exit=False)
        try:
            for _ in range(3):
                self.add()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, **changes: Any) -> Any:
        """A further node; the first one is the head."""
        with pytest.MonkeyPatch.context() as patch:
            # Of its own, as machines have: there supervisors keep out of each other's way.
            patch.setenv("TMPDIR", tempfile.mkdtemp(dir=self.folder))
            return self._cluster.add_node(**{**NODE, "temp_dir": str(self.folder)} | changes)

    def kill(self, node: Any) -> None:
        """As if its machine lost power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Its control service alone: a raylet that is left would end by itself in time."""
        (head,) = self._cluster.head_node.all_processes["gcs_server"]
        head.process.kill()

    def close(self) -> None:
        for node in self._cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    """Three nodes. Its processes are children of this one; who wants to be its driver connects by himself."""
    with cluster() as shared:
        yield shared


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    if importlib.util.find_spec("ray") is None:  # not imported yet: it looks at the environment then
        pytest.skip("Ray is an extra: pip install 'mujoco-orchestrator[ray]'")
    before = dict(os.environ)
    made = Cluster(Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")))
    try:
        yield made
    finally:
        made.close()
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def fleet_of(cluster: Cluster, root: Path, way: Way | None = None) -> Iterator[Fleet]:
    """This process as the cluster's driver, with ``root`` as its run directory."""
    connected: Connection = connection.connect(cluster.address, detect())
    home = Home.at(root)
    fleet = Fleet(Nodes(connected, home), ClusterPool(), Transport(way))
    try:
        fleet.assemble()
        yield fleet
    finally:
        fleet.close()
        home.leave()
        connected.close()


@pytest.fixture(scope="module")
def ray_fleet(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """As long as a file's tests run: others are not to have Ray's threads in their process."""
    with fleet_of(ray_cluster, tmp_path_factory.mktemp("home"), "shared") as fleet:
        yield fleet
