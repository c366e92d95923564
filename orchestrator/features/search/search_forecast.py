"""What ``run --dry-run`` says of a search."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, rough_duration
from orchestrator.experiment.run_plan import Plan, RunOptions
from orchestrator.features.search import changed_search, search_events, search_time
from orchestrator.features.search.declaration.declared_search import SearchDeclaration
from orchestrator.features.search.search_time import DoneSoFar, SearchTime
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast
from orchestrator.ledger import JobRow, Ledger


def done_so_far(
    experiment: Experiment,
    options: RunOptions,
    plan: Plan,
    ledger: Ledger,
    rows: Collection[JobRow],
) -> DoneSoFar | None:
    """:param rows: all jobs of ``ledger``.
    :raises ChangedError: another search has begun there, or one with another robot.
    """
    paths = RunPaths(options.run_dir)
    changed_search.resumed(experiment, options, ledger, paths)
    changed_search.refuse_another_robot(experiment, plan.verdicts, ledger, paths)
    return search_time.done_so_far(rows, search_events.spent(ledger))


def of_plan(
    experiment: Experiment, source: SearchDeclaration, plan: Plan, done: DoneSoFar | None
) -> Forecast:
    """:param done: None where nothing has been done yet."""
    scheduler = None if source.scheduler is None else asdict(source.scheduler)
    if source.search is None:
        return Forecast(facts={"search": None, "scheduler": scheduler})
    rest = source if done is None else replace(source, search=done.rest_of(source.search))
    assert rest.search is not None
    pairs = [(job, plan.verdicts[job.job_id]) for job in experiment.jobs_to_examine]
    examples = [(job, verdict.physics_s) for job, verdict in pairs if verdict.problem is None]
    time = search_time.of_search(
        examples,
        rest.search,
        source.scheduler,
        rest.limits(experiment),
        max(1, plan.backend.slots.lanes),
        done,
    )
    facts = _facts(experiment, source, time)
    return Forecast(lines=[_line(time)], facts={"search": facts, "scheduler": scheduler})


def _line(time: SearchTime) -> str:
    whole = f"about {rough_duration(time.longest_s)}"
    if time.with_rungs_s < time.longest_s:
        whole += f" if all trials are trained to their end, about {rough_duration(time.with_rungs_s)} with the rungs"
    bodies = count(time.measured, "body", "bodies")
    basis = (
        f"by the speed of the physics of {bodies}, measured here"
        if time.measured
        else "without a measured speed"
    )
    if time.begun is None:
        return f"estimated time: {whole}; {basis}"
    spent = time.begun.spent
    done = f"done so far: {count(spent.trials, 'trial')} and {spent.env_steps:,} env_steps"
    if not time.longest_s:
        return f"{done}; none remain"
    return f"{done}; estimated time of what remains: {whole}; {basis}"


def _facts(experiment: Experiment, source: SearchDeclaration, time: SearchTime) -> dict[str, Any]:
    assert source.search is not None
    limits = asdict(source.limits(experiment))
    spent = {"trials": 0, "env_steps": 0} if time.begun is None else time.begun.spent._asdict()
    return {
        **asdict(source.search),
        **{f"most_{key}": value for key, value in limits.items()},
        "estimate_s": round(time.longest_s, 1),
        "with_rungs_s": round(time.with_rungs_s, 1),
        "trials_so_far": spent["trials"],
        "env_steps_so_far": spent["env_steps"],
    }
