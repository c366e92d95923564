"""Robots that move along x: HalfCheetah, Swimmer, Walker2d, Hopper, Ant and Humanoid, all
``-v5``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.joints import FREE, HINGE, SLIDE, joint_name, joint_type, type_name
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import input_names
from orchestrator.worker.tasks.base import Measure, RewardAndTermination, States
from orchestrator.worker.tasks.gymnasium_tasks.base import (
    OBSERVED,
    GymnasiumOptions,
    GymnasiumTask,
    misfit,
    sum_of_squares,
    within,
)
from orchestrator.worker.tasks.observation_limits import limits
from orchestrator.worker.tasks.task_options import Range

Z = 2
"""Address in ``qpos`` of the height, where the robot's first joint is a free joint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocomotionOptions(GymnasiumOptions):
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True


class Locomotion(GymnasiumTask):
    """``reward = forward_reward_weight · Δx / Δt − costs``; episodes end at the step limit only.

    Observation: positions without the first :attr:`horizontal_entries` (unless an option includes
    them), then velocities.
    """

    Options: ClassVar[type[LocomotionOptions]] = LocomotionOptions
    measures = (Measure(name="distance_m", over_episode="sum"),)
    joints: ClassVar[tuple[mujoco.mjtJoint, ...]]
    """Types of the robot's first joints."""
    horizontal_entries: ClassVar[int] = 1
    """Number of leading entries of ``qpos`` that are the horizontal position."""

    def __init__(self, model: mujoco.MjModel, options: LocomotionOptions) -> None:
        super().__init__(model, options)
        self._never = np.zeros(0, bool)
        """``(n_envs,)`` False: no episode terminates. Made once for each number of environments."""
        self._per_metre = options.forward_reward_weight / self.step_s
        self._first = (
            self.horizontal_entries if options.exclude_current_positions_from_observation else 0
        )
        joints = range(min(len(self.joints), model.njnt))
        if tuple(joint_type(model, joint) for joint in joints) != self.joints:
            existing = [
                f"{type_name(joint_type(model, joint))} {joint_name(model, joint)}"
                for joint in joints
            ]
            needed = ", ".join(map(type_name, self.joints))
            raise misfit(
                f"a robot whose joints begin with {needed}", ", ".join(existing) or "no joint"
            )

    def observe(self, states: States) -> Floats:
        return np.concatenate((states.qpos[:, self._first :], states.qvel), axis=1)

    def observation_names(self) -> list[str]:
        return [
            *input_names.positions(self.model)[self._first :],
            *input_names.velocities(self.model),
        ]

    def reward_and_terminated(
        self, before: States, action: NDArray[Any], after: States
    ) -> RewardAndTermination:
        rewards = self.forward_reward(before, after)
        rewards -= self.costs(action, after)
        if len(self._never) != len(rewards):
            self._never = np.zeros(len(rewards), bool)
            self._never.flags.writeable = False
        return rewards, self._never

    def measure(self, before: States, action: NDArray[Any], after: States) -> Floats:
        return self.distance_travelled(before, after)[:, None]

    def distance_travelled(self, before: States, after: States) -> Floats:
        return self.x(after) - self.x(before)

    def x(self, states: States) -> Floats:
        """``(n_envs,)`` position along x in metres that the reward uses."""
        return states.qpos[:, 0]

    def forward_reward(self, before: States, after: States) -> Floats:
        moved: Floats = self.x(after) - self.x(before)
        moved *= self._per_metre
        return moved

    def costs(self, action: NDArray[Any], after: States) -> NDArray[Any]:
        """``(n_envs,)`` costs of one control step."""
        costs = sum_of_squares(action)
        costs *= self.options.ctrl_cost_weight
        return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class LeggedOptions(LocomotionOptions):
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: Range = (0.2, 1.0)


