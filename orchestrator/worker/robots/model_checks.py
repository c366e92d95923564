"""Static checks of a compiled robot: numbers, actuators, masses, the starting pose.

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
from orchestrator.worker.mjmodel.joints import (
    HINGE,
    SLIDE,
    joint_name,
    joint_type,
    qpos_layout,
)
from orchestrator.worker.mjmodel.structure import Floats

shown = functools.partial(listed, most=3)
"""The first few names of a list."""
LONGEST_TIMESTEP_S = 0.05
SHORTEST_TIMESTEP_S = 1e-7
"""Below, one action takes a hundred thousand physics steps: training would take years."""
HEAVIEST_KG = 1e6
DEEP_PENETRATION = 1.25
"""Depth of a penetration at the start, in half-widths of the thinner part."""
HFIELD: int = mujoco.mjtGeom.mjGEOM_HFIELD.value
WIDE_CTRLRANGE = 4.0
"""Ratio of a servo's ctrlrange to the range of its joint, beyond which the unit must be wrong (a
degree: 57)."""


@dataclass(slots=True)
class ModelFindings:
    """Problems, warnings and notes about one robot, in the order of the checks."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    diverges: bool = False
    """Whether physics diverged in the stability test."""


def numbers(model: mujoco.MjModel) -> Iterator[str]:
    """Numbers with which no simulation is possible."""
    step = float(model.opt.timestep)
    if not (np.isfinite(step) and step > 0):
        yield f"option timestep is {step:g}: expected a positive number of seconds"
    elif step < SHORTEST_TIMESTEP_S:
        yield f"option timestep is {step:g} s, with which training would never end; robots need 0.0005 s to 0.01 s"
    if not np.isfinite(model.opt.gravity).all():
        yield "option gravity is not finite: expected three numbers"
    bad = []
    for name in _float_arrays():
        values = getattr(model, name)
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            bad.append(f"{name}[{row}]")
    # The compiler derives fields such as body_invweight0 from the others.
    given = [place for place in bad if "0[" not in place] or bad
    if given:
        yield f"{shown(given)}: not a finite number, and neither is anything computed from it; correct it"


@functools.cache
def _float_arrays() -> list[str]:
    """Return the names of the fields of MjModel that are arrays of numbers."""
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    fields = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return [
        name
        for name, value in fields.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    ]


def timestep(model: mujoco.MjModel) -> Iterator[str]:
    """A timestep that is too long for contacts."""
    step = float(model.opt.timestep)
    if step > LONGEST_TIMESTEP_S:
        yield f"option timestep is {step:g} s: contacts need 0.01 s or less; shorten it"


def actuators(model: mujoco.MjModel, key: int) -> Iterator[str]:
    """Actuators without a control range.

    :param key: number of the keyframe that episodes start from; -1 for none.
    """
    unlimited = []
    for number in range(model.nactuator):
        first = model.actuator_ctrladr[number]
        is_limited = model.actuator_ctrllimited[first : first + model.actuator_ctrlnum[number]]
        kind = actuator_kind(model, number)
        joint = int(model.actuator_trnid[number, 0])
        on_joint = int(model.actuator_trntype[number]) == int(mujoco.mjtTrn.mjTRN_JOINT)
        # Muscles, and servos around a keyframe, have a default range.
        has_default = kind == "muscle" or (
            kind == "position" and key >= 0 and on_joint and bool(model.jnt_limited[joint])
        )
        if not (is_limited.all() or has_default):
            unlimited.append(f"'{model.actuator(number).name or number}'")
    if unlimited:
        yield (
            f"{count(len(unlimited), 'actuator has', 'actuators have')} no ctrlrange ({shown(unlimited)}): actions "
            "in [-1, 1] are used as controls, which may be far too large or too small; give them a ctrlrange"
        )


def servo_ranges(model: mujoco.MjModel) -> str | None:
    """Describe position servos that are commanded far beyond the range of their joint. Return None
    without such servos.
    """
    joints = scalar_joints(model)
    wide = []
    for number in np.flatnonzero(position_servos(model) & (joints >= 0)).tolist():
        joint = int(joints[number])
        control = int(model.actuator_ctrladr[number])
        if not (model.actuator_ctrllimited[control] and model.jnt_limited[joint]):
            continue
        low, high = model.jnt_range[joint]
        least, most = model.actuator_ctrlrange[control]
        if most - least > WIDE_CTRLRANGE * abs(scalar_gear(model, number)) * (high - low):
            servo = f"'{model.actuator(number).name or number}' from {least:.3g} to {most:.3g}"
            wide.append(f"{servo}, joint {joint_name(model, joint)} from {low:.3g} to {high:.3g}")
    if not wide:
        return None
    servos_have = count(len(wide), "position servo has", "position servos have")
    return (
        f"{servos_have} a ctrlrange far wider than the range of the joint ({shown(wide)}): MuJoCo does not convert a "
        'ctrlrange from degrees; give it in radians (slides: metres), or give inheritrange="1" in its place'
    )


