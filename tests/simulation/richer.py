"""What a share of the scenarios has beside the rest: others who look on, a time by which all has to
end, processes that workers are forked from, robots, ledgers of other versions, and the like.

It is drawn from a generator of its own, so that the other scenarios stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import Scenario

SHARE = 0.3
"""Of all scenarios, those that have any of this."""


def richer(scenario: Scenario, chance: random.Random) -> Scenario:
    """``scenario`` with some of this; often as it is."""
    if chance.random() > SHARE:
        return scenario
    if chance.random() < 0.5:
        scenario = replace(scenario, looks_s=chance.choice((0.3, 1.0, 3.0)))
    if chance.random() < 0.3:
        scenario = replace(scenario, page_rows=chance.choice((1, 2)))
    return scenario
