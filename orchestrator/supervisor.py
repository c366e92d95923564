"""The supervisor: one process, one thread, one loop — reap, record, decide, launch.

Executor, clock, slots and reporter are given to it. Decisions come from :mod:`orchestrator.policy`,
moves between states go through :func:`orchestrator.job.move`, facts go to the ledger.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator import policy, summary
from orchestrator.contract import DISK_FULL_ERRNOS, ExitRecord, Progress, RunPaths, write_whole
from orchestrator.errors import DiskFullError
from orchestrator.executors.base import Executor, Exited, Handle, Launch, Progressed, Sampled
from orchestrator.job import TERMINAL, Attempt, Cancelled, Cause, Failed, Job, Pending, Running, State, move
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine import Slot, SlotPool, available_memory_mib
from orchestrator.policy import Ending

IDLE_S = 0.25
"""Longest wait for an event: how late a signal, a request or a limit may be noticed."""
RECORD_EVERY_S = 1.0
PATIENCE = 16
"""How often a waiting job that does not fit may be overtaken before those behind it wait too."""


@dataclass(slots=True, kw_only=True)
class Live:
    """A running attempt, as this process knows it. Times are monotonic seconds."""

    job: Job
    handle: Handle
    slot: Slot
    started: float
    last_progress: float
    progress: Progress | None = None
    rss_mib: float = 0.0
    max_rss_mib: float = 0.0
    asked: Ending | None = None
    """Why it was asked to leave, once it was."""
    kill_at: float | None = None
    reported: bool = True
    """Whether the ledger has the latest progress."""

    def watched(self) -> policy.Watched:
        return policy.Watched(
            resources=self.job.resources, started=self.started, last_progress=self.last_progress, rss_mib=self.rss_mib
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The whole experiment at one moment, for whoever shows it."""

    elapsed_s: float
    counts: Counter[str]
    live: Sequence[Live]
    lanes: int
    steps_to_go: int
    env_steps_per_s: float
    now: float


