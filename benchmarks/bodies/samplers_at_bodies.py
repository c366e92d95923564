"""Samplers of this program that take the point of a trial from what they are told, and not from what
they were asked."""

from __future__ import annotations

import numpy as np
from optuna.trial import TrialState, create_trial

from orchestrator.features.search.searcher.cmaes_sampler import CmaesSampler
from orchestrator.features.search.searcher.optuna_samplers import OptunaSampler
from orchestrator.features.search.searcher.samplers import TrialOutcome
from orchestrator.features.search.searcher.space import Point


class OptunaAtBodies(OptunaSampler):
    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        self._study.tell(self._trials[number], state=TrialState.FAIL)  # as if never asked
        places = dict(zip(self._distributions, self._space.encode(point), strict=True))
        self._study.add_trial(
            create_trial(state=TrialState.RUNNING, params=places, distributions=self._distributions)
        )
        self._trials[number] = len(self._study.get_trials(deepcopy=False)) - 1
        super().tell(number, point, outcome)


class CmaesAtBodies(CmaesSampler):
    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        asked = self._distribution._asked
        if number in asked:
            generation, _ = asked[number]
            asked[number] = generation, np.array(self._space.encode(point))
        super().tell(number, point, outcome)
