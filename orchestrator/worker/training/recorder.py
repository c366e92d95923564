"""Recorder of a training: the time that its environments take, and the episodes that end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from orchestrator.worker.runtime.progress import say

KEY = "measures"
"""In an episode of ``ep_info_buffer``, as in the ``info`` of its last step."""


class Recorder(VecEnvWrapper):
    """The environments that rollouts are collected from. The model keeps the environments
    themselves.

    With ``measuring``, each episode that ends has its measures beside its return, in the model's
    ``ep_info_buffer``: what ranks exchange and checkpoints hold of it has them, too.

    :param after_step: called after every step.
    """

    def __init__(
        self, venv: VecEnv, after_step: Callable[[], None], *, measuring: bool = False
    ) -> None:
        super().__init__(venv)
        self._after_step = after_step
        self._measuring = measuring
        self.env_s = 0.0
        """Seconds that steps have taken."""
        self.episodes = 0
        """That have ended."""
        self.diverged = 0
        """Of these episodes."""
        self.latest_divergence = ""
        """How physics diverged most recently; empty: it has not."""

    def step(self, actions: Any) -> Any:
        begun = perf_counter()
        result = self.venv.step(actions)
        self.env_s += perf_counter() - begun
        _, _, dones, infos = result
        if np.count_nonzero(dones):
            for env in np.flatnonzero(dones):
                self._record(infos[env])
        self._after_step()
        return result

    def _record(self, info: dict[str, Any]) -> None:
        """Record an episode by the info of its last step."""
        self.episodes += 1
        if "divergence" in info:
            self.diverged += 1
            if not self.latest_divergence:
                say(f"an episode ended, which counts as a fall: {info['divergence']}")
            self.latest_divergence = info["divergence"]
        if self._measuring and "episode" in info:
            info["episode"][KEY] = reported_measures(info)

    def take_episodes(self) -> NDArray[np.int64]:
        """Return the episodes since the last call, and how many of them diverged: ``(2,)``."""
        taken = np.array([self.episodes, self.diverged], np.int64)
        self.episodes = 0
        self.diverged = 0
        return taken

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


def reported_measures(info: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers in ``info["measures"]``, with true and false as 1 and 0; None where one is
    not finite.
    """
    measures = info.get("measures")
    if not isinstance(measures, Mapping):
        return {}
    return {
        str(name): float(value) if math.isfinite(value) else None
        for name, value in measures.items()
        if isinstance(value, Real | np.bool_)
    }


def mean_measures(episodes: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the means over the ``episodes`` that have a measure, by its name; None where none has
    it.
    """
    all_measures = [episode.get(KEY, {}) for episode in episodes]
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for measures in all_measures for name in measures):
        values = [measures[name] for measures in all_measures if measures.get(name) is not None]
        means[name] = float(np.mean(values)) if values else None
    return means
