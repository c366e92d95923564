"""The end effector of a chain that is bolted to the world, and its workspace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import mujoco
import numpy as np

from orchestrator.core.text import count, listed
from orchestrator.worker.mjmodel.actuators import (
    actuator_of_control,
    position_controls,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.floor import fixed_planes
from orchestrator.worker.mjmodel.joints import (
    FREE,
    HINGE,
    SLIDE,
    joint_name,
    joint_type,
    joints_of,
    type_name,
)
from orchestrator.worker.mjmodel.structure import (
    Bools,
    Floats,
    ancestors,
    driven_dofs,
    posed_data,
)
from orchestrator.worker.tasks.actions import ActionMap, Scaled

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

    kind: Literal["site", "body"]
    number: int
    """Among the sites, or among the bodies."""
    body: int
    """Number of the body that it belongs to."""
    name: str
    """Empty where it has none."""
    joints: tuple[int, ...]
    """Numbers of the driven hinges and slides between the world and the effector, in this order."""

    @property
    def field(self) -> str:
        """The field of ``MjData`` with the effector's position in row ``number``."""
        return "site_xpos" if self.kind == "site" else "xipos"

    def position(self, data: mujoco.MjData) -> Floats:
        """``(3,)`` metres, world axes."""
        return np.array(getattr(data, self.field)[self.number])

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'" if self.name else f"{self.kind} {self.number}"


def find_effector(model: mujoco.MjModel, pose: Floats, site: str | None) -> Effector:
    """Return the site named ``site``; without a name the last site named like an end (tip, grip,
    hand …), else the last site of the chain's deepest body, else that body itself.

    :raises ValueError: there is no such site, or nothing that actuators move on a fixed base.
    """
    driven = driven_dofs(model, posed_data(model, pose))
    sites = [
        Effector(
            kind="site",
            number=number,
            body=int(body),
            name=model.site(number).name,
            joints=chain(model, int(body), driven),
        )
        for number, body in enumerate(model.site_bodyid)
    ]
    if site is not None:
        try:
            named: Effector = sites[model.site(site).id]
        except KeyError as error:
            raise ValueError(f'site = "{site}": {error.args[0]}') from None
        if not named.joints:
            raise ValueError(
                f'site = "{site}" is not on a chain of hinges or slides on a fixed base that actuators move; '
                f"this robot has {describe_joints(model)}"
            )
        return named
    candidates = [
        candidate
        for candidate in sites
        if candidate.joints and not TARGET_NAME.search(candidate.name.lower())
    ]
    ends = [candidate for candidate in candidates if END_NAME.search(candidate.name.lower())]
    if ends:
        return ends[-1]
    deepest = _deepest_body(model, driven)
    at_deepest = [candidate for candidate in candidates if candidate.body == deepest.body]
    return at_deepest[-1] if at_deepest else deepest


def _deepest_body(model: mujoco.MjModel, driven: Bools) -> Effector:
    """Return the body behind the most driven joints; of several the one with the most ancestors,
    then the last.

    :raises ValueError: actuators move no body on a fixed base.
    """

    def depth(body: int) -> tuple[int, int, int]:
        return len(chain(model, body, driven)), len(list(ancestors(model, body))), body

    body = max(range(model.nbody), key=depth)
    joints = chain(model, body, driven)
    if not joints:
        raise ValueError(
            "needs a chain of hinges or slides on a fixed base, moved by actuators; this robot has "
            f"{describe_joints(model)}"
        )
    return Effector(kind="body", number=body, body=body, name=model.body(body).name, joints=joints)


def chain(model: mujoco.MjModel, body: int, driven: Bools) -> tuple[int, ...]:
    """Return the numbers of the driven hinges and slides between the world and ``body``; none if a
    free joint is between.
    """
    links = reversed(list(ancestors(model, body)))
    joints = [joint for link in links for joint in joints_of(model, link)]
    kinds = [joint_type(model, joint) for joint in joints]
    if FREE in kinds:
        return ()
    return tuple(
        joint
        for joint, kind in zip(joints, kinds, strict=True)
        if kind in (HINGE, SLIDE) and driven[model.jnt_dofadr[joint]]
    )


def describe_joints(model: mujoco.MjModel) -> str:
    """Return the joints and the number of actuators, for messages."""
    joints = [
        f"{type_name(joint_type(model, joint))} joint {joint_name(model, joint)}"
        for joint in range(model.njnt)
    ]
    return f"{listed(joints, 6) or 'no joint'} and {count(model.nactuator, 'actuator')}"


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
        self.start = effector.position(self._data)
        self._most_penetration_m = self._penetration_m() + DEEPEST_PENETRATION_M
        joints = list(effector.joints)
        self._addresses = model.jnt_qposadr[joints]
        low, high = _position_limits(model, joints, pose, actions)
        centre = pose[self._addresses]
        self.low = centre + share * (low - centre)
        self.high = centre + share * (high - centre)
        floors = fixed_planes(model)
        self._normals = self._data.geom_xmat[floors].reshape(-1, 3, 3)[:, :, 2].copy()
        """``(n_floors, 3)`` upward normals of the ground."""
        self._points = self._data.geom_xpos[floors].copy()
        """``(n_floors, 3)`` a point of each."""
        self._starts_above = self._heights(self.start) >= 0

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
            position = self._effector.position(data)
            if self._is_under_ground(position):
                continue
            mujoco.mj_comPos(self._model, data)
            mujoco.mj_collision(self._model, data)
            if self._penetration_m() <= self._most_penetration_m:
                return position
        return self.start.copy()

    def _penetration_m(self) -> float:
        """Depth of the deepest contact in metres; 0 without contacts."""
        return float(max(0.0, -self._data.contact.dist.min(initial=0.0)))

    def _heights(self, position: Floats) -> Floats:
        """``(n_floors,)`` metres from each floor to ``position`` (3,), negative below it."""
        heights: Floats = ((position - self._points) * self._normals).sum(axis=1)
        return heights

    def _is_under_ground(self, position: Floats) -> bool:
        """Whether it is below a floor that the effector starts above."""
        return bool((self._starts_above & (self._heights(position) < 0)).any())


def _position_limits(
    model: mujoco.MjModel, joints: list[int], pose: Floats, actions: ActionMap
) -> tuple[Floats, Floats]:
    """``(len(joints),)`` least and greatest positions within the limits of the joints and of
    controls that are target positions.
    """
    start = pose[model.jnt_qposadr[joints]]
    turns = np.where(model.jnt_type[joints] == int(HINGE), TURN, 0.0)
    is_limited = model.jnt_limited[joints].astype(bool)
    low = np.where(is_limited, model.jnt_range[joints, 0], start - turns)
    high = np.where(is_limited, model.jnt_range[joints, 1], start + turns)
    if isinstance(actions, Scaled):
        actuators = actuator_of_control(model)
        moved = scalar_joints(model)[actuators]
        for control in np.flatnonzero(position_controls(model)).tolist():
            gear = scalar_gear(model, int(actuators[control]))
            if gear and moved[control] in joints:
                place = joints.index(int(moved[control]))
                least, greatest = sorted(actions.commands(control) / gear)
                low[place] = max(low[place], least)
                high[place] = min(high[place], greatest)
    return np.minimum(low, start), np.maximum(high, start)
