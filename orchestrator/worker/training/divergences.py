"""Episodes that ended because physics diverged, with ``on_divergence = "end-episode"``, and how
many are too many.
"""

from __future__ import annotations

from collections import deque

from orchestrator.core.text import count
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.recorder import Recorder
from orchestrator.worker.training.training_state import LoopState

COLUMN = "rollout/divergences"
"""Column of ``progress.csv``: how many episodes ended so in the iteration."""
ITERATIONS = 100
PERCENT = 1
"""Of the episodes of the last :data:`ITERATIONS` iterations, how many may diverge."""
ALWAYS_TOLERATED = 10
"""Divergences: early in a training, a few are more than one percent by chance."""


class Divergences:
    """Logs the divergences of all ranks, and ends the training where they are too many."""

    def __init__(self, recorder: Recorder, attempt: Attempt, loop: LoopState) -> None:
        self._recorder = recorder
        self._attempt = attempt
        self.total = loop.divergences
        """Divergences of the whole training."""
        self.recent = deque(loop.recent_episodes, maxlen=ITERATIONS)
        """Episodes and divergences of the last iterations."""
        attempt.facts.divergences = self.total

    def log(self) -> None:
        """Log those of the iteration, over all ranks."""
        attempt = self._attempt
        of_ranks = attempt.ranks.all_gather_array(self._recorder.take_episodes())
        episodes, diverged = map(int, of_ranks.sum(axis=0))
        self.recent.append((episodes, diverged))
        self.total += diverged
        attempt.model.logger.record(COLUMN, diverged)
        attempt.facts.divergences = self.total

    def check(self, iteration: int) -> None:
        """End the training where too many of the last episodes have diverged.

        :raises Diverged: they have.
        """
        episodes, diverged = (sum(column) for column in zip(*self.recent, strict=True))
        if diverged > ALWAYS_TOLERATED and 100 * diverged > PERCENT * episodes:
            latest = self._recorder.latest_divergence
            steps = self._attempt.model.num_timesteps
            raise Diverged(
                f"iteration {iteration} (env_steps {steps}): physics diverged in {diverged} of "
                f"{episodes} episodes ({diverged / episodes:.1%}) of the last {count(len(self.recent), 'iteration')}; "
                f'on_divergence = "end-episode" tolerates {PERCENT} %{latest and f"; most recently, {latest}"}'
            )
