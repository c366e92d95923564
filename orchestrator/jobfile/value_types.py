"""Types of the values in a job file, each with its validation and its JSON Schema; the base class of its tables."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from orchestrator.core.task_names import AUTO, PRESETS, TASKS
from orchestrator.core.worker_spec import parse_schedule
from orchestrator.jobfile.job_names import is_showable
from orchestrator.jobfile.units import parse_duration, parse_size

MOST = 10**12
"""Upper limit of every count: far above any use, far below any overflow."""
SHORTEST_STALL_S = 3


def key(default: Any, description: str, example: Any = None, *, shown: Any = None) -> Any:
    """A key of a table.

    :param example: a value as a user would write it; by default the default, except for tables.
    :param shown: the default as a user would write it, if that differs from ``default``.
    """
    if example is None and not isinstance(default, BaseModel):
        example = default if shown is None else shown
    return Field(
        default=default,
        description=description,
        examples=None if example is None else [example],
        json_schema_extra=None if shown is None else {"default": shown},
    )


class Table(BaseModel):
    """Base class of the tables of the job file."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        field_title_generator=lambda name, _: name,
    )


class ExpectedError(ValueError):
    """States what a key accepts; the message for the user adds the value that was found."""


def _schedule(value: Any) -> float | str:
    if isinstance(value, str):
        start, end, _ = parse_schedule(value)
        if not (0 < start <= MOST and 0 <= end <= MOST):
            raise ValueError(f'"{value}" must start above 0 and must not fall below 0, for example "linear(3e-4, 0)"')
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST:
        return float(value)
    raise ExpectedError('expected a number above 0 or a schedule such as "linear(3e-4, 0)"')


def _schedule_or_none(value: Any) -> float | str | None:
    return None if value is None else _schedule(value)


def _size(value: Any) -> int:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError as error:
            raise ExpectedError(str(error)) from None
    raise ExpectedError('expected a size with its unit, such as "2 GiB", "512 MiB" or "1.5 GB"')


def _duration(value: Any) -> float:
    try:
        if isinstance(value, str):
            return parse_duration(value)
    except ValueError as error:
        raise ExpectedError(str(error)) from None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MOST:
        return float(value)
    raise ExpectedError('expected a duration above 0 such as "2h", "10min", "90s" or "1h30min", or a number of seconds')


def _stall_timeout(value: Any) -> float:
    seconds = _duration(value)
    if seconds < SHORTEST_STALL_S:
        raise ExpectedError(
            f"expected at least {SHORTEST_STALL_S} s: a worker reports progress twice a second, but not while it "
            "imports its libraries"
        )
    return seconds


