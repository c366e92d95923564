"""What a search was declared as in a run directory, and what is done where it is declared
differently now.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.errors import ChangedError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.experiment.resuming import resume
from orchestrator.experiment.resuming.declared_changes import on_change
from orchestrator.features.search import search_events, search_robots
from orchestrator.features.search.declaration.declared_search import (
    SearchDeclaration,
    compared_job,
    declaration_of,
)
from orchestrator.features.search.declaration.written import (
    BUDGET,
    OF_THE_SEARCH,
    budget_differences,
    chosen_sampler,
    declare,
    differences,
    read_declaration,
    start_over,
    start_over_by,
    unreadable,
)
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile import Experiment, from_mapping
from orchestrator.ledger import Ledger, job_figures

BEGAN_OTHERWISE = "the {} that has begun here is declared differently now:"


def on_change_applied(experiment: Experiment, options: RunOptions) -> tuple[Experiment, RunOptions]:
    """What is run if another search, or another matrix that is compared at rungs, has begun in the
    run directory.

    ``on_change = "restart"``: this one, from the start. ``"keep"``: the earlier one, with the
    budget of this one. A search that goes on keeps the sampler that ``auto`` was when it began.
    """
    paths = RunPaths(options.run_dir)
    if options.fresh or not SearchPaths(paths.root).declaration.exists():
        return experiment, options
    before = read_declaration(paths)
    lines = differences(before, experiment.declaration)
    if options.on_change == "restart" and (lines or _is_another_robot(before, experiment)):
        return experiment, dataclasses.replace(options, fresh=True)
    if options.on_change == "keep" and lines:
        experiment = _merge_declaration(before, experiment, lines)
    return _as_begun(experiment, before), options


def _is_another_robot(before: Mapping[str, Any], experiment: Experiment) -> bool:
    return search_robots.is_another(search_robots.recorded_robots(before), experiment)


def _as_begun(experiment: Experiment, before: Mapping[str, Any]) -> Experiment:
    """With the sampler that ``auto`` was when the search of this declaration began."""
    source = experiment.job_source
    if not isinstance(source, SearchDeclaration):
        return experiment
    begun = source.begun_with(chosen_sampler(before))
    return dataclasses.replace(experiment, job_source=begun)


def _merge_declaration(
    before: Mapping[str, Any], experiment: Experiment, changes: Sequence[str]
) -> Experiment:
    """What was declared ``before``, but for what a resumed search takes over from ``experiment``.

    :param changes: what it does not take over.
    """
    now = experiment.declaration["data"]
    of_the_run = {*before["data"], *now} - {*OF_THE_SEARCH}
    data = _with_keys_of(before["data"], now, of_the_run)
    if "search" in data:
        data["search"] = _with_keys_of(data["search"], now.get("search", data["search"]), BUDGET)
    overrides = before["options"]["overrides"]
    skip = experiment.skip_invalid
    kept = from_mapping(
        data,
        source=experiment.source,
        base=Path(before["base"]),
        overrides=overrides,
        skip_invalid=skip,
    )
    warning = f"declared differently now, but kept as before: {'; '.join(changes)}"
    return dataclasses.replace(kept, text=experiment.text, warnings=(*kept.warnings, warning))


def _with_keys_of(
    table: Mapping[str, Any], by: Mapping[str, Any], keys: Collection[str]
) -> dict[str, Any]:
    """``table`` with these ``keys`` as they are in another one."""
    others = {key: value for key, value in table.items() if key not in keys}
    return others | {key: value for key, value in by.items() if key in keys}


def resumed_experiment(
    experiment: Experiment, options: RunOptions, ledger: Ledger | None, paths: RunPaths
) -> tuple[Experiment, RunOptions]:
    """``experiment`` with the jobs that its search has made so far and that are not settled, and
    ``options`` with the verdicts of these.

    Where the jobs of a matrix are compared, each pauses at the rung that it has been promoted to,
    or at the first one.

    :raises ChangedError: another search has begun here, or jobs that another feature decides about
        are declared where one has begun.
    """
    source = declaration_of(experiment)
    if source.search is None and source.scheduler is None:
        _refuse_another_source(experiment, ledger, paths)
        return experiment, options
    has_begun = ledger is not None and _has_begun(ledger, paths)
    if has_begun:
        _refuse_another(experiment, paths)
    else:
        _refuse_jobs_without(source, ledger, paths)
    if source.search is None:
        pauses = job_figures.pauses(ledger) if ledger is not None and has_begun else {}
        return _with_pauses(experiment, pauses), options
    if ledger is None or not has_begun:
        return experiment, options
    rows = ledger.jobs(decoded=False)
    left = [row for row in rows if not resume.is_settled(row, paths)]
    recorded = {row.job_id: row for row in rows}
    options = dataclasses.replace(options, verdicts=resume.verdicts(left), recorded=recorded)
    return dataclasses.replace(experiment, jobs=tuple(row.job for row in left)), options


def _has_begun(ledger: Ledger, paths: RunPaths) -> bool:
    """Whether a search, or a comparison at rungs, has made something here that another declaration
    would not fit.
    """
    if search_events.began_at(ledger) is not None:
        return True
    # A run may have ended before the searcher had entered anything: then there are a declaration, and
    # jobs that were launched to their first rung.
    if not SearchPaths(paths.root).declaration.exists():
        return False
    pauses = job_figures.pauses(ledger)
    return any(pauses[row.job_id] for row in ledger.jobs(decoded=False) if row.attempts)


def _refuse_jobs_without(source: SearchDeclaration, ledger: Ledger | None, paths: RunPaths) -> None:
    """:raises ChangedError: jobs have begun here that no search, or scheduler, knows."""
    if ledger is not None and any(row.attempts for row in ledger.jobs(decoded=False)):
        what = "scheduler" if source.search is None else "search"
        raise ChangedError(f"{paths.root}: its jobs were begun without [{what}]; {start_over()}")


def _refuse_another_source(experiment: Experiment, ledger: Ledger | None, paths: RunPaths) -> None:
    other = experiment.job_source
    if other is None or ledger is None or search_events.standing(ledger) == "none":
        return
    what = f"a search has begun here, and the job file declares a {other.noun} in its place"
    raise ChangedError(f"{paths.root}: {what}; {start_over()}")


def take_over(experiment: Experiment, paths: RunPaths) -> list[str]:
    """Let the search that runs go on as ``experiment`` declares it. Returns what differs: keys of
    its budget.

    :raises ChangedError: another search has begun here.
    """
    earlier = _refuse_another(experiment, paths)
    lines = budget_differences(earlier, experiment.declaration)
    if lines:
        begun = _as_begun(experiment, earlier)
        declare(paths, begun, search_robots.recorded_robots(earlier))
    return lines


def refuse_another_robot(
    experiment: Experiment,
    verdicts: Mapping[str, JobVerdict],
    ledger: Ledger | None,
    paths: RunPaths,
) -> None:
    """:param verdicts: also of the robots in the middle and in a corner of the space.
    :raises ChangedError: the search has begun here with another robot.
    """
    if not experiment.makes_jobs or ledger is None or not _has_begun(ledger, paths):
        return
    before = search_robots.recorded_robots(read_declaration(paths))
    now = search_robots.contents(experiment, verdicts)
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
    goes_on = f"{on_change('keep')} goes on with the earlier declaration"
    return f"{goes_on}; {start_over_by(on_change('restart'))}"


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
        experiment = resume.from_declaration(declaration)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(paths, error) from error
    return _as_begun(experiment, declaration)
