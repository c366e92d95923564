"""Static checks of a compiled robot: actuators, masses, the starting pose.

Each check yields messages that say what is wrong, with which element, why it matters, and what to
do.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import mujoco
import numpy as np

from orchestrator.core.text import count, listed
from orchestrator.worker.mjmodel.actuators import (
    actuator_kind,
    position_servos,
    scalar_gear,
    scalar_joints,
)
from orchestrator.worker.mjmodel.joints import joint_name
from orchestrator.worker.mjmodel.structure import Floats

shown = functools.partial(listed, most=3)
"""The first few names of a list."""
HEAVIEST_KG = 1e6
DEEP_PENETRATION = 1.25
"""Depth of a penetration at the start, in half-widths of the thinner part."""
HFIELD = int(mujoco.mjtGeom.mjGEOM_HFIELD)
WIDE_CTRLRANGE = 4.0
"""Ratio of a servo's ctrlrange to the range of its joint, beyond which the unit must be wrong (a
degree: 57)."""


@dataclass(slots=True)
class ModelFindings:
    """Problems and warnings about one robot, in the order of the checks."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    diverges: bool = False
    """Whether physics diverged in the stability test."""


def actuators(model: mujoco.MjModel, key: int) -> Iterator[str]:
    """Actuators without a control range.

    :param key: number of the keyframe that episodes start from; -1 for none.
    """
    unlimited = []
    joints = scalar_joints(model)
    for number in range(model.nactuator):
        first = model.actuator_ctrladr[number]
        is_limited = model.actuator_ctrllimited[first : first + model.actuator_ctrlnum[number]]
        kind = actuator_kind(model, number)
        # Muscles, and servos around a keyframe, have a default range.
        has_default = kind == "muscle" or (
            kind == "position"
            and min(key, joints[number]) >= 0
            and bool(model.jnt_limited[joints[number]])
        )
        if not (is_limited.all() or has_default):
            unlimited.append(f"'{model.actuator(number).name or number}'")
    if unlimited:
        yield (
            f"{count(len(unlimited), 'actuator has', 'actuators have')} no ctrlrange ({shown(unlimited)}): actions "
            "in [-1, 1] are used as controls, which may be far too large or too small; give them a ctrlrange"
        )


def servo_ranges(model: mujoco.MjModel) -> Iterator[str]:
    """Position servos that are commanded far beyond the range of their joint."""
    joints = scalar_joints(model)
    wide = []
    for number in np.flatnonzero(position_servos(model) & (joints >= 0)).tolist():
        joint = int(joints[number])
        low, high = model.jnt_range[joint]
        # Without a limit, a range is 0 to 0.
        least, most = model.actuator_ctrlrange[model.actuator_ctrladr[number]]
        widest = WIDE_CTRLRANGE * abs(scalar_gear(model, number)) * (high - low)
        if model.jnt_limited[joint] and most - least > widest:
            wide.append(f"'{model.actuator(number).name or number}' for {joint_name(model, joint)}")
    if wide:
        servos_have = count(len(wide), "position servo has", "position servos have")
        yield (
            f"{servos_have} a ctrlrange far wider than the range of the joint ({shown(wide)}): MuJoCo does not "
            'convert a ctrlrange from degrees; give it in radians (slides: metres), or give inheritrange="1" in its '
            "place"
        )


def masses(model: mujoco.MjModel) -> Iterator[str]:
    """Implausible masses, as of meshes in millimetres."""
    heavy = np.flatnonzero((model.body_treeid >= 0) & (model.body_mass > HEAVIEST_KG))
    if len(heavy):
        named = [f"{_body(model, body)}: {model.body_mass[body]:.3g} kg" for body in heavy.tolist()]
        yield f"implausible mass ({shown(named)}): MuJoCo uses kg and metres; check units and density"


def start_contacts(model: mujoco.MjModel, start: Floats) -> Iterator[str]:
    """Deep penetrations in the pose ``start`` ``(nq,)``."""
    data = mujoco.MjData(model)
    data.qpos[:] = start
    mujoco.mj_forward(model, data)
    depths: dict[str, float] = {}
    for contact in data.contact[: data.ncon]:
        first, second = (int(geom) for geom in contact.geom)
        if min(first, second) < 0:  # of a flex
            continue
        thin = [geom for geom in (first, second) if model.geom_type[geom] != HFIELD]
        if -contact.dist >= DEEP_PENETRATION * float(model.geom_aabb[thin, 3:].min()):
            pair = f"{_geom(model, first)} and {_geom(model, second)}"
            depths[pair] = max(depths.get(pair, 0.0), -float(contact.dist))
    if depths:
        deep = [f"{pair}: {depth:.3g} m deep" for pair, depth in depths.items()]
        yield (
            f"the robot starts inside its surroundings or with its own parts inside each other ({shown(deep)}): the "
            "contact force throws it off at once; raise the robot, correct the pose, or exclude the contact"
        )


def _body(model: mujoco.MjModel, body: int) -> str:
    return f"body '{model.body(body).name or body}'"


def _geom(model: mujoco.MjModel, geom: int) -> str:
    name = model.geom(geom).name
    return f"geom '{name}'" if name else f"geom {geom} of {_body(model, model.geom_bodyid[geom])}"
