"""What a policy reaches on a changed robot, against the original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.features.advice.worker.policy_effects import (
    EPISODES,
    RANDOM,
    TRAINED,
    PlayedEpisodes,
    PolicyEffects,
    effect,
    is_cut_short,
)
from orchestrator.features.advice.worker.short_training import ShortTrainedPolicy
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import make_task

HOPPER = Path(__file__).parents[3] / "mjcf" / "hopper.xml"


def hopper(times_mass: float = 1.0) -> Simulation:
    model = load_model(HOPPER)
    model.body_mass[:] *= times_mass
    task = make_task("forward", model, {})
    return Simulation(
        model,
        task,
        robot="hopper",
        n_envs=EPISODES,
        seed=0,
        on_divergence="end-episode",
        autoreset=False,
    )


@pytest.mark.nightly
def test_a_policy_notices_a_heavy_robot_and_not_the_same_one() -> None:
    trained = ShortTrainedPolicy(HOPPER, "forward", {}, cpu_s=0.0)
    assert trained.env_steps > 0
    effects = PolicyEffects(trained, hopper, most_steps=60, enough_steps=50)
    assert not effects.are_cut_short
    same = effects.on(hopper())
    assert [one.policy for one in same] == [RANDOM, TRAINED]
    for one in same:
        assert (one.returns.low, one.returns.high) == (0.0, 0.0)
        assert one.returns.before == one.returns.after
        assert one.is_small
    heavy = effects.on(hopper(times_mass=6.0))
    assert not all(one.is_small for one in heavy)


@pytest.mark.parametrize(
    ("shift", "is_small"), [(0.0, True), (0.5, True), (1.0, False), (-0.5, True), (-1.0, False)]
)
def test_a_difference_is_small_if_it_is_certainly_below_the_noise(
    shift: float, is_small: bool
) -> None:
    rng = np.random.default_rng(0)
    returns = rng.normal(100, 20, EPISODES)
    noise = returns.std(ddof=1)
    lengths = np.full(EPISODES, 50.0)
    before = PlayedEpisodes(returns=returns, lengths=lengths)
    after = PlayedEpisodes(
        returns=returns + shift * noise + rng.normal(0, 0.1, EPISODES), lengths=lengths
    )
    found = effect(RANDOM, before, after)
    assert found.returns.is_small == is_small
    assert found.lengths.is_small
    assert (found.returns.low + found.returns.high) / 2 == pytest.approx(shift, abs=0.05)


@pytest.mark.parametrize(
    ("ended", "most_steps", "is_short"),
    [
        (EPISODES, 50, False),  # all have ended before
        (EPISODES // 2 + 1, 50, False),
        (EPISODES // 2, 50, True),
        (0, 99, True),
        (0, 100, False),
    ],
)
def test_episodes_that_are_cut_off_before_enough_steps_are_too_short(
    ended: int, most_steps: int, is_short: bool
) -> None:
    lengths = np.full(EPISODES, float(most_steps))
    lengths[:ended] = 20.0
    assert is_cut_short(lengths, most_steps, 100) == is_short


def test_equal_episodes_have_the_noise_of_a_share_of_their_mean() -> None:
    lengths = np.full(EPISODES, 100.0)
    before = PlayedEpisodes(returns=lengths, lengths=lengths)
    for factor, is_small in ((1.04, True), (1.06, False)):
        after = PlayedEpisodes(returns=lengths * factor, lengths=lengths)
        assert effect(RANDOM, before, after).is_small == is_small
