"""What the monitor knows of the declarations of jobs, and which of their changes are right.

A job that has begun is what it was declared as, until `run` was called with an option that says
otherwise; one that has not is what the job file says. What is trained is what was entered, and what
has its results is not trained again for no reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.core.job import Cancelled, Job, State
from orchestrator.core.paths import RunPaths
from tests.simulation.job_files import JobFiles, as_declared
from tests.simulation.scenario import STEPS, SimulatedJob
from tests.simulation.worker import VERSION, Worker
from tests.simulation.world import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Of one job in the ledger."""

    job: SimulatedJob
    has_begun: bool = False
    """Whether the ledger has an attempt."""
    is_done: bool = False
    """Whether it has SUCCEEDED, and has its results."""
    is_undeclared: bool = False
    """Whether it is CANCELLED as the job file does not have it."""
    is_too_large: bool = False
    """Whether it is FAILED as the machine has too little for it."""


@dataclass(slots=True, kw_only=True)
class DeclaredJobs:
    paths: RunPaths
    files: JobFiles
    originals: Mapping[str, SimulatedJob]
    jobs: dict[str, SimulatedJob]
    """All jobs as they are trained, whether they are in the ledger or not. Others see it, too."""
    by_id: dict[str, Declaration] = field(default_factory=dict)
    """Of the jobs in the ledger."""
    _entered: dict[str, SimulatedJob] = field(default_factory=dict)
    """Jobs as they were entered last."""

    # -- what is written to the ledger

    def put(self, job: Job) -> None:
        """A job is entered, PENDING and without attempts."""
        job_id = job.job_id
        entered, before = self._simulated(job), self.by_id.get(job_id)
        self._entered[job_id] = entered
        has_begun = before is not None and before.has_begun
        _claim(not has_begun, f"{job_id} is entered anew, and has begun")
        self._look_at_entry(job_id, entered)
        self._set(job_id, Declaration(job=entered))

    def updated(self, job: Job) -> None:
        """The declaration of a job is replaced, and its attempts stay."""
        before, entered = self.by_id[job.job_id], self._simulated(job)
        self._look_at_entry(job.job_id, entered)
        is_extended = _is_changed(before.job, entered)
        if is_extended:
            is_right = (
                self.files.call.on_change == "extend"
                and entered.version == before.job.version
                and entered.iterations > before.job.iterations
            )
            _claim(is_right, f"{job.job_id} is another job now, and goes on")
        is_done = before.is_done and not is_extended
        self._set(job.job_id, replace(before, job=entered, is_done=is_done))

    def deleted(self, job_id: str) -> None:
        """A job and its attempts are removed."""
        before = self.by_id.pop(job_id)
        if job_id not in self.files.call.jobs:
            _claim(not before.has_begun, f"{job_id} is removed from the ledger, and has begun")
        elif self.paths.job(job_id).root.exists():
            raise Violation(f"{job_id} is removed from the ledger, and its directory is there")
        self.jobs[job_id] = self.originals[job_id]

    def begun(self, job_id: str) -> None:
        """An attempt is entered."""
        self._set(job_id, replace(self.by_id[job_id], has_begun=True))

    def moved(self, job_id: str, before: str, state: State) -> bool:
        """A job comes to another state. Return whether the job file is the reason."""
        entry = self.by_id[job_id]
        is_undeclared = isinstance(state, Cancelled) and state.is_undeclared
        is_too_large = getattr(state, "cause", "") == "too-large"
        is_done = entry.is_done or state.name == "SUCCEEDED"
        changed = replace(
            entry, is_done=is_done, is_undeclared=is_undeclared, is_too_large=is_too_large
        )
        self._set(job_id, changed)
        if is_undeclared:
            is_declared = job_id in self.files.call.jobs
            _claim(not is_declared, f"{job_id} is declared, and CANCELLED as undeclared")
            return True
        match before, state.name:
            case "CANCELLED", "PENDING":
                return entry.is_undeclared
            case "FAILED", "FAILED":
                return entry.is_too_large and is_too_large
            case "SUCCEEDED", "PENDING":
                is_wrong = entry.is_done and self.paths.job(job_id).has_results(normalize=False)
                _claim(not is_wrong, f"{job_id} has its results, and is queued")
                self._set(job_id, replace(changed, is_done=False))
                return True
        return False

    def _look_at_entry(self, job_id: str, entered: SimulatedJob) -> None:
        declared = self.files.call.jobs.get(job_id)
        if declared is None or entered != self._expected(declared):
            raise Violation(f"{job_id} is entered as {entered}, and declared as {declared}")

    def _expected(self, declared: SimulatedJob) -> SimulatedJob:
        return as_declared(declared, self.files.call.jobs)

    def _simulated(self, job: Job) -> SimulatedJob:
        """What of ``job`` a scenario has."""
        spec, resources = job.spec, job.resources
        return replace(
            self.originals[job.job_id],
            iterations=spec.total_timesteps // STEPS,
            version=spec.env_kwargs.get(VERSION, 0),
            after=spec.after,
            ranks=resources.ranks,
            cores=resources.cores,
            memory_mib=resources.memory_mib,
            timeout_s=resources.timeout_s,
            stall_timeout_s=resources.stall_timeout_s,
            min_free_disk_mib=resources.min_free_disk_mib,
            max_retries=job.max_retries,
        )

    def _set(self, job_id: str, entry: Declaration) -> None:
        self.by_id[job_id] = entry
        self.jobs[job_id] = entry.job

    # -- what is committed

    def restore(self, before: Mapping[str, Declaration], in_ledger: Collection[str]) -> None:
        """What was not committed is gone. :param before: at the last commit."""
        kept = {job_id: before[job_id] for job_id in in_ledger if job_id in before}
        for job_id in in_ledger:  # others than the supervisor have entered these meanwhile
            if job_id not in kept and job_id in self.by_id:
                kept[job_id] = Declaration(job=self._entered[job_id])
        self.take(kept)

    def take(self, entries: Mapping[str, Declaration]) -> None:
        """The ledger has these jobs."""
        self.by_id = dict(entries)
        self.jobs.update(self.originals)
        self.jobs.update({job_id: entry.job for job_id, entry in self.by_id.items()})

    def recorded(self) -> dict[str, SimulatedJob]:
        """The jobs in the ledger, except those that are not declared any more."""
        return {
            job_id: entry.job for job_id, entry in self.by_id.items() if not entry.is_undeclared
        }

    # -- what must hold

    def queued(self, states: Mapping[str, str]) -> None:
        """The supervisor is about to launch jobs. :param states: in the ledger."""
        call = self.files.call
        for job_id, declared in call.jobs.items():
            _claim(job_id in states, f"{job_id} is declared, and not in the ledger")
            entry = self.by_id[job_id]
            _claim(not entry.is_undeclared, f"{job_id} is declared, and stays CANCELLED")
            expected = self._expected(declared)
            _claim(call.is_directory or entry.job == expected, f"{job_id} is run as {entry.job}")
            is_kept = not entry.is_done or states[job_id] == "SUCCEEDED"
            _claim(is_kept, f"{job_id} has its results, and is {states[job_id]}")
        self.take({job_id: entry for job_id, entry in self.by_id.items() if job_id in states})

    def refused(self) -> None:
        """`run` has refused changes of jobs."""
        call = self.files.call
        is_right = False
        for job_id, entry in self.by_id.items():
            if job_id in call.jobs and entry.has_begun:
                before, now = entry.job, self._expected(call.jobs[job_id])
                is_longer = before.version == now.version and before.iterations < now.iterations
                may_go_on = call.on_change == "extend" and is_longer
                is_right |= _is_changed(before, now) and not may_go_on
        is_right &= call.on_change != "restart"
        _claim(is_right, f"changes are refused, with {call.on_change}")

    def launched(self, worker: Worker) -> None:
        job_id, job = worker.job.job_id, self.jobs[worker.job.job_id]
        is_done = self.by_id[job_id].is_done
        _claim(not is_done, f"{job_id} has its results, and is trained again")
        trained = worker.spec.total_timesteps // STEPS, worker.spec.env_kwargs.get(VERSION, 0)
        _claim(trained == (job.iterations, job.version), f"{job_id} is trained as {trained}")
        _claim(job_id in self.files.call.jobs, f"{job_id} is trained, and not declared")

    def all_are_there(self, states: Mapping[str, str]) -> None:
        """A run has come to its end."""
        call = self.files.call
        missing = call.jobs.keys() - states.keys()
        _claim(not missing, f"these jobs are declared, and not in the ledger: {sorted(missing)}")
        for job_id in states.keys() - call.jobs.keys():
            is_left = states[job_id] in ("SUCCEEDED", "FAILED", "CANCELLED")
            _claim(is_left, f"{job_id} is not declared, and is {states[job_id]}")


def _is_changed(before: SimulatedJob, now: SimulatedJob) -> bool:
    """Whether it would train something else now."""
    return (before.iterations, before.version) != (now.iterations, now.version)


def _claim(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
