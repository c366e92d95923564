"""The supervisor: one process, one thread, one loop — obey, reap, police, launch, record.

Executor, clock, slots and reporter are given to it. Decisions come from :mod:`orchestrator.supervisor.retry_policy` and
:mod:`orchestrator.supervisor.job_queue`, moves between states go through :mod:`orchestrator.supervisor.job_table`,
launches through
:mod:`orchestrator.supervisor.launcher`, ends before the training is done through
:mod:`orchestrator.supervisor.termination`; facts go to the ledger.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.errors import DiskFullError
from orchestrator.core.job import TERMINAL, Cancelled, Cause, Pending, Running, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Event, Executor, Exited, Placed, Progressed, Sampled
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine.slots import Slots
from orchestrator.machine.topology import available_memory_mib
from orchestrator.supervisor import events, job_directory, retry_policy
from orchestrator.supervisor.active_attempts import ActiveAttempts
from orchestrator.supervisor.events import DetachableReporter, Live, Reporter, View
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.launcher import Launcher
from orchestrator.supervisor.recorder import Recorder
from orchestrator.supervisor.termination import IDLE_S, Leaving

VIEWED = 5
"""Of the jobs that are over, and of those that wait, so many are part of the view."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Brings every job to a terminal state, or stops when asked, leaving all of it resumable.

    ``rows`` are in order of launch. :meth:`run` returns the states.
    """

    paths: RunPaths
    rows: Sequence[JobRow]
    ledger: Ledger
    executor: Executor
    slots: Slots
    reporter: Reporter
    grace_s: float = 30.0
    """How long workers that were asked to leave may take, all together."""
    last_word_expected: bool = True
    """Whether a worker that ended well has left an ``exit.json``; False for other programs in its place."""
    now: Callable[[], float] = time.monotonic
    available_memory_mib: Callable[[], int] = available_memory_mib

    _live: ActiveAttempts = field(default_factory=ActiveAttempts, init=False)
    _unhandled: deque[Event] = field(default_factory=deque, init=False)
    """Kept over an error, so that no end is lost and waited for in vain."""
    _ended: deque[tuple[Live, State]] = field(default_factory=lambda: deque(maxlen=VIEWED), init=False)
    _started: float = field(default=0.0, init=False)
    _recorder: Recorder = field(init=False)
    _roster: JobTable = field(init=False)
    _leaving: Leaving = field(init=False)
    _launching: Launcher = field(init=False)

    def __post_init__(self) -> None:
        self.reporter = DetachableReporter(self.reporter)
        self._recorder = Recorder(paths=self.paths, ledger=self.ledger, reporter=self.reporter)
        self._roster = JobTable(recorder=self._recorder, now=self.now)
        self._leaving = Leaving(
            running=self._live, executor=self.executor, reporter=self.reporter, grace_s=self.grace_s, now=self.now
        )
        self._launching = Launcher(
            paths=self.paths,
            roster=self._roster,
            running=self._live,
            recorder=self._recorder,
            executor=self.executor,
            slots=self.slots,
            reporter=self.reporter,
            now=self.now,
            available_memory_mib=self.available_memory_mib,
            failed=self._exited,
        )

    def run(self) -> dict[str, State]:
        """The loop. Returns each job's state; those still PENDING wait for the next supervisor.

        Whatever it ends with, no worker is left, and the ledger holds a past from which a next
        supervisor goes on.

        :raises DiskFullError: when the run directory's disk is full; everything has stopped, resumable.
        """
        self._started = self.now()
        try:
            self._roster.take_up(self.rows)
            while self._is_work_left():
                self._turn()
            self._recorder.turn_ends(self.now(), final=True)
        except DiskFullError as error:
            self._drain(error)
        finally:
            self.executor.close()
        if self._leaving.disk_full is not None:
            raise self._leaving.disk_full
        return self._roster.states

    def request_stop(self, reason: str) -> None:
        """Safe in a signal handler. The first call lets workers checkpoint and leave, the second kills."""
        self._leaving.request_stop(reason)

    @property
    def counts(self) -> Counter[str]:
        """Jobs, by the name of their state."""
        return self._roster.counts

    @property
    def interrupted(self) -> bool:
        """Whether a stop left jobs to be resumed."""
        return self._leaving.stage > 0 and self.counts["PENDING"] + self.counts["RUNNING"] > 0

    def _is_work_left(self) -> bool:
        if self._live or self._may_launch:
            return True
        self._obey()  # what was asked for at the last moment, or it would be found by the next supervisor
        return self._may_launch

    @property
    def _may_launch(self) -> bool:
        return bool(self._roster.waiting) and not self._leaving.stage

    def _turn(self) -> None:
        self._unhandled.extend(self.executor.poll(self._patience_s()))
        self._obey()  # before ends are judged: one that a stop has brought about is no failure
        while self._unhandled:
            self._handle(self._unhandled.popleft())
        self._leaving.police()
        if self._may_launch:
            self._launching.launch_what_fits()
        self._recorder.turn_ends(self.now())
        self.reporter.tick(self._view)

    def _patience_s(self) -> float:
        if not self._may_launch:
            return IDLE_S
        due = self._roster.waiting.next_due
        if due is not None:
            return min(IDLE_S, max(0.0, due - self.now()))
        return IDLE_S if self._live or self.slots.grows else 0.0

    # -- reap

    def _handle(self, event: Event) -> None:
        live = self._live.get(event.handle)
        if live is None:
            return
        match event:
            case Placed():
                self._placed(live, event)
            case Progressed(progress=progress):
                self._live.progressed(live, progress, self.now())
                self._recorder.progressed(live)
            case Sampled(rss_mib=rss_mib):
                self._live.sampled(live, rss_mib)
                if rss_mib > live.job.resources.all_memory_mib:
                    self._live.look_at(live, self.now())
            case Exited():
                self._exited(live, event)

    def _placed(self, live: Live, event: Placed) -> None:
        """Only now its time begins: it may have waited for its node's attention."""
        now = self.now()
        live.is_placed, live.node, live.started, live.last_progress = True, event.node, now, now
        live.slot = replace(live.slot, cpus=event.cpus, gpus=event.gpus)
        self._live.look_at(live, retry_policy.next_look(live.watched()))
        state = self._roster.states[live.job.job_id]
        assert isinstance(state, Running)
        attempt = replace(
            state.attempt,
            node=event.node,
            cpus=event.cpus,
            gpus=event.gpus,
            pid=event.pid,
            pid_start=event.pid_start,
            started_at=time.time(),
        )
        self._recorder.placed(attempt)
        self._tell(events.told_launch(live, event.pid))

    def _exited(self, live: Live, end: Exited) -> None:
        self._live.remove(live)
        self.slots.release(live.slot)
        now = self.now()
        job_id = live.job.job_id
        record = self._recorder.last_word(live.handle, end.rank or 0)
        ending = retry_policy.judge(
            end.returncode,
            record,
            asked=live.asked,
            oom_killed=end.oom_killed,
            silent=record is None and self.last_word_expected,
            rank=end.rank,
            lost=end.lost,
        )
        self._recorder.ended(live, end.returncode, ending, record, wall_s=now - live.started)
        if live.progress is not None:
            self._roster.reached(job_id, live.progress.env_steps)
        failures = self._roster.failures(job_id)
        losses = self.ledger.losses(job_id) if ending.cause is Cause.NODE_LOST else 0
        new = retry_policy.next_state(
            ending, failures=failures, max_retries=live.job.max_retries, now=now, losses=losses
        )
        self._roster.move(job_id, new)
        if isinstance(new, Succeeded):
            job_directory.tidy(self.paths.job(job_id), live.job.resources.ranks)
        if new.name in TERMINAL:
            self._ended.append((live, new))
        self._tell(events.told_end(live, ending, new, record, now))
        if ending.cause is Cause.DISK_FULL:
            self._leaving.stop_for_full_disk(DiskFullError(f"{self.paths.root}: no space left on the disk"))

    def _tell(self, told: tuple[str, str, events.Facts]) -> None:
        kind, message, facts = told
        self.reporter.event(kind, message, **facts)

    # -- obey: signals and requests

    def _obey(self) -> None:
        for request in self.ledger.take_requests():
            if request.verb == "stop":
                self.request_stop("`stop` was asked for")
            elif request.job_id in self._roster.states:
                self._obey_for(request.verb, request.job_id)
        self._leaving.heed_stops()

    def _obey_for(self, verb: str, job_id: str) -> None:
        state = self._roster.states[job_id]
        if verb == "retry" and state.name in ("FAILED", "CANCELLED"):
            self._roster.move(job_id, Pending())
            self.reporter.event("retrying", f"{job_id} is tried again, as asked", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Pending):
            self._roster.move(job_id, Cancelled())
            self.reporter.event("cancelled", f"{job_id} cancelled before its launch", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Running):
            live = self._live.of(job_id)
            assert live is not None
            self._leaving.cancel(live)

    # -- disk full

    def _drain(self, error: DiskFullError) -> None:
        """Our own writes found no space: everything leaves, without the ledger. The next start sorts it out."""
        self._leaving.stop_for_full_disk(error)
        while True:
            for event in self._unhandled:
                live = self._live.get(event.handle)
                if live is not None and isinstance(event, Exited):
                    self._live.remove(live)
            self._unhandled.clear()
            self._leaving.heed_stops()
            self._leaving.police()
            if not self._live:
                return
            self._unhandled.extend(self.executor.poll(IDLE_S))

    # -- show

    def _view(self) -> View:
        return View(
            elapsed_s=self.now() - self._started,
            counts=self.counts,
            live=self._live.all,
            ended=list(self._ended),
            next_up=[self._roster.job(job_id) for job_id in self._roster.waiting.first(VIEWED)],
            steps_to_go=self._live.steps_to_go + self._roster.steps_waiting,
            env_steps_per_s=self._live.env_steps_per_s,
            cores_busy=self._live.cores_busy,
        )


def exit_code(states: dict[str, State], *, interrupted: bool) -> int:
    """The command's exit code: 0 all succeeded, 1 some did not, 130 stopped and resumable."""
    if interrupted and any(state.name not in TERMINAL for state in states.values()):
        return 130
    return 0 if all(state.name == "SUCCEEDED" for state in states.values()) else 1
