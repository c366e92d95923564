"""The state of every job of an experiment, the queue of those that wait, and how many env_steps
they have to go.

A PENDING job is in the queue, or it is held back: until the jobs that it waits for have succeeded,
and then until the policy that it starts from is fetched.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cause,
    Failed,
    Job,
    Paused,
    Pending,
    Running,
    State,
    Succeeded,
    move,
)
from orchestrator.core.text import count, listed
from orchestrator.ledger import JobRow
from orchestrator.supervisor import events, retry_policy, start_choice
from orchestrator.supervisor.job_queue import JobQueue
from orchestrator.supervisor.recorder import Recorder
from orchestrator.supervisor.start_policies import (
    FailedFetch,
    Fetch,
    FetchedPolicy,
    NoPolicies,
    StartPolicies,
    UnfitPolicy,
)

SHOWN = 3
"""Jobs that are named in a message."""


@dataclass(slots=True, kw_only=True)
class JobTable:
    """Makes and records every move of a job from state to state. Times are monotonic seconds."""

    recorder: Recorder
    now: Callable[[], float]
    policies: StartPolicies = field(default_factory=NoPolicies)
    states: dict[str, State] = field(default_factory=dict, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    queue: JobQueue = field(default_factory=JobQueue, init=False)
    steps_waiting: int = field(default=0, init=False)
    """env_steps that the waiting jobs have to go, each to its end or to the rung where it
    pauses."""
    _rows: dict[str, JobRow] = field(default_factory=dict, init=False)
    """As they were loaded. Of those that are over, the job may have to be read yet."""
    _changed: dict[str, Job] = field(default_factory=dict, init=False)
    """Jobs that are not as in their rows any more."""
    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    """Number of attempts so far."""
    _losses: Counter[str] = field(default_factory=Counter, init=False)
    """Number of attempts that were lost with their node."""
    _steps_done: dict[str, int] = field(default_factory=dict, init=False)
    """env_steps at the end of the last attempt."""
    _children: dict[str, list[str]] = field(default_factory=dict, init=False)
    """Job → the jobs that have waited for it."""
    _held: dict[str, dict[str, None]] = field(default_factory=dict, init=False)
    """PENDING jobs that wait for others → those of them that have not succeeded, in their order."""

    def load(self, rows: Iterable[JobRow], losses: Mapping[str, int]) -> None:
        """:param losses: how often attempts of a job were lost with their node."""
        self._losses.update(losses)
        now = self.now()
        loaded = list(rows)
        for row in loaded:
            job_id = row.job_id
            self._rows[job_id] = row
            self._attempts[job_id] = row.attempts
            self._steps_done[job_id] = row.env_steps
            self.states[job_id] = row.state
            self.counts[row.state.name] += 1
        for row in loaded:
            if isinstance(row.state, Pending):
                self._begin_to_wait(row.job_id, now)

    def job(self, job_id: str) -> Job:
        """:raises LedgerError: it is read from the ledger only now, and that fails."""
        return self._changed.get(job_id) or self._rows[job_id].job

    def replace(self, job: Job) -> None:
        """``job`` in place of the one of the same id, which differs in no part of the
        fingerprint.
        """
        to_go_before = self._steps_to_go(job.job_id)
        self._changed[job.job_id] = job
        if isinstance(self.states[job.job_id], Pending):
            self.steps_waiting += self._steps_to_go(job.job_id) - to_go_before
        self.recorder.record_declaration(job)

    def next_number(self, job_id: str) -> int:
        """The number of its next attempt."""
        return self._attempts[job_id]

    def failures(self, job_id: str) -> int:
        """Failures counted so far, for a job that has not ended."""
        state = self.states[job_id]
        return state.failures if isinstance(state, Pending | Running | Paused) else 0

    def count_lost(self, job_id: str) -> int:
        """Count an attempt that was lost with its node; returns how many were."""
        self._losses[job_id] += 1
        return self._losses[job_id]

    def move(self, job_id: str, new: State) -> None:
        old = self.states[job_id]
        self.states[job_id] = move(job_id, old, new)
        self.counts[old.name] -= 1
        self.counts[new.name] += 1
        if isinstance(old, Pending):
            self.steps_waiting -= self._steps_to_go(job_id)
            self.queue.remove(job_id)
            self._held.pop(job_id, None)
            self.policies.withdraw(job_id)
        if isinstance(new, Pending):
            self._begin_to_wait(job_id, self.now())
        if isinstance(new, Succeeded):
            self._release_children(job_id)
        self.recorder.record_state(job_id, new)

    def fail(self, job_id: str, cause: Cause, reason: str) -> None:
        """End a PENDING job that cannot be launched."""
        self.move(job_id, Failed(cause=cause, message=reason))
        self.recorder.reporter.event(
            "failed", f"{job_id} failed: {reason}", job_id=job_id, reason=reason, cause=cause
        )

    def note_launch(self, attempt: Attempt) -> None:
        """``attempt`` has been launched: its job is RUNNING."""
        self._attempts[attempt.job_id] = attempt.number + 1
        self.move(attempt.job_id, Running(attempt=attempt, failures=self.failures(attempt.job_id)))

    def note_steps(self, job_id: str, env_steps: int) -> None:
        """An attempt has ended at ``env_steps``."""
        self._steps_done[job_id] = max(self._steps_done[job_id], env_steps)

    def take_policies(self) -> None:
        """Queue the jobs whose policies have been fetched; those that cannot start from them have
        FAILED. A fetch that has failed counts as a launch that has.
        """
        for fetched in self.policies.take():
            self._take_policy(fetched)

    def held_jobs(self, most: int) -> list[tuple[Job, str]]:
        """The first jobs that wait for others, each with the names of those that have not
        succeeded.
        """
        waiting = itertools.islice(self._held.items(), most)
        return [
            (self.job(job_id), self._missing_parents_text(job_id, missing))
            for job_id, missing in waiting
        ]

    def report_held(self) -> None:
        """Say which jobs were not run because of those that they wait for. To be called when none
        runs any more.
        """
        missing = dict.fromkeys(itertools.chain.from_iterable(self._held.values()))
        # Those that are PENDING wait for others of them.
        culprits = [
            f"{job_id} ({self.states[job_id].name})"
            for job_id in missing
            if not isinstance(self.states[job_id], Pending)
        ]
        if not culprits:
            return
        jobs = count(len(self._held), "job was", "jobs were")
        text = f"{jobs} not run ({listed(list(self._held), SHOWN)}), as {listed(culprits, SHOWN)} did not succeed"
        advice = (
            "`retry` or `resume` queues what they wait for, and the next `run` goes on from there"
        )
        self.recorder.reporter.event("warning", f"{text}; {advice}", jobs=list(self._held))

    def _missing_parents_text(self, job_id: str, missing: Mapping[str, None]) -> str:
        parents = [parent for parent in self.job(job_id).spec.after if parent in missing]
        return listed(parents, SHOWN)

    def _begin_to_wait(self, job_id: str, now: float) -> None:
        """``job_id`` is PENDING now."""
        self.steps_waiting += self._steps_to_go(job_id)
        self._queue_or_hold(job_id, now)

    def _queue_or_hold(self, job_id: str, now: float, *, is_ahead: bool = False) -> None:
        """Let a PENDING job be launched, unless it has to wait for other jobs or for its policy."""
        job = self.job(job_id)
        state = self.states[job_id]
        assert isinstance(state, Pending)
        has_begun = self._attempts[job_id] > 0
        lacks_policy = job.spec.init_job is not None and self.policies.needs(job)
        if lacks_policy or not has_begun:  # what has begun goes on
            missing = self._missing_parents(job)
            if missing:
                self._hold(job_id, missing)
                return
        if lacks_policy:
            self.policies.request(job, not_before=state.not_before)
            return
        self.queue.add(
            job_id,
            job.resources,
            now=now,
            not_before=state.not_before,
            is_ahead=is_ahead,
            has_begun=has_begun,
            is_forkable=start_choice.is_forkable(job),
        )

    def _missing_parents(self, job: Job) -> list[str]:
        """The jobs that ``job`` waits for and that have not succeeded. One that is not declared any
        more keeps nobody waiting.
        """
        return [
            parent
            for parent in dict.fromkeys(job.spec.after)
            if not isinstance(self.states.get(parent), Succeeded | None)
        ]

    def _hold(self, job_id: str, missing: Sequence[str]) -> None:
        self._held[job_id] = dict.fromkeys(missing)
        for parent in missing:
            self._children.setdefault(parent, []).append(job_id)

    def _release_children(self, parent: str) -> None:
        """``parent`` has succeeded: queue the jobs that have waited for it alone."""
        for job_id in self._children.pop(parent, ()):
            missing = self._held.get(job_id)
            if missing is None:
                continue
            missing.pop(parent, None)
            if not missing:
                del self._held[job_id]
                self._queue_or_hold(job_id, self.now(), is_ahead=True)

    def _take_policy(self, fetched: Fetch) -> None:
        job_id = fetched.job_id
        if isinstance(fetched, FetchedPolicy):
            job = self.job(job_id)
            self.replace(
                job.with_spec(init_sha256=fetched.sha256, init_env_steps=fetched.env_steps)
            )
        if not isinstance(self.states[job_id], Pending):  # it was paused or cancelled meanwhile
            return
        match fetched:
            case FetchedPolicy():
                self._queue_or_hold(job_id, self.now(), is_ahead=True)
            case UnfitPolicy(problem=problem):
                cause = Cause.ERROR if self._attempts[job_id] else Cause.INVALID
                self.fail(job_id, cause, problem)
            case FailedFetch(problem=problem):
                self._count_failed_fetch(job_id, problem)

    def _count_failed_fetch(self, job_id: str, problem: str) -> None:
        """A PENDING job was not launched, as its policy could not be fetched: it waits for another
        try, unless it has had all of them.
        """
        max_retries = self.job(job_id).max_retries
        now = self.now()
        outcome = AttemptOutcome(cause=Cause.LAUNCH, message=f"could not be launched: {problem}")
        state = retry_policy.next_state(
            outcome, failures=self.failures(job_id), max_retries=max_retries, now=now
        )
        if isinstance(state, Failed):
            self.fail(job_id, state.cause, state.message)
            return
        assert isinstance(state, Pending)
        self.move(job_id, state)
        text = f"{job_id} {outcome.message}; {events.retry_text(state, max_retries, now)}"
        self.recorder.reporter.event("retrying", text, job_id=job_id, cause=outcome.cause)

    def _steps_to_go(self, job_id: str) -> int:
        return max(0, self.job(job_id).spec.attempt_end - self._steps_done[job_id])
