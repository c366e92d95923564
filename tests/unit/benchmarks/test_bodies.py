"""Tables of bodies, and the simulator of searches on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bodies import simulator, table
from benchmarks.bodies.simulator import Landscape


@pytest.mark.parametrize("robot", table.SPACES)
def test_a_table_holds_the_sobol_points_of_its_space_in_order(robot: str) -> None:
    found = table.load(table.table_file(robot))
    first = found.bodies - 3
    expected = [list(point.values()) for point in table.points(robot, first, 3)]
    np.testing.assert_allclose(found.points[first:], expected, rtol=1e-5)
    assert found.keys == tuple(f"params.{key}" for key in table.SPACES[robot])


def test_tables_of_the_same_keys_and_rungs_are_joined() -> None:
    runner = table.load(table.table_file("runner"))
    assert runner.extended(runner).bodies == 2 * runner.bodies
    with pytest.raises(ValueError, match="rungs"):
        runner.extended(replace(runner, rungs=runner.rungs + 1))


def test_a_table_becomes_a_landscape_with_the_same_means_and_the_unbiased_noise() -> None:
    runner = table.load(table.table_file("runner"))
    land = simulator.landscape("runner", runner)
    assert land.places.shape == (512, 3)
    assert land.places.min() >= 0
    assert land.places.max() <= 1
    values = runner.measure("eval_mean")
    np.testing.assert_allclose(land.truth, values.mean(axis=1))
    np.testing.assert_allclose(land.values.var(axis=1), values.var(axis=1, ddof=1))


def made(noise: float) -> Landscape:
    """Bodies on a line, of which the middle one is best."""
    places = np.linspace(0, 1, 61)[:, None]
    values = -((places - 0.5) ** 2) + noise * np.random.default_rng(0).standard_normal((61, 4))
    return Landscape(places=places, values=values)


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", ["random", "sobol", "tpe", "cmaes"])
def test_who_tries_all_bodies_without_noise_has_no_regret(sampler: str) -> None:
    assert simulator.regret(made(0.0), sampler, 0, trainings=100) == 0


def test_the_same_search_is_the_same_again_and_another_meets_other_seeds() -> None:
    land = made(1.0)
    found = [simulator.regret(land, "tpe", number, trainings=20) for number in (0, 0, 1, 2, 3)]
    assert found[0] == found[1]
    assert len(set(found)) > 1


def test_a_final_takes_its_trainings_from_the_search_and_chooses_better_where_noise_is_large() -> (
    None
):
    assert simulator.final_cost(8) == 16
    assert simulator.final_cost(0) == 0
    land = made(0.3)
    with_final = simulator.compare(land, "random", searches=60, trainings=40, finalists=8)
    assert with_final.middle < 1
    assert simulator.compare(land, "random", searches=60, trainings=10).middle == 1
