"""``orchestrator.compare``: jobs of one run directory compared, or raced, from a Python program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option, python_program
from orchestrator.features.compare.job_groups import JobComparison, compare_jobs

if TYPE_CHECKING:  # which trains, and a comparison only reads
    from orchestrator.features.compare.race_result import RaceResult
    from orchestrator.machine.slots import MaxParallel


@overload
def compare(
    run_dir: str | os.PathLike[str],
    jobs: Sequence[str],
    by: str | None = None,
    *,
    race: Literal[False] = False,
) -> JobComparison: ...


@overload
def compare(
    run_dir: str | os.PathLike[str],
    jobs: Sequence[str],
    by: str | None = None,
    *,
    race: Literal[True],
    most_seeds: int | None = None,
    smallest_difference: float | None = None,
    fresh_seeds: bool = False,
    from_nothing: bool = False,
    max_parallel: MaxParallel = None,
    show: bool = False,
) -> RaceResult: ...


def compare(
    run_dir: str | os.PathLike[str],
    jobs: Sequence[str],
    by: str | None = None,
    *,
    race: bool = False,
    most_seeds: int | None = None,
    smallest_difference: float | None = None,
    fresh_seeds: bool = False,
    from_nothing: bool = False,
    max_parallel: MaxParallel = None,
    show: bool = False,
) -> JobComparison | RaceResult:
    """Compare jobs of a run directory over their seeds, each with the first.

    ``orchestrator.compare("runs/bodies", ["parent", "child"], by="distance_m").others[0].figures``
    has the difference of means with its interval, p, and the probability that a training of the
    child is higher.

    With ``race=True`` two jobs get further seeds, the same for both, until it is decided which is
    higher, or the budget is spent. They are trained in a run directory beside ``run_dir``; after an
    interruption, the same call goes on. The arguments after ``race`` are for that alone.

    :param jobs: names of jobs without their seeds, at least two. A name with one ``*`` means
        several bodies: ``["ppo-*", "sac-*"]`` compares two algorithms over the bodies that both
        have.
    :param by: a measure, a column such as ``eval_mean`` or an expression of them, such as
        ``"distance_m / energy_j"``; None: the objective of a search that has made the jobs, else the
        return of the evaluation, or that of training where not all jobs were evaluated.
    :param most_seeds: the budget, of each job, those that it has included: 3 to 200; the default
        is 30.
    :param smallest_difference: of the means, in the unit of the figure, the smallest that matters:
        that there is none above it is a decision, too.
    :param fresh_seeds: whether only seeds that are trained for the race count. Always so where a
        search has made the jobs, or has compared them at rungs.
    :param from_nothing: whether both jobs begin with random weights, whatever they are declared to
        start from.
    :param max_parallel: as for :func:`orchestrator.run`.
    :param show: print one line per event of the race.
    :raises UsageError: it is no run directory, a name means no job, there is no such figure, no job
        of a group has it, the groups have no body in common, or the jobs cannot be raced.
    :raises RunInterrupted: a race was stopped, and every worker has exited; the same call goes on.
    :raises DiskFullError: a race has stopped; the same call goes on.
    :raises SupervisorError: likewise.
    """
    with python_program():
        if isinstance(jobs, str):
            expected = f"expected a list of names, such as {jobs.split(',')}"
            raise UsageError(f"compare: jobs={jobs!r}: {expected}")
        names = list(jobs)
        for name in names:
            if not isinstance(name, str):
                raise UsageError(f"compare: jobs={names!r}: expected names of jobs, not {name!r}")
        if not isinstance(by, str | None):
            expected = 'a measure, a column or an expression, such as "distance_m"'
            raise UsageError(f"compare: by={by!r}: expected {expected}")
        arguments = {
            "most_seeds": most_seeds,
            "smallest_difference": smallest_difference,
            "fresh_seeds": fresh_seeds,
            "from_nothing": from_nothing,
            "max_parallel": max_parallel,
            "show": show,
        }
        if not race:
            refuse_without_race(arguments)
            return compare_jobs(Path(run_dir), names, by)
        from orchestrator import api
        from orchestrator.features.compare import race as races
        from orchestrator.features.compare.contestants import Conditions
        from orchestrator.features.compare.race_options import RaceOptions, checked_rules

        options = RaceOptions(
            rules=checked_rules(most_seeds, smallest_difference),
            conditions=Conditions(is_fresh=fresh_seeds, from_nothing=from_nothing),
            max_parallel=api.checked_max_parallel(max_parallel),
            progress=sys.stdout if show else None,
        )
        return races.race(api.directory(run_dir), names, by, options)


def refuse_without_race(arguments: Mapping[str, object]) -> None:
    """Refuse what is for a race alone.

    :param arguments: by name; None and False: not given.
    :raises UsageError: one of them is given.
    """
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given:
        raise UsageError(f"compare: {option(given[0])} is for a race: add {option('race', True)}")
