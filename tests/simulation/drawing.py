"""Draws scenarios from seeds.

Most are drawn part by part (:func:`_drawn`); some are stories (:mod:`tests.simulation.stories`),
situations that seldom come about by chance. Many get many more troubles: some faults show only where
a supervisor lives long, others where everything goes wrong at once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.simulation import stories
from tests.simulation.scenario import (
    COMMANDS,
    OF_JOBS,
    Behaviour,
    Ending,
    Scenario,
    SimulatedJob,
    Trouble,
    TroubleKind,
)

STORY_SHARE = 0.22
CHANGES_SHARE = 0.35
"""Of all scenarios, those whose job files change."""
RANKS_SHARE = 0.2
DENSE_SHARE = 0.6
LONGEST_S = 25.0
"""Troubles come within this time."""
MOST_POINTS = 400
"""Deaths and commands come within this many points."""
MOST_EVENTS = 45


def made(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(seed)
    scenario = stories.told(chance) if chance.random() < STORY_SHARE else _drawn(chance)
    if chance.random() < DENSE_SHARE:
        scenario = _denser(scenario, chance)
    return scenario


def _drawn(chance: random.Random) -> Scenario:
    jobs: list[SimulatedJob] = []
    for number in range(chance.choice((1, 2, 2, 3, 3, 4, 5))):
        jobs.append(_made_job(chance, number, jobs))
    if chance.random() < RANKS_SHARE:
        jobs = [_ranked(chance, job) if chance.random() < 0.6 else job for job in jobs]
    troubles: list[Trouble] = []
    for _ in range(chance.choice((1, 2, 3, 4, 6, 8, 12))):
        troubles.append(_made_trouble(chance, jobs))
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        troubles += _made_sequence(chance, jobs)
    for _ in range(chance.choice((0, 0, 4, 12, 24))):
        troubles.append(_made_delivery(chance))
    if any(trouble.kind == "fills" for trouble in troubles):
        jobs = [replace(job, min_free_disk_mib=chance.choice((0, 500, 500))) for job in jobs]
    scenario = Scenario(
        jobs=tuple(jobs),
        troubles=tuple(troubles),
        cpus=chance.choice((1, 2, 2, 3, 4)),
        max_parallel=chance.choice((None, None, None, 1, 2)),
        grace_s=chance.choice((0.0, 1.0, 3.0, 12.0)),
        gap_s=chance.choice((0.5, 2.0, 10.0)),
        order=chance.choice(("as-listed", "longest-first")),
        page_rows=chance.choice((0, 0, 0, 0, 0, 1, 2)),
    )
    return _with_changes(scenario, chance) if chance.random() < CHANGES_SHARE else scenario


# -- jobs

ENDINGS: tuple[Ending, ...] = (
    *("error", "diverged", "killed", "killed", "crashed", "oom", "hangs", "grows", "silent"),
    *("garbled", "leaves", "orphaned", "full", "refused", "refused-full", "refused-odd"),
)


def _made_job(chance: random.Random, number: int, before: list[SimulatedJob]) -> SimulatedJob:
    is_stalling = chance.random() < 0.3
    parents = [job.job_id for job in before] if chance.random() < 0.2 else []
    return SimulatedJob(
        name=f"j{number}",
        iterations=chance.choice((1, 2, 4, 6)),
        cores=chance.choice((1, 1, 1, 2)),
        memory_mib=chance.choice((100, 100, 400)),
        max_retries=chance.choice((0, 1, 1, 2)),
        timeout_s=chance.choice((1000.0, 1000.0, 1000.0, 3.0)),
        stall_timeout_s=2.5 if is_stalling else 1000.0,
        min_free_disk_mib=chance.choice((0, 0, 0, 500)),
        after=tuple(chance.sample(parents, min(len(parents), chance.choice((1, 1, 2))))),
        behaviours=_made_behaviours(chance, is_stalling=is_stalling),
    )


def _made_behaviours(chance: random.Random, *, is_stalling: bool) -> tuple[Behaviour, ...]:
    behaviours = [
        _made_behaviour(chance, is_stalling=is_stalling)
        for _ in range(chance.choice((0, 1, 1, 2, 3, 5)))
    ]
    if chance.random() < 0.15:  # it fails again and again
        ending = chance.choice(("killed", "crashed", "leaves", "refused"))
        behaviours = [replace(behaviour, ending=ending) for behaviour in behaviours]
    return tuple(behaviours)


def _made_behaviour(chance: random.Random, *, is_stalling: bool) -> Behaviour:
    endings = [ending for ending in ENDINGS if ending != "hangs" or is_stalling]
    return Behaviour(
        ending=chance.choice(endings) if chance.random() < 0.5 else "done",
        after=chance.choice((0, 1, 1, 2, 3)),
        start_s=chance.choice((0.1, 0.5, 1.0)),
        iteration_s=chance.choice((0.2, 0.5, 1.0, 1.5)),
        asked=chance.choice(("saves", "saves", "saves", "slow", "deaf")),
        lingers=chance.random() < 0.3,
    )


def _ranked(chance: random.Random, job: SimulatedJob) -> SimulatedJob:
    behaviours = tuple(
        replace(behaviour, ending="rank-dies") if chance.random() < 0.4 else behaviour
        for behaviour in job.behaviours
    )
    ranks = chance.choice((2, 2, 3))
    return replace(job, ranks=ranks, cores=1, memory_mib=100, behaviours=behaviours)


# -- troubles

KINDS: tuple[TroubleKind, ...] = (
    *("kill", "kill", "kill", "power", "power", "lock", "full", "io", "jump", "fills"),
    *("stop", "stop-now", "signal", "hangup", "checkpoints", "odd-requests"),
    *("cancel", "pause", "pause", "resume", "resume", "retry", "retry", "set", "status", "error"),
)
DELIVERIES: tuple[TroubleKind, ...] = (
    *("late", "late", "late", "twice", "twice", "twice"),
    *("lost", "lost", "lost", "stray", "stray", "stray", "odd-event"),
)
"""What happens to an event of the executor on its way to the supervisor."""
POINTS = (
    *("", "", "", "commit", "committed", "submit ", "submitted", "ask ", "kill ", "cancelled"),
    *("remove ", "remove requests/", "rename .summary", "rename jobs/", "fsync content"),
    *("mkdir jobs/", "close the executor", "rename .ended", "remove live", "poll", "polled"),
)
"""Beginnings of the names of points at which troubles come."""
DEATH_POINTS = ("", "commit", "committed", "remove requests/", "ask ", "submitted", "polled")
"""The same for deaths in sequences."""


NUMBERS: Mapping[str, Sequence[int]] = {"set": (1, 2, 3), "io": (0, 1, 2, 4, 9, 20)}
DURATIONS: Mapping[str, Sequence[float]] = {
    "unremoved": (2.0, 8.0, 20.0),
    "lock": (0.3, 2.0, 8.0),
    "full": (0.3, 2.0, 8.0),
    "io": (0.0, 0.0, 0.3, 2.0, 8.0),
    "jump": (-7200.0, -1.0, 3600.0),
    "fills": (1.5, 4.0, 10.0),
}
"""How long troubles last, or by how much a clock jumps."""


def _made_trouble(chance: random.Random, jobs: list[SimulatedJob]) -> Trouble:
    kind = chance.choice(KINDS)
    may_wait = kind in ("kill", "power", *COMMANDS)
    comes_at_point = may_wait and chance.random() < 0.4
    return Trouble(
        kind=kind,
        at_point=chance.randrange(1, MOST_POINTS) if comes_at_point else None,
        at_s=None if comes_at_point else round(chance.uniform(0.0, LONGEST_S), 2),
        at_what=chance.choice(POINTS) if may_wait and not comes_at_point else "",
        for_s=chance.choice(DURATIONS.get(kind, (0.0,))),
        job=chance.choice(jobs).job_id if kind in OF_JOBS else "",
        number=chance.choice(NUMBERS.get(kind, (0,))),
        elsewhere=kind in COMMANDS and chance.random() < 0.3,
        choice=chance.randrange(1000) if kind == "power" else 0,
        what=chance.choice(("", "", "unknown")) if kind == "fills" else "",
    )


def _made_delivery(chance: random.Random) -> Trouble:
    kind = chance.choice(DELIVERIES)
    return Trouble(
        kind=kind,
        at_event=chance.randrange(1, MOST_EVENTS),
        for_s=chance.choice((0.3, 1.0, 4.0)) if kind == "late" else 0.0,
    )


SEQUENCES: tuple[tuple[TroubleKind, ...], ...] = (
    ("pause", "resume"),
    ("pause", "resume", "pause", "resume"),
    ("cancel", "retry"),
    ("retry", "retry"),
    ("pause", "cancel", "retry"),
    ("pause", "kill", "resume"),
    ("kill", "pause", "kill"),
    ("pause", "power", "cancel"),
    ("lock", "pause", "kill", "resume"),
    ("lock", "cancel", "stop", "kill"),
    ("unremoved", "retry", "kill"),
    ("cancel", "kill"),
    ("set", "stop", "kill"),
    ("pause", "resume", "pause", "resume", "kill"),
    ("unremoved", "cancel", "retry", "kill"),
    ("unremoved", "pause", "resume", "kill"),
    ("cancel", "kill", "retry"),
    ("lock", "kill"),
    ("lock", "power"),
    ("kill", "io", "retry"),
    ("io", "resume", "io", "cancel"),
    ("io", "stop"),
    ("io", "kill"),
)
"""Troubles that follow each other, about one job."""


def _made_sequence(chance: random.Random, jobs: list[SimulatedJob]) -> list[Trouble]:
    job = chance.choice(jobs).job_id
    elsewhere = chance.choice((0.0, 0.0, 0.5, 1.0))
    when = chance.uniform(0.0, LONGEST_S / 2)
    made: list[Trouble] = []
    for kind in chance.choice(SEQUENCES):
        dies = kind in ("kill", "power")
        points = DEATH_POINTS
        if any(trouble.elsewhere for trouble in made):
            points = (*DEATH_POINTS, *["remove requests/"] * 4)
        made.append(
            Trouble(
                kind=kind,
                at_s=round(when, 2),
                at_what=chance.choice(points) if dies else "",
                for_s=chance.choice(DURATIONS.get(kind, (0.0,))),
                job=job if kind in OF_JOBS else "",
                number=chance.choice(NUMBERS.get(kind, (0,))),
                elsewhere=kind in COMMANDS and chance.random() < elsewhere,
                choice=chance.randrange(1000) if kind == "power" else 0,
            )
        )
        when += chance.choice((0.0, 0.3, 1.0, 4.0))
    return made


READS = ("retry", "reload", "resume")
"""What makes the supervisor read jobs that it has not read before."""


def _denser(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with many more troubles."""
    jobs = list(scenario.jobs)
    troubles = list(scenario.troubles)
    for _ in range(chance.choice((30, 60, 90))):
        troubles.append(_made_trouble(chance, jobs))
    for _ in range(chance.choice((20, 40))):
        troubles.append(_made_delivery(chance))
    return replace(scenario, troubles=tuple(_at_requests(troubles, chance)))


