"""Options of tasks: the base classes, and reading them from the job file's ``task_options``."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from orchestrator.core.numbers.changing_numbers import END, TrainingMoment, value_at
from orchestrator.core.text import joined
from orchestrator.worker.runtime import failures


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOptions:
    """Options of every task, gymnasium's environments included."""

    frame_skip: int | None = None
    """Physics steps per control step; None: the number that comes nearest to the task's control
    period."""
    max_episode_steps: int = 1000
    reset_noise_scale: float = 0.01
    """Half-width of the uniform noise on starting positions, standard deviation of the normal noise
    on starting velocities; in radians, and in metres (less for tiny robots)."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "frame_skip", "max_episode_steps")
        check_at_least(self, 0, "reset_noise_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions(EpisodeOptions):
    """Options of every built-in task; the options of your own task must derive from this class."""

    keyframe: str | None = None
    """The keyframe that episodes start from; None: ``home``, else the first keyframe, else the
    model's default pose."""
    action_scale: float | None = None
    """Share of an actuator's range that actions reach; None: 0.5 for servos around a keyframe, else
    1."""
    observe: str = "full"
    """What the policy observes: ``full`` (what the task gives), or ``proprioception`` (what a robot's
    own sensors give)."""
    history: int = 1
    """So many of the latest observations are given together, the newest first."""

    def __post_init__(self) -> None:
        EpisodeOptions.__post_init__(self)  # super() fails here: slots=True creates a new class
        check_positive(self, "action_scale")


def check_at_least(options: EpisodeOptions, least: float, *names: str) -> None:
    """:raises ValueError: one of the options ``names`` is set and less than ``least``."""
    for name in names:
        if (value := getattr(options, name)) is not None and value < least:
            raise ValueError(f"{name} = {value}: expected at least {least}")


def check_positive(options: EpisodeOptions, *names: str) -> None:
    """:raises ValueError: one of the options ``names`` is set and not above 0."""
    for name in names:
        if (value := getattr(options, name)) is not None and value <= 0:
            raise ValueError(f"{name} = {value}: expected more than 0")


class TaskError(ValueError):
    """What is wrong lies in the task or its options. :attr:`is_certain`: for every robot; otherwise
    perhaps for one.
    """

    def __init__(self, message: str, *, is_certain: bool = True) -> None:
        super().__init__(message)
        self.is_certain = is_certain


OptionsT = TypeVar("OptionsT", bound=EpisodeOptions)
Range = tuple[float, float]
"""Type of an option that is a list of two numbers in the job file, either of which may be
``inf``."""


def read_options(
    task: str, kind: type[OptionsT], options: Mapping[str, Any], moment: TrainingMoment = END
) -> OptionsT:
    """Return the user's ``task_options`` as a value of ``kind``.

    :param moment: when, for numbers that change over the training.
    :raises TaskError: unknown option (answered with the valid ones), wrong type or value, a required
        one is missing; or the user's own class cannot be read or made.
    """
    try:
        hints = get_type_hints(kind)
    except Exception as error:
        raise TaskError(
            f'task "{task}": the types of its {kind.__name__} cannot be read: {type(error).__name__}: {error}; import '
            "what they name at run time, not under TYPE_CHECKING"
        ) from error
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    values: dict[str, Any] = {}
    for name, written in options.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            has = ", ".join(sorted(fields))
            raise TaskError(f'unknown option "{name}" of task "{task}"; {hint}it has: {has}')
        kinds = _alternatives(hints[name])
        takes_text = str in kinds or Any in kinds
        is_whole = int in kinds and float not in kinds
        value = written if takes_text else value_at(written, moment, whole=is_whole)
        if not any(_is_a(accepted, value) for accepted in kinds):
            expected = " or ".join(map(_type_name, kinds))
            raise TaskError(f'option "{name}" of task "{task}" is {value!r}: expected {expected}')
        is_range = Range in kinds and isinstance(value, (list, tuple))
        values[name] = tuple(map(float, value)) if is_range else value
    missing = [
        f'"{name}"'
        for name, field in fields.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise TaskError(
            f'task "{task}" needs {joined(missing)} in task_options; or give defaults to these fields of '
            f"its {kind.__name__}"
        )
    try:
        return kind(**values)
    except ValueError as error:
        raise TaskError(f'task "{task}": {error}') from None
    except Exception as error:
        given = f"task_options = {dict(options)!r:.200}"
        raise TaskError(
            f'task "{task}": {kind.__name__} with {given} raises {failures.describe(error)}; raise a ValueError '
            "there that says what is expected"
        ) from error


def _alternatives(hint: Any) -> list[Any]:
    """Return the types of a union, without None, or the type itself."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    return [kind for kind in kinds if kind is not NoneType]


def _is_a(kind: Any, value: Any) -> bool:
    """Return whether an option of this type may have ``value``, a value of a job file."""
    origin = get_origin(kind)
    if kind is Any:
        return True
    if origin is Literal:
        return value in get_args(kind)
    if kind == Range:
        return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_bound, value))
    if origin is tuple or kind is tuple:
        return isinstance(value, (list, tuple))
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is (origin or kind)


def _is_bound(value: Any) -> bool:
    """Return whether a number may be a bound of a range."""
    return type(value) in (int, float) and not math.isnan(value)


def _type_name(kind: Any) -> str:
    """Return what values of the type are called in messages."""
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if kind == Range:
        return "a list of two numbers"
    kind = get_origin(kind) or kind
    return _TYPE_NAMES.get(kind) or str(kind.__name__)


_TYPE_NAMES: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    list: "a list",
    tuple: "a list",
}
