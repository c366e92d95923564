"""Static checks of a compiled robot: numbers, masses, limits, starting pose, timestep.

Each check yields messages that say what is wrong, with which element, why it matters, and what to
do.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.core.text import count, listed
from orchestrator.worker.mjmodel.actuators import actuator_kind, scalar_gear, scalar_joints
from orchestrator.worker.mjmodel.joints import (
    HINGE,
    SLIDE,
    joint_name,
    joint_type,
    qpos_layout,
)
from orchestrator.worker.mjmodel.robot import moving_bodies
from orchestrator.worker.mjmodel.structure import Floats, is_fixed

shown = functools.partial(listed, most=3)
"""The first few names of a list."""
LONGEST_TIMESTEP_S = 0.05
SHORTEST_TIMESTEP_S = 1e-7
"""Below, one action takes a hundred thousand physics steps: training would take years."""
HEAVIEST_KG = 1e6
MASS_RATIO = 1e8
"""Largest ratio of the heaviest body to the lightest limb: beyond it the mass matrix loses all
digits."""
MAX_GYRATION = 10.0
"""Radius of gyration, in sizes of the model, beyond which an inertia cannot be right."""
DEEP_PENETRATION = 0.75
"""Depth of a penetration at the start, in half-widths of the thinner part."""
MAX_FREQUENCY = 1.5
"""Servo frequency times timestep; semi-implicit Euler is unstable from 2 (without damping)."""
WIDE_CTRLRANGE = 4.0
"""Ratio of a servo's ctrlrange to the range of its joint, beyond which the unit must be wrong (a
degree: 57)."""
_NAMED = {
    "body": "body",
    "jnt": "joint",
    "geom": "geom",
    "site": "site",
    "cam": "camera",
    "mesh": "mesh",
    "eq": "equality",
    "tendon": "tendon",
    "actuator": "actuator",
    "sensor": "sensor",
    "key": "keyframe",
}
"""Beginnings of the names of MjModel's fields → what the element is called."""


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
    set_by_file: list[str] = []
    derived: list[str] = []
    for name in _float_arrays():
        values = getattr(model, name)
        if np.isfinite(values).all():
            continue
        place = _place_of_bad(model, name, values)
        if name.endswith("0"):
            derived.append(place)
        else:
            set_by_file.append(place)
    places = set_by_file or derived
    if places:
        yield f"{shown(places)}: not a finite number, and neither is anything computed from it; correct it"


@functools.cache
def _float_arrays() -> list[str]:
    """Fields of every model."""
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    fields = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return [
        name
        for name, value in fields.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    ]


def _place_of_bad(model: mujoco.MjModel, name: str, values: NDArray[np.float64]) -> str:
    row = int(np.argwhere(~np.isfinite(values))[0][0])
    prefix, _, attribute = name.partition("_")
    # Rows of such a prefix may also be vertices or controls.
    if prefix not in _NAMED or len(values) != getattr(model, f"n{prefix}"):
        return f"{name}[{row}]"
    return f"{attribute} of {_NAMED[prefix]} '{getattr(model, prefix)(row).name or row}'"


def actuators(model: mujoco.MjModel, key: int) -> Iterator[str]:
    """Actuators without a control range."""
    unlimited = []
    for number in range(model.nactuator):
        first = model.actuator_ctrladr[number]
        if model.actuator_ctrllimited[first : first + model.actuator_ctrlnum[number]].all():
            continue
        kind = actuator_kind(model, number)
        joint = int(model.actuator_trnid[number, 0])
        on_joint = int(model.actuator_trntype[number]) == int(mujoco.mjtTrn.mjTRN_JOINT)
        around_keyframe = (
            kind == "position" and key >= 0 and on_joint and bool(model.jnt_limited[joint])
        )
        # Muscles and these servos have a default range.
        if kind != "muscle" and not around_keyframe:
            unlimited.append(f"'{model.actuator(number).name or number}'")
    if unlimited:
        yield (
            f"{count(len(unlimited), 'actuator has', 'actuators have')} no ctrlrange ({shown(unlimited)}): actions "
            "in [-1, 1] are used as controls, which may be far too large or too small; give them a ctrlrange"
        )


