"""What must hold of the supervisor does, over 500 simulated worlds. They are always the same ones;
`python -m tests.simulation` plays others.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.drawing import DELIVERIES, KINDS, made
from tests.simulation.play import play


def check(seeds: range) -> None:
    violations = {}
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = play(made(seed))
        counts += outcome.counts
        if outcome.violation:
            violations[seed] = outcome.violation
    assert violations == {}
    assert all(counts[kind] for kind in (*KINDS, *DELIVERIES, "edit", "begin"))


class TestFirstHalf:
    """Tests of a class run on one core: each half of the seeds on its own."""

    @pytest.mark.parametrize("first", [0, 125])
    def test_everything_holds(self, first: int) -> None:
        check(range(first, first + 125))


class TestSecondHalf:
    @pytest.mark.parametrize("first", [250, 375])
    def test_everything_holds(self, first: int) -> None:
        check(range(first, first + 125))
