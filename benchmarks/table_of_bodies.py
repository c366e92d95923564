"""A table of bodies: what training each of many bodies gave, with several seeds.

A file holds what its job file has trained so far, in the order of the Sobol points. It is what
Ying et al. (2019) did for network architectures (NAS-Bench-101): train everything once, and compare
searches on the results ever after.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).resolve().parent / "bodies"
ROBOTS = ("quadruped", "runner")
MEASURES = ("eval_mean", "distance_m", "energy_j", "mass_kg", "cost_of_transport")
"""Of the policy at the end of its training: means over the episodes of its evaluation. A robot that
does not come forward has no cost of transport."""
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

    @property
    def bodies(self) -> int:
        return len(self.points)

    @property
    def seeds(self) -> int:
        return int(self.returns.shape[1])

    def measure(self, name: str) -> Floats:
        """``(bodies, seeds)``: one of :data:`MEASURES`."""
        values: Floats = self.measures[:, :, MEASURES.index(name)]
        return values

    def extended(self, other: Table) -> Table:
        """This table and, after it, the bodies of ``other``.

        :raises ValueError: the two are of other keys, seeds or rungs.
        """
        if self.keys != other.keys or not np.array_equal(self.rungs, other.rungs):
            raise ValueError("the parts of a table have the same keys and rungs")
        return Table(
            keys=self.keys,
            points=np.concatenate([self.points, other.points]),
            rungs=self.rungs,
            returns=np.concatenate([self.returns, other.returns]),
            measures=np.concatenate([self.measures, other.measures]),
        )

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            keys=np.array(self.keys),
            points=self.points,
            rungs=self.rungs,
            returns=self.returns,
            measures=self.measures,
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
        )


def job_file(robot: str) -> Mapping[str, Any]:
    """The content of the job file of a table."""
    return tomllib.loads((FOLDER / f"{robot}.toml").read_text(encoding="utf-8"))


def table_file(robot: str) -> Path:
    return FOLDER / f"{robot}.npz"
