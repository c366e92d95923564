"""The command ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import AsJson
from orchestrator.core.errors import UsageError

app = typer.Typer()


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        Argument(
            metavar="RUN_A RUN_B...",
            help="Run directories of experiments, or of benchmarks, or files machine.json of 'python -m "
            "benchmarks.machine': two to eight.",
        ),
    ],
    output: Annotated[
        Path | None,
        Option(
            metavar="FILE.html",
            help="Also write a web page: learning curves over each other, settings, figures.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare experiments or benchmarks, such as of two machines, versions or settings: ratios with
    intervals.

    Of more than two, each is compared with the first.
    """
    from orchestrator.features.compare import comparison, comparison_view

    if not 2 <= len(runs) <= len(comparison.LETTERS):
        problem = (
            f"compare: expected two to {len(comparison.LETTERS)} run directories, found {len(runs)}"
        )
        within = (
            f'; `report {runs[0]}` compares the jobs of one run, in its section "Varied parameters"'
        )
        raise UsageError(problem + (within if len(runs) == 1 else ""))
    compared = comparison.compare_with_first(runs)
    if output is not None:
        from orchestrator.features.compare import comparison_page

        comparison_page.write(output, compared)
    if as_json:
        shared.print_json(comparison.facts(compared))
    else:
        comparison_view.show(compared, output)
