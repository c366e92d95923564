"""What a search was declared as in a run directory, and what is done where it is declared
differently now.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.errors import ChangedError
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import search_events, search_robots
from orchestrator.features.search.declaration.declared_search import (
    SearchDeclaration,
    compared_job,
    declaration_of,
)
from orchestrator.features.search.declaration.written import (
    as_begun,
    budget_differences,
    declare,
    differences,
    read_declaration,
    start_over,
    start_over_by,
    unreadable,
)
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile import Experiment, from_declaration
from orchestrator.ledger import Ledger, job_figures
from orchestrator.server.decide import on_change_option

BEGAN_OTHERWISE = "the {} that has begun here is declared differently now:"


def starts_over(experiment: Experiment, run_dir: Path) -> bool:
    """Return whether another search, or with another robot, or another matrix that is compared at
    rungs, has begun in a run directory: ``on_change = "restart"`` starts over then.
    """
    paths = RunPaths(run_dir)
    if not SearchPaths(run_dir).declaration.exists():
        return False
    before = read_declaration(paths)
    return bool(differences(before, experiment.declaration)) or search_robots.is_another(
        search_robots.recorded_robots(before), experiment
    )


def resumed_experiment(
    experiment: Experiment, ledger: Ledger | None, paths: RunPaths
) -> Experiment:
    """Return ``experiment`` as it goes on in a run directory: each job of a matrix that is compared
    pauses at the rung to which it has been promoted, or at the first one.

    :param ledger: of the run directory; None if there is none.
    :raises ChangedError: another search has begun here.
    """
    source = declaration_of(experiment)
    if source.search is None and source.scheduler is None:
        return experiment
    has_begun = ledger is not None and _has_begun(ledger, paths)
    if has_begun:
        _refuse_another(experiment, paths)
    else:
        _refuse_jobs_without(source, ledger, paths)
    if source.search is None:
        pauses = job_figures.pauses(ledger) if ledger is not None and has_begun else {}
        return _with_pauses(experiment, pauses)
    if has_begun:
        return as_begun(experiment, read_declaration(paths))
    return experiment


def _has_begun(ledger: Ledger, paths: RunPaths) -> bool:
    """Whether a search, or a comparison at rungs, has made something here that another declaration
    would not fit.
    """
    if search_events.began_at(paths) is not None:
        return True
    # A run may have ended before the searcher had entered anything: then there are a declaration, and
    # jobs that were launched to their first rung.
    if not SearchPaths(paths.root).declaration.exists():
        return False
    pauses = job_figures.pauses(ledger)
    return any(pauses[row.job_id] for row in ledger.jobs() if row.attempts)


def _refuse_jobs_without(source: SearchDeclaration, ledger: Ledger | None, paths: RunPaths) -> None:
    """:raises ChangedError: jobs have begun here that no search, or scheduler, knows."""
    if ledger is not None and any(row.attempts for row in ledger.jobs()):
        what = "scheduler" if source.search is None else "search"
        raise ChangedError(f"{paths.root}: its jobs were begun without [{what}]; {start_over()}")


def take_over(experiment: Experiment, paths: RunPaths) -> list[str]:
    """Let the search that runs go on as ``experiment`` declares it. Returns what differs: keys of
    its budget.

    :raises ChangedError: another search has begun here.
    """
    earlier = _refuse_another(experiment, paths)
    lines = budget_differences(earlier, experiment.declaration)
    if lines:
        begun = as_begun(experiment, earlier)
        declare(paths, begun, search_robots.recorded_robots(earlier))
    return lines


def refuse_another_robot(
    experiment: Experiment, now: Mapping[str, str], ledger: Ledger | None, paths: RunPaths
) -> None:
    """:param now: hashes of the robots in the middle and in a corner of the space.
    :raises ChangedError: the search has begun here with another robot.
    """
    if not experiment.makes_jobs or ledger is None or not _has_begun(ledger, paths):
        return
    before = search_robots.recorded_robots(read_declaration(paths))
    if line := search_robots.difference(before, now, experiment):
        raise ChangedError(
            f"{paths.root}: {BEGAN_OTHERWISE.format('search')}\n    {line}\n{search_robots.advice()}"
        )


def _refuse_another(experiment: Experiment, paths: RunPaths) -> Mapping[str, Any]:
    """The declaration of the search that has begun here. :raises ChangedError: that of
    ``experiment`` is another.
    """
    before = read_declaration(paths)
    if lines := differences(before, experiment.declaration):
        what = "search" if "search" in before["data"] else "comparison at rungs"
        text = f"{paths.root}: {BEGAN_OTHERWISE.format(what)}"
        raise ChangedError(
            "\n".join([text, *(f"    {line}" for line in lines), _on_change_advice()])
        )
    return before


def _on_change_advice() -> str:
    """What to do where something else is declared than has begun here."""
    return start_over_by(on_change_option("restart"))


def _with_pauses(experiment: Experiment, recorded: Mapping[str, int | None]) -> Experiment:
    """With jobs that pause where they are ``recorded`` to, even if they start over; all others at
    the first rung.
    """
    scheduler = declaration_of(experiment).scheduler
    assert scheduler is not None
    first = scheduler.min_env_steps
    jobs = tuple(
        compared_job(job, scheduler, recorded.get(job.job_id, first)) for job in experiment.jobs
    )
    return dataclasses.replace(experiment, jobs=jobs)


def declared_experiment(paths: RunPaths) -> Experiment:
    """The experiment of a search, or of jobs that are compared at rungs, as it was declared when it
    was last run.

    :raises SpecError: what it refers to is gone, such as its robot.
    :raises LedgerError: the declaration cannot be read.
    """
    declaration = read_declaration(paths)
    try:
        experiment = from_declaration(declaration)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(paths, error) from error
    return as_begun(experiment, declaration)
