"""What the table ``calm`` does in a training. Only workers import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from orchestrator.worker.training.loop_parts import LoopContext, LoopPart
from prefixed.calm import CalmFacts


def loop_part(context: LoopContext) -> LoopPart:
    return Calm(context)


class Calm(LoopPart):
    def __init__(self, context: LoopContext) -> None:
        self._above = context.settings.above
        self._model = cast(Any, context.model)
        self._facts: CalmFacts = context.facts
        if self._facts.calm_since is not None:  # by an earlier attempt
            self._model.ent_coef = 0.0

    @property
    def facts(self) -> CalmFacts:
        return self._facts

    def is_due(self, row: Mapping[str, Any]) -> bool:
        mean = row.get("rollout/ep_rew_mean")
        is_high = mean is not None and float(mean) > self._above
        return is_high and self._facts.calm_since is None

    def act(self) -> None:
        self._model.ent_coef = 0.0
        self._facts = CalmFacts(calm_since=self._model.num_timesteps)
