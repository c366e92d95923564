"""What is trained when a search has no further trial: the best ones again, and the unchanged job.

All are trained from nothing, with the same fresh seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.job import Job
from orchestrator.features.search.declaration.declared_search import jobs_at
from orchestrator.features.search.declaration.spec import ReevaluationSpec, SearchSpec
from orchestrator.features.search.estimates import estimates, ranked_by
from orchestrator.features.search.event_contents import REFERENCE
from orchestrator.features.search.history import History, Trial, is_measured
from orchestrator.features.search.searcher.further_seeds import declared_seeds, fresh_seeds
from orchestrator.features.search.trials import ranked
from orchestrator.jobfile import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTraining:
    """One that is to begin."""

    trial: Trial | None
    """Whose point is trained again; None: the unchanged job is trained."""
    seeds: Sequence[int]
    reevaluation: ReevaluationSpec

    @property
    def point(self) -> Mapping[str, Any]:
        """Empty of the unchanged job."""
        return {} if self.trial is None else self.trial.point

    @property
    def event_fields(self) -> Mapping[str, Any]:
        """Further content of the event that begins it."""
        fields: dict[str, Any] = (
            {"role": REFERENCE} if self.trial is None else {"reevaluates": self.trial.number}
        )
        if self.reevaluation.protocol is not None:
            fields["protocol"] = self.reevaluation.protocol
        return fields

    def jobs(self, experiment: Experiment, number: int) -> Sequence[Job]:
        """:param number: that it will have as a trial itself.
        :raises SpecError: its point does not fit to the length of this training.
        """
        name = f"t{number:05d}"
        point = None if self.trial is None else self.trial.point
        if self.trial is None:
            name = f"{name}-{REFERENCE}"
        return jobs_at(experiment, name, point, self.seeds, self.reevaluation.total_timesteps)


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
        FinalTraining(trial=trial, seeds=seeds, reevaluation=search.reevaluation)
        for trial in wanted
    ]


def _is_final(trial: Trial) -> bool:
    return trial.is_reevaluation or trial.role == REFERENCE


def _in_order(search: SearchSpec, history: History) -> Sequence[Trial]:
    """The finished trials, or their Pareto front, the best first; with a race, by what
    is believed of them.
    """
    in_order = ranked(history.asked, search.directions, search)
    if search.reevaluation.by == "value":
        return in_order
    found = estimates(search.space, [trial for trial in in_order if is_measured(trial)])
    return ranked_by(found, in_order, search.directions[0]) if found else in_order
