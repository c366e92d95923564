"""From a job that waits to an attempt that runs: a slot, a number, its directory, its workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.job import Attempt, AttemptOutcome, Cause, Failed, Job
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import Executor, Exited, Handle, Launch
from orchestrator.machine.slots import Slot, Slots
from orchestrator.supervisor import events, job_directory, retry_policy
from orchestrator.supervisor.active_attempts import ActiveAttempts
from orchestrator.supervisor.events import Live, Reporter
from orchestrator.supervisor.job_queue import Lack
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.recorder import Recorder


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Times are monotonic seconds."""

    paths: RunPaths
    roster: JobTable
    running: ActiveAttempts
    recorder: Recorder
    executor: Executor
    slots: Slots
    reporter: Reporter
    now: Callable[[], float]
    available_memory_mib: Callable[[], int]
    failed: Callable[[Live, Exited], None]
    """Told of an attempt that could not be launched, as of one that has ended."""
    _in_want: bool = field(default=False, init=False)
    """Whether nothing runs for want of a node with room, and the user knows."""

    def launch_what_fits(self) -> None:
        """Each that there is room for, in their order as far as room allows."""
        if len(self.running) >= self.slots.lanes:
            return
        memory_mib: list[int] = []  # asked for once, when the first wants to know

        def try_launch(job_id: str) -> Lack | None:
            job = self.roster.job(job_id)
            wanted = job.resources
            slot = self.slots.acquire(
                wanted.all_cores, wanted.all_gpus, memory_mib=wanted.all_memory_mib, ranks=wanted.ranks
            )
            if slot is None:
                return self._lack(job)
            if self.running:
                if not memory_mib:
                    memory_mib.append(self.available_memory_mib())
                if not retry_policy.memory_admits(
                    job.resources.all_memory_mib, memory_mib[0], self.running.promised_mib
                ):
                    self.slots.release(slot)
                    return "memory"
            self._launch(job, slot)
            return None

        self.roster.waiting.start(self.now(), try_launch, at_most=self.slots.lanes)

    def _lack(self, job: Job) -> Lack | None:
        """Why there is no slot for ``job``. One that not even an idle machine has a slot for is given up."""
        wanted = job.resources
        asked = f"{wanted.all_cores} cores and {wanted.all_gpus} GPUs"
        if not self.running and self.slots.grows:
            if not self._in_want:
                self._in_want = True
                text = f"{job.job_id} and whatever is like it waits for a node with room: {asked}"
                self.reporter.event("waiting", f"{text}, {wanted.all_memory_mib} MiB", job_id=job.job_id)
        elif not self.running:
            text = f"asks for {asked}, which this machine can never give; see `doctor`"
            self.roster.move(job.job_id, Failed(cause=Cause.LAUNCH, message=text))
            self.reporter.event("failed", f"{job.job_id} failed: {text}", job_id=job.job_id, reason=text)
            return None
        if wanted.gpus and (slot := self.slots.acquire(wanted.all_cores)) is not None:
            self.slots.release(slot)
            return "gpus"
        return "cores"

    def _launch(self, job: Job, slot: Slot) -> None:
        job_id = job.job_id
        number = job_directory.free_number(self.paths.job(job_id), self.roster.next_number(job_id))
        queue_s = self.now() - self.roster.waiting.since(job_id)
        problem: OSError | None = None
        try:
            handle = self._submit(job, number, slot)
        except OSError as error:
            problem = error
            handle = Handle(job_id, number)
        # First of all, so that whatever happens now it is known to run.
        now = self.now()
        live = Live(job=job, handle=handle, slot=slot, is_placed=not slot.rank_slots, started=now, last_progress=now)
        self._in_want = False
        self.running.add(live)
        self.running.look_at(live, retry_policy.next_look(live.watched()))
        attempt = Attempt(
            job_id=job_id,
            number=number,
            cpus=slot.cpus,
            gpus=slot.gpus,
            pid=handle.pid,
            pid_start=handle.pid_start,
            started_at=time.time(),
        )
        self.roster.launched(attempt)
        self.recorder.launched(attempt, queue_s=queue_s)
        if problem is None and live.is_placed:
            kind, message, facts = events.told_launch(live, handle.pid)
            self.reporter.event(kind, message, **facts)
        elif problem is not None:
            cause = Cause.DISK_FULL if problem.errno in DISK_FULL_ERRNOS else Cause.LAUNCH
            live.asked = AttemptOutcome(cause=cause, message=f"could not be launched: {problem}")
            self.failed(live, Exited(handle, None))

    def _submit(self, job: Job, number: int, slot: Slot) -> Handle:
        paths = self.paths.job(job.job_id)
        job_directory.prepare(paths, number, job.spec)
        return self.executor.submit(
            Launch(
                job_id=job.job_id,
                number=number,
                job_dir=paths.root,
                cpus=slot.cpus,
                gpus=slot.gpus,
                rank_slots=slot.rank_slots,
                threads=job.resources.threads,
                ranks=job.resources.ranks,
            )
        )
