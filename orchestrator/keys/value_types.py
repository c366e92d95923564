"""Types of the values in a job file, each with its validation and its JSON Schema; the base class
of its tables.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import MinLen, Predicate
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import core_schema

from orchestrator.core.files.log_limit import LARGEST_MIB, SMALLEST_MIB
from orchestrator.core.job import GPU_PARTS
from orchestrator.core.robot_sources import collection_of
from orchestrator.core.task_names import AUTO, GYMNASIUM_TASKS, TASKS
from orchestrator.core.worker_spec import INIT_JOB, Algorithm, parse_schedule
from orchestrator.keys.names import is_showable

MOST = 10**12
"""Upper limit of every count: far above any use, far below any overflow."""
SHORTEST_STALL_S = 3
MOST_SEEDS = 100_000
"""As many as an experiment can have jobs."""
_SEED_RANGE = re.compile(r"^\s*(\d{1,10})\s*-\s*(\d{1,10})\s*$")
SEEDS = (
    'a list of whole numbers from 0 to 4294967295, such as [0, 1, 2], or a range such as "0-199"'
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\Z")
_SIZE_UNITS = {
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*[A-Za-z]+\s*)+\Z")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
SIZE = 'such as "2 GiB", "512 MiB" or "1.5 GB", above 0 and below 1 EiB'
DURATION = f'a duration above 0 such as "2h", "10min", "90s" or "1h30min", or a number of seconds, up to {MOST:_}'
_CHECKPOINT_EVERY = (
    f"a whole number of env_steps from 1 to {MOST:_}, or a duration "
    'above 0 such as "10min", "30s" or "1h"'
)
_DURATION_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


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


class TomlTable(BaseModel):
    """Base class of the tables of the job file."""

    instead: ClassVar[Mapping[str, str]] = {}
    """Keys that the table does not have although one might expect them, and what to do instead."""
    synonyms: ClassVar[Mapping[str, str]] = {}
    """What other programs call a key, in lower case → the key."""
    alternative: ClassVar[str] = ""
    """What tables are called of which a job uses one, for messages: "the table of …"."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        field_title_generator=lambda name, _: name,
    )


