"""The command line: arguments to calls, results to exit codes, errors to one clear message."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from orchestrator.errors import DiskFullError, OrchestratorError, SpecError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.session import Finished, Plan
    from orchestrator.spec import Experiment

app = typer.Typer(
    name="orchestrator",
    help="Train many reinforcement-learning policies at once: every run a process of its own, pinned and supervised.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run directory, such as runs/robots.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output, and nothing else, on standard output.")]


class OnChangeChoice(StrEnum):
    refuse = "refuse"
    restart = "restart"
    keep = "keep"


@app.command()
def run(
    jobs: Annotated[Path, typer.Argument(metavar="JOBS.toml", help="The job file.")],
    run_dir: Annotated[
        Path | None, typer.Option(help="Where everything goes.  [default: runs/<name>]", show_default=False)
    ] = None,
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Jobs at once.  [default: the machine's cores]", show_default=False)
    ] = None,
    learner: Annotated[str | None, typer.Option(help="Learner for all jobs: auto or sb3.", show_default=False)] = None,
    executor: Annotated[str, typer.Option(help="What launches the jobs.")] = "local",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an existing run directory is set aside.")] = False,
    on_change: Annotated[
        OnChangeChoice, typer.Option(help="What to do with jobs that ran and are declared differently now.")
    ] = OnChangeChoice.refuse,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a default, such as ppo.n_steps=512. May be repeated."),
    ] = None,
    rebuild_ledger: Annotated[
        bool, typer.Option("--rebuild-ledger", help="Set a damaged ledger aside and make one from the job directories.")
    ] = False,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds that workers have to leave after Ctrl-C.")] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show jobs, slots and launch order; launch nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment, or go on with it: finished jobs are not run again, interrupted ones resume."""
    from orchestrator import session
    from orchestrator.spec import load, parse_override

    overrides = dict(map(parse_override, set_ or []))
    if learner is not None:
        overrides["learner"] = learner
    experiment = load(jobs, overrides=overrides)
    options = session.Options(
        run_dir=run_dir or Path("runs") / experiment.directory_name,
        max_parallel=max_parallel,
        fresh=fresh,
        on_change=on_change.value,
        rebuild_ledger=rebuild_ledger,
        executor=executor,
        grace_s=grace,
    )
    if dry_run:
        _show_plan(experiment, session.dry_run(experiment, options), options.run_dir, as_json=as_json)
        return
    raise typer.Exit(_run(experiment, options, jobs.read_text(), as_json=as_json))


def _run(experiment: Experiment, options: Any, given: str, *, as_json: bool) -> int:
    from orchestrator import display, session

    if as_json:
        return session.run(experiment, options, display.JsonReporter(), given=given).exit_code
    console = _console()
    if not console.is_terminal:
        finished = session.run(experiment, options, display.LineReporter(), given=given)
    else:
        live = display.LiveReporter(console)
        try:
            finished = session.run(experiment, options, live, given=given)
        finally:
            live.close()
    _show_end(console, finished)
    return finished.exit_code


def _show_end(console: Console, finished: Finished) -> None:
    from orchestrator import display

    root = finished.paths.root
    console.print()
    console.print(display.summary_table(finished.rows, title=f"{root}", alive=False))
    console.print(f"\nEverything is in {root}: summary.csv, and jobs/<job>/model.zip, progress.csv, timings.csv.")
    if finished.exit_code == 130:
        console.print("Stopped. The same command goes on where it was.", style="yellow")
    elif finished.exit_code:
        console.print(f"Some jobs did not succeed: `logs {root} JOB` shows why, `retry {root}` puts them back.", style="red")


