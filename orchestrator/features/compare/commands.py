"""The command ``compare``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import AsJson
from orchestrator.core.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.machine.slots import MaxParallel

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
            "one * means several bodies: 'ppo-*,sac-*' compares two algorithms over the same bodies. A job id with a "
            "seed (hopper-s0) stands for all of its seeds.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        Option(
            metavar="FIGURE",
            help="Compare by this: a measure of the task, a column such as eval_mean, or an expression of them, "
            "such as 'distance_m / energy_j'.",
            show_default="of run directories speed and returns; of jobs the objective of a search, else the return",
        ),
    ] = None,
    race: Annotated[
        bool,
        Option(
            "--race",
            help="With --jobs A,B: train further seeds of both, the same for both, in a run directory beside "
            "this one, until it is decided which is higher or --most-seeds are spent. Run the same command again to "
            "continue.",
        ),
    ] = False,
    most_seeds: Annotated[
        int | None,
        Option(
            metavar="N",
            help="With --race: the budget of seeds of each job, those that it has included, from 3 to 200.",
            show_default="30",
        ),
    ] = None,
    smallest_difference: Annotated[
        float | None,
        Option(
            metavar="D",
            help="With --race: the smallest difference of means that matters. The race also ends once it is shown "
            "that the difference is not above it.",
        ),
    ] = None,
    fresh_seeds: Annotated[
        bool,
        Option(
            "--fresh-seeds",
            help="With --race: count only seeds that are trained for this race. Needed if a job was selected by its "
            "values; always on for jobs of a search.",
        ),
    ] = False,
    from_nothing: Annotated[
        bool,
        Option(
            "--from-nothing",
            help="With --race: train both from random weights. Needed if their initial policies differ.",
        ),
    ] = False,
    max_parallel: Annotated[
        str | None,
        Option(
            metavar="N|idle",
            help="With --race: largest number of jobs that run at once, as for `run`.",
            show_default="as many as there are cores",
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

    Of more than two, each is compared with the first. With --jobs A,B --race it trains until it is
    decided which of the two is better.
    """
    of_race = {
        "most_seeds": most_seeds,
        "smallest_difference": smallest_difference,
        "fresh_seeds": fresh_seeds,
        "from_nothing": from_nothing,
        "max_parallel": max_parallel,
    }
    if race:
        _race(runs, jobs, by, of_race, output, as_json=as_json)
        return
    _refuse_without_race(of_race)
    if jobs is not None:
        _compare_jobs(runs, jobs, by, output, as_json=as_json)
        return
    from orchestrator.features.compare import comparison, comparison_view

    if not 2 <= len(runs) <= len(comparison.LETTERS):
        problem = (
            f"compare: expected two to {len(comparison.LETTERS)} run directories, found {len(runs)}"
        )
        within = f"; `compare {runs[0]} --jobs A,B` compares jobs of one run directory"
        raise UsageError(problem + (within if len(runs) == 1 else ""))
    compared = comparison.compare_with_first(runs, by)
    if output is not None:
        from orchestrator.features.compare import comparison_page

        comparison_page.write(output, compared)
    if as_json:
        shared.print_json(comparison.facts(compared))
    else:
        comparison_view.show(compared, output)


def _refuse_without_race(of_race: Mapping[str, Any]) -> None:
    from orchestrator.features.compare import api

    api.refuse_without_race(of_race)


def _race(
    runs: Sequence[Path],
    jobs: str | None,
    by: str | None,
    of_race: Mapping[str, Any],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """:param of_race: what was given for a race alone, by name."""
    if jobs is None:
        found = f", found {len(runs)} run directories" if len(runs) > 1 else ": add --jobs A,B"
        raise UsageError(f"compare: --race is between two jobs of one run directory{found}")
    run_dir = _only_run(runs, output)
    from orchestrator.features.compare import race, race_view
    from orchestrator.features.compare.contestants import Conditions
    from orchestrator.features.compare.race_options import RaceOptions, checked_rules

    options = RaceOptions(
        rules=checked_rules(of_race["most_seeds"], of_race["smallest_difference"]),
        conditions=Conditions(
            is_fresh=of_race["fresh_seeds"], from_nothing=of_race["from_nothing"]
        ),
        max_parallel=_max_parallel(of_race["max_parallel"]),
        progress=sys.stderr,
    )
    with shared.interruptible("stopped; run the same command again to go on"):
        raced = race.race(run_dir, _names(jobs), by, options)
    if as_json:
        shared.print_json(raced.facts())
    else:
        race_view.show(raced)


def _max_parallel(text: str | None) -> MaxParallel:
    """:raises UsageError: it is no value of ``--max-parallel``."""
    if text is None:
        return None
    if text == "idle":
        return "idle"
    number = shared.parse_max_parallel(text)
    if number is None:
        raise UsageError(
            f"compare: --max-parallel {text}: expected a whole number from 1 on, or idle"
        )
    return number


def _names(jobs: str) -> list[str]:
    return [name.strip() for name in jobs.split(",") if name.strip()]


def _only_run(runs: Sequence[Path], output: Path | None) -> Path:
    """:raises UsageError: there are several, or a page is wanted of them."""
    if len(runs) != 1:
        raise UsageError(
            f"compare: --jobs compares jobs of one run directory, found {len(runs)} run directories"
        )
    if output is not None:
        raise UsageError(
            f"compare: --output and --jobs do not go together; `report {runs[0]}` writes a page"
        )
    return runs[0]


def _compare_jobs(
    runs: Sequence[Path], jobs: str, by: str | None, output: Path | None, *, as_json: bool
) -> None:
    from orchestrator.features.compare import job_groups, job_groups_view

    compared = job_groups.compare_jobs(_only_run(runs, output), _names(jobs), by)
    if as_json:
        shared.print_json(compared.facts())
    else:
        job_groups_view.show(compared)
