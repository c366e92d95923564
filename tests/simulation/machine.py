"""The simulated machine: an executor with real slots, and workers that train as real ones do, as far
as a supervisor can see. What the executor reports may be late, lost, repeated or stray.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import Problem
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job import Job, Resources
from orchestrator.core.messages import Progress
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.executor import (
    AttemptId,
    Event,
    Exited,
    Placed,
    Progressed,
    Sampled,
    Shortage,
)
from tests.simulation.disk import full_error
from tests.simulation.scenario import STEPS, Behaviour, SimulatedJob
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.monitor import Monitor

VERSION = "version"
"""Key of ``env_kwargs`` of jobs that are declared otherwise."""
START_S = 0.5
CHECKPOINT_EVERY = 2
"""Iterations."""
KEPT = 2
"""Checkpoints."""
SLOW_S = 1.5
"""How much longer a slow worker takes to save a checkpoint when it is asked to end."""
SWAPPING_S = 6.0
"""How long an iteration of one takes that has grown."""
LINGERS_S = 6.0
"""How long one that lingers goes on without its supervisor."""
SAMPLE_EVERY_S = 2.0
MACHINE_MIB = 1000
CODES = {
    "error": ExitCode.ERROR,
    "diverged": ExitCode.DIVERGED,
    "full": ExitCode.DISK_FULL,
    "leaves": ExitCode.INTERRUPTED,
}


class OddError(Exception):
    """An error that nothing expects."""


class OddProgress:
    """A report that nobody can read."""

    def __getattr__(self, name: str) -> Any:
        raise OddError(name)


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """The process of one attempt. It is one event of the agenda at a time."""

    machine: Machine
    executor: SimulatedExecutor
    id: AttemptId
    job: Job
    behaviour: Behaviour
    paths: JobPaths
    pid: int
    spec: WorkerSpec = field(init=False)
    """As it has read it."""
    began: float = 0.0
    """When it came to its machine."""
    heard_at: float = 0.0
    """When the supervisor last heard of it."""
    env_steps: int = 0
    resumed_from: int = 0
    iterations: int = 0
    """Of this attempt."""
    rss_mib: float = 50.0
    grew_at: float | None = None
    is_alive: bool = True
    is_placed: bool = False
    is_orphan: bool = False
    is_finished: bool = False
    """Whether all of the training is done, and its results are written."""
    asked_at: float | None = None
    was_cancelled: bool = False
    """Whether its supervisor has asked it to end, or killed it."""
    saves_next: bool = False
    code: int | None = None
    """How it ended; None if that is not known."""

    def start(self) -> None:
        self.spec = WorkerSpec.from_json(self.paths.spec.read_bytes())
        if not self.behaviour.waits_s:
            self._place()
            return
        self._then(self.behaviour.waits_s, self._place)

    def _place(self) -> None:
        world = self.machine.world
        self.is_placed = True
        self.began = self.heard_at = world.now
        placed = Placed(attempt=self.id, cpus=(0,), pid=self.pid, pid_start=world.lives[self.pid])
        self.executor.send(placed)
        self._then(START_S, self._load)

    def request_exit(self) -> None:
        if self.asked_at is None:
            self.asked_at = self.machine.world.now
            if not self.is_placed:
                self.exit(-signal.SIGTERM)

    def orphan(self) -> None:
        """Its supervisor has died."""
        self.is_orphan = True
        self.machine.world.after(LINGERS_S, lambda: self.exit(-signal.SIGKILL))

    def exit(self, code: int | None, **facts: Any) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.code = code
        self.machine.world.has_erred |= code == ExitCode.DISK_FULL
        self.machine.world.lives.pop(self.pid, None)
        self.machine.world.log(f"worker {self.id.job_id}/{self.id.number} ends with {code}")
        self.machine.alive.remove(self)
        if not self.is_orphan:
            self.executor.send(Exited(attempt=self.id, returncode=code, **facts))

    def _then(self, delay_s: float, step: Any) -> None:
        self.machine.world.after(delay_s, functools.partial(self._step, step))

    def _step(self, step: Any) -> None:
        if not self.is_alive:
            return
        if self.paths.attempt(self.id.number + 1).root.exists():  # superseded
            self.exit(ExitCode.ORPHANED)
            return
        try:
            step()
        except OSError:
            self.exit(ExitCode.DISK_FULL)

    def _load(self) -> None:
        checkpoints = self.paths.checkpoints_by_steps()
        self.env_steps = self.resumed_from = max(checkpoints, default=0)
        if checkpoints and checkpoints[self.env_steps].read_text() != self._version:
            raise Violation(f"{self.id.job_id} resumes from a checkpoint of another training")
        self._next()

    def _next(self) -> None:
        """Begin whatever comes after an iteration."""
        behaviour = self.behaviour
        rung = self.spec.pause_at
        if self.asked_at is not None and behaviour.asked != "deaf":
            self._then(SLOW_S if behaviour.asked == "slow" else 0.01, self._leave)
        elif self.env_steps >= self.spec.total_timesteps:
            self._report("evaluating")
            self._then(0.05, self._finish)
        elif rung is not None and self.env_steps >= rung:
            self._save()
            self._record(ExitCode.PAUSED)
            self.exit(ExitCode.PAUSED)
        elif behaviour.ending != "done" and self.iterations >= behaviour.after:
            self._end_badly()
        else:
            self._then(behaviour.iteration_s if self.grew_at is None else SWAPPING_S, self._iterate)

    def _iterate(self) -> None:
        self.iterations += 1
        self.env_steps += STEPS
        self._report("training")
        if self.saves_next or self.iterations % CHECKPOINT_EVERY == 0:
            self.saves_next = False
            self._save()
        self._next()

    def _leave(self) -> None:
        self._save()
        self._record(ExitCode.INTERRUPTED)
        self.exit(ExitCode.INTERRUPTED)

    def _finish(self) -> None:
        text = f"{self.id.job_id} {self.env_steps} {self._version}"
        write_whole(self.paths.model, text)
        self.is_finished = True
        self._then(0.02, self._record_success)

    def _record_success(self) -> None:
        self._record(ExitCode.SUCCEEDED)
        self._then(0.02, lambda: self.exit(ExitCode.SUCCEEDED))

    def _end_badly(self) -> None:
        match self.behaviour.ending:
            case "killed":
                self.exit(-signal.SIGKILL)
            case "oom":
                self.exit(-signal.SIGKILL, oom_killed=True)
            case "hangs":
                pass
            case "grows":
                if self.grew_at is None:
                    self.grew_at = self.machine.world.now
                    self.rss_mib = 5000.0
                self._then(SWAPPING_S, self._iterate)
            case "node-lost":
                self.exit(None, lost="its node does not answer")
            case "rank-fails":
                self._record(ExitCode.ERROR, rank=1)
                self.exit(ExitCode.ERROR, rank=1)
            case "garbled":
                write_whole(self._attempt / "exit.json", '{"code": 0, "mess')
                self.exit(ExitCode.SUCCEEDED)
            case "silent":
                self.exit(ExitCode.SUCCEEDED)
            case ending:
                self._record(CODES[ending])
                self.exit(CODES[ending])

    def _save(self) -> None:
        self.paths.checkpoints.mkdir(exist_ok=True)
        path = self.paths.checkpoints / f"checkpoint-{self.env_steps:012d}.pt"
        write_whole(path, self._version)
        for steps in sorted(self.paths.checkpoints_by_steps())[:-KEPT]:
            (self.paths.checkpoints / f"checkpoint-{steps:012d}.pt").unlink()

    def _record(self, code: int, rank: int = 0) -> None:
        record = ExitRecord(
            code=int(code),
            message="" if code == ExitCode.SUCCEEDED else f"ended with {int(code)}",
            env_steps=self.env_steps,
            resumed_from=self.resumed_from,
            wall_s=round(self.machine.world.now - self.began, 3),
            ep_rew_mean_first=0.5,
            ep_rew_mean=1.0,
        )
        path = self.paths.attempt(self.id.number).exit_of(rank)
        write_whole(path, record.to_json())

    @property
    def _version(self) -> str:
        return str(self.spec.env_kwargs.get(VERSION, 0))

    @property
    def _attempt(self) -> Path:
        return self.paths.attempt(self.id.number).root

    def _report(self, phase: str) -> None:
        line = {
            "phase": phase,
            "env_steps": self.env_steps,
            "iteration": self.resumed_from // STEPS + self.iterations,
            "ep_rew_mean": float(self.env_steps),
            "learner": "fast",
        }
        progress = Progress.from_line(json.dumps(line).encode())
        self.executor.send(Progressed(attempt=self.id, progress=progress))


@dataclass(slots=True, kw_only=True)
class Machine:
    """The workers that live, whichever supervisor has started them."""

    world: World
    jobs: dict[str, SimulatedJob]
    limit: int
    """How many jobs may run at once."""
    alive: list[Worker] = field(default_factory=list)
    latest: dict[AttemptId, Worker] = field(default_factory=dict)
    """Every worker that was started, the latest of each attempt."""
    launches: Counter[str] = field(default_factory=Counter)
    """How often each job was to be launched."""

    def next_behaviour(self, job_id: str) -> Behaviour:
        """Return the behaviour of the next attempt of a job. Raises if it cannot be started."""
        behaviours = self.jobs[job_id].behaviours
        number = self.launches[job_id]
        self.launches[job_id] += 1
        behaviour = behaviours[number] if number < len(behaviours) else Behaviour()
        match behaviour.ending:
            case "refused":
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            case "refused-full":
                self.world.has_erred = True
                raise full_error()
            case "refused-odd":
                raise OddError("nobody expects this")
        return behaviour

    def kill(self, pid: int) -> None:
        for worker in [worker for worker in self.alive if worker.pid == pid]:
            worker.exit(-signal.SIGKILL)

    def lose_supervisor(self, *, is_power_cut: bool, recorded: set[int]) -> None:
        """Workers end with their supervisor, but those that linger. The next supervisor finds these
        by their pids in the ledger.
        """
        for worker in list(self.alive):
            worker.is_orphan = True
            if is_power_cut or worker.pid not in recorded or not worker.behaviour.lingers:
                worker.exit(-signal.SIGKILL)
            else:
                worker.orphan()


@dataclass(slots=True, kw_only=True)
class SimulatedExecutor:
    """See :class:`orchestrator.executors.executor.Executor`."""

    machine: Machine
    monitor: Monitor
    is_closed: bool = False
    template_ready_at: float = 0.0
    _reserved: dict[str, Job] = field(default_factory=dict)
    _room_of: dict[AttemptId, Job] = field(default_factory=dict)
    _ready: list[Event] = field(default_factory=list)
    _is_sampling: bool = False

    @property
    def jobs_at_once(self) -> int:
        return self.machine.limit

    def resize(self, jobs_at_once: int) -> int:
        self.machine.limit = min(jobs_at_once, self.machine.world.scenario.cpus)
        return self.machine.limit

    def problems(self, job: Job) -> Sequence[Problem]:
        if job.resources.all_cores > self.machine.world.scenario.cpus:
            return [Problem(where=job.where, message="it needs more cores than there are")]
        return []

    @property
    def running(self) -> int:
        return len(self._room_of)

    def has_room(self, asked: Resources) -> bool:
        """Return whether a job fits beside those that run and those that have room reserved."""
        others = [*self._reserved.values(), *self._room_of.values()]
        all_ = [asked, *(job.resources for job in others)]
        return (
            sum(resources.all_cores for resources in all_) <= self.machine.world.scenario.cpus
            and sum(resources.all_memory_mib for resources in all_) <= MACHINE_MIB
        )

    def expect(self, jobs: Sequence[Job]) -> None:
        """Nothing takes long here."""

    def reserve(self, job: Job, *, waiting: int) -> Shortage | None:
        if job.job_id in self._reserved:
            raise Violation(f"room for {job.job_id} is reserved twice")
        if self.problems(job):
            return "never"
        if self.machine.world.now < self.template_ready_at and waiting > 1:
            return "template"
        if not self.has_room(job.resources):
            return "room"
        self._reserved[job.job_id] = job
        return None

    def release(self, job: Job) -> None:
        self._reserved.pop(job.job_id, None)

    def submit(self, job: Job, number: int, job_dir: Path) -> None:
        world = self.machine.world
        world.point(f"submit {job.job_id}/{number}")
        self._raise_if_due()
        if job.job_id not in self._reserved:
            raise Violation(f"{job.job_id} is submitted without room")
        del self._reserved[job.job_id]
        id_ = AttemptId(job.job_id, number)
        self.monitor.submitted(id_, job, self.running)
        worker = Worker(
            machine=self.machine,
            executor=self,
            id=id_,
            job=job,
            behaviour=self.machine.next_behaviour(job.job_id),
            paths=JobPaths(job_dir),
            pid=world.new_pid(),
        )
        self._room_of[id_] = job
        self.machine.alive.append(worker)
        self.machine.latest[id_] = worker
        with world.other_process():
            worker.start()
        if not self._is_sampling:
            self._is_sampling = True
            world.after(SAMPLE_EVERY_S, self._sample)
        world.point("submitted")

    def _sample(self) -> None:
        workers = [worker for worker in self.machine.alive if worker.executor is self]
        for worker in workers:
            self.send(Sampled(attempt=worker.id, rss_mib=worker.rss_mib))
        self._is_sampling = bool(workers) and not self.is_closed
        if self._is_sampling:
            self.machine.world.after(SAMPLE_EVERY_S, self._sample)

    def send(self, event: Event) -> None:
        """Send an event to the supervisor. Something may happen to it on the way."""
        delay_s = 0.0
        copies = 1
        world = self.machine.world
        for trouble in world.of_next_event():
            is_message = isinstance(event, Progressed | Sampled)
            match trouble.kind:
                case "late":
                    delay_s = trouble.for_s
                case "lost" if is_message:
                    copies = 0
                case "twice" if is_message or isinstance(event, Exited):
                    copies = 2
                case "stray":
                    id_ = AttemptId(event.attempt.job_id, event.attempt.number + 7)
                    self._ready.append(Exited(attempt=id_, returncode=0))
                case "odd" if isinstance(event, Progressed):
                    self.monitor.odd.add(event.attempt)
                    odd: Any = OddProgress()
                    event = Progressed(attempt=event.attempt, progress=odd)
        for _ in range(copies):
            if delay_s:
                self.monitor.late_s = max(self.monitor.late_s, delay_s)
                world.after(delay_s, functools.partial(self._ready.append, event))
            else:
                self._ready.append(event)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        world = self.machine.world
        world.polled()
        self._raise_if_due()
        if self._reserved:
            raise Violation(f"room is reserved for {list(self._reserved)}, which are not launched")
        self.monitor.turn(self)
        world.pass_time(timeout_s, until=lambda: bool(self._ready))
        events = list(self._ready)
        self._ready.clear()
        for event in events:
            if isinstance(event, Exited):
                self._room_of.pop(event.attempt, None)
            elif isinstance(event, Progressed | Placed):
                self.machine.latest[event.attempt].heard_at = world.now
        self.monitor.polled(world.monotonic)
        world.point("polled")
        return events

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        world = self.machine.world
        world.point(f"{'kill' if kill else 'ask'} {attempt.job_id}")
        worker = self.machine.latest[attempt]
        worker.was_cancelled = True
        if not worker.is_alive:
            return
        with world.other_process():
            if kill:
                self.monitor.killed(worker)
                worker.exit(-signal.SIGKILL)
            else:
                worker.request_exit()

    def checkpoint(self, attempt: AttemptId) -> None:
        self.machine.latest[attempt].saves_next = True

    def close(self) -> None:
        world = self.machine.world
        if world.is_dead or self.is_closed:
            return
        world.point("close the executor")
        self.is_closed = True
        with world.other_process():
            for worker in [worker for worker in self.machine.alive if worker.executor is self]:
                worker.was_cancelled = True
                worker.exit(-signal.SIGKILL)

    def _raise_if_due(self) -> None:
        world = self.machine.world
        if world.errors_due and world.is_supervisor_at_work:
            world.errors_due -= 1
            world.has_erred = True
            raise OddError("the executor has failed")
