"""Draws scenarios from seeds. Half of them get many more troubles: some faults show only if a
supervisor lives long, others if everything goes wrong at once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from tests.simulation.scenario import (
    JOB_VERBS,
    VERBS,
    Behaviour,
    Ending,
    Scenario,
    SimulatedJob,
    Trouble,
)

LONGEST_S = 25.0
"""Troubles come within this time."""
MOST_POINTS = 300
"""Deaths and commands come within this many points."""
MOST_EVENTS = 60
DENSE_SHARE = 0.5
CHANGES_SHARE = 0.4
"""Of all scenarios, those whose job files change."""

KINDS = (
    *("kill", "kill", "kill", "power", "power", "lock", "lock", "full", "io", "error"),
    *("jump", "suspend", "fills", "signal", "usr1", "client-dies", "damaged", "lose-ledger"),
    *("pause", "pause", "resume", "resume", "cancel", "retry", "retry", "promote", "promote"),
    *("set", "stop", "stop-now", "checkpoint", "add"),
)
DELIVERIES = ("late", "late", "twice", "twice", "lost", "stray", "odd")
"""What happens to an event of the executor on its way to the supervisor."""
SEQUENCES = (
    ("pause", "resume"),
    ("pause", "resume", "pause"),
    ("cancel", "retry"),
    ("pause", "cancel", "retry"),
    ("pause", "kill", "resume"),
    ("pause", "power", "cancel"),
    ("pause", "lose-ledger", "kill"),
    ("retry", "kill"),
    ("cancel", "kill", "retry"),
    ("set", "stop", "kill"),
    ("lock", "pause", "kill"),
    ("pause", "pause", "stop", "resume"),
    ("promote", "kill"),
    ("signal", "signal"),
    ("stop", "stop-now"),
)
"""Troubles that follow each other, about one job."""
POINTS = (
    *("", "", "", "commit", "committed", "submit ", "submitted", "ask ", "kill ", "polled"),
    *("remove requests/", "rename .summary", "mkdir jobs/", "fsync content", "poll"),
)
"""Beginnings of the names of points at which troubles come."""
DURATIONS: Mapping[str, Sequence[float]] = {
    "lock": (0.3, 2.0, 8.0, 40.0),
    "full": (0.3, 2.0, 8.0),
    "io": (0.1, 0.3, 2.0),
    "jump": (-7200.0, -1.0, 3600.0),
    "suspend": (100.0, 3600.0),
    "fills": (1.5, 4.0, 10.0),
    "late": (0.3, 1.0, 4.0),
}
EDITS = ("longer", "longer", "other", "other", "undo", "retries", "remove", "add", "results")
BEGINS = ("refuse", "restart", "restart", "extend", "extend", "directory")
CLIENTS: Sequence[Any] = ("here", "here", "here", "elsewhere", "dies", "withdraws")


def made(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    chance = random.Random(seed)
    jobs: list[SimulatedJob] = []
    for number in range(chance.choice((1, 2, 2, 3, 3, 4, 5))):
        jobs.append(_job(chance, number, jobs))
    number_of_troubles = chance.choice((1, 2, 3, 4, 6, 8))
    if chance.random() < DENSE_SHARE:
        number_of_troubles += chance.choice((15, 30))
    troubles = [_trouble(chance, chance.choice(KINDS), jobs) for _ in range(number_of_troubles)]
    for _ in range(chance.choice((0, 1, 1, 2))):
        troubles += _sequence(chance, jobs)
    for _ in range(chance.choice((0, 0, 4, 12, 24))):
        troubles.append(_delivery(chance))
    if chance.random() < CHANGES_SHARE:
        jobs = [replace(job, is_declared=chance.random() < 0.8) for job in jobs]
        for _ in range(chance.choice((1, 1, 2, 3))):
            troubles += _change(chance, jobs)
    held_s = chance.choice((0.0, 0.0, 0.0, 8.0, 20.0))
    return Scenario(
        jobs=tuple(jobs),
        troubles=tuple(troubles),
        cpus=chance.choice((1, 2, 2, 3, 4)),
        jobs_at_once=chance.choice((1, 2, 4, 4, 4)),
        grace_s=chance.choice((0.0, 1.0, 3.0, 12.0)),
        gap_s=chance.choice((0.5, 2.0, 10.0)),
        is_detached=held_s == 0.0 and chance.random() < 0.5,
        held_s=held_s,
        skips_invalid=chance.random() < 0.8,
    )


def _job(chance: random.Random, number: int, before: Sequence[SimulatedJob]) -> SimulatedJob:
    is_stalling = chance.random() < 0.3
    parents = [job.job_id for job in before] if chance.random() < 0.3 else []
    behaviours = [
        _behaviour(chance, is_stalling=is_stalling) for _ in range(chance.choice((0, 1, 1, 2, 3)))
    ]
    if chance.random() < 0.15:  # it fails again and again
        ending: Any = chance.choice(("killed", "oom", "leaves", "refused", "node-lost"))
        behaviours = [replace(behaviour, ending=ending) for behaviour in behaviours * 2]
    return SimulatedJob(
        name=f"j{number}",
        iterations=chance.choice((1, 2, 4, 6)),
        cores=chance.choice((1, 1, 1, 2)),
        memory_mib=chance.choice((100, 100, 400)),
        max_retries=chance.choice((0, 1, 1, 2)),
        timeout_s=chance.choice((1000.0, 1000.0, 1000.0, 3.0)),
        stall_timeout_s=2.5 if is_stalling else 1000.0,
        min_free_disk_mib=chance.choice((0, 0, 500)),
        after=tuple(chance.sample(parents, min(len(parents), chance.choice((1, 1, 2))))),
        behaviours=tuple(behaviours),
        rung=chance.choice((0, 0, 0, 1, 2)),
        is_invalid=chance.random() < 0.05,
    )


def _behaviour(chance: random.Random, *, is_stalling: bool) -> Behaviour:
    endings = [ending for ending in get_args(Ending) if ending != "hangs" or is_stalling]
    return Behaviour(
        ending=chance.choice(endings) if chance.random() < 0.5 else "done",
        after=chance.choice((0, 1, 1, 2, 3)),
        waits_s=chance.choice((0.0, 0.0, 0.0, 0.7, 5.0)),
        iteration_s=chance.choice((0.2, 0.5, 1.0, 1.5)),
        asked=chance.choice(("saves", "saves", "saves", "slow", "deaf")),
        lingers=chance.random() < 0.3,
    )


def _trouble(chance: random.Random, kind: str, jobs: Sequence[SimulatedJob]) -> Trouble:
    may_wait = kind in ("kill", "power", "lock", "full", "io", "error", *VERBS)
    comes_at_point = may_wait and chance.random() < 0.4
    numbers = {"set": (1, 2, 3), "promote": (0, 2, 3), "power": range(1000), "damaged": range(5)}
    what = ""
    if kind == "add":
        what = chance.choice(("refuse", "restart", "extend"))
    elif kind in JOB_VERBS and chance.random() < 0.1:
        what = "unknown"
    return Trouble(
        kind=kind,
        at_point=chance.randrange(1, MOST_POINTS) if comes_at_point else None,
        at_s=None if comes_at_point else round(chance.uniform(0.0, LONGEST_S), 2),
        at_what=chance.choice(POINTS) if may_wait and not comes_at_point else "",
        for_s=chance.choice(DURATIONS.get(kind, (0.0,))),
        job=chance.choice(jobs).job_id if kind in JOB_VERBS else "",
        number=chance.choice(numbers.get(kind, (0,))),
        client=chance.choice(CLIENTS) if kind in VERBS else "here",
        what=what,
    )


def _sequence(chance: random.Random, jobs: Sequence[SimulatedJob]) -> list[Trouble]:
    job = chance.choice(jobs)
    when = chance.uniform(0.0, LONGEST_S / 2)
    made = []
    for kind in chance.choice(SEQUENCES):
        trouble = _trouble(chance, kind, [job])
        made.append(replace(trouble, at_s=round(when, 2), at_point=None))
        when += chance.choice((0.0, 0.3, 1.0, 4.0))
    return made


def _delivery(chance: random.Random) -> Trouble:
    kind = chance.choice(DELIVERIES)
    return Trouble(
        kind=kind,
        at_event=chance.randrange(1, MOST_EVENTS),
        for_s=chance.choice(DURATIONS.get(kind, (0.0,))),
    )


def _change(chance: random.Random, jobs: Sequence[SimulatedJob]) -> list[Trouble]:
    """Return edits that come together, and what the user does then."""
    when = chance.uniform(0.5, LONGEST_S / 2)
    made = []
    for _ in range(chance.choice((1, 1, 2))):
        what = chance.choice(EDITS)
        number = chance.choice((0, 1, 3)) if what == "retries" else chance.choice((1, 2))
        job = chance.choice(jobs).job_id
        made.append(Trouble(kind="edit", at_s=round(when, 2), job=job, what=what, number=number))
    later_s = round(when + chance.choice((0.0, 0.2, 1.0)), 2)
    if chance.random() < 0.5:
        made.append(replace(_trouble(chance, "add", jobs), at_s=later_s, at_point=None))
    if chance.random() < 0.7:
        made.append(Trouble(kind="begin", at_s=later_s, what=chance.choice(BEGINS)))
    if chance.random() < 0.6:
        kind = chance.choice(("stop", "kill", "power"))
        made.append(replace(_trouble(chance, kind, jobs), at_s=later_s, at_point=None))
    return made