class Legged(Locomotion):
    """``reward = forward_reward_weight · Δx / Δt + healthy_reward · healthy − costs``; ends when
    unhealthy.
    """

    Options: ClassVar[type[LeggedOptions]] = LeggedOptions

    def reward_and_terminated(
        self, before: States, action: NDArray[Any], after: States
    ) -> RewardAndTermination:
        options = self.options
        healthy = self.healthy(after)
        rewards = self.forward_reward(before, after)
        rewards += options.healthy_reward * healthy
        rewards -= self.costs(action, after)
        if options.terminate_when_unhealthy:
            return rewards, ~healthy
        return rewards, np.zeros(len(rewards), bool)

    def healthy(self, states: States) -> NDArray[np.bool_]:
        """``(n_envs,)`` whether the robot is healthy: here, its height is strictly within
        ``healthy_z_range``.
        """
        return strictly_within(states.qpos[:, Z], self.options.healthy_z_range)


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
    horizontal_entries = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Walker2dOptions(LeggedOptions):
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-3
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)
    reset_noise_scale: float = 5e-3


class Walker2d(Legged):
    """Healthy: height and pitch, the second and third position, in their ranges. Observed
    velocities are clipped.
    """

    Options: ClassVar[type[Walker2dOptions]] = Walker2dOptions
    asset = "walker2d_v5.xml"
    joints = (SLIDE, SLIDE, HINGE)

    def observe(self, states: States) -> Floats:
        return np.concatenate(
            (states.qpos[:, self._first :], within(states.qvel, OBSERVED)), axis=1
        )

    def observation_limits(self) -> Floats:
        first = self.model.nq - self._first
        return limits(first + self.model.nv, slice(first, None), OBSERVED)

    def healthy(self, states: States) -> NDArray[np.bool_]:
        upright = strictly_within(states.qpos[:, 2], self.options.healthy_angle_range)
        return strictly_within(states.qpos[:, 1], self.options.healthy_z_range) & upright


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperOptions(Walker2dOptions):
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)
    healthy_state_range: Range = (-100.0, 100.0)


class Hopper(Walker2d):
    """Healthy: as Walker2d, and all positions but x and height and all velocities are in
    ``healthy_state_range``.
    """

    Options = HopperOptions
    asset = "hopper.xml"

    def healthy(self, states: States) -> NDArray[np.bool_]:
        limits = self.options.healthy_state_range
        positions = strictly_within(states.qpos[:, 2:], limits)
        velocities = strictly_within(states.qvel, limits)
        bounded = np.logical_and(positions.all(axis=1), velocities.all(axis=1))
        return np.logical_and(super().healthy(states), bounded)


@dataclass(frozen=True, slots=True, kw_only=True)
class AntOptions(LeggedOptions):
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    main_body: int | str = 1
    """Number or name of the body whose motion along x is rewarded."""
    contact_force_range: Range = (-1.0, 1.0)
    include_cfrc_ext_in_observation: bool = True


class Ant(Legged):
    """Costs: controls, and contact forces clipped to ``contact_force_range``.

    Healthy: the height is in its range, bounds included.
    Observation: positions, velocities, clipped contact forces on every body but the world.
    """

    Options = AntOptions
    asset = "ant.xml"
    joints = (FREE,)
    horizontal_entries = 2
    normal_velocities = True
    fields = ("xpos", "cfrc_ext")

    def __init__(self, model: mujoco.MjModel, options: AntOptions) -> None:
        super().__init__(model, options)
        self._main_body = _find_body(model, options.main_body)

    def observe(self, states: States) -> Floats:
        parts = [states.qpos[:, self._first :], states.qvel]
        if self.options.include_cfrc_ext_in_observation:
            parts.append(_rows(self._contact_forces(states)[:, 1:]))
        return np.concatenate(parts, axis=1)

    def observation_names(self) -> list[str]:
        names = super().observation_names()
        if self.options.include_cfrc_ext_in_observation:
            names.extend(input_names.of_bodies(self.model, "cfrc_ext", 6))
        return names

    def observation_limits(self) -> Floats:
        first = self.model.nq - self._first + self.model.nv
        contacts = slice(first, None)
        return limits(len(self.observation_names()), contacts, self.options.contact_force_range)

    def x(self, states: States) -> Floats:
        x: Floats = states.fields["xpos"][:, self._main_body, 0]
        return x

    def costs(self, action: NDArray[Any], after: States) -> NDArray[Any]:
        contacts = sum_of_squares(self._contact_forces(after))
        contacts *= self.options.contact_cost_weight
        contacts += super().costs(action, after)
        return contacts

    def healthy(self, states: States) -> NDArray[np.bool_]:
        low, high = self.options.healthy_z_range
        z = states.qpos[:, Z]
        healthy: NDArray[np.bool_] = (low <= z) & (z <= high)
        return healthy

    def _contact_forces(self, states: States) -> Floats:
        """``(n_envs, nbody, 6)``"""
        return within(states.fields["cfrc_ext"], self.options.contact_force_range)


