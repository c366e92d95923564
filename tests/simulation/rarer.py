"""What a smaller share of the scenarios has beside the rest: policies that are named by their path
or do not fit, robots that are no files of their users, directories of jobs that are gone when they
are needed again, and further damage.

It is drawn from a generator of its own, so that the other scenarios stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.scenario import (
    LONGEST_S,
    Behaviour,
    PolicyKind,
    Scenario,
    SimulatedJob,
    Trouble,
    TroubleKind,
)

SHARE = 0.3
"""Of all scenarios, those that have any of this."""
POLICIES: tuple[PolicyKind, ...] = ("told", "untold", "gone")
DAMAGES = ("no-attempt", "job-file", "job-file")


def rarer(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with some of this; often as it is."""
    if chance.random() > SHARE:
        return scenario
    if scenario.searcher_s or scenario.is_elsewhere:  # whose jobs are made, or examined, otherwise
        return scenario
    if chance.random() < 0.15:
        return chance.choice(STORIES)(chance)
    jobs = [_with_policy(job, chance) for job in scenario.jobs]
    troubles = scenario.troubles
    if chance.random() < 0.4:
        troubles += _made_damage(chance, scenario)
    if any(job.starts for job in jobs) and chance.random() < 0.5:
        at_s = round(chance.uniform(0.0, LONGEST_S / 2), 2)
        for_s = chance.choice((5.0, 90.0))
        troubles += (Trouble(kind="examiner-hangs", at_s=at_s, for_s=for_s),)
    return replace(scenario, jobs=tuple(jobs), troubles=troubles)


def _with_policy(job: SimulatedJob, chance: random.Random) -> SimulatedJob:
    """Perhaps with another policy to start from; and if it is invalid, perhaps with another robot."""
    job = replace(job, is_given=chance.random() < 0.5)
    if job.starts:
        return replace(job, misfits=chance.random() < 0.3)
    kind = chance.choice(POLICIES)
    return replace(job, policy=kind if chance.random() < 0.5 else "")


def _made_damage(chance: random.Random, scenario: Scenario) -> tuple[Trouble, ...]:
    """Between two runs, of which the first one often dies."""
    at_s = round(chance.uniform(1.0, LONGEST_S), 2)
    ends: TroubleKind = chance.choice(("kill", "stop", "signal"))
    what = chance.choice(DAMAGES)
    return (
        Trouble(
            kind="damage",
            at_s=at_s,
            what=what,
            job=chance.choice(scenario.jobs).job_id,
            choice=chance.randrange(1000),
        ),
        Trouble(kind=ends, at_s=at_s),
        Trouble(kind="begin", at_s=at_s, what="directory" if what == "job-file" else "refuse"),
    )


def _gone_and_not_to_be_trained_again(chance: random.Random) -> Scenario:
    """A job has ended, its directory is removed, and it cannot be trained again: it is invalid now,
    or the run directory is resumed without the robot and the policy that it began with.
    """
    at_s = round(chance.uniform(2.0, 4.0), 2)
    is_directory = chance.random() < 0.5
    invalid = Trouble(kind="edit", at_s=at_s, job="j0-s0", what="validity")
    begin = "directory" if is_directory else chance.choice(("refuse", "keep", "restart"))
    return Scenario(
        jobs=(
            SimulatedJob(
                name="j0",
                iterations=1,
                robot=chance.choice((0, 1)),
                policy="told" if is_directory else chance.choice(("", "untold")),
                behaviours=(Behaviour(start_s=0.1, iteration_s=0.1),),
            ),
            SimulatedJob(name="j1", iterations=20),
        ),
        troubles=(
            Trouble(kind="damage", at_s=at_s, job="j0-s0", what="job"),
            *(() if is_directory else (invalid,)),
            _end(chance, at_s),
            Trouble(kind="begin", at_s=at_s, what=begin),
        ),
    )


def _back_without_its_directory(chance: random.Random) -> Scenario:
    """A job has begun, is taken out of the job file, loses its directory, and is declared again;
    perhaps it is invalid by then.
    """
    out_s = round(chance.uniform(1.5, 3.0), 2)
    back_s = round(out_s + chance.uniform(3.0, 5.0), 2)
    is_lost = chance.random() < 0.8
    invalid = Trouble(kind="edit", at_s=back_s, job="j0-s0", what="validity")
    return Scenario(
        jobs=(
            SimulatedJob(name="j0", iterations=20, policy=chance.choice(("", "told"))),
            SimulatedJob(name="j1", iterations=30),
        ),
        troubles=(
            Trouble(kind="edit", at_s=out_s, job="j0-s0", what="remove"),
            _end(chance, out_s),
            *((Trouble(kind="damage", at_s=back_s, job="j0-s0", what="job"),) if is_lost else ()),
            Trouble(kind="edit", at_s=back_s, job="j0-s0", what="add"),
            *((invalid,) if chance.random() < 0.5 else ()),
            _end(chance, back_s),
        ),
        gap_s=0.5,
    )


def _end(chance: random.Random, at_s: float) -> Trouble:
    """The supervisor ends, and the next run begins."""
    kind: TroubleKind = chance.choice(("kill", "stop", "signal"))
    return Trouble(kind=kind, at_s=at_s)


STORIES: tuple[Callable[[random.Random], Scenario], ...] = (
    _gone_and_not_to_be_trained_again,
    _back_without_its_directory,
)
