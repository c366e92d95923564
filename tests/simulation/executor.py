"""A simulated local executor with its slots: what it is told it does, and what it reports may be
late, lost, repeated or in another order.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from orchestrator.core.errors import ClusterLostError, Problem
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
from orchestrator.executors.local import LocalExecutor
from orchestrator.executors.local_backend import LocalCpuMoves, problems_on
from orchestrator.executors.rank_group import RankGroup
from orchestrator.machine.slots import SlotPool
from tests.simulation.disk import full_error
from tests.simulation.machines import MACHINE_MIB, Room
from tests.simulation.neighbours import neighbours
from tests.simulation.ranks import Follower, RanksOfMachine, Team
from tests.simulation.scenario import Behaviour, SimulatedJob
from tests.simulation.worker import Worker
from tests.simulation.world import Violation, World

SAMPLE_EVERY_S = 2.0


class OddError(Exception):
    """An error that nothing expects."""


class OddProgress:
    """A report that nobody can read."""

    def __getattr__(self, name: str) -> Any:
        raise OddError(name)


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

    def follow(self, team: Team, rank: int, **where: Any) -> Follower:
        """A rank other than 0 starts.

        :param where: what else is known of it: fields of :class:`.Follower`.
        """
        world = team.world
        pid = world.new_pid()
        ended: Callable[[int], None] = where.pop("ended")

        def has_ended(code: int) -> None:
            del self.followers[pid]
            ended(code)

        job = self.jobs[team.handle.job_id]
        follower = Follower(
            world=world,
            team=team,
            job=job,
            rank=rank,
            pid=pid,
            pid_start=world.lives[pid],
            ended=has_ended,
            **where,
        )
        self.followers[pid] = team.followers[rank] = follower
        return follower

    def kill(self, pid: int) -> None:
        if (worker := self.alive.get(pid)) is not None:
            worker.kill()

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
    ranks: dict[Handle, RanksOfMachine] = field(default_factory=dict)
    is_closed: bool = False
    node: str = ""
    """Its machine, where there are several."""
    _template: tuple[int, float] | None = None
    """The process that workers are forked from: its number, and when it is ready."""
    _ready: list[Event] = field(default_factory=list)
    _is_sampling: bool = False

    never_forks = ""

    def prepare_to_fork(self) -> bool:
        """Whether there is a process that workers can be forked from; else one is started."""
        world = self.world
        if not world.scenario.template_s:
            return True
        if self._template is None or self._template[0] != world.templates:
            self._template = world.templates, world.now + world.scenario.template_s
        return world.now >= self._template[1]

    def _look_at_start(self, launch: Launch) -> None:
        """A worker is forked where that was asked for, from a process that there is."""
        start = self.processes.jobs[launch.job_id].start
        if launch.fork == (start == "exec") and start != "auto":
            raise Violation(f"{launch.job_id} is to be started by {start}, forked: {launch.fork}")
        is_ready = self.world.scenario.template_s == 0 or self._template is not None
        if launch.fork and not (is_ready and self.prepare_to_fork()):
            raise Violation(f"{launch.job_id} is forked from nothing")

    def submit(self, launch: Launch) -> Handle:
        world = self.world
        self._look_at_start(launch)
        world.point(f"submit {launch.job_id}/{launch.number}")
        self._raise_if_due()
        behaviour = self.processes.begun(launch.job_id)
        self._announce(launch)
        pid = world.new_pid()
        handle = Handle(launch.job_id, launch.number, pid, world.lives[pid])
        spec = WorkerSpec.from_json((launch.job_dir / "spec.json").read_bytes())
        group: RankGroup[Any] = RankGroup(handle=handle, ranks=launch.ranks, running=[])
        ranks = RanksOfMachine(world=world, group=group, send=self._send)
        team = Team(world=world, handle=handle, ranks=launch.ranks)
        worker = Worker(
            world=world,
            job=self.processes.jobs[launch.job_id],
            behaviour=behaviour,
            number=launch.number,
            paths=JobPaths(launch.job_dir),
            spec=spec,
            pause_at=spec.pause_at,
            pid=pid,
            pid_start=world.lives[pid],
            cpus=launch.cpus,
            sharing=lambda: self._sharing(handle),
            report=lambda progress: self._send(Progressed(handle, progress)),
            ended=lambda code: self._worker_ended(handle, code),
            node=self.node,
            ranks_here=launch.ranks,
            team=team if launch.ranks > 1 else None,
        )
        team.worker = worker
        ranks.add(worker)
        for rank in range(1, launch.ranks):
            ended = functools.partial(ranks.ended, rank)
            ranks.add(self.processes.follow(team, rank, ended=ended, node=self.node))
        self.workers[handle], self.ranks[handle] = worker, ranks
        self.processes.add(worker)
        if not self._is_sampling:
            self._is_sampling = True
            world.after(SAMPLE_EVERY_S, self._sample)
        world.point("submitted")
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.world.polled()
        if self.world.is_unreachable:
            raise ClusterLostError("nothing can be reached")
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
                self.ranks[handle].kill()
            elif worker.is_alive:
                worker.ask()
        self.world.point("cancelled")

    def checkpoint(self, handle: Handle) -> None:
        self.world.point(f"checkpoint {handle.job_id}/{handle.number}")
        if (worker := self.workers.get(handle)) is not None:
            worker.saves_next = True

    def move(self, handle: Handle, to: Mapping[int, int]) -> bool:
        """See :meth:`orchestrator.executors.local.LocalExecutor.move`."""
        self.world.point(f"move {handle.job_id}/{handle.number}")
        worker = self.workers.get(handle)
        if worker is None or not worker.is_alive or worker.behaviour.is_bound:
            return False
        worker.cpus = tuple(to.get(cpu, cpu) for cpu in worker.cpus)
        self.world.point("moved")
        return True

    def close(self) -> None:
        self.world.point("close the executor")
        self.is_closed = True
        for ranks in self.ranks.values():
            ranks.kill()
        self._ready.clear()

    @property
    def _is_heard(self) -> bool:
        """Whether there is still somebody to hear of its workers."""
        return not self.is_closed and not self.world.is_dead

    def _announce(self, launch: Launch) -> None:
        """An attempt is about to start."""
        self.processes.submitted(launch.job_id, launch.number)

    def _raise_if_due(self) -> None:
        if self.world.errors_due:
            self.world.errors_due -= 1
            raise OddError("the executor has an error")

    def _sharing(self, handle: Handle) -> int:
        """With how many others an attempt shares the CPU for which most compete."""
        cpus = self.workers[handle].cpus
        return max((self.world.others.on(cpu) for cpu in cpus), default=0)

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
        alive = {handle: worker for handle, worker in self.workers.items() if worker.is_alive}
        for handle in alive:
            sharing = self._sharing(handle)
            busy = sharing / (1 + sharing)
            self._send(Sampled(handle, self.ranks[handle].rss_mib, (busy,)))
        if alive:
            self._is_sampling = True
            self.world.after(SAMPLE_EVERY_S, self._sample)


@dataclass(slots=True, kw_only=True)
class SimulatedBackend:
    """See :class:`orchestrator.executors.base.Backend`."""

    settings: BackendSettings
    executor: SimulatedExecutor
    slots: SlotPool

    @property
    def cpu_moves(self) -> LocalCpuMoves:
        return LocalCpuMoves(self.slots, cast(LocalExecutor, self.executor))

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


@dataclass(slots=True, kw_only=True)
class SimulatedKind:
    """In the place of the kind ``local`` (:class:`orchestrator.executors.kinds.ExecutorKind`)."""

    world: World
    processes: Processes
    opened: list[SimulatedBackend] = field(default_factory=list)
    is_recorded: Callable[[int], bool] = lambda _: True
    """Whether the ledger has a process."""

    name = "local"
    options = ()
    batch_jobs = None

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """Replaces what else is needed within the block."""
        return contextlib.nullcontext()

    is_elsewhere = False
    """Whether the jobs run on other machines."""
    tables: ClassVar[Mapping[str, Any]] = {}
    """Of the job file."""

    def room(self, node: str) -> Room:
        """Of the machine that is named so."""
        cpus, max_parallel = self.world.scenario.cpus, self.world.scenario.max_parallel
        return Room(cpus=cpus, sharing=math.ceil((max_parallel or cpus) / cpus))

    def most_jobs(self) -> int:
        """At once."""
        scenario = self.world.scenario
        cpus = sum(node.cpus for node in scenario.nodes) or scenario.cpus
        planned = scenario.max_parallel or cpus
        return max(planned, cpus) if self.world.counts["set"] else planned

    def is_disturbed(self) -> bool:
        """Whether machines are away, so that something may take longer."""
        return False

    def supervisor_died(self, *, is_power_cut: bool) -> None:
        """Workers end with their supervisor, but for those that linger. The next supervisor finds
        these by what is recorded of them.
        """
        processes = self.processes
        for worker in list(processes.alive.values()):
            if is_power_cut or not (worker.node or self.is_recorded(worker.pid)):
                worker.kill()
            else:
                worker.orphan()
        for follower in list(processes.followers.values()):
            follower.is_orphan = True
            if is_power_cut:
                follower.kill()

    @property
    def has_taken_over(self) -> bool:
        """Whether the supervisor that lives has what the one before has left."""
        return True

    def supervisor_begins(self) -> None:
        """It has done nothing yet."""

    def supervisor_ended(self) -> None:
        """In order."""

    def was_stopped(self, *, is_hurried: bool) -> None:
        """A stop was requested before the supervisor has launched anything."""

    def the_end(self) -> None:
        """Nothing is left to do."""

    def explains(self, error: Exception) -> bool:
        """Whether what has happened to machines makes a run end so."""
        return isinstance(error, ClusterLostError) and self.world.counts["unreachable"] > 0

    def open(self, settings: BackendSettings) -> SimulatedBackend:
        executor = SimulatedExecutor(world=self.world, processes=self.processes)
        others = None
        if self.world.scenario.has_others:
            others = neighbours(self.world.others, lambda: self.world.monotonic)
        slots = SlotPool(settings.machine, settings.max_parallel, others)
        backend = SimulatedBackend(settings=settings, executor=executor, slots=slots)
        self.opened.append(backend)
        return backend
