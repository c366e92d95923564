"""Scenarios in which much more goes wrong than in the others: troubles come several times a second.

They are drawn from a generator of their own, so that the other scenarios stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation import scenario as drawn
from tests.simulation.scenario import Scenario, Trouble

SHARE = 0.8
"""Of all scenarios, those that are so."""


def denser(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with many more troubles; often as it is."""
    if chance.random() > SHARE:
        return scenario
    jobs = list(scenario.jobs)
    troubles = list(scenario.troubles)
    for _ in range(chance.choice((20, 40, 80))):
        troubles.append(drawn.made_trouble(chance, jobs))
    for _ in range(chance.choice((20, 40))):
        troubles.append(drawn.made_delivery(chance))
    for _ in range(chance.choice((2, 5, 10))):
        troubles += _of_machines(scenario, chance)
    if scenario.until_s:  # the clock goes on steadily then
        troubles = [trouble for trouble in troubles if trouble.kind != "jump"]
    return replace(scenario, troubles=tuple(troubles))


def _of_machines(scenario: Scenario, chance: random.Random) -> list[Trouble]:
    """One trouble of the machines on which the jobs run, where these are others."""
    if scenario.nodes:
        largest = max(range(len(scenario.nodes)), key=lambda index: scenario.nodes[index].cpus)
        return [drawn.made_node_trouble(chance, len(scenario.nodes), largest)]
    if scenario.array:
        return [drawn.made_pilot_trouble(chance)]
    return []
