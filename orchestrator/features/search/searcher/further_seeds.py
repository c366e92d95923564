"""Which trial of a search gets a further seed, as far as the share for that allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice

from orchestrator.features.search.declaration.declared_search import trial_jobs
from orchestrator.features.search.declaration.spec import RaceSpec, SearchSpec
from orchestrator.features.search.estimates import contender_estimates
from orchestrator.features.search.history import History, Trial
from orchestrator.features.search.racing import (
    Beliefs,
    Contender,
    IsKnown,
    Rule,
    contenders,
    next_contender,
    shrunken,
)
from orchestrator.jobfile import Experiment

FIRST_OTHER_SEED = 1000
"""Trainings that are repeated have seeds from here on, without those of the job file."""


def raced_trial(
    search: SearchSpec,
    history: History,
    is_known: IsKnown,
    rule: Rule = next_contender,
) -> Trial | None:
    """The trial that gets a further seed; None where none may be the best any more, or where the
    share of further seeds is used up.

    :param search: with a race. :param rule: another one, for comparison.
    """
    assert search.race is not None
    left = _left_for_seeds(search, history, is_known)
    known = contenders(history.asked, search.directions[0], is_known)
    # Before the model is asked, which takes a while.
    if not any(_fits(history.trials[one.number], left, search.race) for one in known):
        return None
    number = rule(known, _beliefs(search, history, known), most_seeds=search.race.seeds)
    if number is None or not _fits(history.trials[number], left, search.race):
        return None
    return history.trials[number]


def _beliefs(search: SearchSpec, history: History, known: Sequence[Contender]) -> Beliefs:
    """What a model says that takes neighbouring points as evidence for each other; where there are
    too few trials for it, or too many, or not all begin alike, one that takes only the seeds of each.
    """
    return contender_estimates(search.space, known, history.trials) or shrunken(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What further seeds may take."""

    of_trials: float
    """env_steps that trials have had."""
    further: float
    """env_steps that further seeds have or will have had."""
    most: float
    """env_steps of further seeds, whatever trials have had."""


def _left_for_seeds(search: SearchSpec, history: History, is_known: IsKnown) -> _Left:
    """Of trials counts what has been trained for sure: a failed one may have trained for longer or
    shorter, by chance.
    """
    assert search.race is not None
    budget = search.max_env_steps
    return _Left(
        of_trials=sum(
            one.env_steps
            for one in history.asked
            if is_known(one) and (one.values is not None or one.is_waiting)
        ),
        further=sum(_cost(history, one) for one in history.further),
        most=math.inf if budget is None else search.race.share * budget,
    )


def _fits(trial: Trial, left: _Left, race: RaceSpec) -> bool:
    """Whether one more seed of ``trial`` leaves further seeds their share of all env_steps."""
    further = left.further + trial.env_steps_a_job
    return further <= min(left.most, race.share * (left.of_trials + further))


def _cost(history: History, further: Trial) -> float:
    """env_steps of a further seed: as many as one of the seeds of its trial has had."""
    assert further.reevaluates is not None
    return history.trials[further.reevaluates].env_steps_a_job


def declared_seeds(experiment: Experiment, trial: Trial) -> list[int]:
    """Those of the job file, with which ``trial`` was trained at first."""
    jobs = trial_jobs(experiment, trial.number, trial.point)
    return [job.spec.seed for job in jobs]


def further_seed(trial: Trial, own: Sequence[int]) -> int:
    """The next one; the n-th further seed is the same for all trials.

    :param own: seeds of the job file.
    """
    return _other_seeds(own, len(trial.further) + 1)[-1]


def fresh_seeds(search: SearchSpec, own: Sequence[int], number: int) -> list[int]:
    """Seeds that no trial was trained with, in whatever race; the same for all points.

    :param own: seeds of the job file.
    """
    raced = 0 if search.race is None else max(0, search.race.seeds - len(own))
    return _other_seeds(own, raced + number)[raced:]


def _other_seeds(own: Sequence[int], number: int) -> list[int]:
    return list(islice((seed for seed in count(FIRST_OTHER_SEED) if seed not in own), number))
