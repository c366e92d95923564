"""The format of ``[search]`` and ``[scheduler]``, key by key; what they mean together is in
``rules.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import core_schema

from orchestrator.features.search.auto_sampler import AUTO
from orchestrator.features.search.declaration.spec import (
    SAMPLERS,
    Aggregate,
    ChosenBy,
    Direction,
    RaceSpec,
    Start,
    TrialOrder,
)
from orchestrator.keys import value_types
from orchestrator.keys.value_types import (
    MOST,
    Count,
    CountFromZero,
    Expected,
    ExpectedError,
    TomlTable,
    Whole,
    key,
)

Number = Annotated[
    Annotated[int, Field(ge=-MOST, le=MOST)] | Annotated[float, Field(ge=-MOST, le=MOST)],
    Expected(f"a number from -{MOST:_} to {MOST:_}"),
]
OptionalCount = Annotated[int | None, Field(ge=1, le=MOST), Whole]
_Texts = Annotated[list[str], MinLen(1)]
_Point = Annotated[
    dict[str, Any], Expected('a table with values, such as { "ppo.learning_rate" = 1e-3 }')
]
_Directions = Annotated[list[Direction], MinLen(1)]
_SAMPLER = f'{", ".join(SAMPLERS)}, {AUTO}, or a class of yours as "module:Class"'
Sampler = Annotated[
    str,
    AfterValidator(value_types.known_or_class("sampler", (*SAMPLERS, AUTO), _SAMPLER)),
    Expected(_SAMPLER),
    WithJsonSchema(
        {"anyOf": [{"enum": [*SAMPLERS, AUTO]}, {"type": "string", "pattern": r"^[\w.]+:\w+$"}]}
    ),
]


class DimensionTable(TomlTable):
    """One key that a search varies: between low and high, or among choices."""

    low: Number | None = key(
        None, "Lowest value; whole numbers as low and high make it a whole number.", 0.5
    )
    high: Number | None = key(None, "Highest value.", 2.0)
    log: bool = key(False, "Whether equal ratios are equally far apart; low must be above 0.", True)
    multiply: bool = key(
        False, "For keys of model: whether the value multiplies what the robot has.", True
    )
    choices: Annotated[list[Any], MinLen(2), Expected("a list of at least two values")] | None = (
        key(None, "The values, at least two, in place of low and high.", [[32, 32], [64, 64]])
    )


class MeasureTable(TomlTable):
    """One axis of the archive of a quality-diversity sampler."""

    low: Number = Field(
        description="Lowest value of the measure that has a cell of its own.", examples=[0.0]
    )
    high: Number = Field(
        description="Highest value of the measure that has a cell of its own.", examples=[10.0]
    )
    cells: Count = key(10, "Number of cells between low and high.")


class ConstraintTable(TomlTable):
    """Bounds of a measure of the compiled model, one or both."""

    low: Number | None = key(None, "Lowest value that is allowed.", 3.0)
    high: Number | None = key(None, "Highest value that is allowed.", 12.0)


class ReevaluationTable(TomlTable):
    """The best trials, trained again at the end: only these figures are values of their bodies."""

    n: CountFromZero = Field(
        description="Number of best trials to train again, at most trials; of several objectives, of the Pareto front.",
        examples=[5],
    )
    seeds: OptionalCount = key(
        None, "Number of fresh seeds, each a job; by default as many as the job has.", 5
    )
    total_timesteps: OptionalCount = key(
        None, "env_steps of each of these jobs; by default as many as a trial has.", 200_000
    )
    reference: bool = key(
        False,
        "Whether the unchanged job is trained with the same seeds, too, as the reference.",
        True,
    )
    by: ChosenBy = key(
        "value",
        "Which are the best: those with the best value, or with the best estimate by a model of the trials, which "
        "luck deceives less.",
        "estimate",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShortForm:
    """Annotation of a table: a number stands for the table that has it under ``key``."""

    key: str
    least: int

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._as_table, handler(source))

    def __get_pydantic_json_schema__(
        self, table: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        number = {"type": "integer", "minimum": self.least, "maximum": MOST}
        return {"anyOf": [number, handler(table)]}

    def _as_table(self, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or not self.least <= value <= MOST:
            expected = f"expected a whole number from {self.least} to {MOST:_}"
            raise ExpectedError(f"{expected}, or a table with {self.key}")
        return {self.key: value}


_Reevaluation = Annotated[ReevaluationTable, _ShortForm(key="n", least=0)]


class RaceTable(TomlTable):
    """Further seeds of trials that may be the best, once there are no more new points."""

    seeds: Annotated[int, Field(ge=2, le=MOST), Whole] = Field(
        description="A trial has at most so many seeds, those of the job among them.", examples=[5]
    )
    share: Annotated[
        float, Field(gt=0.0, lt=1.0), Expected("a number above 0 and below 1, such as 0.25")
    ] = key(
        RaceSpec(seeds=2).share,
        "At most this share of the env_steps of all trials is of further seeds; of max_env_steps and max_time, it is "
        "kept for them.",
    )


_Race = Annotated[RaceTable, _ShortForm(key="seeds", least=2)]


class SchedulerTable(TomlTable):
    """When trials are compared, and which of them go on."""

    kind: Literal["none", "asha", "median"] = key(
        "asha",
        "asha: one in factor goes on (asynchronous successive halving); median: those at least as good as the median "
        "go on, or one in two with order fixed; none: all are trained to their end.",
    )
    min_env_steps: OptionalCount = key(
        None,
        "env_steps at which trials are compared first; later at this times powers of factor. Needed "
        "unless kind is none.",
        50_000,
    )
    factor: Annotated[int, Field(ge=2, le=MOST), Whole] = key(
        3, "One in so many trials goes on, so much further."
    )
    by: str = key(
        "ep_rew_mean",
        "What is compared: ep_rew_mean, a measure of the last episodes of training, or an expression of them. The "
        "higher, the better, unless it is an objective of the search, whose direction then counts.",
        "distance_m / energy_j",
    )


class SearchTable(TomlTable):
    """A search over the keys of one job: its jobs are made as the search goes on."""

    space: dict[str, DimensionTable] = Field(
        description="What varies: dotted keys as in a matrix, each with low and high, or with choices.",
        examples=[{"ppo.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True}}],
    )
    initial: list[_Point] = key(
        [],
        "Points that are trained first, in this order. A key that is left out has the value of the unchanged job, "
        "where that is known and in the space; {} is the unchanged job.",
        [{}, {"ppo.learning_rate": 1e-3}],
    )
    constraints: dict[str, ConstraintTable] = key(
        {},
        "What every body satisfies: bounds of measures of the compiled model, such as mass_kg, height_m or torque_max, "
        "or of expressions of them. A point that does not is drawn anew before it is trained, and is no trial.",
        {"mass_kg": {"high": 12.0}, "torque_sum / mass_kg": {"low": 2.0}},
    )
    sampler: Sampler = key(
        "tpe",
        "What proposes the points; auto chooses by the dimensions of the space and the budget, once: a search that is "
        "resumed keeps it; or a class of yours as module:Class.",
        "cmaes",
    )
    sampler_options: value_types.Options = key({}, "Options of the sampler.")
    seed: Annotated[int, Field(ge=0, le=2**31 - 1), Whole] = key(0, "Random seed of the sampler.")
    objective: Annotated[
        str | _Texts, Expected("a column, a measure or an expression of them, or a list of these")
    ] = key(
        "eval_mean",
        "What is optimised: a column of summary.csv, a measure of eval.json, or an expression of them such as "
        "distance_m / energy_j; with nsga2 or a class of yours also a list of several.",
    )
    direction: Annotated[
        Direction | _Directions,
        Expected('"maximize" or "minimize", or a list with one for each objective'),
    ] = key("maximize", "maximize or minimize; a list: one for each objective.")
    aggregate: Aggregate = key("median", "How the values of the seeds of a trial become its value.")
    measures: dict[str, MeasureTable] = key(
        {},
        "Axes of the archive of map-elites and cma-me: measures of eval.json, columns of summary.csv, or expressions.",
    )
    trials: OptionalCount = key(
        None,
        "The search ends after so many trials. This, max_env_steps or max_time is needed.",
        200,
    )
    max_env_steps: OptionalCount = key(
        None,
        "No further trial is asked for after so many env_steps of all, less the share of race; what is queued or runs "
        "is trained.",
        100_000_000,
    )
    max_time: value_types.Duration | None = key(
        None,
        "No further trial is asked for after this time, less the share of race; what is queued or runs is trained.",
        "8h",
    )
    start: Start = key(
        "nothing",
        "What every trial starts from: nothing (random weights); reference (the policy of the unchanged job, which is "
        "trained first: all start alike); nearest or best (the policy of that finished trial: to find bodies, not to "
        "compare them).",
        "reference",
    )
    order: TrialOrder = key(
        "asynchronous",
        "asynchronous: a free slot asks at once; fixed: the same trials whatever finishes first (trials is then the "
        "only budget).",
    )
    reevaluate: _Reevaluation = key(
        ReevaluationTable(n=0),
        "Number of best trials, at most trials, to train again at the end, from nothing and with other seeds; or a "
        "table with n, seeds (their number), total_timesteps, reference (whether the unchanged job is trained so, "
        "too) and by (value or estimate: which are the best).",
        {"n": 5, "seeds": 5, "total_timesteps": 200_000, "reference": True},
        shown=0,
    )
    race: _Race | None = key(
        None,
        "Trials that may be the best get further seeds once there are no more new points, up to so many with their "
        "own; or a table with seeds and share (at most this share of the env_steps of all trials is of further seeds; "
        "of max_env_steps and max_time, it is kept for them).",
        {"seeds": 5, "share": 0.25},
    )
    scheduler: SchedulerTable | None = key(
        None, "When trials are compared, and which of them go on.", shown={}
    )
