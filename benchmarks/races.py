"""Races of two bodies, simulated: how often they are decided wrongly, and how many seeds they take.
A part of ``python -m benchmarks.search``.

    python -m benchmarks.races

prints the bounds that ``orchestrator.analysis.sequential.py`` has, made anew by simulation;
that takes about a minute.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks import table_of_bodies
from benchmarks.harness import Line, at_least, at_most
from orchestrator.analysis import sequential
from orchestrator.analysis.sequential import ERRORS, LEAST_SEEDS, SHAPE, Outcome, Rules

RACES = 4_000
"""For each line."""
NUMBERS = 4_000_000
"""Values that each row of bounds is made from."""
WIDENED = 1.02
"""So that chance makes no bound too narrow."""
LEAST_DIFFERENCE = 1.0
"""Standard deviations over seeds, where a smallest difference is declared."""
Floats = npt.NDArray[np.float64]
Draw = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """One simulated race."""

    outcome: Outcome
    seeds: int
    """Of each body."""
    holds: bool
    """Whether the interval at its end holds the true difference."""


def race(
    draw_a: Draw, draw_b: Draw, true_difference: float, rules: Rules, chance: random.Random
) -> Raced:
    """Add a seed of both until it is decided, or the budget is spent."""
    a = [draw_a(chance) for _ in range(LEAST_SEEDS)]
    b = [draw_b(chance) for _ in range(LEAST_SEEDS)]
    while _decided(a, b, rules) == "open":
        a.append(draw_a(chance))
        b.append(draw_b(chance))
    last = sequential.look(a, b, rules)
    assert last.reach is not None
    return Raced(
        outcome=_decided(a, b, rules),
        seeds=len(a),
        holds=abs(last.difference - true_difference) <= last.reach,
    )


def _decided(a: Sequence[float], b: Sequence[float], rules: Rules) -> Outcome:
    return sequential.decide(a, b, rules, is_spent=len(a) >= rules.most_seeds)


def raced(
    noise: Draw, difference: float, rules: Rules, *, times_as_wide: float = 1.0
) -> list[Raced]:
    """:data:`RACES` races of A against B = A + ``difference``.

    :param noise: a draw with mean 0.
    :param times_as_wide: the noise of B against that of A.
    """
    chance = random.Random(0)

    def draw_b(chance: random.Random) -> float:
        return difference + times_as_wide * noise(chance)

    return [race(noise, draw_b, difference, rules, chance) for _ in range(RACES)]


def share(races: Sequence[Raced], *outcomes: Outcome) -> float:
    return sum(one.outcome in outcomes for one in races) / len(races)


def mean_seeds(races: Sequence[Raced]) -> float:
    return sum(one.seeds for one in races) / len(races)


def normal(chance: random.Random) -> float:
    return chance.gauss(0.0, 1.0)


def skewed(chance: random.Random) -> float:
    return chance.lognormvariate(0.0, 1.0) - math.exp(0.5)


def two_peaks(chance: random.Random) -> float:
    """As of a body that learns to walk in three of ten seeds, and otherwise falls."""
    return chance.gauss(7.0 if chance.random() < 0.3 else -3.0, 1.0)


def noise_of_table(robot: str, measure: str = "distance_m") -> Draw | None:
    """Draws what a seed of a body adds to the mean of that body, in a table of bodies, in standard
    deviations; None where there is no table.
    """
    if not table_of_bodies.table_file(robot).exists():
        return None
    values = table_of_bodies.load(table_of_bodies.table_file(robot)).measure(measure).astype(float)
    of_seeds = values[~np.isnan(values).any(axis=1)]
    residuals = (of_seeds - of_seeds.mean(axis=1, keepdims=True)).ravel()
    scaled = (residuals / residuals.std()).tolist()
    return lambda chance: chance.choice(scaled)


def fixed_seeds(power: float) -> float:
    """Seeds of each body with which a t-test of 5 %, once at the end, finds a difference of one
    standard deviation with this power; a fraction between two numbers of seeds.
    """
    from scipy import stats

    before = 0.0
    seeds = 1
    found = 0.0
    while found < power:
        before = found
        seeds += 1
        freedom = 2 * seeds - 2
        bound = stats.t.ppf(1 - sequential.ERROR / 2, freedom)
        found = float(stats.nct.sf(bound, freedom, math.sqrt(seeds / 2)))
    return seeds - (found - power) / (found - before)


def races(_: int) -> list[Line]:
    """Two bodies, raced until it is decided which is better."""
    rules = Rules()
    of_tables: dict[str, Draw] = {}
    for robot in table_of_bodies.ROBOTS:
        noise = noise_of_table(robot)
        if noise is not None:
            of_tables[f"noise of the table of {robot}"] = noise
    noises: dict[str, Draw] = {
        "normal noise": normal,
        "skewed noise": skewed,
        "noise with two peaks": two_peaks,
        **of_tables,
    }
    lines = [_equal(what, raced(noise, 0.0, rules)) for what, noise in noises.items()]
    wide = "normal noise, of one body four times as wide"
    lines.append(_equal(wide, raced(normal, 0.0, rules, times_as_wide=4.0)))
    apart = raced(normal, 1.0, rules)
    lines += _apart("normal noise", apart)
    lines.append(_against_fixed_test(apart))
    for what, noise in of_tables.items():
        lines += _apart(what, raced(noise, 1.0, rules))
    return [*lines, *_alike()]


def _equal(what: str, equal: Sequence[Raced]) -> Line:
    wrong = share(equal, "higher", "lower")
    return at_most(f"race of equal bodies, {what}: decided", [wrong], sequential.ERROR)


def _apart(noise: str, apart: Sequence[Raced]) -> list[Line]:
    what = f"race of bodies one standard deviation apart, {noise}"
    return [
        at_least(f"{what}: decided rightly", [share(apart, "higher")]),
        at_most(f"{what}: decided wrongly", [share(apart, "lower")], sequential.ERROR),
        at_most(f"{what}: mean seeds of each", [mean_seeds(apart)]),
        at_least(
            f"{what}: intervals at the end that hold the difference",
            [sum(one.holds for one in apart) / len(apart)],
            1 - sequential.ERROR,
        ),
    ]


def _against_fixed_test(apart: Sequence[Raced]) -> Line:
    """Of races with normal noise, for which the power of a t-test is known."""
    ratio = mean_seeds(apart) / fixed_seeds(share(apart, "higher"))
    what = "race of bodies one standard deviation apart, normal noise"
    return at_most(f"{what}: mean seeds / seeds of a fixed test of the same power", [ratio], 0.8)


def _alike() -> list[Line]:
    """A smallest difference is declared."""
    rules = Rules(smallest_difference=LEAST_DIFFERENCE)
    alike = raced(normal, 0.0, rules)
    at_limit = raced(normal, LEAST_DIFFERENCE, rules)
    what = "smallest difference of one standard deviation"
    return [
        at_least(
            f"{what}, equal bodies: found to have none above it", [share(alike, "no difference")]
        ),
        at_most(f"{what}, equal bodies: mean seeds of each", [mean_seeds(alike)]),
        at_most(
            f"{what}, bodies just so far apart: found to have none above it",
            [share(at_limit, "no difference")],
            sequential.ERROR,
        ),
    ]


# -- bounds


def bounds(most_seeds: int, chance: np.random.Generator, races: int) -> Floats:
    """For each of :data:`ERRORS` what the largest z of a race of equal bodies exceeds in so many
    cases, a little widened; z of a look counts as ``sequential`` weights it.

    One of the bodies gives the same value with every seed. Welch's test has the error that it
    states there, and a smaller one the more equal the spreads of both are.
    """
    from scipy import stats

    largest = np.zeros(races)
    values = chance.standard_normal((races, most_seeds))
    sums = values.cumsum(axis=1)
    squares = (values**2).cumsum(axis=1)
    for seeds in range(LEAST_SEEDS, most_seeds + 1):
        mean = sums[:, seeds - 1] / seeds
        variance = (squares[:, seeds - 1] - seeds * mean**2) / (seeds - 1)
        beyond = stats.t.sf(np.abs(mean) / np.sqrt(variance / seeds), seeds - 1)
        weight = (seeds / most_seeds) ** (0.5 - SHAPE)
        np.maximum(largest, stats.norm.isf(beyond) * weight, out=largest)
    found: Floats = WIDENED * np.quantile(largest, 1 - np.array(ERRORS))
    return found


def main() -> None:
    chance = np.random.default_rng(0)
    for most_seeds in sequential.BOUNDS:
        found = bounds(most_seeds, chance, NUMBERS // most_seeds)
        print(f"{most_seeds}: ({', '.join(f'{bound:.3f}' for bound in found)}),", flush=True)


if __name__ == "__main__":
    main()