def masses(model: mujoco.MjModel) -> Iterator[str]:
    """Implausible masses, as of meshes in millimetres."""
    heavy = np.flatnonzero((model.body_treeid >= 0) & (model.body_mass > HEAVIEST_KG))
    if len(heavy):
        named = [f"{_body(model, body)}: {model.body_mass[body]:.3g} kg" for body in heavy.tolist()]
        yield f"implausible mass ({shown(named)}): MuJoCo uses kg and metres; check units and density"


def short_keyframes(spec: mujoco.MjSpec, model: mujoco.MjModel) -> Iterator[str]:
    """Keyframes with fewer positions than the robot has: MuJoCo takes 0 for the others."""
    for key in spec.keys:
        if 0 < len(key.qpos) < model.nq:
            yield (
                f"keyframe '{key.name}' has {len(key.qpos)} of {model.nq} positions, and MuJoCo takes 0 for the "
                f"others; they are {qpos_layout(model)}"
            )


def start_pose(model: mujoco.MjModel, key: int, start: Floats) -> Iterator[str]:
    """Joints outside their limits, and controls outside their range, at the start.

    :param key: number of the keyframe that episodes start from; -1 for none.
    """
    outside = []
    for joint in np.flatnonzero(model.jnt_limited).tolist():
        if joint_type(model, joint) not in (HINGE, SLIDE):
            continue
        low, high = model.jnt_range[joint]
        at = float(start[model.jnt_qposadr[joint]])
        slack = 1e-4 + 0.02 * (high - low)
        if at < low - slack or at > high + slack:
            outside.append(f"{joint_name(model, joint)} at {at:.3g}, range {low:.3g} to {high:.3g}")
    if outside:
        yield (
            f"{count(len(outside), 'joint starts', 'joints start')} outside the limits ({shown(outside)}): the robot "
            "is accelerated back at once; correct the starting pose or the range (check also compiler angle)"
        )
    # Where a keyframe gives no ctrl, the compiled one is 0.
    if key < 0 or not model.key_ctrl[key].any():
        return
    low, high = model.actuator_ctrlrange.T
    slack = 1e-6 + 0.02 * (high - low)
    ctrl = model.key_ctrl[key]
    is_beyond = (ctrl < low - slack) | (ctrl > high + slack)
    if (is_beyond & model.actuator_ctrllimited.astype(bool)).any():
        yield (
            f"keyframe '{model.key(key).name or key}' has ctrl outside ctrlrange, so the pose is not held; correct "
            "ctrl or ctrlrange"
        )


def start_contacts(model: mujoco.MjModel, data: mujoco.MjData) -> Iterator[str]:
    """Deep penetrations in the state of ``data``, for which ``mj_forward`` has been called."""
    depths: dict[str, float] = {}
    for contact in data.contact[: data.ncon]:
        first, second = (int(geom) for geom in contact.geom)
        if min(first, second) < 0:  # of a flex
            continue
        thin = [geom for geom in (first, second) if model.geom_type[geom] != HFIELD]
        half_width = float(model.geom_aabb[thin, 3:].min())
        if -contact.dist >= DEEP_PENETRATION * half_width:
            pair = f"{_geom(model, first)} and {_geom(model, second)}"
            depths[pair] = max(depths.get(pair, 0.0), -float(contact.dist))
    if depths:
        named = [f"{pair}: {depth:.3g} m deep" for pair, depth in depths.items()]
        yield (
            f"the robot starts inside its surroundings or with its own parts inside each other ({shown(named)}): the "
            "contact force throws it off at once; raise the robot, correct the pose, or exclude the contact"
        )


def _body(model: mujoco.MjModel, body: int) -> str:
    return f"body '{model.body(body).name or body}'"


def _geom(model: mujoco.MjModel, geom: int) -> str:
    name = model.geom(geom).name
    return f"geom '{name}'" if name else f"geom {geom} of {_body(model, model.geom_bodyid[geom])}"
