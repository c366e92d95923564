"""The command ``compare``."""

from __future__ import annotations

from collections.abc import Sequence
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
            "benchmarks.machine': two to eight. With --jobs: one run directory.",
        ),
    ],
    jobs: Annotated[
        str | None,
        Option(
            metavar="A,B,...",
            help="Compare these jobs of one run directory over their seeds, each with the first. A name with "
            "one * means several bodies: 'ppo-*,sac-*' compares two algorithms over the same bodies.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        Option(
            metavar="FIGURE",
            help="With --jobs: a measure of the task, eval_mean or ep_rew_mean.  [default: the return]",
        ),
    ] = None,
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
    if jobs is not None:
        _compare_jobs(runs, jobs, by, output, as_json=as_json)
        return
    if by is not None:
        raise UsageError("compare: --by is for jobs of one run directory: give --jobs A,B, too")
    from orchestrator.features.compare import comparison, comparison_view

    if not 2 <= len(runs) <= len(comparison.LETTERS):
        problem = (
            f"compare: expected two to {len(comparison.LETTERS)} run directories, found {len(runs)}"
        )
        within = f"; `compare {runs[0]} --jobs A,B` compares jobs of one run directory"
        raise UsageError(problem + (within if len(runs) == 1 else ""))
    compared = comparison.compare_with_first(runs)
    if output is not None:
        from orchestrator.features.compare import comparison_page

        comparison_page.write(output, compared)
    if as_json:
        shared.print_json(comparison.facts(compared))
    else:
        comparison_view.show(compared, output)


def _compare_jobs(
    runs: Sequence[Path], jobs: str, by: str | None, output: Path | None, *, as_json: bool
) -> None:
    from orchestrator.features.compare import job_groups, job_groups_view

    if len(runs) != 1:
        raise UsageError(
            f"compare: --jobs compares jobs of one run directory, found {len(runs)} run directories"
        )
    if output is not None:
        raise UsageError(
            f"compare: --output and --jobs do not go together; `report {runs[0]}` writes a page"
        )
    names = [name.strip() for name in jobs.split(",") if name.strip()]
    compared = job_groups.compare_jobs(runs[0], names, by)
    if as_json:
        shared.print_json(compared.facts())
    else:
        job_groups_view.show(compared)
