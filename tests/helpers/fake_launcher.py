"""A launcher without processes, with a simulated clock, and the local executor over it."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.messages import Progress
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.cpu_mover import CpuMover
from orchestrator.executors.executor import AttemptId, Event, Exited, Placed, Progressed, Sampled
from orchestrator.executors.launcher import Launch
from orchestrator.executors.local import LocalExecutor
from orchestrator.executors.slotted import SlottedExecutor

NEVER = float("inf")
ALIVE = Progress(phase="training")


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The simulated behaviour of one attempt. Times are simulated seconds since its launch."""

    after_s: float = 1.0
    returncode: int | None = 0
    """Exit code; None: the attempt is lost with its node."""
    oom_killed: bool = False
    rank: int = 0
    placed_after_s: float = 0.0
    progress_every_s: float | None = None
    progress: Progress | Callable[[float], Progress] = ALIVE
    """What the attempt reports, or a function of the seconds since the launch."""
    hangs_after_s: float = NEVER
    rss_mib: Sequence[tuple[float, float]] = ()
    """Memory samples: when, and how much."""
    exits_within_s: float = 0.0
    """How long it takes to exit when it is asked to; ``NEVER`` if it ignores the request."""
    returncode_asked: int = ExitCode.INTERRUPTED
    dies_within_s: float = 0.0
    """How long it takes to end when it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    behaviour: Behaviour
    ranks: int
    launched: float

    def progress(self, now: float) -> Progress:
        progress = self.behaviour.progress
        return progress if isinstance(progress, Progress) else progress(now - self.launched)


@dataclass(slots=True, kw_only=True)
class FakeLauncher:
    """See :class:`orchestrator.executors.launcher.Launcher`. Time passes only in :meth:`poll`.

    :param behave: the behaviour of each launch; may raise an OSError for a launch that fails.
    :param gather_s: events within so many seconds after the first one are returned together with
        it.
    """

    behave: Callable[[Launch], Behaviour] = lambda _: Behaviour()
    launches: MutableSequence[Launch] = field(default_factory=list)
    checkpoints: MutableSequence[AttemptId] = field(default_factory=list)
    """The attempts that were asked for a checkpoint."""
    gather_s: float = 0.0
    time_s: float = 0.0
    _agenda: list[tuple[float, int, Event | list[AttemptId]]] = field(default_factory=list)
    """A heap of what happens, by its time: an event, or that some attempts report their progress."""
    _reports: dict[float, list[AttemptId]] = field(default_factory=dict)
    """By time: attempts launched together report together, as one entry of the agenda."""
    _alive: dict[AttemptId, _Attempt] = field(default_factory=dict)
    _ticket: Iterator[int] = field(default_factory=itertools.count)

    never_forks = ""

    def prepare_to_fork(self) -> bool:
        return True

    def now(self) -> float:
        return self.time_s

    @property
    def running(self) -> int:
        return len(self._alive)

    def submit(self, launch: Launch) -> AttemptId:
        behaviour = self.behave(launch)
        self.launches.append(launch)
        handle = launch.id
        attempt = _Attempt(behaviour=behaviour, ranks=launch.ranks, launched=self.time_s)
        self._alive[handle] = attempt
        self._schedule(behaviour.placed_after_s, _placed_event(launch))
        self._schedule(
            behaviour.after_s,
            self._exit_event(handle, behaviour.returncode, behaviour.oom_killed, behaviour.rank),
        )
        for when, rss_mib in behaviour.rss_mib:
            self._schedule(when, Sampled(handle, rss_mib))
        self._report_next(handle, attempt)
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        until = self.time_s + timeout_s
        events: list[Event] = []
        while not events and self._agenda and self._agenda[0][0] <= until:
            together = min(self._agenda[0][0] + self.gather_s, until)
            while self._agenda and self._agenda[0][0] <= together:
                when, _, what = heapq.heappop(self._agenda)
                self.time_s = max(self.time_s, when)
                if isinstance(what, list):
                    events += self._progress_events(when)
                else:
                    events += self._take_event(what)
            self.time_s = max(self.time_s, together)
        if not events:
            self.time_s = until
        return events

    def _take_event(self, event: Event) -> list[Event]:
        """``event``, unless its attempt has ended before."""
        if event.attempt not in self._alive:
            return []
        if isinstance(event, Exited):
            del self._alive[event.attempt]
        return [event]

    def _progress_events(self, when: float) -> list[Event]:
        events: list[Event] = []
        for handle in self._reports.pop(when):
            attempt = self._alive.get(handle)
            if attempt is not None:
                events.append(Progressed(handle, attempt.progress(when)))
                self._report_next(handle, attempt)
        return events

    def _report_next(self, handle: AttemptId, attempt: _Attempt) -> None:
        every_s = attempt.behaviour.progress_every_s
        if every_s is None:
            return
        when = self.time_s + every_s
        if when > attempt.launched + attempt.behaviour.hangs_after_s:
            return
        if when not in self._reports:
            self._reports[when] = []
            self._schedule(every_s, self._reports[when])
        self._reports[when].append(handle)

    def cancel(self, handle: AttemptId, *, kill: bool) -> None:
        attempt = self._alive.get(handle)
        if attempt is not None and kill:
            self._schedule(attempt.behaviour.dies_within_s, self._exit_event(handle, -9))
        elif attempt is not None:
            self._schedule(
                attempt.behaviour.exits_within_s,
                self._exit_event(handle, int(attempt.behaviour.returncode_asked)),
            )

    def checkpoint(self, handle: AttemptId) -> None:
        if handle in self._alive:
            self.checkpoints.append(handle)

    def _exit_event(
        self, handle: AttemptId, returncode: int | None, oom_killed: bool = False, rank: int = 0
    ) -> Exited:
        has_cause = self._alive[handle].ranks > 1 and returncode != ExitCode.SUCCEEDED
        return Exited(handle, returncode, oom_killed=oom_killed, rank=rank if has_cause else None)

    def close(self) -> None:
        self._alive.clear()
        self._agenda.clear()
        self._reports.clear()

    def _schedule(self, seconds: float, what: Event | list[AttemptId]) -> None:
        when = self.time_s + seconds
        if when < NEVER:
            heapq.heappush(self._agenda, (when, next(self._ticket), what))


def _placed_event(launch: Launch) -> Placed:
    if not launch.rank_slots:
        return Placed(attempt=launch.id, cpus=launch.cpus, gpus=launch.gpus)
    cpus = tuple(cpu for rank_slot in launch.rank_slots for cpu in range(rank_slot.cores))
    gpus = tuple(name for rank_slot in launch.rank_slots for name in rank_slot.gpu_names)
    node = ", ".join(dict.fromkeys(rank_slot.node for rank_slot in launch.rank_slots))
    return Placed(attempt=launch.id, node=node, cpus=cpus, gpus=gpus)


@dataclass(slots=True, kw_only=True)
class SimulatedLauncher(FakeLauncher):
    """Workers write the exit records of real ones, and things happen at chosen times."""

    agenda: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    launched: dict[AttemptId, Launch] = field(default_factory=dict)
    writes_records: bool = True

    def submit(self, launch: Launch) -> AttemptId:
        handle = FakeLauncher.submit(self, launch)
        self.launched[handle] = launch
        return handle

    def poll(self, timeout_s: float) -> Sequence[Event]:
        due = [action for when, action in self.agenda if when <= self.time_s]
        self.agenda = [entry for entry in self.agenda if entry[0] > self.time_s]
        for action in due:
            action()
        events = FakeLauncher.poll(self, timeout_s)
        for event in events:
            if not self.writes_records or not isinstance(event, Exited):
                continue
            if event.returncode in [*ExitCode]:
                self._write_record(self.launched[event.attempt], ExitCode(event.returncode))
        return events

    def _write_record(self, launch: Launch, code: ExitCode) -> None:
        spec = WorkerSpec.from_json((launch.job_dir / "spec.json").read_bytes())
        has_trained = code in (ExitCode.SUCCEEDED, ExitCode.PAUSED)
        steps = spec.attempt_end if has_trained else 0
        record = ExitRecord(code=code, message="" if has_trained else code.name, env_steps=steps)
        path = launch.job_dir / "attempts" / str(launch.number) / "exit.json"
        if not path.exists():
            path.write_text(record.to_json())
        if code is ExitCode.SUCCEEDED:
            (launch.job_dir / "model.zip").touch()


class SimulatedLocal(LocalExecutor):
    """The local executor over another launcher, with slots and memory of a test."""

    def __init__(self, launcher: Any, slots: Any, memory_mib: int = 1 << 20) -> None:
        SlottedExecutor.__init__(self, slots, launcher)
        self._pool = slots
        self._mover = CpuMover(slots=slots, processes=launcher, now=time.monotonic)
        self.memory_mib = memory_mib

    def available_memory_mib(self) -> int:
        return self.memory_mib

    def close(self) -> None:
        SlottedExecutor.close(self)
