"""Landscapes that a model makes of a table of bodies: what they keep of it, and what they add."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bodies import landscape, searches_on_surrogate, searches_on_table, surrogate
from benchmarks.bodies.landscape import Landscape
from benchmarks.bodies.searches_on_table import Extent
from orchestrator.features.search.declaration.spec import Dimension

pytestmark = pytest.mark.nightly

SPACE = (
    Dimension(key="params.thigh", low=0.6, high=1.5),
    Dimension(key="params.force", low=0.5, high=2.0, log=True),
)
RUNGS = (6_144,)
SEEDS = 4
PROCESS = "a Gaussian process"


def landscape_of(bodies: int, *, noise: float, slope: float = 10.0) -> Landscape:
    """Bodies with one best place, with ``noise`` of each seed at all rungs alike."""
    chance = np.random.default_rng(0)
    places = chance.random((bodies, len(SPACE)))
    of_seeds = noise * chance.normal(size=(bodies, SEEDS, 1))
    curves = true_values(places, slope)[:, None, None] * [0.6, 1.0] + of_seeds
    return Landscape(
        space=SPACE,
        places=places,
        rungs=RUNGS,
        returns=curves[:, :, :-1],
        values=curves[:, :, -1],
    )


def true_values(places: landscape.Floats, slope: float = 10.0) -> landscape.Floats:
    values: landscape.Floats = -slope * ((places - 0.3) ** 2).sum(axis=1)
    return values


@pytest.mark.parametrize(("model", "most_missed"), [(PROCESS, 0.02), ("trees", 0.2)])
def test_new_bodies_are_worth_what_bodies_at_their_places_are(
    model: str, most_missed: float
) -> None:
    made = surrogate.surrogate(landscape_of(60, noise=0.01), 64, model)
    found = made.landscape
    assert found.bodies == 64
    true = true_values(found.places)
    missed = (found.means - true).var() / true.var()
    assert missed < most_missed
    assert made.explained > 1 - most_missed
    np.testing.assert_allclose(found.returns[:, :, 0].mean(axis=1), 0.6 * true, atol=1.5)


def test_noise_of_seeds_is_no_difference_between_bodies() -> None:
    """All bodies are the same, and their means differ by their seeds alone."""
    met = landscape_of(80, noise=1.0, slope=0.0)
    made = surrogate.surrogate(met, 256, PROCESS)
    assert made.explained < 0.1
    assert met.spread == pytest.approx(0.5, rel=0.2)
    assert made.landscape.spread < met.spread / 2
    assert made.landscape.noise == pytest.approx(met.noise, rel=0.15)


def test_what_no_model_foretells_stays_a_difference_between_bodies() -> None:
    """The worth of a body has nothing to do with its place."""
    met = landscape_of(80, noise=0.1, slope=0.0)
    worth = np.random.default_rng(1).normal(size=(met.bodies, 1))
    met.values[:] += worth
    met.returns[:] += worth[:, :, None]
    made = surrogate.surrogate(met, 256, PROCESS)
    assert made.explained < 0.1
    assert made.landscape.spread > 0.7 * met.spread


def test_the_seeds_of_a_body_are_those_of_a_trained_one_at_all_rungs() -> None:
    met = landscape_of(40, noise=1.0)
    found = surrogate.surrogate(met, 32, PROCESS).landscape
    deviations = found.values - found.means[:, None]
    known = met.values - met.means[:, None]
    for of_body in deviations:
        assert np.isclose(known, of_body).all(axis=1).any()
    at_rung = found.returns - found.returns.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(at_rung[:, :, 0], deviations, atol=1e-9)


def test_returns_that_are_not_known_are_those_of_other_seeds_or_bodies() -> None:
    met = landscape_of(40, noise=0.1)
    whole = surrogate.surrogate(met, 16, PROCESS).landscape
    met.returns[3, 1, 0] = np.nan
    met.returns[5, :, 0] = np.nan
    found = surrogate.surrogate(met, 16, PROCESS).landscape
    np.testing.assert_allclose(found.values, whole.values)
    np.testing.assert_allclose(found.returns[:, :, 0], whole.returns[:, :, 0], atol=1.0)


def test_the_same_table_gives_the_same_landscape() -> None:
    met = landscape_of(40, noise=1.0)
    made = [surrogate.surrogate(met, 16, PROCESS).landscape for _ in range(2)]
    np.testing.assert_array_equal(made[0].values, made[1].values)
    np.testing.assert_array_equal(made[0].returns, made[1].returns)


def test_the_part_compares_searches_with_more_trainings_than_a_table_admits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        searches_on_surrogate, "landscape_of_robot", lambda _: landscape_of(48, noise=1.0)
    )
    monkeypatch.setattr(searches_on_surrogate, "BODIES", 128)
    monkeypatch.setattr(searches_on_table, "POINTS", 8)
    monkeypatch.delitem(surrogate.MODELS, "trees")
    monkeypatch.setattr(
        searches_on_table,
        "RUNGS",
        {
            "with early rungs": searches_on_table.EARLY,
            "without rungs": None,
        },
    )
    extent = Extent(
        searches=6,
        slow_searches=2,
        processes=1,
        robots=("runner",),
        samplers=("random", "cmaes"),
        trainings=8,
    )
    lines = searches_on_surrogate.searches_on_surrogates(1, extent)
    text = "\n".join(f"{line.what}: {line.measured}" for line in lines)
    for part in (
        "runner by a Gaussian process: R²",
        "runner by a Gaussian process, 128 bodies, 8 trainings: cmaes without rungs",
    ):
        assert part in text
    assert "raced" not in text
    assert all(np.isfinite(line.values[0]) for line in lines[:8])