def _at_requests(troubles: list[Trouble], chance: random.Random) -> list[Trouble]:
    """Move half of the errors of the file system to a statement with which a request is read and
    acted on.
    """
    times = [one.at_s for one in troubles if one.kind in READS and one.at_s is not None]
    if not times:
        return troubles
    return [
        replace(one, at_s=chance.choice(times), number=chance.randrange(8), for_s=0.0)
        if one.kind == "io" and chance.random() < 0.5
        else one
        for one in troubles
    ]


# -- job files that change

EDITS = (
    *("longer", "longer", "longer", "other", "other", "other", "undo", "retries"),
    *("remove", "remove", "add", "add"),
)
BEGINS = (
    *("refuse", "restart", "restart", "restart", "extend", "extend", "extend", "extend"),
    *("directory", "directory"),
)
CHANGE_POINTS = ("", "", "poll", "commit", "submitted", "rename .summary", "close the executor")


def _with_changes(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with a job file that is edited, and run again with various options."""
    jobs = [
        replace(
            job,
            is_declared=chance.random() < 0.7,
            # so that more jobs have come to their end when they are changed
            behaviours=job.behaviours[:1] if chance.random() < 0.5 else job.behaviours,
        )
        for job in scenario.jobs
    ]
    names = [job.job_id for job in jobs]
    troubles: list[Trouble] = []
    for job in jobs:
        if not job.is_declared and chance.random() < 0.5:
            at_s = round(chance.uniform(0.3, LONGEST_S / 4), 2)
            troubles.append(Trouble(kind="edit", at_s=at_s, job=job.job_id, what="add"))
            troubles.append(_made_call(chance, "reload", at_s))
    when = chance.uniform(0.5, LONGEST_S / 3)
    for _ in range(chance.choice((1, 1, 2, 3))):
        troubles += _made_change(chance, names, when)
        when += chance.choice((0.5, 3.0, 8.0))
    troubles.sort(key=lambda trouble: trouble.at_s or 0.0)
    return replace(
        scenario,
        jobs=tuple(jobs),
        troubles=(*scenario.troubles, *troubles),
        if_refused=chance.choice(("undo", "restart")),
    )


def _made_change(chance: random.Random, names: list[str], when: float) -> list[Trouble]:
    """Edits that come together, and what the user does then."""
    made = []
    for _ in range(chance.choice((1, 1, 2))):
        what = chance.choice(EDITS)
        number = chance.choice((1, 2)) if what != "retries" else chance.choice((0, 1, 3))
        job = chance.choice(names)
        made.append(Trouble(kind="edit", at_s=round(when, 2), job=job, what=what, number=number))
    later_s = round(when + chance.choice((0.0, 0.2, 1.0)), 2)
    calls: tuple[tuple[TroubleKind, float], ...] = (("reload", 0.4), ("begin", 0.6))
    made += [_made_call(chance, kind, later_s) for kind, share in calls if chance.random() < share]
    if chance.random() < 0.5:
        made.append(_made_call(chance, chance.choice(("stop", "kill", "kill", "power")), later_s))
    return made


def _made_call(chance: random.Random, kind: TroubleKind, at_s: float) -> Trouble:
    return Trouble(
        kind=kind,
        at_s=at_s,
        at_what=chance.choice(CHANGE_POINTS) if kind != "begin" else "",
        elsewhere=kind in ("reload", "stop") and chance.random() < 0.1,
        what=chance.choice(BEGINS) if kind == "begin" else "",
        choice=chance.randrange(1000) if kind == "power" else 0,
    )
