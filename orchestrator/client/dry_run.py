"""``run --dry-run``: what a run would do, without a run directory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.client.options import RunOptions
from orchestrator.core.errors import ChangedError, SpecError
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.job import Job, Pending, Running
from orchestrator.core.paths import RunPaths
from orchestrator.examination import (
    examining_process,
    preflight,
    side_by_side,
    training_time,
)
from orchestrator.examination.preflight import JobVerdict
from orchestrator.executors import start_choice
from orchestrator.executors.executor import ExecutorSettings
from orchestrator.executors.start_choice import StartChoice
from orchestrator.experiment import run_directory
from orchestrator.experiment.begun_source import begun_source
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine import topology
from orchestrator.machine.topology import Machine
from orchestrator.server import disk_admission, job_directory, launch_order, leftovers, start
from orchestrator.server.decide import Decision, Fate, KnownJob, continued, decide
from orchestrator.server.ledger import wanted
from orchestrator.server.verdicts import examined_job, judged, refuse_invalid, remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a run would do."""

    machine: Machine
    executor: Mapping[str, Any]
    """What the executor says of itself, in JSON types."""
    jobs_at_once: int
    jobs: Sequence[Job]
    """All jobs in order of launch."""
    verdicts: Mapping[str, JobVerdict]
    """Also of examples of jobs that are made as the run goes on."""
    warnings: Sequence[str] = ()
    choices: Sequence[str] = ()
    """What was chosen where the job file says ``auto``, and why."""
    restriction: str = ""
    """What this command and its jobs were restricted to, by `nice`, `taskset` and the like; empty
    for nothing."""
    fates: Mapping[str, Fate] = field(default_factory=dict)
    """By ``job_id``."""
    resumes_from: Mapping[str, int] = field(default_factory=dict)
    """env_steps of the checkpoints of jobs that go on, by ``job_id``."""
    undeclared: Sequence[str] = ()
    """Jobs of the run directory that the job file does not declare: they are not resumed."""
    holder: str = ""
    """The supervisor that runs now, because of which a run would be refused; empty if there is
    none."""
    refusal: str = ""
    """Why a run would be refused because of what has begun in the run directory; empty otherwise."""
    forecast: Forecast = field(default_factory=Forecast)
    """Of what makes its jobs, from the start or from what has been done so far."""
    starts: Mapping[str, StartChoice] = field(default_factory=dict)
    """How the worker of each job would be started that would be launched, by ``job_id``."""


def dry_run(
    experiment: Experiment,
    options: RunOptions,
    recorded: Mapping[str, JobVerdict] | None = None,
    *,
    watch: side_by_side.Watch,
    warm: examining_process.Child | None = None,
) -> DryRun:
    """Return what a run would do.

    :param recorded: verdicts of the jobs of a run directory that goes on as it is; None: the
        experiment is that of a job file.
    :raises UsageError: the run would be refused, and not because of changed jobs or a supervisor
        that runs.
    """
    paths = RunPaths(options.run_dir)
    executor = start.choose_executor(
        paths, options.executor, options.executor_options, fresh=options.fresh
    )
    examples = experiment.jobs_to_examine if experiment.makes_jobs else ()
    to_examine = [*experiment.jobs, *examples]
    machine = topology.detect(with_gpus=any(job.resources.gpus for job in to_examine))
    asked = experiment.max_parallel if options.max_parallel is None else options.max_parallel
    with contextlib.ExitStack() as stack:
        staging = Path(stack.enter_context(TemporaryFolder()))
        opened = executor.kind.open(
            ExecutorSettings(
                machine=machine,
                max_parallel=None if asked == "auto" else asked,
                run_dir=options.run_dir,
                plan_dir=staging,
                options=executor.options,
                tables=experiment.tables,
                name=experiment.directory_name,
            )
        )
        stack.callback(opened.close)
        examined = preflight.examine(
            [] if recorded is not None else to_examine,
            staging=staging,
            processes=machine.capacity,
            warm=warm,
            watch=watch,
            sources=experiment.jobs,
        )
        warnings = list(experiment.warnings)
        opened.ready(lambda _, text: warnings.append(text))  # a cluster has its nodes from here on
        labels = {str(path): robot.label for path, robot in experiment.unnamed.items()}
        verdicts, problems = judged(to_examine, recorded or examined, opened.problems, labels)
        executor_facts = opened.facts()
        jobs_at_once = opened.jobs_at_once
        never_forks = opened.never_forks
    source = experiment.job_source
    if source is not None:
        of_source = source.examine(
            experiment, time_limit_s=side_by_side.TIME_LIMIT_S, turn=lambda: None
        )
        warnings += of_source.warnings
        if of_source.problem is not None:
            raise SpecError(experiment.source, [of_source.problem])
    if examples:
        first = verdicts[examples[0].job_id].problem
        problems = [] if first is None else [first]
    refuse_invalid(
        experiment.source,
        examples[:1] or experiment.jobs,
        verdicts,
        problems,
        skip_invalid=experiment.skip_invalid and not examples,
    )
    jobs = launch_order.launch_order(
        [
            dataclasses.replace(
                examined_job(job, verdicts[job.job_id]), xml_source=experiment.shown_xml(job)
            )
            for job in experiment.jobs
        ],
        experiment.order,
        lambda job: training_time.of_job(job, verdicts[job.job_id].physics_s),
    )
    told = remarks([*jobs, *examples], verdicts)
    warnings += [text for kind, text in told if kind == "warning"]
    warnings += _disk_warnings(jobs, options.run_dir)
    holder = run_directory.holder(paths)
    plan = DryRun(
        machine=machine,
        executor=executor_facts,
        jobs_at_once=jobs_at_once,
        jobs=jobs,
        verdicts=verdicts,
        warnings=warnings,
        choices=[text for kind, text in told if kind == "chosen"],
        restriction=start.restriction(machine) if executor.kind.name == "local" else "",
        holder=str(holder or ""),
    )
    plan = _compared(plan, experiment, options, paths, as_it_is=recorded is not None)
    launched = [job for job in jobs if plan.fates[job.job_id].is_launched]
    due = sum(map(start_choice.is_forkable, launched))
    starts = {
        job.job_id: start_choice.choose(job, due=due, never_forks=never_forks) for job in launched
    }
    return dataclasses.replace(plan, starts=starts)


