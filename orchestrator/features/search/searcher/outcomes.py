"""What has become of a trial, from what the ledger knows of its jobs: the events that say so."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.core.job import TERMINAL
from orchestrator.features.search.declaration.rules import COLUMNS
from orchestrator.features.search.declaration.spec import Aggregate, SearchSpec
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.ledger import Ledger, Request, job_figures
from orchestrator.ledger.job_figures import Figures

AGGREGATES: Mapping[Aggregate, Callable[[Iterable[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "min": min,
}


GONE = Figures("CANCELLED", 0, None, "the job is no longer there")


def reached_event(
    search: SearchSpec | None, trial: Trial, figures: Sequence[Figures]
) -> SearchEvent:
    """Its jobs, which have these ``figures``, are paused at a rung."""
    how = "median" if search is None else search.aggregate
    value = aggregated_value([one.ep_rew_mean for one in figures], how)
    content = {"value": value, "env_steps": sum(one.env_steps for one in figures)}
    return SearchEvent(kind="reached", trial=trial.number, content=content)


def over(ledger: Ledger, search: SearchSpec | None, trial: Trial) -> SearchEvent:
    """Its jobs have succeeded. It has failed all the same if one of its values is not known."""
    rows = [ledger.summary_of(job_id) for job_id in trial.jobs]
    names: Sequence[str] = () if search is None else search.objectives
    axes = () if search is None else [axis.name for axis in search.measures]

    def value_of(name: str) -> float | None:
        found: list[Any] = [{**row, **(row["measures"] or {})}.get(name) for row in rows]
        numbers = [one if isinstance(one, int | float) else None for one in found]
        return aggregated_value(numbers, "median" if search is None else search.aggregate)

    values = list(map(value_of, names))
    measures = list(map(value_of, axes))
    missing = [
        name
        for name, value in zip((*names, *axes), values + measures, strict=True)
        if value is None
    ]
    columns = {name: one for name, one in rows[0].items() if name in COLUMNS} | (
        rows[0]["measures"] or {}
    )
    known = sorted(name for name, one in columns.items() if isinstance(one, int | float))
    content = {
        "values": None if missing else values,
        "measures": None if missing else measures,
        "env_steps": sum(row["env_steps"] for row in rows),
        "why": f"{missing[0]} has no value; known are {', '.join(known)}" if missing else "",
    }
    return SearchEvent(kind="over", trial=trial.number, content=content)


def failed_event(trial: Trial, figures: Sequence[Figures]) -> SearchEvent:
    """One of its jobs, which have these ``figures``, has FAILED or is CANCELLED."""
    pairs = zip(trial.jobs, figures, strict=True)
    ended = {job_id: one for job_id, one in pairs if one.state in ("FAILED", "CANCELLED")}
    job_id, first = max(ended.items(), key=lambda item: item[1].state == "FAILED")
    content = {
        "values": None,
        "measures": None,
        "env_steps": sum(one.env_steps for one in figures),
        "why": first.message or f"{job_id} is {first.state}",
        "failed": list(ended),
    }
    return SearchEvent(kind="over", trial=trial.number, content=content)


def retry_events(
    ledger: Ledger, failed: Collection[Trial]
) -> tuple[list[SearchEvent], list[Request]]:
    """Those of the ``failed`` trials go on of which the user has retried a job, with all of their
    seeds.
    """
    events = list[SearchEvent]()
    requests = list[Request]()
    # Read before the states: what is cancelled by then is TERMINAL.
    cancelled = job_figures.requested_jobs(ledger, "cancel")
    found = job_figures.figures(ledger, [job_id for trial in failed for job_id in trial.jobs])
    for trial in failed:
        states = {job_id: found.get(job_id, GONE).state for job_id in trial.jobs}
        goes_on = not set(states.values()) <= set(TERMINAL)
        has_succeeded = any(states[job_id] == "SUCCEEDED" for job_id in trial.failed_jobs)
        if (goes_on or has_succeeded) and cancelled.isdisjoint(trial.jobs):
            events.append(SearchEvent(kind="retried", trial=trial.number, content={}))
            left = [job_id for job_id, state in states.items() if state in ("FAILED", "CANCELLED")]
            requests += [Request(verb="retry", job_id=job_id) for job_id in left]
    return events, requests


def aggregated_value(values: Sequence[float | None], how: Aggregate) -> float | None:
    """The value of a trial from those of its seeds; None where one of them has none."""
    numbers = [value for value in values if value is not None]
    return AGGREGATES[how](numbers) if len(numbers) == len(values) else None
