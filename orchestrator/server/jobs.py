"""The jobs of an experiment in memory: their states, what users want of them, and who is next."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.core.job import (
    Cancelled,
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
from orchestrator.ledger import JobRow
from orchestrator.server.ledger import ServerLedger, Wanted

PATIENCE = 16
"""How often a job may be overtaken by later ones that take what it lacks; then these wait, too."""

Report = Callable[..., None]
"""``report(kind, message, **facts)`` appends an event to the stream."""


@dataclass(slots=True, kw_only=True, eq=False)
class JobEntry:
    """A job with what changes about it. Only :class:`JobTable` changes it."""

    job: Job
    position: int
    """In the job file."""
    state: State
    wanted: Wanted = "run"
    attempts: int = 0
    """Number of attempts so far, and the number of the next one."""
    env_steps: int = 0
    """Trained so far, at least."""
    losses: int = 0
    """Attempts that were lost with their node."""
    robot_hash: str | None = None
    rank: tuple[int, int] = (0, 0)
    """Its place in the queue: jobs that waited before come first, then those that have begun."""
    queued_at: float = 0.0
    """When it began to wait, in monotonic seconds."""
    overtaken: int = 0
    """How often later jobs were launched while there was no room for it."""

    @property
    def failures(self) -> int:
        state = self.state
        return state.failures if isinstance(state, Pending | Running | Paused) else 0


def wanted_state(state: State, wanted: Wanted) -> State:
    """Return the state to which a job without a running attempt is brought by what its user wants."""
    match wanted, state:
        case "cancel", Pending() | Paused():
            return Cancelled()
        case "pause", Pending(failures=failures) | Paused(failures=failures):
            return Paused(failures=failures)
        case "run", Paused(failures=failures, at_rung=False):
            return Pending(failures=failures)
    return state


class JobTable:
    """All jobs of a run directory. Every change of a state is made, recorded and reported here."""

    def __init__(self, ledger: ServerLedger, report: Report, now: Callable[[], float]) -> None:
        self._ledger = ledger
        self._report = report
        self._now = now
        self.entries: dict[str, JobEntry] = {}
        self.counts: Counter[str] = Counter()
        """Number of jobs by the name of their state."""
        self.moved: set[str] = set()
        """Jobs that have changed since the summary was written."""
        self._waiting: dict[str, JobEntry] = {}
        """PENDING jobs."""
        self._queue: list[JobEntry] | None = None
        """The same in order; None: to be sorted anew."""
        self._children: dict[str, list[str]] = {}
        self._numbers = itertools.count(1)
        self._ahead = itertools.count(-1, -1)

    def __getitem__(self, job_id: str) -> JobEntry:
        return self.entries[job_id]

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.entries

    def __iter__(self) -> Iterator[JobEntry]:
        return iter(self.entries.values())

    def load(self, rows: Iterable[JobRow]) -> None:
        """Take rows of the ledger, in order of launch. Jobs that are here already are replaced; their
        back-off, which the ledger does not have, stays. Of those that run, only the declaration is
        replaced.
        """
        wanted = self._ledger.wanted()
        losses = self._ledger.losses()
        for row in rows:
            if isinstance(row.state, Running):
                running = self.entries[row.job_id]
                running.job = row.job
                running.position = row.position
                continue
            before = self.entries.get(row.job_id)
            state = row.state
            if before is not None and before.attempts == row.attempts and state.name == "PENDING":
                state = before.state if isinstance(before.state, Pending) else state
            self.forget(row.job_id)
            entry = JobEntry(
                job=row.job,
                position=row.position,
                state=state,
                wanted=wanted[row.job_id],
                attempts=row.attempts,
                env_steps=row.env_steps,
                losses=losses.get(row.job_id, 0),
                robot_hash=row.robot_hash,
            )
            self.entries[row.job_id] = entry
            self.counts[entry.state.name] += 1
            self.moved.add(row.job_id)
            for parent in dict.fromkeys(entry.job.spec.after):
                self._children.setdefault(parent, []).append(row.job_id)
            if isinstance(entry.state, Pending):
                self._enqueue(entry)

    def forget(self, job_id: str) -> None:
        """Leave out a job that is removed or loaded anew."""
        entry = self.entries.pop(job_id, None)
        if entry is not None:
            self.counts[entry.state.name] -= 1
            self._waiting.pop(job_id, None)

    def move(self, entry: JobEntry, new: State) -> None:
        """Bring a job to another state."""
        job_id = entry.job.job_id
        old = entry.state
        entry.state = move(job_id, old, new)
        self.counts[old.name] -= 1
        self.counts[new.name] += 1
        self.moved.add(job_id)
        self._ledger.set_state(job_id, new)
        if isinstance(new, Succeeded | Failed) and entry.wanted != "run":  # it came too late
            entry.wanted = "run"
            self._ledger.set_wanted(job_id, "run")
        self._waiting.pop(job_id, None)
        if isinstance(new, Pending):
            self._enqueue(entry)
        if isinstance(new, Succeeded):
            children = [self._waiting.get(child) for child in self._children.get(job_id, ())]
            for child in children:
                if child is not None and not self.missing_parents(child):
                    child.rank = (0, next(self._ahead))  # its turn would have come earlier
                    self._queue = None

    def want(self, entry: JobEntry, wanted: Wanted) -> None:
        """Note what the user wants of a job, and do it unless an attempt runs."""
        if wanted != entry.wanted:
            self._ledger.set_wanted(entry.job.job_id, wanted)  # which may fail
            entry.wanted = wanted
        self.settle(entry)

    def settle(self, entry: JobEntry) -> None:
        """Bring a job without a running attempt to the state that its user wants."""
        new = wanted_state(entry.state, entry.wanted)
        if new == entry.state:
            return
        job_id = entry.job.job_id
        self.move(entry, new)
        match new:
            case Cancelled():
                self._report("cancelled", f"{job_id} cancelled", job_id=job_id)
            case Paused():
                text = f"{job_id} paused; `resume` queues it again"
                self._report("paused", text, job_id=job_id, state="PAUSED")
            case _:
                self._report("resumed", f"{job_id} is queued again", job_id=job_id)

    def requeue(self, entry: JobEntry, kind: str, reason: str, **facts: Any) -> None:
        """Queue a job again that is over or waits at a rung."""
        job_id = entry.job.job_id
        self.move(entry, Pending(failures=entry.failures))
        self._report(kind, f"{job_id} {reason}", job_id=job_id, **facts)

    def promote(self, entry: JobEntry, pause_at: int | None) -> None:
        """Let a job train on to ``pause_at`` env_steps, or with None to its end. One that is on the
        way to its rung passes it.
        """
        before = entry.job.spec.pause_at
        if before is None or (pause_at is not None and pause_at <= before):
            return
        if isinstance(entry.state, Succeeded):
            return
        self.change_spec(entry, pause_at=pause_at)
        if isinstance(entry.state, Paused) and entry.state.at_rung:
            end = entry.job.spec.total_timesteps if pause_at is None else pause_at
            text = f"is queued again, to train on to {end:,} env_steps"
            self.requeue(entry, "promoted", text, pause_at=pause_at)

    def fail(self, entry: JobEntry, cause: Cause, message: str) -> None:
        """End a job that cannot be launched."""
        job_id = entry.job.job_id
        self.move(entry, Failed(cause=cause, message=message))
        text = f"{job_id} failed: {message}"
        self._report("failed", text, job_id=job_id, reason=message, cause=cause)

    def change_spec(self, entry: JobEntry, **changes: Any) -> None:
        """Change values of a job that are no part of its fingerprint."""
        entry.job = entry.job.with_spec(**changes)
        self._ledger.update_spec(entry.job)
        self.moved.add(entry.job.job_id)

    def missing_parents(self, entry: JobEntry) -> list[str]:
        """Return the jobs that have to succeed before this one is launched, and have not. A job that
        has begun goes on, and one that is not declared keeps nobody waiting.
        """
        starts_from_scratch = entry.job.spec.init_job is not None and not entry.env_steps
        if entry.attempts and not starts_from_scratch:
            return []
        parents = dict.fromkeys(entry.job.spec.after)
        return [
            parent
            for parent in parents
            if parent in self.entries and not isinstance(self.entries[parent].state, Succeeded)
        ]

    def due(self) -> Iterator[JobEntry]:
        """Yield the PENDING jobs that may be launched now, in order."""
        if self._queue is None:
            self._queue = sorted(self._waiting.values(), key=lambda entry: entry.rank)
        now = self._now()
        for entry in self._queue:
            if self._waiting.get(entry.job.job_id) is not entry:
                continue
            assert isinstance(entry.state, Pending)
            is_backing_off = entry.state.not_before is not None and entry.state.not_before > now
            if not is_backing_off and not self.missing_parents(entry):
                yield entry

    def next_due(self) -> float | None:
        """Return when the first back-off ends, or None if no job backs off now."""
        now = self._now()
        states = [entry.state for entry in self._waiting.values()]
        ends = [state.not_before or 0.0 for state in states if isinstance(state, Pending)]
        return min((end for end in ends if end > now), default=None)

    def held(self) -> list[tuple[JobEntry, list[str]]]:
        """Return the PENDING jobs that wait for others, each with the ids of those."""
        pairs = [(entry, self.missing_parents(entry)) for entry in self._waiting.values()]
        return [(entry, missing) for entry, missing in pairs if missing]

    @property
    def states(self) -> dict[str, State]:
        return {job_id: entry.state for job_id, entry in self.entries.items()}

    def _enqueue(self, entry: JobEntry) -> None:
        has_failed = isinstance(entry.state, Pending) and entry.state.not_before is not None
        group = 0 if has_failed else 1 if entry.attempts else 2
        entry.rank = (group, next(self._numbers))
        entry.queued_at = self._now()
        entry.overtaken = 0
        self._waiting[entry.job.job_id] = entry
        self._queue = None
