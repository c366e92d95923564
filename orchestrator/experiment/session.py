"""One experiment on one run directory, from declared jobs to the last recorded state.

Examine, compare with what the directory was made for, put it in order, supervise, sum up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import DiskFullError, Problem, RunDirError, SpecError
from orchestrator.core.exit_codes import DISK_FULL_ERRNOS
from orchestrator.core.job import Job, State
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.experiment import preflight, run_directory, videos
from orchestrator.experiment.backend import Backend, check_executor_name, open_backend
from orchestrator.experiment.preflight import JobVerdict
from orchestrator.experiment.reconcile import OnChange, rebuild, reconcile, recorded_jobs, take_late_requests
from orchestrator.jobfile import Experiment
from orchestrator.ledger import Ledger, SummaryRow
from orchestrator.machine import provenance
from orchestrator.machine import topology as machines
from orchestrator.machine.cpu_locks import shared_directory
from orchestrator.machine.topology import Machine
from orchestrator.supervisor import retry_policy
from orchestrator.supervisor.events import DetachableReporter, Reporter
from orchestrator.supervisor.supervisor import Supervisor, exit_code
from orchestrator.supervisor.termination import StopRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line may say about a run."""

    run_dir: Path
    max_parallel: int | None = None
    """Overrides the job file's."""
    fresh: bool = False
    on_change: OnChange = "refuse"
    rebuild_ledger: bool = False
    executor: str = "local"
    ray_address: str = "local"
    """``local``, ``auto`` or ``HOST:PORT``."""
    storage: str = "auto"
    """How files travel to other machines: ``auto``, ``shared``, ``stream`` or a URI."""
    grace_s: float = 30.0
    refuse_invalid: bool = True
    """Whether one invalid robot stops everything before launch; otherwise it alone is FAILED."""
    verdicts: Mapping[str, JobVerdict] | None = None
    """On all jobs, known beforehand (:mod:`orchestrator.experiment.resume`); None: robots and environments are
    examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What became of an experiment."""

    paths: RunPaths
    states: Mapping[str, State]
    rows: Sequence[SummaryRow]
    """As in ``summary.json``."""
    exit_code: int
    interrupted: bool
    signalled: bool
    """Whether it was interrupted by a signal to this process, rather than by ``stop`` from another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do: for ``--dry-run`` and for the run itself."""

    machine: Machine
    backend: Backend
    """Whoever makes the plan closes it."""
    jobs: Sequence[Job]
    """In order of launch."""
    verdicts: Mapping[str, JobVerdict]
    warnings: Sequence[str]
    choices: Sequence[str]
    """What was chosen where the job file says ``auto``, and why."""


def plan(
    experiment: Experiment,
    options: RunOptions,
    staging: Path,
    *,
    stops: StopRequests,
    warm: preflight.Child | None = None,
    claims_directory: Path | None = None,
) -> Plan:
    """Examine machines and robots; launches nothing.

    :param staging: where robots' bundles go: a folder in the run directory, or one in the place of a run directory.
    :param claims_directory: where to claim CPUs before other supervisors; None for no claims.
    :raises KeyboardInterrupt: when ``stops`` holds one.
    :raises SpecError: every job that cannot run here, unless ``options.refuse_invalid`` is off.
    """
    check_executor_name(options.executor)
    machine = machines.detect(with_gpus=any(job.resources.gpus for job in experiment.jobs))
    with contextlib.ExitStack() as stack:
        backend = open_backend(
            options.executor,
            machine,
            max_parallel=options.max_parallel or experiment.max_parallel,
            claims_directory=claims_directory,
            home=options.run_dir if options.run_dir in staging.parents else staging,
            jobs=experiment.jobs,
            address=options.ray_address,
            storage=options.storage,
        )
        stack.callback(backend.close)
        found = _plan(experiment, options, staging, machine, backend, stops, warm)
        stack.pop_all()
    return found


