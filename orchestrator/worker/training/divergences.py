"""Episodes that ended because physics diverged, with ``on_divergence = "end-episode"``, and how
many are too many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from orchestrator.core.text import count
from orchestrator.worker.ranks.ranks import Ranks
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.loop_parts import LoopPart
from orchestrator.worker.training.training_state import LoopState

COLUMN = "rollout/divergences"
"""Column of ``progress.csv``: how many episodes ended so in the iteration."""
ITERATIONS = 100
PERCENT = 1
"""Of the episodes of the last :data:`ITERATIONS` iterations, how many may diverge."""
ALWAYS_TOLERATED = 10
"""Divergences: early in a training, a few are more than one percent by chance."""


class DivergenceCounter(VecEnvWrapper):
    """Counts the episodes of this rank in the steps of rollouts, and those that end by divergence.

    It is around the environments that rollouts are collected from, and so no part of the loop
    itself: :class:`Divergences` is, which takes what was counted.
    """

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self._episodes = 0
        self._diverged = 0
        """Of these episodes."""
        self.latest = ""
        """How physics diverged most recently; empty: it has not."""

    def step(self, actions: Any) -> Any:
        result = self.venv.step(actions)
        _, _, dones, infos = result
        for env in np.flatnonzero(dones):
            self._episodes += 1
            if "divergence" in infos[env]:
                self._diverged += 1
                if not self.latest:
                    say(f"an episode ended, which counts as a fall: {infos[env]['divergence']}")
                self.latest = infos[env]["divergence"]
        return result

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()

    def take(self) -> NDArray[np.int64]:
        """Episodes since the last call, and how many of them diverged: ``(2,)``."""
        taken = np.array([self._episodes, self._diverged], np.int64)
        self._episodes = 0
        self._diverged = 0
        return taken


class Divergences(LoopPart):
    """Logs the divergences of all ranks, and ends the training where they are too many."""

    columns = (COLUMN,)

    def __init__(
        self,
        counter: DivergenceCounter,
        model: Model,
        ranks: Ranks,
        facts: AttemptFacts,
        loop: LoopState,
    ) -> None:
        self._counter = counter
        self._model = model
        self._ranks = ranks
        self._facts = facts
        self.total = loop.divergences
        """Divergences of the whole training."""
        self.recent = deque(loop.recent_episodes, maxlen=ITERATIONS)
        """Episodes and divergences of the last iterations."""

    def start(self) -> None:
        self._facts.divergences = self.total

    def before_row(self) -> None:
        """Log those of the iteration, over all ranks."""
        of_ranks = self._ranks.all_gather_array(self._counter.take())
        episodes, diverged = map(int, of_ranks.sum(axis=0))
        self.recent.append((episodes, diverged))
        self.total += diverged
        self._model.logger.record(COLUMN, diverged)
        self._facts.divergences = self.total

    def after_row(self, iteration: int) -> None:
        """End the training where too many of the last episodes have diverged.

        :raises Diverged: they have.
        """
        episodes, diverged = (sum(column) for column in zip(*self.recent, strict=True))
        if diverged > ALWAYS_TOLERATED and 100 * diverged > PERCENT * episodes:
            latest = f"; most recently, {self._counter.latest}" if self._counter.latest else ""
            raise Diverged(
                f"iteration {iteration} (env_steps {self._model.num_timesteps}): physics diverged in {diverged} of "
                f"{episodes} episodes ({diverged / episodes:.1%}) of the last {count(len(self.recent), 'iteration')}; "
                f'on_divergence = "end-episode" tolerates {PERCENT} %{latest}'
            )

    def saved(self) -> Mapping[str, Any]:
        return {"divergences": self.total, "recent_episodes": tuple(self.recent)}
