"""Runs attempts with a backend: its slots, its executor, and on this machine moves between CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.errors import Problem
from orchestrator.core.job import AttemptOutcome, Job
from orchestrator.executors import base
from orchestrator.machine import imported_code
from orchestrator.machine.slots import Slot
from orchestrator.server.cpu_mover import CpuMover
from orchestrator.server.executor import (
    AttemptId,
    Contended,
    Event,
    Exited,
    Moved,
    Placed,
    Progressed,
    Sampled,
    Shortage,
)
from orchestrator.supervisor import retry_policy, start_choice


@dataclass(slots=True, kw_only=True, eq=False)
class _SubmittedAttempt:
    """A running attempt with its slot."""

    id: AttemptId
    job: Job
    handle: base.Handle
    slot: Slot
    end_reason: AttemptOutcome | None = None
    """Set once it was asked to end: it is not moved any more."""
    rss_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reservation:
    """Room for an attempt that is submitted next."""

    job: Job
    slot: Slot
    start: start_choice.StartChoice


@dataclass(slots=True, kw_only=True)
class BackendExecutor:
    """See :class:`orchestrator.server.executor.Executor`."""

    backend: base.Backend
    now: Callable[[], float]
    _reserved: dict[str, _Reservation] = field(default_factory=dict, init=False)
    """By ``job_id``."""
    _by_id: dict[AttemptId, _SubmittedAttempt] = field(default_factory=dict, init=False)
    _by_handle: dict[base.Handle, _SubmittedAttempt] = field(default_factory=dict, init=False)
    _placed: list[Event] = field(default_factory=list, init=False)
    """Reported by the next :meth:`poll`."""
    _has_forked: bool = field(default=False, init=False)
    _mover: CpuMover | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.backend.cpu_moves is not None:
            moves = self.backend.cpu_moves
            self._mover = CpuMover(moves=moves, now=self.now)

    @property
    def jobs_at_once(self) -> int:
        return self.backend.slots.jobs_at_once

    def resize(self, jobs_at_once: int) -> int:
        return self.backend.slots.resize(jobs_at_once)

    def problems(self, job: Job) -> Sequence[Problem]:
        return self.backend.problems(job)

    def reserve(self, job: Job, *, waiting: int) -> Shortage | None:
        start = start_choice.choose(
            job,
            due=waiting,
            never_forks=self.backend.executor.never_forks,
            has_forked=self._has_forked,
        )
        if start.is_forked and not self.backend.executor.prepare_to_fork():
            return "template"
        resources = job.resources
        has_memory = not (self._by_id or self._reserved) or retry_policy.memory_admits(
            resources.all_memory_mib, self.backend.available_memory_mib(), self._promised_mib()
        )
        if not has_memory:
            return "room"
        slots = self.backend.slots
        asked = (resources.all_cores, resources.all_gpus)
        slot = slots.acquire(
            *asked, memory_mib=resources.all_memory_mib, ranks=resources.ranks, job_id=job.job_id
        )
        if slot is not None:
            self._reserved[job.job_id] = _Reservation(job=job, slot=slot, start=start)
            return None
        if not slots.fits_ever(*asked, memory_mib=resources.all_memory_mib, ranks=resources.ranks):
            return "node" if slots.grows else "never"
        lacks_gpus_alone = resources.gpus and slots.has_cores(
            resources.all_cores, ranks=resources.ranks
        )
        return "gpus" if lacks_gpus_alone else "room"

    def _promised_mib(self) -> int:
        """Return the memory that attempts were granted and do not hold yet."""
        running = sum(
            retry_policy.promised_mib(attempt.job.resources, attempt.rss_mib)
            for attempt in self._by_id.values()
        )
        reserved = [reservation.job.resources for reservation in self._reserved.values()]
        return running + sum(retry_policy.promised_mib(resources, 0.0) for resources in reserved)

    def submit(self, job: Job, number: int, job_dir: Path) -> None:
        reservation = self._reserved[job.job_id]
        slot = reservation.slot
        try:
            handle = self.backend.executor.submit(_launch_of(reservation, number, job_dir))
        except BaseException:
            self.release(job)
            raise
        del self._reserved[job.job_id]
        self._has_forked |= reservation.start.is_forked
        id_ = AttemptId(job.job_id, number)
        attempt = _SubmittedAttempt(id=id_, job=job, handle=handle, slot=slot)
        self._by_id[id_] = attempt
        self._by_handle[handle] = attempt
        if slot.rank_slots:
            return  # its machine says where it runs
        self._placed.append(
            Placed(
                attempt=id_,
                cpus=slot.cpus,
                gpus=slot.gpus,
                pid=handle.pid,
                pid_start=handle.pid_start,
                shares_with=slot.shares_with,
                expected_share=slot.expected_share,
            )
        )

    def release(self, job: Job) -> None:
        reservation = self._reserved.pop(job.job_id, None)
        if reservation is not None:
            self.backend.slots.release(reservation.slot)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        events = self._placed
        self._placed = []
        for event in self.backend.executor.poll(0.0 if events else timeout_s):
            attempt = self._by_handle.get(event.handle)
            if attempt is None:  # it is over
                continue
            match event:
                case base.Placed():
                    events.append(
                        Placed(
                            attempt=attempt.id,
                            cpus=event.cpus,
                            gpus=event.gpus,
                            node=event.node,
                            pid=event.pid,
                            pid_start=event.pid_start,
                        )
                    )
                case base.Progressed(progress=progress):
                    events.append(Progressed(attempt=attempt.id, progress=progress))
                case base.Sampled(rss_mib=rss_mib):
                    attempt.rss_mib = rss_mib
                    if self._mover is not None:
                        self._mover.note_waiting(attempt, event)
                    events.append(Sampled(attempt=attempt.id, rss_mib=rss_mib))
                case base.Exited():
                    self._forget(attempt)
                    events.append(
                        Exited(
                            attempt=attempt.id,
                            returncode=event.returncode,
                            oom_killed=event.oom_killed,
                            rank=event.rank,
                            lost=event.lost,
                        )
                    )
        self.backend.slots.tick()
        if self._mover is not None:
            events += self._moves(self._mover)
        return events

    def _moves(self, mover: CpuMover) -> list[Event]:
        """Move attempts whose CPUs others have come to use."""
        events: list[Event] = []
        for waiting, names in mover.look_for_competitors():
            events.append(Contended(attempt=waiting.id, names=names))
        for move in mover.tick():
            events.append(
                Moved(
                    attempt=move.attempt.id,
                    before=move.before.cpus,
                    after=move.after.cpus,
                    because_of=move.because_of,
                    wait_share=move.wait_share,
                )
            )
        return events

    def _forget(self, attempt: _SubmittedAttempt) -> None:
        del self._by_id[attempt.id]
        del self._by_handle[attempt.handle]
        if self._mover is not None:
            self._mover.forget(attempt)
        self.backend.slots.release(attempt.slot)

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        if (found := self._by_id.get(attempt)) is not None:
            found.end_reason = AttemptOutcome(cause=None)
            self.backend.executor.cancel(found.handle, kill=kill)

    def checkpoint(self, attempt: AttemptId) -> None:
        if (found := self._by_id.get(attempt)) is not None:
            self.backend.executor.checkpoint(found.handle)

    def close(self) -> None:
        self.backend.executor.close()
        for attempt in list(self._by_id.values()):
            self._forget(attempt)
        self._placed.clear()
        self.backend.close()


def _launch_of(reservation: _Reservation, number: int, job_dir: Path) -> base.Launch:
    job = reservation.job
    slot = reservation.slot
    start = reservation.start
    resources = job.resources
    is_fork_refused = resources.start == "fork" and not start.is_forked
    return base.Launch(
        job_id=job.job_id,
        number=number,
        job_dir=job_dir,
        cpus=slot.cpus,
        gpus=slot.gpus,
        rank_slots=slot.rank_slots,
        threads=resources.threads,
        ranks=resources.ranks,
        work=job.work,
        log_mib=resources.log_mib,
        nice=resources.nice,
        gpu_share=resources.gpu_share,
        code_folder=imported_code.code_folder(job.spec),
        code_name=imported_code.code_name(job.spec),
        fork=start.is_forked,
        why_exec=start.why if is_fork_refused else "",
    )
