"""A search as the job file declares it, with every default filled in: ``[search]`` and
``[scheduler]``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from orchestrator.core.measure_expressions import parse_expression
from orchestrator.core.text import install_extra
from orchestrator.features.search.auto_sampler import AUTO, SamplerChoice
from orchestrator.features.search.declaration.constraints import Constraint
from orchestrator.keys.names import canonical

Direction: TypeAlias = Literal["maximize", "minimize"]
Aggregate: TypeAlias = Literal["median", "mean", "min"]
Start: TypeAlias = Literal["nothing", "reference", "nearest", "best"]
SchedulerKind: TypeAlias = Literal["asha", "median"]
ChosenBy: TypeAlias = Literal["value", "estimate"]
TrialOrder: TypeAlias = Literal["asynchronous", "fixed"]


LINEAGES: tuple[Start, ...] = ("nearest", "best")
"""Starts from the policies of other trials."""
NETWORK_KEYS = ("algo", "policy", "policy_kwargs", "normalize")
"""Keys of a job by which a policy can be the start of another one only if they are equal."""
RETURN = "ep_rew_mean"
"""What trials are compared by at rungs, unless the job file says otherwise."""
RETURNS = ("eval_mean", RETURN)
"""Objectives for which the return at a rung says something about the value at the end."""


def sign_of(direction: Direction) -> float:
    """A value times this is the better, the larger it is."""
    return 1.0 if direction == "maximize" else -1.0


def identity(value: Any) -> str:
    """A text that is equal for two values of a key exactly when they are the same one.

    The keys of a table have no order, and 1 and 1.0 are one number; ``true`` is none.
    """
    return canonical(_with_whole_numbers(value))


def _with_whole_numbers(value: Any) -> Any:
    """``value``, its floats without a fraction as whole numbers."""
    if isinstance(value, Mapping):
        return {key: _with_whole_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One key of a job that varies: between two numbers, or among choices."""

    key: str
    """Dotted key of a job (``"ppo.learning_rate"``), or ``"params.NAME"`` for a body that a
    function makes."""
    choices: tuple[Any, ...] = ()
    """JSON values; empty for a range."""
    low: float = 0.0
    high: float = 1.0
    """Both are included."""
    log: bool = False
    """Whether equal ratios are equally far apart."""
    integer: bool = False
    multiply: bool = False
    """Whether the value is a factor of what the robot has (``"*1.2"`` in ``model``)."""

    def at(self, unit: float) -> Any:
        """The value at ``unit`` of the way, 0 to 1, from ``low`` to ``high``, or through the
        choices.

        It has so many digits that a millionth of the way can be told apart: people read it.
        """
        if self.choices:
            return self.choices[min(int(unit * len(self.choices)), len(self.choices) - 1)]
        low, high = self._ends
        value = low * (high / low) ** unit if self.log else low + (high - low) * unit
        if self.integer:
            return min(max(round(value), round(self.low)), round(self.high))
        slope = value * math.log(high / low) if self.log else high - low
        return min(max(round(value, 6 - math.floor(math.log10(slope))), self.low), self.high)

    def unit(self, value: Any) -> float:
        """Where ``value`` lies, 0 to 1: the inverse of :meth:`at`, for a choice or a whole number
        its middle.

        :raises ValueError: it is no value of this dimension.
        """
        if self.choices:
            return (self.place_of(value) + 0.5) / len(self.choices)
        is_number = isinstance(value, int if self.integer else int | float) and not isinstance(
            value, bool
        )
        if not is_number or not self.low <= value <= self.high:
            raise ValueError(
                f"expected a {'whole ' * self.integer}number from {self.low:g} to {self.high:g}"
            )
        low, high = self._ends
        return (
            math.log(value / low) / math.log(high / low)
            if self.log
            else (value - low) / (high - low)
        )

    def place_of(self, value: Any) -> int:
        """Which of the choices ``value`` is.

        :raises ValueError: it is none of them.
        """
        known = [identity(choice) for choice in self.choices]
        try:
            return known.index(identity(value))
        except ValueError:
            expected = ", ".join(map(json.dumps, self.choices))
            raise ValueError(f"expected one of {expected}") from None

    def job_value(self, value: Any) -> Any:
        """``value`` as the job file would have it: ``"*1.2"`` where it multiplies."""
        return f"*{value}" if self.multiply else value

    @property
    def _ends(self) -> tuple[float, float]:
        """Ends of the way, on which whole numbers have equal shares."""
        margin = 0.5 if self.integer else 0.0
        return self.low - margin, self.high + margin


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveAxis:
    """One axis of the archive of a quality-diversity sampler: a measure of ``eval.json``, cut into
    cells.
    """

    name: str
    low: float
    high: float
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSpec:
    """When trials are compared, and how many of them go on."""

    kind: SchedulerKind
    min_env_steps: int
    """The first rung; the others are this times powers of ``factor``."""
    factor: int = 3
    by: str = RETURN
    """The return of training, a measure of its last episodes, or an expression of them."""

    @property
    def reduction(self) -> int:
        """Of so many trials that are compared about one goes on."""
        return 2 if self.kind == "median" else self.factor

    @property
    def measures_training(self) -> bool:
        """Whether episodes of training have to be measured for it."""
        return parse_expression(self.by).names != (RETURN,)

    def is_by_objective(self, search: SearchSpec) -> bool:
        """Whether trials are compared by what the first objective is at the end."""
        objective = search.objectives[0]
        return self._is_by(objective) or (self.by == RETURN and objective in RETURNS)

    def _is_by(self, objective: str) -> bool:
        """Whether ``by`` is this objective, however it is spaced."""
        return "".join(self.by.split()) == "".join(objective.split())

    def direction(self, search: SearchSpec | None) -> Direction:
        """Of what is compared: the higher the better, unless it is an objective, which says
        otherwise.
        """
        if search is None:
            return "maximize"
        for objective, direction in zip(search.objectives, search.directions, strict=True):
            if self._is_by(objective):
                return direction
        return search.directions[0] if self.is_by_objective(search) else "maximize"

    @property
    def shown(self) -> str:
        """What is compared, for people."""
        return "return" if self.by == RETURN else self.by

    def stands_for_end(self, search: SearchSpec) -> bool:
        """Whether the sampler is told the value at a rung in place of the one at the end: an archive
        needs the measures of the end, too, and several objectives all their values.
        """
        is_single = not search.measures and len(search.objectives) == 1
        return is_single and self.is_by_objective(search)

    def rungs(self, total_timesteps: int) -> tuple[int, ...]:
        """env_steps of all rungs below the end of a training."""
        found = []
        rung = self.min_env_steps
        while rung < total_timesteps:
            found.append(rung)
            rung *= self.factor
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReevaluationSpec:
    """How the best are trained again at the end."""

    seeds: int | None = None
    """How many; None: as many as the job has."""
    total_timesteps: int | None = None
    """Of each job; None: as many as a trial has."""
    reference: bool = False
    """Whether the unchanged job is trained so, too."""
    by: ChosenBy = "value"
    """Whether the best are those with the best values, or with the best estimates by a model of the
    trials; without estimates they are the former."""

    @property
    def protocol(self) -> dict[str, Any] | None:
        """How trials are trained again, for comparison with how others were; None: as they were
        trained before, but with other seeds.
        """
        if not self.is_own:
            return None
        return {"seeds": self.seeds, "total_timesteps": self.total_timesteps}

    @property
    def is_own(self) -> bool:
        """Whether it is another training than that of a trial with other seeds."""
        return self.seeds is not None or self.total_timesteps is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSpec:
    """How far trials that may be the best are trained with further seeds when there are no more new
    points.
    """

    seeds: int
    """A trial has at most so many, those of the job among them."""
    share: float = 0.25
    """At most this share of the env_steps of all trials is of further seeds; of a budget of env_steps
    or of time, it is kept for them."""


