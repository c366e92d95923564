"""Commands that hand an experiment over to trackers."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import RunDir

app = typer.Typer()


@app.command()
def publish(
    run_dir: RunDir,
    to: Annotated[
        str, Option("--to", metavar="TRACKER", help="tensorboard, wandb, mlflow or trackio.")
    ],
    project: Annotated[
        str | None,
        Option(
            help="Project of wandb or trackio.", show_default="[track], or the experiment's name"
        ),
    ] = None,
    uri: Annotated[
        str | None,
        Option(
            help="Tracking URI of mlflow.",
            show_default="[track], or mlflow.db in the run directory",
        ),
    ] = None,
    mode: Annotated[
        str | None, Option(help="online or offline, of wandb.", show_default="[track], or online")
    ] = None,
) -> None:
    """Send learning curves, hyperparameters, results and videos of a run directory to an experiment
    tracker.

    What it has already is not sent again. With the table [track] of the job file, `run` sends all
    by itself.
    """
    from orchestrator.core.errors import UsageError
    from orchestrator.features.tracking import publish_command

    if mode not in (None, "online", "offline"):
        raise UsageError(f"publish: --mode {mode}: expected online or offline")
    given = {"project": project, "uri": uri, "mode": mode}
    with shared.interruptible("stopped; the same command sends the rest"):
        chosen = {name: value for name, value in given.items() if value is not None}
        shared.print_text(publish_command.publish(run_dir, to, chosen))
