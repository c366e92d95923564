"""The plan of a run: the machine, the order of launch, the robots, and the problems found."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import Problem, SpecError
from orchestrator.core.job import Job
from orchestrator.core.text import joined, listed
from orchestrator.executors.backend import opener
from orchestrator.executors.base import Backend, BackendSettings
from orchestrator.experiment import preflight
from orchestrator.experiment.preflight import JobVerdict
from orchestrator.experiment.reconcile import OnChange
from orchestrator.jobfile import Experiment
from orchestrator.machine import topology
from orchestrator.machine.topology import Machine
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.stop_signals import StopRequests

SKIP_ADVICE = '--skip-invalid, or on_invalid = "skip" in the job file, trains the other jobs'
GRACE_S = 30.0
"""Time that workers have to save a checkpoint and exit, unless --grace says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, as on the command line."""

    run_dir: Path
    max_parallel: int | None = None
    fresh: bool = False
    on_change: OnChange = "refuse"
    rebuild_ledger: bool = False
    executor: str = "local"
    ray_address: str = "local"
    """``local``, ``auto`` or ``HOST:PORT``."""
    storage: str = "auto"
    """How files travel to other machines: ``auto``, ``shared``, ``stream`` or a URI."""
    grace_s: float = GRACE_S
    until: float | None = None
    """When everything has to have ended, in seconds since the epoch; None: no such time."""
    is_listed: bool = False
    """Whether `list` shows it: what people run, but no benchmark and no step of a search."""
    verdicts: Mapping[str, JobVerdict] | None = None
    """For all jobs, where they are known already (:mod:`orchestrator.experiment.resume`); None: examine the robots."""

    @property
    def stop_at(self) -> float | None:
        """When the run is stopped so that everything has ended in time; None: never."""
        return None if self.until is None else self.until - self.grace_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do."""

    machine: Machine
    backend: Backend
    """To be closed by whoever called :func:`plan`."""
    jobs: Sequence[Job]
    """All jobs in order of launch."""
    verdicts: Mapping[str, JobVerdict]
    warnings: Sequence[str]
    choices: Sequence[str]
    """What was chosen where the job file says ``auto``, and why."""
    restriction: str = ""
    """What this command and its jobs were restricted to, by `nice`, `taskset` and the like; empty for nothing."""


def plan(
    experiment: Experiment,
    options: RunOptions,
    staging: Path,
    *,
    stops: StopRequests,
    watch: preflight.Watch = lambda *_: None,
    warm: preflight.Child | None = None,
    locks_directory: Path | None = None,
) -> Plan:
    """Examine machines and robots without launching anything.

    :param staging: receives the robots' bundles: a folder in the run directory, or one in place of a run directory.
    :raises KeyboardInterrupt: when ``stops`` holds a request.
    :raises SpecError: with every job that cannot run here, unless ``experiment.skip_invalid`` is set.
    """
    open_backend = opener(options.executor)
    machine = topology.detect(with_gpus=any(job.resources.gpus for job in experiment.jobs))
    with contextlib.ExitStack() as undo:
        backend = open_backend(
            BackendSettings(
                machine=machine,
                max_parallel=options.max_parallel or experiment.max_parallel,
                locks_directory=locks_directory,
                run_dir=options.run_dir if options.run_dir in staging.parents else staging,
                jobs=experiment.jobs,
                address=options.ray_address,
                storage=options.storage,
            )
        )
        undo.callback(backend.close)
        verdicts = dict(options.verdicts or {})
        if options.verdicts is None:
            at_once, watch = machine.capacity, stops.checking(watch)
            verdicts = preflight.examine(experiment.jobs, staging=staging, at_once=at_once, warm=warm, watch=watch)
        stops.check()
        warnings = backend.ready()
        stops.check()
        jobs = [examined(job, verdicts[job.job_id]) for job in experiment.jobs]  # also those that the backend refuses
        problems = _refuse_unfit(experiment.jobs, verdicts, backend)
        if problems and not experiment.skip_invalid:
            is_all = all(verdict.problem for verdict in verdicts.values())
            raise SpecError(experiment.source, problems, "" if is_all else SKIP_ADVICE)
        undo.pop_all()
    return Plan(
        machine=machine,
        backend=backend,
        jobs=retry_policy.launch_order(jobs, experiment.order),
        verdicts=verdicts,
        warnings=[
            *(*experiment.warnings, *warnings),
            *_by_robot(experiment.jobs, lambda job: verdicts[job.job_id].warnings),
            *_by_robot(experiment.jobs, lambda job: _not_trained(verdicts[job.job_id])),
        ],
        choices=_by_robot(jobs, lambda job: _choice(job, verdicts[job.job_id])),
        restriction=_restriction(machine) if options.executor == "local" else "",
    )


def _refuse_unfit(jobs: Sequence[Job], verdicts: dict[str, JobVerdict], backend: Backend) -> list[Problem]:
    """Every distinct problem. ``verdicts`` receives those that the backend finds."""
    problems: dict[Problem, None] = {}
    for job in jobs:
        in_preflight = verdicts[job.job_id].problem
        of_job = [*backend.problems(job), *([in_preflight] if in_preflight else [])]
        if of_job:
            problems.update(dict.fromkeys(of_job))
            verdicts[job.job_id] = JobVerdict(problem=of_job[0])
    return list(problems)


def examined(job: Job, verdict: JobVerdict) -> Job:
    """``job`` with the task that was chosen for it, its robot's path in its directory, and the hash of its start."""
    xml = job.spec.xml if verdict.xml is None else f"robot/{verdict.xml}"
    task, init_sha256 = verdict.task or job.spec.task, verdict.init_sha256 or job.spec.init_sha256
    return dataclasses.replace(job, spec=dataclasses.replace(job.spec, xml=xml, task=task, init_sha256=init_sha256))


def _restriction(machine: Machine) -> str:
    found = topology.restrictions(machine, topology.online_cpus(), os.getpriority(os.PRIO_PROCESS, 0))
    return f"This command and its jobs {joined(found)}." if found else ""


def _choice(job: Job, verdict: JobVerdict) -> list[str]:
    starts = [f"starts from {verdict.init_reason}"] if verdict.init_reason else []
    return [f"task {job.spec.task} ({verdict.task_reason})", *starts] if verdict.task_reason else starts


def _not_trained(verdict: JobVerdict) -> list[str]:
    return [] if verdict.problem is None else [f"is invalid and not trained: {verdict.problem.message}"]


def _by_robot(jobs: Sequence[Job], remarks: Callable[[Job], Sequence[str]]) -> list[str]:
    """Each remark once per robot, after the names of the jobs that train it."""
    names: dict[tuple[Path | None, str], dict[str, None]] = {}
    for job in jobs:
        for remark in remarks(job):
            names.setdefault((job.xml_source, remark), {})[job.spec.name] = None
    return [f"{listed(list(jobs_of_it), 1)}: {remark}" for (_, remark), jobs_of_it in names.items()]
