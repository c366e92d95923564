"""One small actor on every node: hands out its CPUs, passes orders to attempts, says what the node is, and ends what
runs there when the node has been out of the cluster's reach for so long that others may go on with its jobs.

It lives as long as the driver that started it. Its own process needs no CPU to speak of.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.messages import Progress
from orchestrator.executors.ray.driver_directory import DriverDirectory
from orchestrator.executors.ray.liveness import FENCE_AFTER_S, HeadLiveness, head_has_given_up
from orchestrator.executors.ray.node_versions import Versions, found
from orchestrator.executors.ray.scratch_directory import Holder, ScratchDirectory, order_file
from orchestrator.executors.ray.transport import Transport
from orchestrator.machine import topology as machines
from orchestrator.machine.cpu_locks import CpuClaims, shared_directory
from orchestrator.machine.slots import Slot, SlotPool

NAMESPACE = "orchestrator"
NAME_PREFIX = "keeper"
"""Of an actor's name: ``keeper/<session>.<number>/<node>``. Whoever is in the cluster can find them by it."""

FENCE_LOOK_S = 0.5
ASK_EVERY_S = 10.0
"""Whether we are given up: what each node asks adds up at the head."""

Order: TypeAlias = Literal["leave", "kill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a keeper says of its node."""

    host: str
    cores: int
    """As ``doctor`` counts them."""
    memory_mib: int
    cpu_model: str
    versions: Versions
    sees_home: bool
    storage_problem: str | None
    """Why files cannot travel through the storage that the driver has chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuGrant:
    """What an attempt gets of a node's keeper."""

    holder: Holder
    folder: Path
    """Its own on this node, where it says that it is the holder; it comes and goes with the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHold:
    """CPUs of an attempt, as the pool knows them, and who holds them for it."""

    slot: Slot
    holder: Holder
    inherited: bool = False
    """From a keeper before this one, which would have been told of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """An attempt on a node, as ``cluster status`` shows it."""

    key: str
    cpus: tuple[int, ...]
    progress: Progress | None
    """Its latest word."""


class NodeAgent:
    """See the module. One call at a time."""

    def __init__(
        self,
        session: str,
        node_id: str,
        cpus: int,
        home: DriverDirectory,
        transport: Transport,
        head: str,
    ) -> None:
        """:param cpus: as Ray counts them; of more than there are each is shared.
        :param head: ``HOST:PORT`` of the cluster's control service.
        """
        self._home = home
        self._machine = machines.detect()
        # How many run at once is Ray's to say; what they run on is ours.
        claims = CpuClaims(shared_directory(), (cpu.index for cpu in self._machine.cpus))
        self._pool = SlotPool(replace(self._machine, quota=None), cpus, claims)
        self._held: dict[str, CpuHold] = {}
        self._said: dict[str, Progress] = {}
        self._storage_problem = transport.problem()
        self._scratch = ScratchDirectory.claimed(session, node_id)
        for holder in self._scratch.holders_elsewhere():
            holder.end_if_of(home)
        self._scratch.remove_left()
        for holder in self._scratch.holders():  # of a keeper before us, which has died
            self._held[holder.key] = CpuHold(slot=self._pool.resume(holder.cpus), holder=holder, inherited=True)
        self._node_id, self._is_given_up = node_id, False
        self._head = HeadLiveness(head)
        threading.Thread(target=self._fence, name="fence", daemon=True).start()

    def _fence(self) -> None:
        """End all attempts when the cluster must take this node for dead soon, or does already (its machine may have
        been suspended, and Ray here goes on as if nothing had been): others go on with their jobs, and may see the same
        files. What has come home so far, or was written, is what they go on from.
        """
        ask_at = 0.0
        while not self._head.is_closed.wait(FENCE_LOOK_S):
            if self._head.answers and time.monotonic() >= ask_at:
                ask_at = time.monotonic() + ASK_EVERY_S
                self._is_given_up = self._is_given_up or head_has_given_up(self._node_id)
            if self._is_cut_off:
                for held in list(self._held.values()):
                    held.holder.kill()

    @property
    def _is_cut_off(self) -> bool:
        return self._is_given_up or self._head.missing_s > FENCE_AFTER_S

    def facts(self) -> NodeFacts:
        self._take_back()
        return NodeFacts(
            host=socket.gethostname(),
            cores=self._machine.capacity,
            memory_mib=self._machine.memory_total_mib,
            cpu_model=_cpu_model(),
            versions=dict(found()),
            sees_home=self._home.is_visible(),
            storage_problem=self._storage_problem,
        )

    def take(self, key: str, cores: int, pid: int, pid_start: float | None) -> CpuGrant | None:
        """CPUs of its own for attempt ``key``, held by process ``pid`` of this machine; None while there are none."""
        self.give(key)
        self._take_back()
        if self._is_cut_off:
            return None
        there = min(cores, len(self._machine.cpus))
        slot = self._pool.acquire(there)
        if slot is None:
            return None
        cpus = tuple(islice(cycle(slot.cpus), cores))
        holder = Holder(home=self._home.identity, key=key, cpus=cpus, pid=pid, pid_start=pid_start)
        self._held[key] = CpuHold(slot=slot, holder=holder)
        return CpuGrant(holder=holder, folder=self._scratch.attempt(key))

    def _take_back(self) -> None:
        """Whose process is gone holds nothing any more."""
        for key, held in list(self._held.items()):
            left = held.inherited and not self._scratch.attempt(key).exists()
            if left or not held.holder.is_alive():
                self.give(key)

    def give(self, key: str) -> None:
        """Take the CPUs of ``key`` back, if it has any."""
        self._said.pop(key, None)
        held = self._held.pop(key, None)
        if held is not None:
            self._pool.release(held.slot)

    def heard(self, key: str, progress: Progress) -> None:
        """What an attempt has said last, kept for :meth:`running`."""
        if key in self._held:
            self._said[key] = progress

    def running(self) -> list[AttemptStatus]:
        self._take_back()
        return [
            AttemptStatus(key=key, cpus=held.holder.cpus, progress=self._said.get(key))
            for key, held in self._held.items()
        ]

    def order(self, key: str, order: Order) -> None:
        """Left where the attempt looks for it; also before it has begun."""
        file = order_file(self._scratch.attempt(key))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, order, durable=False)

    def meeting_point(self) -> tuple[str, int]:
        """An address of this node and a port that is free there now, for ranks to meet."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            return address, int(probe.getsockname()[1])

    def close(self) -> None:
        """The session is over: leave nothing behind."""
        self._head.close()
        self._pool.close()
        self._scratch.remove()


def _cpu_model() -> str:
    """Empty where the kernel does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return os.uname().machine
