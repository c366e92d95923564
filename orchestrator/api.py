"""The ``run`` command as functions, for scripts, notebooks and programs that look for robots.

Both functions start a supervisor, as the command does, and return when it has ended. Every training
has its own process: no ``if __name__ == "__main__"`` is needed, a running event loop is not
disturbed, and no process or open file remains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import sys
import time
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

from orchestrator.client import end_time
from orchestrator.client import run as client
from orchestrator.client.options import RunOptions, with_on_change
from orchestrator.client.start import SupervisorProcess
from orchestrator.core.errors import RunInterrupted, UsageError
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.front_end import python_program
from orchestrator.core.paths import RunPaths, absolute, current_directory
from orchestrator.core.text import count, duration, plain
from orchestrator.core.worker_spec import INIT_JOB
from orchestrator.executors.kinds import executor_options
from orchestrator.experiment.start_conditions import GRACE_S
from orchestrator.jobfile import Experiment, from_mapping, load
from orchestrator.jobfile.robot_arguments import (
    NO_FUNCTIONS,
    RobotArgument,
    RobotLike,
    robot_arguments,
)
from orchestrator.jobfile.toml_models import FEATURE_TABLES, Settings
from orchestrator.keys.problems import suggestion
from orchestrator.ledger import SummaryRow
from orchestrator.machine.slots import MaxParallel
from orchestrator.results import ExperimentResult, Result, Results, result_of
from orchestrator.server.differences import OnChange
from orchestrator.terminal.callbacks import CallbackDisplay, ExperimentProgress, JobProgress
from orchestrator.terminal.jobs_table import JobsTable
from orchestrator.terminal.notebook_view import NotebookReporter, is_notebook
from orchestrator.terminal.run_view import LineReporter, Reporter, RunDisplay

__all__ = [
    "ExperimentProgress",
    "ExperimentResult",
    "JobProgress",
    "Result",
    "Results",
    "run",
    "train",
]

StrPath = str | os.PathLike[str]
OnResult = Callable[[Result], object]
OnProgress = Callable[[ExperimentProgress], object]
StartPolicy = Result | StrPath
"""What a training can start from: a result, the directory of a job, or a ``model.zip``."""


def run(
    jobs: StrPath,
    *,
    run_dir: StrPath | None = None,
    max_parallel: MaxParallel = None,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    on_change: OnChange = "refuse",
    skip_invalid: bool = False,
    executor: str | None = None,
    until: str | None = None,
    show: bool = False,
    on_result: OnResult | None = None,
    on_progress: OnProgress | None = None,
    **options_of_executor: str | None,
) -> ExperimentResult:
    """Run a job file, or resume it, as ``python -m orchestrator run JOBS`` does.

    :param jobs: path of the job file.
    :param run_dir: directory for all results; the default is ``runs/<name>``, as with the command.
    :param overrides: settings of all jobs, as with ``--set``; they win over what a job sets:
        ``{"ppo.n_steps": 512}``.
    :param fresh: start over, as with ``--fresh``; an existing run directory is renamed and kept.
    :param on_change: what to do with jobs that have run and are declared differently now, as with
        ``--on-change``.
    :param skip_invalid: train the valid robots if others are invalid, as with ``--skip-invalid``.
    :param executor: what launches the jobs, as with ``--executor``. The default is the executor of
        the run before in ``run_dir``, and ``"local"`` for a new run directory.
    :param until: time of day or duration by which everything has ended, as with ``--until``:
        ``"18:00"`` or ``"2h"``.
    :param show: print one line per event; in a Jupyter notebook, show a table that is updated in
        place.
    :param on_result: called with the result of every job as soon as it has ended, in the calling
        thread; at first with those of jobs that had ended before. However long it takes, jobs go on.
        An exception in it stops all jobs, resumable, and is raised here.
    :param on_progress: called about once a second in the same way, with the progress of the running
        jobs.
    :param options_of_executor: options of the executor, as the command has them: ``ray_address="auto"``
        for ``--ray-address auto``.
    :raises UsageError: where the command would exit with 2; a SpecError has every problem found.
        Also if what makes the jobs has stopped before its end, when all jobs have ended: the same call
        goes on.
    :raises DiskFullError: no space is left; every job has stopped, and the same call resumes them.
    :raises SupervisorError: unexpected error of the supervisor; every job has stopped, and the same
        call resumes them.
    :raises ClusterLostError: the head node of the cluster is lost, and its jobs with it; the same
        call resumes them.
    :raises RunInterrupted: a KeyboardInterrupt, after Ctrl-C, when every worker has exited; the
        same call resumes.
    """
    with python_program():
        directory(jobs)  # refuses what is no path
        given_options = _pop_given(options_of_executor, executor_options())
        for name in options_of_executor:
            near = suggestion(name, [*(run.__kwdefaults__ or ()), *executor_options()])
            advice = "" if near is None else f'; did you mean "{near}"?'
            raise UsageError(f"run: {plain(name)}: unknown argument{advice}")
        if overrides is not None and not isinstance(overrides, Mapping):
            raise UsageError(
                f"run: overrides is {plain(repr(overrides))}; expected a dict, such as"
                ' {"ppo.n_steps": 512}'
            )
        if until is not None and not isinstance(until, str):
            raise UsageError(
                f'run: until is {plain(repr(until))}; expected a text, "18:00" or "2h"'
            )
        for key in overrides or ():
            if not isinstance(key, str):
                raise UsageError(f"run: overrides: a key must be text, found {plain(repr(key))}")
        experiment = load(Path(jobs), overrides=overrides or {}, skip_invalid=skip_invalid)
        options = RunOptions(
            run_dir=directory(run_dir or Path("runs") / experiment.directory_name),
            is_listed=True,
            max_parallel=checked_max_parallel(max_parallel),
            fresh=fresh,
            on_change=checked_on_change(on_change),
            executor=executor,
            executor_options=given_options,
            until=None if until is None else end_time.parse(until, GRACE_S),
        )
        to_result = functools.partial(result_of, RunPaths(options.run_dir))
        callbacks = _callbacks(to_result, on_result, on_progress)
        return finish(experiment, options, show=show, callbacks=callbacks)


def train(
    xmls: RobotLike | Sequence[RobotLike],
    *,
    task: str | None = None,
    total_timesteps: int | None = None,
    seeds: Sequence[int] = (0,),
    init: StartPolicy | Sequence[StartPolicy | None] | None = None,
    max_parallel: MaxParallel = None,
    run_dir: StrPath | None = None,
    fresh: bool = False,
    on_change: OnChange = "refuse",
    executor: str | None = None,
    show: bool = False,
    on_result: OnResult | None = None,
    on_progress: OnProgress | None = None,
    **defaults: Any,
) -> Results:
    """Train a policy for every robot, each in its own process, as many at once as there are cores.

    Results are in the order of ``xmls``, and for each robot in the order of ``seeds``. The result
    of a robot that cannot be trained has ``ok`` False and the reason in ``error``; the other robots
    are trained.

    :param xmls: the robots, or a single one: paths of MJCF files, patterns such as
        ``"robots/*.xml"``, folders (all ``*.xml`` in them), MJCF text, or ``mujoco.MjSpec``. The
        files of a pattern or folder are sorted by path.
    :param task: as in a job file; your own module is looked for in the current directory, then in
        that of the script. The default is ``"auto"`` (chosen from each robot's structure), or no
        task with ``env`` or ``entry_point``.
    :param total_timesteps: env_steps of each job; the default is that of the preset, or 200,000
        without one.
    :param init: the policy that all robots start from: a result, the directory of a job, or a
        ``model.zip``. A sequence has one for each robot, in the order of the results, with None for
        random weights.
    :param run_dir: directory for all results; the default is a new directory in ``runs/``. The same
        call with the same ``run_dir`` resumes.
    :param fresh: as for :func:`run`, and so are ``on_change``, ``executor``, ``show``, ``on_result``
        and ``on_progress``.
    :param defaults: any further key of ``[defaults]`` in a job file: ``preset="thorough"``,
        ``n_envs=16``, ``ppo={"n_steps": 512}``; options of the executor, as for :func:`run`; and
        tables at the top of a job file: ``slurm={"array": 4, "cpus_per_task": 16}``,
        ``notify={"on_end": ["mail", "me"]}``.
    :raises UsageError: when settings that all robots share are invalid, such as an unknown key, a
        wrong option of a task that is named, or a task that cannot be imported; when ``init`` has a
        result without a policy, or another number of policies than there are robots; also when no robot
        can be trained and the user's own code, or with ``task="auto"`` an option of the task, fails
        for several robots in the same way.
    :raises DiskFullError: no space is left; every job has stopped.
    :raises SupervisorError: an unexpected error of the supervisor; every job has stopped.
    :raises ClusterLostError: the head node of the cluster is lost, and its jobs with it.
    :raises RunInterrupted: a KeyboardInterrupt, after Ctrl-C, when every worker has exited.
    """
    if "matrix" in defaults:
        raise UsageError(
            "train: matrix belongs in a job file; call train once for each of its points"
        )
    if "params" in defaults:
        raise UsageError(f"train: params: {NO_FUNCTIONS}")
    # A key of a job stays one, whatever is installed.
    options_of_executor = _pop_given(defaults, executor_options().keys() - Settings.model_fields)
    tables = _pop_given(defaults, FEATURE_TABLES)
    further = (*(train.__kwdefaults__ or ()), *executor_options(), *FEATURE_TABLES)
    refuse_unknown("train", defaults, further)
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise UsageError(
            f"seeds={seeds!r}: expected a sequence of whole numbers, such as [0, 1, 2]"
        )
    seeds = list(seeds)
    with contextlib.ExitStack() as stack, python_program():
        folder = functools.cache(lambda: Path(stack.enter_context(TemporaryFolder())))
        robots = robot_arguments(xmls, folder)
        new = Path("runs") / f"train-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
        root = directory(run_dir or new)
        options = RunOptions(
            run_dir=root,
            is_listed=True,
            refuses_shared=True,
            max_parallel=checked_max_parallel(max_parallel),
            fresh=fresh,
            on_change=checked_on_change(on_change),
            executor=executor,
            executor_options=options_of_executor,
        )
        shared = _shared_settings(defaults, seeds, task, total_timesteps)
        starts: Sequence[Any] = [None] * len(robots)
        if _is_one_policy(init):
            if init is not None:
                shared |= _start_entry(start_policy(init, "train: init"))
        else:
            starts = _start_policies(init, len(robots))
        results = _results_of_faulty(robots, seeds)
        experiment = _experiment(robots, starts, shared, tables, root)
        if experiment is not None and experiment.makes_jobs:
            raise UsageError(
                f"train: {' or '.join(tables)} makes jobs of its own, and `train` has a result for each"
                " robot and seed; use orchestrator.Search, or a job file with orchestrator.run"
            )
        if on_result is not None:
            for result in results.values():
                on_result(result)
        if experiment is not None:
            to_result = functools.partial(
                _result_of_robot, RunPaths(root), {robot.name: robot for robot in robots}
            )
            indices = {robot.name: robot.index for robot in robots}
            callbacks = _callbacks(to_result, on_result, on_progress, indices)
            with contextlib.closing(SupervisorProcess()) as process:
                finished = _finish(experiment, options, process, show=show, callbacks=callbacks)
            results |= {(row["name"], row["seed"]): to_result(row) for row in finished.rows}
    in_order = [results[robot.name, seed] for robot in robots for seed in seeds]
    return Results(in_order, run_dir=None if experiment is None else root)


def _shared_settings(
    defaults: Mapping[str, Any],
    seeds: Sequence[int],
    task: str | None,
    total_timesteps: int | None,
) -> dict[str, Any]:
    """``[defaults]`` of the job file that :func:`train` is."""
    shared: dict[str, Any] = {"seeds": seeds, **defaults}
    if total_timesteps is not None:
        shared["total_timesteps"] = total_timesteps
    if task is None and not {"env", "entry_point"} & defaults.keys():
        task = "auto"
    if task is not None:
        shared["task"] = task
    return shared


def _results_of_faulty(
    robots: Sequence[RobotArgument], seeds: Sequence[int]
) -> dict[tuple[str, int], Result]:
    """The results of robots that cannot even be declared, by name and seed."""
    faulty = [robot for robot in robots if robot.fault]
    return {
        (robot.name, seed): Result(
            ok=False,
            error=robot.fault,
            xml=robot.xml,
            index=robot.index,
            seed=seed,
            state="FAILED",
        )
        for robot in faulty
        for seed in seeds
    }


def _experiment(
    robots: Sequence[RobotArgument],
    starts: Sequence[Any],
    shared: Mapping[str, Any],
    tables: Mapping[str, Any],
    root: Path,
) -> Experiment | None:
    """The robots without a fault, as a job file would declare them; None where there are none.

    :param starts: ``init`` of each robot; None for none.
    """
    declared = [
        {**robot.entry(), **_start_entry(start)}
        for robot, start in zip(robots, starts, strict=True)
        if not robot.fault
    ]
    if not declared:
        return None
    data = {
        "name": plain(root.name),
        "on_invalid": "skip",
        "defaults": shared,
        "jobs": declared,
        **tables,
    }
    base = code_folder(*(shared.get(key) for key in CODE_KEYS)) or root
    experiment = from_mapping(data, source="orchestrator.train", base=base)
    return dataclasses.replace(experiment, unnamed={one.file: one for one in robots if one.label})


def _is_one_policy(init: Any) -> bool:
    """Whether ``init`` is for all robots, and no sequence with one for each."""
    return isinstance(init, str | bytes | os.PathLike | Mapping) or not isinstance(init, Iterable)


def _start_policies(init: Any, robots: int) -> list[Any]:
    """``init`` of each robot as a job file has it; None for none.

    :raises UsageError: another number of them, or a result without a policy.
    """
    starts = list(init)
    if len(starts) != robots:
        what = f"init has {count(len(starts), 'policy', 'policies')} for {count(robots, 'robot')}"
        advice = "give one for each robot, in their order, and None for random weights"
        raise UsageError(f"train: {what}; {advice}")
    return [
        "none" if one is None else start_policy(one, f"train: init[{position}]")
        for position, one in enumerate(starts)
    ]


def _start_entry(start: Any) -> dict[str, Any]:
    """What a table of a job file has of ``init``; None for nothing."""
    return {} if start is None else {"init": start}


def start_policy(init: Any, where: str) -> Any:
    """``init`` as a job file has it: of a result the directory of its job; paths are absolute.

    :param where: names it in messages.
    :raises UsageError: it is a result without a policy, or no policy at all.
    """
    if isinstance(init, Result):
        if not init.ok or init.job_dir is None:
            name = init.job_id or init.xml or "the result"
            raise UsageError(f"{where}: {name} has no policy: {init.error}")
        init = init.job_dir
    if not isinstance(init, str | os.PathLike):
        expected = "expected a result, the directory of a job, or a model.zip"
        raise UsageError(f"{where} is of type {type(init).__name__}; {expected}")
    written = os.fsdecode(init)
    if isinstance(init, str) and written.strip() in ("", "none"):
        return init
    if written.startswith(INIT_JOB):
        return written
    return str(absolute(Path(written)))


def refuse_unknown(caller: str, keys: Iterable[str], arguments: Sequence[str]) -> None:
    """Refuse what is no key of a job, but like one of the ``arguments``. The job file refuses the
    others.
    """
    for key in set(keys) - Settings.model_fields.keys():
        near = suggestion(key, [*Settings.model_fields, *arguments])
        if near in arguments:
            raise UsageError(f'{caller}: {plain(key)}: unknown argument; did you mean "{near}"?')


def _pop_given(arguments: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Those of ``names`` that are given, taken out of ``arguments``; None is not given."""
    given = {name: arguments.pop(name) for name in names if name in arguments}
    return {name: value for name, value in given.items() if value is not None}


def checked_on_change(on_change: OnChange) -> OnChange:
    """:raises UsageError: it is none of them."""
    valid = typing.get_args(OnChange)
    if on_change not in valid:
        expected = ", ".join(f'"{value}"' for value in valid)
        raise UsageError(f"on_change={on_change!r}: unknown; expected one of {expected}")
    return on_change


def checked_max_parallel(max_parallel: MaxParallel) -> MaxParallel:
    """``max_parallel`` with a whole number of NumPy as one of Python.

    :raises UsageError: it is something else.
    """
    if max_parallel is None or max_parallel == "idle":
        return max_parallel
    if isinstance(max_parallel, bool) or not isinstance(max_parallel, Integral) or max_parallel < 1:
        expected = 'a whole number from 1 on, "idle", or None for as many as there are cores'
        raise UsageError(f"max_parallel={max_parallel!r}: expected {expected}")
    return int(max_parallel)


def _result_of_robot(
    paths: RunPaths, robots: Mapping[str, RobotArgument], row: SummaryRow
) -> Result:
    robot = robots.get(row["name"])
    if robot is None:  # `reload` has added it
        return result_of(paths, row)
    return result_of(paths, {**row, "xml": robot.xml}, robot.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Functions of the calling program; see :class:`CallbackDisplay`."""

    on_end: Callable[[SummaryRow], object] | None = None
    on_progress: OnProgress | None = None
    indices: Mapping[str, int] = field(default_factory=dict)


def _callbacks(
    to_result: Callable[[SummaryRow], Result],
    on_result: OnResult | None,
    on_progress: OnProgress | None,
    indices: Mapping[str, int] | None = None,
) -> Callbacks:
    """:param to_result: the result of a job's row.
    :raises UsageError: one of them is no function.
    """
    if not all(function is None or callable(function) for function in (on_result, on_progress)):
        raise UsageError("on_result and on_progress: expected a function, or None")
    on_end = None if on_result is None else (lambda row: on_result(to_result(row)))
    return Callbacks(on_end=on_end, on_progress=on_progress, indices=indices or {})


def finish(
    experiment: Experiment,
    options: RunOptions,
    *,
    show: bool,
    callbacks: Callbacks | None,
) -> ExperimentResult:
    """Run ``experiment``; its results are in the order of its jobs."""
    with contextlib.closing(SupervisorProcess()) as process:
        finished = _finish(
            experiment, options, process, show=show, callbacks=callbacks or Callbacks()
        )
    order = {job.job_id: index for index, job in enumerate(experiment.jobs)}
    rows = sorted(finished.rows, key=lambda row: order.get(row["job_id"], len(order)))
    results = tuple(result_of(finished.paths, row) for row in rows)
    return ExperimentResult(
        run_dir=finished.paths.root, results=results, exit_code=finished.exit_code
    )


def _finish(
    experiment: Experiment,
    options: RunOptions,
    process: SupervisorProcess,
    *,
    show: bool,
    callbacks: Callbacks,
) -> client.RunResult:
    root = options.run_dir
    begun = time.monotonic()
    options = with_on_change(experiment, options)
    with _reporter(show=show) as reporter:
        reporter.event("directory", f"results in {root}", run_dir=str(root))
        shown = RunDisplay(reporter)
        display = CallbackDisplay(
            inner=shown,
            on_end=callbacks.on_end,
            on_progress=callbacks.on_progress,
            indices=callbacks.indices,
        )
        try:
            finished = client.run(experiment, options, display, process)
        except client.Detached as error:
            raise RunInterrupted(root, str(error)) from None
        except KeyboardInterrupt:
            raise RunInterrupted(
                root, f"stopped before anything was launched. {_advice(root)}"
            ) from None
        finally:
            if display.error is not None:
                display.error.add_note(f"The experiment was stopped. {_advice(root)}")
                raise display.error
        assert isinstance(finished, client.RunResult)
        shown.look()
        succeeded = sum(row["state"] == "SUCCEEDED" for row in finished.rows)
        took = duration(time.monotonic() - begun)
        text = f"{succeeded:,} of {count(len(finished.rows), 'job')} succeeded, {took}"
        reporter.event("ended", text, rows=finished.rows)
    if finished.is_signalled and finished.is_stopped:
        unfinished = sum(row["state"] in ("PENDING", "RUNNING") for row in finished.rows)
        jobs = count(unfinished, "job is", "jobs are")
        raise RunInterrupted(root, f"stopped; {jobs} not finished. {_advice(root)}")
    return finished


def directory(path: StrPath) -> Path:
    """Absolute, and for messages without ``..``."""
    found = absolute(path)
    return found.resolve() if ".." in found.parts else found


CODE_KEYS = ("entry_point", "env", "task", "algo")
"""Settings of a job that may name a class or function of the user's."""


def code_folder(*names: object) -> Path | None:
    """Where the modules of names such as ``"module:Class"`` are looked for: the current directory,
    or the script's if a module of them is there alone.
    """
    main = Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    script = Path(sys.path[0] if sys.path else "")
    if main.is_absolute():
        script = main.resolve().parent
    here = current_directory()

    def has_it(folder: Path, module: str) -> bool:
        return any((folder / file).exists() for file in (f"{module}.py", module))

    for name in names:
        if not isinstance(name, str) or ":" not in name:
            continue
        module = name.partition(":")[0].partition(".")[0]
        is_there = module.isidentifier() and script.is_absolute() and has_it(script, module)
        if is_there and not (here and has_it(here, module)):
            return script
    return here


def _advice(root: Path) -> str:
    return f"The same call with run_dir={str(root)!r} resumes it."


@contextlib.contextmanager
def _reporter(*, show: bool) -> Iterator[Reporter]:
    """Yield what ``show`` asks for."""
    if show and is_notebook():
        notebook = NotebookReporter()
        try:
            yield notebook
        finally:
            notebook.close()
    else:
        yield LineReporter(sys.stdout) if show else WarningReporter()


class WarningReporter:
    """Shows as Python warnings what a silent call waits for, and what ``on_change="extend"`` cannot
    do.
    """

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        """Nothing is shown."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        if kind == "waiting" or facts.get("extended"):
            warnings.warn(message, RuntimeWarning, stacklevel=2)