def _plan(
    experiment: Experiment,
    options: RunOptions,
    staging: Path,
    machine: Machine,
    backend: Backend,
    stops: StopRequests,
    warm: preflight.Child | None,
) -> Plan:
    if options.verdicts is None:
        verdicts = preflight.examine(
            experiment.jobs, staging=staging, at_once=machine.capacity, warm=warm, check=stops.check
        )
    else:
        verdicts = dict(options.verdicts)
    stops.check()
    warnings = backend.ready()
    stops.check()
    jobs = []
    problems: dict[Problem, None] = {}
    for job in experiment.jobs:
        verdict = verdicts[job.job_id]
        found = [*backend.problems(job), *([verdict.problem] if verdict.problem else [])]
        if found:
            problems.update(dict.fromkeys(found))
            verdicts[job.job_id] = JobVerdict(problem=found[0])
        xml = job.spec.xml if verdict.xml is None else f"robot/{verdict.xml}"
        staged = dataclasses.replace(job.spec, xml=xml, task=verdict.task or job.spec.task)
        jobs.append(dataclasses.replace(job, spec=staged))
    if problems and options.refuse_invalid:
        raise SpecError(experiment.source, list(problems))
    ordered = retry_policy.launch_order(jobs, experiment.order)
    return Plan(
        machine=machine,
        backend=backend,
        jobs=ordered,
        verdicts=verdicts,
        warnings=[*warnings, *_robot_warnings(experiment.jobs, verdicts)],
        choices=_choices(jobs, verdicts),
    )


