"""Episodes that ended because physics diverged, with ``on_divergence = "end-episode"``, and how
many are too many.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from orchestrator.core.text import count
from orchestrator.worker.distributed.ranks import Ranks
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training.training_state import LoopState

COLUMN = "rollout/divergences"
"""Column of ``progress.csv``: how many episodes ended so in the iteration."""
ITERATIONS = 100
PERCENT = 1
"""Of the episodes of the last :data:`ITERATIONS` iterations, how many may diverge."""
ALWAYS_TOLERATED = 10
"""Divergences: early in a training, a few are more than one percent by chance."""


class DivergenceCounter(VecEnvWrapper):
    """Counts episodes, and those that end by divergence, in the steps of rollouts, over all
    ranks.
    """

    def __init__(self, venv: VecEnv, ranks: Ranks, loop: LoopState) -> None:
        super().__init__(venv)
        self._ranks = ranks
        self._episodes = np.zeros(2, np.int64)
        """Episodes of this rank in this iteration, and how many of them diverged."""
        self._latest = ""
        self.total = loop.divergences
        """Divergences of the whole training."""
        self.recent = deque(loop.recent_episodes, maxlen=ITERATIONS)
        """Episodes and divergences of the last iterations."""

    def step(self, actions: Any) -> Any:
        result = self.venv.step(actions)
        _, _, dones, infos = result
        for env in np.flatnonzero(dones):
            self._episodes[0] += 1
            if "divergence" in infos[env]:
                self._episodes[1] += 1
                if not self._latest:
                    say(f"an episode ended, which counts as a fall: {infos[env]['divergence']}")
                self._latest = infos[env]["divergence"]
        return result

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()

    def end_iteration(self) -> int:
        """Returns the divergences of the iteration. All ranks call it."""
        episodes, diverged = map(int, self._ranks.all_gather_array(self._episodes).sum(axis=0))
        self._episodes[:] = 0
        self.recent.append((episodes, diverged))
        self.total += diverged
        return diverged

    def saved(self) -> dict[str, Any]:
        """The fields of :class:`LoopState` that this class keeps."""
        return {"divergences": self.total, "recent_episodes": tuple(self.recent)}

    def check(self, iteration: int, env_steps: int) -> None:
        """:raises Diverged: physics has diverged in too many of the last episodes."""
        episodes, diverged = (sum(column) for column in zip(*self.recent, strict=True))
        if diverged > ALWAYS_TOLERATED and 100 * diverged > PERCENT * episodes:
            latest = f"; most recently, {self._latest}" if self._latest else ""
            raise Diverged(
                f"iteration {iteration} (env_steps {env_steps}): physics diverged in {diverged} of {episodes} episodes "
                f"({diverged / episodes:.1%}) of the last {count(len(self.recent), 'iteration')}; "
                f'on_divergence = "end-episode" tolerates {PERCENT} %{latest}'
            )
