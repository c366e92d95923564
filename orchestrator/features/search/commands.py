"""Commands on what a search has found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from orchestrator.commands.shared_options import AsJson, RunDir, print_json, print_text

app = typer.Typer()
group = typer.Typer(
    help="Hand over what a search has found to other programs; see docs/search.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(group, name="search")


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


@group.command()
def export(
    run_dir: RunDir,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="The file to write; to an earlier journal of the search, what is new is appended.",
            show_default="search/optuna-journal.log in the run directory",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the trials so far as an Optuna journal, which optuna-dashboard and Optuna itself open.

    Trials that wait at a rung are running there, and pruned when the search has come to its end.
    """
    from orchestrator.core.errors import UsageError
    from orchestrator.core.text import count
    from orchestrator.features.search.declaration.spec import INSTALL

    try:
        from orchestrator.features.search import optuna_journal
    except ModuleNotFoundError as error:
        raise UsageError(
            f"search export: needs Optuna, which is not installed ({error}): {INSTALL}"
        ) from None
    exported = optuna_journal.export(run_dir, out)
    trials = sum(exported.states.values())
    file = str(exported.file)
    if as_json:
        facts = {
            "states": dict(exported.states),
            "is_over": exported.is_over,
            "is_replaced": exported.is_replaced,
        }
        print_json({"file": file, "trials": trials, **facts})
        return
    of_states = ", ".join(f"{number:,} {state}" for state, number in exported.states.items())
    newer = (
        ""
        if exported.is_over
        else " The search has not ended: the same command exports newer trials."
    )
    replaced = (
        " What it had before was changed: restart an optuna-dashboard that shows it."
        * exported.is_replaced
    )
    shown = f"`optuna-dashboard {file}` shows them."
    print_text(
        f"{file}: {count(trials, 'trial')} ({of_states or 'none yet'}). {shown}{replaced}{newer}"
    )
