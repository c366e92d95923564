"""Searches on a table of bodies as a user of Optuna alone would make them: with its own TPE, several
seeds a trial and one of its pruners, as its documentation of the pruner shows.

As samplers of this program are, TPE is told of the nearest body that was not taken yet. Optuna knows
no budget: the trial that it is spent in fails.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

from benchmarks.bodies.body_samplers import Bodies
from benchmarks.bodies.landscape import World

optuna.logging.set_verbosity(optuna.logging.WARNING)
FIRST_RUNG = 1
"""Iterations before Hyperband compares trials first."""
BODY = "body"
"""Attribute of a trial: the body that was trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaFound:
    """What a study has come to."""

    body: int
    env_steps: int
    bodies: Sequence[int]
    """Of all trials."""
    finished: int
    """Trials that have a value: those that were not pruned at an iteration."""


class SpentError(Exception):
    """The budget does not pay for the next training."""


@dataclass(slots=True, kw_only=True)
class Purse:
    """env_steps that are left."""

    left: int

    def pay(self, env_steps: int) -> None:
        """:raises SpentError: there are not so many."""
        if env_steps > self.left:
            raise SpentError
        self.left -= env_steps


def with_wilcoxon(world: World, *, budget: int, seed: int, seeds: int) -> OptunaFound:
    """``WilcoxonPruner``: after each seed, a trial ends that is surely worse than the best one so
    far, with the mean of the seeds that it has had as its value.
    """
    landscape = world.landscape
    chance = np.random.default_rng([seed, seeds])

    def value(trial: optuna.Trial, body: int, purse: Purse) -> float:
        values = []
        for number in chance.permutation(seeds):
            purse.pay(landscape.env_steps)
            values.append(world.value(body, int(number)))
            trial.report(values[-1], int(number))
            if trial.should_prune():
                break
        return statistics.fmean(values)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        pruner = optuna.pruners.WilcoxonPruner()
    return _searched(world, pruner, value, budget=budget, seed=seed)


def with_hyperband(world: World, *, budget: int, seed: int, seeds: int) -> OptunaFound:
    """``HyperbandPruner``: all seeds of a trial train side by side, and after each iteration the
    trial may end, by the mean of their returns. An iteration without one is not reported.
    """
    landscape = world.landscape
    pruner = optuna.pruners.HyperbandPruner(
        min_resource=FIRST_RUNG, max_resource=len(landscape.rungs), reduction_factor=3
    )

    def value(trial: optuna.Trial, body: int, purse: Purse) -> float:
        before = 0
        for iteration, env_steps in enumerate(landscape.rungs, start=1):
            purse.pay(seeds * (env_steps - before))
            before = env_steps
            returns = [world.mean_return(body, number, env_steps) for number in range(seeds)]
            known = [one for one in returns if one is not None]
            if len(known) == seeds:
                trial.report(statistics.fmean(known), iteration)
                if trial.should_prune():
                    raise optuna.TrialPruned
        return statistics.fmean(world.value(body, number) for number in range(seeds))

    return _searched(world, pruner, value, budget=budget, seed=seed)


Value = Callable[[optuna.Trial, int, Purse], float]
"""Takes a trial, its body and the purse, and gives the trial's value, or raises
``optuna.TrialPruned`` or :class:`SpentError`."""


def _searched(
    world: World, pruner: optuna.pruners.BasePruner, value: Value, *, budget: int, seed: int
) -> OptunaFound:
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=pruner,
        study_name=f"search {seed}",  # Hyperband's brackets depend on it
    )
    bodies = _StudyOfBodies(study=study, world=world)
    purse = Purse(left=budget)
    for _ in range(world.landscape.bodies):
        trial, body = bodies.ask()
        try:
            study.tell(trial, value(trial, body, purse))
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
        except SpentError:
            study.tell(trial, state=TrialState.FAIL)
            break
    trained = [trial for trial in study.trials if BODY in trial.user_attrs]
    best = _best(trained)
    return OptunaFound(
        body=best.user_attrs[BODY],
        env_steps=budget - purse.left,
        bodies=[trial.user_attrs[BODY] for trial in trained],
        finished=sum(trial.state == TrialState.COMPLETE for trial in trained),
    )


def _best(trials: list[FrozenTrial]) -> FrozenTrial:
    """As ``study.best_trial``; where none has come to its end the one whose last return was
    best."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if complete:
        return max(complete, key=_value)
    return max(trials, key=_last_return)


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None
    return trial.value


def _last_return(trial: FrozenTrial) -> float:
    step = trial.last_step
    return -math.inf if step is None else trial.intermediate_values[step]


@dataclass(slots=True, kw_only=True)
class _StudyOfBodies:
    """A study whose trials are at places of bodies."""

    study: optuna.Study
    world: World
    _bodies: Bodies = field(init=False)
    _distributions: dict[str, BaseDistribution] = field(init=False)

    def __post_init__(self) -> None:
        landscape = self.world.landscape
        self._bodies = Bodies(places=landscape.places)
        self._distributions = {
            dimension.key: FloatDistribution(0.0, 1.0) for dimension in landscape.space
        }

    def ask(self) -> tuple[optuna.Trial, int]:
        """The next trial, and its body."""
        asked = self.study.ask(self._distributions)
        body = self._bodies.take_nearest(np.array(list(asked.params.values())))
        self.study.tell(asked, state=TrialState.FAIL)  # as if never asked
        places = self.world.landscape.places[body]
        self.study.enqueue_trial(dict(zip(self._distributions, map(float, places), strict=True)))
        trial = self.study.ask(self._distributions)
        trial.set_user_attr(BODY, body)
        return trial, body
