"""One environment of gymnasium, for the policy of a job."""

from __future__ import annotations

from typing import Any

import gymnasium
from stable_baselines3.common.vec_env import VecNormalize


class SingleEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with observations as a policy had them; rewards are its own.

    :param seed: of the first ``reset()`` that is given none, as that of a ``VecEnv`` after
        ``venv.seed(seed)``; later ones go on from there.
    :param statistics: normalises the observations, and does not change; None for no normalisation.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], seed: int, statistics: VecNormalize | None
    ) -> None:
        super().__init__(env)
        self._seed: int | None = seed
        self._statistics = statistics
        if statistics is not None:
            self.observation_space = statistics.observation_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        first_seed = self._seed
        self._seed = None
        observation, info = self.env.reset(
            seed=first_seed if seed is None else seed, options=options
        )
        return self._normalized(observation), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._normalized(observation), reward, terminated, truncated, info

    def _normalized(self, observation: Any) -> Any:
        return (
            observation if self._statistics is None else self._statistics.normalize_obs(observation)
        )
