"""Robots in a plane: ``HalfCheetah-v5``, ``Swimmer-v5``, ``Hopper-v5``, ``Walker2d-v5``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import States
from orchestrator.worker.tasks.presets.base import (
    Legged,
    LeggedOptions,
    Locomotion,
    LocomotionOptions,
    strictly_within,
    within,
)
from orchestrator.worker.tasks.root import HINGE, SLIDE
from orchestrator.worker.tasks.task_options import Range

OBSERVED_VELOCITIES: Range = (-10.0, 10.0)


class HalfCheetah(Locomotion):
    asset = "half_cheetah.xml"
    joints = (SLIDE,)
    normal_velocities = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SwimmerOptions(LocomotionOptions):
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-4


class Swimmer(Locomotion):
    Options = SwimmerOptions
    asset = "swimmer.xml"
    joints = (SLIDE, SLIDE)
    places = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker2dOptions(LeggedOptions):
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-3
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)
    reset_noise_scale: float = 5e-3


class Walker2d(Legged):
    """Healthy: height and pitch, the second and third position, in their ranges. Observed velocities are clipped."""

    Options: ClassVar[type[Walker2dOptions]] = Walker2dOptions
    asset = "walker2d_v5.xml"
    joints = (SLIDE, SLIDE, HINGE)

    def observe(self, states: States) -> Floats:
        return np.concatenate((states.qpos[:, self._first :], within(states.qvel, OBSERVED_VELOCITIES)), axis=1)

    def healthy(self, states: States) -> NDArray[np.bool_]:
        upright = strictly_within(states.qpos[:, 2], self.options.healthy_angle_range)
        return strictly_within(states.qpos[:, 1], self.options.healthy_z_range) & upright


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperOptions(Walker2dOptions):
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)
    healthy_state_range: Range = (-100.0, 100.0)


class Hopper(Walker2d):
    """Healthy: as Walker2d, and all positions but x and height and all velocities are in ``healthy_state_range``."""

    Options = HopperOptions
    asset = "hopper.xml"

    def healthy(self, states: States) -> NDArray[np.bool_]:
        limits = self.options.healthy_state_range
        positions, velocities = strictly_within(states.qpos[:, 2:], limits), strictly_within(states.qvel, limits)
        bounded = np.logical_and(positions.all(axis=1), velocities.all(axis=1))
        return np.logical_and(super().healthy(states), bounded)
