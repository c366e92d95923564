"""The bodies of the tables: robots of ``mjcf/`` with other lengths, masses and forces.

Every parameter is a factor, 1 for the robot as it is. Job files name the functions as
``"robots:quadruped"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco

MJCF = Path(__file__).resolve().parents[2] / "mjcf"
HIPS = ("front_left", "front_right", "hind_left", "hind_right")
LEGS = ("hind", "fore")


def quadruped(params: Mapping[str, float], folder: Path) -> Path:
    """``mjcf/quadruped.xml`` with six parameters.

    ``hips``: distance of the hips from the middle of the trunk. ``thigh``, ``shin``: lengths of the
    segments. ``radius``: thickness of the legs. ``density``: of the trunk. ``force``: of the servos.
    """
    spec = mujoco.MjSpec.from_file(str(MJCF / "quadruped.xml"))
    thigh, shin = params["thigh"], params["shin"]
    height = 0.0
    for leg in HIPS:
        upper, lower = spec.body(f"{leg}_thigh"), spec.body(f"{leg}_shin")
        upper.pos = [params["hips"] * upper.pos[0], upper.pos[1], upper.pos[2]]
        lower.pos = thigh * lower.pos
        _stretch(spec.geom(f"{leg}_thigh"), thigh, params["radius"])
        _stretch(spec.geom(f"{leg}_shin"), shin, params["radius"])
        foot = spec.geom(f"{leg}_foot")
        foot.pos = shin * foot.pos
        height = -(lower.pos[2] + foot.pos[2]) + foot.size[0]
    trunk = spec.body("trunk")
    trunk.pos = [0.0, 0.0, height + 0.01]
    spec.geom("trunk").density *= params["density"]
    for actuator in spec.actuators:
        actuator.forcerange = params["force"] * actuator.forcerange
    return _written(spec, folder)


def runner(params: Mapping[str, float], folder: Path) -> Path:
    """``mjcf/runner.xml`` with three parameters.

    ``thigh``, ``shin``: lengths of the segments of both legs. ``gear``: of all motors.
    """
    spec = mujoco.MjSpec.from_file(str(MJCF / "runner.xml"))
    height = 0.0
    for leg in LEGS:
        lower, foot = spec.body(f"{leg}_shin"), spec.body(f"{leg}_foot")
        lower.pos = params["thigh"] * lower.pos
        foot.pos = params["shin"] * foot.pos
        _stretch(spec.geom(f"{leg}_thigh"), params["thigh"], 1.0)
        _stretch(spec.geom(f"{leg}_shin"), params["shin"], 1.0)
        tip = spec.geom(f"{leg}_foot")
        height = max(height, tip.size[0] - lower.pos[2] - foot.pos[2] - tip.fromto[5])
    spec.body("trunk").pos = [0.0, 0.0, height + 0.01]
    for actuator in spec.actuators:
        actuator.gear = params["gear"] * actuator.gear
    return _written(spec, folder)


def _stretch(geom: Any, length: float, radius: float) -> None:
    geom.fromto = length * geom.fromto
    geom.size = [radius * geom.size[0], geom.size[1], geom.size[2]]


def _written(spec: Any, folder: Path) -> Path:
    spec.compile()
    path = folder / "robot.xml"
    path.write_text(spec.to_xml(), encoding="utf-8")
    return path
