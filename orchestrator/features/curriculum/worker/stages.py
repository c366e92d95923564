"""Stages of a training. They advance at the end of an iteration, on all ranks and in every attempt
at the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.text import count
from orchestrator.features.curriculum.conditions import parse_condition
from orchestrator.features.curriculum.part import STAGE, CurriculumFacts, CurriculumSettings
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training.loop_parts import LoopContext, LoopPart


def loop_part(context: LoopContext) -> LoopPart:
    return Stages(context)


class Stages(LoopPart):
    columns = (STAGE,)

    def __init__(self, context: LoopContext) -> None:
        settings: CurriculumSettings = context.settings
        self._conditions = [parse_condition(text) for text in settings.advance]
        self._episodes = settings.episodes
        self._total = context.spec.total_timesteps
        self._model = context.model
        self._facts: CurriculumFacts = context.facts

    @property
    def facts(self) -> CurriculumFacts:
        return self._facts

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        return replace(moment, stage=self._facts.stage)

    def before_row(self) -> None:
        """Log the stage in which the iteration was trained."""
        self._model.logger.record(STAGE, self._facts.stage)

    def is_due(self, row: Mapping[str, Any]) -> bool:
        """Whether the next stage begins now. There must be an iteration left, and enough episodes
        in this stage.
        """
        is_last_stage = self._facts.stage > len(self._conditions)
        is_last_iteration = self._model.num_timesteps >= self._total
        if not row or is_last_stage or is_last_iteration:
            return False
        if len(self._model.ep_info_buffer or ()) < self._episodes:
            return False
        return self._conditions[self._facts.stage - 1].holds(row)

    def act(self) -> None:
        """Begin the next stage. Means over the latest episodes forget those of earlier stages."""
        assert self._model.ep_info_buffer is not None
        condition = self._conditions[self._facts.stage - 1]
        episodes = count(len(self._model.ep_info_buffer), "episode")
        self._model.ep_info_buffer.clear()
        steps = self._model.num_timesteps
        self._facts = CurriculumFacts(advanced_at=(*self._facts.advanced_at, steps))
        stages = len(self._conditions) + 1
        say(
            f"stage {self._facts.stage} of {stages} begins at {steps:,} env_steps: {condition}, "
            f"after {episodes}"
        )
