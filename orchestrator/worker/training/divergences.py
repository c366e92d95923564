"""Episodes that ended because physics diverged, with ``on_divergence = "end-episode"``, and how
many are too many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.loop_parts import LoopPart
from orchestrator.worker.training.recorder import Recorder
from orchestrator.worker.training.training_state import LoopState

COLUMN = "rollout/divergences"
"""Column of ``progress.csv``: how many episodes ended so in the iteration."""
ITERATIONS = 100
PERCENT = 1
"""Of the episodes of the last :data:`ITERATIONS` iterations, how many may diverge."""
ALWAYS_TOLERATED = 10
"""Divergences: early in a training, a few are more than one percent by chance."""


class Divergences(LoopPart):
    """Logs the divergences of all ranks, and ends the training where they are too many."""

    columns = (COLUMN,)

    def __init__(self, recorder: Recorder, attempt: Attempt, loop: LoopState) -> None:
        self._recorder = recorder
        self._attempt = attempt
        self.recent = deque(loop.recent_episodes, maxlen=ITERATIONS)
        """Episodes of each of the last iterations, and how many of them diverged."""
        self.total = loop.divergences
        """Divergences of the whole training."""

    def start(self) -> None:
        self._attempt.facts.divergences = self.total

    def before_row(self) -> None:
        attempt = self._attempt
        of_ranks = attempt.ranks.all_gather_array(self._recorder.take_episodes())
        episodes, diverged = map(int, of_ranks.sum(axis=0))
        self.recent.append((episodes, diverged))
        self.total += diverged
        attempt.model.logger.record(COLUMN, diverged)
        attempt.facts.divergences = self.total

    def is_due(self, row: Mapping[str, Any]) -> bool:
        """End the training where too many of the latest episodes have diverged.

        :raises Diverged: they have.
        """
        del row
        episodes, diverged = map(sum, zip(*self.recent, strict=True))
        if diverged > ALWAYS_TOLERATED and 100 * diverged > PERCENT * episodes:
            raise Diverged(
                f"env_steps {self._attempt.model.num_timesteps}: physics diverged in {diverged} of "
                f"{episodes} episodes of the last {ITERATIONS} iterations; "
                f'on_divergence = "end-episode" tolerates {PERCENT} %; '
                f"most recently, {self._recorder.latest_divergence or 'on another rank'}"
            )
        return False