def _disk_warnings(jobs: Sequence[Job], run_dir: Path) -> list[str]:
    """Say if jobs would wait for disk space."""
    asked_mib = max((job.resources.min_free_disk_mib for job in jobs), default=0)
    free_mib = disk_admission.free_mib(run_dir)
    if free_mib is None or free_mib >= asked_mib:
        return []
    shortage = disk_admission.shortage(run_dir, free_mib, asked_mib)
    return [f"jobs would wait for disk space: {shortage}"]


def _compared(
    plan: DryRun, experiment: Experiment, options: RunOptions, paths: RunPaths, *, as_it_is: bool
) -> DryRun:
    """Return the plan compared with the run directory."""
    source = experiment.job_source
    with contextlib.ExitStack() as stack:
        ledger: Ledger | None = None
        if paths.ledger.exists() and not options.fresh:
            ledger = stack.enter_context(run_directory.reading_ledger(paths))
        rows = {} if ledger is None else _rows(ledger, is_held=bool(plan.holder))
        held = {} if ledger is None else wanted(ledger)
        refusal = ""
        if source is not None and ledger is not None:
            try:
                source.refuse_another(experiment, options.run_dir, plan.verdicts, ledger)
            except ChangedError as error:
                refusal = str(error)
        if as_it_is:
            recorded = {job.job_id: rows[job.job_id] for job in plan.jobs}
            known = leftovers.recorded_jobs(paths, recorded, plan.verdicts)
            decision = Decision(fates={one.job.job_id: continued(one) for one in known})
        elif options.fresh:
            known = [
                KnownJob(job=job, verdict=plan.verdicts[job.job_id], row=None) for job in plan.jobs
            ]
            decision = decide(known, options.on_change, paths.root)
        else:
            of_summary = leftovers.states_of_summary(paths) if ledger is None else {}
            known = leftovers.known_jobs(paths, plan.jobs, plan.verdicts, rows, held, of_summary)
            decision = decide(
                known,
                options.on_change,
                paths.root,
                are_compared=lambda: ledger is not None and begun_source(paths, ledger) is not None,
            )
        forecast = Forecast()
        if source is not None:
            begun = None if refusal or decision.refusal else ledger
            forecast = source.forecast(experiment, plan.verdicts, plan.jobs_at_once, begun)
    if source is not None:
        measured = source.measured_lines(experiment)
        forecast = dataclasses.replace(forecast, lines=[*measured, *forecast.lines])
    undeclared: list[str] = []
    if not experiment.makes_jobs:
        undeclared = [job_id for job_id in rows if job_id not in decision.fates]
    return dataclasses.replace(
        plan,
        fates=decision.fates,
        resumes_from={
            job_id: job_directory.checkpointed_steps(paths.job(job_id))
            for job_id, fate in decision.fates.items()
            if fate.action in ("resume", "extend")
        },
        undeclared=undeclared,
        refusal=refusal or decision.refusal,
        forecast=forecast,
    )


def _rows(ledger: Ledger, *, is_held: bool) -> dict[str, JobRow]:
    """Return the jobs as a supervisor finds them.

    :param is_held: whether a supervisor runs; otherwise what is RUNNING waits.
    """
    rows = {row.job_id: row for row in ledger.jobs()}
    for job_id, row in rows.items():
        if isinstance(row.state, Running) and not is_held:
            state = Pending(failures=row.state.failures)
            rows[job_id] = dataclasses.replace(row, state=state)
    return rows