@dataclass(frozen=True, slots=True)
class AnyKeys:
    """Annotation of a table in which the user may set any keys, also in a matrix."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Annotation of a type: what its errors say, except those that its own validators raise as
    ValueError.
    """

    text: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        def check(value: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
            try:
                return inner(value)
            except ValidationError as error:
                of_validators = [
                    details["ctx"]["error"]
                    for details in error.errors()
                    if details["type"] == "value_error"
                ]
            if of_validators:
                raise of_validators[0]
            raise ExpectedError(f"expected {self.text}")

        as_it_is = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(
            check, handler(source), serialization=as_it_is
        )


class ExpectedError(ValueError):
    """States what a key accepts; the message for the user adds the value that was found."""


def parse_size(text: str) -> int:
    """``"2 GiB"`` → 2048: whole mebibytes, rounded up. ``GB`` is 10⁹ bytes, ``GiB`` 2³⁰; case does
    not matter.

    :raises ExpectedError: with the accepted forms.
    """
    expected = f"expected a size {SIZE}"
    match = _SIZE.match(text.strip())
    if match is None:
        raise ExpectedError(expected)
    if match[2].lower() not in _SIZE_UNITS:
        raise ExpectedError(f'unknown unit "{match[2]}": {expected}')
    size = float(match[1]) * _SIZE_UNITS[match[2].lower()]
    if not 0 < size < 2**60:
        raise ExpectedError(expected)
    return math.ceil(size / 2**20)


def parse_duration(text: str) -> float:
    """``"1h30min"`` → 5400.0 seconds.

    :raises ExpectedError: with the accepted forms.
    """
    expected = f"expected {DURATION}"
    text = text.strip()
    if _DURATION.match(text) is None:
        raise ExpectedError(expected)
    seconds = 0.0
    for number, unit in _DURATION_PART.findall(text):
        if unit not in _DURATION_UNITS:
            raise ExpectedError(f'unknown unit "{unit}" (known: d, h, min or m, s): {expected}')
        seconds += float(number) * _DURATION_UNITS[unit]
    if not 0 < seconds <= MOST:
        raise ExpectedError(expected)
    return seconds


def _pattern(regex: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": regex})


def _schedule(text: str) -> str:
    start, end, _ = parse_schedule(text)
    if not (0 < start <= MOST and 0 <= end <= MOST):
        limits = f"must start above 0, must not fall below 0 and must not exceed {MOST:_}"
        raise ValueError(f'"{text}" {limits}, for example "linear(3e-4, 0)"')
    return text


def _stall_timeout(seconds: float) -> float:
    if seconds < SHORTEST_STALL_S:
        raise ExpectedError(
            f"expected at least {SHORTEST_STALL_S} s: a worker reports progress twice a second, but not while it "
            "imports its libraries"
        )
    return seconds


def _interval(text: str) -> str:
    try:
        parse_duration(text)
    except ExpectedError as error:
        raise ExpectedError(str(error).replace(DURATION, _CHECKPOINT_EVERY)) from None
    return text


def _gpu_share(gpus: float) -> float:
    """A share is rounded down to what is counted, so that three jobs with 0.333333 fit on one
    GPU.
    """
    if isinstance(gpus, int):
        return gpus
    parts = math.floor(round(gpus * GPU_PARTS, 6))
    return parts / GPU_PARTS


def _log_size(mib: int) -> int:
    if not SMALLEST_MIB <= mib <= LARGEST_MIB:
        raise ExpectedError(f"expected a size from {SMALLEST_MIB} MiB to {LARGEST_MIB} MiB")
    return mib


def _seed_range(value: Any) -> Any:
    """``"0-199"`` → the list of these seeds; everything else as it is."""
    match = _SEED_RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    first, last = int(match[1]), int(match[2])
    if not first <= last < 2**32:
        raise ExpectedError(f"expected {SEEDS}")
    if last - first >= MOST_SEEDS:
        raise ValueError(
            f'"{value.strip()}" has {last - first + 1:_} seeds; expected at most {MOST_SEEDS:_}'
        )
    return list(range(first, last + 1))


def _distinct(seeds: list[int]) -> list[int]:
    seed, times = Counter(seeds).most_common(1)[0]
    if times > 1:
        raise ValueError(f"the seed {seed} is listed twice; each seed is one job")
    return seeds


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ExpectedError("expected text in quotes")
    if not value.strip():
        raise ValueError("the name is empty")
    if not is_showable(value):
        raise ValueError("the name contains a control character, such as a line break; remove it")
    return value


def _init(text: str) -> str:
    if text.startswith(INIT_JOB) and not text.removeprefix(INIT_JOB).strip():
        raise ValueError(
            f'"{text}" names no job; expected "job:NAME", with the name of a job of this file'
        )
    return text


def is_entry_point(text: str) -> bool:
    """Whether ``text`` is of the form ``"package.module:attribute"``."""
    module, _, attribute = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def is_users_class(text: str) -> bool:
    """Whether ``text`` names something at the top of a module: ``"package.module:Class"``."""
    return is_entry_point(text) and "." not in text.partition(":")[2]


def is_maker(xml: str) -> bool:
    """Whether it is a function that makes a robot, and no file: a file of such a name is
    ``./module:function``.
    """
    return is_users_class(xml) and collection_of(xml) is None


def is_users_task(task: str) -> bool:
    """Whether it is a class of the user, which is also looked for in the directory of the job
    file.
    """
    return ":" in task and task not in GYMNASIUM_TASKS


_BUILT_IN = [AUTO, *TASKS, *GYMNASIUM_TASKS]
_TASK = f'{", ".join(_BUILT_IN)}, or a class of yours as "package.module:Class"'


_ALGO = f'one of {", ".join(get_args(Algorithm))}, or a class as "package.module:Class"'


def known_or_class(kind: str, known: Sequence[str], expected: str) -> Callable[[str], str]:
    """A check that a text is one of ``known``, or a class of the user's."""

    def check(text: str) -> str:
        if text in known or (is_users_class(text) and not text.startswith("gymnasium:")):
            return text
        near = difflib.get_close_matches(text, known, n=1)
        if near:
            raise ValueError(f'unknown {kind} "{text}"; did you mean "{near[0]}"?')
        raise ExpectedError(f"expected {expected}")

    return check


def _options(table: dict[Any, Any]) -> dict[Any, Any]:
    for place, key in keys_that_are_no_text(table, ""):
        where = f"{place}: " if place else ""
        raise ValueError(f"{where}a key must be text, found {key!r:.60}")
    for leaf in _leaves(table):
        if not (
            leaf is None
            or isinstance(leaf, (str, float))
            or (isinstance(leaf, int) and abs(leaf) < 2**63)
        ):
            kind = type(leaf).__name__
            raise ValueError(
                f"contains a {kind}; expected only text, 64-bit numbers, true, false, lists and tables"
            )
    return table


def keys_that_are_no_text(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Keys of the tables within ``value``, which only a program can give, each with the place of
    its table.

    :param place: of ``value``, such as ``legs[0].gains``.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            if isinstance(key, str):
                yield from keys_that_are_no_text(part, f"{place}.{key}" if place else key)
            else:
                yield place, key
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from keys_that_are_no_text(part, f"{place}[{number}]")


def _leaves(value: Any) -> Iterator[Any]:
    """The values within ``value`` that are neither lists nor tables."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_leaves, value))
    else:
        yield value


def whole(value: Any) -> Any:
    """``1e6`` → ``1000000``: a float without a fraction counts as a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(whole)
"""For every key that takes whole numbers: accepts ``1e6`` as well."""
Count = Annotated[int, Field(ge=1, le=MOST), Whole]
CountFromZero = Annotated[int, Field(ge=0, le=MOST), Whole]
Fraction = Annotated[float, Field(ge=0, le=1)]
AboveZero = Annotated[float, Field(gt=0, le=MOST)]
_ScheduleText = Annotated[str, AfterValidator(_schedule), _pattern(r"^\s*linear\s*\([^()]*\)\s*$")]
_Schedule = Expected(
    f'a number above 0 and up to {MOST:_}, or a schedule such as "linear(3e-4, 0)"'
)
Schedule = Annotated[AboveZero | _ScheduleText, _Schedule]
OptionalSchedule = Annotated[AboveZero | _ScheduleText | None, _Schedule]
_SizeText = Annotated[
    str, AfterValidator(parse_size), _pattern(r"^\s*\d+(\.\d+)?\s*([KkMmGgTt][Ii]?[Bb])\s*$")
]
Size = Annotated[_SizeText, Expected(f"a size with its unit, {SIZE}")]
_DURATION_PATTERN = r"^\s*(\d+(\.\d+)?\s*(d|h|min|m|s)\s*)+$"
_DurationText = Annotated[str, AfterValidator(parse_duration), _pattern(_DURATION_PATTERN)]
Duration = Annotated[AboveZero | _DurationText, Expected(DURATION)]
StallTimeout = Annotated[Duration, AfterValidator(_stall_timeout)]
LogSize = Annotated[Size, AfterValidator(_log_size)]
FreeDisk = Annotated[
    Annotated[int, Field(ge=0, le=0)] | Literal["0"] | _SizeText,  # Literal[0] would admit false
    AfterValidator(int),
    Expected('a size with its unit, such as "1 GiB", or 0 for no limit'),
]
_Interval = Annotated[str, AfterValidator(_interval), _pattern(_DURATION_PATTERN)]
CheckpointEvery = Annotated[Count | _Interval, Expected(_CHECKPOINT_EVERY)]
"""env_steps; or a duration, as it was written."""
Gpus = Annotated[
    CountFromZero | Annotated[float, Field(ge=1 / GPU_PARTS, lt=1)],
    AfterValidator(_gpu_share),
    Expected("a share of one GPU from 0.0001 to 0.9999, such as 0.5, or a whole number, 0 or more"),
]
Nice = Annotated[int, Field(ge=0, le=19), Whole, Expected("a whole number from 0 to 19")]
Seeds = Annotated[
    # numpy.random.seed, which Stable-Baselines3 calls, takes 32 bits.
    list[Annotated[int, Field(ge=0, le=2**32 - 1), Whole]],
    MinLen(1),
    BeforeValidator(_seed_range),
    Expected(SEEDS),
    AfterValidator(_distinct),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
                    "minItems": 1,
                    "uniqueItems": True,
                },
                {"type": "string", "pattern": _SEED_RANGE.pattern},
            ]
        }
    ),
]