def _robot_warnings(jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> list[str]:
    """Once a robot, whatever the number of jobs that train it."""
    of: dict[tuple[Path | None, str], list[str]] = {}
    for job in jobs:
        for warning in verdicts[job.job_id].warnings:
            of.setdefault((job.xml_source, warning), []).append(job.spec.name)
    return [f"{_names(names)}: {warning}" for (_, warning), names in of.items()]


def _choices(jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> list[str]:
    of: dict[tuple[Path | None, str | None, str], list[str]] = {}
    for job in jobs:
        if reason := verdicts[job.job_id].task_reason:
            of.setdefault((job.xml_source, job.spec.task, reason), []).append(job.spec.name)
    return [f"{_names(names)}: task {task} ({reason})" for (_, task, reason), names in of.items()]


def _names(names: Sequence[str]) -> str:
    return listed(list(dict.fromkeys(names)), 1)


def run(
    experiment: Experiment,
    options: RunOptions,
    reporter: Reporter,
    *,
    given: bytes | None = None,
    warm: preflight.Child | None = None,
) -> RunResult:
    """Run or resume ``experiment`` in ``options.run_dir`` until every job is terminal or a stop is asked for.

    :param given: text of the job file, kept in the run directory.
    :param warm: an examining process started earlier (:func:`orchestrator.experiment.preflight.warm_up`).
    :raises UsageError: for anything the user can mend; nothing was launched then.
    :raises DiskFullError: everything has stopped, resumable.
    :raises KeyboardInterrupt: stopped during start-up, nothing launched.
    """
    stops = StopRequests()
    with contextlib.ExitStack() as stack:
        stack.enter_context(stops.installed())
        aside = stack.enter_context(run_directory.put_aside(options.run_dir)) if options.fresh else None
        paths = stack.enter_context(run_directory.claim(options.run_dir))
        stack.enter_context(_disk_explained(paths))
        repository = provenance.Repository(experiment.base)
        stack.callback(repository.close)
        ledger = _existing_ledger(paths, options, experiment.jobs, stack)
        todo = _staged_plan(experiment, options, paths, stack, stops, warm)
        if ledger is None:
            ledger = _held(Ledger.create(paths.ledger), stack)
        position = {job.job_id: index for index, job in enumerate(experiment.jobs)}
        rows = reconcile(todo.jobs, todo.verdicts, position, options.on_change, paths, ledger, reporter)
        if given is not None:
            write_whole(paths.experiment, given)
        if aside is not None:
            reporter.event("fresh", f"starts over; what was there is in {aside}", aside=str(aside))
        for choice in todo.choices:
            reporter.event("chosen", choice)
        for warning in todo.warnings:
            reporter.event("warning", warning)
        supervisor = Supervisor(
            paths=paths,
            rows=rows,
            ledger=ledger,
            executor=todo.backend.executor,
            slots=todo.backend.slots,
            reporter=reporter,
            grace_s=options.grace_s,
            available_memory_mib=todo.backend.available_memory_mib,
        )
        todo.backend.report_to(DetachableReporter(reporter).event)
        provenance.record(
            paths,
            machine=todo.machine,
            lanes=todo.backend.slots.lanes,
            repository=repository,
            engine=todo.backend.facts(),
        )
        stops.deliver_to(supervisor.request_stop)
        states = supervisor.run()
        if not supervisor.interrupted:
            videos.make_missing(
                paths, todo.jobs, states, todo.backend.here, reporter, lambda: stops.count > 0 or _asked_to_stop(ledger)
            )
        found = ledger.summary()
        ledger.close()
    mine = {job.job_id: states[job.job_id] for job in todo.jobs}
    return RunResult(
        paths=paths,
        states=mine,
        rows=[row for row in found if row["job_id"] in mine],
        exit_code=exit_code(mine, interrupted=supervisor.interrupted),
        interrupted=supervisor.interrupted,
        signalled=stops.count > 0,
    )


def dry_run(experiment: Experiment, options: RunOptions, *, warm: preflight.Child | None = None) -> Plan:
    """The plan alone; nothing is written where it could be found."""
    stops = StopRequests()
    with stops.installed(), tempfile.TemporaryDirectory(prefix="orchestrator-") as staging:
        found = plan(experiment, options, Path(staging), stops=stops, warm=warm)
        found.backend.close()
        return found


def _asked_to_stop(ledger: Ledger) -> bool:
    """Whether another process asks for a stop; what else is asked for is left to the next supervisor."""
    requests = ledger.take_requests()
    if requests:
        ledger.add_requests(request for request in requests if request.verb != "stop")
    return any(request.verb == "stop" for request in requests)


@contextlib.contextmanager
def _disk_explained(paths: RunPaths) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise DiskFullError(
                f"{paths.root}: no space left on the disk; make room and give the same command again"
            ) from error
        raise


def _staged_plan(
    experiment: Experiment,
    options: RunOptions,
    paths: RunPaths,
    stack: contextlib.ExitStack,
    stops: StopRequests,
    warm: preflight.Child | None,
) -> Plan:
    shutil.rmtree(paths.staging, ignore_errors=True)
    paths.staging.mkdir()
    stack.callback(shutil.rmtree, paths.staging, ignore_errors=True)
    todo = plan(experiment, options, paths.staging, stops=stops, warm=warm, claims_directory=shared_directory())
    stack.callback(todo.backend.close)
    return todo


def _held(ledger: Ledger, stack: contextlib.ExitStack) -> Ledger:
    """Given up when ``stack`` unwinds, unless it was closed in good order before."""
    stack.callback(ledger.abandon)
    return ledger


def _existing_ledger(
    paths: RunPaths, options: RunOptions, jobs: Sequence[Job], stack: contextlib.ExitStack
) -> Ledger | None:
    """The ledger of an earlier session, or one rebuilt; None in a new run directory."""
    if options.rebuild_ledger and (paths.ledger.exists() or paths.jobs.exists()):
        known = recorded_jobs(paths, jobs)
        for name in (paths.ledger.name, f"{paths.ledger.name}-wal", f"{paths.ledger.name}-shm"):
            if (paths.root / name).exists():
                run_directory.set_aside(paths.root / name, paths.replaced)
        ledger = _held(Ledger.create(paths.ledger), stack)
        rebuild(ledger, paths, known)
        return ledger
    if paths.ledger.exists():
        ledger = _held(Ledger.open(paths.ledger), stack)
        take_late_requests(ledger)
        return ledger
    if paths.jobs.exists() and any(paths.jobs.iterdir()):
        raise RunDirError(
            f"{paths.root}: has jobs but no ledger; `run --rebuild-ledger` makes one from the job directories,"
            " `run --fresh` starts over"
        )
    return None
