"""What gymnasium's environments share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks.actions import Direct
from orchestrator.worker.tasks.base import Task, control_name
from orchestrator.worker.tasks.task_options import EpisodeOptions, Range

OBSERVED: Range = (-10.0, 10.0)
"""Limits of observed velocities and of constraint forces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumOptions(EpisodeOptions):
    """Gymnasium's keyword arguments that matter to training, with its names and defaults."""

    frame_skip: int = 5

    def __post_init__(self) -> None:
        EpisodeOptions.__post_init__(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ValueError(f"{field.name} = {list(value)}: expected the lower number first")


class GymnasiumTask(Task):
    """Starts from the model's default pose (keyframes are ignored); actions are controls.

    Derived fields of ``MjData`` are one physics step behind, as ``mj_step`` leaves them and
    gymnasium reads them.

    :raises ValueError: the robot does not have the structure that the formulas assume.
    """

    Options: ClassVar[type[GymnasiumOptions]] = GymnasiumOptions
    fields_lag = True
    asset: ClassVar[str]
    """File name of gymnasium's robot."""
    normal_velocities: ClassVar[bool] = False
    """Whether the noise on starting velocities is normal instead of uniform."""

    # Not that of Task: keyframes, mapped actions and noise by kinds of joints are not gymnasium's.
    def __init__(self, model: mujoco.MjModel, options: GymnasiumOptions) -> None:
        self.model = model
        self.options = options
        self.key = -1
        self.pose = np.array(model.qpos0)
        low, high = model.actuator_ctrlrange.astype(np.float32).T
        self.actions = Direct(low, high)
        self.frame_skip = options.frame_skip
        self.max_episode_steps = options.max_episode_steps
        unlimited = [
            control_name(model, control) for control in np.flatnonzero(low == high).tolist()
        ]
        if unlimited:
            raise misfit(
                "a ctrlrange for every actuator, since actions are controls",
                f"none for {', '.join(unlimited)}",
            )

    def initial_state(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        model = self.model
        scale = self.options.reset_noise_scale
        qpos = self.pose + rng.uniform(-scale, scale, model.nq)
        if self.normal_velocities:
            return qpos, scale * rng.standard_normal(model.nv)
        return qpos, rng.uniform(-scale, scale, model.nv)


def misfit(needed: str, existing: str) -> ValueError:
    return ValueError(f"needs {needed}; this robot has {existing}")


def within(values: Floats, limits: Range) -> Floats:
    """``values`` clipped, in a new array; for small arrays several times faster than
    ``np.clip``.
    """
    low, high = limits
    clipped = np.maximum(values, low)
    return np.minimum(clipped, high, out=clipped)


def sum_of_squares(values: NDArray[Any]) -> NDArray[Any]:
    """``(n, …)`` → ``(n,)``, with the precision and order of ``np.sum(np.square(row))``: float32
    stays float32.
    """
    sums: NDArray[Any] = np.add.reduce(np.square(values.reshape(len(values), -1)), axis=1)
    return sums
