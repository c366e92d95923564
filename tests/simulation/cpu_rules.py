"""What must hold of the CPUs of a simulated machine while others use it, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.supervisor.cpu_mover import REST_S
from tests.simulation.worker import Worker
from tests.simulation.world import Violation, World

RESERVED_S = 6.0
"""So long a CPU may be reserved: until the load has been measured anew, which takes two samples, and
some turns of the loop."""


@dataclass(slots=True, kw_only=True)
class CpuRules:
    world: World
    alive: Mapping[int, Worker]
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """CPUs of each worker, by its pid, as the supervisor has said last."""
    moved_at: dict[int, list[float]] = field(default_factory=dict)
    """When each worker was moved, by its pid."""
    idle_since: dict[int, float] = field(default_factory=dict)
    """Since when a CPU has been held for more jobs than run on it."""

    def life_begins(self) -> None:
        self.idle_since.clear()
        self.held.clear()

    def launched(self, worker: Worker) -> None:
        """No CPU that others use is given while another one is idle."""
        self.held[worker.pid] = worker.cpus
        if not self.world.scenario.has_others:
            return
        others = self.world.others
        free = [cpu for cpu in range(self.world.scenario.cpus) if not others.told[cpu]]
        idle = [cpu for cpu in free if not others.may_be_seen(cpu)]
        taken = [cpu for cpu in worker.cpus if others.must_be_seen(cpu)]
        if taken and idle:
            raise Violation(
                f"{worker.job.job_id} has {taken}, which others use, and {idle} is idle"
            )

    def moves(self, worker: Worker, before: Sequence[int], after: Sequence[int]) -> None:
        """The supervisor says that ``worker`` has left CPUs for others."""
        job_id, others = worker.job.job_id, self.world.others
        self.world.log(f"{job_id} has moved from {before} to {after}")
        self.world.counts["moves"] += 1
        if tuple(before) != self.held[worker.pid] or tuple(after) != worker.cpus:
            raise Violation(f"{job_id} moved to {after}, and runs on {worker.cpus}")
        self.held[worker.pid] = worker.cpus
        left, new = set(before) - set(after), set(after) - set(before)
        ours = Counter(cpu for other in self.alive.values() for cpu in self.held.get(other.pid, ()))
        if not all(others.may_be_seen(cpu) or ours[cpu] for cpu in left):
            raise Violation(f"{job_id} left {left}, which nobody else uses")
        if any(others.must_be_seen(cpu) for cpu in new) or any(ours[cpu] > 1 for cpu in new):
            raise Violation(f"{job_id} moved to {new}, which others use")
        times = self.moved_at.setdefault(worker.pid, [])
        rest_s = REST_S * 2 ** (len(times) - 1)
        if times and self.world.now - times[-1] < rest_s - 0.01:
            raise Violation(f"{job_id} moved again after {self.world.now - times[-1]:.1f} s")
        times.append(self.world.now)

    def turn(self, late_s: float) -> None:
        """Others are told of all CPUs that are used, and of no more.

        :param late_s: how long the supervisor may not know that a worker has ended.
        """
        if not self.world.scenario.has_others:
            return
        ours = [worker for worker in self.alive.values() if not worker.is_orphan]
        used = Counter(cpu for worker in ours for cpu in worker.cpus)
        told = self.world.others.told
        if missing := used - told:
            raise Violation(f"others are not told of {dict(missing)}")
        unused = told - used
        now = self.world.now
        self.idle_since = {cpu: self.idle_since.get(cpu, now) for cpu in unused}
        if any(worker.is_asked for worker in ours):  # it keeps what is reserved for it
            self.idle_since.clear()
        for cpu, since in self.idle_since.items():
            if now - since > RESERVED_S + late_s:
                raise Violation(f"CPU {cpu} is held for nobody")

    def life_ended(self) -> None:
        if self.world.others.told:
            raise Violation(f"others are told of {dict(self.world.others.told)} after the end")
