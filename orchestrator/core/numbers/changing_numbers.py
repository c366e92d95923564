"""Numbers that change in the course of a training.

A job file writes such a number as text: ``"linear(0, 1, 0.5)"`` follows the share of the training
that is over, and ``"stages(0, 0.5, 1)"`` has one value for each stage. When stages begin, a feature
says.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.core.text import finite_number
from orchestrator.core.worker_spec import parse_schedule

FORMS = 'linear(start, end[, fraction]) over the training, or "stages(a, b, …)" with a value for each stage'
"""How a changing number is written."""
_CHANGING = re.compile(r"\s*(linear|stages)\s*\(")
_STAGES = re.compile(r"\s*stages\s*\(([^()]*)\)\s*\Z")


@dataclass(frozen=True, slots=True)
class TrainingMoment:
    """How far a training is."""

    progress: float
    """The share of it that is over, from 0 to 1."""
    stage: int | None = None
    """Its stage, from 1; None: the last."""

    def __str__(self) -> str:
        stage = "" if self.stage is None else f"in stage {self.stage}, "
        return f"{stage}after {self.progress:.0%} of the training"


START = TrainingMoment(0.0, 1)
END = TrainingMoment(1.0)
"""Of evaluations, videos and whatever else is no training."""


@dataclass(frozen=True, slots=True)
class Linear:
    """From ``start`` to ``end``, which it reaches after the share ``end_fraction`` of the
    training.
    """

    start: float
    end: float
    end_fraction: float = 1.0

    def at(self, moment: TrainingMoment) -> float:
        return self.start + (self.end - self.start) * min(1.0, moment.progress / self.end_fraction)


@dataclass(frozen=True, slots=True)
class Stages:
    """A value for each stage."""

    values: tuple[float, ...]

    def at(self, moment: TrainingMoment) -> float:
        if moment.stage is None:
            return self.values[-1]
        stage = min(moment.stage, len(self.values))
        return self.values[stage - 1]


ChangingNumber: TypeAlias = Linear | Stages


def is_changing(value: object) -> bool:
    """Whether it is text that begins as a changing number does."""
    return isinstance(value, str) and _CHANGING.match(value) is not None


def parse_number(text: str) -> ChangingNumber:
    """The changing number that ``text`` describes.

    :raises ValueError: it is none, or has a number that is not finite, or too few of them.
    """
    match = _STAGES.match(text)
    if match is None:
        return Linear(*parse_schedule(text))
    values = tuple(map(finite_number, match[1].split(",")))
    if len(values) < 2:
        raise ValueError(f"{text!r}: expected a number for each stage, at least two")
    return Stages(values)


def changing_numbers(tree: object, above: str = "") -> Iterator[tuple[str, str]]:
    """The dotted keys and the texts of the changing numbers in tables and lists:
    ``("reward.weights[1]", …)``.
    """
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from changing_numbers(value, f"{above}.{key}" if above else str(key))
    elif isinstance(tree, list | tuple):
        for place, value in enumerate(tree):
            yield from changing_numbers(value, f"{above}[{place}]")
    elif isinstance(tree, str) and is_changing(tree):
        yield above, tree


def value_at(value: Any, moment: TrainingMoment, *, whole: bool = False) -> Any:
    """``value`` with every changing number in it as it is at ``moment``.

    :param whole: whether numbers are rounded to whole ones.
    """
    if isinstance(value, Mapping):
        return {key: value_at(part, moment, whole=whole) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [value_at(part, moment, whole=whole) for part in value]
    if not is_changing(value):
        return value
    number = parse_number(value).at(moment)
    return round(number) if whole else number


def turning_moments(numbers: Iterable[ChangingNumber]) -> list[TrainingMoment]:
    """Between these moments all ``numbers`` change linearly. The stages may come at any time of the
    training.
    """
    shares = {0.0, 1.0}
    n_stages = 0
    for number in numbers:
        if isinstance(number, Linear):
            shares.add(number.end_fraction)
        else:
            n_stages = max(n_stages, len(number.values))
    stages: Sequence[int | None] = range(1, n_stages + 1) if n_stages else [None]
    moments = itertools.product(sorted(shares), stages)
    return [TrainingMoment(share, stage) for share, stage in moments]
