"""One small actor on every node: hands out its CPUs, passes orders to attempts, and describes the
node.

When the cluster has been out of reach for so long that other nodes may continue its attempts, it
kills them. It lives as long as the driver that started it, and needs hardly any CPU time.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from orchestrator.core.messages import Progress
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.features.ray import internals
from orchestrator.features.ray.driver_directory import DriverDirectory
from orchestrator.features.ray.head_liveness import FENCE_AFTER_S, HeadLiveness
from orchestrator.features.ray.scratch_directory import (
    Holder,
    Order,
    ScratchDirectory,
    write_order,
)
from orchestrator.features.ray.transport import Transport
from orchestrator.machine import topology
from orchestrator.machine.cpu_load import CpuLoad
from orchestrator.machine.cpu_locks import CpuLocks, locks_folder
from orchestrator.machine.provenance import Versions, installed_versions
from orchestrator.machine.slots import Slot, SlotPool

NAMESPACE = "orchestrator"
NAME_PREFIX = "node-agent"
"""Of the actor's name, ``node-agent/<session>.<number>/<node>``, by which everybody in the cluster
can find it."""

FENCE_EVERY_S = 0.5
ASK_EVERY_S = 10.0
"""How often a node asks whether it was declared dead: the questions of all nodes add up at the
head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    cores: int
    """Counted as ``doctor`` counts them."""
    cpu_model: str
    versions: Versions
    sees_run_dir: bool
    storage_problem: str | None
    """Why files cannot be exchanged through the storage that the driver has chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuGrant:
    holder: Holder
    folder: Path
    """The attempt's folder on this node. It contains the ``holder`` file, and exists as long as the
    attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHold:
    slot: Slot
    holder: Holder
    inherited: bool = False
    """From an agent that died: only that one would have been notified of the attempt's end."""


class NodeAgent:
    """The actor that the module describes. It handles one call at a time."""

    def __init__(
        self,
        session: str,
        node_id: str,
        cpus: int,
        driver_directory: DriverDirectory,
        transport: Transport,
        head: str,
    ) -> None:
        """:param cpus: as Ray counts them; if they are more than the machine has, each is shared.
        :param head: ``HOST:PORT`` of the cluster's control service.
        """
        self._driver_directory = driver_directory
        self._machine = topology.detect()
        locks = CpuLocks(
            locks_folder(),
            experiment=driver_directory.root.name,
            run_dir=driver_directory.identity,
        )
        # Ray decides how many attempts run at once; the agents of all drivers decide on which CPUs.
        self._slots = SlotPool(
            replace(self._machine, quota=None),
            cpus,
            locks=locks,
            load=CpuLoad(),
            starts_workers=False,
            is_exclusive=True,
        )
        self._held: dict[str, CpuHold] = {}
        self._progress: dict[str, Progress] = {}
        self._storage_problem = transport.problem()
        self._scratch = ScratchDirectory.create(session, node_id)
        for holder in self._scratch.other_sessions():
            holder.kill_if_of(driver_directory)
        self._scratch.remove_stale()
        for holder in self._scratch.holders():  # of an agent before this one, which died
            self._held[holder.key] = CpuHold(
                slot=self._slots.resume(holder.cpus), holder=holder, inherited=True
            )
        self._node_id = node_id
        self._is_declared_dead = False
        self._head = HeadLiveness(head)
        threading.Thread(target=self._fence, name="fence", daemon=True).start()

    def _fence(self) -> None:
        """Kill all attempts before the cluster declares this node dead, or as soon as it has done
        so.

        (The machine may have been suspended, and Ray here continues as if nothing had happened.)
        Other nodes continue its attempts, perhaps on the same files, from what was written or
        synchronised so far.
        """
        questions = Pacer(Pace(every_s=ASK_EVERY_S))
        while not self._head.is_closed.wait(FENCE_EVERY_S):
            if self._head.answers and questions.is_due():
                questions.wait()
                # There is no answer, or Ray is of another version: the probes work without it.
                with contextlib.suppress(Exception):
                    self._is_declared_dead = self._is_declared_dead or internals.is_declared_dead(
                        self._node_id
                    )
            if self._is_cut_off:
                for held in list(self._held.values()):
                    held.holder.kill()

    @property
    def _is_cut_off(self) -> bool:
        return self._is_declared_dead or self._head.missing_s > FENCE_AFTER_S

    def facts(self) -> NodeFacts:
        self._release_of_ended()
        return NodeFacts(
            cores=self._machine.capacity,
            cpu_model=topology.cpu_model(),
            versions=dict(installed_versions()),
            sees_run_dir=self._driver_directory.is_accessible(),
            storage_problem=self._storage_problem,
        )

    def acquire_cpus(
        self,
        key: str,
        cores: int,
        pid: int,
        pid_start: float | None,
        job_id: str = "",
        work: str = "",
    ) -> CpuGrant | None:
        """CPUs for the attempt ``key``, held by process ``pid`` of this machine; None while too few
        are free.

        CPUs that other drivers' agents or other experiments hold are not free, unless Ray counts
        more CPUs than there are.
        """
        self.release_cpus(key)
        self._release_of_ended()
        self._slots.tick()
        if self._is_cut_off:
            return None
        slot = self._slots.acquire(min(cores, len(self._machine.cpus)), job_id=job_id)
        if slot is None:
            return None
        cpus = tuple(islice(cycle(slot.cpus), cores))
        home = self._driver_directory.identity
        holder = Holder(
            home=home, key=key, cpus=cpus, pid=pid, pid_start=pid_start, job_id=job_id, work=work
        )
        self._held[key] = CpuHold(slot=slot, holder=holder)
        return CpuGrant(holder=holder, folder=self._scratch.attempt(key))

    def _release_of_ended(self) -> None:
        for key, held in list(self._held.items()):
            has_left = held.inherited and not self._scratch.attempt(key).exists()
            if has_left or not held.holder.is_alive():
                self.release_cpus(key)

    def release_cpus(self, key: str) -> None:
        self._progress.pop(key, None)
        if (held := self._held.pop(key, None)) is not None:
            self._slots.release(held.slot)

    def record_progress(self, key: str, progress: Progress) -> None:
        if key in self._held:
            self._progress[key] = progress

    def attempts(self) -> list[dict[str, Any]]:
        """The attempts on this node, with their latest progress, for ``cluster status``."""
        self._release_of_ended()
        rows = [(held.holder, self._progress.get(key)) for key, held in self._held.items()]
        return [
            {
                "home": holder.home,
                "key": holder.key,
                "job_id": holder.job_id,
                "work": holder.work,
                "cpus": holder.cpus,
                "node_id": self._node_id,
                "progress": progress and asdict(progress),
            }
            for holder, progress in rows
        ]

    def send_order(self, key: str, order: Order) -> None:
        write_order(self._scratch.attempt(key), order)

    def rendezvous(self) -> tuple[str, int]:
        """An address of this node and a free port, where the ranks of an attempt can meet."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            return address, int(probe.getsockname()[1])

    def close(self) -> None:
        self._head.close()
        self._slots.close()
        self._scratch.remove()
