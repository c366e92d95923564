"""What is declared for a race."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TextIO

from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.features.compare.contestants import Conditions
from orchestrator.features.compare.sequential import LEAST_SEEDS, MOST_SEEDS, Rules
from orchestrator.machine.slots import MaxParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceOptions:
    """What is declared for a race."""

    rules: Rules
    conditions: Conditions
    max_parallel: MaxParallel = None
    progress: TextIO | None = None
    """Where a line for each event goes; None: nowhere."""


def checked_rules(most_seeds: int | None, smallest_difference: float | None) -> Rules:
    """:raises UsageError: one of them is out of its range."""
    rules = Rules()
    if most_seeds is not None:
        is_whole = isinstance(most_seeds, Integral) and not isinstance(most_seeds, bool)
        if not is_whole or not LEAST_SEEDS <= most_seeds <= MOST_SEEDS:
            raise UsageError(
                f"compare: {option('most_seeds')}: expected a whole number from {LEAST_SEEDS} to"
                f" {MOST_SEEDS}, found {most_seeds}"
            )
        rules = dataclasses.replace(rules, most_seeds=int(most_seeds))
    if smallest_difference is not None:
        is_number = isinstance(smallest_difference, Real) and math.isfinite(smallest_difference)
        if not is_number or not smallest_difference > 0:
            raise UsageError(
                f"compare: {option('smallest_difference')}: expected a number above 0, in the unit"
                f" of the figure, found {smallest_difference}"
            )
        rules = dataclasses.replace(rules, smallest_difference=float(smallest_difference))
    return rules
