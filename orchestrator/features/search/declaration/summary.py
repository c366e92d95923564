"""A search in sentences, and what it does at most: for people who check a job file before they run
it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.text import count, duration, joined
from orchestrator.features.search.declaration.spec import (
    RETURN,
    Dimension,
    RaceSpec,
    SchedulerSpec,
    SearchSpec,
)

_WORDS = {"maximize": "highest", "minimize": "lowest"}
SHOWN = 5
"""Choices that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """The most that a search does; None: it is not limited."""

    trials: int | None
    jobs: int | None
    all_env_steps: int | None
    """Of all jobs to their end, whatever the budget of env_steps."""
    env_steps_again: int
    """Of those that are trained at the end, and of the one that trials start from."""
    jobs_raced: int
    """Further seeds; 0 also where neither trials nor env_steps are limited."""
    env_steps_raced: int
    env_steps: int | None
    """Without those that are trained after ``max_env_steps``, by jobs that were queued or ran
    then."""


def limits(
    search: SearchSpec, seeds: int, longest: int, jobs_raced: int | None = None
) -> SearchLimits:
    """:param seeds: number of them. :param longest: env_steps of the longest jobs.

    :param jobs_raced: how many further seeds there may be; None: as many as ``race`` allows.
    """
    a_trial = seeds * longest
    if jobs_raced is None:
        jobs_raced = _jobs_raced(search, seeds, longest)
    raced = jobs_raced * longest
    trials = search.trials
    jobs_again = _jobs_again(search, seeds)
    again = jobs_again * (search.reevaluation.total_timesteps or longest)
    is_prepared = search.start == "reference"
    again += is_prepared * longest
    every = None if trials is None else trials * a_trial + raced + again
    # Of a search that goes on, trials may have taken what seeds of a race still have.
    spent = None if search.max_env_steps is None else max(search.max_env_steps, raced) + again
    return SearchLimits(
        trials=trials,
        all_env_steps=every,
        env_steps_again=again,
        jobs_raced=jobs_raced,
        env_steps_raced=raced,
        jobs=None if trials is None else trials * seeds + jobs_raced + jobs_again + is_prepared,
        env_steps=min((steps for steps in (every, spent) if steps is not None), default=None),
    )


def _jobs_again(search: SearchSpec, seeds: int) -> int:
    return search.reevaluations * (search.reevaluation.seeds or seeds)


def _jobs_raced(search: SearchSpec, seeds: int, longest: int) -> int:
    """How many further seeds there may be, each of them trained for as long as the longest jobs."""
    race = search.race
    if race is None:
        return 0
    most = []
    if search.trials is not None:
        own = search.trials * seeds
        of_share = math.floor(own * race.share / (1 - race.share))
        one_more = of_share + 1
        if one_more <= race.share * (own + one_more):  # the quotient was rounded down
            of_share = one_more
        most += [of_share, search.trials * max(0, race.seeds - seeds)]
    if search.max_env_steps is not None:
        most.append(math.floor(search.max_env_steps * race.share / longest))
    return min(most, default=0)


def sentences(
    search: SearchSpec, scheduler: SchedulerSpec | None, seeds: int, longest: int
) -> Iterator[str]:
    """What is searched, how far, and where trials are compared; for parameters, see
    :func:`limits`.
    """
    pairs = zip(search.objectives, search.directions, strict=True)
    aims = joined(f"{_WORDS[direction]} {name}" for name, direction in pairs)
    of_seeds = f" ({search.aggregate} of {count(seeds, 'seed')})" if seeds > 1 else ""
    most = limits(search, seeds, longest)
    yield "; ".join(
        [
            f"search by {search.sampler} for the {aims}{of_seeds}",
            *_ends(search, most),
        ]
    )
    if search.auto is not None:
        yield str(search.auto)
    yield f"space: {'; '.join(map(_dimension, search.space))}"
    if search.constraints:
        bounds = (f"{one.measure} {one.expected}" for one in search.constraints)
        yield f"constraints: {'; '.join(bounds)}"
    if search.start == "reference":
        yield "every trial starts from the policy of the unchanged job, which is trained first"
    if search.initial:
        yield f"trained first: {count(len(search.initial), 'point')} of search.initial"
    if search.race is not None:
        yield _race(search.race, most)
    if search.reevaluate and (search.reevaluation.is_own or search.reevaluation.reference):
        yield _reevaluation(search, seeds, longest)
    for axis in search.measures:
        yield f"axis of the archive: {axis.name} from {axis.low:g} to {axis.high:g} in {count(axis.cells, 'cell')}"
    if scheduler is not None:
        rungs = scheduler.rungs(longest)
        if search.order == "fixed" or scheduler.kind == "asha":
            kept = f"1 in {scheduler.reduction} goes on"
        else:
            kept = "those go on that are at least as good as the median"
        by = f"the return of training ({RETURN})" if scheduler.by == RETURN else scheduler.by
        places = joined(f"{rung:,}" for rung in rungs)
        yield f"trials are compared by {by} at {places} env_steps, and {kept}"


def _ends(search: SearchSpec, most: SearchLimits) -> Iterator[str]:
    all_of_them = most.all_env_steps
    if most.trials is not None and most.jobs is not None and all_of_them is not None:
        yield f"at most {count(most.trials, 'trial')}, {count(most.jobs, 'job')} and {all_of_them:,} env_steps"
    share = search.share_of_points
    ends = []
    if search.max_env_steps is not None:
        ends.append(f"{round(share * search.max_env_steps):,} env_steps")
    if search.max_time_s is not None:
        ends.append(duration(share * search.max_time_s))
    if ends:
        rest = "" if search.race is None else " (the rest is for further seeds)"
        budget = f"{' or '.join(ends)}{rest}"
        yield f"no further trial is asked for after {budget}, but what is queued or runs then is trained"


def _race(race: RaceSpec, most: SearchLimits) -> str:
    what = f"at the end trials that may be the best get further seeds, up to {race.seeds} with their own"
    cost = f"at most {race.share:.0%} of the env_steps of all trials"
    if not most.jobs_raced:
        return f"{what}; {cost}"
    jobs = count(most.jobs_raced, "further job")
    return f"{what}; {cost}: at most {jobs} and {most.env_steps_raced:,} env_steps"


def _reevaluation(search: SearchSpec, seeds: int, longest: int) -> str:
    own = search.reevaluation
    best = "the best by estimate:" if own.by == "estimate" else "the best"
    what = f"{best} {search.reevaluate}" + (" and the unchanged job" if own.reference else "")
    with_seeds = count(own.seeds or seeds, "fresh seed")
    length = f"{own.total_timesteps or longest:,} env_steps"
    return f"at the end {what} are trained from nothing, with {with_seeds} and {length} each"


def _dimension(dimension: Dimension) -> str:
    if dimension.choices:
        shown = " or ".join(json.dumps(choice) for choice in dimension.choices[:SHOWN])
        more = len(dimension.choices) - SHOWN
        return f"{dimension.key} {shown}" + (f" or {more} more" if more > 0 else "")
    remarks = [
        text
        for text, holds in (("times", dimension.multiply), ("whole", dimension.integer))
        if holds
    ]
    remarks += ["log"] * dimension.log
    return f"{dimension.key} {dimension.low:g} to {dimension.high:g}" + (
        f" ({', '.join(remarks)})" if remarks else ""
    )
