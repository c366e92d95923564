"""An environment of images that costs nearly nothing, so that a measurement is of the learner."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Image = NDArray[np.uint8]
EPISODE = 500
"""Steps of an episode."""


class Noise(gymnasium.Env[Image, Any]):
    """Shows one of 16 images of noise at every step, each as large as those of Atari games: 84 × 84
    × 4."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(6)

    def __init__(self, seed: int) -> None:
        self._images = np.random.default_rng(seed).integers(0, 256, (16, 84, 84, 4), np.uint8)
        self._count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        super().reset(seed=seed)
        return self._images[0], {}

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        self._count += 1
        return (
            self._images[self._count % 16],
            float(action == 0),
            False,
            self._count % EPISODE == 0,
            {},
        )


def make(xml: None = None, seed: int = 0) -> Noise:  # noqa: ARG001 - every entry_point is given it
    return Noise(seed)
