"""The command ``selftest``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import AsJson
from orchestrator.core.errors import UsageError

app = typer.Typer()


@app.command()
def selftest(
    minutes: Annotated[
        float, Option(min=0.1, help="Minutes for which new rounds are begun.")
    ] = 10.0,
    seed: Annotated[
        int | None,
        Option(
            min=0,
            help="Seed of the faults and their moments, to repeat a selftest.",
            show_default="random",
        ),
    ] = None,
    only_round: Annotated[
        int | None,
        Option(
            "--round",
            min=1,
            metavar="K",
            help="Take only round K of the selftest with --seed.",
            show_default="all",
        ),
    ] = None,
    folder: Annotated[
        Path,
        Option(
            "--dir",
            help="Directory in which the trainings get a folder; its file system is tested.",
        ),
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Test this machine: small trainings that are killed, stopped and obstructed must end like
    undisturbed ones.
    """
    from orchestrator.features.selftest import campaign, result_view
    from orchestrator.terminal import background_output

    if only_round is not None and seed is None:
        raise UsageError(
            f"--round {only_round}: needs --seed, the seed of the selftest that is to be repeated"
        )
    options = campaign.SelftestOptions(
        minutes=minutes, seed=seed, only_round=only_round, folder=folder
    )
    with background_output.standard_output_in_background():
        result = campaign.selftest(options, shared.print_progress)
    if as_json:
        shared.print_text(result.to_json())
    else:
        result_view.show(result)
    raise typer.Exit(result.exit_code)
