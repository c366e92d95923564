"""What is trained when a search has no further trial: the best ones again, and the unchanged job.

All are trained from nothing, with the same fresh seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.job import Job
from orchestrator.features.search.declaration.declared_search import jobs_at
from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.estimates import estimates, ranked_by
from orchestrator.features.search.event_contents import REFERENCE
from orchestrator.features.search.history import History, Trial, is_measured
from orchestrator.features.search.searcher.further_seeds import declared_seeds, fresh_seeds
from orchestrator.features.search.trials import ranked
from orchestrator.jobfile import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTraining:
    """One that is to begin."""

    jobs: Sequence[Job]
    point: Mapping[str, Any]
    """Empty of the unchanged job."""
    reevaluates: int | None
    """Number of the trial whose point it is; None: it is the unchanged job."""
    event_fields: Mapping[str, Any]
    """Further content of the event that begins it."""


def missing(experiment: Experiment, search: SearchSpec, history: History) -> list[FinalTraining]:
    """Those that were not begun yet, as they are declared now; none where there is nothing to train
    again.
    """
    best = _in_order(search, history)[: search.reevaluate]
    if not best:
        return []
    protocol = search.reevaluation.protocol
    begun = [trial for trial in history.trials if _is_final(trial) and trial.protocol == protocol]
    reevaluated = {trial.reevaluates for trial in begun}
    wanted: list[Trial | None] = [trial for trial in best if trial.number not in reevaluated]
    has_reference = any(trial.role == REFERENCE for trial in begun)
    if search.reevaluation.reference and not has_reference:
        wanted.append(None)
    own = declared_seeds(experiment, best[0])
    seeds = fresh_seeds(search, own, search.reevaluation.seeds or len(own))
    return [
        _training(experiment, search, trial, number, seeds)
        for number, trial in enumerate(wanted, len(history.trials))
    ]


def _is_final(trial: Trial) -> bool:
    return trial.is_reevaluation or trial.role == REFERENCE


def _in_order(search: SearchSpec, history: History) -> Sequence[Trial]:
    """The finished trials, or their Pareto front, the best first; with a race, by what that
    believes.
    """
    in_order = ranked(history.asked, search.directions, search)
    if search.reevaluation.by == "value":
        return in_order
    found = estimates(search.space, [trial for trial in in_order if is_measured(trial)])
    return ranked_by(found, in_order, search.directions[0]) if found else in_order


def _training(
    experiment: Experiment,
    search: SearchSpec,
    trial: Trial | None,
    number: int,
    seeds: Sequence[int],
) -> FinalTraining:
    """:param trial: None: the unchanged job.
    :param number: that it will have as a trial itself.
    """
    point = None if trial is None else trial.point
    name = f"t{number:05d}"
    event_fields: dict[str, Any] = {}
    if trial is None:
        name = f"{name}-{REFERENCE}"
        event_fields["role"] = REFERENCE
    if search.reevaluation.protocol is not None:
        event_fields["protocol"] = search.reevaluation.protocol
    return FinalTraining(
        jobs=jobs_at(experiment, name, point, seeds, search.reevaluation.total_timesteps),
        point=point or {},
        reevaluates=None if trial is None else trial.number,
        event_fields=event_fields,
    )
