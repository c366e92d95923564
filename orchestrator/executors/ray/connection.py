"""Ray, loaded late: a cluster of this machine alone is started, or the one at an address is joined as its driver.

What Ray has to say for itself stays out of what the user sees.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.executors.process import package_path
from orchestrator.executors.ray.cluster import address, cluster_token, node_settings, query
from orchestrator.executors.ray.cluster.node_state import address_in, cluster_here
from orchestrator.executors.ray.node_agent import NAMESPACE
from orchestrator.machine.topology import Machine

LOCAL, AUTO = "local", "auto"
WITHIN = "ray"
"""Of a directory that only we can enter, the one that Ray opens to everyone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """To a cluster, as its driver; one at a time in a process."""

    head: str
    """``HOST:PORT`` of Ray's global control service."""
    node: str
    """The node that we are on."""
    before: Mapping[str, str | None]
    """What our environment was in the variables that were set for Ray, or by it."""
    directory: Path | None
    """With the files of a cluster that was started for us."""

    def close(self) -> None:
        """Leave the cluster; one that was started for us ends. What we have running in it is killed."""
        import ray

        ray.shutdown()
        _restore(self.before)
        _remove(self.directory)


def connect(where: str, machine: Machine) -> Connection:
    """:param where: ``local``: start Ray on ``machine`` alone; ``auto``: the cluster that this machine is a node of;
        else its address, ``HOST:PORT``.

    :raises UsageError: no such Ray, no such cluster, it does not let us in, or this process has used Ray otherwise.
    """
    try:
        cluster_token.require_ray()
    except UsageError as error:
        raise UsageError(f"--executor ray: {error}") from None
    directory = None
    if where == LOCAL:
        cluster_token.create_token()
        directory = _directory()
        client, variables = (
            cluster_token.environment(loopback=True),
            {**node_settings.HEALTH, **node_settings.PRIORITY, **package_path()},
        )
        offer = node_settings.offer(machine)
        wanted: dict[str, Any] = {
            "address": "local",
            "num_cpus": offer.cores,
            "num_gpus": offer.gpus,
            "object_store_memory": offer.store_mib * node_settings.MIB,
            "_memory": offer.memory_mib * node_settings.MIB,
            "include_dashboard": False,
            "_temp_dir": str(directory / WITHIN),
        }
    else:
        found = _found(where)
        client, variables = cluster_token.client_environment(found), dict(node_settings.HEALTH)
        wanted = {"address": found, "_node_ip_address": address_in(found)}
    before = dict(os.environ)
    try:
        _check_process(client)
        _imported_with.update(client)
        os.environ.update({**client, **variables})
        _initialise(where, wanted)
    except BaseException:
        _restore(_changed(before))
        _remove(directory)
        raise
    import ray

    context = ray.get_runtime_context()
    return Connection(
        head=context.gcs_address, node=context.get_node_id(), before=_changed(before), directory=directory
    )


def _directory() -> Path:
    """That only we can enter: what Ray makes in it is open to everyone."""
    usual = Path(tempfile.mkdtemp(prefix="ray-"))
    if len(str(usual / WITHIN)) <= node_settings.LONGEST_DIRECTORY:
        return usual
    usual.rmdir()
    return Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))


def _remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _found(where: str) -> str:
    """The numeric address of a cluster that answers, and lets us in."""
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
    # Ray itself would try for 20 s, print what goes on, and say at last that it failed.
    query.check(found, insecure=cluster_token.is_insecure(found))
    return found


_imported_with: dict[str, str] = {}
"""The variables that Ray has found in this process. It looks once."""


def _check_process(variables: Mapping[str, str]) -> None:
    """:raises UsageError: Ray is in use in this process, or was imported with other variables: it would hang."""
    if "ray" not in sys.modules:
        return
    import ray

    if ray.is_initialized():
        raise UsageError("--executor ray: this program has a connection to Ray of its own; ray.shutdown() ends it")
    had = _imported_with or os.environ
    if any(had.get(name) != variables.get(name) for name in {*variables, *_imported_with}):
        raise UsageError(
            "--executor ray: this program has imported Ray before, with other settings than this cluster needs, and Ray"
            " reads them once; start another program for it, and import Ray, where it must be, after the first run"
        )


def _changed(before: Mapping[str, str]) -> dict[str, str | None]:
    """The variables that are not as they were, as they were; None: not there."""
    names = {*before, *os.environ}
    return {name: before.get(name) for name in names if before.get(name) != os.environ.get(name)}


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


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
            if where == LOCAL:
                raise UsageError(f"--executor ray: Ray did not start: {_first_line(error)}") from error
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
