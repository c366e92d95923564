"""Options of tasks: the base classes, and reading them from the job file's ``task_options``."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
    """What the policy observes: ``full`` (what the task gives), ``proprioception`` (what a robot's own
    sensors give), or a class of yours as ``module:Class``."""
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


@functools.cache
def _types_of(kind: type) -> Mapping[str, Any]:
    """The types of an options class; thousands of variants of a robot have the same."""
    return get_type_hints(kind)


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
    """The user's ``task_options`` as a value of ``kind``.

    :param moment: when, for numbers that change over the training.
    :raises TaskError: unknown option (answered with the valid ones), wrong type or value, a required
        one is missing; or the user's own class cannot be read or made.
    """
    try:
        hints = _types_of(kind)  # type: ignore[arg-type]  # every class can be hashed
    except Exception as error:
        raise TaskError(
            f'task "{task}": the types of its {kind.__name__} cannot be read: {type(error).__name__}: {error}; import '
            "what they name at run time, not under TYPE_CHECKING"
        ) from error
    names = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for name, written in options.items():
        if name not in names:
            raise TaskError(_unknown(task, name, names))
        accepted = _accepted_values(hints[name])
        value = written if accepted.takes_text else value_at(written, moment, whole=accepted.whole)
        if not accepted.admits(value):
            expected = accepted.names()
            raise TaskError(f'option "{name}" of task "{task}" is {value!r}: expected {expected}')
        values[name] = accepted.convert(value)
    if missing := [f'"{name}"' for name in _required(kind) if name not in values]:
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


def _required(kind: type[EpisodeOptions]) -> list[str]:
    """The names of the options that have no default."""
    return [
        field.name
        for field in dataclasses.fields(kind)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]


def _unknown(task: str, name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f'unknown option "{name}" of task "{task}"; {hint}it has: {", ".join(sorted(names))}'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    """What an option may be."""

    choices: Sequence[Any]
    """Of a ``Literal``."""
    kinds: Sequence[Any]
    """The other types; ``list`` for every tuple but :data:`Range`."""

    @property
    def takes_text(self) -> bool:
        return str in self.kinds or Any in self.kinds

    @property
    def whole(self) -> bool:
        return int in self.kinds and float not in self.kinds

    def admits(self, value: Any) -> bool:
        return value in self.choices or Any in self.kinds or _is_a(value, self.kinds)

    def names(self) -> str:
        """For people."""
        types = [_TYPE_NAMES.get(kind) or kind.__name__ for kind in self.kinds]
        return " or ".join([*map(repr, self.choices), *types])

    def convert(self, value: Any) -> Any:
        """A value that it admits, as the option has it."""
        if Range in self.kinds and isinstance(value, (list, tuple)):
            return tuple(map(float, value))
        return value


@functools.cache
def _accepted_values(hint: Any) -> _Accepted:
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices: list[Any] = []
    kinds: list[Any] = []
    for kind in alternatives:
        origin = get_origin(kind)
        if origin is Literal:
            choices += get_args(kind)
        elif kind == Range:
            kinds.append(kind)
        elif origin is tuple:
            kinds.append(list)
        elif kind is not NoneType:
            kinds.append(origin or kind)
    return _Accepted(choices=choices, kinds=kinds)


_TYPE_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    list: "a list",
    Range: "a list of two numbers",
}


def _is_a(value: object, accepted: Collection[Any]) -> bool:
    if isinstance(value, bool):
        return bool in accepted
    if isinstance(value, int):
        return int in accepted or float in accepted
    if isinstance(value, float):
        return float in accepted and math.isfinite(value)
    if Range in accepted and isinstance(value, (list, tuple)):
        return len(value) == 2 and all(
            _is_a(bound, (float,)) or bound in (math.inf, -math.inf) for bound in value
        )
    return type(value) in accepted
