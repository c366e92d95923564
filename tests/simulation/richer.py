"""What a share of the scenarios has beside the rest: others who look on, a time by which all has to
end, processes that workers are forked from, robots, ledgers of other versions, and the like.

It is drawn from a generator of its own, so that the other scenarios stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation import spoiling
from tests.simulation.scenario import (
    LONGEST_S,
    MOST_EVENTS,
    Scenario,
    Trouble,
    TroubleKind,
)

SHARE = 0.3
"""Of all scenarios, those that have any of this."""


def richer(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with some of this; often as it is."""
    if chance.random() > SHARE:
        return scenario
    if chance.random() < 0.5:
        scenario = replace(scenario, looks_s=chance.choice((0.5, 1.0, 3.0)))
    if chance.random() < 0.3:
        scenario = replace(scenario, page_rows=chance.choice((1, 2)))
    if not scenario.is_elsewhere:
        scenario = _richer_here(scenario, chance)
    return scenario


def _richer_here(scenario: Scenario, chance: random.Random) -> Scenario:
    """On this machine alone."""
    if chance.random() < 0.3:
        scenario = _with_starts(scenario, chance)
    if chance.random() < 0.25:
        scenario = _with_end(scenario, chance)
    if chance.random() < 0.3 and not scenario.searcher_s:
        scenario = _with_robots(scenario, chance)
    if chance.random() < 0.25:
        scenario = replace(scenario, is_called=not scenario.searcher_s)
    scenario = replace(scenario, is_nohup=chance.random() < 0.1)
    jobs = [replace(job, is_measured=chance.random() < 0.3) for job in scenario.jobs]
    troubles = list(scenario.troubles)
    for _ in range(chance.choice((0, 1, 2, 3))):
        troubles.append(_made_trouble(chance, is_called=scenario.is_called))
    if any(trouble.kind == "fills" for trouble in troubles):
        jobs = [replace(job, min_free_disk_mib=chance.choice((0, 500, 500))) for job in jobs]
    if chance.random() < 0.3 and not scenario.searcher_s:  # whose jobs are declared nowhere else
        troubles += _made_damages(chance, scenario)
    elif chance.random() < 0.5 and scenario.searcher_s:
        at_s = round(chance.uniform(1.0, LONGEST_S / 2), 2)
        troubles += [
            Trouble(kind="begin", at_s=at_s, what="directory"),
            Trouble(kind="kill", at_s=at_s),
        ]
    return replace(scenario, jobs=tuple(jobs), troubles=tuple(troubles))


def _with_robots(scenario: Scenario, chance: random.Random) -> Scenario:
    """Robots, which their users change, and copies of them, which others change."""
    jobs = tuple(replace(job, robot=int(chance.random() < 0.7)) for job in scenario.jobs)
    names = [job.job_id for job in jobs if job.robot]
    troubles = list(scenario.troubles)
    for _ in range(chance.choice((1, 2, 3)) if names else 0):
        at_s, job = round(chance.uniform(0.5, LONGEST_S / 2), 2), chance.choice(names)
        troubles.append(
            Trouble(
                kind=chance.choice(("edit", "robot", "robot")),
                at_s=at_s,
                job=job,
                what=chance.choice(("alter", "alter", "remove")),
                choice=chance.randrange(1000),
            )
        )
        if troubles[-1].kind == "edit":
            troubles[-1] = replace(troubles[-1], what="robot", choice=0)
        if chance.random() < 0.7:
            troubles.append(Trouble(kind=chance.choice(("kill", "stop", "reload")), at_s=at_s))
        if chance.random() < 0.5:
            what = chance.choice(("restart", "keep", "directory", "extend"))
            troubles.append(Trouble(kind="begin", at_s=at_s, what=what))
    return replace(scenario, jobs=jobs, troubles=tuple(troubles))


def _made_damages(chance: random.Random, scenario: Scenario) -> list[Trouble]:
    """Files are damaged between two runs, of which the first one often dies."""
    at_s = round(chance.uniform(1.0, LONGEST_S), 2)
    job = chance.choice(scenario.jobs).job_id
    ends: TroubleKind = chance.choice(("kill", "stop", "signal"))
    what = chance.choice((*spoiling.KINDS, "job-file", "job-file"))
    begin = "directory" if what == "job-file" or chance.random() < 0.2 else "refuse"
    return [
        Trouble(kind="damage", at_s=at_s, what=what, job=job, choice=chance.randrange(2)),
        Trouble(kind=ends, at_s=at_s),
        Trouble(kind="begin", at_s=at_s, what=begin),
    ]


def _with_starts(scenario: Scenario, chance: random.Random) -> Scenario:
    """Workers are forked from a process that takes its time to be ready."""
    starts = chance.choice((("auto",), ("auto", "exec", "fork"), ("fork",)))
    jobs = tuple(
        replace(job, start=chance.choice(starts) if job.ranks == 1 else "auto")
        for job in scenario.jobs
    )
    return replace(scenario, jobs=jobs, template_s=chance.choice((0.3, 1.5, 4.0)))


def _with_end(scenario: Scenario, chance: random.Random) -> Scenario:
    """All is to have ended by some time. The clock goes on steadily then."""
    troubles = tuple(trouble for trouble in scenario.troubles if trouble.kind != "jump")
    until_s = scenario.grace_s + chance.choice((1.0, 4.0, 8.0, 15.0))
    return replace(scenario, troubles=troubles, until_s=until_s)


KINDS: tuple[TroubleKind, ...] = (
    *("hangup", "hangup", "fills", "fills", "terminal", "template"),
    *("odd-requests", "odd-event"),
)


def _made_trouble(chance: random.Random, *, is_called: bool) -> Trouble:
    kind = chance.choice((*KINDS, "callback", "callback") if is_called else KINDS)
    if kind == "odd-event":
        return Trouble(kind=kind, at_event=chance.randrange(1, MOST_EVENTS))
    return Trouble(
        kind=kind,
        at_s=round(chance.uniform(0.0, LONGEST_S / 2), 2),
        for_s=chance.choice((1.5, 4.0, 10.0)) if kind == "fills" else 0.0,
        choice=chance.randrange(1000),
        what=chance.choice(("", "", "unknown")) if kind == "fills" else "",
    )
