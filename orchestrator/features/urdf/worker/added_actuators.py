"""Actuators and a floor that are added to a robot whose file has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mujoco

from orchestrator.core.text import count
from orchestrator.features.urdf.settings import ActuatorSettings
from orchestrator.features.urdf.worker.joint_values import JointValueError, values_of_joints
from orchestrator.features.urdf.worker.servo_gains import Floats, servo_gains
from orchestrator.features.urdf.worker.urdf_structure import shown
from orchestrator.worker.mjspec.model_comparison import differing_fields

OF_SERVOS = ("kp", "kd")
"""Settings that mean something to servos alone."""
OF_ACTUATORS = ("frequency", "effort", "passive")
"""Settings that mean something where actuators are added; jobs with motors and with servos may share a
``frequency``, which motors do not use."""
TURN = 3.1416
"""Half of a turn: servos of joints without limits take targets from -TURN to TURN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedActuator:
    joint: str
    effort: float | None
    """Force in N or torque in N·m; None: as much as its gains ask for."""
    limits: tuple[float, float]
    """Of the positions that a servo takes, in rad or m."""
    gains: tuple[float, float] | None
    """kp and kd of a servo; None: it is a motor."""
    home: float
    """Its control at the start."""

    def add_to(self, spec: mujoco.MjSpec) -> None:
        actuator = spec.add_actuator(
            name=self.joint, target=self.joint, trntype=mujoco.mjtTrn.mjTRN_JOINT
        )
        force = None if self.effort is None else [-self.effort, self.effort]
        if self.gains is None:
            assert force is not None
            actuator.set_to_motor()
            actuator.ctrlrange = force
            return
        kp, kd = self.gains
        actuator.set_to_position(kp=kp, kv=kd)
        actuator.ctrlrange = list(self.limits)
        if force is not None:
            actuator.forcerange = force


def check_settings(actuators: str | None, settings: ActuatorSettings, table: str) -> None:
    """:raises JointValueError: one is for servos, or for actuators, and there are none."""
    unset = ActuatorSettings()
    given = [
        key for key in (*OF_SERVOS, *OF_ACTUATORS) if getattr(settings, key) != getattr(unset, key)
    ]
    what = "no actuators are added" if actuators is None else "the actuators are motors"
    for key in given:
        if key in OF_SERVOS and actuators != "position":
            cure = f'set {table}.actuators = "position", or leave it out'
            raise JointValueError(f"{table}.{key} is for servos, and {what}; {cure}")
        if actuators is None:
            cure = f'set {table}.actuators = "position" or "motor", or leave it out'
            raise JointValueError(f"{table}.{key} is for actuators, and {what}; {cure}")


def make_actuators(
    kind: str,
    model: mujoco.MjModel,
    pose: Floats,
    efforts: Mapping[str, float | None],
    settings: ActuatorSettings,
    table: str,
    is_floating: bool,
) -> list[AddedActuator]:
    """One for each joint in ``efforts``.

    :param kind: ``"motor"``, with an effort for each, or ``"position"``.
    :param pose: ``(nq,)`` positions at the start.
    :raises JointValueError: a gain is of no joint.
    """
    numbers = {name: int(model.joint(name).id) for name in efforts}
    gains: Mapping[str, tuple[float, float]] = {}
    if kind == "position" and efforts:
        kp = values_of_joints(settings.kp, list(numbers), f"{table}.kp")
        kd = values_of_joints(settings.kd, list(numbers), f"{table}.kd")
        found = servo_gains(
            model,
            pose,
            list(numbers.values()),
            settings.frequency,
            is_floating=is_floating,
            given_kp={numbers[name]: value for name, value in kp.items()},
            given_kd={numbers[name]: value for name, value in kd.items()},
        )
        gains = dict(zip(numbers, found, strict=True))
    made = list[AddedActuator]()
    for name, number in numbers.items():
        limits = model.jnt_range[number] if model.jnt_limited[number] else (-TURN, TURN)
        low, high = map(float, limits)
        position = float(pose[model.jnt_qposadr[number]])
        made.append(
            AddedActuator(
                joint=name,
                effort=efforts[name],
                limits=(low, high),
                gains=gains.get(name),
                home=position if name in gains else 0.0,
            )
        )
    return made


def add_floor(spec: mujoco.MjSpec) -> None:
    names = {geom.name for geom in spec.geoms}
    name = "floor"
    while name in names:
        name += "_"
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    spec.worldbody.add_geom(name=name, type=plane, size=[0, 0, 0.05], rgba=[0.8, 0.8, 0.8, 1])


def about_actuators(
    made: Sequence[AddedActuator], settings: ActuatorSettings, table: str, where: str
) -> list[str]:
    """:param where: what gives the forces."""
    if not made:
        return []
    servos = [one.gains for one in made if one.gains is not None]
    forces = [one.effort for one in made if one.effort is not None]
    text = count(len(made), f"{'position' if servos else 'motor'} actuator")
    if forces:
        text += f", force at most {_range(forces)} N·m (slides: N) by {where}"
    if len(forces) < len(made):
        text += ", force without limit" if not forces else ", without limit where it gives none"
    if servos:
        by_frequency = f"critically damped at {settings.frequency:g} Hz ({table}.frequency)"
        if settings.kp is not None or settings.kd is not None:
            by_frequency = f"as given, otherwise {by_frequency}"
        kp = _range([kp for kp, _ in servos])
        kd = _range([kd for _, kd in servos])
        text += f", kp {kp}, kv {kd}: {by_frequency}"
    return [text]


def _range(values: Sequence[float]) -> str:
    low = min(values)
    high = max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def write_spec(spec: mujoco.MjSpec, target: Path) -> str | None:
    """Write MJCF. Returns what MuJoCo's MJCF writer loses, in words; None: nothing."""
    model = spec.compile()
    spec.compiler.savecompiled = False
    spec.compiler.savecanonical = False
    target.write_text(spec.to_xml(), encoding="utf-8")
    lost = list(differing_fields(model, mujoco.MjModel.from_xml_path(str(target))))
    if not lost:
        return None
    return f"cannot be written as MJCF: MuJoCo's MJCF writer loses {shown(lost)}; write it by hand"
