"""The command ``best``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from orchestrator.commands.shared_options import AsJson, RunDir, print_json, print_text

app = typer.Typer()


@app.command()
def best(
    run_dir: RunDir,
    number: Annotated[
        int, Option("-n", "--number", min=1, help="How many trials to show, and to copy.")
    ] = 5,
    by: Annotated[
        str | None,
        Option(
            metavar="FIGURE",
            help="Rank by a measure of the task, a column such as eval_mean, or an expression of them such as "
            "'distance_m / energy_j'; the largest first. estimate: by a model of the finished trials.",
            show_default="the objectives of the search; eval_mean without a search",
        ),
    ] = None,
    smallest: Annotated[bool, Option("--smallest", help="With --by: the smallest first.")] = False,
    to: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="A new folder for robots, policies and evaluations of these trials, with a job file that trains them "
            "again.",
            show_default="nothing is copied",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best trials of a search: value, point and jobs. Of several objectives, that is the
    Pareto front.

    Without a search, jobs are ranked by eval_mean; those that differ in their seed alone are one
    trial. The exit code is 1 where all have ended and none has finished.
    """
    from orchestrator.features.search import best_view, ranking

    found = ranking.read(run_dir, number, by, is_smallest_first=smallest)
    job_file = None if to is None else found.copy(to)
    if as_json:
        print_json(found.facts())
    else:
        best_view.show(found)
        if job_file is not None:
            print_text(
                f"\nCopied to {to}. `orchestrator run {job_file}` trains what was copied again."
            )
    if found.is_over and not found.shown:
        raise typer.Exit(1)
