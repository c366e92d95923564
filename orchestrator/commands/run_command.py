"""``run``: train everything that a job file declares, or resume it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from orchestrator.commands.shared_options import (
    AsJson,
    Learner,
    Settings,
    interruptible,
    literal,
    overrides,
    parse_max_parallel,
    print_json,
    print_progress,
)
from orchestrator.core.errors import UsageError
from orchestrator.core.text import alternatives
from orchestrator.executors.kinds import ExecutorOption, executor_kinds, executor_options

if TYPE_CHECKING:
    from orchestrator.client.options import RunOptions
    from orchestrator.client.start import SupervisorProcess
    from orchestrator.examination.examining_process import Child
    from orchestrator.examination.preflight import JobVerdict
    from orchestrator.jobfile import Experiment

app = typer.Typer()

MOST_FOLDERS = 500
"""Folders that are searched for robots before the message that this is no run directory: a home may
have millions."""


class OnChangeChoice(StrEnum):
    refuse = "refuse"
    restart = "restart"
    extend = "extend"


def with_executor_options(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` with the options of executors, which it takes together as ``executor_options``."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != "executor_options"]
    parameters = [_parameter(name, option) for name, option in executor_options().items()]
    place = 1 + [one.name for one in own].index("executor")
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]

    @functools.wraps(command)
    def with_options(**arguments: Any) -> None:
        values = {one.name: arguments.pop(one.name) for one in parameters}
        given = {name: value for name, value in values.items() if value is not None}
        command(**arguments, executor_options=given)

    in_order = [*named[:place], *parameters, *named[place:]]
    with_options.__signature__ = signature.replace(parameters=in_order)  # type: ignore[attr-defined]
    return with_options


def _parameter(name: str, option: ExecutorOption) -> inspect.Parameter:
    """An option of an executor as typer takes it."""
    default = "as in the run before"
    if option.default:
        default = f"{default} or {option.default}"
    shown = Option(metavar=option.metavar, help=literal(option.help), show_default=default)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, shown],
    )


@app.command()
@with_executor_options
def run(
    jobs: Annotated[
        Path,
        Argument(
            metavar="JOBS.toml|RUN_DIR",
            help="A job file; or a run directory, whose experiment is resumed as it is.",
        ),
    ],
    run_dir: Annotated[
        Path | None, Option(help="Directory for all results.", show_default="runs/<name>")
    ] = None,
    max_parallel: Annotated[
        str | None,
        Option(
            metavar="N|auto|idle",
            help="Largest number of jobs that run at once. auto: as many as there are cores. idle: as many as there "
            "are cores that nobody else uses, counted anew as jobs end.",
            show_default="max_parallel in the job file",
        ),
    ] = None,
    learner: Learner = None,
    executor: Annotated[
        str | None,
        Option(
            help=f"What launches the jobs: {alternatives(executor_kinds())}. A run directory keeps its executor until "
            "another one is named.",
            show_default="as in the run before; local for a new run directory",
        ),
    ] = None,
    fresh: Annotated[
        bool, Option("--fresh", help="Start over; an existing run directory is renamed and kept.")
    ] = False,
    on_change: Annotated[
        OnChangeChoice,
        Option(
            help="What to do with jobs that have run and are declared differently now. refuse: launch nothing. "
            "restart: train them again. extend: train them further, if only total_timesteps is different and larger."
        ),
    ] = OnChangeChoice.refuse,
    skip_invalid: Annotated[
        bool,
        Option(
            "--skip-invalid",
            help="Train the valid robots if others are invalid; the jobs of those are FAILED. The same as "
            'on_invalid = "skip" in the job file. Otherwise nothing is launched.',
        ),
    ] = False,
    set_: Settings = None,
    grace: Annotated[
        float,
        Option(
            min=0.0, help="Seconds that workers have after Ctrl-C to save a checkpoint and exit."
        ),
    ] = 30.0,
    until: Annotated[
        str | None,
        Option(
            metavar="TIME|DURATION",
            help="Time of day (18:00), or time from now (2h), by which everything has ended: the run is stopped, as by "
            "Ctrl-C, --grace seconds before. The same command resumes it.",
            show_default="no such time",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Show jobs, their states and hyperparameters, slots and launch order; launch nothing.",
        ),
    ] = False,
    detach: Annotated[
        bool,
        Option(
            "--detach",
            help="Return when the first jobs run. The experiment continues when the terminal is closed, with its "
            "output in supervisor.log in the run directory; `attach` follows it, `stop` stops it.",
        ),
    ] = False,
    as_json: AsJson = False,
    timesteps: Annotated[str | None, Option(hidden=True)] = None,
    *,
    executor_options: Mapping[str, str],
) -> None:
    """Run an experiment, or resume it: interrupted jobs resume, finished jobs are not run again.

    A finished job whose model.zip or vecnormalize.pkl has been removed is trained again: copy
    policies, do not move them.
    """
    if detach and dry_run:
        raise UsageError("run: --dry-run launches nothing that could continue; leave out --detach")
    if timesteps is not None:
        raise UsageError(
            f"run: there is no --timesteps; use --set total_timesteps={timesteps}, which is for all jobs"
        )

    def declared() -> tuple[Experiment, RunOptions, Mapping[str, JobVerdict] | None]:
        from orchestrator.client import end_time
        from orchestrator.client.options import RunOptions, with_on_change

        changes = overrides(set_, learner)
        if jobs.is_dir() and (run_dir is not None or changes or fresh):
            raise UsageError(
                f"{jobs}: a run directory is resumed as it is; --run-dir, --set, --learner and --fresh"
                " need the job file"
            )
        experiment, verdicts = _load(jobs, changes, skip_invalid=skip_invalid)
        default = Path("runs") / experiment.directory_name
        options = RunOptions(
            run_dir=jobs if jobs.is_dir() else run_dir or default,
            is_listed=True,
            max_parallel=None if max_parallel is None else _max_parallel(max_parallel),
            fresh=fresh,
            on_change=on_change.value,
            executor=executor,
            executor_options=executor_options,
            grace_s=grace,
            until=None if until is None else end_time.parse(until, grace),
        )
        return experiment, with_on_change(experiment, options), verdicts

    with interruptible("stopped; nothing was launched"):
        if dry_run:
            from orchestrator.examination.examining_process import Child

            with Child() as warm:  # it imports MuJoCo while the job file is read
                experiment, options, verdicts = declared()
                _show_plan(experiment, options, verdicts, warm, as_json=as_json)
            return
        from orchestrator.client.start import SupervisorProcess

        # It imports its packages while the job file is read.
        with contextlib.closing(SupervisorProcess()) as process:
            experiment, options, _ = declared()
            how = _How(as_it_is=jobs.is_dir(), detach=detach, as_json=as_json)
            raise typer.Exit(_run(experiment, options, process, how))


def _load(
    jobs: Path, changes: Mapping[str, Any], *, skip_invalid: bool
) -> tuple[Experiment, Mapping[str, JobVerdict] | None]:
    """Read a job file, or what a run directory goes on with; then with the verdicts of its jobs,
    whose robots need no examination.
    """
    if not jobs.is_dir():
        from orchestrator.jobfile import load

        return load(jobs, overrides=changes, skip_invalid=skip_invalid), None
    from orchestrator.client import recorded_run

    _refuse_robots(jobs)
    return recorded_run.load(jobs)


def _show_plan(
    experiment: Experiment,
    options: RunOptions,
    verdicts: Mapping[str, JobVerdict] | None,
    warm: Child,
    *,
    as_json: bool,
) -> None:
    """What a run would do."""
    from orchestrator.client import dry_run
    from orchestrator.terminal import output, plan_view

    with output.examination() as watch:
        plan = dry_run.dry_run(experiment, options, verdicts, watch=watch, warm=warm)
    if as_json:
        print_json(plan_view.facts(experiment, plan, options.run_dir))
    else:
        plan_view.show(experiment, plan, options.run_dir)


def _max_parallel(text: str) -> int | Literal["auto", "idle"]:
    """The value of ``--max-parallel``. :raises UsageError: it is none."""
    if text == "auto":
        return "auto"
    if text == "idle":
        return "idle"
    number = parse_max_parallel(text)
    if number is None:
        expected = "expected a whole number from 1 on, auto or idle"
        raise UsageError(f"run: --max-parallel {text}: {expected}")
    return number


def _refuse_robots(folder: Path) -> None:
    """:raises UsageError: it is no run directory, and has robots."""
    from orchestrator.core.paths import RunPaths
    from orchestrator.examination import robot_check
    from orchestrator.experiment import run_directory

    if run_directory.is_run_directory(RunPaths(folder)):
        return
    if any(robot_check.robot_files(folder, most_folders=MOST_FOLDERS)):
        advice = f"`orchestrator init {shlex.quote(str(folder))}` writes a job file for its robots"
        raise UsageError(
            f"{folder}: this folder is not a run directory, which `run` makes; {advice}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """How an experiment is run and shown."""

    as_it_is: bool
    """Whether a run directory goes on without a job file."""
    detach: bool
    as_json: bool


def _run(experiment: Experiment, options: RunOptions, process: SupervisorProcess, how: _How) -> int:
    """Run an experiment and show how it ended. Return the exit code."""
    from orchestrator.client import run as client
    from orchestrator.terminal import run_view, status_view

    with run_view.fitting_reporter(as_json=how.as_json) as reporter:
        display = run_view.RunDisplay(reporter)
        try:
            finished = client.run(
                experiment,
                options,
                display,
                process,
                as_it_is=how.as_it_is,
                detach=how.detach,
            )
        except client.Detached as detached:
            print_progress(str(detached))
            return 130
        display.look()
    if isinstance(finished, client.Underway):
        run_view.show_underway(finished, as_json=how.as_json)
        return 0
    status_view.show_end(
        finished.paths.root,
        finished.rows,
        exit_code=finished.exit_code,
        is_stopped=finished.is_stopped,
        as_json=how.as_json,
        notes=display.notes,
    )
    return finished.exit_code
