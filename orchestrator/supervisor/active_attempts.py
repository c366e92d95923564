"""The attempts that run now, sums over them, and when each is next checked against its limits.

One turn of the supervisor's loop costs the same however many attempts run: every event updates the
sums, and only attempts whose check is due are visited.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.job import Attempt, AttemptOutcome, Cause, Job
from orchestrator.core.messages import Progress
from orchestrator.executors.base import Handle, Placed
from orchestrator.ledger.live_facts import Phase
from orchestrator.machine.slots import Slot, part_of_rank
from orchestrator.supervisor import retry_policy

LARGEST = 1e12
"""Above it a rate counts as so much; see :func:`_thousandths`."""
MOST_COMPETITORS = 8
"""So many are remembered of an attempt."""
MILLI = 1000
"""Rates are summed as whole thousandths: unlike floats, these add up to zero when every attempt is
removed again."""

OUTRANKS: Mapping[Cause | None, tuple[Cause, ...]] = {
    Cause.INTERRUPTED: (Cause.CANCELLED, Cause.PAUSED),
    Cause.PAUSED: (Cause.CANCELLED,),
    Cause.STALLED: (Cause.CANCELLED, Cause.PAUSED),
    Cause.TIMEOUT: (Cause.CANCELLED,),
}
"""The first reason to end an attempt counts, except that a job which is paused or cancelled is
neither resumed after a stop nor retried after a stall, and that one which is cancelled after its
time is over has not failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The end of an attempt that did not end by itself in time."""

    after_s: float
    """How long after it was asked to end."""
    resumes_from: int
    """env_steps of its newest checkpoint."""


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveAttempt:
    """One running attempt. Only :class:`ActiveAttempts` changes it. Times are monotonic seconds."""

    job: Job
    handle: Handle
    slot: Slot
    started: float
    last_progress: float
    progress: Progress | None = None
    rss_mib: float = 0.0
    max_rss_mib: float = 0.0
    end_reason: AttemptOutcome | None = None
    """Why the supervisor asked it to end; None while it has not."""
    held: AttemptOutcome | None = None
    """That its user has cancelled or paused its job, whatever else it was asked to end for."""
    asked_at: float | None = None
    """When the supervisor first asked it to end."""
    kill_at: float | None = None
    """When it is killed if it still runs then."""
    kill: Kill | None = None
    """None unless it was killed because it did not end by itself in time."""
    left_out_s: float = 0.0
    """Time since it has started that its limits leave out."""
    iteration_since: float | None = None
    """When its current iteration began; None outside of training."""
    is_placed: bool = True
    """Whether it runs on its node. Until then no time limit applies."""
    node: str | None = None
    competitors: tuple[str, ...] = ()
    """Who else uses its CPUs, or has used them, for people."""
    check_at: float = math.inf
    """When it is next checked against its limits."""

    @property
    def usage(self) -> retry_policy.AttemptUsage:
        """What it has used of its limits."""
        return retry_policy.AttemptUsage(
            resources=self.job.resources,
            started=self.started + self.left_out_s if self.is_placed else math.inf,
            last_progress=self.last_progress if self.is_placed else math.inf,
            rss_mib=self.rss_mib,
        )

    @property
    def phase(self) -> Phase:
        """What it does, as far as the supervisor knows."""
        if self.end_reason is not None:
            return "stopping"
        return "starting" if self.progress is None else self.progress.phase

    def row_at_launch(self) -> Attempt:
        """Its row in the ledger, as it starts now."""
        return Attempt(
            job_id=self.job.job_id,
            number=self.handle.number,
            cpus=self.slot.cpus,
            gpus=self.slot.gpus,
            pid=self.handle.pid,
            pid_start=self.handle.pid_start,
            started_at=time.time(),
        )

    @property
    def where(self) -> str:
        """Its CPUs as ``"0,1"``, after the node's name where there are several machines."""
        cpus = cpus_by_rank(self.slot.cpus, self.job.resources.ranks)
        return cpus if self.node is None else f"{self.node} {cpus}"


