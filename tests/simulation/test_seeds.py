"""What must hold of the supervisor does, over 500 simulated worlds. They are always the same ones;
`python -m tests.simulation` plays others.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.drawing import DELIVERIES, KINDS, made
from tests.simulation.play import play

PART = 100


@pytest.mark.parametrize("first", range(0, 500, PART))
def test_everything_holds(first: int) -> None:
    violations = {}
    counts: Counter[str] = Counter()
    for seed in range(first, first + PART):
        outcome = play(made(seed))
        counts += outcome.counts
        if outcome.violation:
            violations[seed] = outcome.violation
    assert violations == {}
    assert all(counts[kind] for kind in (*KINDS, *DELIVERIES, "edit", "begin", "reload"))
    assert counts["full refusals"]
    assert counts["io refusals"]