def servo_ranges(model: mujoco.MjModel) -> str | None:
    """Position servos that are commanded far beyond the range of their joint; None without such
    servos.
    """
    wide = []
    for number, joint in enumerate(scalar_joints(model).tolist()):
        control = int(model.actuator_ctrladr[number])
        if not (
            joint >= 0
            and actuator_kind(model, number) == "position"
            and model.actuator_ctrllimited[control]
        ):
            continue
        low, high = model.jnt_range[joint]
        least, most = model.actuator_ctrlrange[control]
        reach = abs(scalar_gear(model, number)) * float(high - low)
        if model.jnt_limited[joint] and most - least > WIDE_CTRLRANGE * reach:
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
    """Implausible masses and inertias."""
    moving = np.flatnonzero(moving_bodies(model))
    if not moving.size:
        return
    heavy = [int(body) for body in moving if model.body_mass[body] > HEAVIEST_KG]
    if heavy:
        named = [f"{_body(model, body)}: {model.body_mass[body]:.3g} kg" for body in heavy]
        yield f"implausible mass ({shown(named)}): MuJoCo uses kg and metres; check units and density"
    for tree in range(model.ntree):
        limbs = np.unique(model.dof_bodyid[model.dof_treeid == tree])
        bodies = moving[model.body_treeid[moving] == tree]
        lightest = int(limbs[model.body_subtreemass[limbs].argmin()])
        heaviest = int(bodies[model.body_mass[bodies].argmax()])
        light = float(model.body_subtreemass[lightest])
        most = float(model.body_mass[heaviest])
        if light > 0 and most / light > MASS_RATIO:
            yield (
                f"masses differ by a factor of {most / light:.1g} ({_body(model, heaviest)} {most:.3g} kg, the limb "
                f"from {_body(model, lightest)} on {light:.3g} kg): the equations of motion lose precision; check both"
            )
    size = float(max(model.stat.extent, model.geom_rbound.max(initial=0.0)))
    radii = np.sqrt(
        model.body_inertia[moving].max(axis=1) / np.maximum(model.body_mass[moving], 1e-300)
    )
    odd = [
        f"{_body(model, body)}: {model.body_mass[body]:.3g} kg with {model.body_inertia[body].max():.3g} kg·m² is as "
        f"wide as {radius:.3g} m"
        for body, radius in zip(moving.tolist(), radii, strict=True)
        if model.body_mass[body] > 0 and radius > MAX_GYRATION * size
    ]
    if odd:
        yield f"implausible inertia ({shown(odd)}) in a model of {size:.3g} m: it will hardly turn; check <inertial>"


def short_keyframes(spec: mujoco.MjSpec, model: mujoco.MjModel) -> Iterator[str]:
    """Keyframes with fewer positions than the robot has: MuJoCo takes 0 for the others."""
    for key in spec.keys:
        if 0 < len(key.qpos) < model.nq:
            yield (
                f"keyframe '{key.name}' has {len(key.qpos)} of {model.nq} positions, and MuJoCo takes 0 for the "
                f"others; they are {qpos_layout(model)}"
            )


def poses(model: mujoco.MjModel, key: int, start: Floats) -> Iterator[str]:
    """Joints outside their limits and controls outside their range, at the start and in
    keyframes.
    """
    names = [f"'{model.key(number).name or number}'" for number in range(model.nkey)]
    if outside := _outside(model, start):
        yield (
            f"{count(len(outside), 'joint starts', 'joints start')} outside the limits ({shown(outside)}): the robot "
            "is accelerated back at once; correct the starting pose or the range (check also compiler angle)"
        )
    outside_in = {
        number: _outside(model, model.key_qpos[number])
        for number in range(model.nkey)
        if number != key
    }
    if wrong := [number for number, joints in outside_in.items() if joints]:
        yield (
            f"{count(len(wrong), 'keyframe has', 'keyframes have')} joints outside their limits "
            f"({shown([names[number] for number in wrong])}: {shown(outside_in[wrong[0]])}); correct qpos or the range"
        )
    low, high = model.actuator_ctrlrange.T
    slack = 1e-6 + 0.02 * (high - low)
    beyond = (model.key_ctrl < low - slack) | (model.key_ctrl > high + slack)
    wrong = np.flatnonzero((beyond & model.actuator_ctrllimited.astype(bool)).any(axis=1)).tolist()
    if wrong:
        yield (
            f"{count(len(wrong), 'keyframe has', 'keyframes have')} ctrl outside ctrlrange "
            f"({shown([names[number] for number in wrong])}), so the pose is not held; correct ctrl or ctrlrange"
        )


