"""The end effector of a chain that is bolted to the world, and its workspace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.actuators import (
    actuator_of_control,
    position_controls,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.joints import FREE, HINGE, SCALAR
from orchestrator.worker.mjmodel.structure import (
    Bools,
    Floats,
    ancestors,
    driven_dofs,
    posed_data,
)
from orchestrator.worker.tasks.actions import ActionMap
from orchestrator.worker.tasks.base import start_limits

_END = r"(finger_?)?tip|end|eef?|tcp|tool|grip\w*|pinch|hand|palm|effector|finger"
END_NAME = re.compile(rf"(^|[_\W\d])({_END})([_\W\d]|$)")
TARGET_NAME = re.compile(r"target|goal")
DEEPEST_PENETRATION_M = 1e-3
"""How much deeper than in the starting pose contacts of a target's pose may be."""
TURN = np.pi
"""Range in radians to either side for hinges without limits; slides without limits are not
moved."""
TRIES = 200
"""Poses that are drawn at most for one target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effector:
    """A site, or the centre of mass of a body (whose origin usually lies in its joint)."""

    name: str
    """``site 'tip'``; with its number where it has no name."""
    field: Literal["site_xpos", "xipos"]
    """The field of ``MjData`` with its position, in metres and world axes."""
    number: int
    """Its row there."""
    body: int
    """Number of the body that it belongs to."""
    joints: tuple[int, ...]
    """Numbers of the driven hinges and slides between the world and the effector, in this order."""


def find_effector(model: mujoco.MjModel, pose: Floats, site: str | None) -> Effector:
    """Return the site named ``site``; without a name the last site named like an end (tip, grip,
    hand …), else the last site of the deepest body, else that body itself. The deepest body is behind
    the most driven joints; of several it has the most ancestors, or is the last.

    :raises KeyError: there is no such site.
    :raises ValueError: actuators do not move it, or nothing on a fixed base.
    """
    driven = driven_dofs(model, posed_data(model, pose))
    chains = [_chain(model, body, driven) for body in range(model.nbody)]
    deepest = max(
        range(model.nbody),
        key=lambda body: (len(chains[body]), len([*ancestors(model, body)]), body),
    )
    bodies = model.site_bodyid.tolist()
    if site is None:
        names = [model.site(number).name.lower() for number in range(model.nsite)]
        sites = [
            number
            for number, name in enumerate(names)
            if chains[bodies[number]] and not TARGET_NAME.search(name)
        ]
        ends = [number for number in sites if END_NAME.search(names[number])]
        sites = ends or [number for number in sites if bodies[number] == deepest]
    else:
        sites = [int(model.site(site).id)]
    number = sites[-1] if sites else deepest
    body = bodies[number] if sites else deepest
    kind = "site" if sites else "body"
    name = model.site(number).name if sites else model.body(body).name
    if not chains[body]:
        raise ValueError(
            "needs a chain of hinges or slides on a fixed base, moved by actuators; "
            f"no such chain ends in {kind} '{name}'"
        )
    return Effector(
        name=f"{kind} '{name}'" if name else f"{kind} {number}",
        field="site_xpos" if sites else "xipos",
        number=number,
        body=body,
        joints=chains[body],
    )


def _chain(model: mujoco.MjModel, body: int, driven: Bools) -> tuple[int, ...]:
    """Return the numbers of the driven hinges and slides between the world and ``body``; none if a
    free joint is between.
    """
    is_between = np.isin(model.jnt_bodyid, list(ancestors(model, body)))
    kinds = model.jnt_type
    if (is_between & (kinds == int(FREE))).any():
        return ()
    is_scalar = np.isin(kinds, SCALAR)
    is_driven = driven[model.jnt_dofadr]
    return tuple(np.flatnonzero(is_between & is_scalar & is_driven).tolist())


class Workspace:
    """Positions that the effector can reach, by forward kinematics over joint positions that the
    controls can hold.

    :param share: share of the range from the starting pose to a joint's limits that is used.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        effector: Effector,
        pose: Floats,
        actions: ActionMap,
        share: float,
    ) -> None:
        self._model = model
        self._effector = effector
        self._pose = pose
        self._data = posed_data(model, pose)
        self._positions: Floats = getattr(self._data, effector.field)
        self.start: Floats = np.array(self._positions[effector.number])
        self._most_penetration_m = self._penetration_m() + DEEPEST_PENETRATION_M
        low, high = _position_limits(model, pose, actions)
        self._addresses = model.jnt_qposadr[list(effector.joints)]
        centre = pose[self._addresses]
        self.low = centre + share * (low[self._addresses] - centre)
        self.high = centre + share * (high[self._addresses] - centre)

    def sample(self, rng: np.random.Generator) -> Floats:
        """``(3,)`` a random position of the effector with the robot neither in the ground nor in
        itself.

        The effector's starting position if none is found in :data:`TRIES` draws.
        """
        data = self._data
        for _ in range(TRIES):
            data.qpos[:] = self._pose
            data.qpos[self._addresses] = rng.uniform(self.low, self.high)
            mujoco.mj_kinematics(self._model, data)
            mujoco.mj_comPos(self._model, data)
            mujoco.mj_collision(self._model, data)
            if self._penetration_m() <= self._most_penetration_m:
                return np.array(self._positions[self._effector.number])
        return self.start.copy()

    def _penetration_m(self) -> float:
        """Depth of the deepest contact in metres; 0 without contacts."""
        return float(max(0.0, -self._data.contact.dist.min(initial=0.0)))


def _position_limits(
    model: mujoco.MjModel, pose: Floats, actions: ActionMap
) -> tuple[Floats, Floats]:
    """``(nq,)`` least and greatest positions within the limits of the joints and of controls that are
    target positions.
    """
    low, high = start_limits(model, pose)
    turns = np.zeros(model.nq)
    turns[model.jnt_qposadr[model.jnt_type == int(HINGE)]] = TURN
    low = np.where(np.isinf(low), pose - turns, low)
    high = np.where(np.isinf(high), pose + turns, high)
    ends = actions.ctrl(np.outer((-1.0, 1.0), np.ones(model.nu)))
    actuators = actuator_of_control(model)
    joints = scalar_joints(model)
    for control in np.flatnonzero(position_controls(model)).tolist():
        actuator = actuators[control]
        gear = scalar_gear(model, actuator)
        if gear and joints[actuator] >= 0:
            address = model.jnt_qposadr[joints[actuator]]
            least, greatest = sorted(ends[:, control] / gear)
            low[address] = max(low[address], least)
            high[address] = min(high[address], greatest)
    return np.minimum(low, pose), np.maximum(high, pose)
