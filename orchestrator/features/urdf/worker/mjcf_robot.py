"""An MJCF completed by the table ``mjcf`` of a job: actuators, the pose at the start, a floor."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.text import count
from orchestrator.features.urdf.part import MJCF_PART
from orchestrator.features.urdf.settings import MjcfSettings
from orchestrator.features.urdf.worker.added_actuators import (
    about_actuators,
    add_floor,
    check_settings,
    make_actuators,
    write_spec,
)
from orchestrator.features.urdf.worker.joint_values import JointValueError, values_of_joints
from orchestrator.features.urdf.worker.servo_gains import Floats
from orchestrator.features.urdf.worker.start_pose import CLEARANCE_M, lowest_point
from orchestrator.features.urdf.worker.urdf_structure import shown
from orchestrator.worker.mjmodel.actuators import lengths_in_pose, position_controls
from orchestrator.worker.mjmodel.joints import FREE, SCALAR, joint_type
from orchestrator.worker.mjspec.spec_elements import suggestion
from orchestrator.worker.robots.bundle import collect
from orchestrator.worker.robots.compiling import compile_copy, guard_compiler
from orchestrator.worker.robots.converted_robot import ConvertedRobot
from orchestrator.worker.robots.unfit import UnfitError
from orchestrator.worker.tasks.base import keyframe_pose

TABLE = MJCF_PART.name
OF_ACTUATORS = ("actuators", "frequency", "kp", "kd", "effort", "passive")
WITHOUT_ACTUATORS: Mapping[str, Any] = {
    name: getattr(MjcfSettings(), name) for name in OF_ACTUATORS
}
HOME = "home"
"""The keyframe in which tasks start."""


def make_robot(request: ExaminationRequest, folder: Path) -> ConvertedRobot:
    """Write the MJCF ``request.xml`` with what it lacks.

    :param folder: an empty one, for the MJCF and its files.
    :raises UnfitError: it does not compile, a file is missing or lies elsewhere, or the settings do
        not fit it; the message says what would.
    """
    xml = Path(str(request.xml))
    given = request.robot_settings
    settings = MjcfSettings(**{**given, "passive": tuple(given.get("passive", ()))})
    bundle = collect(xml, request.memory_mib)
    outside = None if request.allow_outside or request.alone else bundle.outside(request.job_folder)
    if outside is not None:
        raise UnfitError(outside)
    main = bundle.write(folder)
    with guard_compiler(xml, request.memory_mib):
        model, _ = compile_copy(main, bundle)
        spec = mujoco.MjSpec.from_file(str(main))
        notes = list[str]()
        if settings.actuators is not None and model.nu:
            own = count(model.nactuator, "actuator")
            notes.append(f"has {own} of its own, so {TABLE}.actuators adds none")
            settings = dataclasses.replace(settings, **WITHOUT_ACTUATORS)
            if settings == MjcfSettings():
                return ConvertedRobot(xml=xml, notes=notes)
        try:
            added = _complete_robot(spec, model, settings)
            if lost := write_spec(spec, main):
                raise UnfitError(f"{xml}: {lost}")
        except (JointValueError, ValueError) as error:
            raise UnfitError(f"{xml}: {' '.join(str(error).split())}") from None
    return ConvertedRobot(xml=main, added=added, notes=notes)


def _complete_robot(
    spec: mujoco.MjSpec, model: mujoco.MjModel, settings: MjcfSettings
) -> list[str]:
    """Returns what was added, in words.

    :raises JointValueError: the settings do not fit the robot.
    """
    check_settings(settings.actuators, settings, TABLE)
    joints = _scalar_joints(model, is_each_needed=settings.actuators is not None)
    pose, moved = _pose(model, joints, settings)
    added = list[str]()
    if moved:
        added.append(
            f"joints in the middle of their limits, which do not include 0: {shown(moved)}"
        )
    free = [number for number in range(model.njnt) if joint_type(model, number) == FREE]
    has_world = any(int(model.body_weldid[body]) == 0 for body in model.geom_bodyid)
    is_alone = settings.actuators is not None and bool(free) and not has_world
    if settings.floor or (settings.floor is None and is_alone):
        below = ""
        if len(free) == 1 and not has_world:
            below = _stand_on_floor(model, pose, int(model.jnt_qposadr[free[0]]))
        add_floor(spec)
        added.append(f"floor at z = 0{below}")
    ctrl = list[float]()
    if settings.actuators is not None:
        efforts = _efforts(model, joints, settings)
        made = make_actuators(
            settings.actuators, model, pose, efforts, settings, TABLE, is_floating=bool(free)
        )
        for actuator in made:
            actuator.add_to(spec)
        ctrl = [one.home for one in made]
        _hold_keyframes(spec, model, {one.joint for one in made if one.gains is not None})
        added += about_actuators(made, settings, TABLE, f"actuatorfrcrange and {TABLE}.effort")
        is_euler = spec.option.integrator == mujoco.mjtIntegrator.mjINT_EULER
        if settings.actuators == "position" and is_euler:
            spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
            added.append("integrator implicitfast, for the damping of the servos")
    has_home = any(key.name == HOME for key in spec.keys)
    start = model.key(HOME).qpos if has_home else model.qpos0
    if ctrl or not np.array_equal(pose, start):
        added.append(_set_home(spec, model, pose, ctrl))
    return added


def _scalar_joints(model: mujoco.MjModel, *, is_each_needed: bool) -> list[str]:
    """Names of hinges and slides. :raises JointValueError: one has none, and is needed."""
    numbers = np.flatnonzero(np.isin(model.jnt_type, SCALAR)).tolist()
    names = [model.joint(number).name for number in numbers]
    if is_each_needed and not all(names):
        body = model.body(model.jnt_bodyid[numbers[names.index("")]]).name
        raise JointValueError(f"a joint of body {body!r} has no name; give it one, for {TABLE}")
    return [name for name in names if name]


def _pose(
    model: mujoco.MjModel, joints: Sequence[str], settings: MjcfSettings
) -> tuple[Floats, list[str]]:
    """``(nq,)`` of the keyframe ``home``, with the given positions; without that keyframe of the file,
    in which joints at 0 outside of their limits are moved to the middle of these, and the names of
    those.
    """
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME)
    pose = keyframe_pose(model, number)
    moved = list[str]()
    positions = values_of_joints(settings.pose, joints, f"{TABLE}.pose")
    for name in joints:
        joint = model.joint(name)
        address = int(model.jnt_qposadr[joint.id])
        low, high = map(float, joint.range)
        is_limited = bool(model.jnt_limited[joint.id])
        if name in positions:
            position = positions[name]
            if is_limited and not low <= position <= high:
                raise JointValueError(
                    f"{TABLE}.pose: {position:g} is outside of the limits of the joint {name!r}, {low:g} to {high:g}"
                )
            pose[address] = position
        elif number < 0 and is_limited and not low <= pose[address] <= high:
            pose[address] = (low + high) / 2
            moved.append(name)
    return pose, moved


def _stand_on_floor(model: mujoco.MjModel, pose: Floats, address: int) -> str:
    """Put the robot, whose free joint is at ``address`` of ``pose``, above the floor."""
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    lowest = lowest_point(model, data)
    if lowest is None:
        return ""
    pose[address + 2] = round(float(pose[address + 2]) + CLEARANCE_M - lowest, 6)
    return f", {CLEARANCE_M * 1000:g} mm below the robot"


def _efforts(
    model: mujoco.MjModel, joints: Sequence[str], settings: MjcfSettings
) -> dict[str, float | None]:
    """Of each joint that is driven; None where nothing limits it.

    :raises JointValueError: a pattern matches no joint, or motors have no effort.
    """
    for pattern in settings.passive:
        if not fnmatch.filter(joints, pattern):
            raise JointValueError(
                f"{TABLE}.passive = {pattern!r} matches no joint that turns or slides{suggestion(pattern, joints)}"
            )
    driven = [
        name
        for name in joints
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.passive)
    ]
    own = {
        name: float(np.abs(model.jnt_actfrcrange[model.joint(name).id]).max())
        for name in driven
        if model.jnt_actfrclimited[model.joint(name).id]
    }
    values = values_of_joints(settings.effort, driven, f"{TABLE}.effort")
    efforts = own | values if isinstance(settings.effort, Mapping) else values | own
    weak = [name for name in driven if name not in efforts]
    if weak and settings.actuators == "motor":
        raise JointValueError(
            f"nothing says how strong the motors of {shown(weak)} are; set {TABLE}.effort, or actuatorfrcrange of the "
            f'joints, or {TABLE}.actuators = "position"'
        )
    return {name: efforts.get(name) for name in driven}


def _hold_keyframes(spec: mujoco.MjSpec, model: mujoco.MjModel, servos: set[str]) -> None:
    """Give the keyframes of the file the controls with which servos hold their poses."""
    for number, key in enumerate(spec.keys):
        actuated = [actuator.target for actuator in spec.actuators]
        addresses = [int(model.jnt_qposadr[model.joint(name).id]) for name in actuated]
        positions = model.key_qpos[number][addresses]
        key.ctrl = [
            float(position) if name in servos else 0.0
            for name, position in zip(actuated, positions, strict=True)
        ]


def _set_home(
    spec: mujoco.MjSpec, model: mujoco.MjModel, pose: Floats, ctrl: Sequence[float]
) -> str:
    """Set the keyframe ``home``. Returns that, in words.

    :param model: compiled from the file.
    :param ctrl: of actuators that are added; empty: those of the file hold the new pose as they held
        the old one.
    """
    for number, key in enumerate(spec.keys):
        if key.name != HOME:
            continue
        key.qpos = pose.tolist()
        if ctrl:
            key.ctrl = list(ctrl)
            return f"the pose of the keyframe {HOME}"
        moved = _following_controls(model, spec.copy().compile(), number)
        if moved is None:
            return f"the pose of the keyframe {HOME}"
        key.ctrl = moved.tolist()
        return f"the pose of the keyframe {HOME}, with the controls of servos that hold it"
    controls = {"ctrl": list(ctrl)} if ctrl else {}
    spec.add_key(name=HOME, qpos=pose.tolist(), **controls)
    return f"keyframe {HOME}, with the pose at the start"


def _following_controls(
    before: mujoco.MjModel, after: mujoco.MjModel, keyframe: int
) -> Floats | None:
    """``(nu,)`` controls of a keyframe whose pose has changed, moved so that position servos hold the
    new pose as they held the old one; None where they may stay as they are.

    :param keyframe: its number in both models, which have the same actuators.
    """
    given = after.key_ctrl[keyframe]
    moved: Floats = (
        given + _lengths_of_servos(after, keyframe) - _lengths_of_servos(before, keyframe)
    )
    # Without any, tasks take those that hold the pose.
    may_stay = not given.any() or np.allclose(moved, given, rtol=0, atol=1e-9)
    return None if may_stay else moved


def _lengths_of_servos(model: mujoco.MjModel, keyframe: int) -> Floats:
    """``(nu,)`` of position servos in the pose of a keyframe, as far as their joints have moved it:
    the controls that hold it; 0 for other actuators.
    """
    lengths = lengths_in_pose(model, model.key_qpos[keyframe])
    return np.where(position_controls(model), lengths, 0.0)
