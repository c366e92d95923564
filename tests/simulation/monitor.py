"""What must hold at every moment of a simulated world, whatever troubles it has.

The monitor sees what is written to the ledger, what workers do and what commands are told, and
keeps a record of its own of all that: none of its rules asks the program whether they hold.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import AttemptOutcome, Job, Paused, Pending, Running, State
from orchestrator.core.paths import RunPaths
from orchestrator.executors.rank_group import CAUSE_WITHIN_S
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.ledger import JobRow
from tests.simulation.declared_jobs import Declaration, DeclaredJobs
from tests.simulation.executor import MACHINE_MIB, SAMPLE_EVERY_S, Processes
from tests.simulation.scenario import OF_JOBS, STEPS, SimulatedJob, Trouble
from tests.simulation.worker import Worker
from tests.simulation.world import FAILS, LITTLE_MIB, Violation, World

MOVES = {
    "PENDING": ("RUNNING", "PAUSED", "FAILED", "CANCELLED"),
    "RUNNING": ("SUCCEEDED", "FAILED", "CANCELLED", "PENDING", "PAUSED"),
    "PAUSED": ("PENDING", "CANCELLED", "PAUSED"),
    "FAILED": ("PENDING",),
    "CANCELLED": ("PENDING",),
    "SUCCEEDED": (),
}
"""As docs/architecture.md has them; nothing takes results away here."""
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
UNREAD = {*OF_JOBS, "reload"}
"""Requests that the next supervisor acts on, or that there are new jobs for it."""
COUNTED = ("killed", "out-of-memory", "stalled", "launch-failed", "rank-lost")
"""Causes that use up a retry."""
LATE_S = 1.0
"""How much later than a limit says an attempt may end: turns of the loop, and a sample."""
IDLE_S = 8.0
"""So long nothing may run: the longest wait before a retry, and more."""
NEVER_S = 1000.0
PLANTED = ("OddError", FAILS)
"""What names errors in ``supervisor-error.log`` that a scenario has planted."""
WHEN = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n"
ERROR_RECORD = re.compile(rf"^{WHEN}(?:(?!{WHEN}).*\n?)*", re.MULTILINE)
"""A record of ``supervisor-error.log``: a time and the tracebacks of an error, and of those that it
was raised from."""
Note: TypeAlias = "tuple[int, dict[str, JobRecord], dict[str, Declaration]]"
"""The run directory, and what is known of its jobs."""
Demand: TypeAlias = tuple[int, int, int, int]
"""Ranks, cores and MiB of memory of each, MiB of free disk space."""


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """What the monitor knows of one job."""

    state: str = ""
    failures: int = 0
    """Attempts that have used up a retry, since the job was last queued by its user."""
    asked: Counter[str] = field(default_factory=Counter)
    """How often users have asked for something, by verb, but where they were refused."""
    done: Counter[str] = field(default_factory=Counter)
    """How often it was done."""
    last_told: str = ""
    """What is to be true in the end: the verb that users were told of last; empty where the
    program does not say in which order it acts on what they have asked for."""
    told_in: int = 0
    """How many supervisors there had been when users were last told something."""
    put_from: str = ""
    """Its state before it was entered anew."""
    has_just_failed: bool = False
    """Whether its attempt has ended by a failure that is retried, and its state is not said."""
    not_before: float = 0.0
    """When it may be retried."""
    granted: int = 0
    """Attempts that it may have, as was decided when the last one failed. The job file may allow fewer
    since then."""
    wait_s: float = 0.0
    """Before it may, from its last end on."""

    def copied(self) -> JobRecord:
        return JobRecord(
            state=self.state,
            failures=self.failures,
            asked=self.asked,
            done=self.done.copy(),
            last_told=self.last_told,
            put_from=self.put_from,
        )


@dataclass(slots=True, kw_only=True)
class Monitor:
    world: World
    jobs: Mapping[str, SimulatedJob]
    processes: Processes
    paths: RunPaths
    declared: DeclaredJobs
    records: dict[str, JobRecord] = field(default_factory=lambda: defaultdict(JobRecord))
    stop_by: float | None = None
    """When the supervisor has to have ended, as it was asked to."""
    stops_itself: bool = False
    """Whether the supervisor that lives has a reason to stop: a full disk, or an error."""
    refusals_before: int = 0
    """How often the full disk had refused something when the supervisor that lives began."""
    stops: int = 0
    """How often the supervisor that lives was asked to stop."""
    waiting: dict[str, tuple[bool, Demand]] = field(default_factory=dict)
    """Jobs in order of launch that have waited since the supervisor began and that nobody has
    touched: whether they had begun, and what they need."""
    places: dict[str, int] = field(default_factory=dict)
    """Of all jobs in the order of launch."""
    has_launched: bool = False
    """Whether the present supervisor has launched a job."""
    begun: set[str] = field(default_factory=set)
    """Jobs that the supervisor that lives knows to have begun."""
    unread: set[str] = field(default_factory=set)
    """Ways of earlier requests that nobody had acted on when the present command began."""
    busy_at: float = 0.0
    """When last a worker lived, or something was in the way of all launches."""
    latest: dict[str, Worker] = field(default_factory=dict)
    """The worker of each job that was started last."""
    directory: int = 0
    """The inode of the run directory that the records are of."""
    directories: dict[int, Any] = field(default_factory=dict)
    """What is known of others, which are gone; a power cut may bring them back."""
    notes: dict[int, Note] = field(default_factory=dict)
    """Of each of them what was remembered of its last commit."""
    asking: JobRecord = field(init=False)
    """Of the job that the last command was about, when it began: the first supervisor may make the
    run directory meanwhile."""
    _latest_s: float = field(init=False)
    """By how much an exit may come late."""

    def __post_init__(self) -> None:
        delays: dict[int | None, float] = defaultdict(float)
        for trouble in self.world.scenario.troubles:
            if trouble.kind == "late":
                delays[trouble.at_event] += trouble.for_s
        self._latest_s = max(delays.values(), default=0.0)

    # -- what happens

    def life_begins(self) -> None:
        self._look_at_directory()
        self.stop_by = None
        self.begun.clear()
        self.has_launched = False
        self.stops = 0
        self.stops_itself = self.world.is_full
        self.refusals_before = self.world.counts["full refusals"]
        self.waiting.clear()
        self.places.clear()
        for record in self.records.values():
            record.not_before = 0.0

    def _look_at_directory(self) -> None:
        """Another run directory may have taken the place of the one before, or come back."""
        there = self.world.disk.directory_number()
        if there == self.directory:
            return
        self.directories[self.directory] = self.records, self.declared.by_id
        none: Any = (defaultdict(JobRecord), {})
        self.directory = there
        self.records, entries = self.directories.pop(there, none)
        self.declared.take(entries)
        self.latest.clear()

    def queued(self, rows: Sequence[JobRow]) -> None:
        """The supervisor begins with jobs in this order of launch."""
        states = self.states_in_ledger()
        self.declared.queued(states)
        self.declared.files.queued()
        for job_id in self.records.keys() - states.keys():
            self.records[job_id].state = ""
        self.busy_at = self.world.now
        self.places = {row.job_id: place for place, row in enumerate(rows)}
        self.begun = {row.job_id for row in rows if row.attempts > 0}
        for row in rows:
            job = self.jobs[row.job_id]
            if isinstance(row.state, Pending) and not job.after:
                self.waiting[row.job_id] = row.attempts > 0, _demand(job)

    def noted(self) -> Note:
        self._look_at_directory()
        records = {job_id: record.copied() for job_id, record in self.records.items()}
        note = self.directory, records, dict(self.declared.by_id)
        self.notes[self.directory] = note
        return note

    def fell_back(self, note: Note | None, is_less: bool) -> None:
        """A supervisor, or a command, has ended and not committed all that it wrote.

        :param is_less: whether a power cut has taken commits, and perhaps requests that users were
            told of.
        """
        self._look_at_directory()
        if note is None or note[0] != self.directory:
            note = self.notes.get(self.directory)
        _, records, entries = note or (0, {}, {})
        for job_id, record in self.records.items():
            committed = records.get(job_id, JobRecord())
            record.failures = committed.failures
            record.done = committed.done.copy()
            record.put_from = ""
            record.state = committed.state
            if is_less:
                record.last_told = ""
        states = self.states_in_ledger()
        for job_id, state in states.items():
            self.records[job_id].state = state
        self.declared.restore(entries, states)

    def has_unread_requests(self) -> bool:
        """Whether users have asked for something that no supervisor has taken."""
        with self.world.own_work():
            has_files = self.paths.requests.exists() and any(self.paths.requests.glob("*.jsonl"))
        verbs = {verb for (verb,) in self._rows("SELECT verb FROM requests")}
        return has_files or not verbs.isdisjoint(UNREAD)

    def _unread_ways(self, job_id: str) -> set[str]:
        """On which ways there are requests about a job that nobody has acted on."""
        with self.world.own_work():
            files = self.paths.requests.glob("*.jsonl") if self.paths.requests.exists() else ()
            ways = {"files" for path in files if f'"{job_id}"' in path.read_text()}
        rows = self._rows("SELECT verb, job_id FROM requests")
        return ways | {"ledger" for verb, id_ in rows if verb in OF_JOBS and id_ == job_id}

    def states_in_ledger(self) -> dict[str, str]:
        return dict(self._rows("SELECT job_id, state FROM jobs"))

    def recorded_pids(self) -> set[int]:
        """Of all attempts in the ledger."""
        return {pid for (pid,) in self._rows("SELECT pid FROM attempts")}

    def _rows(self, sql: str) -> list[Any]:
        """What the ledger has, as any other program would read it."""
        with self.world.own_work():
            if not self.paths.ledger.exists():
                return []
            connection = sqlite3.connect(self.paths.ledger)
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.DatabaseError:  # without tables: nothing was committed
                return []
            finally:
                connection.close()

    def submitted(self, job_id: str, number: int) -> None:
        """An attempt is about to be launched."""
        self._look_at_order(job_id)
        record = self.records[job_id]
        parents = [self.records[parent].state for parent in self.jobs[job_id].after]
        is_awaited = number == 0 and any(state not in ("SUCCEEDED", "") for state in parents)
        self._claim(not is_awaited, f"{job_id} is launched before what it waits for")
        self._claim(self.world.now >= record.not_before - 0.01, f"{job_id} is retried too early")
        told = record.last_told
        since, asked_mib = self.world.short_since, self.jobs[job_id].min_free_disk_mib
        is_short = since is not None and self.world.now - since > LATE_S
        self._claim(not is_short or asked_mib <= LITTLE_MIB, f"{job_id} is launched without space")
        is_held = told in ("cancel", "pause") and self._was_told_before(job_id)
        self._claim(not is_held, f"{job_id} is launched after `{told}`")

    def launched(self, worker: Worker) -> None:
        """A worker starts."""
        job_id = worker.job.job_id
        self.declared.launched(worker)
        self.latest[job_id] = worker
        alive = self.processes.alive.values()
        twins = [other for other in alive if other.paths == worker.paths]
        self._claim(len(twins) == 1, f"{job_id} is trained twice at once")
        self._look_at_directories(worker)
        self._look_at_room([other for other in alive if not other.is_orphan])

    def _look_at_room(self, workers: Sequence[Worker]) -> None:
        """No more jobs train than may, and CPUs and memory are given once."""
        scenario = self.world.scenario
        planned = scenario.max_parallel or scenario.cpus
        most = max(planned, scenario.cpus) if self.world.counts["set"] else planned
        self._claim(len(workers) <= most, f"{len(workers)} jobs at once")
        held = Counter(cpu for worker in workers for cpu in worker.cpus)
        self._claim(max(held) < scenario.cpus, f"CPUs are given that there are not: {dict(held)}")
        sharing = math.ceil(planned / scenario.cpus)
        self._claim(max(held.values()) <= sharing, f"a CPU is given too often: {dict(held)}")
        promised_mib = sum(worker.job.all_memory_mib for worker in workers)
        fits = len(workers) == 1 or promised_mib <= MACHINE_MIB
        self._claim(fits, f"{promised_mib} MiB are promised at once")

    def _look_at_directories(self, worker: Worker) -> None:
        """An attempt is the last one of its job that has a directory, and nobody has ended in it."""
        job_id, number = worker.job.job_id, worker.number
        is_last = not worker.paths.attempt(number + 1).root.exists()
        self._claim(is_last, f"{job_id} is launched under the number of an earlier attempt")
        is_new = not worker.paths.attempt(number).exit.exists()
        self._claim(is_new, f"{job_id} is launched where the exit record of another attempt is")

    def _was_told_before(self, job_id: str) -> bool:
        """Whether its user was told something of the job before this supervisor began."""
        return self.records[job_id].told_in < self.world.counts["lives"]

    def _look_at_order(self, job_id: str) -> None:
        """Of jobs for which there is room, those that have begun are launched first, and each kind
        in its order. There is room for what needs no more than the job that is launched.
        """
        mine = self.waiting.pop(job_id, None)
        self.begun.add(job_id)
        self.has_launched = True
        if mine is None:
            return
        place = not mine[0], self.places[job_id]
        for other, (has_begun, demand) in self.waiting.items():
            has_room = all(part <= of_mine for part, of_mine in zip(demand, mine[1], strict=True))
            is_first = (not has_begun, self.places[other]) < place
            self._claim(not (has_room and is_first), f"{job_id} is launched before {other}")

    def kills(self, worker: Worker) -> None:
        """The supervisor is about to kill a worker."""
        job, now = worker.job, self.world.now
        asked_s = None if worker.asked_at is None else now - worker.asked_at
        was_patient = asked_s is not None and asked_s >= self.world.scenario.grace_s - 0.01
        is_bad = worker.rss_mib > job.all_memory_mib or job.stall_timeout_s < NEVER_S
        is_bad |= self.world.counts["odd-event"] > 0
        was_refused = self.world.counts["full refusals"] > self.refusals_before
        stops_itself = self.stops_itself or was_refused or self.world.has_erred
        is_meant = self.stops + stops_itself > 1 or self.world.scenario.grace_s == 0.0
        self._claim(
            was_patient or is_bad or is_meant, f"{job.job_id} is killed without its grace time"
        )

    def set_state(self, job_id: str, state: State) -> None:
        record = self.records[job_id]
        before, after = record.state, state.name
        self.waiting.pop(job_id, None)
        record.not_before = 0.0
        self.world.log(f"{job_id}: {before} -> {after}")
        if record.put_from:
            put_from, record.put_from = record.put_from, ""
            if put_from == after:
                record.state = after
                self.declared.moved(job_id, before, state)
                return
        is_by_file = self.declared.moved(job_id, before, state)
        if is_by_file and after == "PENDING":
            record.last_told = ""
        if after == "PENDING" and before == "RUNNING" and record.has_just_failed:
            record.not_before = self.world.now + record.wait_s
            if record.failures <= self.jobs[job_id].max_retries:
                record.granted = record.failures + 1
        record.has_just_failed = False
        if after == "PENDING" and before in ("PAUSED", "FAILED", "CANCELLED"):
            self._queue_again(job_id)
        is_legal = is_by_file or after in MOVES[before]
        self._claim(is_legal, f"{job_id}: {before} became {after}")
        record.state = after
        verb = "" if is_by_file else _verb(before, state)
        if verb:
            record.done[verb] += 1
            self._claim(
                record.done[verb] <= record.asked[verb],
                f"{job_id}: {verb} was done {record.done[verb]} times, and asked for"
                f" {record.asked[verb]} times",
            )
        is_queued_again = is_by_file and before in OVER and after == "PENDING"
        if verb == "retry" or is_queued_again:
            record.failures = record.granted = 0
        if isinstance(state, Pending | Running | Paused):
            self._claim(
                state.failures == record.failures,
                f"{job_id} is {after} with {state.failures} failures, and had {record.failures}",
            )
        if after == "SUCCEEDED":
            has_results = self.paths.job(job_id).has_results(normalize=False)
            self._claim(has_results, f"{job_id} has SUCCEEDED without results")
        if after == "FAILED" and not is_by_file:
            self._look_at_failure(job_id, before, getattr(state, "cause", ""))

    def _queue_again(self, job_id: str) -> None:
        """A job that has begun is queued by its user, behind those like it."""
        if job_id in self.begun:
            self.places[job_id] = max(self.places.values(), default=-1) + 1
            self.waiting[job_id] = True, _demand(self.jobs[job_id])

    def _look_at_failure(self, job_id: str, before: str, cause: str) -> None:
        record, job = self.records[job_id], self.jobs[job_id]
        if before == "PENDING":
            is_too_large = job.all_cores > self.world.scenario.cpus
            is_right = is_too_large and cause == "too-large"
            self._claim(is_right, f"{job_id} FAILED ({cause}) before its launch")
        elif cause in COUNTED:
            most = job.max_retries + 1
            self._claim(
                record.failures >= most,
                f"{job_id} FAILED ({cause}) after {record.failures} of {most} attempts",
            )

    def put(self, job: Job) -> None:
        """A job is entered anew, PENDING."""
        self._look_at_directory()
        self.declared.put(job)
        record = self.records[job.job_id]
        record.put_from = record.state
        record.state = "PENDING"
        record.failures = 0

    def deleted(self, job_id: str) -> None:
        """A job is removed from the ledger, with its attempts."""
        self.declared.deleted(job_id)
        record = self.records[job_id]
        if job_id not in self.declared.files.call.jobs:  # else it is entered anew
            record.state = ""
        record.failures = 0
        record.last_told = ""
        self.latest.pop(job_id, None)

    def attempt_ended(
        self, job_id: str, number: int, outcome: AttemptOutcome, exit_record: ExitRecord | None
    ) -> None:
        record = self.records[job_id]
        self.world.log(f"{job_id}: attempt ended: {outcome.cause}")
        self._look_at_cause(job_id, number, outcome, exit_record)
        self.stops_itself |= outcome.cause == "disk-full"
        record.has_just_failed = outcome.cause in COUNTED
        if record.has_just_failed:
            record.failures += 1
            record.wait_s = 2.0 ** (record.failures - 1)
            most = max(self.jobs[job_id].max_retries + 1, record.granted)
            self._claim(
                record.failures <= most, f"{job_id} is tried {record.failures} times, not {most}"
            )

    def _look_at_cause(
        self, job_id: str, number: int, outcome: AttemptOutcome, exit_record: ExitRecord | None
    ) -> None:
        """What an attempt is said to have ended by is what has ended it."""
        worker = self.latest.get(job_id)
        if worker is None or worker.number != number:
            return
        is_its_own = exit_record in (None, worker.exit_record)
        self._claim(is_its_own, f"{job_id} has ended with the exit record of another attempt")
        match outcome.cause:
            case None:
                self._claim(worker.is_finished, f"{job_id} has succeeded, and is not trained")
            case "killed":
                is_ours = worker.was_killed or worker.is_asked
                self._claim(not is_ours, f"{job_id} counts as failed, and was asked to end")
            case "timeout":
                age_s = self.world.now - worker.began
                self._claim(age_s >= worker.job.timeout_s, f"{job_id} is ended after {age_s} s")
            case "memory-limit":
                is_large = worker.rss_mib > worker.job.all_memory_mib
                self._claim(is_large, f"{job_id} is within its memory limit")

    def asked(self, trouble: Trouble) -> None:
        """A command begins."""
        if trouble.job:
            self.asking = self.records[trouble.job]
            self.asking.asked[trouble.kind] += 1
            self.unread = self._unread_ways(trouble.job)

    def refused(self, trouble: Trouble) -> None:
        """A command has ended with an error, which says that it has changed nothing."""
        if trouble.job:
            self.asking.asked[trouble.kind] -= 1

    def told(self, trouble: Trouble, said: str) -> None:
        """A command has said what it did."""
        if trouble.kind in ("stop", "stop-now"):
            is_further = "no supervisor" not in said and "has not read that yet" not in said
            if is_further and self.world.is_supervised:
                self.asked_to_stop(2 if trouble.kind == "stop-now" else 1)
        elif trouble.job and "nothing to" not in said:
            record = self.records[trouble.job]
            record.told_in = self.world.counts["lives"]
            way = "files" if trouble.elsewhere else "ledger"
            way = way if "asked its supervisor" in said else "at once"
            # Requests in the ledger and in files are not acted on in the order in which they came,
            # nor are files after a jump of the clock; what a command does itself comes after all
            # of them.
            is_after_unread = self.unread == {way} and not (way == "files" and self.has_jumped)
            is_after_all = way == "at once" or not self.unread
            is_ordered = is_after_all or (bool(record.last_told) and is_after_unread)
            # A job that is over has nothing to pause, also where the command cannot know that.
            has_effect = trouble.kind != "pause" or record.state not in OVER
            record.last_told = trouble.kind if is_ordered and has_effect else ""

    @property
    def has_jumped(self) -> bool:
        return self.world.counts["jump"] > 0

    def hung_up(self) -> None:
        """The terminal of the supervisor has closed; that is no second stop."""
        if self.stops:
            self.stops += 1  # or it is, where the first one was no signal
        else:
            self.asked_to_stop(1)

    def asked_to_stop(self, times: int) -> None:
        """The supervisor that lives is asked to stop."""
        if times:
            self.stops += times
            grace_s = self.world.scenario.grace_s if self.stops == 1 else 0.0
            by = self.world.now + grace_s + LATE_S + self._latest_s
            self.stop_by = by if self.stop_by is None else min(by, self.stop_by)

    def event(self, kind: str, message: str, **facts: Any) -> None:
        """The supervisor reports something."""
        self.world.log(f"event {kind}: {message}")
        is_odd = self.world.counts["odd-event"] > 0
        self._claim("could not handle an event" not in message or is_odd, message)
        self._claim("a request could not be handled" not in message, message)
        if "unheeded" in facts:
            files, job_id = self.declared.files, facts["job_id"]
            is_right = job_id not in files.call.jobs
            self._claim(is_right, f"{message}, and it is declared")
            if job_id in self.records:
                self.records[job_id].last_told = ""

    # -- what must hold

    def turn(self) -> None:
        """The supervisor has come to the end of a turn."""
        now = self.world.now
        self.stops_itself |= self.world.is_full
        for worker in self.processes.alive.values():
            self._look_at_limits(worker, now)
        is_excused = self.world.is_full or self.world.is_locked
        is_excused |= self.world.short_since is not None
        is_waiting = any(record.not_before > now for record in self.records.values())
        if self.processes.alive or is_excused or is_waiting or self.stops:
            self.busy_at = now
        self._claim(
            now - self.busy_at <= IDLE_S + self._latest_s, "nothing runs, and nothing happens"
        )
        if self.stop_by is not None:
            # Who stops cannot be heard of before the ledger can be read and written again; only
            # then the grace time begins. An exit may come late then, too. A run that waits for a
            # lock at its end has no turn before that ends.
            heard_at = now if self.world.is_locked else self.world.unlocked_at
            grace_s = self.world.scenario.grace_s if self.stops == 1 else 0.0
            self.stop_by = max(self.stop_by, heard_at + grace_s + LATE_S + self._latest_s)
        if self.stop_by is not None and now > self.stop_by:
            raise Violation(f"a stop is not obeyed by {self.stop_by:.1f}")

    def _look_at_limits(self, worker: Worker, now: float) -> None:
        job, late_s = worker.job, self.world.scenario.grace_s + LATE_S
        if worker.is_orphan:
            return
        if worker.asked_at is not None:
            asked_s = now - worker.asked_at
            self._claim(
                asked_s <= late_s, f"{job.job_id} trains {asked_s:.1f} s after it was asked"
            )
        age_s, silent_s = now - worker.began, now - worker.reported
        self._claim(age_s <= job.timeout_s + late_s, f"{job.job_id} is over its timeout")
        self._claim(silent_s <= job.stall_timeout_s + late_s, f"{job.job_id} hangs")
        if worker.ranks.lost_at is not None:
            stays_s = now - worker.ranks.lost_at
            is_in_time = stays_s <= CAUSE_WITHIN_S + LATE_S + self._latest_s
            self._claim(is_in_time, f"{job.job_id} stays {stays_s:.1f} s after one of its ranks")
        if worker.grew_at is not None:
            samples = 1 + self.world.counts["lost"] - worker.lost_before_it_grew
            late_s = samples * SAMPLE_EVERY_S + self._latest_s + LATE_S
            self._claim(now - worker.grew_at <= late_s, f"{job.job_id} is over its memory limit")

    def life_ended(self) -> None:
        """A supervisor has ended by itself."""
        followed = [follower.ranks.worker for follower in self.processes.followers.values()]
        workers = [*self.processes.alive.values(), *followed]
        left = {worker.job.job_id for worker in workers if not worker.is_orphan}
        self._claim(not left, f"the supervisor has ended, and these train: {left}")
        if self.paths.error_log.exists():
            for record in ERROR_RECORD.findall(self.paths.error_log.read_text()):
                is_expected = any(planted in record for planted in PLANTED)
                self._claim(is_expected, f"an unexpected error of the supervisor: {record}")

    def interrupted(self) -> None:
        """A run has ended before its jobs: what is shown agrees with the ledger all the same."""
        if not self._has_late_jobs:
            self._shown_rows()

    @property
    def _has_late_jobs(self) -> bool:
        """Whether jobs came too late for the run that has ended."""
        verbs = {verb for (verb,) in self._rows("SELECT verb FROM requests")}
        return "reload" in verbs

    def _shown_rows(self) -> tuple[list[dict[str, Any]], int | None]:
        """The rows of ``summary.json``, and the exit code that `status` has; they agree with the
        ledger.
        """
        states = self.states_in_ledger()
        with self.world.own_work():
            rows = json.loads(self.paths.summary_json.read_bytes())
            table = self.paths.summary_csv.read_text().splitlines()
            snapshot = run_snapshot.status(self.paths.root)
            code_shown, shown = run_snapshot.exit_code_of(snapshot), snapshot.rows
        summary = {row["job_id"]: row["state"] for row in rows}
        self._claim(summary == states, f"summary.json has {summary}, the ledger {states}")
        in_table = {cells[0]: cells[2] for cells in (line.split(",") for line in table[1:])}
        self._claim(in_table == states, f"summary.csv has {in_table}, the ledger {states}")
        status = {row["job_id"]: row["state"] for row in shown}
        self._claim(status == states, f"`status` shows {status}, the ledger has {states}")
        self._claim(rows == list(shown), "summary.json and `status` differ")
        return rows, code_shown

    def everything_agrees(self, exit_code: int, run: Collection[str]) -> None:
        """A run has come to its end: ledger, summary and exit code say the same.

        :param run: the jobs of the run.
        """
        states = self.states_in_ledger()
        self._claim(
            states == {id_: record.state for id_, record in self.records.items() if record.state},
            f"the ledger has {states}",
        )
        self.declared.all_are_there(states)
        if self._has_late_jobs:
            return
        rows, code_shown = self._shown_rows()
        of_run = {job_id: state for job_id, state in states.items() if job_id in run}
        self._claim(exit_code == self._exit_code(of_run), f"exit code {exit_code} with {of_run}")
        failed = {id_ for id_, state in states.items() if state in ("FAILED", "CANCELLED")}
        undeclared = {id_ for id_, entry in self.declared.by_id.items() if entry.is_undeclared}
        if failed - undeclared <= set(run):  # else `status` counts more jobs, as it says
            self._claim(exit_code == code_shown, f"exit code {exit_code}, of `status` {code_shown}")
        for job_id, state in states.items():
            if state == "SUCCEEDED":
                self._look_at_results(job_id, rows)

    def _exit_code(self, states: Mapping[str, str]) -> int:
        names = states.values()
        if "FAILED" in names or "CANCELLED" in names:
            return 1
        if "PAUSED" in names:
            return 130
        return 0 if all(state == "SUCCEEDED" for state in names) else 1

    def _look_at_results(self, job_id: str, rows: list[dict[str, Any]]) -> None:
        job = self.jobs[job_id]
        steps = job.iterations * STEPS
        model = self.paths.job(job_id).model
        self._claim(
            model.exists() and model.read_text() == f"{job_id} {steps} {job.version}",
            f"{job_id} has SUCCEEDED without its results",
        )
        (row,) = (row for row in rows if row["job_id"] == job_id)
        self._claim(row["env_steps"] == steps, f"{job_id}: env_steps {row['env_steps']}")

    def _look_at_promises(self, job_id: str, state: str) -> None:
        """What the last command on a job was told is true."""
        match self.records[job_id].last_told:
            case "cancel":
                self._claim(state in OVER, f"{job_id} was to be cancelled, and is {state}")
            case "pause":
                fits = state in (*OVER, "PAUSED")
                self._claim(fits, f"{job_id} was to be paused, and is {state}")
            case "resume":
                self._claim(state != "PAUSED", f"{job_id} was to be resumed, and is {state}")

    def the_end(self) -> None:
        """Nothing is left to do, and no trouble comes any more."""
        for job_id, record in self.records.items():
            if not record.state:
                continue
            self._look_at_promises(job_id, record.state)
            if record.state == "PENDING":
                parents = [self.records[parent].state for parent in self.jobs[job_id].after]
                has_to_wait = any(state != "SUCCEEDED" for state in parents)
                self._claim(has_to_wait, f"{job_id} is not trained, and nothing keeps it")
            elif record.state == "PAUSED":
                is_meant = record.asked["pause"] > 0
                self._claim(is_meant, f"{job_id} is paused, and nobody has asked for that")
            else:
                self._claim(record.state in OVER, f"{job_id} ends as {record.state}")

    def _claim(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(otherwise)


def _demand(job: SimulatedJob) -> Demand:
    return job.ranks, job.cores, job.memory_mib, job.min_free_disk_mib


def _verb(before: str, state: State) -> str:
    """What a user has to have asked for such a move."""
    match before, state.name:
        case ("FAILED" | "CANCELLED", "PENDING"):
            return "retry"
        case "PAUSED", "PENDING":
            return "resume"
        case _, "CANCELLED":
            return "cancel"
        case _, "PAUSED":
            return "pause"
    return ""