def _is_count(value: Any, least: int, most: int = MOST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _seeds(value: Any) -> list[int]:
    # numpy.random.seed, which Stable-Baselines3 calls, takes 32 bits.
    if not isinstance(value, list) or not value or not all(_is_count(seed, 0, 2**32 - 1) for seed in value):
        raise ExpectedError("expected a list of whole numbers from 0 to 4294967295, such as [0, 1, 2]")
    if len(set(value)) < len(value):
        twice = Counter(value).most_common(1)[0][0]
        raise ValueError(f"the seed {twice} is listed twice; each seed is one job")
    return value


def _are_widths(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(width, 1) for width in value)


def _net_arch(value: Any) -> list[int] | dict[str, list[int]]:
    is_both = isinstance(value, dict) and set(value) in ({"pi", "vf"}, {"pi", "qf"})
    if _are_widths(value) or (is_both and all(map(_are_widths, value.values()))):
        return value  # type: ignore[no-any-return]
    raise ExpectedError(
        "expected a list of layer widths, [64, 64], or a table with both, { pi = [64, 64], vf = [128, 128] } "
        "(SAC, TD3: qf in the place of vf)"
    )


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ExpectedError("expected text in quotes")
    if not value.strip():
        raise ValueError("the name is empty")
    if not is_showable(value):
        raise ValueError("the name contains a control character, such as a line break; remove it")
    return value


def _path(value: Any) -> str:
    if isinstance(value, str) and value.strip() and is_showable(value):
        return value
    raise ExpectedError("expected the path of an MJCF file, or a pattern such as zoo/*.xml, in quotes")


def _entry_point(value: Any) -> str:
    if isinstance(value, str):
        module, colon, attribute = value.partition(":")
        if colon and all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
            return value
    raise ExpectedError('expected "package.module:callable"')


def is_users_task(task: str) -> bool:
    """Whether it is a class of the user, which is also looked for in the directory of the job file."""
    return ":" in task and task not in PRESETS


def _task(value: Any) -> str:
    built_in = (AUTO, *TASKS, *PRESETS)
    if value in built_in:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        module, colon, kind = value.partition(":")
        if colon and module != "gymnasium" and all(part.isidentifier() for part in (*module.split("."), kind)):
            return value
        near = difflib.get_close_matches(value, built_in, n=1)
        if near:
            raise ValueError(f'unknown task "{value}"; did you mean "{near[0]}"?')
    raise ExpectedError(f'expected {", ".join(built_in)}, or a class of yours as "package.module:Class"')


_ENV_ID = re.compile(r"(?:[\w.]+:)?(?:[\w:-]+/)?[\w:.-]+\Z")


def _env(value: Any) -> str:
    if isinstance(value, str) and _ENV_ID.match(value):
        return value
    raise ExpectedError('expected a gymnasium id such as "Ant-v5"')


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ExpectedError("expected a table")
    unsupported = _not_json(value)
    if unsupported is not None:
        kind = type(unsupported).__name__
        raise ValueError(f"contains a {kind}; expected only text, 64-bit numbers, true, false, lists and tables")
    return value


def _not_json(value: Any) -> object | None:
    """The first value within ``value`` that JSON cannot represent, such as a date; None if there is none."""
    if isinstance(value, dict):
        parts: list[Any] = list(value.values())
        parts += [key for key in value if not isinstance(key, str)]
    elif isinstance(value, list):
        parts = value
    elif isinstance(value, int):
        return None if abs(value) < 2**63 else value
    else:
        return None if value is None or isinstance(value, (str, float)) else value
    return next((part for part in map(_not_json, parts) if part is not None), None)


def _matrix(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise ExpectedError("expected a table of lists, each with a dotted key in quotes")


def _max_parallel(value: Any) -> int | None:
    if value == "auto":
        return None
    if _is_count(value, 1):
        return value  # type: ignore[no-any-return]
    raise ExpectedError('expected "auto" or a whole number of at least 1')


_NUMBER_OR_SCHEDULE = {
    "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\s*linear\s*\([^()]*\)\s*$"}]
}
_WIDTHS = {"type": "array", "items": {"type": "integer", "minimum": 1}}
_DURATION = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(d|h|min|s)\s*)+$"},
    ]
}

Count = Annotated[int, Field(ge=1, le=MOST)]
CountFromZero = Annotated[int, Field(ge=0, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Schedule = Annotated[float | str, PlainValidator(_schedule), WithJsonSchema(_NUMBER_OR_SCHEDULE)]
OptionalSchedule = Annotated[float | str | None, PlainValidator(_schedule_or_none), WithJsonSchema(_NUMBER_OR_SCHEDULE)]
Size = Annotated[
    int,
    PlainValidator(_size),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([KkMmGgTt][Ii]?[Bb])\s*$"}),
]
Duration = Annotated[float, PlainValidator(_duration), WithJsonSchema(_DURATION)]
StallTimeout = Annotated[float, PlainValidator(_stall_timeout), WithJsonSchema(_DURATION)]
Seeds = Annotated[
    list[int],
    PlainValidator(_seeds),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
            "minItems": 1,
            "uniqueItems": True,
        }
    ),
]
NetArch = Annotated[
    list[int] | dict[str, list[int]] | None,
    PlainValidator(_net_arch),
    WithJsonSchema(
        {
            "anyOf": [
                _WIDTHS,
                *(
                    {
                        "type": "object",
                        "properties": {"pi": _WIDTHS, critic: _WIDTHS},
                        "required": ["pi", critic],
                        "additionalProperties": False,
                    }
                    for critic in ("vf", "qf")
                ),
            ]
        }
    ),
]
Name = Annotated[str, PlainValidator(_name), WithJsonSchema({"type": "string", "minLength": 1})]
MjcfPath = Annotated[str, PlainValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
EntryPoint = Annotated[
    str, PlainValidator(_entry_point), WithJsonSchema({"type": "string", "pattern": r"^[^\s:]+:[^\s:]+$"})
]
Task = Annotated[
    str,
    PlainValidator(_task),
    WithJsonSchema({"anyOf": [{"enum": [AUTO, *TASKS, *PRESETS]}, {"type": "string", "pattern": r"^[\w.]+:\w+$"}]}),
]
EnvId = Annotated[str, PlainValidator(_env), WithJsonSchema({"type": "string", "minLength": 1})]
Matrix = Annotated[dict[str, Any], PlainValidator(_matrix), WithJsonSchema({"type": "object"})]
Options = Annotated[dict[str, Any], PlainValidator(_options), WithJsonSchema({"type": "object"})]
MaxParallel = Annotated[
    int | None,
    PlainValidator(_max_parallel),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
]
