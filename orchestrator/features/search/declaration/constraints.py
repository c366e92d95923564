"""``[search.constraints]``: bounds over measures of a body, checked before it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.measure_expressions import ExpressionError, NoValueError, parse_expression
from orchestrator.core.task_names import MEASURES
from orchestrator.keys.problems import Problems, place, quoted, suggestion

MODEL_MEASURES: Mapping[str, str] = {
    "mass_kg": "mass of all bodies that move with the robot, as the measure of episodes",
    "length_m": "size along x in the starting pose, of the boxes around its geoms",
    "width_m": "the same along y",
    "height_m": "the same along z",
    "torque_max": "the highest torque of an actuator, behind its gear; N at slides and tendons",
    "torque_sum": "the sum of the highest torques of all actuators",
    "nu": "number of controls",
    "nv": "number of degrees of freedom",
    "nbody": "number of bodies, the world included",
    "ngeom": "number of geoms",
}
"""Measures of a compiled model, which are known before a training. They are computed in
``worker/model_measures.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Bounds of a measure of the compiled model, or of an expression of them."""

    measure: str
    low: float | None
    high: float | None
    """Both are included; None: there is no such bound."""

    @property
    def expected(self) -> str:
        """``at most 12``, for people."""
        if self.low is None:
            return f"at most {self.high:g}"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"from {self.low:g} to {self.high:g}"

    def excess(self, value: float) -> float:
        """By how much ``value`` is beyond the bounds; 0 where it is within them."""
        below = 0.0 if self.low is None else self.low - value
        above = 0.0 if self.high is None else value - self.high
        return max(0.0, below, above)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCheck:
    """Whether the body of a point satisfies the constraints."""

    excess: Sequence[float] | None
    """By how much it is beyond each of them; None where that is not known."""
    why: str = ""
    """What is wrong with it; empty where all are satisfied."""

    @property
    def is_satisfied(self) -> bool:
        return not self.why


def check_measures(
    constraints: Sequence[Constraint], measures: Mapping[str, float | None]
) -> ConstraintCheck:
    """:param measures: of the compiled model; None for one that has no value."""
    excess: list[float] = []
    whys: list[str] = []
    for constraint in constraints:
        try:
            value = parse_expression(constraint.measure).value(measures)
        except NoValueError as error:
            return ConstraintCheck(excess=None, why=str(error))
        excess.append(constraint.excess(value))
        if excess[-1]:
            whys.append(f"{constraint.measure} is {value:.4g}, expected {constraint.expected}")
    return ConstraintCheck(excess=excess, why="; ".join(whys))


def read_constraints(
    table: Mapping[str, Mapping[str, Any]], problems: Problems
) -> tuple[Constraint, ...]:
    """Those that are declared; what is no bound of a measure of a model is a problem."""
    found: list[Constraint] = []
    for text, bounds in table.items():
        where = f"search.constraints.{place(text)}"
        low, high = (bounds.get(name) for name in ("low", "high"))
        if fault := _fault(text):
            problems.add(where, fault)
        elif low is None and high is None:
            problems.add(where, "has no bound; add low or high, for example { high = 12 }")
        elif low is not None and high is not None and low > high:
            problems.add(where, f"low = {low} is above high = {high}")
        else:
            found.append(Constraint(measure=text, low=low, high=high))
    return tuple(found)


def _fault(text: str) -> str:
    """Why it is no expression of measures of a model; empty where it is one."""
    try:
        names = parse_expression(text).names
    except ExpressionError as error:
        return f"{quoted(text)} {error}"
    for name in names:
        if name not in MODEL_MEASURES:
            return _unknown_name(name)
    return ""


def _unknown_name(name: str) -> str:
    near = suggestion(name, MODEL_MEASURES)
    known = f"did you mean {quoted(near)}?" if near else f"there are {', '.join(MODEL_MEASURES)}"
    if any(name in of_task for of_task in MEASURES.values()):
        what = "is known only after a training, and constraints are checked before it"
    else:
        what = "is no measure of a compiled model"
    return f"{quoted(name)} {what}; {known}"
