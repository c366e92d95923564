"""Scenarios in which several things come together that seldom do so by chance: each is a situation
in which something was wrong once, or that only one fault would show.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.scenario import (
    Asked,
    Behaviour,
    Ending,
    Scenario,
    SimulatedJob,
    Trouble,
    TroubleKind,
)

GAP_S = 0.5
"""Between two supervisors."""


def told(chance: random.Random) -> Scenario:
    """One of the stories."""
    return chance.choice(STORIES)(chance)


def _request_from_afar(chance: random.Random) -> Scenario:
    """A request in a file is acted on, and the file stays or comes back; another one follows on
    another way.
    """
    pairs: tuple[tuple[TroubleKind, TroubleKind], ...] = (("pause", "resume"), ("cancel", "retry"))
    first, then = chance.choice(pairs)
    when = chance.uniform(0.8, 3.0)
    gap_s, wait_s = chance.choice((0.8, 1.5)), chance.choice((0.3, 0.8, 1.5, 3.0))
    asked = Trouble(kind=first, at_s=round(when, 2), job="j0-s0", elsewhere=True)
    answered = Trouble(kind=then, at_s=round(when + gap_s, 2), job="j0-s0")
    dies_s = round(when + gap_s + wait_s, 2)
    dies = chance.choice(
        (
            Trouble(kind="kill", at_s=dies_s),
            Trouble(
                kind="power",
                at_s=dies_s,
                at_what=chance.choice(("", "committed", "polled")),
                choice=chance.randrange(1000),
            ),
            Trouble(kind="kill", at_s=asked.at_s, at_what="remove requests/"),
        )
    )
    stays = Trouble(kind="unremoved", at_s=round(when - 0.3, 2), for_s=20.0)
    is_kept = dies.kind == "kill" and not dies.at_what
    troubles = (*((stays,) if is_kept else ()), asked, answered, dies)
    return _of_long_job(chance, troubles, asked=chance.choice(("saves", "slow")))


def _withdrawn_pause(chance: random.Random) -> Scenario:
    """A job that was paused and resumed is paused again, and resumed by a host that sees it paused
    still; then the supervisor dies, before the job has ended.
    """
    gaps_s = chance.choice((0.8, 1.2, 1.6)), chance.choice((0.1, 0.27)), 0.3, 0.3
    times = itertools.accumulate(gaps_s, initial=chance.uniform(0.3, 4.0))
    kinds: tuple[TroubleKind, ...] = ("pause", "resume", "pause", "resume")
    *asked, died = (round(when, 2) for when in times)
    troubles = (
        *(
            Trouble(kind=kind, at_s=when, job="j0-s0", elsewhere=number == 3)
            for number, (kind, when) in enumerate(zip(kinds, asked, strict=True))
        ),
        Trouble(kind="kill", at_s=died),
    )
    return Scenario(
        jobs=(
            SimulatedJob(
                name="j0", iterations=12, behaviours=(Behaviour(), Behaviour(asked="slow"))
            ),
            SimulatedJob(name="j1", iterations=20),
        ),
        troubles=troubles,
        grace_s=12.0,
        gap_s=chance.choice((0.5, 2.0)),
        cpus=chance.choice((2, 3)),
    )


def _of_long_job(chance: random.Random, troubles: tuple[Trouble, ...], *, asked: Asked) -> Scenario:
    behaviour = Behaviour(iteration_s=chance.choice((0.5, 1.0)))
    first = replace(behaviour, asked=asked)
    job = SimulatedJob(name="j0", iterations=20, behaviours=(first, behaviour))
    others = (SimulatedJob(name="j1", iterations=chance.choice((2, 20))),)
    return Scenario(
        jobs=(job, *others[: chance.choice((0, 1))]),
        troubles=troubles,
        grace_s=chance.choice((3.0, 12.0)),
        gap_s=chance.choice((0.5, 2.0)),
    )


def _growth_in_the_grace_time(chance: random.Random) -> Scenario:
    """A job is to end, does not, and grows beyond its limit meanwhile."""
    behaviour = Behaviour(
        ending="grows", after=chance.choice((2, 3)), iteration_s=1.0, asked="deaf"
    )
    ends: TroubleKind = chance.choice(("pause", "cancel", "stop"))
    job = "" if ends == "stop" else "j0-s0"
    return Scenario(
        jobs=(SimulatedJob(name="j0", iterations=8, behaviours=(behaviour,)),),
        troubles=(Trouble(kind=ends, at_s=round(chance.uniform(0.8, 1.8), 2), job=job),),
        grace_s=12.0,
    )


def _full_memory(chance: random.Random) -> Scenario:
    """There are CPUs for more jobs than there is memory for."""
    memory = chance.choice(((400, 400, 400, 400), (400, 100, 400, 400), (800, 100, 100, 100)))
    iteration_s = chance.choice((0.5, 1.0))
    jobs = tuple(
        SimulatedJob(
            name=f"j{number}",
            memory_mib=mib,
            iterations=chance.choice((4, 8)),
            behaviours=(Behaviour(iteration_s=iteration_s),),
        )
        for number, mib in enumerate(memory)
    )
    return Scenario(jobs=jobs, cpus=4)


def _unrecorded_attempts(chance: random.Random) -> Scenario:
    """Attempts end soon one after the other, which cannot be recorded; then the supervisor dies, and
    soon after the next launch the power fails.
    """
    endings: tuple[Ending, ...] = chance.choice(
        (("killed", "error"), ("killed", "diverged"), ("killed", "killed", "error"))
    )
    behaviours = tuple(Behaviour(ending=one, start_s=0.1, iteration_s=0.2) for one in endings)
    died = round(chance.uniform(2.5, 6.0), 2)
    cut = Trouble(
        kind="power",
        at_s=round(died + GAP_S + chance.uniform(0.02, 0.3), 2),
        choice=chance.randrange(1000),
    )
    others = (SimulatedJob(name="j1", iterations=chance.choice((1, 2))),)
    return Scenario(
        jobs=(
            SimulatedJob(name="j0", iterations=2, max_retries=3, behaviours=behaviours),
            *others[: chance.choice((0, 0, 1))],
        ),
        troubles=(
            Trouble(kind="lock", at_s=0.05, for_s=20.0),
            Trouble(kind="kill", at_s=died),
            *((cut,) if chance.random() < 0.9 else ()),
        ),
        gap_s=GAP_S,
    )


def _request_comes_back(chance: random.Random) -> Scenario:
    """The power fails when the file of a request was removed, and a user takes the request back
    before the next supervisor begins.
    """
    when = round(chance.uniform(0.3, 1.0), 2)
    cut = round(when + chance.uniform(0.3, 0.9), 2)
    pairs: tuple[tuple[TroubleKind, TroubleKind], ...] = (("pause", "resume"), ("cancel", "retry"))
    first, then = chance.choice(pairs)
    behaviour = Behaviour(iteration_s=1.5)
    return Scenario(
        jobs=(
            SimulatedJob(name="j0", iterations=2, behaviours=(behaviour,)),
            SimulatedJob(name="j1", iterations=1, after=("j0-s0",)),
        ),
        troubles=(
            Trouble(kind=first, at_s=when, job="j1-s0", elsewhere=True),
            Trouble(kind="power", at_s=cut, choice=chance.randrange(1000)),
            Trouble(kind=then, at_s=round(cut + 0.2, 2), job="j1-s0"),
        ),
        gap_s=GAP_S,
    )


def _rank_that_stays(chance: random.Random) -> Scenario:
    """A rank is killed, and the others do not notice."""
    behaviour = Behaviour(ending="rank-dies", after=chance.choice((1, 2)), asked="deaf")
    ranks = chance.choice((2, 3))
    job = SimulatedJob(name="j0", ranks=ranks, behaviours=(behaviour,))
    return Scenario(jobs=(job,), cpus=ranks)


def _executor_fails_again(chance: random.Random) -> Scenario:
    """The executor raises, and again while its workers are ended."""
    errors = tuple(
        Trouble(kind="error", at_s=round(chance.uniform(0.5, 3.0), 2))
        for _ in range(chance.choice((1, 2)))
    )
    at_once = errors * chance.choice((2, 4, 12))
    behaviour = Behaviour(iteration_s=1.0, asked=chance.choice(("saves", "slow", "deaf")))
    jobs = tuple(
        SimulatedJob(name=f"j{number}", iterations=6, behaviours=(behaviour,))
        for number in range(2)
    )
    return Scenario(jobs=jobs, troubles=at_once, grace_s=chance.choice((1.0, 3.0)))


def _overtaken_job(chance: random.Random) -> Scenario:
    """A job needs more CPUs than are idle at once, and many smaller ones come after it."""
    long = SimulatedJob(name="j0", iterations=40, behaviours=(Behaviour(iteration_s=0.5),))
    large = SimulatedJob(name="j1", iterations=1, cores=2)
    small = tuple(
        SimulatedJob(name=f"j{number}", iterations=1, behaviours=(Behaviour(start_s=0.1),))
        for number in range(2, chance.choice((20, 24)))
    )
    return Scenario(jobs=(long, large, *small), cpus=2)


STORIES: tuple[Callable[[random.Random], Scenario], ...] = (
    *(_request_from_afar,) * 3,
    *(_withdrawn_pause,) * 3,
    *(_unrecorded_attempts,) * 5,
    *(_request_comes_back, _growth_in_the_grace_time, _full_memory, _rank_that_stays),
    *(_executor_fails_again, _overtaken_job),
)
"""Those that show their faults more seldom are told more often."""
