"""The private names of stable-baselines3 and torch that the worker uses are there, and mean what it
takes them for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

from orchestrator.worker.runtime import sb3_internals


@pytest.fixture(scope="module")
def models() -> dict[str, BaseAlgorithm]:
    """Trained for 16 env_steps."""
    models: dict[str, BaseAlgorithm] = {
        "on": PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, n_epochs=3, device="cpu"),
        "off": SAC("MlpPolicy", "Pendulum-v1", learning_starts=4, buffer_size=100, device="cpu"),
    }
    return {name: model.learn(16) for name, model in models.items()}


@pytest.mark.parametrize(
    ("kind", "name", "holds"),
    [
        ("on", sb3_internals.LAST_OBS, lambda value: value.shape == (1, 3)),
        ("off", sb3_internals.LAST_OBS, lambda value: value.shape == (1, 3)),
        ("on", sb3_internals.LAST_ORIGINAL_OBS, lambda value: value is None),
        ("off", sb3_internals.LAST_ORIGINAL_OBS, lambda value: value.shape == (1, 3)),
        (
            "on",
            sb3_internals.LAST_EPISODE_STARTS,
            lambda value: value.shape == (1,) and not value.any(),
        ),
        ("on", sb3_internals.N_UPDATES, lambda value: value == 2 * 3),
        ("off", sb3_internals.N_UPDATES, lambda value: value == 16 - 4),
        ("on", sb3_internals.EPISODE_NUM, lambda value: value == 0),
        ("off", sb3_internals.EPISODE_NUM, lambda value: value == 0),
        ("on", sb3_internals.PROGRESS_REMAINING, lambda value: value == 0.0),
    ],
)
def test_a_model_has_the_attribute(
    models: dict[str, BaseAlgorithm], kind: str, name: str, holds: Callable[[Any], bool]
) -> None:
    assert holds(vars(models[kind])[name])


def test_a_model_names_what_it_saves(models: dict[str, BaseAlgorithm]) -> None:
    assert sb3_internals.saved_parts(models["on"]) == ["policy", "policy.optimizer"]
    assert sb3_internals.saved_parts(models["off"]) == [
        "policy",
        *(f"{name}.optimizer" for name in ("actor", "critic")),
        "ent_coef_optimizer",
    ]


def test_update_info_buffer_counts_episodes(models: dict[str, BaseAlgorithm]) -> None:
    model = models["on"]
    assert model.ep_info_buffer is not None
    before = len(model.ep_info_buffer)
    sb3_internals.update_info_buffer(model)(
        [{"episode": {"r": 1.0, "l": 2, "t": 3.0}}, {}], np.array([True, False])
    )
    assert len(model.ep_info_buffer) == before + 1


def test_setup_learn_and_update_progress_prepare_a_training() -> None:
    model = PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu")
    model.set_logger(Logger(folder=None, output_formats=[]))
    callback = sb3_internals.setup_learn(model, 100, reset_num_timesteps=True)
    assert callback.model is model
    assert vars(model)[sb3_internals.LAST_OBS].shape == (1, 3)
    assert vars(model)["_num_timesteps_at_start"] == 0
    model.num_timesteps = 25
    sb3_internals.update_progress(model, 100)
    assert vars(model)[sb3_internals.PROGRESS_REMAINING] == 0.75


def test_wrap_env_transposes_images(models: dict[str, BaseAlgorithm]) -> None:
    class Seeing(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

    venv = DummyVecEnv([lambda: Monitor(Seeing())])
    assert isinstance(sb3_internals.wrap_env(models["on"], venv), VecTransposeImage)


def test_env_indices_selects_all_one_or_some() -> None:
    venv = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * 3)
    assert [sb3_internals.env_indices(venv, indices) for indices in (None, 1, [0, 2])] == [
        [0, 1, 2],
        [1],
        [0, 2],
    ]


def test_dummy_vec_env_reads_and_writes_its_observations_by_public_names() -> None:
    class Doubled(sb3_internals.ExtendedDummyVecEnv):
        def observations(self) -> Any:
            return super().observations() * 2

    venv = Doubled([lambda: gymnasium.make("Pendulum-v1")])
    first = venv.reset()
    assert (first == venv.buf_obs[None] * 2).all()
    venv.save_observation(0, np.array([1, 2, 3], np.float32))
    assert venv.observations().tolist() == [[2, 4, 6]]


def test_torch_has_the_fused_adam() -> None:
    weight, gradient, first, second = torch.ones(2), torch.ones(2), torch.zeros(2), torch.zeros(2)
    sb3_internals.fused_adam()(
        *([tensor] for tensor in (weight, gradient, first, second)),
        [],
        [torch.tensor(1.0)],
        lr=0.5,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        weight_decay=0.0,
        amsgrad=False,
        maximize=False,
    )
    assert torch.allclose(weight, torch.full((2,), 0.5))


def test_distributions_check_their_arguments_again_after_the_block() -> None:
    with sb3_internals.unchecked_distributions():
        torch.distributions.Normal(0.0, -1.0)
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(0.0, -1.0)
