"""Main effects of parameters on what trainings reach."""

from __future__ import annotations

import random

from orchestrator.features.search.main_effects import main_effect


def pairs(n: int, slope: float) -> list[tuple[float, float]]:
    rng = random.Random(n)
    places = [rng.random() for _ in range(n)]
    return [(place, slope * place + rng.gauss(0, 1)) for place in places]


def test_effects_are_strong_weak_or_unknown() -> None:
    strong = main_effect(pairs(200, 50.0), ordered=True)
    assert strong["share"] > 0.9
    assert strong["correlation"] > 0.95
    assert main_effect(pairs(200, -50.0), ordered=True)["correlation"] < -0.95
    nothing = [main_effect(pairs(n, 0.0), ordered=True)["share"] for n in range(40, 80)]
    assert sum(nothing) / len(nothing) < 0.06
    u_shaped = [(place, abs(place - 0.5)) for place, _ in pairs(200, 0)]
    hidden = main_effect(u_shaped, ordered=True)
    assert abs(hidden["correlation"]) < 0.3
    assert hidden["share"] > 0.7
    for known in (
        pairs(5, 1.0),
        [(place, 1.0) for place, _ in pairs(50, 0)],
        [(0.5, y) for _, y in pairs(50, 0)],
    ):
        assert main_effect(known, ordered=True)["share"] is None
    choices = main_effect(
        [(float(n % 2), float(n % 2 * 10 + n % 5)) for n in range(40)], ordered=False
    )
    assert choices["correlation"] is None
    assert choices["share"] > 0.7
