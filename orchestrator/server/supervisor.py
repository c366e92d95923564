"""The supervisor: one loop that polls the executor, applies requests, enforces limits and launches.

Each turn writes its changes and their events in one transaction. The end of an attempt is on disk
before the next one begins.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.decoding import field_values
from orchestrator.core.errors import (
    ClusterLostError,
    DiskFullError,
    OrchestratorError,
    SupervisorError,
    is_disk_full,
)
from orchestrator.core.exit_record import ExitRecord, read_exit_record
from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cancelled,
    Cause,
    Failed,
    Job,
    Pending,
    Running,
    Succeeded,
)
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.executors import start_choice
from orchestrator.executors.executor import (
    Contended,
    Event,
    Executor,
    Exited,
    Moved,
    Placed,
    Progressed,
    Sampled,
    Shortage,
    amounts,
)
from orchestrator.ledger import summary
from orchestrator.ledger.rows import LatestFigures, LiveReport
from orchestrator.server import (
    disk_admission,
    error_log,
    job_directory,
    messages,
    retry_policy,
)
from orchestrator.server.attempts import Attempts, RunningAttempt
from orchestrator.server.companions import Companions
from orchestrator.server.entering import Entering
from orchestrator.server.examiner import Examiner
from orchestrator.server.job_directory import RobotAlteredError
from orchestrator.server.jobs import PATIENCE, JobEntry, JobTable
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Answer, Request, RequestFolder
from orchestrator.server.start_policies import (
    FailedFetch,
    FetchedPolicy,
    StartPolicies,
    UnfitPolicy,
)
from orchestrator.server.verbs import STATES, Verbs

IDLE_S = 0.25
"""How late a request, a signal or a limit may be noticed."""
BUSY_S = 0.05
"""The same while clients add jobs."""
PROGRESS = Pace(every_s=1.0, share=0.05)
"""How often the progress of running jobs is recorded."""
SUMMARY = Pace(every_s=2.0, share=0.02)
"""How often ``summary.*`` are written, which grow with the number of jobs."""
WAITING = Pace(every_s=1.0, share=0.005)
"""How often it is recorded what jobs wait for."""
EXAMINING = Pace(every_s=3.0)
"""How often the progress of an examination is reported."""
UNDERWAY_S = 5.0
"""How long it is waited for a machine for the first job before clients may detach."""
MOST_COMPETITORS = 8
"""So many names are remembered of those who use the CPUs of an attempt."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Brings every job to an end, or stops on request and leaves the run resumable."""

    paths: RunPaths
    ledger: ServerLedger
    executor: Executor
    examiner: Examiner
    policies: StartPolicies
    holder: str
    """Names this supervisor in requests (:attr:`LockHolder.key`)."""
    grace_s: float = 30.0
    """Time that workers have to save a checkpoint and exit."""
    until: float | None = None
    """When everything has to have ended, in seconds since the epoch; None: no such time."""
    is_client_waiting: Callable[[], bool] = lambda: False
    """Whether a client adds jobs one after the other, and waits for each answer."""
    is_held_open: Callable[[], bool] = lambda: False
    """Whether a client may still add jobs, or let paused ones go on."""
    reason_to_stop: Callable[[], str] = lambda: ""
    """Asked on every turn: why the run is to stop, such as that its client is gone; empty: it is not."""
    awaits_jobs: bool = False
    """Whether nothing is launched before a client has added its jobs: those in the ledger may be
    declared differently now."""
    companions: Companions | None = None
    before_first_launch: Callable[[], None] = lambda: None
    """Called when the first jobs have been added."""
    now: Callable[[], float] = time.monotonic
    failure: OrchestratorError | None = field(default=None, init=False)
    """The error that ends the run; None if there is none."""
    jobs: JobTable = field(init=False)
    attempts: Attempts = field(init=False)
    entering: Entering = field(init=False)
    request_folder: RequestFolder = field(init=False)
    is_released: bool = field(default=False, init=False)
    """Whether the client that holds the run open has said that it adds no more jobs."""
    stop_signal: str = field(default="", init=False)
    """The name of the signal that stopped the run; empty if none did."""
    stop_stage: int = field(default=0, init=False)
    """0: no stop; 1: workers may save a checkpoint and exit; 2: they are killed."""
    _stops: int = field(default=0, init=False)
    """How often a stop was requested."""
    _wants_checkpoints: bool = field(default=False, init=False)
    _has_added: bool = field(default=False, init=False)
    """Whether jobs have been added."""
    refusal: str = field(default="", init=False)
    """Why the jobs were refused for which the run waits; empty if they were not."""
    _awaits_template: bool = field(default=False, init=False)
    """Whether jobs wait for the process that forks their workers."""
    _first_submitted: float | None = field(default=None, init=False)
    """When the first attempt was submitted."""
    _has_said_underway: bool = field(default=False, init=False)
    """Whether clients were told that all was launched that can be at first."""
    _stop_reason: str = field(default="", init=False)
    _compared: set[str] = field(default_factory=set, init=False)
    """Jobs whose robots were compared with their hashes in this session."""
    _free_disk: Pacer = field(default_factory=lambda: Pacer(Pace(every_s=1.0)), init=False)
    _free_mib: int | None = field(default=None, init=False)
    """Free space of the file system of the run directory, measured at most once a second."""
    _short_of_disk: set[int] = field(default_factory=set, init=False)
    """What jobs ask for that wait for disk space, in MiB; each was reported."""
    _awaited_nodes: set[str] = field(default_factory=set, init=False)
    """What jobs need, in words, for which no node is large enough; each was reported."""
    verbs: Verbs = field(init=False)
    _unhandled: deque[Event] = field(default_factory=deque, init=False)
    """Events of the executor. If handling one raises, the others remain."""
    _applied: set[str] = field(default_factory=set, init=False)
    """Requests that were taken, whose files are still there."""
    _has_postponed: bool = field(default=False, init=False)
    """Whether requests wait for the jobs that they are about. Nothing is launched before these."""
    _answered: dict[str, tuple[Request, Answer]] = field(default_factory=dict, init=False)
    """Requests whose answers are committed next, by their ids."""
    _progress: Pacer = field(default_factory=lambda: Pacer(PROGRESS), init=False)
    _summary: Pacer = field(default_factory=lambda: Pacer(SUMMARY), init=False)
    _waiting: Pacer = field(default_factory=lambda: Pacer(WAITING), init=False)
    _examining: Pacer = field(default_factory=lambda: Pacer(EXAMINING), init=False)
    _is_summary_failing: bool = field(default=False, init=False)
    """Whether they could not be written, which was reported."""
    _unrecorded: set[str] = field(default_factory=set, init=False)
    """Jobs with progress that is not in the ledger yet."""
    _shortage: tuple[str, int] | None = field(default=None, init=False)
    """As it is in the ledger; None: not known yet."""

    def __post_init__(self) -> None:
        self.jobs = JobTable(self.ledger, self.report, self.now)
        self.attempts = Attempts(
            executor=self.executor, report=self.report, now=self.now, grace_s=self.grace_s
        )
        self.request_folder = RequestFolder(self.paths.requests)
        self.entering = Entering(
            paths=self.paths,
            ledger=self.ledger,
            jobs=self.jobs,
            executor=self.executor,
            examiner=self.examiner,
            report=self.report,
            answer=self.answer,
        )
        self.verbs = Verbs(supervisor=self)
        self._examining.wait(now=self.now())

    # -- what others ask for

    def report(self, kind: str, message: str, **facts: Any) -> None:
        """Append an event to the stream."""
        self.ledger.record_event(kind, message, facts)

    @property
    def stop_requests(self) -> int:
        """How often a stop was requested so far."""
        return self._stops

    @property
    def is_stopping(self) -> bool:
        return self._stops > 0

    def request_stop(self, reason: str) -> None:
        """Stop the run. Safe in a signal handler. The second request kills the workers."""
        self._stops += 1
        self._stop_reason = reason

    def ask_for_checkpoints(self) -> None:
        """Ask for checkpoints on the next turn. Safe in a signal handler."""
        self._wants_checkpoints = True

    def request_checkpoints(self) -> int:
        """Ask every attempt to save a checkpoint and go on. Return how many were asked."""
        asked = [attempt for attempt in self.attempts if attempt.kill_at is None]
        for attempt in asked:
            self.executor.checkpoint(attempt.id)
        return len(asked)

    # -- the loop

    def go(self) -> int:
        """Supervise until no work is left. Return the exit code.

        However it ends, no worker is left, and the ledger holds what the next supervisor needs.

        :raises DiskFullError, SupervisorError: everything has stopped, resumable.
        """
        try:
            while not self._is_over():
                self.turn()
            self._report_held()
            self.finish()
        except ClusterLostError as error:
            self.failure = error
        except Exception as error:
            self._fail(error)
            self._drain()
        finally:
            self.executor.close()
        if self.failure is not None:
            raise self.failure
        if self.refusal and not self.stop_stage:
            return 2
        has_left = bool(self.jobs.counts["PENDING"]) or self.awaits_jobs or bool(self.refusal)
        is_interrupted = self.stop_stage > 0 and has_left
        return retry_policy.exit_code(self.jobs.states, interrupted=is_interrupted)

    def turn(self) -> None:
        """One turn of the loop."""
        self._unhandled.extend(self.executor.poll(self._patience_s()))
        self._apply_requests()
        self._apply_stops()
        if self._wants_checkpoints:
            self._wants_checkpoints = False
            asked = self.request_checkpoints()
            text = f"{count(asked, 'job saves', 'jobs save')} a checkpoint (SIGUSR1)"
            self.report("checkpoint", text, running=asked)
        while self._unhandled:
            self._handle(self._unhandled[0])
            self._unhandled.popleft()
        self.entering.take_examined()
        self._take_policies()
        self.attempts.enforce_limits()
        self._record_progress()
        if self._waiting.is_due(self.now()):
            with self._waiting.time_block(self.now()):
                self._record_waiting()
        if self.companions is not None and not (self.stop_stage or self.awaits_jobs):
            has_work = self._has_work()
            is_idle = not (has_work or self.entering.is_busy or self.is_held_open())
            self.companions.tick(has_work=has_work, is_idle=is_idle)
        self.ledger.commit()
        self._remove_applied()
        is_held_up = self.awaits_jobs or bool(self.refusal) or self._has_postponed
        if not (self.is_stopping or is_held_up):
            self._launch()
            self._report_underway()
        self._report_examination()
        if self._summary.is_due(self.now()):
            with self._summary.time_block(self.now()):
                self._write_summary()

    def _patience_s(self) -> float:
        """Return how long to wait for an event: until the next back-off is over, at most."""
        idle_s = IDLE_S
        if self.awaits_jobs or self.entering.is_busy or self.is_client_waiting():
            idle_s = BUSY_S
        due = self.jobs.next_due()
        return idle_s if due is None else max(0.0, min(idle_s, due - self.now()))

    def _is_over(self) -> bool:
        if len(self.attempts) or self.entering.is_busy or self.request_folder.new(self._applied):
            return False
        if self.stop_stage or self.refusal:
            return True
        if self.awaits_jobs:
            return False
        is_held = self.companions is not None and self.companions.holds_run
        return not (self._has_work() or self.is_held_open() or is_held)

    def _has_work(self) -> bool:
        """Return whether jobs run, or may be launched."""
        is_backing_off = self.jobs.next_due() is not None
        may_launch = is_backing_off or self.policies.is_busy or any(True for _ in self.jobs.due())
        return bool(len(self.attempts)) or may_launch

    def _report_examination(self) -> None:
        """Report how many robots are examined while that takes long."""
        if not self.examiner.is_busy:
            self._examining.wait(now=self.now())
        elif self._examining.is_due(self.now()):
            self._examining.wait(now=self.now())
            done, robots = self.examiner.progress
            text = f"examining: {done:,} of {count(robots, 'robot')}"
            self.report("examining", text, examined=done, robots=robots)

    def _report_underway(self) -> None:
        """Tell once that the first jobs run, or that there is no room for any: clients that detach
        wait for that.
        """
        if self._has_said_underway:
            return
        if len(self.attempts):
            self._first_submitted = self._first_submitted or self.now()
            is_late = self.now() - self._first_submitted > UNDERWAY_S
            is_coming = not is_late and not any(attempt.is_placed for attempt in self.attempts)
        else:
            is_coming = self._awaits_template or self.policies.is_busy
        if is_coming:
            return
        self._has_said_underway = True
        counts = self.jobs.counts
        running = len(self.attempts)
        text = f"{running} of {count(counts.total(), 'job')} run now"
        self.report(
            "underway", text, running=running, pending=counts["PENDING"], jobs=counts.total()
        )

    # -- requests

    def _apply_requests(self) -> None:
        self._has_postponed = False
        for received in self.request_folder.new(self._applied):
            request = received.request
            is_about_jobs = request is not None and request.verb in STATES
            if is_about_jobs and self.awaits_jobs and not self.stop_stage:
                self._has_postponed = True  # the jobs are not here yet
                continue
            self.verbs.apply(received)
            self._applied.add(received.id)

    def answer(self, id_: str, request: Request, answer: Answer) -> None:
        """Record the answer to a request."""
        self.ledger.record_answer(id_, answer)
        self.report("answer", answer.error or answer.message, request=id_)
        is_awaited = request.verb == "add" and request.supervisor == self.holder
        if is_awaited and self.awaits_jobs:  # not one that a client has left for another supervisor
            self.awaits_jobs = False
            self.refusal = "" if self.is_held_open() else answer.error
        if request.verb == "add" and not answer.error and not self._has_added:
            self._has_added = True
            self.before_first_launch()
        self._answered[id_] = request, answer

    def _remove_applied(self) -> None:
        """Remove the files of requests whose answers are committed."""
        for id_, (request, answer) in self._answered.items():
            self.request_folder.finish(id_, request, answer)
            self._applied.discard(id_)
        self._answered.clear()

    def _apply_stops(self) -> None:
        if not self._stops:
            if reason := self.reason_to_stop():
                self.request_stop(reason)
            elif self.until is not None and time.time() >= self.until - self.grace_s:
                self.request_stop(
                    f"--until {time.strftime('%H:%M:%S', time.localtime(self.until))}"
                )
        if self._stops <= self.stop_stage or self.stop_stage == 2:
            return
        self.stop_stage = min(self._stops, 2)
        running = len(self.attempts)
        if self.stop_stage == 1:
            text = (
                f"stopping ({self._stop_reason}): workers save a checkpoint and exit within {self.grace_s:g} s, or are"
                " killed and lose what is not saved. `stop --now` or a second Ctrl-C kills them now."
            )
        else:
            text = f"killing {count(running, 'worker')} ({self._stop_reason})"
        self.report("stopping", text, running=running)
        self.attempts.stop_all(self._stop_reason, self.grace_s if self.stop_stage == 1 else 0.0)
        self.entering.abort()

    # -- events of the executor

    def _handle(self, event: Event) -> None:
        """Act on an event. An error in that ends the attempt that it concerns, and no other."""
        attempt = self.attempts.get(event.attempt)
        if attempt is None:
            return
        try:
            self._act_on(attempt, event)
        except (DiskFullError, OrchestratorError):
            raise
        except Exception as error:
            where = error_log.record(self.paths, error)
            message = f"the supervisor could not handle an event of it ({error!r}); {where}"
            outcome = AttemptOutcome(cause=Cause.ERROR, message=message)
            if self.attempts.get(event.attempt) is None:
                job_id = attempt.id.job_id
                self.report("warning", f"{job_id}: {message}", job_id=job_id)
            elif isinstance(event, Exited):
                self._end(attempt, outcome, event.returncode)
            else:
                self.attempts.ask_to_end(attempt, outcome, 0.0)

    def _act_on(self, attempt: RunningAttempt, event: Event) -> None:
        job_id = attempt.id.job_id
        match event:
            case Placed():
                self._take_placed(attempt, event)
            case Progressed(progress=progress):
                messages.report_news(self.report, attempt, progress)
                self.attempts.note_progress(attempt, progress)
                self._unrecorded.add(job_id)
            case Sampled(rss_mib=rss_mib):
                attempt.rss_mib = rss_mib
                attempt.max_rss_mib = max(attempt.max_rss_mib, rss_mib)
            case Contended(names=names):
                self._note_competitors(attempt, names)
            case Moved():
                attempt.cpus = event.after
                self.ledger.move_attempt(
                    job_id, attempt.id.number, event.before, event.after, at=time.time()
                )
                messages.report_move(self.report, attempt, event)
            case Exited():
                self._take_exited(attempt, event)

    def _take_placed(self, attempt: RunningAttempt, event: Placed) -> None:
        attempt.cpus = event.cpus
        attempt.gpus = event.gpus
        attempt.node = event.node
        attempt.pid = event.pid
        self.attempts.note_placed(attempt)
        self.ledger.place_attempt(
            Attempt(
                job_id=attempt.id.job_id,
                number=attempt.id.number,
                cpus=event.cpus,
                gpus=event.gpus,
                pid=event.pid,
                pid_start=event.pid_start,
                started_at=time.time(),
                node=event.node,
            )
        )
        self._note_competitors(attempt, event.shares_with)
        messages.report_launch(self.report, attempt, event)

    def _note_competitors(self, attempt: RunningAttempt, names: Sequence[str]) -> None:
        room = MOST_COMPETITORS - len(attempt.competitors)
        new = tuple(name for name in names if name not in attempt.competitors)[:room]
        if new:
            attempt.competitors += new
            self.ledger.note_competitors(attempt.id.job_id, attempt.id.number, new)

    def _take_exited(self, attempt: RunningAttempt, event: Exited) -> None:
        path = self.paths.job(attempt.id.job_id).attempt(attempt.id.number)
        exit_path = path.exit_of(event.rank or 0)

        def warn(error: Exception) -> None:
            text = f"{exit_path}: cannot be read ({error}); the exit code of the process is used instead"
            self.report("warning", text, job_id=attempt.id.job_id)

        record = read_exit_record(exit_path, warn)
        outcome = retry_policy.judge(
            event.returncode,
            record,
            end_reason=attempt.end_reason,
            oom_killed=event.oom_killed,
            silent=record is None,
            rank=event.rank,
            lost=event.lost,
            rung=attempt.job.spec.pause_at,
        )
        self._end(attempt, outcome, event.returncode, record)

    def _end(
        self,
        attempt: RunningAttempt,
        outcome: AttemptOutcome,
        returncode: int | None = None,
        record: ExitRecord | None = None,
    ) -> None:
        """Record that an attempt is over, and bring its job to its next state."""
        now = self.now()
        entry = attempt.entry
        wall_s = now - attempt.started
        self.ledger.end_attempt(
            attempt.id.job_id,
            attempt.id.number,
            ended_at=time.time(),
            wall_s=wall_s,
            returncode=returncode,
            outcome=outcome,
            record=record,
            max_rss_mib=attempt.max_rss_mib or None,
        )
        self.attempts.remove(attempt)
        reached = 0 if attempt.progress is None else attempt.progress.env_steps
        entry.env_steps = max(entry.env_steps, reached, 0 if record is None else record.env_steps)
        if outcome.cause is Cause.NODE_LOST:
            entry.losses += 1
        state = retry_policy.next_state(
            outcome,
            failures=entry.failures,
            max_retries=entry.job.max_retries,
            now=now,
            losses=entry.losses,
            is_promoted=entry.job.spec.pause_at != attempt.job.spec.pause_at,
        )
        if entry.wanted == "cancel" and not isinstance(state, Succeeded):
            state = Cancelled()
        self.jobs.move(entry, state)
        messages.report_end(self.report, attempt, outcome, state, record, wall_s, now, self.paths)
        self.jobs.settle(entry)
        if isinstance(state, Succeeded):
            job_directory.remove_replay_buffers(self.paths.job(attempt.id.job_id), entry.job.spec)
        if outcome.cause is Cause.DISK_FULL:
            raise DiskFullError(f"{self.paths.root}: no space left on the disk")

    # -- launches

    def _launch(self) -> None:
        """Launch the jobs that there is room for: first all are recorded as RUNNING, then started."""
        reserved: list[JobEntry] = []
        full: set[tuple[object, ...]] = set()
        overtaken: list[tuple[JobEntry, Shortage]] = []
        are_gpus_awaited = False
        """Whether a job waits for GPUs that was overtaken often enough."""
        forkable = None
        self._awaits_template = False
        for entry in self.jobs.due():
            if len(self.attempts) + len(reserved) >= self.executor.jobs_at_once:
                break
            job = entry.job
            demand = _demand(job)
            if demand in full or (are_gpus_awaited and job.resources.gpus):
                continue
            if not (self._has_policy(entry) and self._has_disk(job)):
                continue
            if forkable is None:
                forkable = sum(start_choice.is_forkable(other.job) for other in self.jobs.due())
            shortage = self.executor.reserve(job, waiting=forkable)
            if shortage is None:
                reserved.append(entry)
                self._awaited_nodes.discard(_demand_text(job))
                for other, lacks in overtaken:
                    other.overtaken += lacks == "room" or job.resources.gpus > 0
                continue
            if shortage == "never":
                self._fail_too_large(entry)
                continue
            full.add(demand)
            self._awaits_template |= shortage == "template"
            match shortage:
                case "room" | "gpus":
                    overtaken.append((entry, shortage))
                    if entry.overtaken >= PATIENCE and shortage == "room":
                        break
                    are_gpus_awaited |= entry.overtaken >= PATIENCE
                case "node":
                    self._report_awaited_node(job)
        if reserved:
            self._start_all(reserved)

    def _start_all(self, entries: Sequence[JobEntry]) -> None:
        """Start an attempt of each job, when it is on the disk that they are RUNNING."""
        left = list(entries)
        try:
            attempts = [self._begin_attempt(entry) for entry in entries]
            self.ledger.commit()
            for attempt in attempts:
                left.remove(attempt.entry)
                self._start(attempt)
        except BaseException:
            for entry in left:  # the next supervisor settles their jobs
                if begun := self.attempts.of_job(entry.job.job_id):
                    self.attempts.remove(begun)
                self.executor.release(entry.job)
            raise

    def _fail_too_large(self, entry: JobEntry) -> None:
        what = f"asks for {_demand_text(entry.job)}, more than this machine has (see `doctor`)"
        reason = f"{what}; where there is room, a later run trains it"
        self.jobs.fail(entry, Cause.TOO_LARGE, reason)

    def _report_awaited_node(self, job: Job) -> None:
        """Report once for all jobs that need as much that they wait for a node."""
        needs = _demand_text(job)
        if needs not in self._awaited_nodes:
            self._awaited_nodes.add(needs)
            text = f"{job.job_id} waits for a node with room for {needs}, as do all jobs that need as much"
            self.report("waiting", text, job_id=job.job_id)

    def _begin_attempt(self, entry: JobEntry) -> RunningAttempt:
        """Record a job as RUNNING, before its attempt is started."""
        job_id = entry.job.job_id
        number = job_directory.free_number(self.paths.job(job_id), entry.attempts)
        queue_s = self.now() - entry.queued_at
        entry.attempts = number + 1
        attempt = Attempt(job_id=job_id, number=number, cpus=(), gpus=(), started_at=time.time())
        self.ledger.start_attempt(attempt, queue_s=queue_s)
        self.jobs.move(entry, Running(attempt=attempt, failures=entry.failures))
        return self.attempts.add(entry, number)

    def _start(self, attempt: RunningAttempt) -> None:
        job = attempt.entry.job
        directory = self.paths.job(job.job_id)
        try:
            if job.job_id not in self._compared:
                expected = attempt.entry.robot_hash
                job_directory.refuse_altered(directory, job.spec.xml, expected)
                self._compared.add(job.job_id)
            job_directory.prepare(directory, attempt.id.number, job.spec)
            self.executor.submit(job, attempt.id.number, directory.root)
        except OrchestratorError:
            self.attempts.remove(attempt)
            raise
        except Exception as error:
            self.executor.release(job)
            self.attempts.remove(attempt)  # whether its end can be recorded or not
            self._end(attempt, self._launch_outcome(error))

    def _launch_outcome(self, error: Exception) -> AttemptOutcome:
        """Return the outcome of an attempt that could not be started."""
        if isinstance(error, RobotAlteredError):
            return AttemptOutcome(cause=Cause.ERROR, message=str(error))
        if is_disk_full(error):
            return AttemptOutcome(cause=Cause.DISK_FULL, message=f"could not be launched: {error}")
        what = str(error)
        if not isinstance(error, OSError):
            what = f"{error!r}; {error_log.record(self.paths, error)}"
        return AttemptOutcome(cause=Cause.LAUNCH, message=f"could not be launched: {what}")

    def _has_disk(self, job: Job) -> bool:
        """Return whether there is as much free disk space as a job asks for."""
        asked_mib = job.resources.min_free_disk_mib
        if not asked_mib:
            return True
        if self._free_disk.is_due(self.now()):
            self._free_disk.wait(now=self.now())
            self._free_mib = disk_admission.free_mib(self.paths.root)
        if self._free_mib is None or self._free_mib >= asked_mib:
            self._short_of_disk.discard(asked_mib)
            return True
        if asked_mib not in self._short_of_disk:
            self._short_of_disk.add(asked_mib)
            what = disk_admission.shortage(self.paths.root, self._free_mib, asked_mib)
            text = f"{job.job_id} waits for disk space, as do all jobs that need as much: {what}"
            self.report("waiting", text, job_id=job.job_id, asked_mib=asked_mib)
        return False

    def disk_shortage(self) -> tuple[str, int]:
        """Return why jobs wait for free disk space, and MiB that the most modest of them asks for; an
        empty text if none does.
        """
        if not self._short_of_disk:
            return "", 0
        asked = self._short_of_disk & {
            entry.job.resources.min_free_disk_mib
            for entry in self.jobs
            if isinstance(entry.state, Pending)
        }
        if not asked:
            return "", 0
        text = (
            f"Jobs with resources.min_free_disk from {min(asked):,} MiB on wait for free disk space:"
            f" {self._free_mib:,} MiB are free on the file system of {self.paths.root}"
        )
        return text, min(asked)

    # -- policies of other jobs

    def _has_policy(self, entry: JobEntry) -> bool:
        """Return whether a job has the policy that it starts from; otherwise request it."""
        if entry.job.spec.init_job is None or not self.policies.needs(entry.job):
            return True
        self.policies.request(entry.job)
        return False

    def _take_policies(self) -> None:
        for fetched in self.policies.take():
            entry = self.jobs.entries.get(fetched.job_id)
            if entry is None:  # it is no longer declared
                continue
            is_waiting = isinstance(entry.state, Pending)
            match fetched:
                case FetchedPolicy():
                    self.jobs.change_spec(
                        entry, init_sha256=fetched.sha256, init_env_steps=fetched.env_steps
                    )
                case UnfitPolicy(problem=problem) if is_waiting:
                    cause = Cause.ERROR if entry.attempts else Cause.INVALID
                    self.jobs.fail(entry, cause, problem)
                case FailedFetch(problem=problem) if is_waiting:
                    self._count_failed_fetch(entry, problem)

    def _count_failed_fetch(self, entry: JobEntry, problem: str) -> None:
        outcome = AttemptOutcome(cause=Cause.LAUNCH, message=f"could not be launched: {problem}")
        state = retry_policy.next_state(
            outcome, failures=entry.failures, max_retries=entry.job.max_retries, now=self.now()
        )
        if isinstance(state, Failed):
            self.jobs.fail(entry, state.cause, state.message)
            return
        self.jobs.move(entry, state)
        job_id = entry.job.job_id
        text = f"{job_id} {outcome.message}; it is tried again"
        self.report("retrying", text, job_id=job_id, cause=outcome.cause)

    # -- records

    def _record_progress(self) -> None:
        if not self._unrecorded or not self._progress.is_due(self.now()):
            return
        with self._progress.time_block(self.now()):
            figures = []
            reports = []
            for job_id in self._unrecorded:
                attempt = self.attempts.of_job(job_id)
                if attempt is None or (last := attempt.progress) is None:
                    continue
                if last.phase != "starting":
                    figures.append(
                        LatestFigures(
                            job_id=job_id,
                            env_steps=last.env_steps,
                            ep_rew_mean=last.ep_rew_mean,
                            env_steps_per_s=last.env_steps_per_s,
                            learner=last.learner,
                        )
                    )
                reports.append(
                    LiveReport(
                        job_id=job_id,
                        phase=last.phase if attempt.end_reason is None else "stopping",
                        cpu_share=last.cpu_share,
                        run_delay_share=last.run_delay_share,
                        parts=json.dumps(last.parts, default=field_values),
                        reported_at=time.time(),
                    )
                )
            self._unrecorded.clear()
            self.ledger.set_progress(figures)
            self.ledger.set_reports(reports)

    def _record_waiting(self) -> None:
        """Record what jobs wait for because the disk has too little space."""
        shortage = self.disk_shortage()
        if shortage != self._shortage:
            self._shortage = shortage
            self.ledger.set_waiting(*shortage)

    def _write_summary(self) -> None:
        if not (self.jobs.entries or self.ledger.wanted()):
            return  # the summary of a lost ledger says how the jobs stood that are adopted next
        try:
            summary.write(self.paths, self.ledger)
            self._is_summary_failing = False
        except OSError as error:
            if not self._is_summary_failing:
                text = f"summary.json and summary.csv could not be written: {error}"
                self.report("warning", text)
            self._is_summary_failing = True

    # -- the end

    def _report_held(self) -> None:
        """Name the jobs that were not run because others did not succeed."""
        held = self.jobs.held()
        if self.stop_stage or not held:
            return
        missing = dict.fromkeys(parent for _, parents in held for parent in parents)
        culprits = [
            f"{job_id} ({self.jobs[job_id].state.name})"
            for job_id in missing
            if not isinstance(self.jobs[job_id].state, Pending)
        ]
        names = [entry.job.job_id for entry, _ in held]
        text = (
            f"{count(len(held), 'job was', 'jobs were')} not run ({listed(names, 3)}), as {listed(culprits, 3)} did not"
            " succeed; `retry` or `resume` queues what they wait for, and the next `run` goes on from there"
        )
        self.report("warning", text, jobs=names)

    def finish(self) -> None:
        """Record everything."""
        self.ledger.commit()
        self._remove_applied()
        self._write_summary()

    def _fail(self, error: Exception) -> None:
        """Stop the run because of an error that is not of one job."""
        if isinstance(error, DiskFullError):
            text = f"{error}; every job stopped at its last complete checkpoint. {error.cure} and run it again"
            self.failure = type(error)(text)
        else:
            what = str(error)
            if not isinstance(error, OrchestratorError):
                what = f"unexpected error of the supervisor ({error!r})"
            where = error_log.record(self.paths, error)
            self.failure = SupervisorError(
                f"{what}; {where}; every job was stopped in good order. Run it again to resume"
            )
        self._answered.clear()  # what is not on the disk is asked for again
        self._stops = max(self._stops, 1)
        self.stop_stage = max(self.stop_stage, 1)

    def _drain(self) -> None:
        """End all attempts after an error, and record what can be recorded; the next start settles
        the rest.
        """
        self.attempts.stop_all("the supervisor cannot continue", self.grace_s)
        give_up_at = time.monotonic() + self.grace_s
        while len(self.attempts) and time.monotonic() < give_up_at:
            with self._further_errors_logged():
                self._unhandled.extend(self.executor.poll(IDLE_S))
            while self._unhandled:
                self._handle_last(self._unhandled.popleft())
            with self._further_errors_logged():
                self._apply_stops()
                self.attempts.enforce_limits()
                self.ledger.commit()
        with self._further_errors_logged():
            self.finish()

    def _handle_last(self, event: Event) -> None:
        """Handle an event while the run ends; an end that cannot be recorded is left to the next
        supervisor.
        """
        with self._further_errors_logged():
            self._handle(event)
        attempt = self.attempts.get(event.attempt)
        if attempt is not None and isinstance(event, Exited):
            self.attempts.remove(attempt)

    @contextlib.contextmanager
    def _further_errors_logged(self) -> Iterator[None]:
        """An error in the block comes after the one that ends the run: it is recorded, and no more."""
        try:
            yield
        except Exception as error:
            if not (isinstance(error, DiskFullError) or is_disk_full(error)):
                error_log.record(self.paths, error)
            time.sleep(IDLE_S)


def _demand(job: Job) -> tuple[object, ...]:
    """Return what jobs need: of those that need the same, none fits if one does not."""
    resources = job.resources
    return (
        resources.all_cores,
        resources.all_gpus,
        resources.all_memory_mib,
        resources.ranks,
        start_choice.is_forkable(job),
    )


def _demand_text(job: Job) -> str:
    """Return what a job asks for, in words."""
    resources = job.resources
    return amounts(resources.all_cores, resources.all_gpus, resources.all_memory_mib)
