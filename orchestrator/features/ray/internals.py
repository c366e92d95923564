"""Every private name of Ray that this program uses, so that an upgrade of Ray is checked in one
file.

``tests/features/ray/test_ray_internals.py`` tests the essential ones by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

ASK_TIMEOUT_S = 5.0

Result = TypeVar("Result")


def driver_variables() -> dict[str, str]:
    """Variables that keep a driver alive whose node has died, so that it can end in order.

    Ray ends a process at once, without a message, when its connection to the node fails and the
    process that ``RAY_RAYLET_PID`` names (without it: the parent process, which a driver in the
    background may have lost) has ended.
    """
    return {"RAY_RAYLET_PID": str(os.getpid())}


def keeping_cpus(wait: Callable[[], Result]) -> Result:
    """Call ``wait``, which waits for Ray, in a thread: while a task's main thread waits, Ray lends
    out its CPUs.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(wait).result()


def hide_worker_messages() -> None:
    """Ray prints what happens to its own processes even with its logs off; this program reports it
    itself.
    """
    from ray._private import worker

    worker._worker_logs_enabled = False


def is_declared_dead(node_id: str) -> bool:
    """Whether the cluster's head has declared the node dead; asked on the node, where Ray need not
    notice.

    :raises Exception: there is no answer, or another version of Ray has no such names.
    """
    from ray._private import worker
    from ray._raylet import NodeID

    client: Any = worker.global_worker
    (is_alive,) = client.gcs_client.check_alive([NodeID.from_hex(node_id)], timeout=ASK_TIMEOUT_S)
    return not is_alive


def cluster_metadata(head: str) -> bytes | None:
    """What the head at ``HOST:PORT`` says about itself, as JSON with ``ray_version`` and
    ``python_version``.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

    metadata: bytes | None = GcsClient(address=head).internal_kv_get(
        b"CLUSTER_METADATA", b"cluster", timeout=ASK_TIMEOUT_S
    )
    return metadata


def available_resources() -> Mapping[str, Mapping[str, float]]:
    """Node → its free resources by name, in Ray's units. Needs a connection."""
    from ray._private import state

    free: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()
    return free


def ray_command() -> None:
    """Ray's command line, as its ``ray`` program runs it, with three changes.

    It may open as many files as this user is allowed to (each node and worker is a connection). And
    127.0.0.1 remains 127.0.0.1: Ray replaces it by the machine's outward address, and then listens
    on all interfaces. And a head starts no server of Ray Client, which Ray does where a package
    such as TensorBoard has installed grpcio.
    """
    import resource

    from ray._private import services
    from ray.scripts import scripts

    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if not hasattr(services, "resolve_ip_for_localhost"):
        raise SystemExit(
            "this version of Ray would listen on all interfaces, whatever address it is given"
        )
    services.resolve_ip_for_localhost = lambda host: host
    if not hasattr(scripts, "get_ray_client_dependency_error"):
        raise SystemExit("this version of Ray would start a server of Ray Client beside the head")
    scripts.get_ray_client_dependency_error = lambda: ImportError("not used")
    scripts.main()
