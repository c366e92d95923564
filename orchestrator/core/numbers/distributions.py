"""Distributions that a job file writes as text, such as ``"uniform(0.4, 1.2)"``, and numbers that
change with training.

A number of a distribution may itself change: ``"uniform(linear(1, 0.4), linear(1, 1.6, 0.5))"``
begins narrow, and has its whole width after half of the training; ``"uniform(0, stages(0, 0.5,
1))"`` widens with each stage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.core.numbers.changing_numbers import (
    ChangingNumber,
    Linear,
    TrainingMoment,
    parse_number,
    turning_moments,
)
from orchestrator.core.text import finite_number

FORMS = {
    "uniform": "uniform(low, high)",
    "loguniform": "loguniform(low, high)",
    "normal": "normal(mean, standard deviation)",
    "choice": "choice(a, b, …)",
    "scale": "scale(low, high)",
}
"""Name of a distribution → how it is written. ``scale`` draws a factor, by which the robot's value
is multiplied."""
EACH = "each "
"""Begins a distribution that is drawn from for each element of a pattern by itself, and not once for
all of them: ``"each scale(0.8, 1.2)"``."""
NORMAL_WIDTH = 3.0
"""Standard deviations at which values of ``normal`` end: what lies beyond is moved there. So every
distribution has bounds."""
DISTURBANCES = {
    "observation.noise": "added to every value of every observation",
    "observation.delay": "control steps by which observations are late",
    "action.delay": "control steps by which actions are late",
    "push.speed": "metres a second that a push adds to the robot's base",
    "push.period": "seconds between pushes",
    "start.joints": "added to the starting position of each joint, in radians or metres",
    "start.height": "metres by which the robot's base starts higher",
    "start.turn": "radians by which the robot's base starts turned about the vertical",
    "start.speed": "metres a second of the robot's base at the start, in a random horizontal direction",
}
"""Keys of ``randomize`` that are no property of the robot → what is drawn."""
PRIVILEGED = ("action.delay", "observation.delay", "push.period")
"""Those that an episode draws once, so that ``asymmetric`` shows them to the critic as it shows the
robot's."""
NOISE = "observation.noise"
_ANY_SIGN = (NOISE, "start.joints", "start.turn")
MOST_DELAY = 100
"""Largest delay of observations and actions in control steps."""
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*\Z", re.DOTALL)
_SEPARATOR = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a value is drawn from at the start of an episode."""

    kind: str
    """A key of :data:`FORMS`."""
    changing: tuple[ChangingNumber, ...]
    """Its numbers, each of which may change over the training."""
    is_each: bool = False
    """Whether each element of a pattern has a value of its own."""

    @property
    def multiplies(self) -> bool:
        """Whether it gives factors of the robot's own value."""
        return self.kind == "scale"

    def numbers(self, moment: TrainingMoment) -> tuple[float, ...]:
        return tuple(number.at(moment) for number in self.changing)

    @property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest value that it gives at any time of the training."""
        ends: list[float] = []
        for moment in turning_moments(self.changing):
            numbers = self.numbers(moment)
            if self.kind == "normal":
                mean, deviation = numbers
                numbers = mean - NORMAL_WIDTH * deviation, mean + NORMAL_WIDTH * deviation
            ends += numbers
        return min(ends), max(ends)


def parse_distribution(text: str) -> Distribution:
    """The distribution that ``text`` describes.

    :raises ValueError: it is none, or its numbers do not fit.
    """
    is_each = text.lstrip().startswith(EACH)
    match = _CALL.match(text.lstrip().removeprefix(EACH))
    kind = match[1] if match else ""
    if match is None or kind not in FORMS:
        forms = ", ".join(FORMS.values())
        raise ValueError(f"{text!r} is no distribution; expected one of {forms}")
    numbers = tuple(_number(part) for part in _SEPARATOR.split(match[2]))
    if len(numbers) < 2 or (len(numbers) > 2 and kind != "choice"):
        raise ValueError(f"{text!r} has {len(numbers)} numbers; expected {FORMS[kind]}")
    distribution = Distribution(kind, numbers, is_each)
    for moment in turning_moments(numbers):
        first, second, *_ = distribution.numbers(moment)
        if kind == "normal" and second < 0:
            raise ValueError(f"{text!r}: the standard deviation is below 0")
        if kind in ("uniform", "loguniform", "scale") and first > second:
            raise ValueError(f"{text!r}: low is {first:g} and high is {second:g}")
        if kind == "loguniform" and first <= 0:
            raise ValueError(f"{text!r}: low is {first:g}; a logarithm needs numbers above 0")
    return distribution


def constant(number: float) -> ChangingNumber:
    """A number that does not change over the training."""
    return Linear(number, number)


def disturbance(key: str) -> str | None:
    """Which of :data:`DISTURBANCES` a key of ``randomize`` is: noise may name observations,
    ``observation.noise.*``.
    """
    if key.startswith(f"{NOISE}."):
        return NOISE
    return key if key in DISTURBANCES else None


def check_disturbance(key: str, distribution: Distribution) -> None:
    """Check that a disturbance may be drawn from this distribution.

    :param key: one that :func:`disturbance` knows.
    :raises ValueError: it may not.
    """
    key = disturbance(key) or key
    fitting = ["normal", "uniform"]
    if key != NOISE:
        fitting = [kind for kind in FORMS if kind != "scale"]
    if distribution.kind not in fitting:
        expected = " or ".join(FORMS[kind] for kind in fitting)
        raise ValueError(f"{distribution.kind} does not fit here; expected {expected}")
    if distribution.is_each:
        raise ValueError(f'"{EACH.strip()}" is for elements of the robot; leave it out')
    low, high = distribution.extremes
    if key not in _ANY_SIGN and low < 0:
        raise ValueError(f"may draw {low:g}; expected at least 0")
    if key.endswith("period") and low == 0:
        raise ValueError("may draw 0; expected more than 0")
    if key.endswith("delay") and high > MOST_DELAY:
        raise ValueError(f"may draw {high:g}; expected at most {MOST_DELAY} control steps")


def _number(text: str) -> ChangingNumber:
    return parse_number(text.strip()) if "(" in text else constant(finite_number(text))
