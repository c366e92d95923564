"""What features do in the training loop.

A feature gives :attr:`~orchestrator.core.job_parts.JobPart.loop` the name of a module, which has a
function ``loop_part(context)`` that returns a :class:`LoopPart`. It is imported where the job has
that part, and only there. Parts come in the order of their names, which is the same on all ranks.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.changing_numbers import TrainingMoment
from orchestrator.core.job_parts import job_parts
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.training.algorithms import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """The training that a part is in."""

    spec: WorkerSpec
    settings: Any
    """The part of the spec."""
    facts: Any
    """What it has told up to the checkpoint that the training resumes from; the defaults where it
    starts."""
    model: Model


class LoopPart:
    """What a feature does in one training. Each method does nothing unless it is overridden.

    It is made when the model has the state of its checkpoint, before it has its logger and before
    the environments are reset. In an iteration the methods are called in the order in which they
    are listed, on every rank. What they do has to be the same on all ranks and after every resume:
    by env_steps, not by the clock.
    """

    columns: Sequence[str] = ()
    """Of ``progress.csv``, which it fills; their names begin with its own: ``curriculum/stage``."""

    @property
    def facts(self) -> Any:
        """What is told of it by now; None where the part tells nothing. Asked for after every
        iteration, and sent at most two times a second; what :meth:`act` changes is sent at once, so
        that it can be an event.
        """
        return None

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        """Begins an iteration, before its first step.

        :returns: the moment that the numbers of the task have: ``moment``, or one in another stage.
        """
        return moment

    def before_row(self) -> None:
        """The update is over, and a row of ``progress.csv`` is written next: the time to record
        values with the logger of the model.
        """

    def is_due(self, row: Mapping[str, Any]) -> bool:
        """Whether :meth:`act` is called now. What one rank says counts for all.

        :param row: of the iteration in ``progress.csv``; empty on ranks that write none.
        """
        del row
        return False

    def act(self) -> None:
        """What is due, on all ranks, before a checkpoint is written."""


class LoopParts:
    """The parts of one training."""

    def __init__(self, spec: WorkerSpec, model: Model, facts: Mapping[str, Any]) -> None:
        """:param facts: by name, of the checkpoint that the training resumes from."""
        self._parts: dict[str, LoopPart] = {}
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
            self._parts[name] = importlib.import_module(part.loop).loop_part(context)

    @property
    def columns(self) -> list[str]:
        return [column for part in self._parts.values() for column in part.columns]

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of those that tell anything, by name."""
        told = {name: part.facts for name, part in self._parts.items()}
        return {name: facts for name, facts in told.items() if facts is not None}

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        for part in self._parts.values():
            moment = part.begin_iteration(moment)
        return moment

    def before_row(self) -> None:
        for part in self._parts.values():
            part.before_row()

    def are_due(self, row: Mapping[str, Any]) -> list[bool]:
        """Of each part."""
        return [part.is_due(row) for part in self._parts.values()]

    def act(self, are_due: Sequence[bool]) -> None:
        """Have those act that are due on any rank."""
        for part, is_due in zip(self._parts.values(), are_due, strict=True):
            if is_due:
                part.act()
