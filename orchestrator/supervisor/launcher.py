"""Launches one attempt of a job: takes a slot, prepares the job directory, and submits it to the
executor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.core.errors import OrchestratorError, is_disk_full
from orchestrator.core.job import AttemptOutcome, Cause, Job
from orchestrator.executors.base import Executor, Handle, Launch, amounts
from orchestrator.machine import imported_code
from orchestrator.machine.slots import Slot, Slots
from orchestrator.supervisor import job_directory, retry_policy, start_choice
from orchestrator.supervisor.active_attempts import ActiveAttempt, ActiveAttempts
from orchestrator.supervisor.disk_admission import DiskAdmission
from orchestrator.supervisor.job_directory import RobotAlteredError, RobotCopies
from orchestrator.supervisor.job_queue import Shortage
from orchestrator.supervisor.job_table import JobTable
from orchestrator.supervisor.start_choice import StartChoice


@dataclass(frozen=True, slots=True)
class Launched:
    """The attempt has a slot and runs, or waits for its node where :attr:`ActiveAttempt.is_placed`
    is False.
    """

    attempt: ActiveAttempt


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The attempt has a slot, but could not be started."""

    attempt: ActiveAttempt
    outcome: AttemptOutcome
    error: Exception


@dataclass(slots=True, kw_only=True)
class Launcher:
    """Changes neither job nor ledger: the supervisor acts on the result."""

    jobs: JobTable
    active: ActiveAttempts
    executor: Executor
    slots: Slots
    robots: RobotCopies
    now: Callable[[], float]
    disk: DiskAdmission = field(init=False)
    awaits_template: bool = field(default=False, init=False)
    """Whether the job that was offered last waits for the process that its worker is forked
    from."""
    _has_forked: bool = field(default=False, init=False)
    """Whether the executor has taken an attempt that it is to fork, so that it has a template
    process."""

    def __post_init__(self) -> None:
        root = self.robots.paths.root
        reporter = self.robots.reporter
        asked = self.jobs.queue.free_disk_mib
        self.disk = DiskAdmission(root=root, reporter=reporter, now=self.now, asked=asked)

    def launch(
        self, job: Job, available_memory_mib: Callable[[], int]
    ) -> Launched | LaunchFailed | Shortage:
        """A shortage: there is no room now, and nothing was done."""
        if not self.disk.admit(job):
            return "disk"
        start = start_choice.choose(
            job,
            due=self.jobs.queue.forkable,
            never_forks=self.executor.never_forks,
            has_forked=self._has_forked,
        )
        self.awaits_template = start.is_forked and not self.executor.prepare_to_fork()
        if self.awaits_template:
            return "template"
        slot = self._acquire(job, available_memory_mib)
        if not isinstance(slot, Slot):
            return slot
        return self._start(job, slot, start)

    def _start(self, job: Job, slot: Slot, start: StartChoice) -> Launched | LaunchFailed:
        """Start the next attempt of ``job`` in its slot."""
        number = self.jobs.next_number(job.job_id)
        try:
            number = job_directory.free_number(self.robots.paths.job(job.job_id), number)
            self.robots.ensure_intact(job)
            handle = self._submit(job, number, slot, start)
        except OrchestratorError:  # not of this job
            raise
        except Exception as error:  # of this job alone
            attempt = self._attempt(job, Handle(job.job_id, number), slot)
            return LaunchFailed(attempt, _outcome(error), error)
        self._has_forked |= start.is_forked
        return Launched(self._attempt(job, handle, slot))

    def _attempt(self, job: Job, handle: Handle, slot: Slot) -> ActiveAttempt:
        now = self.now()
        is_placed = not slot.rank_slots
        return ActiveAttempt(
            job=job, handle=handle, slot=slot, is_placed=is_placed, started=now, last_progress=now
        )

    def _submit(self, job: Job, number: int, slot: Slot, start: StartChoice) -> Handle:
        paths = self.robots.paths.job(job.job_id)
        job_directory.prepare(paths, number, job.spec)
        is_fork_refused = job.resources.start == "fork" and not start.is_forked
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
                work=job.work,
                log_mib=job.resources.log_mib,
                nice=job.resources.nice,
                gpu_share=job.resources.gpu_share,
                code_folder=imported_code.code_folder(job.spec),
                code_name=imported_code.code_name(job.spec),
                fork=start.is_forked,
                why_exec=start.why if is_fork_refused else "",
            )
        )

    def _acquire(self, job: Job, available_memory_mib: Callable[[], int]) -> Slot | Shortage:
        """A slot for the job, or of what there is too little now."""
        resources = job.resources
        cores = resources.all_cores
        gpus = resources.all_gpus
        memory_mib = resources.all_memory_mib
        ranks = resources.ranks
        # Before a slot is taken, which other runs see at once.
        has_memory = not self.active or retry_policy.memory_admits(
            memory_mib, available_memory_mib(), self.active.promised_mib
        )
        if has_memory:
            slot = self.slots.acquire(
                cores, gpus, memory_mib=memory_mib, ranks=ranks, job_id=job.job_id
            )
            if slot is not None:
                return slot
        if not self.slots.fits_ever(cores, gpus, memory_mib=memory_mib, ranks=ranks):
            return "machine"
        if not has_memory:
            return "memory"
        return "gpus" if gpus and self.slots.has_cores(cores, ranks=ranks) else "cores"


def _outcome(error: Exception) -> AttemptOutcome:
    """The outcome of an attempt that could not be started."""
    if isinstance(error, RobotAlteredError):
        return AttemptOutcome(cause=Cause.ERROR, message=str(error))
    is_full = is_disk_full(error)
    what = str(error) if isinstance(error, OSError) else repr(error)
    return AttemptOutcome(
        cause=Cause.DISK_FULL if is_full else Cause.LAUNCH,
        message=f"could not be launched: {what}",
    )


def demand_text(job: Job) -> str:
    """What ``job`` asks for, in words."""
    return amounts(job.resources.all_cores, job.resources.all_gpus, job.resources.all_memory_mib)
