"""How much of the returns of jobs each parameter explains that tells their robots apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Literal, TypeAlias

from orchestrator.analysis.main_effects import MainEffect, main_effect
from orchestrator.report.experiment_facts import ReportedJob

Rating: TypeAlias = Literal["eval_mean", "ep_rew_mean"]
"""The column that has the return of a job."""


def varied_effects(keys: Sequence[str], jobs: Sequence[ReportedJob]) -> Mapping[str, MainEffect]:
    """Of those of ``keys`` that tell robots apart, over the jobs that have succeeded."""
    succeeded = [job for job in jobs if job["state"] == "SUCCEEDED"]
    rating = rating_of(succeeded)
    between = [key for key in keys if not _varies_within_robots(key, jobs)]
    return {key: _effect(key, succeeded, rating) for key in between}


def _varies_within_robots(key: str, jobs: Iterable[ReportedJob]) -> bool:
    """Whether most robots with ``key`` have jobs with several values of it, as with a matrix; else it
    tells robots apart.
    """
    values: dict[str, set[str]] = {}
    for job in jobs:
        if job["point"].get(key) is not None:
            values.setdefault(job["name"], set()).add(str(job["point"][key]))
    several = sum(len(of_robot) > 1 for of_robot in values.values())
    return 2 * several > len(values)


def rating_of(succeeded: Sequence[ReportedJob]) -> Rating:
    """The evaluation, or the last return of training where not all have one."""
    is_evaluated = bool(succeeded) and all(job["eval_mean"] is not None for job in succeeded)
    return "eval_mean" if is_evaluated else "ep_rew_mean"


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether all are finite numbers."""
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )


def _effect(key: str, jobs: Sequence[ReportedJob], rating: Rating) -> MainEffect:
    """A robot counts once for each value: its seeds are no robots of their own."""
    values: dict[str, Any] = {}
    results: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        value = job["point"].get(key)
        result = job[rating]
        if value is not None and result is not None:
            values.setdefault(str(value), value)
            results.setdefault((job["name"], str(value)), []).append(result)
    is_ordered = are_numbers(list(values.values()))
    choices = list(values)
    pairs = [
        (float(values[text]) if is_ordered else float(choices.index(text)), median(of_robot))
        for (_, text), of_robot in results.items()
    ]
    return main_effect(pairs, ordered=is_ordered)
