"""The facts of a search, from its events in the ledger: the key ``search`` of ``report.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from orchestrator.analysis.statistics import EstimateFacts
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import against_reference
from orchestrator.features.search.course import Improvement, SpentByThen
from orchestrator.features.search.declaration.spec import ArchiveAxis, Dimension, Direction
from orchestrator.features.search.estimates import (
    BeliefFacts,
    Estimate,
    belief_facts,
    shown_estimates,
)
from orchestrator.features.search.history import Trial, is_measured
from orchestrator.features.search.main_effects import MainEffect, main_effect
from orchestrator.features.search.racing import Shrunken, believed
from orchestrator.features.search.shown_trials import (
    MOST_REPORTED,
    ArchiveElite,
    Leaders,
    leaders,
)
from orchestrator.features.search.trial_values import mean_over_seeds
from orchestrator.features.search.trials import TrialReader, failed_further_seeds, lineage_env_steps
from orchestrator.ledger import Ledger, SummaryRow, job_figures

AT_FIRST_RUNG = " at the first rung"
"""Ends the name of what all trials have been compared by after equally many env_steps."""
Values: TypeAlias = Mapping[int, float]
"""Number of a trial → its value."""
JobRows: TypeAlias = Mapping[str, SummaryRow]
"""By ``job_id``."""
ReportedMean: TypeAlias = EstimateFacts
"""A mean over seeds, as :class:`.EstimateFacts`; null for none."""


class ReportedTrial(TypedDict):
    """A trial; ``best`` its place among the finished ones, from 0. ``repeated``: its values trained
    from nothing.
    """

    trial: int
    state: str
    point: Mapping[str, Any]
    values: Sequence[float] | None
    believed: BeliefFacts | None
    """What its seeds say of it, in a search with a race."""
    estimate: BeliefFacts | None
    """Of the 60 best of a search with one objective and without a race: what a model of the finished
    trials says of it (:mod:`.estimates`)."""
    repeated: Sequence[float] | None
    fresh_means: Sequence[ReportedMean | None]
    """Of each objective, over the seeds of that training; None with fewer than two."""
    measures: Sequence[float] | None
    rungs: Sequence[float | None]
    """What it is compared by, at each rung that it has reached."""
    went_on: int
    """Number of rungs from which it went on."""
    env_steps: int
    lineage_env_steps: int | None
    """With those of the policies that its jobs started from; None: not known."""
    parent: int | None
    jobs: Sequence[str]
    """One for each seed."""
    failed_seeds: Sequence[str]
    """Why further seeds have failed, which have no part in the values."""
    repeated_jobs: Sequence[str]
    why: str


class ReportedDimension(TypedDict):
    key: str
    low: float | None
    high: float | None
    log: bool
    multiply: bool
    choices: Sequence[Any]
    effects: Mapping[str, MainEffect]
    """Outcome → the effect on it."""


class ReportedAxis(TypedDict):
    name: str
    low: float
    high: float
    cells: int


class SearchFacts(TypedDict):
    sampler: str | None
    """None: the jobs of a matrix are compared at rungs."""
    auto_sampler: str | None
    """The sentence that says why auto was this sampler; None where the job file names it."""
    seed: int | None
    """Of the sampler; None likewise."""
    objectives: Sequence[str]
    directions: Sequence[Direction]
    race: int | None
    """How many seeds a trial that may be the best has at most; None: all have equally many."""
    starts_from_reference: bool
    """Whether every trial began with the policy of the unchanged job."""
    reference: Sequence[float] | None
    """Values of the unchanged job, trained as those that are trained again; None where it was not."""
    reference_fresh_means: Sequence[ReportedMean | None]
    """As those of trials that are trained again."""
    reference_sentences: Sequence[str]
    """Sentences: how the best trial that was trained again differs from the unchanged job."""
    inherit: bool
    is_over: bool
    elapsed_s: float
    env_steps: int
    saved: float | None
    """Share of the env_steps of training to the end that rungs have saved."""
    rungs: Sequence[int]
    compared_by: str
    """What trials are compared by there: ``return``, or an expression of measures."""
    trials: Sequence[ReportedTrial]
    ranked: Sequence[int]
    """Finished trials as ``best`` ranks them: by their value, with a race by what that believes, or
    of several objectives their Pareto front. Those with ``repeated`` values come before the others,
    by these."""
    best: Sequence[int]
    """All finished trials, in the same way by the first objective alone."""
    front: Sequence[int]
    """Pareto front of several objectives, by values of the search."""
    improvements: Mapping[str, Sequence[Improvement]]
    """Objective → the best so far as it was known then, whenever it changed."""
    spent: Mapping[int, SpentByThen]
    """Finished trial → what had been spent when it ended."""
    dimensions: Sequence[ReportedDimension]
    axes: Sequence[ReportedAxis]
    """Of the archive; empty without one."""
    archive: Sequence[ArchiveElite]


def gather(paths: RunPaths, ledger: Ledger, *, with_estimates: bool = True) -> SearchFacts | None:
    """None where neither a search nor a comparison at rungs was declared, or the job file no longer
    declares it. :raises LedgerError: it cannot be read.
    """
    reader = TrialReader.updated(paths, ledger)
    if reader is None:
        return None
    search = reader.search
    asked = reader.asked
    repeated = reader.repeated
    finished = [trial for trial in asked if is_measured(trial)]
    names = () if search is None else search.objectives
    directions = () if search is None else search.directions
    leading = Leaders() if search is None else leaders(asked, search, repeated)
    outcomes = {
        name: {one.number: one.values[place] for one in finished if one.values}
        for place, name in enumerate(names)
    }
    compared = "return" if reader.scheduler is None else reader.scheduler.shown
    if reader.rungs:
        outcomes[f"{compared}{AT_FIRST_RUNG}"] = {
            one.number: value for one in asked if (value := _value_at_first_rung(one)) is not None
        }
    lineages = lineage_env_steps(ledger, asked)
    rows = {row["job_id"]: row for row in ledger.summary()}
    worth = believed(asked, search)
    shown = frozenset(leading.best[:MOST_REPORTED] if with_estimates else ())
    estimated = shown_estimates(search, asked, shown)
    numbers = {trial.number for trial in finished}
    spent = {number: one for number, one in reader.course.spent.items() if number in numbers}
    return {
        "sampler": None if search is None else search.sampler,
        "auto_sampler": None if search is None or search.auto is None else str(search.auto),
        "seed": None if search is None else search.seed,
        "objectives": names,
        "directions": directions,
        "race": None if search is None or search.race is None else search.race.seeds,
        "starts_from_reference": search is not None and search.start == "reference",
        "reference": None if reader.reference is None else reader.reference.values,
        "reference_fresh_means": _fresh_means(rows, reader.reference, names),
        "reference_sentences": _reference_sentences(rows, reader, leading.ranked),
        "inherit": search is not None and search.has_lineages,
        "is_over": reader.history.is_over,
        "elapsed_s": reader.history.elapsed_s,
        "env_steps": job_figures.env_steps(ledger),
        "saved": reader.saved_share if reader.rungs else None,
        "rungs": reader.rungs,
        "compared_by": compared,
        "trials": [
            _trial(
                trial,
                reader.state(trial),
                worth.get(trial.number),
                estimated.get(trial.number),
                repeated.get(trial.number),
                _fresh_means(rows, repeated.get(trial.number), names),
                lineages[trial.number],
            )
            for trial in asked
        ],
        "ranked": leading.ranked,
        "best": leading.best,
        "front": leading.front,
        "improvements": dict(zip(names, reader.course.improvements, strict=True)),
        "spent": spent,
        "dimensions": []
        if search is None
        else [_dimension(one, asked, outcomes) for one in search.space],
        "axes": [] if search is None else [_axis(axis) for axis in search.measures],
        "archive": leading.archive,
    }


def listed_trials(facts: SearchFacts) -> list[ReportedTrial]:
    """The finished trials that a page lists: the best ones, and elites."""
    leading = Leaders(
        ranked=facts["ranked"],
        best=facts["best"],
        front=facts["front"],
        archive=facts["archive"],
    )
    listed = leading.shown_trials()
    return [one for one in facts["trials"] if one["trial"] in listed]


def _reference_sentences(rows: JobRows, reader: TrialReader, best: Sequence[int]) -> list[str]:
    """:param best: numbers of the finished trials, the best first."""
    search = reader.search
    reference = reader.reference
    repeated = reader.repeated
    first = next((number for number in best if number in repeated), None)
    if search is None or reference is None or first is None:
        return []
    found = against_reference.differences(repeated[first], reference, search.objectives, rows)
    return against_reference.sentences(first, search.objectives, found)


def _fresh_means(
    rows: JobRows, training: Trial | None, names: Sequence[str]
) -> Sequence[ReportedMean | None]:
    """Of each objective, over the seeds of a training that repeats another."""
    if training is None or not training.values:
        return ()
    means = [mean_over_seeds(name, training.jobs, rows) for name in names]
    return [None if mean is None else mean.facts() for mean in means]


def _value_at_first_rung(trial: Trial) -> float | None:
    value = trial.reached[0] if trial.reached else None
    return value if value is not None and math.isfinite(value) else None


def _trial(
    trial: Trial,
    state: str,
    belief: Shrunken | None,
    estimate: Estimate | None,
    repetition: Trial | None,
    fresh_means: Sequence[ReportedMean | None],
    lineage: int | None,
) -> ReportedTrial:
    return {
        "trial": trial.number,
        "state": state,
        "point": trial.point,
        "values": trial.values,
        "believed": belief_facts(belief),
        "estimate": belief_facts(estimate),
        "repeated": None if repetition is None else repetition.values,
        "fresh_means": fresh_means,
        "measures": trial.measures,
        "rungs": trial.reached,
        "went_on": min(trial.goal, len(trial.reached)),
        "env_steps": trial.env_steps,
        "lineage_env_steps": lineage,
        "parent": trial.parent,
        "jobs": trial.jobs,
        "failed_seeds": [one.why for one in failed_further_seeds([trial])],
        "repeated_jobs": () if repetition is None else repetition.jobs,
        "why": trial.why,
    }


def _axis(axis: ArchiveAxis) -> ReportedAxis:
    return {"name": axis.name, "low": axis.low, "high": axis.high, "cells": axis.cells}


# -- effects of dimensions


def _dimension(
    dimension: Dimension, trials: Sequence[Trial], outcomes: Mapping[str, Values]
) -> ReportedDimension:
    points = {trial.number: trial.point for trial in trials}
    key = dimension.key
    is_range = not dimension.choices
    return {
        "key": dimension.key,
        "low": dimension.low if is_range else None,
        "high": dimension.high if is_range else None,
        "log": dimension.log,
        "multiply": dimension.multiply,
        "choices": dimension.choices,
        "effects": {
            name: main_effect(
                [(dimension.unit(points[number][key]), value) for number, value in values.items()],
                ordered=is_range,
            )
            for name, values in outcomes.items()
        },
    }
