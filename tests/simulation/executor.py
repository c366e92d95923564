"""A simulated local executor with its slots: what it is told it does, and what it reports may be
late, lost, repeated or in another order.
"""

from __future__ import annotations

import contextlib
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
from orchestrator.machine.slots import SlotPool
from tests.simulation.disk import full_error
from tests.simulation.machines import MACHINE_MIB
from tests.simulation.scenario import Behaviour, SimulatedJob
from tests.simulation.worker import Worker
from tests.simulation.world import World

SAMPLE_EVERY_S = 2.0


class OddError(Exception):
    """An error that nothing expects."""


@dataclass(slots=True, kw_only=True)
class Processes:
    """The workers that live, whichever supervisor has started them."""

    world: World
    jobs: Mapping[str, SimulatedJob]
    alive: dict[int, Worker] = field(default_factory=dict)
    launches: Counter[str] = field(default_factory=Counter)
    """How often each job was to be launched."""
    submitted: Callable[[str], None] = lambda _: None
    """Told of every job of which an attempt is about to be launched."""
    launched: Callable[[Worker], None] = lambda _: None
    """Told of every worker that starts."""
    kills: Callable[[Worker], None] = lambda _: None
    """Told of every worker that its supervisor kills."""

    def behaviour(self, job_id: str) -> Behaviour:
        """Of the next attempt of a job."""
        behaviours = self.jobs[job_id].behaviours
        number = self.launches[job_id]
        self.launches[job_id] += 1
        return behaviours[number] if number < len(behaviours) else Behaviour()

    def add(self, worker: Worker) -> None:
        self.alive[worker.pid] = worker
        self.launched(worker)
        worker.start()

    def kill(self, pid: int) -> None:
        if (worker := self.alive.get(pid)) is not None:
            worker.kill()

    @property
    def available_mib(self) -> int:
        return MACHINE_MIB - int(sum(worker.rss_mib for worker in self.alive.values()))


@dataclass(slots=True, kw_only=True)
class SimulatedExecutor:
    """See :class:`orchestrator.executors.base.Executor`."""

    world: World
    processes: Processes
    workers: dict[Handle, Worker] = field(default_factory=dict)
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
        behaviour = self.processes.behaviour(launch.job_id)
        match behaviour.ending:
            case "refused":
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            case "refused-full":
                raise full_error()
            case "refused-odd":
                raise OddError("nobody expects this")
        self.processes.submitted(launch.job_id)
        pid = world.new_pid()
        handle = Handle(launch.job_id, launch.number, pid, world.lives[pid])
        spec = WorkerSpec.from_json((launch.job_dir / "spec.json").read_bytes())
        worker = Worker(
            world=world,
            job=self.processes.jobs[launch.job_id],
            behaviour=behaviour,
            number=launch.number,
            paths=JobPaths(launch.job_dir),
            pause_at=spec.pause_at,
            pid=pid,
            pid_start=world.lives[pid],
            cpus=launch.cpus,
            report=lambda progress: self._send(Progressed(handle, progress)),
            ended=lambda code: self._worker_ended(handle, code),
        )
        self.workers[handle] = worker
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
        if (worker := self.workers.get(handle)) is not None and worker.is_alive:
            if kill:
                self.processes.kills(worker)
                worker.was_killed = True
                worker.kill()
            else:
                worker.ask()
        self.world.point("cancelled")

    def checkpoint(self, handle: Handle) -> None:
        self.world.point(f"checkpoint {handle.job_id}/{handle.number}")
        if (worker := self.workers.get(handle)) is not None:
            worker.saves_next = True

    def close(self) -> None:
        self.world.point("close the executor")
        self.is_closed = True
        for worker in self.workers.values():
            worker.kill()
        self._ready.clear()

    def _raise_if_due(self) -> None:
        if self.world.errors_due:
            self.world.errors_due -= 1
            raise OddError("the executor has an error")

    def _worker_ended(self, handle: Handle, code: int) -> None:
        worker = self.workers[handle]
        del self.processes.alive[worker.pid]
        oom_killed = worker.behaviour.ending == "oom" and not worker.is_asked
        self._send(Exited(handle, code, oom_killed))

    def _send(self, event: Event) -> None:
        """``event`` is on its way, if there is still somebody to hear of it."""
        if self.is_closed or self.world.is_dead:
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
                case "stray":
                    stranger = Handle(event.handle.job_id, event.handle.number + 7)
                    arrive = functools.partial(self._arrive, Exited(stranger, 0))
                    self.world.after(0.0, arrive)
        self.world.after(delay_s, lambda: self._arrive(event))

    def _arrive(self, event: Event) -> None:
        if not self.is_closed and not self.world.is_dead:
            self._ready.append(event)

    def _sample(self) -> None:
        self._is_sampling = False
        if self.is_closed or self.world.is_dead:
            return
        alive = {handle: worker for handle, worker in self.workers.items() if worker.is_alive}
        for handle, worker in alive.items():
            self._send(Sampled(handle, worker.rss_mib, (0.0,)))
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
        return []

    def problems(self, job: Job) -> list[Problem]:
        return []

    def facts(self) -> dict[str, Any]:
        return {"executor": "local"}

    def available_memory_mib(self) -> int:
        return self.executor.processes.available_mib

    def report_to(self, report: Callable[[str, str], None]) -> None:
        """There are no such events."""

    def close(self) -> None:
        self.slots.close()


@dataclass(slots=True, kw_only=True)
class SimulatedKind:
    """In the place of the kind ``local`` (:class:`orchestrator.executors.kinds.ExecutorKind`)."""

    world: World
    processes: Processes
    opened: list[SimulatedBackend] = field(default_factory=list)

    name = "local"
    options = ()
    batch_jobs = None

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """Replaces what else is needed within the block."""
        return contextlib.nullcontext()

    def is_disturbed(self) -> bool:
        """Whether machines are away, so that something may take longer."""
        return False

    def supervisor_died(self) -> None:
        """Nothing of it is left but the workers."""

    def explains(self, error: Exception) -> bool:
        """Whether what has happened to machines makes a run end so."""
        return False

    def open(self, settings: BackendSettings) -> SimulatedBackend:
        executor = SimulatedExecutor(world=self.world, processes=self.processes)
        slots = SlotPool(settings.machine, settings.max_parallel)
        backend = SimulatedBackend(settings=settings, executor=executor, slots=slots)
        self.opened.append(backend)
        return backend
