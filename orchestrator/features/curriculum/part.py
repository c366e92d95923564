"""What a job has of its curriculum, and what its worker tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.decoding import Positive
from orchestrator.core.job_parts import JobPart, News

STAGE = "curriculum/stage"
"""Column of ``progress.csv``: the stage in which the iteration was trained, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumSettings:
    advance: tuple[str, ...] = ()
    """Conditions for the stages after the first
    (:func:`orchestrator.features.curriculum.conditions.parse_condition`); empty: no stages."""
    episodes: Positive = 20
    """Episodes that must have ended in a stage before its condition counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumFacts:
    advanced_at: tuple[int, ...] = ()
    """env_steps at which the stages after the first began."""

    @property
    def stage(self) -> int:
        """The present one, from 1."""
        return 1 + len(self.advanced_at)


def _news(
    settings: CurriculumSettings, before: CurriculumFacts, facts: CurriculumFacts
) -> Iterator[News]:
    """The stages that have begun since the message before; those of earlier attempts were told
    then.
    """
    stages = len(settings.advance) + 1
    for stage, steps in enumerate(facts.advanced_at[before.stage - 1 :], before.stage + 1):
        text = f"stage {stage} of {stages} began at {steps:,} env_steps"
        yield News("stage", text, {"stage": stage, "stages": stages, "env_steps": steps})


PART = JobPart(
    name="curriculum",
    settings=CurriculumSettings,
    is_unused=lambda settings: not settings.advance,
    loop="orchestrator.features.curriculum.worker.stages",
    facts=CurriculumFacts,
    columns={"stage": lambda facts: facts.stage},
    news=_news,
    why_extended_differs="no stage of its curriculum begins with the last iteration of a training",
)
