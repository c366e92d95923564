"""The supervisor: one process, one thread, one loop — obey, reap, police, launch, record.

Executor, clock, slots and reporter are given to it. Decisions come from :mod:`orchestrator.policy` and
:mod:`orchestrator.waiting`, moves between states go through :func:`orchestrator.job.move`, facts go to
the ledger.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from orchestrator import policy, reporting
from orchestrator.contract import DISK_FULL_ERRNOS, RunPaths, write_whole
from orchestrator.errors import DiskFullError
from orchestrator.executors.base import Event, Executor, Exited, Handle, Launch, Placed, Progressed, Sampled
from orchestrator.job import TERMINAL, Attempt, Cancelled, Cause, Failed, Job, Pending, Running, State, move
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine import available_memory_mib
from orchestrator.policy import Ending
from orchestrator.recorder import Recorder
from orchestrator.reporting import Live, Reporter, UntilGone, View
from orchestrator.running import RunningAttempts
from orchestrator.slots import Slot, Slots
from orchestrator.waiting import Lack, WaitingLine

IDLE_S = 0.25
"""Longest wait for an event: how late a signal, a request or a limit may be noticed."""
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

    states: dict[str, State] = field(default_factory=dict, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    _jobs: dict[str, Job] = field(default_factory=dict, init=False)
    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    _steps_done: dict[str, int] = field(default_factory=dict, init=False)
    """As of the last end of an attempt."""
    _waiting: WaitingLine = field(default_factory=WaitingLine, init=False)
    _live: RunningAttempts = field(default_factory=RunningAttempts, init=False)
    _unhandled: deque[Event] = field(default_factory=deque, init=False)
    """Kept over an error, so that no end is lost and waited for in vain."""
    _stops_asked: int = field(default=0, init=False)
    _stopping: int = field(default=0, init=False)
    """0: going on; 1: workers may checkpoint and leave; 2: they are killed."""
    _stop_reason: str = field(default="", init=False)
    _disk_full: DiskFullError | None = field(default=None, init=False)
    _ended: deque[tuple[Live, State]] = field(default_factory=lambda: deque(maxlen=VIEWED), init=False)
    _steps_waiting: int = field(default=0, init=False)
    _in_want: bool = field(default=False, init=False)
    """Whether nothing runs for want of a node with room, and the user knows."""
    _started: float = field(default=0.0, init=False)
    _recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.reporter = UntilGone(self.reporter)
        self._recorder = Recorder(paths=self.paths, ledger=self.ledger, reporter=self.reporter)

    def run(self) -> dict[str, State]:
        """The loop. Returns each job's state; those still PENDING wait for the next supervisor.

        Whatever it ends with, no worker is left, and the ledger holds a past from which a next
        supervisor goes on.

        :raises DiskFullError: when the run directory's disk is full; everything has stopped, resumable.
        """
        self._started = self.now()
        try:
            self._take_up()
            while self._is_work_left():
                self._turn()
            self._recorder.turn_ends(self.now(), final=True)
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
        """Whether a stop left jobs to be resumed."""
        return self._stopping > 0 and self.counts["PENDING"] + self.counts["RUNNING"] > 0

    def _is_work_left(self) -> bool:
        if self._live or (self._waiting and not self._stopping):
            return True
        self._obey()  # what was asked for at the last moment, or it would be found by the next supervisor
        return bool(self._waiting) and not self._stopping

    def _turn(self) -> None:
        self._unhandled.extend(self.executor.poll(self._patience_s()))
        self._obey()  # before ends are judged: one that a stop has brought about is no failure
        while self._unhandled:
            self._handle(self._unhandled.popleft())
        self._police()
        self._launch_what_fits()
        self._recorder.turn_ends(self.now())
        self.reporter.tick(self._view)

    def _patience_s(self) -> float:
        if self._stopping or not self._waiting:
            return IDLE_S
        due = self._waiting.next_due
        if due is not None:
            return min(IDLE_S, max(0.0, due - self.now()))
        return IDLE_S if self._live or self.slots.grows else 0.0

    # -- taking up and moving jobs

    def _take_up(self) -> None:
        now = self.now()
        for row in self.rows:
            job_id = row.job.job_id
            self._jobs[job_id] = row.job
            self._attempts[job_id] = row.attempts
            self._steps_done[job_id] = row.env_steps
            self.states[job_id] = row.state
            self.counts[row.state.name] += 1
            if isinstance(row.state, Pending):
                self._enqueue(job_id, row.state, now)

    def _enqueue(self, job_id: str, state: Pending, now: float) -> None:
        job = self._jobs[job_id]
        self._steps_waiting += self._steps_to_go(job)
        self._waiting.add(job_id, job.resources, now=now, not_before=state.not_before)

    def _steps_to_go(self, job: Job) -> int:
        return max(0, job.spec.total_timesteps - self._steps_done[job.job_id])

    def _move(self, job_id: str, new: State) -> None:
        old = self.states[job_id]
        self.states[job_id] = move(job_id, old, new)
        self.counts[old.name] -= 1
        self.counts[new.name] += 1
        if isinstance(old, Pending):
            self._steps_waiting -= self._steps_to_go(self._jobs[job_id])
            self._waiting.remove(job_id)
        if isinstance(new, Pending):
            self._enqueue(job_id, new, self.now())
        self._recorder.moved(job_id, new)

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
        self._live.look_at(live, policy.next_look(live.watched()))
        state = self.states[live.job.job_id]
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
        self._tell(reporting.told_launch(live, event.pid))

    def _exited(self, live: Live, end: Exited) -> None:
        self._live.remove(live)
        self.slots.release(live.slot)
        now = self.now()
        job_id = live.job.job_id
        record = self._recorder.last_word(live.handle, end.rank or 0)
        ending = policy.judge(
            end.returncode,
            record,
            asked=live.asked,
            oom_killed=end.oom_killed,
            silent=record is None and self.last_word_expected,
            rank=end.rank,
            lost=end.lost,
        )
        self._recorder.ended(live, end.returncode, ending, record, wall_s=now - live.started)
        state = self.states[job_id]
        failures = state.failures if isinstance(state, Running) else 0
        if live.progress is not None:
            self._steps_done[job_id] = max(self._steps_done[job_id], live.progress.env_steps)
        new = policy.next_state(ending, failures=failures, max_retries=live.job.max_retries, now=now)
        self._move(job_id, new)
        if new.name in TERMINAL:
            self._ended.append((live, new))
        self._tell(reporting.told_end(live, ending, new, record, now))
        if ending.cause is Cause.DISK_FULL:
            self._stop_for_full_disk(DiskFullError(f"{self.paths.root}: no space left on the disk"))

    def _tell(self, told: tuple[str, str, reporting.Facts]) -> None:
        kind, message, facts = told
        self.reporter.event(kind, message, **facts)

    # -- obey: signals and requests

    def _obey(self) -> None:
        for request in self.ledger.take_requests():
            if request.verb == "stop":
                self.request_stop("`stop` was asked for")
            elif request.job_id in self.states:
                self._obey_for(request.verb, request.job_id)
        self._heed_stops()

    def _obey_for(self, verb: str, job_id: str) -> None:
        state = self.states[job_id]
        if verb == "retry" and state.name in ("FAILED", "CANCELLED"):
            self._move(job_id, Pending())
            self.reporter.event("retrying", f"{job_id} is tried again, as asked", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Pending):
            self._move(job_id, Cancelled())
            self.reporter.event("cancelled", f"{job_id} cancelled before its launch", job_id=job_id)
        elif verb == "cancel" and isinstance(state, Running):
            live = self._live.of(job_id)
            assert live is not None
            if live.asked is not None and live.asked.cause is Cause.INTERRUPTED:
                live.asked = None  # it leaves already, but is not to be resumed
            self._ask_to_leave(live, Ending(cause=Cause.CANCELLED, message="cancelled"), self.now() + self.grace_s)

    def _heed_stops(self) -> None:
        """What :meth:`request_stop` has noted."""
        if self._stops_asked <= self._stopping or self._stopping == 2:
            return
        self._stopping = min(self._stops_asked, 2)
        patience = self.grace_s if self._stopping == 1 else 0.0
        if self._stopping == 1:
            text = f"stopping ({self._stop_reason}): workers checkpoint and leave within {patience:.0f} s"
            self.reporter.event("stopping", text + "; once more kills them", running=len(self._live))
        else:
            text = f"killing {len(self._live)} workers ({self._stop_reason})"
            self.reporter.event("stopping", text, running=len(self._live))
        deadline = self.now() + patience
        for live in self._live:
            self._ask_to_leave(live, Ending(cause=Cause.INTERRUPTED, message=self._stop_reason), deadline)

    def _ask_to_leave(self, live: Live, why: Ending, deadline: float) -> None:
        live.asked = live.asked or why
        live.kill_at = min(deadline, live.kill_at) if live.kill_at is not None else deadline
        self._live.look_at(live, live.kill_at)
        self.executor.cancel(live.handle, kill=live.kill_at <= self.now())

    # -- police: limits and deadlines

    def _police(self) -> None:
        """Look at those whose moment has come: not at all of them, however many run."""
        now = self.now()
        for live in self._live.due(now):
            if live.kill_at is None:
                ending = policy.overstepped(live.watched(), now)
                if ending is not None:
                    # Only one that is late may still checkpoint; one too big or hung is ended at once.
                    patience = self.grace_s if ending.cause is Cause.TIMEOUT else 0.0
                    self._ask_to_leave(live, ending, now + patience)
            elif now >= live.kill_at:
                self.executor.cancel(live.handle, kill=True)
            next_look = policy.next_look(live.watched()) if live.kill_at is None else live.kill_at
            self._live.look_at(live, max(next_look, now + IDLE_S))

    # -- launch

    def _launch_what_fits(self) -> None:
        if self._stopping or not self._waiting or len(self._live) >= self.slots.lanes:
            return
        memory_mib: list[int] = []  # asked for once, when the first wants to know

        def try_launch(job_id: str) -> Lack | None:
            job = self._jobs[job_id]
            wanted = job.resources
            slot = self.slots.acquire(
                wanted.all_cores, wanted.all_gpus, memory_mib=wanted.all_memory_mib, ranks=wanted.ranks
            )
            if slot is None:
                return self._lack(job)
            if self._live:
                if not memory_mib:
                    memory_mib.append(self.available_memory_mib())
                if not policy.memory_admits(job.resources.all_memory_mib, memory_mib[0], self._live.promised_mib):
                    self.slots.release(slot)
                    return "memory"
            self._launch(job, slot)
            return None

        self._waiting.start(self.now(), try_launch, at_most=self.slots.lanes)

    def _lack(self, job: Job) -> Lack | None:
        """Why there is no slot for ``job``. One that not even an idle machine has a slot for is given up."""
        wanted = job.resources
        asked = f"{wanted.all_cores} cores and {wanted.all_gpus} GPUs"
        if not self._live and self.slots.grows:
            if not self._in_want:
                self._in_want = True
                text = f"{job.job_id} and whatever is like it waits for a node with room: {asked}"
                self.reporter.event("waiting", f"{text}, {wanted.all_memory_mib} MiB", job_id=job.job_id)
        elif not self._live:
            text = f"asks for {asked}, which this machine can never give; see `doctor`"
            self._move(job.job_id, Failed(cause=Cause.LAUNCH, message=text))
            self.reporter.event("failed", f"{job.job_id} failed: {text}", job_id=job.job_id, reason=text)
            return None
        if wanted.gpus and (slot := self.slots.acquire(wanted.all_cores)) is not None:
            self.slots.release(slot)
            return "gpus"
        return "cores"

    def _launch(self, job: Job, slot: Slot) -> None:
        job_id, number = job.job_id, self._attempts[job.job_id]
        queue_s = self.now() - self._waiting.since(job_id)
        problem: OSError | None = None
        try:
            handle = self._submit(job, number, slot)
        except OSError as error:
            problem = error
            handle = Handle(job_id, number)
        # First of all, so that whatever happens now it is known to run.
        now = self.now()
        live = Live(job=job, handle=handle, slot=slot, is_placed=not slot.places, started=now, last_progress=now)
        self._in_want = False
        self._live.add(live)
        self._live.look_at(live, policy.next_look(live.watched()))
        attempt = Attempt(
            job_id=job_id,
            number=number,
            cpus=slot.cpus,
            gpus=slot.gpus,
            pid=handle.pid,
            pid_start=handle.pid_start,
            started_at=time.time(),
        )
        self._attempts[job_id] = number + 1
        state = self.states[job_id]
        failures = state.failures if isinstance(state, Pending) else 0
        self._move(job_id, Running(attempt=attempt, failures=failures))
        self._recorder.launched(attempt, queue_s=queue_s)
        if problem is None and live.is_placed:
            self._tell(reporting.told_launch(live, handle.pid))
        elif problem is not None:
            cause = Cause.DISK_FULL if problem.errno in DISK_FULL_ERRNOS else Cause.LAUNCH
            live.asked = Ending(cause=cause, message=f"could not be launched: {problem}")
            self._exited(live, Exited(handle, None))

    def _submit(self, job: Job, number: int, slot: Slot) -> Handle:
        paths = self.paths.job(job.job_id)
        attempt = paths.attempt(number)
        attempt.root.mkdir(parents=True, exist_ok=True)
        # A supervisor that died between launch and record may have left some of the same number.
        for left in (attempt.rendezvous, *map(attempt.exit_of, range(job.resources.ranks))):
            left.unlink(missing_ok=True)
        write_whole(paths.spec, job.spec.to_json(), durable=False)
        return self.executor.submit(
            Launch(
                job_id=job.job_id,
                number=number,
                job_dir=paths.root,
                cpus=slot.cpus,
                gpus=slot.gpus,
                places=slot.places,
                threads=job.resources.threads,
                ranks=job.resources.ranks,
            )
        )

    # -- disk full

    def _stop_for_full_disk(self, error: DiskFullError) -> None:
        if self._disk_full is None:
            text = f"{error}; every job stopped at its last whole checkpoint. Make room and give the same command again"
            self._disk_full = DiskFullError(text)
        if not self._stops_asked:
            self.request_stop("the disk is full")

    def _drain(self, error: DiskFullError) -> None:
        """Our own writes found no space: everything leaves, without the ledger. The next start sorts it out."""
        self._stop_for_full_disk(error)
        while True:
            for event in self._unhandled:
                live = self._live.get(event.handle)
                if live is not None and isinstance(event, Exited):
                    self._live.remove(live)
            self._unhandled.clear()
            self._heed_stops()
            self._police()
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
            next_up=[self._jobs[job_id] for job_id in self._waiting.first(VIEWED)],
            steps_to_go=self._live.steps_to_go + self._steps_waiting,
            env_steps_per_s=self._live.env_steps_per_s,
            cores_busy=self._live.cores_busy,
        )


def exit_code(states: dict[str, State], *, interrupted: bool) -> int:
    """The command's exit code: 0 all succeeded, 1 some did not, 130 stopped and resumable."""
    if interrupted and any(state.name not in TERMINAL for state in states.values()):
        return 130
    return 0 if all(state.name == "SUCCEEDED" for state in states.values()) else 1
