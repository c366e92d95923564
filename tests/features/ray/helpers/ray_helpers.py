"""A Ray cluster of several nodes on this machine, shared by the tests that need one, and runs on
it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import summary, wait_until

from orchestrator.core.processes.child_process import package_path
from orchestrator.core.processes.environment_variables import CPU_LOCKS_VARIABLE
from orchestrator.core.text import install_extra
from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.features.ray import connection
from orchestrator.features.ray.cluster import cluster_token, node_settings
from orchestrator.features.ray.compatible_nodes import CompatibleNodes
from orchestrator.features.ray.connection import Connection
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.node_registry import NodeRegistry
from orchestrator.features.ray.transport import TransferMode, Transport
from orchestrator.machine.topology import detect

NODE = {"num_cpus": 4, "object_store_memory": 100 << 20, "memory": 8 << 30}
NODE |= {
    "include_dashboard": False,
    "no_monitor": True,
    "include_log_monitor": False,
}  # no test needs them

QUICK_HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "10",
}
"""A node that does not answer is declared dead after seconds: here the network never stalls."""

FRUGAL = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_metrics_collection": "0"}
"""Ray starts no processes ahead, one for each CPU of the head, and counts nothing for a
dashboard."""

TOKEN = secrets.token_hex(32)
"""The token of all clusters of this process: Ray reads it once, and must not be imported before the
first cluster."""

START_PATIENCE_S = 150.0
"""For a node to start beside other tests; Ray itself gives it up after 30 s, and leaves its processes."""


def patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Ray's ``get_node``, which raises where the node has not registered yet, but waits for it."""

    def get_registered_node(*arguments: Any) -> Any:
        deadline = time.monotonic() + START_PATIENCE_S
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)

    return get_registered_node


class Cluster:
    """A cluster for tests, on the loopback interface, with a token of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """For Ray's files; its path is short, because those of sockets have at most 107
        characters."""
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        os.environ[cluster_token.TOKEN_FILE_VARIABLE] = str(token)
        os.environ.update(node_settings.HEALTH | node_settings.PRIORITY | QUICK_HEALTH | FRUGAL)
        os.environ.update(
            cluster_token.environment(loopback=True) | package_path(), RAY_TMPDIR=str(folder)
        )
        (folder / "ray").mkdir()  # Ray writes the address of the latest cluster there
        from ray.cluster_utils import Cluster as RayCluster

        self._cluster = RayCluster(shutdown_at_exit=False)
        try:
            for _ in range(2):
                self.add()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, *, temporary: Path | None = None, **changes: Any) -> Any:
        """Add a node; the first one is the head.

        :param temporary: its temporary directory; None: a new one.
        """
        from ray._private import services

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(services, "get_node", patient(services.get_node))
            # As on separate machines: supervisors coordinate through files in these directories.
            temporary = temporary or Path(tempfile.mkdtemp(dir=self.folder))
            patch.setenv("TMPDIR", str(temporary))
            patch.setenv(CPU_LOCKS_VARIABLE, str(temporary / "cpu-holders"))
            return self._cluster.add_node(**{**NODE, "temp_dir": str(self.folder)} | changes)

    @contextlib.contextmanager
    def further(self, *, temporary: Path | None = None, **changes: Any) -> Iterator[Any]:
        """A further node, which is killed after the block if it still runs."""
        node = self.add(temporary=temporary, **changes)
        try:
            yield node
        finally:
            if node in self._cluster.list_all_nodes():
                self.kill(node)

    def name(self, node: Any) -> str:
        """The name shown to users; all nodes are on one host."""
        return f"{socket.gethostname()}/{node.node_id[:6]}"

    def kill(self, node: Any) -> None:
        """Kill a node as if its machine lost power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_raylet(self, node: Any) -> None:
        """Kill the raylet, but not its child processes."""
        (raylet,) = node.all_processes["raylet"]
        raylet.process.kill()

    def close(self) -> None:
        for node in self._cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        shutil.rmtree(self.folder, ignore_errors=True)


# -- runs


