"""``benchmarks.search --only races`` simulates races by the test of the program itself."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks import races, table_of_bodies
from benchmarks.table_of_bodies import MEASURES, RUNG_MEASURES, Table
from orchestrator.analysis.sequential import Rules


def test_lines_have_errors_seeds_and_the_ratio_to_a_fixed_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(races, "RACES", 20)
    lines = {line.what: line for line in races.races(1)}
    assert lines["race of equal bodies, skewed noise: decided"].values[0] <= 0.2
    ratio = next(line for what, line in lines.items() if "fixed test" in what)
    assert 0.3 < ratio.values[0] < 1.2
    assert ratio.target == "≤ 0.8"


def test_a_race_ends_when_it_is_decided_or_the_budget_is_spent() -> None:
    chance = random.Random(0)
    rules = Rules(most_seeds=6)
    apart = races.race(
        lambda _: chance.gauss(0, 0.01), lambda _: chance.gauss(9, 0.01), 9.0, rules, chance
    )
    assert (apart.outcome, apart.seeds) == ("higher", 3)
    alike = races.race(
        lambda _: chance.gauss(0, 1), lambda _: chance.gauss(0, 1), 0.0, rules, chance
    )
    assert (alike.outcome, alike.seeds) == ("not decided", 6)


def test_a_fixed_test_needs_seventeen_seeds_for_a_power_of_eighty_percent() -> None:
    assert 16 < races.fixed_seeds(0.8) <= 17  # J. Cohen's table has 17


def test_noise_of_a_table_is_that_of_seeds_about_the_mean_of_their_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_of_bodies, "FOLDER", tmp_path)
    assert races.noise_of_table("runner") is None
    measures = np.zeros((3, 2, len(MEASURES)), np.float32)
    measures[:, :, MEASURES.index("distance_m")] = [[1, 3], [10, 12], [np.nan, 5]]
    made = Table(
        keys=("params.thigh",),
        points=np.zeros((3, 1), np.float32),
        rungs=np.array([1]),
        returns=np.zeros((3, 2, 1), np.float32),
        measures=measures,
        rung_measures=np.zeros((3, 2, 1, len(RUNG_MEASURES)), np.float32),
    )
    made.save(table_of_bodies.table_file("runner"))
    noise = races.noise_of_table("runner")
    assert noise is not None
    assert {noise(random.Random(seed)) for seed in range(20)} == {-1.0, 1.0}