def _find_body(model: mujoco.MjModel, body: int | str) -> int:
    """:raises ValueError: there is no body of this number or name."""
    names = [model.body(number).name for number in range(model.nbody)]
    if isinstance(body, str):
        if body in names:
            return names.index(body)
        raise misfit(f'main_body = "{body}", a body of this name', ", ".join(filter(None, names)))
    if not 0 <= body < model.nbody:
        raise misfit(f"main_body = {body}, a body of this number", f"bodies 0 to {model.nbody - 1}")
    return body


def _rows(values: NDArray[Any]) -> NDArray[Any]:
    """``(n, …)`` → ``(n, size of the rest)``"""
    return values.reshape(len(values), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanoidOptions(LeggedOptions):
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    contact_cost_range: Range = (-math.inf, 10.0)
    healthy_reward: float = 5.0
    healthy_z_range: Range = (1.0, 2.0)
    reset_noise_scale: float = 1e-2
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


class Humanoid(Legged):
    """The centre of mass's motion is rewarded. Costs: controls, and contact forces clipped to
    ``contact_cost_range``.

    Observation: positions, velocities, then inertia and velocity of every body but the world,
    actuator forces on the joints, and contact forces on every body but the world, all in the frame
    of the centre of mass.
    """

    Options = HumanoidOptions
    asset = "humanoid.xml"
    joints = (FREE,)
    horizontal_entries = 2

    def __init__(self, model: mujoco.MjModel, options: HumanoidOptions) -> None:
        super().__init__(model, options)
        skipped = {"cinert": 1, "cvel": 1, "qfrc_actuator": 6, "cfrc_ext": 1}
        self._observed = {
            name: rows
            for name, rows in skipped.items()
            if getattr(options, f"include_{name}_in_observation")
        }
        """Name of an observed field → number of leading rows, of the world or the free joint, that
        are left out."""
        self.fields = tuple(dict.fromkeys(("xipos", "cfrc_ext", *self._observed)))
        self._shares = model.body_mass / model.body_mass.sum()
        """``(nbody,)`` of the robot's mass."""

    def observe(self, states: States) -> Floats:
        parts = [states.qpos[:, self._first :], states.qvel]
        for name, skipped in self._observed.items():
            parts.append(_rows(states.fields[name][:, skipped:]))
        return np.concatenate(parts, axis=1)

    def observation_names(self) -> list[str]:
        names = super().observation_names()
        model = self.model
        for field, skipped in self._observed.items():
            if field == "qfrc_actuator":
                velocities = input_names.velocities(model)[skipped:]
                names.extend(input_names.prefixed("force for", velocities))
            else:
                names.extend(input_names.of_bodies(model, field, 10 if field == "cinert" else 6))
        return names

    def x(self, states: States) -> Floats:
        x: Floats = (states.fields["xipos"][..., 0] * self._shares).sum(axis=1)
        return x

    def costs(self, action: NDArray[Any], after: States) -> NDArray[Any]:
        contacts = self.options.contact_cost_weight * sum_of_squares(after.fields["cfrc_ext"])
        return super().costs(action.astype(np.float64), after) + within(
            contacts, self.options.contact_cost_range
        )


def strictly_within(values: Floats, limits: Range) -> NDArray[np.bool_]:
    """Whether values lie strictly between the limits; False for NaN."""
    low, high = limits
    return (low < values) & (values < high)