def _outside(model: mujoco.MjModel, qpos: Floats) -> list[str]:
    """Descriptions of joints beyond their limits by more than a fiftieth of their range."""
    outside = []
    for joint in np.flatnonzero(model.jnt_limited).tolist():
        if joint_type(model, joint) not in (HINGE, SLIDE):
            continue
        low, high = model.jnt_range[joint]
        at = float(qpos[model.jnt_qposadr[joint]])
        slack = 1e-4 + 0.02 * (high - low)
        if at < low - slack or at > high + slack:
            outside.append(f"{joint_name(model, joint)} at {at:.3g}, range {low:.3g} to {high:.3g}")
    return outside


def start_contacts(model: mujoco.MjModel, data: mujoco.MjData) -> Iterator[str]:
    """Deep penetrations in the state of ``data``, for which ``mj_forward`` has been called."""
    surroundings: dict[str, float] = {}
    own_parts: dict[str, float] = {}
    for contact in data.contact[: data.ncon]:
        first, second = (int(geom) for geom in contact.geom)
        if min(first, second) < 0:  # of a flex
            continue
        moves = [not is_fixed(model, model.geom_bodyid[geom]) for geom in (first, second)]
        thin = min(_half_width(model, geom) for geom in (first, second))
        if -contact.dist < DEEP_PENETRATION * thin:
            continue
        pair = " and ".join(geom_label(model, geom) for geom in (first, second))
        depths = own_parts if all(moves) else surroundings
        depths[pair] = max(depths.get(pair, 0.0), -float(contact.dist))
    inside = {
        "inside its surroundings": surroundings,
        "with its own parts inside each other": own_parts,
    }
    for what, depths in inside.items():
        if depths:
            named = [f"{pair}: {depth:.3g} m deep" for pair, depth in depths.items()]
            yield (
                f"the robot starts {what} ({shown(named)}): the contact force throws it off at once; raise the robot, "
                "correct the pose, or exclude the contact"
            )


def _half_width(model: mujoco.MjModel, geom: int) -> float:
    """Half-width of the geom's thinnest side; infinite for planes and height fields, which have no
    inside.
    """
    kind = mujoco.mjtGeom(int(model.geom_type[geom]))
    if kind in (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD):
        return float("inf")
    if kind in (mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_SDF):
        return float(model.geom_aabb[geom, 3:].min())
    sizes = model.geom_size[geom]
    return float(sizes[sizes > 0].min(initial=np.inf))


def timestep(model: mujoco.MjModel) -> Iterator[str]:
    """A timestep too long for contacts or for the stiffest servo."""
    step = float(model.opt.timestep)
    if step > LONGEST_TIMESTEP_S:
        yield f"option timestep is {step:g} s: contacts need 0.01 s or less; shorten it"
    explicit = mujoco.mjtIntegrator(int(model.opt.integrator)).name in ("mjINT_EULER", "mjINT_RK4")
    too_quick = []
    needed_s = step
    for number, joint in enumerate(scalar_joints(model).tolist()):
        is_servo = actuator_kind(model, number) in ("position", "velocity")
        if not is_servo or joint < 0:
            continue
        dof = int(model.jnt_dofadr[joint])
        gear = scalar_gear(model, number) ** 2
        mobility = float(model.dof_invweight0[dof])  # 1 / effective inertia, armature included
        stiffness, damping = (-gear * float(prm) for prm in model.actuator_biasprm[number, 1:3])
        frequency = (max(0.0, stiffness) * mobility) ** 0.5
        rate = damping * mobility
        implicit = (0.0 if explicit else rate) + float(model.dof_damping[dof]) * mobility
        oscillates = frequency * step > MAX_FREQUENCY and implicit < 2 * frequency
        if oscillates or (explicit and rate * step > 2):
            too_quick.append(joint_name(model, joint))
            if frequency > 0:
                needed_s = min(needed_s, MAX_FREQUENCY / frequency)
            if explicit and rate > 0:
                needed_s = min(needed_s, 1 / rate)
    if too_quick:
        yield (
            f"timestep = {step:g} s is too long: servos are too stiff for the inertia they move (joint "
            f"{shown(too_quick)}); use timestep = {needed_s:.1g}, smaller kp or kv, or armature"
        )


def _body(model: mujoco.MjModel, body: int) -> str:
    return f"body '{model.body(body).name or body}'"


def geom_label(model: mujoco.MjModel, geom: int) -> str:
    name = model.geom(geom).name
    return f"geom '{name}'" if name else f"geom {geom} of {_body(model, model.geom_bodyid[geom])}"
