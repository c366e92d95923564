"""Types of the values in a job file, each with its validation and its JSON Schema; the base class
of its tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from annotated_types import Predicate
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import core_schema

from orchestrator.core.files.log_limit import LARGEST_MIB, SMALLEST_MIB
from orchestrator.core.job import GPU_PARTS
from orchestrator.core.robot_sources import collection_of
from orchestrator.core.task_names import AUTO, GYMNASIUM_TASKS, TASKS
from orchestrator.core.worker_spec import Algorithm, parse_schedule
from orchestrator.keys.names import is_showable
from orchestrator.keys.problems import suggestion

MOST = 10**12
"""Upper limit of every count: far above any use, far below any overflow."""
SHORTEST_STALL_S = 3
"""A worker reports no progress while it imports its libraries."""
MOST_SEEDS = 100_000
"""As many as an experiment can have jobs."""


def key(default: Any, description: str, example: Any = None, *, shown: Any = None) -> Any:
    """Declare a key of a table.

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
    """Base class of the tables of the job file. Numbers in it are finite."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        field_title_generator=lambda name, _: name,
    )


class ExpectedError(ValueError):
    """States what a key accepts; the message for the user adds the value that was found."""


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
                for details in error.errors():
                    if details["type"] == "value_error":
                        raise details["ctx"]["error"] from None
                raise ExpectedError(f"expected {self.text}") from None

        as_it_is = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(
            check, handler(source), serialization=as_it_is
        )


# Numbers


def whole(value: Any) -> Any:
    """Return ``1000000`` for ``1e6``: a float without a fraction counts as a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(whole)
"""For every key that takes whole numbers: accepts ``1e6`` as well."""
Count = Annotated[int, Field(ge=1, le=MOST), Whole]
CountFromZero = Annotated[int, Field(ge=0, le=MOST), Whole]
Fraction = Annotated[float, Field(ge=0, le=1)]
AboveZero = Annotated[float, Field(gt=0, le=MOST)]
Nice = Annotated[int, Field(ge=0, le=19), Whole]


def _gpu_share(gpus: float) -> float:
    """Round a share down to what is counted, so that three jobs with 0.333333 fit on one GPU."""
    if isinstance(gpus, int):
        return gpus
    return math.floor(round(gpus * GPU_PARTS, 6)) / GPU_PARTS


Gpus = Annotated[
    CountFromZero | Annotated[float, Field(ge=1 / GPU_PARTS, lt=1)],
    AfterValidator(_gpu_share),
    Expected("a share of one GPU from 0.0001 to 0.9999, such as 0.5, or a whole number, 0 or more"),
]
MaxParallel = Annotated[
    Literal["auto", "idle"] | Count,
    Expected(f'"auto", "idle" or a whole number from 1 to {MOST:_}'),
]


def _schedule(text: str) -> str:
    start, end, _ = parse_schedule(text)
    if not (0 < start <= MOST and 0 <= end <= MOST):
        raise ValueError(
            f'"{text}" must start above 0, must not fall below 0 and must not exceed {MOST:_}'
        )
    return text


_ScheduleText = Annotated[str, AfterValidator(_schedule)]
_SCHEDULE = Expected(
    f'a number above 0 and up to {MOST:_}, or a schedule such as "linear(3e-4, 0)"'
)
Schedule = Annotated[AboveZero | _ScheduleText, _SCHEDULE]
OptionalSchedule = Annotated[AboveZero | _ScheduleText | None, _SCHEDULE]

# Sizes and durations

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_SIZE_UNITS = {
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
}
SIZE = 'such as "2 GiB", "512 MiB" or "1.5 GB", above 0 and below 1 EiB'
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)\s*")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_DURATION_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
DURATION = 'a duration above 0 such as "2h", "10min", "90s" or "1h30min", or a number of seconds'


def parse_size(text: str) -> int:
    """Return 2048 for ``"2 GiB"``: whole mebibytes, rounded up. ``GB`` is 10⁹ bytes, ``GiB`` 2³⁰;
    case does not matter.

    :raises ExpectedError: with the accepted forms.
    """
    match = _SIZE.fullmatch(text)
    size = float(match[1]) * _SIZE_UNITS.get(match[2].lower(), 0) if match else 0.0
    if not 0 < size < 2**60:
        raise ExpectedError(f"expected a size with its unit, {SIZE}")
    return math.ceil(size / 2**20)


def parse_duration(text: str) -> float:
    """Return 5400.0 seconds for ``"1h30min"``.

    :raises ExpectedError: with the accepted forms.
    """
    seconds = 0.0
    if _DURATION.fullmatch(text.strip()):
        for number, unit in _DURATION_PART.findall(text):
            seconds += float(number) * _DURATION_UNITS[unit]
    if not 0 < seconds <= MOST:
        raise ExpectedError(f"expected {DURATION}")
    return seconds


