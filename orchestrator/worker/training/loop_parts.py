"""What features do in each iteration of the training loop besides learning.

A feature gives :attr:`~orchestrator.core.job_parts.JobPart.loop` the name of a module, which has a
function ``loop_part(context)`` that returns a :class:`LoopPart`. It is imported where the job has
that part, and only there.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.job_parts import job_parts
from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.training.algorithms import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """The training that the part of a feature is in."""

    spec: WorkerSpec
    settings: Any
    """The part of the spec."""
    facts: Any
    """What it has told up to the checkpoint that the training resumes from; the defaults where it
    starts."""
    model: Model


class LoopPart:
    """What is done besides learning in one training. Each method does nothing unless it is
    overridden.

    A part is made when the model has the state of its checkpoint, before it has its logger and
    before the environments are reset. The methods are called in the order in which they are listed,
    on every rank. What they do has to be the same on all ranks and after every resume: by
    env_steps, not by the clock.
    """

    columns: Sequence[str] = ()
    """Of ``progress.csv``, which it fills; those of a feature begin with the name of its part:
    ``curriculum/stage``."""

    @property
    def facts(self) -> Any:
        """What is told of a feature by now; None where it tells nothing. Asked for after every
        iteration, and sent at most two times a second; what :meth:`act` changes is sent at once, so
        that it can be an event. Checkpoints hold it, and the feature goes on from there.
        """
        return None

    def start(self) -> None:
        """The environments are reset, or where the checkpoint has left them; the first iteration of
        the attempt comes next.
        """

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        """Begins an iteration, before its first step.

        :returns: the moment that the numbers of the task have: ``moment``, or one in another stage.
        """
        return moment

    def after_update(self, iteration: int) -> None:
        """Rollout and update are over. The episodes of the model, and the losses that it has logged,
        may still be those of this rank alone.
        """

    def before_row(self) -> None:
        """What ranks share is merged, and a row of ``progress.csv`` is written next: the time to
        record values with the logger of the model, in :attr:`columns`.
        """

    def is_due(self, row: Mapping[str, Any]) -> bool:
        """Whether :meth:`act` is called now. What one rank says counts for all.

        :param row: of the iteration in ``progress.csv``; empty on ranks that write none.
        """
        del row
        return False

    def act(self) -> None:
        """What is due, on all ranks, before a checkpoint is written."""


def feature_parts(spec: WorkerSpec, model: Model, facts: Mapping[str, Any]) -> dict[str, LoopPart]:
    """Make the parts of features, in the order of their names, which is the same on all ranks.

    :param facts: by name, of the checkpoint that the training resumes from.
    """
    parts: dict[str, LoopPart] = {}
    for name in sorted(spec.parts):
        part = job_parts()[name]
        if part.loop is None:
            continue
        before = facts.get(name)
        context = LoopContext(
            spec=spec,
            settings=spec.parts[name],
            facts=part.facts() if before is None and part.facts is not None else before,
            model=model,
        )
        parts[name] = importlib.import_module(part.loop).loop_part(context)
    return parts
