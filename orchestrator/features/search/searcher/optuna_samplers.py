"""TPE, a Gaussian process and NSGA-II, by Optuna, as samplers of a search."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from orchestrator.features.search.declaration.spec import SearchSpec, sign_of
from orchestrator.features.search.searcher.simple_samplers import FurtherOutcome, TrialOutcome
from orchestrator.features.search.searcher.space import Point, Space

optuna.logging.set_verbosity(optuna.logging.WARNING)


def _gaussian_process(**options: Any) -> optuna.samplers.GPSampler:
    """One that takes values as noisy, and counts with trials that still train."""
    # Optuna fits it with torch, which would use the cores of the trainings. A sum also has the same
    # bits then, whatever the machine.
    os.environ["OMP_NUM_THREADS"] = "1"
    return optuna.samplers.GPSampler(deterministic_objective=False, **options)


KINDS: Mapping[str, Callable[..., optuna.samplers.BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "gp": _gaussian_process,
    "nsga2": optuna.samplers.NSGAIISampler,
}


class OptunaSampler:
    """A study in memory, of which every trial is asked for and told by its number.

    Ranges are those of the unit cube, choices are their positions: Optuna knows no lists.
    """

    def __init__(self, spec: SearchSpec) -> None:
        self._space = Space(spec.space)
        self._distributions: dict[str, BaseDistribution] = {
            dimension.key: CategoricalDistribution(range(len(dimension.choices)))
            if dimension.choices
            else FloatDistribution(0.0, 1.0)
            for dimension in spec.space
        }
        self._is_gaussian_process = spec.sampler == "gp"
        self._has_generations = spec.sampler == "nsga2"
        sampler = KINDS[spec.sampler](seed=spec.seed, **spec.sampler_options)
        self._study = optuna.create_study(directions=list(spec.directions), sampler=sampler)
        self._signs = [sign_of(direction) for direction in spec.directions]
        self._worst: list[float] | None = None
        """The worst value of each objective so far, of further seeds, too: that of a failed trial."""
        self._asked: optuna.Trial | None = None
        """The trial that was asked for last."""
        self._trials: dict[int, int] = {}
        """Number of a trial that is not told yet → its number in the study."""

    def add(self, number: int, point: Point) -> None:
        self._study.enqueue_trial(self._places(point))
        self._trials[number] = self._study.ask(self._distributions).number

    def _places(self, point: Point) -> dict[str, Any]:
        """``point`` as the study has it."""
        units = self._space.encode(point)
        return {
            dimension.key: int(unit * len(dimension.choices)) if dimension.choices else unit
            for dimension, unit in zip(self._space.dimensions, units, strict=True)
        }

    def reject(self, number: int, point: Point, excess: Sequence[float] | None) -> None:
        """A pruned trial beyond its constraints: TPE takes it for worse than all within them. The
        Gaussian process, which knows of no pruned trials, is told the worst value so far, and so is
        each of them where nothing is known of constraints.
        """
        if self._is_gaussian_process or excess is None:
            self.tell(number, point, TrialOutcome(values=None))
            return
        trial = self._asked
        assert trial is not None
        assert trial.number == self._trials.pop(number), "it was asked for last"
        for place, value in enumerate(excess):
            trial.set_constraint(str(place), value)
        self._study.tell(trial, state=TrialState.PRUNED)

    def ask(self, number: int) -> Point:
        trial = self._study.ask(self._distributions)
        self._asked = trial
        self._trials[number] = trial.number
        units = []
        for dimension in self._space.dimensions:
            value = trial.params[dimension.key]
            choices = len(dimension.choices)
            units.append((value + 0.5) / choices if choices else value)
        return self._space.decode(units)

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        trial = self._trials.pop(number)
        if outcome.values is not None:
            self._note_worst(outcome.values)
        values = outcome.values or self._worst
        if values is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, list(values))

    def _note_worst(self, values: Sequence[float]) -> None:
        pairs = zip(self._signs, self._worst or values, values, strict=True)
        self._worst = [sign * min(sign * before, sign * now) for sign, before, now in pairs]

    def tell_again(self, number: int, point: Point, outcome: FurtherOutcome) -> None:
        """A further trial with the same parameters: TPE and the Gaussian process take each as an
        observation. NSGA-II compares the individuals of generations, to which it would not belong.
        """
        if self._has_generations:
            return
        self._note_worst([outcome.value])
        self._study.add_trial(
            optuna.trial.create_trial(
                params=self._places(point),
                distributions=self._distributions,
                values=[outcome.value],
            )
        )
