"""A simulated local executor with real slots. It does what it is told, and what it reports may be
late, lost, repeated or in another order.
"""

from __future__ import annotations

import errno
import functools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.base import (
    BackendSettings,
    Event,
    Exited,
    Handle,
    Launch,
    Progressed,
    Sampled,
)
from orchestrator.executors.kinds import ExecutorKind
from orchestrator.executors.local_backend import problems_on
from orchestrator.executors.rank_group import RankGroup
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Cpu, Machine
from tests.simulation.disk import full_error
from tests.simulation.ranks import Follower, Process, Ranks
from tests.simulation.scenario import Behaviour, SimulatedJob
from tests.simulation.worker import Worker
from tests.simulation.world import World

SAMPLE_EVERY_S = 2.0
MACHINE_MIB = 1000


class OddError(Exception):
    """An error that nothing expects."""


class OddProgress:
    """A report that nobody can read."""

    def __getattr__(self, name: str) -> Any:
        raise OddError(name)


def machine(cpus: int) -> Machine:
    return Machine(
        cpus=tuple(Cpu(index=index, core=index, package=0, numa_node=0) for index in range(cpus)),
        quota=None,
        memory_total_mib=MACHINE_MIB,
    )


@dataclass(slots=True, kw_only=True)
class Processes:
    """The workers that live, whichever supervisor has started them."""

    world: World
    jobs: Mapping[str, SimulatedJob]
    alive: dict[int, Worker] = field(default_factory=dict)
    followers: dict[int, Follower] = field(default_factory=dict)
    """The processes of ranks other than 0 that live."""
    launches: Counter[str] = field(default_factory=Counter)
    """How often each job was to be launched."""
    submitted: Callable[[str, int], None] = lambda *_: None
    """Told of every attempt that is about to be launched."""
    launched: Callable[[Worker], None] = lambda _: None
    """Told of every worker that starts."""
    kills: Callable[[Worker], None] = lambda _: None
    """Told of every worker that its supervisor kills."""

    def begun(self, job_id: str) -> Behaviour:
        """Of the next attempt of a job; raises where that cannot be started."""
        behaviours = self.jobs[job_id].behaviours
        number = self.launches[job_id]
        self.launches[job_id] += 1
        behaviour = behaviours[number] if number < len(behaviours) else Behaviour()
        match behaviour.ending:
            case "refused":
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            case "refused-full":
                raise full_error()
            case "refused-odd":
                raise OddError("nobody expects this")
        return behaviour

    def add(self, worker: Worker) -> None:
        self.alive[worker.pid] = worker
        self.launched(worker)
        worker.start()

    def follow(self, ranks: Ranks, rank: int) -> Follower:
        """A rank other than 0 starts."""
        pid = self.world.new_pid()

        def ended(code: int) -> None:
            del self.followers[pid]
            ranks.ended(rank, code)

        follower = Follower(world=self.world, ranks=ranks, rank=rank, pid=pid, ended=ended)
        self.followers[pid] = follower
        return follower

    def kill(self, pid: int) -> None:
        if (worker := self.alive.get(pid)) is not None:
            worker.kill()

    def supervisor_died(self, *, is_power_cut: bool, recorded: set[int]) -> None:
        """Workers end with their supervisor, except those that linger. The next supervisor finds
        these by their pids in the ledger.
        """
        for worker in list(self.alive.values()):
            if is_power_cut or worker.pid not in recorded:
                worker.kill()
            else:
                worker.orphan()
        if is_power_cut:
            for follower in list(self.followers.values()):
                follower.kill()

    @property
    def available_mib(self) -> int:
        all_ranks = (*self.alive.values(), *self.followers.values())
        return MACHINE_MIB - int(sum(one.rss_mib for one in all_ranks))


