"""A table of bodies: what training each of many bodies gave, with several seeds.

A file holds what its job file has trained so far, in the order of the Sobol points. It is what
Ying et al. (2019) did for network architectures (NAS-Bench-101): train everything once, and compare
searches on the results ever after.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).resolve().parent / "bodies"
ROBOTS = ("quadruped", "runner")
MEASURES = ("eval_mean", "distance_m", "energy_j", "mass_kg", "cost_of_transport")
"""Of the policy at the end of its training: means over the episodes of its evaluation. A robot that
does not come forward has no cost of transport."""
RUNG_MEASURES = ("distance_m", "energy_j", "cost_of_transport")
"""Of the last episodes of training at a rung, as its return: what rungs can compare by."""
RETURN = "ep_rew_mean"
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Bodies × seeds × rungs. What a training did not give is NaN."""

    keys: tuple[str, ...]
    """Of the space, such as ``params.thigh``."""
    points: Floats
    """``(bodies, keys)``: the values of each body."""
    rungs: npt.NDArray[np.int64]
    """env_steps of each rung, rising; the last one is the end of the training."""
    returns: Floats
    """``(bodies, seeds, rungs)``: mean return of the last episodes of training at the rung."""
    measures: Floats
    """``(bodies, seeds, len(MEASURES))``."""
    rung_measures: Floats
    """``(bodies, seeds, rungs, len(RUNG_MEASURES))``; NaN for bodies that were trained before these
    were recorded."""

    @property
    def bodies(self) -> int:
        return len(self.points)

    @property
    def seeds(self) -> int:
        return int(self.returns.shape[1])

    @property
    def is_measured(self) -> npt.NDArray[np.bool_]:
        """``(bodies,)``: whether a body has measures at rungs."""
        return np.asarray(np.isfinite(self.rung_measures[..., 0]).any(axis=(1, 2)))

    def measure(self, name: str) -> Floats:
        """``(bodies, seeds)``: one of :data:`MEASURES`."""
        values: Floats = self.measures[:, :, MEASURES.index(name)]
        return values

    def rung_measure(self, name: str) -> Floats:
        """``(bodies, seeds, rungs)``: one of :data:`RUNG_MEASURES`, or :data:`RETURN`; NaN for bodies
        without measures at rungs, of returns, too, so that both are of the same bodies.
        """
        if name == RETURN:
            returns: Floats = np.where(self.is_measured[:, None, None], self.returns, np.nan)
            return returns
        values: Floats = self.rung_measures[:, :, :, RUNG_MEASURES.index(name)]
        return values

    def part(self, first: int, bodies: int) -> Table:
        """So many of its bodies, or as many as there are from the ``first`` on."""
        chosen = slice(first, first + bodies)
        return replace(
            self,
            points=self.points[chosen],
            returns=self.returns[chosen],
            measures=self.measures[chosen],
            rung_measures=self.rung_measures[chosen],
        )

    def with_part(self, first: int, part: Table) -> Table:
        """This table with ``part`` in the place of its bodies from the ``first`` on, or after all.

        :raises ValueError: the two are of other keys or rungs.
        """
        if self.keys != part.keys or not np.array_equal(self.rungs, part.rungs):
            raise ValueError("the parts of a table have the same keys and rungs")
        pieces = (self.part(0, first), part, self.part(first + part.bodies, self.bodies))
        return replace(
            self,
            points=np.concatenate([piece.points for piece in pieces]),
            returns=np.concatenate([piece.returns for piece in pieces]),
            measures=np.concatenate([piece.measures for piece in pieces]),
            rung_measures=np.concatenate([piece.rung_measures for piece in pieces]),
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


def job_file(robot: str) -> Mapping[str, Any]:
    """The content of the job file of a table."""
    return tomllib.loads((FOLDER / f"{robot}.toml").read_text(encoding="utf-8"))


def table_file(robot: str) -> Path:
    return FOLDER / f"{robot}.npz"