def _show_plan(experiment: Experiment, plan: Plan, run_dir: Path, *, as_json: bool) -> None:
    facts = {
        "name": experiment.name,
        "run_dir": str(run_dir),
        "jobs_at_once": plan.slots.lanes,
        "cpus": [cpu.index for cpu in plan.machine.cpus],
        "warnings": list(plan.warnings),
        "jobs": [
            {
                "job_id": job.job_id,
                "xml": None if job.xml_source is None else str(job.xml_source),
                "task": job.spec.task or job.spec.env or job.spec.entry_point,
                "seed": job.spec.seed,
                "total_timesteps": job.spec.total_timesteps,
                "n_envs": job.spec.n_envs,
                "cores": job.resources.cores,
                "threads": job.resources.threads,
                "memory_mib": job.resources.memory_mib,
                "gpus": job.resources.gpus,
                "hyperparameters": dict(job.spec.hyperparameters),
            }
            for job in plan.jobs
        ],
    }
    if as_json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    from rich.table import Table
    from rich.text import Text

    console = _console()
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="yellow")
    title = f"{experiment.name}: {len(plan.jobs)} jobs, {plan.slots.lanes} at once, in this order, into {run_dir}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("job", "robot", "task", "timesteps", "n_envs", "cores", "threads", "memory"):
        table.add_column(column)
    for job in plan.jobs:
        table.add_row(
            Text(job.job_id),
            Text(job.xml_source.name if job.xml_source else "–"),
            Text(job.spec.task or job.spec.env or job.spec.entry_point or ""),
            f"{job.spec.total_timesteps:,}",
            str(job.spec.n_envs),
            str(job.resources.cores),
            str(job.resources.threads),
            f"{job.resources.memory_mib} MiB",
        )
    console.print(table)


@app.command()
def status(
    run_dir: RunDir,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until all jobs are over.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every job of a run directory."""
    from orchestrator import control, summary

    while True:
        snapshot = control.status(run_dir)
        if as_json:
            print(summary.to_json(snapshot.rows), end="", flush=True)
        else:
            _show_status(snapshot, clear=watch)
        if not watch or snapshot.over:
            return
        time.sleep(1.0)


def _show_status(snapshot: Any, *, clear: bool) -> None:
    from orchestrator import display

    console = _console()
    if clear and console.is_terminal:
        console.clear()
    who = f"supervised by {snapshot.holder}" if snapshot.holder else "no supervisor at work"
    console.print(display.summary_table(snapshot.rows, title=f"{snapshot.paths.root}: {who}", alive=bool(snapshot.holder)))


@app.command()
def logs(
    run_dir: RunDir,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job, or the beginning of its name.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the log grows, until the job is over.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last lines; 0 for all.")] = 200,
    attempt: Annotated[int | None, typer.Option(help="Which attempt.  [default: the last]", show_default=False)] = None,
) -> None:
    """Show what a worker printed."""
    from orchestrator import control

    for text in control.log(run_dir, job, follow=follow, lines=lines, attempt=attempt):
        sys.stdout.write(text)
        sys.stdout.flush()


@app.command()
def stop(
    run_dir: RunDir,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs to cancel; without, all stops.")] = None,
) -> None:
    """Stop an experiment, resumable as after Ctrl-C; or cancel some of its jobs."""
    from orchestrator import control

    print(control.stop(run_dir, jobs or []))


@app.command()
def retry(
    run_dir: RunDir,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Without, all failed and cancelled ones.")] = None,
) -> None:
    """Put failed and cancelled jobs back; they go on from their last checkpoint."""
    from orchestrator import control

    print(control.retry(run_dir, jobs or []))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what this machine offers, what will be used of it, and what would cause contention."""
    from orchestrator import doctor as doctors

    findings = doctors.examine()
    if as_json:
        print(doctors.to_json(findings))
    else:
        doctors.render(findings)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the job file, for editors."""
    from orchestrator.spec import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if not console.is_terminal:
        # In a pipe nothing is wrapped or cut: the reader may be a program.
        console = Console(highlight=False, width=10_000)
    return console


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)


def main() -> None:
    """Entry point: every :class:`OrchestratorError` becomes its message and its exit code."""
    try:
        app()
    except SpecError as error:
        count = len(error.problems)
        _fail(f"{error}\n{count} {'problem' if count == 1 else 'problems'}; nothing was launched", 2)
    except UsageError as error:
        _fail(f"error: {error}", 2)
    except DiskFullError as error:
        _fail(f"error: {error}", 1)
    except OrchestratorError as error:
        _fail(f"error: {error}", 1)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except BrokenPipeError:
        # The reader of our output went away (`… | head`): no reason to complain.
        sys.stderr.close()
        raise SystemExit(141) from None
