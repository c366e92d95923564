"""The supervisor: one process, one thread, and one loop that reaps, records, decides and launches.

Decisions are made in :mod:`~orchestrator.supervisor.retry_policy` and
:mod:`~orchestrator.supervisor.job_queue`, moves between states in
:mod:`~orchestrator.supervisor.job_table`; the parts return values, and only the loop acts on them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.core.errors import (
    ClusterLostError,
    DiskFullError,
    LedgerUnavailableError,
    SupervisorError,
    is_disk_full,
)
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import TERMINAL, AttemptOutcome, Cause, Job, Running, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import (
    CpuMoves,
    Event,
    Executor,
    Exited,
    Placed,
    Progressed,
    Sampled,
)
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine.slots import Slots
from orchestrator.machine.topology import available_memory_mib
from orchestrator.supervisor import error_log, events, job_directory, retry_policy
from orchestrator.supervisor.active_attempts import ActiveAttempt, ActiveAttempts
from orchestrator.supervisor.cpu_mover import CpuMover
from orchestrator.supervisor.events import DetachableReporter, Reporter, View
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.launcher import Launched, Launcher, LaunchFailed, demand_text
from orchestrator.supervisor.recorder import Recorder
from orchestrator.supervisor.remaining_time import EndedWork
from orchestrator.supervisor.request_handler import RequestHandler
from orchestrator.supervisor.start_policies import NoPolicies, StartPolicies
from orchestrator.supervisor.termination import IDLE_S, Termination

LOCK_WAIT_S = 0.2
"""Longest time that the loop waits for a ledger that another process has locked."""
VIEWED = 100
"""How many of the jobs that ended last, and of those that wait, are part of the view."""
ANY_JOB = ""
"""Stands for the demands of all jobs: while nothing runs, as before the first node joins, one of them
is reported to wait for a node."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Brings every job to a terminal state, or stops on request and leaves the experiment
    resumable.
    """

    paths: RunPaths
    rows: Sequence[JobRow]
    """All jobs in order of launch."""
    ledger: Ledger
    executor: Executor
    slots: Slots
    reporter: Reporter
    staged_robots: Mapping[str, Path] = field(default_factory=dict)
    """Folder with the robot as it was examined in this session, by ``job_id``; a copy in a job
    directory that was altered is replaced by it."""
    policies: StartPolicies = field(default_factory=NoPolicies)
    grace_s: float = 30.0
    """Time that all workers together have to exit when they are asked to."""
    until: float | None = None
    """When all of them have to have ended, in seconds since the epoch; None: no such time."""
    exit_record_expected: bool = True
    """Whether a worker that succeeds writes ``exit.json``; False for other programs in its
    place."""
    holder: str = ""
    """Names this supervisor in requests to stop; see
    :attr:`~orchestrator.experiment.directory.run_directory.LockHolder.key`."""
    cpu_moves: CpuMoves | None = None
    """Moves attempts whose CPUs others have come to use; None: they stay where they are."""
    may_add_jobs: Callable[[], bool] = lambda: False
    """Whether another process may still add jobs; asked when none is left."""
    before_turn: Callable[[], None] = lambda: None
    """Starts the processes beside this one, and starts them again; called on every turn until a stop
    is requested."""
    now: Callable[[], float] = time.monotonic
    available_memory_mib: Callable[[], int] = available_memory_mib

    _active: ActiveAttempts = field(default_factory=ActiveAttempts, init=False)
    _unhandled: deque[Event] = field(default_factory=deque, init=False)
    """Events that remain if handling one raises: the supervisor would wait for ever for an exit
    that is lost."""
    _ended: deque[tuple[ActiveAttempt, State]] = field(
        default_factory=lambda: deque(maxlen=VIEWED), init=False
    )
    """The last attempts of jobs, each with the state that it has brought its job to."""
    _ended_work: EndedWork = field(default_factory=EndedWork, init=False)
    _started: float = field(default=0.0, init=False)
    _awaited_nodes: set[str] = field(default_factory=set, init=False)
    """Demands of jobs, in words, of which it was reported that they wait for a node; :data:`ANY_JOB`
    where that was while nothing ran."""
    _events: DetachableReporter = field(init=False)
    _recorder: Recorder = field(init=False)
    _jobs: JobTable = field(init=False)
    _termination: Termination = field(init=False)
    _launcher: Launcher = field(init=False)
    _requests: RequestHandler = field(init=False)
    _mover: CpuMover | None = field(init=False)

    def __post_init__(self) -> None:
        self._events = DetachableReporter(
            self.reporter, functools.partial(error_log.record, self.paths)
        )
        self.reporter = self._events
        self._recorder = Recorder(
            paths=self.paths, ledger=self.ledger, reporter=self.reporter, holder=self.holder
        )
        self._jobs = JobTable(recorder=self._recorder, now=self.now, policies=self.policies)
        self._termination = Termination(
            active=self._active,
            executor=self.executor,
            reporter=self.reporter,
            grace_s=self.grace_s,
            until=self.until,
            now=self.now,
        )
        hashes = {row.job_id: row.robot_hash for row in self.rows}
        robots = job_directory.RobotCopies(
            paths=self.paths, hashes=hashes, staged=self.staged_robots, reporter=self.reporter
        )
        self._requests = RequestHandler(
            recorder=self._recorder,
            jobs=self._jobs,
            slots=self.slots,
            robots=robots,
            termination=self._termination,
            holder=self.holder,
        )
        self._mover = None
        if self.cpu_moves is not None:
            self._mover = CpuMover(moves=self.cpu_moves, active=self._active, now=self.now)
        self._launcher = Launcher(
            jobs=self._jobs,
            active=self._active,
            executor=self.executor,
            slots=self.slots,
            robots=robots,
            now=self.now,
        )

    def run(self) -> dict[str, State]:
        """Supervise until no work is left. Returns each job's state; PENDING jobs wait for the next
        supervisor.

        However it ends, no worker is left, and the ledger holds what the next supervisor needs.

        :raises DiskFullError: when the run directory's disk is full; everything has stopped,
            resumable.
        :raises LedgerUnavailableError: at the beginning; nothing was launched.
        :raises SupervisorError: after any other error that is not of one job; everything has
            stopped, resumable.
        """
        self._started = self.now()
        has_begun = False
        try:
            self._jobs.load(self.rows, self.ledger.losses())
            has_begun = True
            self.ledger.wait_for_lock(LOCK_WAIT_S)
            while self._has_work() or self._take_last_requests() or self._record_end():
                self._turn()
            if not self._termination.stage:
                self._jobs.report_held()
            self.ledger.wait_for_lock()
        except (ClusterLostError, SupervisorError):
            raise
        except DiskFullError as error:
            self._termination.stop_for_full_disk(error)
            self._drain()
        except Exception as error:
            if isinstance(error, LedgerUnavailableError) and not has_begun:
                raise
            self._termination.stop_for_error(error, self._recorder.log_error(error))
            self._drain()
        finally:
            self._recorder.record_error_counts()
            self.executor.close()
        if self._termination.failure is not None:
            raise self._termination.failure
        return self._jobs.states

    def _turn(self) -> None:
        if not self.is_stopping:
            self.before_turn()
        self._unhandled.extend(self.executor.poll(self._poll_timeout_s()))
        with self._events.holding():  # until it is recorded
            # before exits are judged: an exit that a stop has caused is no failure
            self._requests.handle()
            while self._unhandled:
                self._handle(self._unhandled[0])
                self._unhandled.popleft()
            self._requests.resume_exited()
            self._termination.enforce_limits()
            if not self.is_stopping:
                self._jobs.take_policies()
            self._move_attempts()
            if self._may_launch:
                self._launch_waiting()
                self._launcher.disk.tick()
            self._recorder.end_turn(self.now(), self._view)
        self.reporter.tick(self._view)

    def request_stop(self, reason: str) -> None:
        """Safe in a signal handler. The first call lets workers save a checkpoint and exit, the
        second kills them.
        """
        self._termination.request_stop(reason)

    def request_checkpoints(self) -> None:
        """Safe in a signal handler. Every running worker writes a checkpoint at the end of its
        iteration.
        """
        self._termination.request_checkpoints()

    @property
    def counts(self) -> Counter[str]:
        """Jobs by the name of their state."""
        return self._jobs.counts

    @property
    def is_interrupted(self) -> bool:
        """Whether a stop left jobs to be resumed."""
        return self.is_stopping and self.counts["PENDING"] + self.counts["RUNNING"] > 0

    @property
    def has_free_cores(self) -> bool | None:
        """Whether the jobs use fewer cores than they may; None while no job runs."""
        return not self.slots.is_full if self._active else None

    @property
    def is_stopping(self) -> bool:
        """Whether a stop has been requested."""
        return self._termination.stage > 0

    @property
    def _may_launch(self) -> bool:
        return bool(self._jobs.queue or self.policies.is_busy) and not self._termination.stage

    @property
    def _has_room(self) -> bool:
        """Whether a waiting job may get a slot. Slots that grow are asked for one also when they
        are full: what was refused may be why they grow.
        """
        if len(self._active) >= self.slots.jobs_at_once:
            return False
        return self.slots.grows or not self.slots.is_full

    def _has_work(self) -> bool:
        return bool(self._active) or self._may_launch

    def _take_last_requests(self) -> bool:
        """Act on what others have requested until now: a retry at the last moment, or new jobs.

        Returns whether there is work again, or may still come.
        """
        # Asked first: a process that adds no more may have left its last jobs in a request. Asked
        # also while the run stops: the answer may be an error that ends it.
        awaits_jobs = self.may_add_jobs() and not self.is_stopping
        has_handled_all = self._requests.handle()
        if self._may_launch:
            return True
        return not self.is_stopping and (awaits_jobs or not has_handled_all)

    def _poll_timeout_s(self) -> float:
        """How long to wait for an event: not at all while there is a job to launch, and room."""
        is_job_waiting = self._may_launch and bool(self._jobs.queue)
        if not is_job_waiting or not self._has_room:
            return IDLE_S
        if (due := self._jobs.queue.next_due) is not None:
            return min(IDLE_S, max(0.0, due - self.now()))
        awaits_other = (
            self.slots.grows
            or self._launcher.disk.awaited_shortage
            or self._launcher.awaits_template
        )
        return IDLE_S if self._active or awaits_other else 0.0

    # -- events of the executor

    def _handle(self, event: Event) -> None:
        """Act on ``event``. An error in that ends the attempt that it concerns, and no other."""
        if (attempt := self._active.get(event.handle)) is None:
            return
        try:
            self._act_on(attempt, event)
        except DiskFullError:
            raise
        except Exception as error:
            text = f"the supervisor could not handle an event of it ({error!r}); {self._recorder.log_error(error)}"
            outcome = AttemptOutcome(cause=Cause.ERROR, message=text)
            if self._active.get(event.handle) is None:
                self.reporter.event(
                    "warning", f"{attempt.job.job_id}: {text}", job_id=attempt.job.job_id
                )
            elif isinstance(event, Exited):
                self._end(attempt, outcome, event.returncode)
            else:
                self._termination.fail(attempt, outcome)

    def _act_on(self, attempt: ActiveAttempt, event: Event) -> None:
        match event:
            case Placed():
                self._take_placed(attempt, event)
            case Progressed(progress=progress):
                self._termination.check_iteration(attempt, progress)
                events.report_warning(self.reporter, attempt, progress.warning)
                events.report_news(self.reporter, attempt, progress)
                self._active.note_progress(attempt, progress, self.now())
                self._recorder.note_progress(attempt)
            case Sampled(rss_mib=rss_mib):
                self._active.note_memory(attempt, rss_mib, self.now())
                if self._mover is not None:
                    self._mover.note_waiting(attempt, event)
            case Exited():
                self._take_exited(attempt, event)

    def _take_placed(self, attempt: ActiveAttempt, event: Placed) -> None:
        self._active.note_placement(attempt, event, self.now())
        state = self._jobs.states[attempt.job.job_id]
        assert isinstance(state, Running)
        placed = replace(
            state.attempt,
            node=event.node,
            cpus=event.cpus,
            gpus=event.gpus,
            pid=event.pid,
            pid_start=event.pid_start,
            started_at=time.time(),
        )
        self.ledger.place_attempt(placed)
        events.report_launch(self.reporter, attempt, event.pid)

    def _take_exited(self, attempt: ActiveAttempt, exited: Exited) -> None:
        record = self._recorder.exit_record(attempt.handle, exited.rank or 0)
        outcome = retry_policy.judge(
            exited.returncode,
            record,
            end_reason=attempt.end_reason,
            oom_killed=exited.oom_killed,
            silent=record is None and self.exit_record_expected,
            rank=exited.rank,
            lost=exited.lost,
            rung=attempt.job.spec.pause_at,
            held=attempt.held,
        )
        was_overdue = attempt.kill_at is not None and self.now() >= attempt.kill_at
        if was_overdue and exited.returncode in (-signal.SIGKILL, None):
            resumes_from = job_directory.checkpointed_steps(self.paths.job(attempt.job.job_id))
            self._active.note_kill(attempt, resumes_from, self.now())
        self._end(attempt, outcome, exited.returncode, record)

    def _end(
        self,
        attempt: ActiveAttempt,
        outcome: AttemptOutcome,
        returncode: int | None = None,
        record: ExitRecord | None = None,
    ) -> None:
        """``attempt`` is over: give back what it had, and bring its job to its next state."""
        now = self.now()
        job = attempt.job
        # First, because it may raise: what follows ends the attempt as a whole.
        self._recorder.record_end(
            attempt, returncode, outcome, record, wall_s=now - attempt.started
        )
        self._active.remove(attempt)
        if self._mover is not None:
            self._mover.forget(attempt)
        self.slots.release(attempt.slot)
        if attempt.progress is not None:
            self._jobs.note_steps(job.job_id, attempt.progress.env_steps)
        losses = 0
        if outcome.cause is Cause.NODE_LOST:
            losses = self._jobs.count_lost(job.job_id)
        state = retry_policy.next_state(
            outcome,
            failures=self._jobs.failures(job.job_id),
            max_retries=job.max_retries,
            now=now,
            losses=losses,
            is_promoted=self._jobs.job(job.job_id).spec.pause_at != job.spec.pause_at,
        )
        self._jobs.move(job.job_id, state)
        if outcome.cause in (None, Cause.RUNG):
            self._count_work(attempt, record, now)
        if isinstance(state, Succeeded):
            job_directory.remove_replay_buffers(self.paths.job(job.job_id), job.spec)
        if state.name in TERMINAL:
            self._ended.append((attempt, state))
        events.report_end(self.reporter, attempt, outcome, state, record, now)
        if outcome.cause is Cause.DISK_FULL:
            self._termination.stop_for_full_disk(
                DiskFullError(f"{self.paths.root}: no space left on the disk")
            )

    def _count_work(self, attempt: ActiveAttempt, record: ExitRecord | None, now: float) -> None:
        """An attempt has trained to its end, or to its rung."""
        resumed_from = 0 if record is None else record.resumed_from or 0
        steps = max(0, attempt.job.spec.attempt_end - resumed_from)
        self._ended_work = self._ended_work.with_attempt(
            env_steps=steps, begun=attempt.started, ended=now
        )

    # -- launch

    def _launch_waiting(self) -> None:
        """Launch the waiting jobs that there is room for, in the queue's order."""
        if not self._has_room:
            return
        # Measured once a turn, if at all.
        available_memory_mib = functools.cache(self.available_memory_mib)
        for offer in self._jobs.queue.offers(self.now(), at_most=self.slots.jobs_at_once):
            job = self._jobs.job(offer.job_id)
            queue_s = self.now() - self._jobs.queue.since(offer.job_id)
            match self._launcher.launch(job, available_memory_mib):
                case LaunchFailed(attempt=attempt, outcome=outcome, error=error):
                    offer.accept()
                    if not isinstance(error, OSError):
                        self._recorder.log_error(error)
                    self._add_attempt(attempt, queue_s)
                    self._end(attempt, outcome)
                    if self._termination.failure is not None:
                        return  # the disk is full: the rest waits for the next run
                case Launched(attempt=attempt):
                    offer.accept()
                    self._add_attempt(attempt, queue_s)
                    if attempt.is_placed:
                        events.report_launch(self.reporter, attempt, attempt.handle.pid)
                case "disk" | "template" as awaited:
                    offer.refuse(awaited)
                case shortage:
                    # All of the machine is free and not enough, or it would never be enough.
                    is_too_large = shortage == "machine" or not self._active
                    if is_too_large and not self.slots.grows:
                        offer.accept()
                        reason = (
                            f"asks for {demand_text(job)}, more than this machine has (see `doctor`);"
                            " where there is room, a later run trains it"
                        )
                        self._jobs.fail(job.job_id, Cause.TOO_LARGE, reason)
                    else:
                        if is_too_large:
                            self._report_waiting(job)
                        offer.refuse(shortage)

    def _add_attempt(self, attempt: ActiveAttempt, queue_s: float) -> None:
        """The attempt is RUNNING from now on."""
        # Before the ledger, which may find the disk full: whatever runs must be ended.
        self._active.add(attempt)
        self._awaited_nodes -= {demand_text(attempt.job), ANY_JOB}
        row = attempt.row_at_launch()
        self._jobs.note_launch(row)
        self.ledger.start_attempt(row, queue_s=queue_s)
        self._note_competitors(attempt, attempt.slot.shares_with)

    def _note_competitors(self, attempt: ActiveAttempt, names: Sequence[str]) -> None:
        if new := self._active.add_competitors(attempt, names):
            self.ledger.note_competitors(attempt.handle.job_id, attempt.handle.number, new)

    def _report_waiting(self, job: Job) -> None:
        """Once for all jobs that need as much, when a node that may still join is needed; again when
        one of them has run since.
        """
        demand = demand_text(job)
        waiting = {demand} if self._active else {demand, ANY_JOB}
        if not waiting & self._awaited_nodes:
            self._awaited_nodes |= waiting
            text = f"{job.job_id} waits for a node with room for {demand}, as do all jobs that need as much"
            self.reporter.event("waiting", text, job_id=job.job_id)

    def _move_attempts(self) -> None:
        self.slots.tick()
        if self._mover is None or self._termination.stage:
            return
        for attempt, names in self._mover.look_for_competitors():
            self._note_competitors(attempt, names)
        for move in self._mover.tick():
            handle = move.attempt.handle
            self.ledger.move_attempt(
                handle.job_id, handle.number, move.before.cpus, move.after.cpus, at=time.time()
            )
            events.report_move(self.reporter, move)

    # -- the end

    def _record_end(self) -> bool:
        """Record the end. While another process has the ledger locked, wait, until `until` or a
        further stop.

        Returns whether it had to, and goes on: what others have requested meanwhile could not be
        read.
        """
        stops: int | None = None
        while not (
            self._requests.act_on_taken() and self._recorder.end_turn(self.now(), final=True)
        ):
            if stops is None:
                stops = self._termination.stops_requested
                text = "all workers have ended; waiting for the ledger to record that. Press Ctrl-C to end without"
                self.reporter.event("waiting", text)
            if self._termination.stops_requested > stops or time.time() >= (self.until or math.inf):
                text = "still locked by another process, so the end of some jobs is not recorded"
                advice = f"{repeat_call().capitalize()}: it settles them, and loses no training"
                raise SupervisorError(f"{self.paths.ledger}: {text}. {advice}")
            time.sleep(IDLE_S)
        return stops is not None and not self.is_stopping

    def _drain(self) -> None:
        """End all workers without the rest of the loop, which has failed, and record what can be
        recorded.

        The next start settles the rest.
        """
        give_up_at = time.monotonic() + self.grace_s
        while self._active:
            try:
                self._handle_for_the_last_time()
                self._termination.apply_stops()
                self._termination.enforce_limits()
                self._unhandled.extend(self.executor.poll(IDLE_S))
            except ClusterLostError:  # no worker can be reached any more
                break
            except Exception as error:
                self._log_further(error)
                if self._termination.stage > 1 or time.monotonic() > give_up_at:
                    break  # closing the executor kills what is left
                time.sleep(IDLE_S)
        with self._further_errors_logged():
            self._requests.handle()
        with self._further_errors_logged():
            self._requests.resume_exited()
        with self._further_errors_logged():
            self._recorder.end_turn(self.now(), final=True)

    @contextlib.contextmanager
    def _further_errors_logged(self) -> Iterator[None]:
        """An error in the block comes after the one that ends the run; it is recorded."""
        try:
            yield
        except Exception as error:
            self._log_further(error)

    def _log_further(self, error: Exception) -> None:
        # A full disk is why the run ends, or the next one is told of it.
        if not (isinstance(error, DiskFullError) or is_disk_full(error)):
            self._recorder.log_error(error)

    def _handle_for_the_last_time(self) -> None:
        while self._unhandled:
            event = self._unhandled.popleft()
            with self._further_errors_logged():
                self._handle(event)
            attempt = self._active.get(event.handle)
            if attempt is not None and isinstance(event, Exited):
                self._active.remove(attempt)

    def _view(self) -> View:
        now = self.now()
        # Without those that wait or run anew.
        ended = [
            (attempt, state)
            for attempt, state in self._ended
            if self._jobs.states[attempt.job.job_id] is state
        ]
        return View(
            elapsed_s=now - self._started,
            now=now,
            counts=self.counts,
            active=self._active.all,
            ended=ended,
            next_up=[self._jobs.job(job_id) for job_id in self._jobs.queue.first(VIEWED)],
            held=self._jobs.held_jobs(VIEWED),
            steps_to_go=self._active.steps_to_go + self._jobs.steps_waiting,
            env_steps_per_s=self._active.env_steps_per_s,
            cores_busy=self._active.cores_busy,
            ended_work=self._ended_work,
            waiting=self._launcher.disk.awaited_shortage,
        )
