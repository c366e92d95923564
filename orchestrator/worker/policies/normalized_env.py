"""One environment of gymnasium with observations normalised as a trained policy had them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize


class NormalizedEnv(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations as from ``statistics``, which do not change; rewards as they are."""

    def __init__(self, env: gymnasium.Env[Any, Any], statistics: VecNormalize) -> None:
        super().__init__(env)
        self._statistics = statistics
        space = env.observation_space
        if isinstance(space, spaces.Dict):
            keys: Sequence[str] = ()
            if statistics.norm_obs and statistics.norm_obs_keys is not None:
                keys = statistics.norm_obs_keys
            parts = {
                key: self._scaled_space(part) if key in keys else part
                for key, part in space.spaces.items()
            }
            self.observation_space = spaces.Dict(parts)
        elif statistics.norm_obs:
            self.observation_space = self._scaled_space(space)

    def _scaled_space(self, space: spaces.Space[Any]) -> spaces.Box:
        limit = self._statistics.clip_obs
        return spaces.Box(-limit, limit, space.shape, np.float32)

    def observation(self, observation: Any) -> Any:
        return self._statistics.normalize_obs(observation)