def cpus_by_rank(cpus: Sequence[int], ranks: int) -> str:
    """``"0,1"``; with several ranks ``"0,1 | 2,3"``."""
    by_rank = [part_of_rank(cpus, rank, ranks) for rank in range(ranks)]
    return " | ".join(",".join(map(str, its_cpus)) for its_cpus in by_rank)


@dataclass(slots=True, kw_only=True)
class ActiveAttempts:
    """Every running attempt, at most one per job."""

    promised_mib: int = 0
    """Memory that they have been granted and do not hold yet."""
    steps_to_go: int = 0
    """env_steps to the ends of the attempts."""
    _rate: int = 0
    """Thousandths of env_steps per second."""
    _busy: int = 0
    """Thousandths of cores."""
    _by_job: dict[str, ActiveAttempt] = field(default_factory=dict)
    _checks: list[tuple[float, int, ActiveAttempt]] = field(default_factory=list)
    """A heap. An entry is valid while its attempt runs and its time equals the attempt's
    ``check_at``."""
    _ticket: Iterator[int] = field(default_factory=itertools.count)
    """Orders entries of the same time, since attempts have no order."""

    def __len__(self) -> int:
        return len(self._by_job)

    def __iter__(self) -> Iterator[ActiveAttempt]:
        return iter(self._by_job.values())

    @property
    def all(self) -> Collection[ActiveAttempt]:
        return self._by_job.values()

    @property
    def env_steps_per_s(self) -> float:
        return self._rate / MILLI

    @property
    def cores_busy(self) -> float:
        return self._busy / MILLI

    def of_job(self, job_id: str) -> ActiveAttempt | None:
        return self._by_job.get(job_id)

    def get(self, handle: Handle) -> ActiveAttempt | None:
        """The attempt with this handle; None where it is over, also if its job runs anew."""
        attempt = self._by_job.get(handle.job_id)
        return attempt if attempt is not None and attempt.handle == handle else None

    def add(self, attempt: ActiveAttempt) -> None:
        self._by_job[attempt.job.job_id] = attempt
        self._count(attempt, 1)
        self.check_at(attempt, retry_policy.next_limit_at(attempt.usage))

    def remove(self, attempt: ActiveAttempt) -> None:
        del self._by_job[attempt.job.job_id]
        self._count(attempt, -1)

    def note_placement(self, attempt: ActiveAttempt, event: Placed, now: float) -> None:
        """It has started. Its time limits count from now: it may have waited for its node."""
        attempt.is_placed = True
        attempt.node = event.node
        attempt.started = now
        attempt.left_out_s = 0.0
        attempt.last_progress = now
        attempt.slot = replace(attempt.slot, cpus=event.cpus, gpus=event.gpus)
        self.check_at(attempt, retry_policy.next_limit_at(attempt.usage))

    def leave_out(self, seconds: float, now: float) -> None:
        """Leave a time until ``now`` out of the time limits, the silence and the deadlines of all."""

        def passed_since(begin: float) -> float:
            return min(seconds, max(0.0, now - begin))

        for attempt in self:
            if attempt.kill_at is not None and attempt.asked_at is not None:
                attempt.kill_at += passed_since(attempt.asked_at)
            if attempt.iteration_since is not None:
                attempt.iteration_since += passed_since(attempt.iteration_since)
            attempt.left_out_s += passed_since(attempt.started)
            attempt.last_progress = min(now, attempt.last_progress + seconds)
            self.check_at(attempt, retry_policy.next_limit_at(attempt.usage))

    def note_progress(self, attempt: ActiveAttempt, progress: Progress, now: float) -> None:
        before = attempt.progress
        is_same_iteration = (
            before is not None
            and before.phase == progress.phase
            and before.iteration == progress.iteration
        )
        if progress.phase != "training":
            attempt.iteration_since = None
        elif not is_same_iteration:
            attempt.iteration_since = now
        self._count(attempt, -1)
        attempt.progress = progress
        attempt.last_progress = now
        self._count(attempt, 1)

    def note_memory(self, attempt: ActiveAttempt, rss_mib: float, now: float) -> None:
        self._count(attempt, -1)
        attempt.rss_mib = rss_mib
        attempt.max_rss_mib = max(attempt.max_rss_mib, rss_mib)
        self._count(attempt, 1)
        if rss_mib > attempt.job.resources.all_memory_mib:
            self.check_at(attempt, now)

    def note_move(self, attempt: ActiveAttempt, slot: Slot) -> None:
        attempt.slot = slot

    def add_competitors(self, attempt: ActiveAttempt, names: Sequence[str]) -> tuple[str, ...]:
        """Others use the CPUs of ``attempt``. Returns those that were not known."""
        room = MOST_COMPETITORS - len(attempt.competitors)
        new = tuple(name for name in names if name not in attempt.competitors)[:room]
        attempt.competitors += new
        return new

    def note_end_request(
        self, attempt: ActiveAttempt, reason: AttemptOutcome, now: float, deadline: float
    ) -> float:
        """Note why ``attempt`` is to exit, and until when it may; returns the earliest of its
        deadlines.
        """
        if attempt.asked_at is None:
            attempt.asked_at = now
        before = attempt.end_reason
        if before is None or reason.cause in OUTRANKS.get(before.cause, ()):
            attempt.end_reason = reason
        if reason.cause is Cause.CANCELLED or (reason.cause is Cause.PAUSED and not attempt.held):
            attempt.held = reason
        attempt.kill_at = deadline if attempt.kill_at is None else min(deadline, attempt.kill_at)
        self.check_at(attempt, attempt.kill_at)
        return attempt.kill_at

    def note_resume(self, attempt: ActiveAttempt) -> None:
        """Note that the user wants the job, which was paused, to go on."""
        attempt.held = None

    def note_kill(self, attempt: ActiveAttempt, resumes_from: int, now: float) -> None:
        assert attempt.asked_at is not None
        attempt.kill = Kill(after_s=now - attempt.asked_at, resumes_from=resumes_from)

    def _count(self, attempt: ActiveAttempt, sign: int) -> None:
        """Add what is known of ``attempt`` to the sums (1), or take it away (-1)."""
        progress = attempt.progress
        steps = progress.env_steps if progress is not None else 0
        self.promised_mib += sign * retry_policy.promised_mib(
            attempt.job.resources, attempt.rss_mib
        )
        self.steps_to_go += sign * max(0, attempt.job.spec.attempt_end - steps)
        if progress is not None:
            self._rate += sign * _thousandths(progress.env_steps_per_s)
            # It is that of rank 0; the others do the same.
            self._busy += sign * _thousandths(progress.cpu_share) * attempt.job.resources.ranks

    # -- checks against limits

    def check_at(self, attempt: ActiveAttempt, when: float) -> None:
        """Make ``attempt`` :meth:`due` at ``when`` at the latest."""
        if when < attempt.check_at:
            attempt.check_at = when
            heapq.heappush(self._checks, (when, next(self._ticket), attempt))

    def due(self, now: float) -> list[ActiveAttempt]:
        """Attempts whose check is due. None of them is due again before the next
        :meth:`check_at`.
        """
        attempts = []
        while self._checks and self._checks[0][0] <= now:
            when, _, attempt = heapq.heappop(self._checks)
            if attempt.check_at == when and self._by_job.get(attempt.job.job_id) is attempt:
                attempt.check_at = math.inf
                attempts.append(attempt)
        return attempts


def _thousandths(value: float | None) -> int:
    """Limited, since a worker may report any number: a thousand of the largest ones would be
    infinite.
    """
    return round(MILLI * max(-LARGEST, min(value or 0.0, LARGEST)))
