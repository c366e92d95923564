"""The state of every job of an experiment, the queue of those that wait, and how many env_steps they have to go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.core.job import Attempt, Job, Paused, Pending, Running, State, move
from orchestrator.ledger import JobRow
from orchestrator.supervisor.job_queue import JobQueue
from orchestrator.supervisor.recorder import Recorder


@dataclass(slots=True, kw_only=True)
class JobTable:
    """Makes and records every move of a job from state to state. Times are monotonic seconds."""

    recorder: Recorder
    now: Callable[[], float]
    states: dict[str, State] = field(default_factory=dict, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    queue: JobQueue = field(default_factory=JobQueue, init=False)
    steps_waiting: int = field(default=0, init=False)
    """env_steps that the waiting jobs have to go."""
    _jobs: dict[str, Job] = field(default_factory=dict, init=False)
    _attempts: dict[str, int] = field(default_factory=dict, init=False)
    _losses: Counter[str] = field(default_factory=Counter, init=False)
    _steps_done: dict[str, int] = field(default_factory=dict, init=False)
    """env_steps at the end of the last attempt."""

    def load(self, rows: Iterable[JobRow], losses: Mapping[str, int]) -> None:
        """:param losses: how often attempts of a job were lost with their node."""
        self._losses.update(losses)
        now = self.now()
        for row in rows:
            job_id = row.job.job_id
            self._jobs[job_id] = row.job
            self._attempts[job_id] = row.attempts
            self._steps_done[job_id] = row.env_steps
            self.states[job_id] = row.state
            self.counts[row.state.name] += 1
            if isinstance(row.state, Pending):
                self._enqueue(job_id, row.state, now)

    def job(self, job_id: str) -> Job:
        return self._jobs[job_id]

    def replace(self, job: Job) -> None:
        """``job`` in place of the one of the same id, which differs only in its ``pause_at``."""
        self._jobs[job.job_id] = job
        self.recorder.ledger.set_pause_at(job)

    def next_number(self, job_id: str) -> int:
        return self._attempts[job_id]

    def failures(self, job_id: str) -> int:
        """Failures counted so far, for a job that has not ended."""
        state = self.states[job_id]
        return state.failures if isinstance(state, Pending | Running | Paused) else 0

    def lost(self, job_id: str) -> int:
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
        if isinstance(new, Pending):
            self._enqueue(job_id, new, self.now())
        self.recorder.moved(job_id, new)

    def launched(self, attempt: Attempt) -> None:
        self._attempts[attempt.job_id] = attempt.number + 1
        self.move(attempt.job_id, Running(attempt=attempt, failures=self.failures(attempt.job_id)))

    def reached(self, job_id: str, env_steps: int) -> None:
        self._steps_done[job_id] = max(self._steps_done[job_id], env_steps)

    def _enqueue(self, job_id: str, state: Pending, now: float) -> None:
        self.steps_waiting += self._steps_to_go(job_id)
        self.queue.add(job_id, self._jobs[job_id].resources, now=now, not_before=state.not_before)

    def _steps_to_go(self, job_id: str) -> int:
        return max(0, self._jobs[job_id].spec.total_timesteps - self._steps_done[job_id])