class Reporter(Protocol):
    """Tells a person or a program what happens."""

    def event(self, kind: str, message: str, **facts: Any) -> None: ...

    def tick(self, view: Callable[[], View]) -> None:
        """Called every turn of the loop; asks for the view only when it will show it."""
        ...


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Brings every job to a terminal state, or stops when asked, leaving all of it resumable.

    ``rows`` are in order of launch. :meth:`run` returns the states.
    """

    paths: RunPaths
    rows: Sequence[JobRow]
    ledger: Ledger
    executor: Executor
    slots: SlotPool
    reporter: Reporter
    grace_s: float = 30.0
    """How long workers that were asked to leave may take, all together."""
    now: Callable[[], float] = time.monotonic
    available_memory_mib: Callable[[], int] = available_memory_mib

    states: dict[str, State] = field(default_factory=dict, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    _jobs: dict[str, Job] = field(default_factory=dict, init=False)
    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    _ready: deque[str] = field(default_factory=deque, init=False)
    _delayed: list[tuple[float, str]] = field(default_factory=list, init=False)
    _ready_since: dict[str, float] = field(default_factory=dict, init=False)
    _overtaken: Counter[str] = field(default_factory=Counter, init=False)
    _live: dict[Handle, Live] = field(default_factory=dict, init=False)
    _stops_asked: int = field(default=0, init=False)
    _stopping: int = field(default=0, init=False)
    _stop_reason: str = field(default="", init=False)
    _disk_full: DiskFullError | None = field(default=None, init=False)
    _dirty: bool = field(default=True, init=False)
    _next_record: float = field(default=0.0, init=False)
    _next_summary: float = field(default=0.0, init=False)
    _steps_waiting: int = field(default=0, init=False)
    _started: float = field(default=0.0, init=False)

    def run(self) -> dict[str, State]:
        """The loop. Returns each job's state; those still PENDING wait for the next supervisor.

        :raises DiskFullError: when the run directory's disk is full; everything has stopped, resumable.
        """
        self._started = self.now()
        self._take_up()
        try:
            while self._live or (not self._stopping and (self._ready or self._delayed)):
                self._turn()
            if self._disk_full is None:
                self._record(final=True)
        except DiskFullError as error:
            self._drain(error)
        finally:
            self.executor.close()
        if self._disk_full is not None:
            raise self._disk_full
        return self.states

    def request_stop(self, reason: str) -> None:
        """Safe in a signal handler. The first call lets workers checkpoint and leave, the second kills."""
        self._stops_asked += 1
        self._stop_reason = reason

    @property
    def interrupted(self) -> bool:
        return self._stopping > 0

    def _turn(self) -> None:
        for event in self.executor.poll(self._patience_s()):
            match event:
                case Progressed(handle, progress):
                    self._progressed(handle, progress)
                case Sampled(handle, rss_mib):
                    self._sampled(handle, rss_mib)
                case Exited(handle, returncode, oom_killed):
                    self._exited(handle, returncode, oom_killed)
        self._obey()
        self._police()
        self._launch_what_fits()
        self._record()
        self.reporter.tick(self._view)

    def _patience_s(self) -> float:
        if not self._stopping and self._delayed:
            return min(IDLE_S, max(0.0, self._delayed[0][0] - self.now()))
        if not self._live and self._ready and not self._stopping:
            return 0.0
        return IDLE_S

    # -- taking up and moving jobs

    def _take_up(self) -> None:
        now = self.now()
        for row in self.rows:
            job_id = row.job.job_id
            self._jobs[job_id] = row.job
            self._attempts[job_id] = row.attempts
            self.states[job_id] = row.state
            self.counts[row.state.name] += 1
            if isinstance(row.state, Pending):
                self._enqueue(job_id, row.state, now)

    def _enqueue(self, job_id: str, state: Pending, now: float) -> None:
        self._steps_waiting += self._jobs[job_id].spec.total_timesteps
        self._ready_since[job_id] = now
        if state.not_before is not None and state.not_before > now:
            heapq.heappush(self._delayed, (state.not_before, job_id))
        else:
            self._ready.append(job_id)

    def _move(self, job_id: str, new: State) -> None:
        old = self.states[job_id]
        self.states[job_id] = move(job_id, old, new)
        self.counts[old.name] -= 1
        self.counts[new.name] += 1
        self.ledger.set_state(job_id, new)
        self._dirty = True
        if isinstance(old, Pending):
            self._steps_waiting -= self._jobs[job_id].spec.total_timesteps
            self._overtaken.pop(job_id, None)
        if isinstance(new, Pending):
            self._enqueue(job_id, new, self.now())

    # -- reap

    def _progressed(self, handle: Handle, progress: Progress) -> None:
        live = self._live.get(handle)
        if live is not None:
            live.progress, live.last_progress, live.reported = progress, self.now(), False

    def _sampled(self, handle: Handle, rss_mib: float) -> None:
        live = self._live.get(handle)
        if live is not None:
            live.rss_mib, live.max_rss_mib = rss_mib, max(live.max_rss_mib, rss_mib)

    def _exited(self, handle: Handle, returncode: int | None, oom_killed: bool) -> None:
        live = self._live.pop(handle, None)
        if live is None:
            return
        now = self.now()
        job_id = live.job.job_id
        self.slots.release(live.slot)
        record = self._exit_record(handle)
        ending = policy.judge(returncode, record, asked=live.asked, oom_killed=oom_killed)
        state = self.states[job_id]
        failures = state.failures if isinstance(state, Running) else 0
        self.ledger.end_attempt(
            job_id,
            handle.number,
            ended_at=time.time(),
            wall_s=now - live.started,
            returncode=returncode,
            ending=ending,
            max_rss_mib=live.max_rss_mib or None,
            record=record,
        )
        new = policy.next_state(ending, failures=failures, max_retries=live.job.max_retries, now=now)
        self._move(job_id, new)
        self._tell_end(live, ending, new, record)
        if ending.cause is Cause.DISK_FULL and self._disk_full is None:
            self._disk_full = DiskFullError(
                f"{self.paths.root}: no space left on the disk; every job stopped at its last whole checkpoint."
                " Make room and give the same command again"
            )
            self.request_stop("the disk is full")

    def _exit_record(self, handle: Handle) -> ExitRecord | None:
        path = self.paths.job(handle.job_id).attempt(handle.number).exit
        try:
            return ExitRecord.from_json(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            self.reporter.event("warning", f"{path}: not readable ({error}); going by the exit code", job_id=handle.job_id)
            return None

    def _tell_end(self, live: Live, ending: Ending, new: State, record: ExitRecord | None) -> None:
        facts: dict[str, Any] = {
            "job_id": live.job.job_id,
            "number": live.handle.number,
            "state": new.name,
            "cause": ending.cause,
            "wall_s": round(self.now() - live.started, 3),
        }
        if record is not None:
            facts.update(env_steps=record.env_steps, ep_rew_mean=record.ep_rew_mean, eval_mean=record.eval_mean)
        name = live.job.job_id
        match new:
            case Failed(message=message):
                self.reporter.event("failed", f"{name} failed: {message}", **facts, reason=message)
            case Pending(not_before=None):
                self.reporter.event("paused", f"{name} left to be resumed: {ending.message}", **facts)
            case Pending(failures=failures, not_before=when):
                wait = max(0.0, (when or 0.0) - self.now())
                text = f"{name} {ending.message}; retry {failures} of {live.job.max_retries} in {wait:.0f} s"
                self.reporter.event("retrying", text, **facts)
            case Cancelled():
                self.reporter.event("cancelled", f"{name} cancelled", **facts)
            case _:
                figure = record.eval_mean if record is not None and record.eval_mean is not None else None
                text = f"{name} succeeded" + (f": evaluated return {figure:.1f}" if figure is not None else "")
                self.reporter.event("succeeded", text, **facts)

    # -- obey: signals and requests

    def _obey(self) -> None:
        for request in self.ledger.take_requests():
            self._dirty = True
            if request.verb == "stop":
                self.request_stop("`stop` was asked for")
            elif request.job_id in self.states:
                self._obey_for(request.verb, request.job_id)
        if self._stops_asked > self._stopping and self._stopping < 2:
            self._stop(min(self._stops_asked, 2))

    def _obey_for(self, verb: str, job_id: str) -> None:
        state = self.states[job_id]
        if verb == "retry" and state.name in ("FAILED", "CANCELLED"):
            self._move(job_id, Pending())
            self.reporter.event("retrying", f"{job_id} is tried again, as asked", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Pending):
            self._move(job_id, Cancelled())
            self.reporter.event("cancelled", f"{job_id} cancelled before its launch", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Running):
            handle = Handle(job_id, state.attempt.number, state.attempt.pid, state.attempt.pid_start)
            self._ask_to_leave(self._live[handle], Ending(cause=Cause.CANCELLED, message="cancelled"), self.now() + self.grace_s)

    def _stop(self, level: int) -> None:
        self._stopping = level
        if level == 1:
            text = f"stopping ({self._stop_reason}): workers checkpoint and leave within {self.grace_s:.0f} s"
            self.reporter.event("stopping", text + "; once more kills them", running=len(self._live))
        else:
            self.reporter.event("stopping", f"killing {len(self._live)} workers ({self._stop_reason})", running=len(self._live))
        deadline = self.now() + (self.grace_s if level == 1 else 0.0)
        for live in self._live.values():
            self._ask_to_leave(live, Ending(cause=Cause.INTERRUPTED, message=self._stop_reason), deadline)

    def _ask_to_leave(self, live: Live, why: Ending, deadline: float) -> None:
        live.asked = live.asked or why
        live.kill_at = min(deadline, live.kill_at) if live.kill_at is not None else deadline
        self.executor.cancel(live.handle, kill=live.kill_at <= self.now())

    # -- police: limits and deadlines

    def _police(self) -> None:
        now = self.now()
        for live in self._live.values():
            if live.kill_at is not None:
                if now >= live.kill_at:
                    self.executor.cancel(live.handle, kill=True)
                continue
            ending = policy.overstepped(live.watched(), now)
            if ending is not None:
                # Only one that is late may still checkpoint; one too big or hung is ended at once.
                patience = self.grace_s if ending.cause is Cause.TIMEOUT else 0.0
                self._ask_to_leave(live, ending, now + patience)

    # -- launch

    def _launch_what_fits(self) -> None:
        if self._stopping:
            return
        now = self.now()
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._delayed)[1])
        passed: list[str] = []
        while self._ready and len(passed) < policy.LOOKAHEAD:
            job_id = self._ready.popleft()
            if not isinstance(self.states[job_id], Pending):
                continue
            if self._try_launch(self._jobs[job_id]):
                self._overtaken.update(passed)
                continue
            passed.append(job_id)
            if len(self._live) >= self.slots.lanes or self._overtaken[job_id] >= PATIENCE:
                break
        self._ready.extendleft(reversed(passed))

    def _try_launch(self, job: Job) -> bool:
        """False when it does not fit now."""
        slot = self.slots.acquire(job.resources.cores, job.resources.gpus)
        if slot is None:
            return False
        watched = [live.watched() for live in self._live.values()]
        if watched and not policy.memory_admits(job.resources.memory_mib, self.available_memory_mib(), watched):
            self.slots.release(slot)
            return False
        number = self._attempts[job.job_id]
        queue_s = self.now() - self._ready_since[job.job_id]
        paths = self.paths.job(job.job_id)
        launch = Launch(
            job_id=job.job_id,
            number=number,
            job_dir=paths.root,
            cpus=slot.cpus,
            gpus=slot.gpus,
            threads=job.resources.threads,
        )
        problem: OSError | None = None
        try:
            paths.attempt(number).root.mkdir(parents=True, exist_ok=True)
            # A supervisor that died between launch and record may have left one of the same number.
            paths.attempt(number).exit.unlink(missing_ok=True)
            write_whole(paths.spec, job.spec.to_json(), durable=False)
            handle = self.executor.submit(launch)
        except OSError as error:
            problem = error
            handle = Handle(job.job_id, number)
        attempt = Attempt(
            job_id=job.job_id,
            number=number,
            cpus=slot.cpus,
            gpus=slot.gpus,
            pid=handle.pid,
            pid_start=handle.pid_start,
            started_at=time.time(),
        )
        state = self.states[job.job_id]
        failures = state.failures if isinstance(state, Pending) else 0
        self._attempts[job.job_id] = number + 1
        self._move(job.job_id, Running(attempt=attempt, failures=failures))
        self.ledger.start_attempt(attempt, queue_s=queue_s)
        now = self.now()
        live = Live(job=job, handle=handle, slot=slot, started=now, last_progress=now)
        self._live[handle] = live
        if problem is None:
            text = f"{job.job_id} launched on CPU {','.join(map(str, slot.cpus))}" + (f", attempt {number}" if number else "")
            self.reporter.event("launched", text, job_id=job.job_id, number=number, pid=handle.pid, cpus=slot.cpus)
        else:
            cause = Cause.DISK_FULL if problem.errno in DISK_FULL_ERRNOS else Cause.LAUNCH
            live.asked = Ending(cause=cause, message=f"could not be launched: {problem}")
            self._exited(handle, None, False)
        return True

    # -- record

    def _record(self, *, final: bool = False) -> None:
        """Commit what happened; progress once a second; ``summary.*`` as often as its size allows."""
        now = self.now()
        if now >= self._next_record or final:
            self._next_record = now + RECORD_EVERY_S
            fresh = [live for live in self._live.values() if not live.reported and live.progress is not None]
            self.ledger.set_progress(
                (live.job.job_id, live.progress.env_steps, live.progress.ep_rew_mean, live.progress.env_steps_per_s, live.progress.learner)
                for live in fresh
                if live.progress is not None and live.progress.phase != "starting"
            )
            for live in fresh:
                live.reported = True
            self._dirty |= bool(fresh)
        self.ledger.commit()
        if self._dirty and (now >= self._next_summary or final):
            self._dirty = False
            begun = time.monotonic()
            summary.write(self.paths, self.ledger.summary())
            # Written whole each time: with thousands of jobs at most a twentieth of our time may go there.
            self._next_summary = now + max(RECORD_EVERY_S, 20 * (time.monotonic() - begun))

    def _drain(self, error: DiskFullError) -> None:
        """Our own writes found no space: let everything leave, without the ledger. The next start sorts it out."""
        self._disk_full = error
        self._stopping = 1
        self.reporter.event("stopping", f"{error}; workers leave at their last whole checkpoint", running=len(self._live))
        deadline = self.now() + self.grace_s
        for live in self._live.values():
            self._ask_to_leave(live, Ending(cause=Cause.DISK_FULL, message=str(error)), deadline)
        while self._live:
            for event in self.executor.poll(IDLE_S):
                if isinstance(event, Exited):
                    self._live.pop(event.handle, None)
            self._police()

    def _view(self) -> View:
        live = list(self._live.values())
        rates = [one.progress.env_steps_per_s for one in live if one.progress is not None and one.progress.env_steps_per_s]
        to_go = sum(one.job.spec.total_timesteps - (one.progress.env_steps if one.progress else 0) for one in live)
        return View(
            elapsed_s=self.now() - self._started,
            counts=self.counts,
            live=live,
            lanes=self.slots.lanes,
            steps_to_go=max(0, to_go) + self._steps_waiting,
            env_steps_per_s=sum(rates),
            now=self.now(),
        )


def exit_code(states: dict[str, State], *, interrupted: bool) -> int:
    """The command's exit code: 0 all succeeded, 1 some did not, 130 stopped and resumable."""
    if interrupted and any(state.name not in TERMINAL for state in states.values()):
        return 130
    return 0 if all(state.name == "SUCCEEDED" for state in states.values()) else 1
