"""What a machine offers to a cluster, in Ray's terms, and the variables of Ray's processes.

Cores are counted as ``doctor`` counts them. Ray would take every logical CPU that the kernel lists,
and ignores a quota of a control group above its own.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass

from orchestrator.core.processes.environment_variables import worker_thread_settings
from orchestrator.machine.topology import MIB, Machine

LEAST_STORE_MIB = 96
"""Of an object store: Ray refuses one below 75 MiB."""
MOST_STORE_MIB = 2048
"""Of an object store: this program's needs are small, specs, robots and chunks of files."""
LONGEST_DIRECTORY = 43
"""Longest path of Ray's directory: Ray creates sockets with names of up to 64 characters in it; the
limit is 107."""
LEAST_RESERVE_MIB = 768
"""Memory left to the system and Ray's own processes, which take about 400 MiB on a head."""

HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "5000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "8",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_grpc_keepalive_timeout_ms": "60000",
}
"""A node is declared dead after eight failed checks, 35 s at least, so nothing is lost when the
network stalls for 20 s. With Ray's defaults (five checks, one every 3 s) a node is dead after 12 s
if the network reports that there is no route; and connections without traffic for 20 s are closed,
and the process at the other end is considered dead."""

PRIORITY = {"RAY_worker_niceness": "0"}
"""Ray's default niceness of 15 would be inherited by the training processes, and every other
process would take precedence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOffer:
    cores: int
    gpus: int
    memory_mib: int
    store_mib: int
    """Size of Ray's object store, in addition to ``memory_mib``."""

    def arguments(self) -> list[str]:
        return [
            f"--num-cpus={self.cores}",
            f"--num-gpus={self.gpus}",
            f"--memory={self.memory_mib * MIB}",
            f"--object-store-memory={self.store_mib * MIB}",
        ]


def offer(machine: Machine, shared_memory_mib: int | None = None) -> ResourceOffer:
    """:param shared_memory_mib: free space for the object store; None: ask the system."""
    if shared_memory_mib is None:
        with contextlib.suppress(OSError):  # a container without it
            shared_memory_mib = shutil.disk_usage("/dev/shm").free // MIB  # noqa: S108 - the mount, not a file in it
    total = machine.memory_total_mib
    store = min(max(total // 20, LEAST_STORE_MIB), MOST_STORE_MIB)
    if shared_memory_mib is not None:
        # Often 64 MiB in a container: Ray then uses its temporary directory.
        store = max(LEAST_STORE_MIB, min(store, shared_memory_mib * 9 // 10))
    reserve = max(LEAST_RESERVE_MIB, total // 20)
    return ResourceOffer(
        cores=machine.capacity,
        gpus=len(machine.gpus),
        memory_mib=max(total - store - reserve, total // 2),
        store_mib=store,
    )


def process_variables() -> dict[str, str]:
    """Variables for every process of Ray: few messages, one thread for computations, tolerant
    health checks.

    They are removed from the environment of training processes, which is the same as without a
    cluster.
    """
    logs = {"RAY_BACKEND_LOG_LEVEL": "warning", "RAY_DEDUP_LOGS": "0"}
    return {**worker_thread_settings(1), **HEALTH, **PRIORITY, **logs}