@dataclass(slots=True, kw_only=True)
class SimulatedExecutor:
    """See :class:`orchestrator.executors.base.Executor`."""

    world: World
    processes: Processes
    workers: dict[Handle, Worker] = field(default_factory=dict)
    ranks: dict[Handle, Ranks] = field(default_factory=dict)
    is_closed: bool = False
    _ready: list[Event] = field(default_factory=list)
    _is_sampling: bool = False

    never_forks = ""

    def prepare_to_fork(self) -> bool:
        return True

    def submit(self, launch: Launch) -> Handle:
        world = self.world
        world.point(f"submit {launch.job_id}/{launch.number}")
        self._raise_if_due()
        behaviour = self.processes.begun(launch.job_id)
        self.processes.submitted(launch.job_id, launch.number)
        pid = world.new_pid()
        handle = Handle(launch.job_id, launch.number, pid, world.lives[pid])
        group: RankGroup[Process] = RankGroup(handle=handle, ranks=launch.ranks, running=[])
        ranks = Ranks(world=world, group=group, send=self._send)
        worker = Worker(
            world=world,
            job=self.processes.jobs[launch.job_id],
            behaviour=behaviour,
            number=launch.number,
            paths=JobPaths(launch.job_dir),
            spec=WorkerSpec.from_json((launch.job_dir / "spec.json").read_bytes()),
            pid=pid,
            cpus=launch.cpus,
            report=lambda progress: self._send(Progressed(handle, progress)),
            ended=lambda code: self._worker_ended(handle, code),
            ranks=ranks,
        )
        ranks.worker = worker
        ranks.followers += [self.processes.follow(ranks, rank) for rank in range(1, launch.ranks)]
        group.running = [worker, *ranks.followers]
        self.workers[handle], self.ranks[handle] = worker, ranks
        self.processes.add(worker)
        if not self._is_sampling:
            self._is_sampling = True
            world.after(SAMPLE_EVERY_S, self._sample)
        world.point("submitted")
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.world.polled()
        self._raise_if_due()
        if not self._ready:
            self.world.pass_time(timeout_s, until=lambda: bool(self._ready))
        events = self._ready[:]
        self._ready.clear()
        self.world.point("polled")
        return events

    def cancel(self, handle: Handle, *, kill: bool) -> None:
        self.world.point(f"{'kill' if kill else 'ask'} {handle.job_id}/{handle.number}")
        if (worker := self.workers.get(handle)) is not None:
            if kill and worker.is_alive:
                self.processes.kills(worker)
                worker.was_killed = True
            if kill:
                self.ranks[handle].group.kill()
            elif worker.is_alive:
                worker.request_exit()
        self.world.point("cancelled")

    def checkpoint(self, handle: Handle) -> None:
        self.world.point(f"checkpoint {handle.job_id}/{handle.number}")
        if (worker := self.workers.get(handle)) is not None:
            worker.request_checkpoint()

    def close(self) -> None:
        self.world.point("close the executor")
        self.is_closed = True
        for ranks in self.ranks.values():
            ranks.group.kill()
        self._ready.clear()

    @property
    def _is_heard(self) -> bool:
        """Whether there is still somebody to hear of its workers."""
        return not self.is_closed and not self.world.is_dead

    def _raise_if_due(self) -> None:
        if self.world.errors_due:
            self.world.errors_due -= 1
            raise OddError("the executor has an error")

    def _worker_ended(self, handle: Handle, code: int) -> None:
        worker = self.workers[handle]
        del self.processes.alive[worker.pid]
        oom_killed = worker.behaviour.ending == "oom" and not worker.is_asked
        self.ranks[handle].ended(0, code, oom_killed=oom_killed)

    def _send(self, event: Event) -> None:
        """``event`` is on its way, if there is still somebody to hear of it."""
        if not self._is_heard:
            return
        delay_s = 0.0
        for trouble in self.world.of_next_event():
            match trouble.kind:
                case "late":
                    delay_s += trouble.for_s
                case "lost" if not isinstance(event, Exited):  # an exit is noticed in the end
                    return
                case "twice":
                    self.world.after(delay_s, lambda: self._arrive(event))
                case "odd-event":
                    odd: Any = OddProgress()
                    report = functools.partial(self._arrive, Progressed(event.handle, odd))
                    self.world.after(0.0, report)
                case "stray":
                    stranger = Handle(event.handle.job_id, event.handle.number + 7)
                    arrive = functools.partial(self._arrive, Exited(stranger, 0))
                    self.world.after(0.0, arrive)
        self.world.after(delay_s, lambda: self._arrive(event))

    def _arrive(self, event: Event) -> None:
        if self._is_heard:
            self._ready.append(event)

    def _sample(self) -> None:
        self._is_sampling = False
        if not self._is_heard:
            return
        alive = [handle for handle, worker in self.workers.items() if worker.is_alive]
        for handle in alive:
            self._send(Sampled(handle, self.ranks[handle].rss_mib))
        if alive:
            self._is_sampling = True
            self.world.after(SAMPLE_EVERY_S, self._sample)


@dataclass(slots=True, kw_only=True)
class SimulatedBackend:
    """See :class:`orchestrator.executors.base.Backend`."""

    settings: BackendSettings
    executor: SimulatedExecutor
    slots: SlotPool

    cpu_moves = None

    @property
    def local_slots(self) -> SlotPool:
        return self.slots

    def ready(self) -> list[str]:
        return list(self.slots.warnings())

    def problems(self, job: Job) -> list[Problem]:
        return problems_on(self.settings.machine, job)

    def facts(self) -> dict[str, Any]:
        return {"executor": "local"}

    def available_memory_mib(self) -> int:
        return self.executor.processes.available_mib

    def report_to(self, report: Callable[[str, str], None]) -> None:
        """There are no such events."""

    def close(self) -> None:
        self.slots.close()


def simulated_kind(world: World, processes: Processes) -> ExecutorKind:
    """Replaces the kind ``local``."""

    def opened(settings: BackendSettings) -> SimulatedBackend:
        executor = SimulatedExecutor(world=world, processes=processes)
        slots = SlotPool(settings.machine, settings.max_parallel)
        return SimulatedBackend(settings=settings, executor=executor, slots=slots)

    return ExecutorKind(name="local", open=opened)
