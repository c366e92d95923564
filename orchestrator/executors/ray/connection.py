"""Ray, loaded late: a cluster of this machine alone is started, or the one at an address is joined as its driver.

What Ray has to say for itself stays out of what the user sees.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster import access, address, settings
from orchestrator.cluster.state import address_in, cluster_here
from orchestrator.errors import UsageError
from orchestrator.executors.process import package_path
from orchestrator.executors.ray.keeper import NAMESPACE
from orchestrator.machine import Machine

LOCAL, AUTO = "local", "auto"
PROBE_EVERY_S = 2.0
PROBE_PATIENCE_S = 5.0
HEAD_PATIENCE_S = 30.0
"""How long the head may be out of reach: a network that stalls for 20 s is none. (After 60 s Ray ends our process.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """To a cluster, as its driver; one at a time in a process."""

    head: str
    """``HOST:PORT`` of Ray's global control service."""
    node: str
    """The node that we are on."""

    def close(self) -> None:
        """Leave the cluster; one that was started for us ends. What we have running in it is killed."""
        import ray

        ray.shutdown()


def connect(where: str, machine: Machine) -> Connection:
    """:param where: ``local``: start Ray on ``machine`` alone; ``auto``: the cluster that this machine is a node of;
        else its address, ``HOST:PORT``.

    :raises UsageError: no such Ray, no such cluster, or it does not let us in.
    """
    try:
        access.require_ray()
    except UsageError as error:
        raise UsageError(f"--executor ray: {error}") from None
    wanted: dict[str, Any] = {}
    if where == LOCAL:
        access.create_token()
        os.environ.update(access.environment(loopback=True) | settings.HEALTH | package_path())
        offer = settings.offer(machine)
        wanted = {
            "address": "local",
            "num_cpus": offer.cores,
            "num_gpus": offer.gpus,
            "object_store_memory": offer.store_mib * settings.MIB,
            "_memory": offer.memory_mib * settings.MIB,
            "include_dashboard": False,
        }
    else:
        found = _found(where)
        wanted = {"address": found, "_node_ip_address": address_in(found)}
    _initialise(where, wanted)
    import ray

    context = ray.get_runtime_context()
    return Connection(head=context.gcs_address, node=context.get_node_id())


def _found(where: str) -> str:
    """The numeric address of a cluster that answers. Sets what Ray must know to be let in."""
    named = where
    if where == AUTO:
        here = cluster_here() or os.environ.get("RAY_ADDRESS")
        if not here:
            raise UsageError(
                "--ray-address auto: this machine is no node of a cluster; `cluster join HOST:PORT` makes it one"
            )
        named = here
    host, port = address.parse(named)
    if (why := address.answers(host, port)) is not None:
        raise UsageError(f"--ray-address {where}: no Ray cluster at {named} ({why}); `cluster up` starts one")
    found = address.joined(host, port)
    os.environ.update(access.client_environment(found))
    return found


def _initialise(where: str, wanted: dict[str, Any]) -> None:
    import logging

    import ray

    with _signals_kept():
        try:
            ray.init(
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **wanted,
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            raise UsageError(
                f"--ray-address {where}: Ray does not let us in: {_first_line(error)}. This machine must be a node of"
                " the cluster: `cluster join HOST:PORT` makes it one"
            ) from error
    _hush()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray puts its own handlers in the place of ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hush() -> None:
    """Ray prints what befalls its own processes, whatever it is told about logs: we tell that in our own words."""
    from ray._private import worker

    worker._worker_logs_enabled = False


class HeadWatch:
    """Whether the head can be reached, asked again and again in a thread of its own.

    Ray itself would wait for a minute and then end the process, with a trace of its own code.
    """

    def __init__(self, head: str) -> None:
        host, _, port = head.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._failing_since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="head-watch", daemon=True)
        self._thread.start()

    @property
    def missing_s(self) -> float:
        """Since when it has not answered: since a probe failed, for we may have been stopped ourselves."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def answers(self) -> bool:
        return self.missing_s < PROBE_EVERY_S + PROBE_PATIENCE_S

    def close(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                socket.create_connection(self._place, timeout=PROBE_PATIENCE_S).close()
                self._failing_since = None
            except OSError:
                if self._failing_since is None:
                    self._failing_since = began
            self._over.wait(PROBE_EVERY_S)
