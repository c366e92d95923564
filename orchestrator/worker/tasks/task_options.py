"""Options of tasks: the base classes, and reading them from the job file's ``task_options``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from orchestrator.core.numbers.changing_numbers import END, TrainingMoment, value_at
from orchestrator.worker.mjspec.spec_elements import suggestion
from orchestrator.worker.runtime import failures

Positive: TypeAlias = Annotated[float, "above 0"]
PositiveInt: TypeAlias = Annotated[int, "above 0"]
NotNegative: TypeAlias = Annotated[float, "at least 0"]
Range: TypeAlias = tuple[float, float]
"""Type of an option that is a list of two numbers in the job file, either of which may be
``inf``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """Options of every task, gymnasium's environments included."""

    frame_skip: PositiveInt | None = None
    """Physics steps per control step; None: the number that comes nearest to the task's control
    period."""
    max_episode_steps: PositiveInt = 1000
    reset_noise_scale: NotNegative = 0.01
    """Half-width of the uniform noise on starting positions, standard deviation of the normal noise
    on starting velocities; in radians, and in metres (less for tiny robots)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions(EpisodeOptions):
    """Options of every built-in task; the options of your own task must derive from this class."""

    keyframe: str | None = None
    """The keyframe that episodes start from; None: ``home``, else the first keyframe, else the
    model's default pose."""
    action_scale: Positive | None = None
    """Share of an actuator's range that actions reach; None: 0.5 for servos around a keyframe, else
    1."""
    observe: Literal["full", "proprioception"] = "full"
    """What the policy observes: ``full`` (what the task gives), or ``proprioception`` (what a robot's
    own sensors give)."""
    history: PositiveInt = 1
    """So many of the latest observations are given together, the newest first."""


class TaskError(ValueError):
    """What is wrong lies in the task or its options. :attr:`is_certain`: for every robot; otherwise
    perhaps for one.
    """

    def __init__(self, message: str, *, is_certain: bool = True) -> None:
        super().__init__(message)
        self.is_certain = is_certain


OptionsT = TypeVar("OptionsT", bound=EpisodeOptions)


def read_options(
    task: str, kind: type[OptionsT], options: Mapping[str, Any], moment: TrainingMoment = END
) -> OptionsT:
    """Return the user's ``task_options`` as a value of ``kind``.

    :param moment: when, for numbers that change over the training.
    :raises TaskError: unknown option, wrong type or value, a required option is missing; or the
        user's own class cannot be read or made.
    """
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    values: dict[str, Any] = {}
    try:
        hints = get_type_hints(kind, include_extras=True)
        for name, written in options.items():
            if name not in fields:
                raise ValueError(f"unknown option {name!r}{suggestion(name, sorted(fields))}")
            values[name] = _read(name, written, hints[name], moment)
        for name, field in fields.items():
            if name not in values and field.default is field.default_factory is MISSING:
                raise ValueError(f'option "{name}" is missing in task_options and has no default')
        return kind(**values)
    except ValueError as error:
        raise TaskError(f'task "{task}": {error}') from None
    except Exception as error:
        text = f'task "{task}": {kind.__name__} raises {failures.describe(error)}'
        raise TaskError(text) from error


def _read(name: str, written: Any, hint: Any, moment: TrainingMoment) -> Any:
    """Return the value of an option whose type is ``hint``.

    :raises ValueError: it has another type.
    """
    is_union = get_origin(hint) in (Union, UnionType)
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if is_union else [hint]
    plain = [_plain(kind) for kind in kinds]
    value = written
    if str not in plain and Any not in plain:
        value = value_at(written, moment, whole=int in plain and float not in plain)
    if not any(_is_a(kind, value) for kind in kinds):
        expected = " or ".join(
            _TYPE_NAMES.get(kind, str(kind).removeprefix("typing.")) for kind in kinds
        )
        raise ValueError(f'option "{name}" is {value!r}: expected {expected}')
    return tuple(map(float, value)) if Range in kinds and isinstance(value, list) else value


def _plain(kind: Any) -> Any:
    """Return the type of values: ``float`` for :data:`Positive`, ``list`` for ``list[int]``."""
    origin = get_origin(kind) or kind
    return get_args(kind)[0] if origin is Annotated else origin


def _is_a(kind: Any, value: Any) -> bool:
    """Return whether an option of this type may have ``value``, a value of a job file."""
    plain = _plain(kind)
    if plain is Literal:
        return value in get_args(kind)
    if kind == Range:
        is_pair = isinstance(value, list) and len(value) == 2
        are_numbers = is_pair and {*map(type, value)} <= {int, float}
        return are_numbers and bool(value[0] <= value[1])
    if plain is float:
        is_plain = type(value) in (int, float) and math.isfinite(value)
    else:
        is_plain = plain is Any or type(value) is (list if plain is tuple else plain)
    if kind in (Positive, PositiveInt, NotNegative) and is_plain:
        return bool(value > 0 or (value == 0 and kind == NotNegative))
    return is_plain


_TYPE_NAMES: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Positive: "a finite number above 0",
    PositiveInt: "a whole number above 0",
    NotNegative: "a finite number, at least 0",
    Range: "a list of two numbers, the smaller one first",
}