def options(cluster: Cluster, run_dir: str, storage: str | None = None) -> tuple[str, ...]:
    """Options of ``run`` for ``cluster``; ``storage`` None: the name of the run directory is also
    the storage."""
    where = ("--executor", "ray", "--ray-address", cluster.address)
    return ("--run-dir", run_dir, "--storage", storage or run_dir, *where)


def has_progressed(run_dir: Path, since: dict[str, int]) -> bool:
    """Whether every job has more env_steps than in ``since``; False without a summary."""
    if not (run_dir / "summary.json").exists():
        return False
    return all(row["env_steps"] > since[job_id] for job_id, row in summary(run_dir).items())


def checkpoints(run_dir: Path, job_id: str) -> list[int]:
    """The env_steps of its checkpoints."""
    return [
        int(path.stem.rpartition("-")[2])
        for path in (run_dir / "jobs" / job_id).glob("checkpoints/*.pt")
    ]


def until_resumed(run_dir: Path, job_id: str, number: int, env_steps: int) -> None:
    """Wait until an attempt trains from its checkpoint. From then on a worker that is asked to exit
    writes its record: while it imports what it needs it has nothing to save, and ends at once.
    (Progress in the summary may be older.)"""
    log, resumed = (
        run_dir / f"jobs/{job_id}/attempts/{number}/worker.log",
        f"resumed at {env_steps} env_steps",
    )
    wait_until(lambda: log.exists() and resumed in log.read_text(), f"{job_id} {resumed}")


def last_attempt(run_dir: Path, job_id: str) -> dict[str, Any]:
    """The exit record of a job's last attempt."""
    number = summary(run_dir)[job_id]["attempts"] - 1
    record: dict[str, Any] = json.loads(
        (run_dir / f"jobs/{job_id}/attempts/{number}/exit.json").read_text()
    )
    return record


WORKERS = f"""{commands.EXAMINE_NOTHING}{commands.with_worker(commands.STUB_WORKER)}
import functools
from orchestrator.features.ray import ray_executor
ray_executor.RayLauncher = functools.partial(ray_executor.RayLauncher, worker_command=worker)
"""
STUBBED = f"""{commands.EXAMINE_NOTHING}{commands.with_server(WORKERS)}
from orchestrator import __main__
__main__.main()
"""
"""The command line with stubs as in :data:`command_helpers.STUBS`, on the nodes of a cluster that
see the run directory."""


def stubbed(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", STUBBED, *map(str, arguments)]


SPARE_MIB, TOO_MUCH_MIB = 2048, 3072


# -- fixtures


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    """Two nodes. A test that is to be their driver connects itself."""
    with cluster() as shared:
        yield shared


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    if importlib.util.find_spec("ray") is None:  # not imported: Ray reads the environment then
        pytest.skip(f"Ray is an extra: {install_extra('ray')}")
    before = dict(os.environ)
    made = Cluster(Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")))
    try:
        yield made
    finally:
        made.close()
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def compatible_nodes(
    cluster: Cluster, root: Path, mode: TransferMode | None = None
) -> Iterator[CompatibleNodes]:
    """This process as the cluster's driver, with ``root`` as its run directory."""
    connected: Connection = connection.connect(cluster.address, detect())
    driver_directory = DriverDirectory.create(root)
    transport = Transport(mode)
    nodes = CompatibleNodes(
        NodeRegistry(connected, driver_directory, transport), ClusterSlots(), transport
    )
    try:
        nodes.assemble()
        yield nodes
    finally:
        nodes.close()
        driver_directory.remove()
        connected.close()


def until_used(nodes: CompatibleNodes, node_id: str) -> None:
    def is_used() -> bool:
        nodes.update()
        return nodes.get(node_id) is not None

    wait_until(is_used, f"{node_id} in use")


def until_unused(nodes: CompatibleNodes, node_id: str) -> None:
    def is_unused() -> bool:
        nodes.update()
        return nodes.get(node_id) is None

    wait_until(is_unused, f"{node_id} not in use")


@pytest.fixture(scope="module")
def ray_nodes(
    ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CompatibleNodes]:
    """For the tests of one file, so that those of others do not have Ray's threads in their
    process."""
    with compatible_nodes(ray_cluster, tmp_path_factory.mktemp("run"), "shared") as nodes:
        yield nodes