class PolicyAndValue(TomlTable):
    """Layer widths of the policy and the value function."""

    pi: list[Count] = Field(description="Widths of the policy's hidden layers.")
    vf: list[Count] = Field(description="Widths of the value function's hidden layers.")


class PolicyAndCritics(TomlTable):
    """Layer widths of the policy and the critics."""

    pi: list[Count] = Field(description="Widths of the policy's hidden layers.")
    qf: list[Count] = Field(description="Widths of the critics' hidden layers.")


NetArch = Annotated[
    list[Count] | PolicyAndValue | PolicyAndCritics,
    Expected(
        f"a list of layer widths from 1 to {MOST:_}, [64, 64], or a table with both, "
        "{ pi = [64, 64], vf = [128, 128] } "
        "(off-policy algorithms: qf in the place of vf)"
    ),
]
Name = Annotated[str, PlainValidator(_name), WithJsonSchema({"type": "string", "minLength": 1})]
Init = Annotated[
    str,
    MinLen(1),
    Predicate(str.strip),
    Predicate(is_showable),
    AfterValidator(_init),
    Expected('"none", "job:NAME", or the path of a job\'s directory or of a model.zip, in quotes'),
]
JobNameList = Annotated[
    list[Name], Expected('a list of names of jobs of this file, such as ["stand"]')
]
Folders = Annotated[
    list[Annotated[str, MinLen(1), Predicate(is_showable)]],
    Expected('a list of folders in quotes, such as ["../robots"]'),
]
Patterns = Annotated[
    list[Annotated[str, MinLen(1)]], Expected('a list of names or patterns, such as ["caster_*"]')
]
EntryPoint = Annotated[
    str,
    Predicate(is_entry_point),
    Expected('"package.module:callable"'),
    _pattern(r"^[^\s:]+:[^\s:]+$"),
]
Task = Annotated[
    str,
    AfterValidator(known_or_class("task", _BUILT_IN, _TASK)),
    Expected(_TASK),
    WithJsonSchema(
        {"anyOf": [{"enum": _BUILT_IN}, {"type": "string", "pattern": r"^[\w.]+:\w+$"}]}
    ),
]
Algo = Annotated[
    str,
    AfterValidator(known_or_class("algorithm", get_args(Algorithm), _ALGO)),
    Expected(_ALGO),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(get_args(Algorithm))},
                {"type": "string", "pattern": r"^[\w.]+:\w+$"},
            ]
        }
    ),
]
EnvId = Annotated[
    str,
    Field(pattern=r"^([\w.]+:)?([\w:-]+/)?[\w:.-]+$"),
    Expected('a gymnasium id such as "Ant-v5"'),
]
Command = Annotated[
    list[Annotated[str, Predicate(lambda text: "\0" not in text)]] | None,
    Predicate(lambda command: command is None or bool(command and command[0].strip())),
    Expected(
        'a list of a program and its arguments, such as ["mail", "-s", "done", "me@example.org"]; no shell'
    ),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
Matrix = Annotated[dict[str, Any], Expected("a table of lists, each with a dotted key in quotes")]
Options = Annotated[dict[Any, Any], Expected("a table"), AfterValidator(_options), AnyKeys()]
MaxParallel = Annotated[
    Literal["auto", "idle"] | Count,
    Expected(f'"auto", "idle" or a whole number from 1 to {MOST:_}'),
]
