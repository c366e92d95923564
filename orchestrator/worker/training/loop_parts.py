"""What is done in each iteration of the training loop besides learning.

Timings, divergences, what ranks share and whatever features do are parts of one kind, in one list:
:class:`LoopPart` has the phases that come to each of them, :class:`LoopParts` the list.

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

    def after_row(self, iteration: int) -> None:
        """The row is written."""

    def is_due(self, row: Mapping[str, Any]) -> bool:
        """Whether :meth:`act` is called now. What one rank says counts for all.

        :param row: of the iteration in ``progress.csv``; empty on ranks that write none.
        """
        del row
        return False

    def act(self) -> None:
        """What is due, on all ranks, before a checkpoint is written."""

    def saved(self) -> Mapping[str, Any]:
        """What checkpoints hold of a part of the program itself: fields of
        :class:`~orchestrator.worker.training.training_state.LoopState`. A feature has :attr:`facts`
        instead.
        """
        return {}

    def finish(self) -> None:
        """The training is over, and its last checkpoint is written."""


class LoopParts:
    """The parts of one training. Each phase comes to all of them, in their order."""

    def __init__(self, parts: Sequence[LoopPart], features: Mapping[str, LoopPart]) -> None:
        """:param parts: all of them. :param features: those of features among them, by name."""
        self._parts = parts
        self._features = features

    @property
    def columns(self) -> list[str]:
        return [column for part in self._parts for column in part.columns]

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of those features that tell anything, by name."""
        told = {name: part.facts for name, part in self._features.items()}
        return {name: facts for name, facts in told.items() if facts is not None}

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def begin_iteration(self, moment: TrainingMoment) -> TrainingMoment:
        for part in self._parts:
            moment = part.begin_iteration(moment)
        return moment

    def after_update(self, iteration: int) -> None:
        for part in self._parts:
            part.after_update(iteration)

    def before_row(self) -> None:
        for part in self._parts:
            part.before_row()

    def after_row(self, iteration: int) -> None:
        for part in self._parts:
            part.after_row(iteration)

    def are_due(self, row: Mapping[str, Any]) -> list[bool]:
        """Of each part."""
        return [part.is_due(row) for part in self._parts]

    def act(self, are_due: Sequence[bool]) -> None:
        """Have those act that are due on any rank."""
        for part, is_due in zip(self._parts, are_due, strict=True):
            if is_due:
                part.act()

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds of all of them but the facts."""
        return {name: value for part in self._parts for name, value in part.saved().items()}

    def finish(self) -> None:
        for part in self._parts:
            part.finish()


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
