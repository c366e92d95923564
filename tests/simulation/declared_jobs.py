"""What the monitor knows of the declarations of jobs, and which of their changes are right.

A job that has begun is what it was declared as, until `run` was called with an option that says
otherwise; one that has not is what the job file says. What is trained is what was entered, and what
has its results is not trained again for no reason.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.core.job import Cancelled, Job, State
from orchestrator.core.paths import RunPaths
from tests.simulation import policies
from tests.simulation.job_files import JobFiles, as_declared
from tests.simulation.robots import Robots
from tests.simulation.scenario import STEPS, SimulatedJob
from tests.simulation.worker import INVALID, VERSION, Worker
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
    """Whether it is FAILED as the machines had too little for it."""


@dataclass(slots=True, kw_only=True)
class DeclaredJobs:
    paths: RunPaths
    files: JobFiles
    originals: Mapping[str, SimulatedJob]
    jobs: dict[str, SimulatedJob]
    """All jobs as they are trained, whether they are in the ledger or not. Others see it, too."""
    by_id: dict[str, Declaration] = field(default_factory=dict)
    """Of the jobs in the ledger."""
    robots: Robots
    _entered: dict[str, SimulatedJob] = field(default_factory=dict)
    """Jobs as they were entered last."""
    _entered_robots: dict[str, int] = field(default_factory=dict)
    """Contents of the robots of the jobs that are entered next."""
    _lost: Mapping[str, Declaration] | None = None
    """While a ledger is made from the directories of jobs: what was in the one before."""

    @property
    def is_rebuilding(self) -> bool:
        """Whether a ledger is being made from the directories of jobs."""
        return self._lost is not None

    # -- what is written to the ledger

    def with_robot(self, job: Job, found: str | None) -> None:
        """The robot of the job that is entered next has this hash; one that is declared and invalid
        has none. A job that is entered from its directory has the hash that is kept there, whatever
        is declared now.
        """
        job_id, declared = job.job_id, self.files.call.jobs.get(job.job_id)
        if declared is not None and declared.is_invalid and not self.is_rebuilding:
            self._entered_robots[job_id] = declared.robot
        else:
            self._entered_robots[job_id] = self.robots.entered(self.originals[job_id], found)

    def put(self, job: Job) -> None:
        """A job is entered, PENDING and without attempts."""
        job_id = job.job_id
        entered, before = self._simulated(job), self.by_id.get(job_id)
        self._entered[job_id] = entered
        if self._lost is not None:
            lost = self._lost.get(job_id)
            was_done = lost is not None and lost.is_done and _decides(lost.job) == _decides(entered)
            # Its user may have removed them.
            was_done = was_done and self.paths.job(job_id).has_results(normalize=False)
            entry = Declaration(job=entered, is_done=was_done)
        else:
            has_begun = before is not None and before.has_begun
            _claim(not has_begun, f"{job_id} is entered anew, and has begun")
            self._look_at_entry(job_id, entered)
            entry = Declaration(job=entered)
        self._set(job_id, entry)

    def updated(self, job: Job) -> None:
        """The declaration of a job is replaced, and its attempts stay."""
        job_id = job.job_id
        before = self.by_id[job_id]
        entered = self._simulated(job)
        is_as_far = entered.pause_at == before.job.pause_at
        _claim(is_as_far, f"{job_id} pauses at {entered.pause_at}, and was promoted")
        self._look_at_entry(job_id, replace(entered, pause_at=self.originals[job_id].pause_at))
        is_extended = _decides(entered) != _decides(before.job)
        if is_extended:
            is_right = (
                self.files.call.on_change == "extend"
                and _decides(entered)[1:] == _decides(before.job)[1:]
                and entered.iterations > before.job.iterations
            )
            _claim(is_right, f"{job_id} is another job now, and goes on")
        self._set(job_id, replace(before, job=entered, is_done=before.is_done and not is_extended))

    def respecified(self, job: Job) -> None:
        """Values of a job are replaced that decide no result."""
        before, entered = self.by_id[job.job_id], self._simulated(job)
        is_same = replace(entered, pause_at=None) == replace(before.job, pause_at=None)
        _claim(is_same, f"{job.job_id} is another job now: {entered}")
        self._set(job.job_id, replace(before, job=entered))

    def deleted(self, job_id: str) -> None:
        """A job and its attempts are removed."""
        before = self.by_id.pop(job_id)
        directory, declared = self.paths.job(job_id).root, self.files.call.jobs.get(job_id)
        if declared is None:
            _claim(not before.has_begun, f"{job_id} is removed from the ledger, and has begun")
        elif directory.exists():
            raise Violation(f"{job_id} is removed from the ledger, and its directory is there")
        self.jobs[job_id] = self.originals[job_id]

    def begun(self, job_id: str) -> None:
        """An attempt is entered. One that is found in a directory may have been launched, with what
        that has.
        """
        may_have_begun = not self.is_rebuilding or self.paths.job(job_id).spec.exists()
        _claim(may_have_begun, f"{job_id} counts as begun, and was never launched")
        self._set(job_id, replace(self.by_id[job_id], has_begun=True))

    def moved_away(self, job_id: str) -> None:
        """Its directory is gone, as its user wanted."""
        if (entry := self.by_id.get(job_id)) is not None:
            self._set(job_id, replace(entry, is_done=False))

    def moved(self, job_id: str, before: str, state: State) -> bool:
        """A job comes to another state. Returns whether the job file is the reason, or a ledger
        that is made anew.
        """
        entry, declared = self.by_id[job_id], self.files.call.jobs.get(job_id)
        is_undeclared = isinstance(state, Cancelled) and state.is_undeclared
        self._set(
            job_id,
            replace(
                entry,
                is_done=entry.is_done or state.name == "SUCCEEDED",
                is_undeclared=is_undeclared,
                is_too_large=getattr(state, "cause", "") == "too-large",
            ),
        )
        if self.is_rebuilding:
            return True
        if is_undeclared:
            _claim(declared is None, f"{job_id} is declared, and CANCELLED as undeclared")
            return True
        match before, state.name:
            case "CANCELLED", "PENDING" if entry.is_undeclared:
                return True
            case "FAILED", "PENDING" if entry.is_too_large:
                return True
            case "FAILED", "FAILED" if entry.is_too_large and self.by_id[job_id].is_too_large:
                return True  # with the reason of now
            case "SUCCEEDED", "PENDING":
                has_results = self.paths.job(job_id).has_results(normalize=False)
                is_extended = not entry.is_done
                _claim(is_extended or not has_results, f"{job_id} has its results, and is queued")
                self._set(job_id, replace(self.by_id[job_id], is_done=False))
                return True
            case "PENDING", "FAILED":
                cause = getattr(state, "cause", "")
                if cause == "invalid" and (declared is None or declared.is_invalid):
                    return True
                if cause == "too-large" or not entry.job.starts:
                    return False
                if cause == "launch-failed":
                    return self.files.world.has_lost_examiners
                has_no_start = self._lacks(entry) or entry.job.misfits
                return cause in ("invalid", "error") and has_no_start
        return False

    def _lacks(self, entry: Declaration) -> bool:
        """Whether a job cannot have the policy that it is to start from."""
        return not self.paths.job(entry.job.after[0]).model.exists()

    def _look_at_entry(self, job_id: str, entered: SimulatedJob) -> None:
        declared = self.files.call.jobs.get(job_id)
        _claim(declared is not None, f"{job_id} is entered, and not declared")
        assert declared is not None
        _claim(entered == self._expected(declared), f"{job_id} is entered as {entered}")

    def _expected(self, declared: SimulatedJob) -> SimulatedJob:
        return as_declared(declared, self.files.call.jobs)

    def _simulated(self, job: Job) -> SimulatedJob:
        """What of ``job`` a scenario has."""
        spec, resources = job.spec, job.resources
        return replace(
            self.originals[job.job_id],
            iterations=spec.total_timesteps // STEPS,
            version=spec.env_kwargs.get(VERSION, 0),
            is_invalid=INVALID in spec.evaluate,
            pause_at=spec.pause_at,
            after=spec.after,
            starts=spec.init_job is not None,
            ranks=resources.ranks,
            cores=resources.cores,
            memory_mib=resources.memory_mib,
            timeout_s=resources.timeout_s,
            stall_timeout_s=resources.stall_timeout_s,
            min_free_disk_mib=resources.min_free_disk_mib,
            max_retries=job.max_retries,
            robot=self._entered_robots.pop(job.job_id, self.jobs[job.job_id].robot),
        )

    def _set(self, job_id: str, entry: Declaration) -> None:
        self.by_id[job_id] = entry
        self.jobs[job_id] = entry.job

    @contextlib.contextmanager
    def rebuilding(self) -> Iterator[None]:
        """Within the block a ledger is made from the directories of jobs."""
        self._lost, self.by_id = self.by_id, {}
        try:
            yield
        except BaseException:
            self.by_id = dict(self._lost)
            raise
        finally:
            self._lost = None

    # -- what is committed

    def restore(self, before: Mapping[str, Declaration], in_ledger: Collection[str]) -> None:
        """What was not committed is gone. :param before: at the last commit."""
        kept = {job_id: before[job_id] for job_id in in_ledger if job_id in before}
        for job_id in in_ledger:  # others than the supervisor have entered these meanwhile
            if job_id not in kept and job_id in self.by_id:  # promoted later, perhaps
                kept[job_id] = Declaration(job=self._entered[job_id])
        self.take(kept)

    def take(self, entries: Mapping[str, Declaration]) -> None:
        """The ledger has these jobs."""
        self.by_id = dict(entries)
        self.jobs.update(self.originals)
        self.jobs.update({job_id: entry.job for job_id, entry in self.by_id.items()})

    def recorded(self) -> dict[str, SimulatedJob]:
        """The jobs in the ledger, but for those that are not declared any more."""
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
            expected = replace(self._expected(declared), pause_at=entry.job.pause_at)
            if _is_changed(entry.job, expected):
                is_right = call.on_change == "keep"
                is_right |= call.on_change == "restart" and declared.is_invalid
                _claim(is_right, f"{job_id} is declared otherwise, and is run as before")
            elif not call.is_directory and not declared.is_invalid:
                is_right = entry.job == expected or self._is_kept_with_its_source(job_id)
                _claim(is_right, f"{job_id} is declared as {expected}")
        for job_id, entry in self.by_id.items():
            if job_id in call.jobs and entry.is_done:
                state = states[job_id]
                _claim(state == "SUCCEEDED", f"{job_id} has its results, and is {state}")
        self.take({job_id: entry for job_id, entry in self.by_id.items() if job_id in states})

    def _is_kept_with_its_source(self, job_id: str) -> bool:
        """Whether a job has begun from one that is declared otherwise now: it counts as changed,
        and `--on-change=keep` keeps both as they were, as docs/job-file.md says; so does
        `--on-change=restart` where an invalid job is between them, or is that one.
        """
        call, entry = self.files.call, self.by_id[job_id]
        is_kept = call.on_change == "keep"
        while call.on_change in ("keep", "restart") and entry.has_begun:
            declared = self._expected(call.jobs[entry.job.job_id])
            is_kept |= declared.is_invalid
            if _is_changed(entry.job, declared):
                return is_kept
            if not declared.starts or declared.after[0] not in self.by_id:
                return False
            entry = self.by_id[declared.after[0]]
        return False

    def refused(self) -> None:
        """`run` has refused changes of jobs."""
        call = self.files.call
        changes = [
            (entry.job, self._expected(call.jobs[job_id]))
            for job_id, entry in self.by_id.items()
            if job_id in call.jobs and entry.has_begun
        ]
        changed = [pair for pair in changes if _is_changed(*pair)]
        if call.on_change == "extend":
            changed = [
                (before, now)
                for before, now in changed
                if _decides(before)[1:] != _decides(now)[1:]
                or before.iterations > now.iterations
                or now.is_invalid
                or any(entry.job.starts for entry in self.by_id.values())
            ]
        is_right = bool(changed) and call.on_change in ("refuse", "extend")
        _claim(is_right, f"changes are refused, with {call.on_change}: {changed}")

    def launched(self, worker: Worker) -> None:
        job_id, job = worker.job.job_id, self.jobs[worker.job.job_id]
        entry = self.by_id[job_id]
        self.robots.launched(worker, job)
        _claim(not entry.is_done, f"{job_id} has its results, and is trained again")
        trained = worker.spec.total_timesteps // STEPS, worker.spec.env_kwargs.get(VERSION, 0)
        _claim(trained == (job.iterations, job.version), f"{job_id} is trained as {trained}")
        _claim(job_id in self.files.call.jobs, f"{job_id} is trained, and not declared")
        if worker.spec.init is not None and not worker.paths.checkpoints_by_steps():
            self._look_at_start(worker)

    def _look_at_start(self, worker: Worker) -> None:
        """An attempt begins with the policy that it is to start from."""
        spec, init = worker.spec, worker.paths.init
        content = init.read_bytes() if init.exists() else b""
        if not content and spec.job_id in self.files.lost:
            return  # its user has removed it; the worker ends with an error
        is_right = hashlib.sha256(content).hexdigest() == spec.init_sha256
        if spec.init_job is None:
            is_of_source = content == policies.content(str(spec.init))
        else:
            is_of_source = content.startswith(f"{spec.init_job} ".encode())
            _claim(not worker.job.misfits, f"{spec.job_id} starts from what does not fit it")
        _claim(is_right and is_of_source, f"{spec.job_id} starts from {content!r}")

    def all_are_there(self, states: Mapping[str, str]) -> None:
        """A run has come to its end."""
        call = self.files.call
        missing = call.jobs.keys() - states.keys()
        _claim(not missing, f"these jobs are declared, and not in the ledger: {sorted(missing)}")
        for job_id in states.keys() - call.jobs.keys():
            is_left = states[job_id] in ("SUCCEEDED", "FAILED", "CANCELLED")
            _claim(is_left, f"{job_id} is not declared, and is {states[job_id]}")


def _decides(job: SimulatedJob) -> tuple[int, int, str, int]:
    """What decides its result."""
    source = job.after[0] if job.starts and job.after else ""
    return job.iterations, job.version, source, job.robot


def _is_changed(before: SimulatedJob, now: SimulatedJob) -> bool:
    """Whether it would train something else now. What is in an invalid robot is not known."""
    if now.is_invalid:
        now = replace(now, robot=before.robot)
    return _decides(before) != _decides(now)


def _claim(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
