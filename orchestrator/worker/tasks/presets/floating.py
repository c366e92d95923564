"""Robots with a free joint: ``Ant-v5`` and ``Humanoid-v5``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.tasks.actions import Floats
from orchestrator.worker.tasks.base import States
from orchestrator.worker.tasks.presets.base import (
    Legged,
    LeggedOptions,
    misfit,
    strictly_within,
    sum_of_squares,
    within,
)
from orchestrator.worker.tasks.root import FREE
from orchestrator.worker.tasks.task_options import Range

Z = 2
"""Address in ``qpos`` of the height, where the robot's first joint is a free joint."""


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
    places = 2
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
        raise misfit(f'main_body = "{body}", a body of this name', f"{', '.join(filter(None, names))}")
    if not 0 <= body < model.nbody:
        raise misfit(f"main_body = {body}, a body of this number", f"bodies 0 to {model.nbody - 1}")
    return body


def _rows(values: NDArray[Any]) -> NDArray[Any]:
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
    """The motion of the centre of mass along x is rewarded. Costs: controls, and contact forces clipped to
    ``contact_cost_range``.

    Observation: positions, velocities, then inertia and velocity of every body but the world, actuator forces on the
    joints, and contact forces on every body but the world, all in the frame of the centre of mass.
    """

    Options = HumanoidOptions
    asset = "humanoid.xml"
    joints = (FREE,)
    places = 2

    def __init__(self, model: mujoco.MjModel, options: HumanoidOptions) -> None:
        super().__init__(model, options)
        # Name of a field → whether it is observed, and number of leading rows of the world or the free joint.
        observed = {
            "cinert": (options.include_cinert_in_observation, 1),
            "cvel": (options.include_cvel_in_observation, 1),
            "qfrc_actuator": (options.include_qfrc_actuator_in_observation, 6),
            "cfrc_ext": (options.include_cfrc_ext_in_observation, 1),
        }
        self._observed = {name: skipped for name, (included, skipped) in observed.items() if included}
        self.fields = tuple(dict.fromkeys(("xipos", "cfrc_ext", *self._observed)))
        self._shares = model.body_mass / model.body_mass.sum()

    def observe(self, states: States) -> Floats:
        shown = (_rows(states.fields[name][:, skipped:]) for name, skipped in self._observed.items())
        return np.concatenate((states.qpos[:, self._first :], states.qvel, *shown), axis=1)

    def x(self, states: States) -> Floats:
        x: Floats = (states.fields["xipos"][..., 0] * self._shares).sum(axis=1)
        return x

    def costs(self, action: NDArray[Any], after: States) -> NDArray[Any]:
        options = self.options
        contacts = options.contact_cost_weight * sum_of_squares(after.fields["cfrc_ext"])
        return super().costs(action.astype(np.float64), after) + within(contacts, options.contact_cost_range)

    def healthy(self, states: States) -> NDArray[np.bool_]:
        return strictly_within(states.qpos[:, Z], self.options.healthy_z_range)
