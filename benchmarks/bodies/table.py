"""A table of bodies: what training each of many bodies gave, with several seeds.

Bodies are Sobol points of a space of parameters, in order, so that a table grows by trainings that
follow those it has. As in NAS-Bench-101 (Ying et al., 2019), everything is trained once, and
searches are compared on the results.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import qmc

FOLDER = Path(__file__).resolve().parent
MEASURES = ("eval_mean", "distance_m", "energy_j", "mass_kg", "cost_of_transport")
"""Of the policy at the end of its training: means over the episodes of its evaluation. A robot that
does not come forward has no cost of transport."""
RUNG_MEASURES = ("distance_m", "energy_j", "cost_of_transport")
"""Of the last training episodes at a rung."""
Floats = npt.NDArray[np.float64]


class Range(NamedTuple):
    low: float
    high: float
    log: bool = False

    def value(self, unit: float) -> float:
        """Return the value at ``unit``, from 0 to 1."""
        if self.log:
            return float(self.low * (self.high / self.low) ** unit)
        return self.low + (self.high - self.low) * unit

    def unit(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            return float(np.log(value / self.low) / np.log(self.high / self.low))
        return (value - self.low) / (self.high - self.low)


SPACES: Mapping[str, Mapping[str, Range]] = {
    "runner": {
        "thigh": Range(0.5, 1.6),
        "shin": Range(0.5, 1.6),
        "gear": Range(0.4, 2.0, log=True),
    },
    "quadruped": {
        "hips": Range(0.6, 1.3),
        "thigh": Range(0.6, 1.5),
        "shin": Range(0.6, 1.5),
        "radius": Range(0.7, 1.4),
        "density": Range(0.5, 2.5),
        "force": Range(0.5, 2.0, log=True),
    },
}
"""Robot → the parameters of its function in ``robots.py``."""


def points(robot: str, first: int, bodies: int) -> list[dict[str, float]]:
    """Return the parameters of ``bodies`` bodies from number ``first`` on."""
    space = SPACES[robot]
    sequence = qmc.Sobol(len(space), scramble=True, rng=0)
    if first:
        sequence.fast_forward(first)
    found = []
    for _ in range(bodies):
        units = sequence.random(1)[0]
        pairs = zip(space.items(), units, strict=True)
        found.append({key: limits.value(float(unit)) for (key, limits), unit in pairs})
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Bodies × seeds × rungs. What a training did not give is NaN."""

    keys: tuple[str, ...]
    """``params.thigh`` and the like."""
    points: npt.NDArray[np.float32]
    """``(bodies, keys)``"""
    rungs: npt.NDArray[np.int64]
    """env_steps of each rung, rising; the last one is the end of the training."""
    returns: npt.NDArray[np.float32]
    """``(bodies, seeds, rungs)``: mean return of the last training episodes at the rung."""
    measures: npt.NDArray[np.float32]
    """``(bodies, seeds, len(MEASURES))``"""
    rung_measures: npt.NDArray[np.float32]
    """``(bodies, seeds, rungs, len(RUNG_MEASURES))``"""

    @property
    def bodies(self) -> int:
        return len(self.points)

    def measure(self, name: str) -> Floats:
        """Return one of :data:`MEASURES`, as ``(bodies, seeds)``."""
        return self.measures[:, :, MEASURES.index(name)].astype(np.float64)

    def extended(self, further: Table) -> Table:
        """Return a table with the bodies of ``further`` after its own.

        :raises ValueError: the two have other keys or rungs.
        """
        if self.keys != further.keys or not np.array_equal(self.rungs, further.rungs):
            raise ValueError("tables with other keys or rungs cannot be joined")
        return Table(
            keys=self.keys,
            points=np.concatenate([self.points, further.points]),
            rungs=self.rungs,
            returns=np.concatenate([self.returns, further.returns]),
            measures=np.concatenate([self.measures, further.measures]),
            rung_measures=np.concatenate([self.rung_measures, further.rung_measures]),
        )

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            keys=np.array(self.keys),
            points=self.points,
            rungs=self.rungs,
            returns=self.returns,
            measures=self.measures,
            rung_measures=self.rung_measures,
        )


def load(path: Path) -> Table:
    """:raises OSError: there is no such file."""
    with np.load(path) as content:
        return Table(
            keys=tuple(map(str, content["keys"])),
            points=content["points"],
            rungs=content["rungs"],
            returns=content["returns"],
            measures=content["measures"],
            rung_measures=content["rung_measures"],
        )


def job_file(robot: str) -> dict[str, Any]:
    """Return the content of the job file of a table."""
    return tomllib.loads((FOLDER / f"{robot}.toml").read_text(encoding="utf-8"))


def table_file(robot: str) -> Path:
    return FOLDER / f"{robot}.npz"
