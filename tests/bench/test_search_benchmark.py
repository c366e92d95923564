"""The parts of ``benchmarks.search`` that train, with budgets so small that nothing is learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import choices, search_figures, search_learning
from benchmarks.bodies import beliefs
from benchmarks.bodies.searches_on_table import Extent
from benchmarks.search_figures import Curve
from benchmarks.search_learning import Grid
from orchestrator.features.search.gaussian_process import Belief

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**search_learning.JOB["task_options"], "max_episode_steps": 32}
    short = {
        "task_options": options,
        "eval_episodes": 2,
        "ppo": {**search_learning.JOB["ppo"], "n_steps": 64},
    }
    monkeypatch.setattr(search_learning, "JOB", search_learning.JOB | short)
    monkeypatch.setattr(search_learning, "GRID_ENV_STEPS", 1_024)
    monkeypatch.setattr(
        search_learning, "MATRIX", {search_learning.LEARNING_RATE: [1e-4, 3e-4, 1e-3, 3e-3]}
    )
    monkeypatch.setattr(
        search_learning, "RUNGS", {"kind": "asha", "min_env_steps": 512, "factor": 2}
    )
    monkeypatch.setattr(search_learning, "SAMPLED_ENV_STEPS", 512)
    monkeypatch.setattr(search_learning, "SAMPLED_TRIALS", 2)
    monkeypatch.setattr(search_learning, "SAMPLERS", ("random", "tpe"))


def test_rungs_choose_among_fully_trained_points_for_fewer_env_steps() -> None:
    search_learning.grid.cache_clear()
    grid = search_learning.grid(0)
    assert grid.whole == 4 * 1_024
    assert 0 < grid.spent < grid.whole
    assert len(grid.values) == 4
    assert grid.chosen in grid.values
    assert grid.error >= 0
    ratio, of_random, of_cmaes, test = search_learning.together(1, figures=None)
    assert ratio.values[0] >= 0
    assert all(len(line.values) == 1 for line in (of_random, of_cmaes))
    assert (test.measured, test.good) == ("one seed", False)
    search_learning.grid.cache_clear()


def test_choices_of_rungs_are_judged_in_their_seed_and_over_all_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second choice is near the best of its seed, and the best over all; the third is
    neither."""
    grids = [
        Grid(values={"a": 10.0, "b": 8.0, "c": 1.0}, error=1.0, chosen="a", spent=30, whole=100),
        Grid(values={"a": 9.0, "b": 10.0, "c": 2.0}, error=1.0, chosen="a", spent=20, whole=100),
        Grid(values={"a": 11.0, "b": 3.0, "c": 0.0}, error=1.0, chosen="b", spent=40, whole=100),
    ]
    monkeypatch.setattr(search_learning, "grid", grids.__getitem__)
    lines = search_learning.asha(3)
    assert [(list(line.values), line.good) for line in lines] == [
        ([0.3, 0.2, 0.4], True),
        ([1.0, 0.9, 3 / 11], False),
        ([1.0, 0.9, 3 / 11], True),
        ([10.0, 10.0, 7.0], False),
        ([1.0, 1.0, 0.7], True),
        ([10.0, 7.0, 10.0], True),
        ([1.0, 0.7, 1.0], True),
    ]
    assert [(line.measured, line.target) for line in lines if " of 3" in line.measured] == [
        ("2 of 3", "3 of 3"),
        ("2 of 3", "3 of 3"),
        ("2 of 3", ""),
    ]


