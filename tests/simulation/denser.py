"""Scenarios in which much more goes wrong: troubles come several times a second.

They are drawn from a generator of their own, so that the other scenarios stay as they are.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation import scenario as drawn
from tests.simulation.scenario import Scenario, Trouble

SHARE = 0.5
"""Of all scenarios. Some faults show only where a supervisor lives long, others where all goes wrong at
once."""
READS = ("retry", "reload", "resume")
"""What makes the supervisor read jobs that it has not read before."""


def denser(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with many more troubles, or as it is."""
    if chance.random() > SHARE:
        return scenario
    jobs = list(scenario.jobs)
    troubles = list(scenario.troubles)
    for _ in range(chance.choice((30, 60, 90))):
        troubles.append(drawn.made_trouble(chance, jobs))
    for _ in range(chance.choice((20, 40))):
        troubles.append(drawn.made_delivery(chance))
    if scenario.is_elsewhere:
        for _ in range(chance.choice((2, 5, 10))):
            troubles.append(_of_machines(scenario, chance))
    troubles = _at_requests(troubles, chance)
    if scenario.until_s:  # the clock goes on steadily then
        troubles = [trouble for trouble in troubles if trouble.kind != "jump"]
    return replace(scenario, troubles=tuple(troubles))


def _at_requests(troubles: list[Trouble], chance: random.Random) -> list[Trouble]:
    """Half of the errors of the file system come to one of the statements with which a request is read
    and acted on.
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


def _of_machines(scenario: Scenario, chance: random.Random) -> Trouble:
    """A trouble of the machines on which the jobs run."""
    if not scenario.nodes:
        return drawn.made_pilot_trouble(chance)
    largest = max(range(len(scenario.nodes)), key=lambda index: scenario.nodes[index].cpus)
    return drawn.made_node_trouble(chance, len(scenario.nodes), largest)
