"""What has become of a trial, from what the ledger knows of its jobs: the events that say so."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.analysis.job_values import (
    JobValues,
    figures_of,
    hint_at_figures,
    job_values,
    why_missing,
)
from orchestrator.core.job import TERMINAL
from orchestrator.core.measure_expressions import ExpressionError
from orchestrator.features.search.declaration.spec import RETURN, SearchSpec
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.trial_values import aggregated_value
from orchestrator.ledger import Ledger, SummaryRow, job_figures
from orchestrator.ledger.job_figures import Figures
from orchestrator.server.requests import Request

GONE = Figures("CANCELLED", 0, None, "the job is no longer there")


def reached_event(
    search: SearchSpec | None,
    by: str,
    trial: Trial,
    figures: Sequence[Figures],
    measures: Mapping[str, Mapping[str, float | None]],
) -> SearchEvent:
    """Its jobs, which have these ``figures``, are paused at a rung.

    :param by: the expression that trials are compared by.
    :param measures: of the last episodes of training, by job; of jobs that have some.
    """
    how = "median" if search is None else search.aggregate
    known = [
        _known_at_rung(one, measures.get(job_id, {}))
        for job_id, one in zip(trial.jobs, figures, strict=True)
    ]
    value = aggregated_value(job_values(by, known).of_jobs, how)
    content = {"value": value, "env_steps": sum(one.env_steps for one in figures)}
    return SearchEvent(kind="reached", trial=trial.number, content=content)


def _known_at_rung(figures: Figures, measures: Mapping[str, float | None]) -> dict[str, float]:
    found = {**measures, RETURN: figures.ep_rew_mean}
    return {name: one for name, one in found.items() if one is not None}


def over(ledger: Ledger, search: SearchSpec | None, trial: Trial) -> SearchEvent:
    """Its jobs have succeeded. It has failed all the same if one of its values is not known."""
    rows = [ledger.summary_of(job_id) for job_id in trial.jobs]
    how = "median" if search is None else search.aggregate
    names: Sequence[str] = () if search is None else search.objectives
    axes = () if search is None else [axis.name for axis in search.measures]
    known = [figures_of(row) for row in rows]
    found = {text: job_values(text, known) for text in (*names, *axes)}
    values = [aggregated_value(found[text].of_jobs, how) for text in (*names, *axes)]
    why = next((_why_without(text, one, rows) for text, one in found.items() if one.why), "")
    content: dict[str, Any] = {
        "values": None if why else values[: len(names)],
        "measures": None if why else values[len(names) :],
        "env_steps": sum(row["env_steps"] for row in rows),
        "why": why,
    }
    if search is not None and search.race is not None and not why:
        content["of_seeds"] = list(found[names[0]].of_jobs)
    return SearchEvent(kind="over", trial=trial.number, content=content)


def _why_without(text: str, found: JobValues, rows: Sequence[SummaryRow]) -> str:
    """Why one of the jobs has no value of ``text``, and what may be meant if there is no such."""
    try:
        more = why_missing(text, rows)
    except ExpressionError:  # a measure whose name is no expression
        more = hint_at_figures(text, rows)
    return f"{found.why}; {more}" if more else found.why


def told_event(trial: Trial) -> SearchEvent:
    """What the sampler is told of a trial that is over, or that waits at a rung."""
    values = trial.values
    if not trial.is_over:
        values = None if trial.reached[-1] is None else [trial.reached[-1]]
    content = {"values": values, "measures": trial.measures, "env_steps": trial.env_steps}
    return SearchEvent(kind="told", trial=trial.number, content=content)


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
    found = job_figures.figures(ledger, [job_id for trial in failed for job_id in trial.jobs])
    for trial in failed:
        states = {job_id: found.get(job_id, GONE).state for job_id in trial.jobs}
        goes_on = not set(states.values()) <= set(TERMINAL)
        has_succeeded = any(states[job_id] == "SUCCEEDED" for job_id in trial.failed_jobs)
        if goes_on or has_succeeded:
            events.append(SearchEvent(kind="retried", trial=trial.number, content={}))
            left = [job_id for job_id, state in states.items() if state in ("FAILED", "CANCELLED")]
            requests += [Request(verb="retry", jobs=[job_id]) for job_id in left]
    return events, requests
