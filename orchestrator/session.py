"""One experiment on one run directory, from declared jobs to the last recorded state.

Examine, compare with what the directory was made for, put it in order, supervise, sum up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import machine as machines
from orchestrator import policy, preflight, provenance, rundir
from orchestrator.contract import RunPaths, write_whole
from orchestrator.errors import Problem, RunDirError, SpecError, UsageError
from orchestrator.executors.base import Executor
from orchestrator.executors.local import LocalExecutor
from orchestrator.job import Job, State
from orchestrator.ledger import Ledger
from orchestrator.machine import Machine, SlotPool
from orchestrator.preflight import Verdict
from orchestrator.reconcile import OnChange, rebuild, reconcile
from orchestrator.spec import Experiment
from orchestrator.supervisor import Reporter, Supervisor, exit_code

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXECUTORS = ("local",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line may say about a run."""

    run_dir: Path
    max_parallel: int | None = None
    """Overrides the job file's."""
    fresh: bool = False
    on_change: OnChange = "refuse"
    rebuild_ledger: bool = False
    executor: str = "local"
    grace_s: float = 30.0
    refuse_invalid: bool = True
    """Whether one invalid robot stops everything before launch; otherwise it alone is FAILED (``orchestrator.train``)."""
    handle_signals: bool = True
    """Whether to take over SIGINT, SIGTERM and SIGHUP meanwhile. Only ever done in the main thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What became of an experiment."""

    paths: RunPaths
    states: Mapping[str, State]
    rows: Sequence[dict[str, Any]]
    """As in ``summary.json``."""
    exit_code: int
    interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do: for ``--dry-run`` and for the run itself."""

    machine: Machine
    slots: SlotPool
    jobs: Sequence[Job]
    """In order of launch."""
    verdicts: Mapping[str, Verdict]
    warnings: Sequence[str]


def plan(experiment: Experiment, options: Options, staging: Path) -> Plan:
    """Examine machine and robots; launches nothing.

    :raises SpecError: every job that cannot run here, unless ``options.refuse_invalid`` is off.
    """
    check_executor(options.executor)
    machine = machines.detect(with_gpus=any(job.resources.gpus for job in experiment.jobs))
    slots = SlotPool(machine, options.max_parallel or experiment.max_parallel)
    verdicts = preflight.examine(experiment.jobs, staging=staging, at_once=machine.capacity)
    jobs = []
    problems: dict[Problem, None] = {}
    for job in experiment.jobs:
        verdict = verdicts[job.job_id]
        found = [*_too_large(job, machine), *([verdict.problem] if verdict.problem else [])]
        if found:
            problems.update(dict.fromkeys(found))
            verdicts[job.job_id] = Verdict(problem=found[0])
        elif verdict.xml is not None:
            job = dataclasses.replace(job, spec=dataclasses.replace(job.spec, xml=f"robot/{verdict.xml}"))
        jobs.append(job)
    if problems and options.refuse_invalid:
        raise SpecError(experiment.source, list(problems))
    ordered = policy.launch_order(jobs, experiment.order)
    return Plan(machine=machine, slots=slots, jobs=ordered, verdicts=verdicts, warnings=slots.warnings())


def check_executor(name: str) -> None:
    """:raises UsageError: naming the valid ones."""
    if name not in EXECUTORS:
        raise UsageError(f"--executor {name}: unknown; valid: {', '.join(EXECUTORS)}")


def _too_large(job: Job, machine: Machine) -> list[Problem]:
    wanted = job.resources
    problems = []
    largest = machines.largest_job(machine)
    if wanted.cores > largest:
        text = f"asks for {wanted.cores} cores; this machine can give a job {largest} (see `doctor`)"
        problems.append(Problem(where=f"{job.where}.resources.cores", message=text))
    if wanted.memory_mib > machine.memory_total_mib:
        text = f"asks for {wanted.memory_mib} MiB; this machine has {machine.memory_total_mib} MiB (see `doctor`)"
        problems.append(Problem(where=f"{job.where}.resources.memory", message=text))
    if wanted.gpus > len(machine.gpus):
        text = f"asks for {wanted.gpus} GPUs; this machine has {len(machine.gpus)} (see `doctor`)"
        problems.append(Problem(where=f"{job.where}.resources.gpus", message=text))
    return problems


@dataclass(slots=True)
class StopRequests:
    """Signals on their way to a supervisor that may not be there yet."""

    _count: int = 0
    _reason: str = ""
    _receiver: Callable[[str], None] | None = None

    def signalled(self, number: int, _frame: object) -> None:
        self._reason = signal.Signals(number).name
        self._count += 1
        if self._receiver is not None:
            self._receiver(self._reason)
        else:
            raise KeyboardInterrupt  # nothing has been launched: start-up is simply given up

    def deliver_to(self, receiver: Callable[[str], None]) -> None:
        self._receiver = receiver

    @contextlib.contextmanager
    def installed(self, *, wanted: bool) -> Iterator[None]:
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.signalled) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(experiment: Experiment, options: Options, reporter: Reporter, *, given: str | None = None) -> Finished:
    """Run or resume ``experiment`` in ``options.run_dir`` until every job is terminal or a stop is asked for.

    :param given: text of the job file, kept in the run directory.
    :raises UsageError: for anything the user can mend; nothing was launched then.
    :raises DiskFullError: everything has stopped, resumable.
    :raises KeyboardInterrupt: stopped during start-up, nothing launched.
    """
    stops = StopRequests()
    with stops.installed(wanted=options.handle_signals), contextlib.ExitStack() as stack:
        known = options.run_dir.exists()
        try:
            paths = stack.enter_context(rundir.claim(options.run_dir, fresh=options.fresh))
            todo = _staged_plan(experiment, options, paths, stack)
            ledger = _open_ledger(paths, options, todo)
        except (UsageError, KeyboardInterrupt):
            stack.close()
            if not known:
                shutil.rmtree(options.run_dir, ignore_errors=True)  # made a moment ago, holds nothing
            raise
        try:
            position = {job.job_id: index for index, job in enumerate(experiment.jobs)}
            rows = reconcile(todo.jobs, todo.verdicts, position, options.on_change, paths, ledger, reporter)
            if given is not None:
                write_whole(paths.experiment, given)
            for warning in todo.warnings:
                reporter.event("warning", warning)
            supervisor = Supervisor(
                paths=paths,
                rows=rows,
                ledger=ledger,
                executor=_executor(options),
                slots=todo.slots,
                reporter=reporter,
                grace_s=options.grace_s,
            )
            stops.deliver_to(supervisor.request_stop)
            provenance.record(paths, machine=todo.machine, lanes=todo.slots.lanes, base=experiment.base)
            states = supervisor.run()
            found = ledger.summary()
        except BaseException:
            ledger.abandon()
            raise
        ledger.close()
    mine = {job.job_id: states[job.job_id] for job in todo.jobs}
    return Finished(
        paths=paths,
        states=mine,
        rows=[row for row in found if row["job_id"] in mine],
        exit_code=exit_code(mine, interrupted=supervisor.interrupted),
        interrupted=supervisor.interrupted,
    )


def dry_run(experiment: Experiment, options: Options) -> Plan:
    """The plan alone; nothing is written where it could be found."""
    with tempfile.TemporaryDirectory() as staging:
        return plan(experiment, options, Path(staging))


def _executor(options: Options) -> Executor:
    check_executor(options.executor)
    return LocalExecutor()


def _staged_plan(
    experiment: Experiment, options: Options, paths: RunPaths, stack: contextlib.ExitStack
) -> Plan:
    shutil.rmtree(paths.staging, ignore_errors=True)
    paths.staging.mkdir()
    stack.callback(shutil.rmtree, paths.staging, ignore_errors=True)
    return plan(experiment, options, paths.staging)


def _open_ledger(paths: RunPaths, options: Options, todo: Plan) -> Ledger:
    if options.rebuild_ledger and (paths.ledger.exists() or paths.jobs.exists()):
        for name in (paths.ledger.name, f"{paths.ledger.name}-wal", f"{paths.ledger.name}-shm"):
            if (paths.root / name).exists():
                rundir.set_aside(paths.root / name, paths.replaced)
        ledger = Ledger.create(paths.ledger)
        rebuild(ledger, paths, todo.jobs)
        return ledger
    if paths.ledger.exists():
        return Ledger.open(paths.ledger)
    if paths.jobs.exists() and any(paths.jobs.iterdir()):
        raise RunDirError(
            f"{paths.root}: has jobs but no ledger; `run --rebuild-ledger` makes one from the job directories,"
            " `run --fresh` starts over"
        )
    return Ledger.create(paths.ledger)
