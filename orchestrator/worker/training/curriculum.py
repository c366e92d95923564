"""The curriculum of a training: numbers of its task that change between iterations, and its stages.

Numbers change at the beginning of an iteration, by its env_steps and its stage, which are the same
on every rank and in every attempt. Stages advance at the end of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.changing_numbers import STAGE, TrainingMoment, parse_condition
from orchestrator.core.text import count
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter, say
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.training_state import LoopState


class Curriculum:
    """:param loop: of the checkpoint that the training resumes from."""

    def __init__(
        self,
        spec: WorkerSpec,
        model: Model,
        loop: LoopState,
        facts: AttemptFacts,
        reporter: ProgressReporter,
    ) -> None:
        assert model.env is not None
        self._spec, self._model = spec, model
        venv = model.env.unwrapped
        self._venv = venv if isinstance(venv, MujocoVecEnv) else None
        self._conditions = [parse_condition(text) for text in spec.advance]
        self.advanced_at = loop.advanced_at
        """env_steps at which the stages after the first began."""
        self._facts, self._reporter = facts, reporter
        self._tell()

    @property
    def columns(self) -> Sequence[str]:
        return [STAGE] if self._conditions else []

    @property
    def stage(self) -> int:
        """The present one, from 1."""
        return 1 + len(self.advanced_at)

    def begin_iteration(self) -> None:
        """Give task and randomisation the numbers of this iteration."""
        if self._venv is not None:
            self._venv.move(
                TrainingMoment(self._model.num_timesteps / self._spec.total_timesteps, self.stage)
            )

    def record(self) -> None:
        """Log the stage in which the iteration was trained."""
        if self._conditions:
            self._model.logger.record(STAGE, self.stage)

    def is_stage_done(self, row: Mapping[str, Any]) -> bool:
        """Whether the next stage begins now. There must be an iteration left, and enough episodes
        in this stage.

        :param row: of the iteration in ``progress.csv``; empty on ranks that write none, where it
            is never done.
        """
        if (
            not row
            or self.stage > len(self._conditions)
            or self._model.num_timesteps >= self._spec.total_timesteps
        ):
            return False
        episodes = len(self._model.ep_info_buffer or ())
        return episodes >= self._spec.advance_episodes and self._conditions[self.stage - 1].holds(
            row
        )

    def advance(self) -> None:
        """Begin the next stage. Means over the latest episodes forget those of earlier stages."""
        assert self._model.ep_info_buffer is not None
        condition, steps = self._conditions[self.stage - 1], self._model.num_timesteps
        episodes = count(len(self._model.ep_info_buffer), "episode")
        self._model.ep_info_buffer.clear()
        self.advanced_at = (*self.advanced_at, steps)
        self._tell()
        stages = len(self._conditions) + 1
        say(
            f"stage {self.stage} of {stages} begins at {steps:,} env_steps: {condition}, after {episodes}"
        )

    def _tell(self) -> None:
        if self._conditions:
            self._facts.advanced_at = self._reporter.advanced_at = self.advanced_at
