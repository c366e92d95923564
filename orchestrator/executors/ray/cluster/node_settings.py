"""What a machine offers to a cluster, in Ray's terms: counted as ``doctor`` counts, not as Ray does.

Ray takes every logical CPU that the kernel lists, and knows nothing of a quota in a group above its own.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from orchestrator.core.environment import worker_thread_settings
from orchestrator.machine.topology import Machine

MIB = 1 << 20
LEAST_STORE_MIB, MOST_STORE_MIB = 96, 2048
"""Ray refuses an object store below 75 MiB. Ours carries spec, robot and small pieces of files, one after the other."""
LONGEST_DIRECTORY = 43
"""For Ray's files: below it Ray makes sockets with names of up to 64 characters, of at most 107 in all."""
LEAST_RESERVE_MIB = 768
"""For the system and Ray's own processes, which take about 400 MiB on a head."""

HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "5000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "8",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_grpc_keepalive_timeout_ms": "60000",
}
"""A node is given up after eight checks that failed, 35 s at least: in a network that is silent for 20 s nothing is
lost. Ray's own five checks every 3 s give it up after 12 s where the network says at once that there is no way; and its
processes would close connections over which nothing came for 20 s, and take whoever is at the other end for dead."""

PRIORITY = {"RAY_worker_niceness": "0"}
"""Ray makes its workers nice (15), and ours would inherit that: whatever else runs on the machine would push them
aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOffer:
    """What one machine brings into the cluster."""

    cores: int
    gpus: int
    memory_mib: int
    """For jobs."""
    store_mib: int
    """Of Ray's object store, beside ``memory_mib``."""

    def arguments(self) -> list[str]:
        """For ``ray start``."""
        return [
            f"--num-cpus={self.cores}",
            f"--num-gpus={self.gpus}",
            f"--memory={self.memory_mib * MIB}",
            f"--object-store-memory={self.store_mib * MIB}",
        ]


def offer(machine: Machine, shared_memory_mib: int | None = None) -> ResourceOffer:
    """What ``machine`` has for jobs.

    :param shared_memory_mib: free space where the object store will lie; asked of the system when not given.
    """
    if shared_memory_mib is None:
        shared_memory_mib = _shared_memory_mib()
    total = machine.memory_total_mib
    store = min(max(total // 20, LEAST_STORE_MIB), MOST_STORE_MIB)
    if shared_memory_mib is not None:  # a container's is often 64 MiB: Ray then takes its temporary directory
        store = max(LEAST_STORE_MIB, min(store, shared_memory_mib * 9 // 10))
    reserve = max(LEAST_RESERVE_MIB, total // 20)
    return ResourceOffer(
        cores=machine.capacity,
        gpus=len(machine.gpus),
        memory_mib=max(total - store - reserve, total // 2),
        store_mib=store,
    )


def _shared_memory_mib() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").free // MIB  # noqa: S108 - the mount, not a file in it
    except OSError:
        return None


def process_variables() -> dict[str, str]:
    """For every process of Ray: quiet, one thread each for what it computes, patient.

    Training processes have the same environment as on one machine: what is Ray's is taken out of it.
    """
    return {
        **worker_thread_settings(1),
        **HEALTH,
        **PRIORITY,
        "RAY_BACKEND_LOG_LEVEL": "warning",
        "RAY_DEDUP_LOGS": "0",
    }
