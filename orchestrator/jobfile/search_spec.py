"""A search as the job file declares it, with every default filled in: ``[search]`` and ``[scheduler]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Direction: TypeAlias = Literal["maximize", "minimize"]
Aggregate: TypeAlias = Literal["median", "mean", "min"]
Inherit: TypeAlias = Literal["none", "best", "nearest"]
SchedulerKind: TypeAlias = Literal["none", "asha", "median"]
TrialOrder: TypeAlias = Literal["asynchronous", "fixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One key of a job that varies: between two numbers, or among choices."""

    key: str
    """Dotted key of a job (``"ppo.learning_rate"``), or ``"params.NAME"`` for a body that a function makes."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One axis of the archive of a quality-diversity sampler: a measure of ``eval.json``, cut into cells."""

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

    def rungs(self, total_timesteps: int) -> tuple[int, ...]:
        """env_steps of all rungs below the end of a training."""
        found, rung = [], self.min_env_steps
        while self.kind != "none" and rung < total_timesteps:
            found.append(rung)
            rung *= self.factor
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """``[search]``: which points are tried, and by what they are judged."""

    space: tuple[Dimension, ...]
    sampler: str
    """A name of :data:`SAMPLERS`, or ``"module:Class"``."""
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the sampler."""
    seed: int = 0
    objectives: tuple[str, ...]
    """Columns of ``summary.csv``, or measures of ``eval.json``."""
    directions: tuple[Direction, ...]
    """One for each objective."""
    aggregate: Aggregate = "median"
    """How the values of the seeds of a trial become its value."""
    measures: tuple[Measure, ...] = ()
    trials: int | None = None
    max_env_steps: int | None = None
    max_time_s: float | None = None
    """The search asks for no further point after any of the three that is not None is reached; one of them is set."""
    inherit: Inherit = "none"
    order: TrialOrder = "asynchronous"
    reevaluate: int = 0
    """So many of the best are trained again at the end, from nothing and with other seeds."""


SAMPLERS = ("random", "sobol", "tpe", "cmaes", "nsga2", "map-elites", "cma-me")
