"""The plan of a run: the machine, the order of launch, the robots, and the problems found."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.core.errors import Problem, SpecError
from orchestrator.core.front_end import option
from orchestrator.core.job import Job
from orchestrator.core.text import joined, listed
from orchestrator.executors.executor import ExecutorSettings, OpenedExecutor
from orchestrator.executors.kinds import ExecutorKind, kind_named
from orchestrator.experiment.examination import (
    examining_process,
    preflight,
    side_by_side,
    training_time,
)
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.resuming.declared_changes import OnChange
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import SourceVerdict
from orchestrator.jobfile.robot_arguments import RobotArgument
from orchestrator.machine import topology
from orchestrator.machine.slots import MaxParallel
from orchestrator.machine.topology import Machine
from orchestrator.supervisor import launch_order


def skip_advice() -> str:
    """What to do where some robots are invalid."""
    skip = option("skip_invalid", True)
    return f'{skip}, or on_invalid = "skip" in the job file, trains the other jobs'


GRACE_S = 30.0
"""Time that workers have to save a checkpoint and exit, unless --grace says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, as on the command line."""

    run_dir: Path
    max_parallel: MaxParallel | Literal["auto"] = None
    """None: as in the job file."""
    fresh: bool = False
    on_change: OnChange = "refuse"
    executor: str | None = None
    """None: that of the run before in the run directory, which for a new one is ``local``."""
    executor_options: Mapping[str, str] = field(default_factory=dict)
    """Values of options of executors, by name. One that is missing is as in the run before if that
    had the same executor, otherwise its default. Those of other executors have no effect."""
    grace_s: float = GRACE_S
    until: float | None = None
    """When everything has to have ended, in seconds since the epoch; None: no such time."""
    is_listed: bool = False
    """Whether `list` shows it: what people run, but no benchmark."""
    verdicts: Mapping[str, JobVerdict] | None = None
    """Of jobs whose robots need no examination, by ``job_id``
    (:mod:`orchestrator.experiment.resuming.resume`)."""
    refuses_shared: bool = False
    """Whether a problem that no robot causes is raised if no job can be trained, also with
    ``skip_invalid``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do."""

    machine: Machine
    executor: OpenedExecutor
    """To be closed by whoever called :func:`plan`."""
    jobs: Sequence[Job]
    """All jobs in order of launch. Where jobs are made as the run goes on, ``verdicts`` has those of
    examples, too."""
    verdicts: Mapping[str, JobVerdict]
    warnings: Sequence[str]
    choices: Sequence[str]
    """What was chosen where the job file says ``auto``, and why."""
    executor_options: Mapping[str, str] = field(default_factory=dict)
    """All options of the executor."""
    restriction: str = ""
    """What this command and its jobs were restricted to, by `nice`, `taskset` and the like; empty
    for nothing."""


def with_on_change(experiment: Experiment, options: RunOptions) -> tuple[Experiment, RunOptions]:
    """Start over if something else has begun in the run directory that makes the jobs, or compares
    them, and ``options.on_change`` allows it.
    """
    source = experiment.job_source
    may_start_over = options.on_change == "restart" and not options.fresh
    if source is not None and may_start_over and source.starts_over(experiment, options.run_dir):
        options = dataclasses.replace(options, fresh=True)
    return experiment, options


def plan(
    experiment: Experiment,
    options: RunOptions,
    staging: Path,
    *,
    check_stop: Callable[[], object],
    watch: side_by_side.Watch = lambda *_: None,
    warm: examining_process.Child | None = None,
    sees_neighbours: bool = False,
) -> Plan:
    """Examine machines and robots without launching anything.

    :param staging: receives the robots' bundles: a folder in the run directory, or one in place of
        a run directory.
    :param check_stop: called often; what it raises ends the examination, such as
        ``KeyboardInterrupt`` where a stop is requested.
    :raises SpecError: with every job that cannot run here, unless ``experiment.skip_invalid`` is
        set.
    """
    kind = kind_named(options.executor or "local")
    examples = experiment.jobs_to_examine if experiment.makes_jobs else ()
    declared = [*experiment.jobs, *examples]
    # Where there are no jobs yet, as in a pool, those that come may ask for GPUs.
    may_ask_for_gpus = not declared or any(job.resources.gpus for job in declared)
    machine = topology.detect(with_gpus=may_ask_for_gpus)
    settings = ExecutorSettings(
        machine=machine,
        max_parallel=_max_parallel(options, experiment),
        sees_neighbours=sees_neighbours,
        run_dir=options.run_dir,
        plan_dir=staging,
        options=_all_options(kind, options),
        tables=experiment.tables,
        name=experiment.directory_name,
    )
    with contextlib.ExitStack() as undo:
        executor = kind.open(settings)
        undo.callback(executor.close)
        in_preflight = _examine(
            experiment,
            declared,
            options.verdicts or {},
            staging=staging,
            processes=machine.capacity,
            warm=warm,
            watch=side_by_side.with_check(watch, check_stop),
        )
        check_stop()
        of_executor: list[str] = []
        executor.ready(lambda _, text: of_executor.append(text))
        check_stop()
        fitness = _ask_executor(declared, in_preflight, executor)
        verdicts = fitness.verdicts
        of_source = _examine_source(experiment, check_stop)
        _raise_problems(experiment, examples, fitness.problems, of_source.problem, verdicts)
        if options.refuses_shared:
            _raise_shared_problems(experiment, declared, verdicts)
        # Also those that the executor refuses.
        jobs = [_to_train(job, verdicts[job.job_id], experiment) for job in experiment.jobs]
        undo.pop_all()
    return Plan(
        machine=machine,
        executor=executor,
        jobs=_in_order_of_launch(jobs, experiment, verdicts),
        verdicts=verdicts,
        warnings=_warnings(experiment, declared, [*of_executor, *of_source.warnings], verdicts),
        choices=_by_robot(jobs, lambda job: _choices(job, verdicts[job.job_id])),
        executor_options=settings.options,
        restriction=restriction(machine) if kind.name == "local" else "",
    )


def _all_options(kind: ExecutorKind, options: RunOptions) -> Mapping[str, str]:
    """All options of the executor, the default where none is given."""
    given = options.executor_options
    return {option.name: given.get(option.name, option.default) for option in kind.options}


def _examine(
    experiment: Experiment,
    jobs: Sequence[Job],
    known: Mapping[str, JobVerdict],
    *,
    staging: Path,
    processes: int,
    warm: examining_process.Child | None,
    watch: side_by_side.Watch,
) -> Mapping[str, JobVerdict]:
    """The verdicts of preflight on ``jobs``, in the words of the user.

    :param known: those of jobs whose robots need no examination.
    """
    unknown = [job for job in jobs if job.job_id not in known]
    found = preflight.examine(
        unknown,
        staging=staging,
        processes=processes,
        warm=warm,
        watch=watch,
        sources=experiment.jobs,
    )
    of_unknown = {
        job.job_id: verdict_for_user(found[job.job_id], _unnamed_robot(job, experiment))
        for job in unknown
    }
    return {**known, **of_unknown}


def _warnings(
    experiment: Experiment,
    jobs: Sequence[Job],
    of_others: Sequence[str],
    verdicts: Mapping[str, JobVerdict],
) -> Sequence[str]:
    """Those of the job file, of the robots of ``jobs``, and ``of_others``: of the executor and of what
    makes jobs.
    """
    return [
        *experiment.warnings,
        *of_others,
        *_by_robot(jobs, lambda job: verdicts[job.job_id].warnings),
        *_by_robot(jobs, lambda job: _not_trained(verdicts[job.job_id])),
    ]


def _to_train(job: Job, verdict: JobVerdict, experiment: Experiment) -> Job:
    """A job as the supervisor gets it: its robot is what the user calls it."""
    return dataclasses.replace(examined_job(job, verdict), xml_source=experiment.shown_xml(job))


def _in_order_of_launch(
    jobs: Sequence[Job], experiment: Experiment, verdicts: Mapping[str, JobVerdict]
) -> Sequence[Job]:
    return launch_order.launch_order(
        jobs,
        experiment.order,
        lambda job: training_time.of_job(job, verdicts[job.job_id].physics_s),
    )


def _raise_problems(
    experiment: Experiment,
    examples: Sequence[Job],
    job_problems: Sequence[Problem],
    source_problem: Problem | None,
    verdicts: Mapping[str, JobVerdict],
) -> None:
    """:param examples: of the jobs that are made as the run goes on: the first one has to be valid.
    :param source_problem: why what makes the jobs cannot begin.
    :raises SpecError: the run cannot begin, or not without the jobs that have problems.
    """
    if examples:  # the others may be invalid
        first = verdicts[examples[0].job_id].problem
        problems = [] if first is None else [first]
    else:
        problems = list(job_problems)
    if source_problem is not None:
        problems.append(source_problem)
    if problems and (examples or not experiment.skip_invalid):
        is_all = bool(examples) or all(verdict.problem for verdict in verdicts.values())
        raise SpecError(experiment.source, problems, "" if is_all else skip_advice())


def _raise_shared_problems(
    experiment: Experiment, jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]
) -> None:
    """:raises SpecError: no job can be trained, and that is not because of the robots."""
    if texts := shared_problems(jobs, verdicts):
        raise SpecError(experiment.source, [Problem(where="", message=text) for text in texts])


def _examine_source(experiment: Experiment, check_stop: Callable[[], object]) -> SourceVerdict:
    """Whether what makes the jobs can begin."""
    if experiment.job_source is None:
        return SourceVerdict()
    return experiment.job_source.examine(
        experiment, time_limit_s=side_by_side.TIME_LIMIT_S, turn=check_stop
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitness:
    """Which jobs can be trained by the executor."""

    problems: Sequence[Problem]
    """Every distinct one, of preflight and of the executor."""
    verdicts: Mapping[str, JobVerdict]
    """Those of preflight, with the problems that the executor finds."""


def _ask_executor(
    jobs: Sequence[Job], in_preflight: Mapping[str, JobVerdict], executor: OpenedExecutor
) -> _Fitness:
    """:param in_preflight: the verdicts of preflight."""
    verdicts = dict(in_preflight)
    problems: dict[Problem, None] = {}
    for job in jobs:
        verdict = verdicts[job.job_id]
        of_executor = executor.problems(job)
        of_job = list(of_executor)
        if verdict.problem is not None:
            of_job.append(verdict.problem)
        if of_job:
            problems.update(dict.fromkeys(of_job))
            lacking = of_executor[0].message if of_executor else None
            verdicts[job.job_id] = dataclasses.replace(
                verdict,
                problem=verdict.problem or of_job[0],
                settings_problem=verdict.settings_problem or lacking,
                lacks_room=verdict.problem is None,
            )
    return _Fitness(problems=list(problems), verdicts=verdicts)


def _unnamed_robot(job: Job, experiment: Experiment) -> RobotArgument | None:
    return None if job.xml_source is None else experiment.unnamed.get(job.xml_source)


def verdict_for_user(verdict: JobVerdict, robot: RobotArgument | None) -> JobVerdict:
    """Return a verdict in which the user's label of a robot replaces its temporary file.

    :param robot: None if the robot is a file of the user's.
    """
    if robot is None:
        return verdict
    problem = verdict.problem
    warnings = tuple(map(robot.with_label, verdict.warnings))
    if problem is None:
        return dataclasses.replace(verdict, warnings=warnings)
    of_all = dataclasses.replace(robot, label="the robot")  # the same text for every robot
    return dataclasses.replace(
        verdict,
        problem=dataclasses.replace(problem, message=robot.with_label(problem.message)),
        warnings=warnings,
        settings_problem=verdict.settings_problem and of_all.with_label(verdict.settings_problem),
        code_problem=verdict.code_problem and of_all.with_label(verdict.code_problem),
        given=robot.file,
    )


def shared_problems(jobs: Sequence[Job], verdicts: Mapping[str, JobVerdict]) -> list[str]:
    """Why no job can be trained, if that is not because of the robots; none if a job can be, or if
    it may be.

    What may lie in a robot or in the user's own code lies in the code if it is the same for several
    robots.
    """
    of_jobs = [(job, verdicts[job.job_id]) for job in jobs]
    if not all(verdict.problem for _, verdict in of_jobs):
        return []
    settings = dict.fromkeys(
        verdict.settings_problem for _, verdict in of_jobs if verdict.settings_problem
    )
    robots: dict[str, set[Path | None]] = {}
    for job, verdict in of_jobs:
        if verdict.code_problem:
            robots.setdefault(verdict.code_problem, set()).add(job.xml_source)
    return [*settings] or [text for text, sources in robots.items() if len(sources) > 1]


def examined_job(job: Job, verdict: JobVerdict) -> Job:
    """``job`` with the task that was chosen for it, its robot's path in its directory, and the hash
    of its start.
    """
    start = job.spec if verdict.init_sha256 is None else verdict
    return job.with_spec(
        xml=job.spec.xml if verdict.xml is None else f"robot/{verdict.xml}",
        task=verdict.task or job.spec.task,
        init_sha256=start.init_sha256,
        init_env_steps=start.init_env_steps,
    )


def _max_parallel(options: RunOptions, experiment: Experiment) -> MaxParallel:
    """Of the command, else of the job file."""
    if options.max_parallel is None:
        return experiment.max_parallel
    return None if options.max_parallel == "auto" else options.max_parallel


def restriction(machine: Machine) -> str:
    """Say what this command and its jobs were restricted to; empty for nothing."""
    found = topology.restrictions(
        machine, topology.online_cpus(), os.getpriority(os.PRIO_PROCESS, 0)
    )
    return f"This command and its jobs {joined(found)}." if found else ""


def _choices(job: Job, verdict: JobVerdict) -> list[str]:
    """What was chosen for a job, and why."""
    choices = []
    if verdict.task_reason:
        choices.append(f"task {job.spec.task} ({verdict.task_reason})")
    if verdict.init_reason:
        choices.append(f"starts from {verdict.init_reason}")
    return choices


def _not_trained(verdict: JobVerdict) -> list[str]:
    """The remark on a job that is invalid, or too large for the machines; none on others."""
    if verdict.problem is None:
        return []
    if verdict.lacks_room:
        elsewhere = "where there is room, `run RUN_DIR` trains it"
        return [f"is not trained here: {verdict.problem.message}; {elsewhere}"]
    begun = "one that has begun goes on as it was declared"
    return [f"is invalid, so its training does not begin; {begun}: {verdict.problem.message}"]


def _by_robot(jobs: Sequence[Job], remarks: Callable[[Job], Sequence[str]]) -> list[str]:
    """Each remark once per robot, after the names of the jobs that train it."""
    names: dict[tuple[Path | None, str], dict[str, None]] = {}
    for job in jobs:
        for remark in remarks(job):
            names.setdefault((job.xml_source, remark), {})[job.spec.name] = None
    return [f"{listed(list(jobs_of_it), 1)}: {remark}" for (_, remark), jobs_of_it in names.items()]
