"""The connection to Ray, imported late: to a cluster started on this machine, or to an existing one
as its driver.

Ray's own messages are hidden from the user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.processes.child_process import package_path
from orchestrator.core.processes.process_setup import STOP_SIGNALS
from orchestrator.features.ray import internals
from orchestrator.features.ray.cluster import address, cluster_token, node_settings, query
from orchestrator.features.ray.cluster.node_state import (
    AUTO,
    address_in,
    refuse_broken,
    usual_cluster,
)
from orchestrator.features.ray.node_agent import NAMESPACE
from orchestrator.machine.gpu import detect_gpus
from orchestrator.machine.topology import MIB, Machine

LOCAL = "local"
SUBFOLDER = "ray"
"""Ray makes its directory accessible to everyone, so it lies in one that is accessible to its owner
only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A driver's connection to a cluster; one at a time in a process."""

    head: str
    """``HOST:PORT`` of Ray's global control service."""
    node: str
    saved_environment: Mapping[str, str | None]
    """The variables that were set for Ray or by it, with their values before."""
    directory: Path | None

    def close(self) -> None:
        """Leave the cluster, which kills what still runs in it; one that was started for this
        connection ends.
        """
        import ray

        ray.shutdown()
        _restore(self.saved_environment, self.directory)


def _executor() -> str:
    return option("executor", "ray")


def connect(ray_address: str, machine: Machine) -> Connection:
    """:param ray_address: ``local``: start Ray on ``machine``; ``auto``: the cluster that this
    machine is a node of;
        else ``HOST:PORT``.

    :raises UsageError: Ray is missing or was used otherwise in this process, or the cluster cannot
        be used.
    """
    try:
        cluster_token.require_ray()
    except UsageError as error:
        raise UsageError(f"{_executor()}: {error}") from None
    directory = None
    options = dict[str, Any]()
    if ray_address == LOCAL:
        cluster_token.create_token()
        directory = _create_directory()
        client = cluster_token.environment(loopback=True)
        variables = {**node_settings.HEALTH, **node_settings.PRIORITY, **package_path()}
        offer = node_settings.offer(replace(machine, gpus=machine.gpus or detect_gpus()))
        options = {
            "address": "local",
            "num_cpus": offer.cores,
            "num_gpus": offer.gpus,
            "object_store_memory": offer.store_mib * MIB,
            "_memory": offer.memory_mib * MIB,
            "include_dashboard": False,
            "_temp_dir": str(directory / SUBFOLDER),
        }
    else:
        cluster = _find_cluster(ray_address)
        client = cluster_token.client_environment(cluster)
        variables = dict(node_settings.HEALTH)
        options = {"address": cluster, "_node_ip_address": address_in(cluster)}
    before = dict(os.environ)
    try:
        _check_process(client)
        _imported_with.update(client)
        os.environ.update({**client, **variables, **internals.driver_variables()})
        _initialise(ray_address, options)
    except BaseException:
        _restore(_changed_since(before), directory)
        raise
    import ray

    context = ray.get_runtime_context()
    return Connection(
        head=context.gcs_address,
        node=context.get_node_id(),
        saved_environment=_changed_since(before),
        directory=directory,
    )


def _create_directory() -> Path:
    default = Path(tempfile.mkdtemp(prefix="ray-"))
    if len(str(default / SUBFOLDER)) <= node_settings.LONGEST_DIRECTORY:
        return default
    default.rmdir()
    return Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))


def _find_cluster(ray_address: str) -> str:
    """The numeric address of a cluster that answers and accepts our token."""
    name = usual_cluster() if ray_address == AUTO else ray_address
    if not name:
        refuse_broken(None)
        advice = "`cluster join HOST:PORT` makes it one"
        raise UsageError(
            f"{option('ray_address', AUTO)}: this machine is not a node of a cluster; {advice}"
        )
    given = option("ray_address", ray_address)
    host, port = address.parse(name)
    refuse_broken(address.host_port(host, port))
    if (why := address.connect_error(host, port)) is not None:
        raise UsageError(f"{given}: no Ray cluster at {name} ({why}); `cluster up` starts one")
    cluster = address.host_port(host, port)
    # Ray itself would try for 20 s while it prints messages, and then only say that it failed.
    query.check(cluster, insecure=cluster_token.is_insecure(cluster))
    return cluster


_imported_with: dict[str, str] = {}
"""The variables that Ray has read in this process. It reads them once."""


def _check_process(variables: Mapping[str, str]) -> None:
    """:raises UsageError: this process uses Ray, or imported it with other variables, so that it
    would hang.
    """
    if "ray" not in sys.modules:
        return
    import ray

    if ray.is_initialized():
        raise UsageError(
            f"{_executor()}: this program has a connection to Ray of its own; ray.shutdown() ends it"
        )
    earlier = _imported_with or os.environ
    if any(earlier.get(name) != variables.get(name) for name in {*variables, *_imported_with}):
        raise UsageError(
            f"{_executor()}: this program has imported Ray before, with other settings than this cluster needs, and Ray"
            " reads them once; start another program for this cluster, and import Ray, if necessary, after the first"
            " run"
        )


def _changed_since(before: Mapping[str, str]) -> dict[str, str | None]:
    """The variables that have changed, with their values before; None: it did not exist."""
    names = {*before, *os.environ}
    return {name: before.get(name) for name in names if before.get(name) != os.environ.get(name)}


def _restore(variables: Mapping[str, str | None], directory: Path | None) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _initialise(ray_address: str, options: dict[str, Any]) -> None:
    import logging

    import ray

    with _signal_handlers_kept():
        try:
            ray.init(
                namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL, **options
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
            if ray_address == LOCAL:
                raise UsageError(f"{_executor()}: Ray did not start: {reason}") from error
            advice = (
                "This machine must be a node of the cluster: `cluster join HOST:PORT` makes it one"
            )
            refused = f"{option('ray_address', ray_address)}: Ray refuses the connection: {reason}"
            raise UsageError(f"{refused}. {advice}") from error
    internals.hide_worker_messages()


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray replaces the process's signal handlers; restore them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
