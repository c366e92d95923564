"""Commands on whole experiments, which run in this terminal, in another one or in none."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import AsJson, RunDir
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.text import listed

JOBS_SHOWN = 10

app = typer.Typer()


@app.command()
def reload(
    run_dir: RunDir,
    jobs: Annotated[
        Path | None,
        Argument(
            metavar="[JOBS.toml]",
            help="The job file.",
            show_default="the one that the run was started with",
        ),
    ] = None,
) -> None:
    """Add new jobs of the job file to a running experiment. Jobs that have begun must be declared as
    before.
    """
    from orchestrator.client import control

    with shared.interruptible("stopped; no job was added"):
        shared.print_text(control.reload(run_dir, jobs))


@app.command()
def attach(run_dir: RunDir, as_json: AsJson = False) -> None:
    """Follow a running experiment to its end, wherever it was started; ends with its exit code.

    Ctrl-C ends this command alone: the experiment continues.
    """
    from orchestrator.client import attach as client
    from orchestrator.client import run_snapshot
    from orchestrator.experiment import resume_advice
    from orchestrator.terminal import run_view, status_view

    commands = f"`attach {run_dir}` follows it again, `stop {run_dir}` stops it"
    with shared.interruptible(f"detached; the experiment continues. {commands}"):
        paths, holder = client.supervisor_to_follow(run_dir)
        with run_view.fitting_reporter(as_json=as_json) as reporter:
            first = run_snapshot.status(run_dir)
            reporter.event("attached", status_view.counts(first), run_dir=str(run_dir))
            display = run_view.RunDisplay(reporter)
            end = client.follow(paths, holder, display)
            display.look()
        last = display.snapshot or first
        is_left = last.standing == "underway" or any(
            row["state"] in ("PENDING", "RUNNING") for row in last.rows
        )
        status_view.show_end(
            paths.root,
            last.rows,
            exit_code=end.exit_code,
            is_stopped=end.exit_code == 130 and is_left,
            as_json=as_json,
            how_to_resume=resume_advice.how_to_resume(paths),
            notes=display.notes,
            error=end.message,
        )
        raise typer.Exit(end.exit_code)


@app.command()
def wait(
    run_dir: RunDir,
    jobs: Annotated[
        list[str] | None,
        Argument(
            metavar="[JOB]...",
            help="Jobs to wait for, also by patterns; if none are named, the end of the whole experiment.",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        Option(
            metavar="DURATION",
            help="Longest time to wait, such as 2h or 90min.",
            show_default="no limit",
        ),
    ] = None,
) -> None:
    """Wait until an experiment, or some of its jobs, have ended; ends with the exit code of `run`.

    That is: 0 if all jobs succeeded, 1 if some did not or the supervisor was killed, 130 if jobs
    were stopped or are paused. When the time is over it is 124. Ctrl-C ends this command alone: the
    experiment continues.
    """
    from orchestrator.client import attach as client
    from orchestrator.client import run_snapshot
    from orchestrator.client.run_watch import with_notes
    from orchestrator.terminal import jobs_table

    limit_s = math.inf if timeout is None else _timeout_s(timeout)
    with shared.interruptible(
        f"no longer waiting; the experiment continues. `stop {run_dir}` stops it"
    ):
        end = client.wait(run_dir, jobs or [], timeout_s=limit_s)
    if end.rows:
        which = f" ({listed([row['job_id'] for row in end.rows], JOBS_SHOWN)})" if jobs else ""
        shared.print_text(
            f"{run_dir}: {jobs_table.counts_text(Counter(row['state'] for row in end.rows))}{which}"
        )
    if end.problem:
        shared.print_progress(f"error: {end.problem}")
    elif end.exit_code == 1 and not jobs:
        with contextlib.suppress(OrchestratorError):  # it is gone, or another one begins there
            for note in with_notes(run_snapshot.status(run_dir)).notes:
                shared.print_text(note.text)
    raise typer.Exit(end.exit_code)


def _timeout_s(text: str) -> float:
    """The value of ``--timeout``; a number alone is one of seconds. :raises UsageError: it is
    none.
    """
    from orchestrator.keys.value_types import ExpectedError, parse_duration

    try:
        return parse_duration(f"{text}s" if text.strip().isdecimal() else text)
    except ExpectedError as error:
        raise UsageError(f"wait: --timeout {text}: {error}") from None


@app.command()
def clean(
    run_dir: RunDir,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what a run directory does not need any more; it can be resumed, played and reported as
    before.

    That is, among others: what `run --fresh` and `--on-change=restart` have set aside, damaged
    checkpoints, logs of attempts before the last one, and the older checkpoints of jobs that
    succeeded. Use --dry-run first.
    """
    from orchestrator.client import cleaning
    from orchestrator.terminal import clean_view

    cleaned = cleaning.clean(run_dir, dry_run=dry_run)
    if as_json:
        shared.print_json(clean_view.facts(cleaned))
    else:
        clean_view.show(cleaned)
    for problem in cleaned.problems:
        shared.print_progress(f"warning: {problem}")
    raise typer.Exit(1 if cleaned.problems else 0)


@app.command("list")
def list_experiments(
    is_all: Annotated[
        bool, Option("--all", help="Show experiments that have finished, too.")
    ] = False,
    all_users: Annotated[
        bool,
        Option("--all-users", help="Show who holds which CPUs of this machine, of all users."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show your experiments on this machine that run or can be resumed, wherever they were
    started; with --all-users, who holds which CPUs.
    """
    if all_users and is_all:
        raise UsageError("list: --all is for your own experiments; leave out --all or --all-users")
    if all_users:
        _list_all_users(as_json=as_json)
        return
    from orchestrator.experiment import run_index
    from orchestrator.terminal import list_view

    runs = run_index.listed_runs()
    if as_json:
        shared.print_json(
            [list_view.facts(run) for run in list_view.runs_to_list(runs, is_all=is_all)]
        )
    else:
        list_view.show(runs, is_all=is_all)


def _list_all_users(*, as_json: bool) -> None:
    from orchestrator.machine.cpu_locks import CpuLocks, locks_folder
    from orchestrator.terminal import holders_view

    runs = holders_view.by_run(CpuLocks(locks_folder()).others())
    if as_json:
        shared.print_json(runs)
    else:
        holders_view.show(runs)
