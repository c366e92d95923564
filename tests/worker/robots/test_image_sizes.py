"""Which images the network of Stable-Baselines3 is too large for: the examination and the library
agree."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO

from orchestrator.core.messages import ExaminationRequest
from orchestrator.worker.robots.env_check import UnfitError, check_environment

SHAPES = [(36, 36, 3), (35, 36, 3), (36, 35, 1), (3, 36, 36), (3, 36, 35), (4, 20, 50)]


class Pixels(gymnasium.Env[object, int]):
    action_space = spaces.Discrete(2)

    def __init__(
        self,
        xml: None = None,
        seed: int = 0,
        *,
        shape: tuple[int, ...],
        kind: str,
        among_others: bool,
    ) -> None:
        highest = 1 if kind == "float32" else 255
        self.observation_space = spaces.Box(0, highest, shape, np.dtype(kind).type)
        if among_others:
            self.observation_space = spaces.Dict({"camera": self.observation_space})

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[object, dict[str, object]]:
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[object, float, bool, bool, dict[str, object]]:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.nightly
@pytest.mark.parametrize("among_others", [False, True])
@pytest.mark.parametrize("normalize_images", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_images_are_refused_exactly_where_the_library_cannot_make_its_network(
    shape: tuple[int, ...], kind: str, normalize_images: bool, among_others: bool
) -> None:
    policy = "MultiInputPolicy" if among_others else "CnnPolicy"
    arguments = {"shape": shape, "kind": kind, "among_others": among_others}
    try:
        PPO(
            policy,
            Pixels(**arguments),
            n_steps=4,
            batch_size=4,
            policy_kwargs={"normalize_images": normalize_images},
            device="cpu",
        )
        is_possible = True
    except (AssertionError, RuntimeError):
        is_possible = False
    request = ExaminationRequest(
        entry_point=f"{__name__}:Pixels",
        env_kwargs=arguments,
        policy=policy,
        normalize_images=normalize_images,
    )
    try:
        check_environment(request, None, [])
        is_accepted = True
    except UnfitError:
        is_accepted = False
    assert is_accepted == is_possible