def test_samplers_spend_the_same_and_figures_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the searches is run; they differ in seed and sampler only."""
    train, settings, spent = search_learning.search, list[dict[str, Any]](), list[int]()

    def search(seed: int, *, sampler: str, **others: Any) -> Curve:
        settings.append(others)
        if (seed, sampler) != (0, "tpe"):
            return Curve(env_steps=[512, 1_024], values=[seed - 1.0, seed + 1.0], whole=1_024)
        curve = train(seed, sampler=sampler, **others)
        spent.append(curve.whole)
        return curve

    monkeypatch.setattr(search_learning, "search", search)
    lines = search_learning.samplers(2, figures=tmp_path)
    assert spent == [2 * 512]
    assert settings == settings[:1] * 4
    assert [len(line.values) for line in lines] == [2, 2, 1]
    assert 0 < lines[-1].values[0] <= 1
    assert (tmp_path / "search-samplers.png").read_bytes().startswith(b"\x89PNG")


def test_children_with_a_policy_are_paired_with_those_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = '"model.body.*_thigh.pos" = ["*0.7", "*1.15"]\n"model.geom.trunk.density" = [450]\n'
    ppo = "[defaults.ppo]\nn_steps = 64\nbatch_size = 256\n[defaults.task_options]\nmax_episode_steps = 32\n"
    (tmp_path / "variants.toml").write_text(
        f"[defaults]\ntotal_timesteps = 512\n{ppo}[[jobs]]\n[jobs.matrix]\n{matrix}"
    )
    monkeypatch.setattr(search_learning, "VARIANTS", tmp_path / "variants.toml")
    monkeypatch.setattr(search_learning, "CHILD_ENV_STEPS", 512)
    pairs = search_learning._pairs(tmp_path, 0)
    assert len(pairs) == 2
    assert {env_steps for pair in pairs for env_steps in pair} == {512}
    search_figures.write(tmp_path, "children", search_figures.children, pairs, 512)
    assert (tmp_path / "children.png").read_bytes().startswith(b"\x89PNG")


def test_a_value_is_reached_when_the_best_is_first_as_good() -> None:
    curve = Curve(env_steps=[10, 20, 40], values=[1.0, 2.0, 5.0], whole=50)
    assert [curve.until(value) for value in (0.5, 2.0, 3.0, 6.0)] == [10, 20, 40, None]


def test_choices_are_compared_with_the_best_seen_of_random_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choices, "FUNCTIONS", 3)
    monkeypatch.setattr(choices, "TRAININGS", 12)
    monkeypatch.setattr(choices, "SAMPLERS", ("random", "cmaes"))
    first, second, *_ = lines = choices.choices(1)
    assert len(lines) == 4
    assert first.measured == "1"
    assert second.values[0] > 0
    low, high = choices.interval_of_ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (low, high) == (0.5, 0.5), "pairs of one function stay together"


def test_the_best_value_of_a_function_is_at_its_peak_or_above_it() -> None:
    for number in range(3):
        tried = choices.function(number)
        points = choices.np.random.default_rng(1).random((100, 6))
        assert tried.value(points).max() <= tried.best
        assert tried.spread > 0


def test_beliefs_are_judged_by_what_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beliefs, "TRIALS", (8,))
    monkeypatch.setattr(beliefs, "NOISES", (1.0,))
    extent = Extent(searches=5, slow_searches=1, processes=1, robots=())
    errors = {"wide": 1e9, "narrow": 1e-9}
    held = {}
    for how, error in errors.items():

        def belief(places: Any, values: Any, at: Any, error: float = error) -> Belief:
            return Belief(means=np.zeros(len(at)), errors=np.full(len(at), error))

        monkeypatch.setattr("orchestrator.features.search.gaussian_process.belief", belief)
        (line,) = beliefs.beliefs(1, extent)
        held[how] = line.values, line.good
    assert held == {"wide": ([1.0], True), "narrow": ([0.0], False)}


def test_values_of_a_function_have_the_noise_that_is_asked_for() -> None:
    exact = beliefs.of_function(0.0, 3, 50)
    np.testing.assert_array_equal(exact.values, exact.truth)
    noisy = beliefs.of_function(0.5, 3, 5_000)
    spread = choices.function(3).spread
    assert (noisy.values - noisy.truth).std() == pytest.approx(0.5 * spread, rel=0.1)
