"""Measures of episodes of training, for ``progress.csv`` and where trainings are compared by them at
rungs.

They are kept in the model's ``ep_info_buffer``, beside the return of the same episode: what ranks
exchange and checkpoints hold of it has them, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnvWrapper

KEY = "measures"
"""In an episode of ``ep_info_buffer``, as in the ``info`` of its last step."""


class MeasuredEpisodes(VecEnvWrapper):
    """Puts the measures of each episode that ends beside its return."""

    def step(self, actions: Any) -> Any:
        result = self.venv.step(actions)
        _, _, dones, infos = result
        for env in np.flatnonzero(dones):
            if "episode" in infos[env]:
                infos[env]["episode"][KEY] = reported_measures(infos[env])
        return result

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


def reported_measures(info: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers in ``info["measures"]``, with true and false as 1 and 0; None where one is not
    finite.
    """
    measures = info.get("measures")
    if not isinstance(measures, Mapping):
        return {}
    numbers = {
        name: float(value) for name, value in measures.items() if isinstance(value, Real | np.bool_)
    }
    return {str(name): value if math.isfinite(value) else None for name, value in numbers.items()}


def mean_measures(episodes: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Means over the ``episodes`` that have a measure, by its name; None where none has it."""
    measured = [episode.get(KEY, {}) for episode in episodes]
    names = dict.fromkeys(name for one in measured for name in one)
    means: dict[str, float | None] = {}
    for name in names:
        known = [one[name] for one in measured if one.get(name) is not None]
        means[name] = float(np.mean(known)) if known else None
    return means