_SizeText = Annotated[str, AfterValidator(parse_size)]
Size = Annotated[_SizeText, Expected(f"a size with its unit, {SIZE}")]
LogSize = Annotated[
    _SizeText,
    Predicate(lambda mib: SMALLEST_MIB <= mib <= LARGEST_MIB),
    Expected(f'a size from {SMALLEST_MIB} MiB to {LARGEST_MIB} MiB, such as "64 MiB"'),
]
FreeDisk = Annotated[
    Annotated[int, Field(ge=0, le=0)] | _SizeText,  # Literal[0] would admit false
    Expected('a size with its unit, such as "1 GiB", or 0 for no limit'),
]
Duration = Annotated[
    AboveZero | Annotated[str, AfterValidator(parse_duration)],
    Expected(DURATION),
]
StallTimeout = Annotated[
    Duration,
    Predicate(lambda seconds: seconds >= SHORTEST_STALL_S),
    Expected(f'a duration of at least {SHORTEST_STALL_S} s, such as "10min"'),
]
CheckpointEvery = Annotated[
    Count | Annotated[str, AfterValidator(parse_duration)],
    Expected('a whole number of env_steps, or a duration such as "10min", "30s" or "1h"'),
]
"""env_steps, a whole number; or seconds, a float."""

# Seeds

_SEED_RANGE = re.compile(r"\s*(\d{1,10})\s*-\s*(\d{1,10})\s*")
_SEEDS = (
    'a list of different whole numbers from 0 to 4294967295, such as [0, 1, 2], or a range such as "0-199", '
    f"at most {MOST_SEEDS:_}"
)
_Seed = Annotated[int, Field(ge=0, le=2**32 - 1), Whole]
"""numpy.random.seed, which Stable-Baselines3 calls, takes 32 bits."""


def _seeds_in(text: str) -> list[int]:
    """Return the seeds of ``"0-199"``."""
    match = _SEED_RANGE.fullmatch(text)
    seeds = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if not 0 < len(seeds) <= MOST_SEEDS or seeds[-1] >= 2**32:
        raise ExpectedError(f"expected {_SEEDS}")
    return list(seeds)


Seeds = Annotated[
    list[_Seed] | Annotated[str, AfterValidator(_seeds_in)],
    Predicate(lambda seeds: 0 < len(set(seeds)) == len(seeds)),
    Expected(_SEEDS),
]

# Names, and what names something of the user's


def is_entry_point(text: str) -> bool:
    """Return whether ``text`` is of the form ``"package.module:attribute"``."""
    module, _, attribute = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def is_users_class(text: str) -> bool:
    """Return whether ``text`` names something at the top of a module: ``"package.module:Class"``."""
    return is_entry_point(text) and "." not in text.partition(":")[2]


def is_maker(xml: str) -> bool:
    """Return whether ``xml`` is a function that makes a robot, and no file: a file of such a name is
    ``./module:function``.
    """
    return is_users_class(xml) and collection_of(xml) is None


def is_users_task(task: str) -> bool:
    """Return whether ``task`` is a class of the user, which is also looked for in the directory of
    the job file.
    """
    return ":" in task and task not in GYMNASIUM_TASKS


def known_or_class(kind: str, known: Sequence[str], expected: str) -> Callable[[str], str]:
    """Return a check that a text is one of ``known``, or a class of the user's."""

    def check(text: str) -> str:
        if text in known or (is_users_class(text) and not text.startswith("gymnasium:")):
            return text
        if near := suggestion(text, known):
            raise ValueError(f'unknown {kind} "{text}"; did you mean "{near}"?')
        raise ExpectedError(f"expected {expected}")

    return check


def _known_or_class_schema(known: Sequence[str]) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"enum": list(known)}, {"type": "string", "pattern": r"^[\w.]+:\w+$"}]}
    )


_Text = Annotated[str, Predicate(str.strip), Predicate(is_showable)]
Name = Annotated[
    _Text,
    Expected("a name in quotes, on one line"),
]
Init = Annotated[
    _Text,
    Expected('"none", "job:NAME", or the path of a job\'s directory or of a model.zip, in quotes'),
]
JobNameList = Annotated[
    list[Name], Expected('a list of names of jobs of this file, such as ["stand"]')
]
EntryPoint = Annotated[
    str,
    Predicate(is_entry_point),
    Expected('"package.module:callable"'),
]
_TASKS = [AUTO, *TASKS, *GYMNASIUM_TASKS]
_TASK = f'{", ".join(_TASKS)}, or a class of yours as "package.module:Class"'
Task = Annotated[
    str,
    AfterValidator(known_or_class("task", _TASKS, _TASK)),
    Expected(_TASK),
    _known_or_class_schema(_TASKS),
]
_ALGOS = get_args(Algorithm)
_ALGO = f'one of {", ".join(_ALGOS)}, or a class as "package.module:Class"'
Algo = Annotated[
    str,
    AfterValidator(known_or_class("algorithm", _ALGOS, _ALGO)),
    Expected(_ALGO),
    _known_or_class_schema(_ALGOS),
]
EnvId = Annotated[
    str,
    Field(pattern=r"^([\w.]+:)?([\w:-]+/)?[\w:.-]+$"),
    Expected('a gymnasium id such as "Ant-v5"'),
]
# Tables


Options = Annotated[
    dict[str, JsonValue],
    Expected("a table of text, finite numbers, true, false, lists and tables"),
    WithJsonSchema({"type": "object"}),
]
Matrix = Annotated[
    dict[str, Any],
    Expected("a table of lists, each with a dotted key in quotes"),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}),
]


NetArch = Annotated[
    list[Count] | dict[Literal["pi", "vf", "qf"], list[Count]],
    Expected(
        "a list of layer widths, such as [64, 64], or a table of two, { pi = [64, 64], vf = [128, 128] } "
        "(off-policy algorithms: qf in place of vf)"
    ),
]
