"""Leaves out of a failing scenario whatever its failure does not need."""

from __future__ import annotations

import re

from tests.simulation.play import Outcome, play
from tests.simulation.scenario import Scenario


def shrunk(scenario: Scenario, outcome: Outcome) -> tuple[Scenario, Outcome]:
    """The shortest scenario that is found in which the same does not hold."""
    kind = kind_of(outcome)
    while True:
        for candidate in scenario.shorter():
            again = play(candidate)
            if again.violation and kind_of(again) == kind:
                scenario, outcome = candidate, again
                break
        else:
            return scenario, outcome


def kind_of(outcome: Outcome) -> str:
    """What does not hold, whichever job it concerns and however often."""
    return re.sub(r"\d+|\{.*\}|\[.*\]", "…", outcome.violation.partition("\n")[0])