def race_in(table: Mapping[str, Any]) -> Any:
    """``race`` of a table ``[search]`` as the user has written it, its short form as the table that
    means the same.
    """
    race = table["race"]
    declared = race if isinstance(race, Mapping) else {"seeds": race}
    return {"share": RaceSpec(seeds=2).share, **declared}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """``[search]``: which points are tried, and by what they are judged."""

    space: tuple[Dimension, ...]
    sampler: str
    """A name of :data:`SAMPLERS`, or ``"module:Class"``; :data:`~.auto_sampler.AUTO` before it is
    settled."""
    auto: SamplerChoice | None = None
    """Why it is this one, where the job file has ``auto``; None where it names the sampler."""
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the sampler."""
    seed: int = 0
    initial: tuple[Mapping[str, Any], ...] = ()
    """Points that are trained before any that the sampler proposes, with the keys that were
    declared."""
    constraints: tuple[Constraint, ...] = ()
    """All of them are satisfied by the body of each point that the sampler proposes and that is
    trained."""
    objectives: tuple[str, ...]
    """Columns of ``summary.csv``, measures of ``eval.json``, or expressions of them
    (:mod:`orchestrator.core.measure_expressions`), computed for each job."""
    directions: tuple[Direction, ...]
    """One for each objective."""
    aggregate: Aggregate = "median"
    """How the values of the seeds of a trial become its value."""
    measures: tuple[ArchiveAxis, ...] = ()
    trials: int | None = None
    max_env_steps: int | None = None
    max_time_s: float | None = None
    """The search asks for no further point after any of the three that is not None is reached
    (:attr:`share_of_points` of the latter two); one of them is set."""
    start: Start = "nothing"
    """What the policies of trials begin with: random weights, those of the unchanged job, which is
    trained first, or those of the nearest or the best finished trial."""
    order: TrialOrder = "asynchronous"
    reevaluate: int = 0
    """So many of the best, at most ``trials``, are trained again at the end, from nothing and with
    other seeds."""
    reevaluation: ReevaluationSpec = ReevaluationSpec()
    race: RaceSpec | None = None
    """None: all trials have the seeds of the job."""

    @property
    def has_auto_sampler(self) -> bool:
        return self.sampler == AUTO or self.auto is not None

    def with_sampler(self, chosen: SamplerChoice) -> SearchSpec:
        """The same, whose sampler ``auto`` is ``chosen``."""
        return replace(self, sampler=chosen.sampler, auto=chosen)

    @property
    def share_of_points(self) -> float:
        """The share of ``max_env_steps``, or of ``max_time``, that new points have; further seeds have
        the rest.
        """
        return 1.0 if self.race is None else 1.0 - self.race.share

    @property
    def has_lineages(self) -> bool:
        """Whether trials begin with policies of trials that have trained for unequal env_steps."""
        return self.start in LINEAGES

    @property
    def reevaluations(self) -> int:
        """How many points are trained at the end, the unchanged job included."""
        is_compared = self.reevaluate > 0 and self.reevaluation.reference
        return self.reevaluate + is_compared

    @property
    def middle(self) -> dict[str, Any]:
        """The point in the middle of the space."""
        return {dimension.key: dimension.at(0.5) for dimension in self.space}

    @property
    def corner(self) -> dict[str, Any]:
        """The point of the lowest values and first choices."""
        return {dimension.key: dimension.at(0.0) for dimension in self.space}


SAMPLERS = ("random", "sobol", "tpe", "gp", "cmaes", "nsga2", "map-elites", "cma-me")
ARCHIVE_SAMPLERS = ("map-elites", "cma-me")
"""They fill an archive, whose axes are measures."""
_OF_SEED_AND_NUMBER = ("random", "sobol")
WITHOUT_CHOICES = ("cmaes", *ARCHIVE_SAMPLERS)
"""They need numbers in every dimension."""
EXTRAS: Mapping[str, str] = {
    **{"tpe": "optuna", "gp": "optuna", "nsga2": "optuna", "cmaes": "cmaes"},
    **dict.fromkeys(ARCHIVE_SAMPLERS, "ribs"),
}
"""Samplers and the module that each needs, of the extra ``search``."""
INSTALL = install_extra("search")
_SHARE = (float, 0.0, 1.0)
_COUNT = (int, 1, 10**6)
SAMPLER_OPTIONS: Mapping[str, Mapping[str, tuple[type, float, float]]] = {
    "random": {},
    "sobol": {},
    "tpe": {"n_startup_trials": (int, 0, 10**6), "n_ei_candidates": _COUNT},
    "gp": {"n_startup_trials": (int, 1, 10**6)},
    "nsga2": {
        "population_size": (int, 2, 10**6),
        "mutation_prob": _SHARE,
        "crossover_prob": _SHARE,
    },
    "cmaes": {
        "sigma": (float, 1e-6, 10.0),
        "population_size": (int, 3, 10**6),
        "lr_adapt": (bool, 0, 1),
    },
    "map-elites": {
        "initial": _COUNT,
        "iso_sigma": (float, 1e-9, 10.0),
        "line_sigma": (float, 0.0, 10.0),
    },
    "cma-me": {"sigma": (float, 1e-6, 10.0), "population_size": (int, 3, 10**6)},
}
"""Options of each sampler: type, and lowest and highest value of a number. Lengths are those of the
unit cube."""


def learns(sampler: str) -> bool:
    """Whether it needs to know what it was asked before, and what it was told."""
    return sampler not in _OF_SEED_AND_NUMBER
