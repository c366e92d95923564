"""Executors whose attempts have slots: on this machine, on nodes of Ray, in pilots of Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.job import Job
from orchestrator.executors import start_choice
from orchestrator.executors.executor import AttemptId, Event, Exited, Placed, Sampled, Shortage
from orchestrator.executors.launcher import Launch, Launcher
from orchestrator.executors.start_choice import StartChoice
from orchestrator.machine import imported_code
from orchestrator.machine.slots import Slot, Slots


@dataclass(slots=True, kw_only=True, eq=False)
class SlottedAttempt:
    """A running attempt with its slot."""

    id: AttemptId
    job: Job
    slot: Slot
    is_ending: bool = False
    """Whether it was asked to end."""
    rss_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room for an attempt that is submitted next."""

    job: Job
    slot: Slot
    start: StartChoice


class SlottedExecutor:
    """What executors have in common that give an attempt a slot, and let a launcher start it there.
    See :class:`.Executor`.
    """

    def __init__(self, slots: Slots, launcher: Launcher) -> None:
        self._slots = slots
        self._launcher = launcher
        self._reserved: dict[str, Reservation] = {}
        """By ``job_id``."""
        self._running: dict[AttemptId, SlottedAttempt] = {}
        self._has_forked = False

    @property
    def never_forks(self) -> str:
        return self._launcher.never_forks

    @property
    def jobs_at_once(self) -> int:
        return self._slots.jobs_at_once

    def resize(self, jobs_at_once: int) -> int:
        return self._slots.resize(jobs_at_once)

    def has_memory(self, job: Job) -> bool:
        """Return whether there is enough memory for a further job, as far as slots do not check it."""
        return True

    def expect(self, jobs: Sequence[Job]) -> None:
        forkable = [job for job in jobs if start_choice.is_forkable(job)]
        for job in forkable:
            start = start_choice.choose(job, due=len(forkable), never_forks=self.never_forks)
            if start.is_forked:
                self._launcher.prepare_to_fork()
                return

    def reserve(self, job: Job, *, waiting: int) -> Shortage | None:
        start = start_choice.choose(
            job, due=waiting, never_forks=self.never_forks, has_forked=self._has_forked
        )
        if start.is_forked and not self._launcher.prepare_to_fork():
            return "template"
        if not self.has_memory(job):
            return "room"
        slots = self._slots
        resources = job.resources
        cores = resources.all_cores
        gpus = resources.all_gpus
        memory_mib = resources.all_memory_mib
        ranks = resources.ranks
        slot = slots.acquire(cores, gpus, memory_mib=memory_mib, ranks=ranks, job_id=job.job_id)
        if slot is not None:
            self._reserved[job.job_id] = Reservation(job=job, slot=slot, start=start)
            return None
        if not slots.fits_ever(cores, gpus, memory_mib=memory_mib, ranks=ranks):
            return "node" if slots.grows else "never"
        return "gpus" if gpus and slots.has_cores(cores, ranks=ranks) else "room"

    def submit(self, job: Job, number: int, job_dir: Path) -> None:
        reservation = self._reserved[job.job_id]
        try:
            id_ = self._launcher.submit(_launch_of(reservation, number, job_dir))
        except BaseException:
            self.release(job)
            raise
        del self._reserved[job.job_id]
        self._has_forked |= reservation.start.is_forked
        self._running[id_] = SlottedAttempt(id=id_, job=job, slot=reservation.slot)

    def release(self, job: Job) -> None:
        reservation = self._reserved.pop(job.job_id, None)
        if reservation is not None:
            self._slots.release(reservation.slot)

    def poll(self, timeout_s: float) -> Sequence[Event]:
        found = self._launcher.poll(timeout_s)
        events = [self._take(event) for event in found if event.attempt in self._running]
        self._slots.tick()
        return events

    def _take(self, event: Event) -> Event:
        """Note what happens to an attempt. Return the event with what its slot says."""
        attempt = self._running[event.attempt]
        match event:
            case Placed():
                slot = attempt.slot
                return replace(
                    event, shares_with=slot.shares_with, expected_share=slot.expected_share
                )
            case Sampled(rss_mib=rss_mib):
                attempt.rss_mib = rss_mib
            case Exited():
                del self._running[event.attempt]
                self._slots.release(attempt.slot)
        return event

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        if (found := self._running.get(attempt)) is not None:
            found.is_ending = True
            self._launcher.cancel(attempt, kill=kill)

    def checkpoint(self, attempt: AttemptId) -> None:
        self._launcher.checkpoint(attempt)

    def close(self) -> None:
        self._launcher.close()
        for attempt in self._running.values():
            self._slots.release(attempt.slot)
        for reservation in self._reserved.values():
            self._slots.release(reservation.slot)
        self._running.clear()
        self._reserved.clear()


def _launch_of(reservation: Reservation, number: int, job_dir: Path) -> Launch:
    job = reservation.job
    slot = reservation.slot
    start = reservation.start
    resources = job.resources
    is_fork_refused = resources.start == "fork" and not start.is_forked
    return Launch(
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
