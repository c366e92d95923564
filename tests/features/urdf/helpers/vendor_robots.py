"""Robots of vendors, as packages ship them, and what becomes of each: the table of docs/urdf.md.

The packages are downloaded without their dependencies into a folder of the user's cache, and none of
their files is in this repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSIONS = {
    "example_robot_data": "6.0.0",
    "dm_control": "1.0.50",
    "mjlab": "1.6.0",
    "gymnasium_robotics": "1.4.2",
}
FOLDERS = {
    "example_robot_data": "cmeel.prefix/share/example-robot-data/robots",
    "dm_control": "dm_control",
    "mjlab": "mjlab/asset_zoo/robots",
    "gymnasium_robotics": "gymnasium_robotics/envs",
}
"""Of the robots in the package."""
LEGS = {"base": "floating", "actuators": "position"}
SOFT = {**LEGS, "frequency": 2.0}
SERVOS = {"actuators": "position"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRobot:
    name: str
    package: str
    file: str
    """Below the folder of the robots."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the user sets, of the table of its format."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What is chosen for it."""
    task: str | None = None
    """None: it is refused."""
    refused: str = ""
    """Why, for the document."""
    cure: str = ""
    """For the document."""
    parts: Sequence[str] = ()
    """Of the message of a refusal: what is wrong, and what to do."""

    @property
    def table(self) -> str:
        return Path(self.file).suffix.removeprefix(".").replace("xml", "mjcf")

    @property
    def line(self) -> str:
        """Of the table in docs/urdf.md."""
        options = _settings_text(self.table, self.options)
        if self.task is None:
            return f"| {self.name} | `{self.package}` | {options} | refused: {self.refused} | {self.cure} |"
        chosen = _settings_text(self.table, self.chosen)
        return f"| {self.name} | `{self.package}` | {options} | `{self.task}` | {chosen} |"


def _settings_text(table: str, settings: Mapping[str, Any]) -> str:
    texts = (
        f"{key} = {str(value).lower() if value is True else repr(value)}"
        for key, value in settings.items()
    )
    return ", ".join(f"`{table}.{text}`".replace("'", '"') for text in texts)


def _robot(name: str, package: str, file: str, **more: Any) -> VendorRobot:
    return VendorRobot(name=name, package=package, file=file, **more)


_DATA = "example_robot_data"
_DAE = {
    "refused": "its meshes are `.dae`",
    "cure": "`.obj` files of the same names beside them",
    "parts": ("which MuJoCo cannot read", "beside it, which is then taken"),
}
_NO_ACTUATORS = {
    "refused": "no actuators",
    "cure": '`mjcf.actuators = "position"`',
    "parts": ("has no actuators", 'mjcf.actuators = "position"'),
}
ROBOTS = [
    _robot("Go1", _DATA, "go1_description/urdf/go1.urdf", chosen=LEGS, task="forward"),
    _robot("Go2", _DATA, "go2_description/urdf/go2.urdf", chosen=LEGS, task="forward"),
    _robot("A1", _DATA, "a1_description/urdf/a1.urdf", chosen=LEGS, task="forward"),
    _robot("B1", _DATA, "b1_description/urdf/b1.urdf", chosen=LEGS, task="forward"),
    _robot("B1 with Z1", _DATA, "b1_description/urdf/b1-z1.urdf", chosen=LEGS, task="forward"),
    _robot("Laikago", _DATA, "laikago_description/urdf/laikago.urdf", chosen=LEGS, task="forward"),
    _robot("ANYmal B", _DATA, "anymal_b_simple_description/robots/anymal.urdf", chosen=LEGS, task="forward"),
    _robot("Solo 8", _DATA, "solo_description/robots/solo.urdf", chosen=SOFT, task="forward"),
    _robot("Solo 12", _DATA, "solo_description/robots/solo12.urdf", chosen=SOFT, task="forward"),
    _robot("Bolt", _DATA, "bolt_description/robots/bolt.urdf", chosen=SOFT, task="forward"),
    _robot("G1", _DATA, "g1_description/urdf/g1_29dof_rev_1_0.urdf", chosen=LEGS, task="forward"),
    _robot("Talos", _DATA, "talos_data/robots/talos_reduced.urdf", chosen=LEGS, task="forward"),
    _robot("SO-100", _DATA, "so_arm_description/urdf/so100.urdf", chosen=SERVOS, task="reach"),
    _robot("SO-101", _DATA, "so_arm_description/urdf/so101.urdf", chosen=SERVOS, task="reach"),
    _robot("Panda", _DATA, "panda_description/urdf/panda.urdf", task="reach"),
    _robot("UR5", _DATA, "ur_description/urdf/ur5_robot.urdf", task="reach"),
    _robot("xArm 7", _DATA, "xarm_description/urdf/xarm7.urdf", chosen=SERVOS, task="reach"),
    _robot(
        *("Allegro hand", _DATA, "allegro_hand_description/urdf/allegro_right_hand.urdf"),
        refused="moments of inertia that no body can have",
        cure="`urdf.balance_inertia = true`",
        parts=("inertia must satisfy A + B >= C", "urdf.balance_inertia = true"),
    ),
    _robot(
        *("Allegro hand", _DATA, "allegro_hand_description/urdf/allegro_right_hand.urdf"),
        options={"balance_inertia": True},
        chosen=SERVOS,
        task="reach",
    ),
    _robot("HyQ", _DATA, "hyq_description/robots/hyq_no_sensors.urdf", **_DAE),
    _robot("Kinova", _DATA, "kinova_description/robots/kinova.urdf", **_DAE),
    _robot(
        *("Iris", _DATA, "iris_description/robots/iris.urdf"),
        refused="rotors without effort",
        cure="`urdf.effort`",
        parts=("joints have no finite effort", "urdf.effort"),
    ),
    _robot("Go1", "mjlab", "unitree_go1/xmls/go1.xml", **_NO_ACTUATORS),
    _robot("Go1", "mjlab", "unitree_go1/xmls/go1.xml", options={"actuators": "position"}, task="forward"),
    _robot("YAM", "mjlab", "i2rt_yam/xmls/yam.xml", options={"actuators": "position"}, task="reach"),
    _robot("Jaco", "dm_control", "third_party/kinova/jaco_arm.xml", options={"actuators": "position"}, task="reach"),
    _robot("quadruped", "dm_control", "suite/quadruped.xml", task="forward"),
    _robot(
        *("ball in cup", "dm_control", "suite/ball_in_cup.xml"),
        refused="no built-in task suits it",
        cure="a [task of yours](tasks.md)",
        parts=("no built-in task suits this robot", "Write your own task"),
    ),
    _robot("Shadow hand", "gymnasium_robotics", "assets/hand/reach.xml", task="reach"),
    _robot("ant", "gymnasium_robotics", "mujoco/assets/ant.xml", task="forward"),
]  # fmt: skip


class UnavailableError(Exception):
    """A package cannot be had here; the message says why."""


def robots_folder(package: str) -> Path:
    """Of the robots in a package, which is downloaded where it is not in the cache.

    :raises UnavailableError: it cannot be downloaded.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "orchestrator-tests" / f"{package}-{VERSIONS[package]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            _unpack(package, Path(temporary))
            shutil.move(Path(temporary, "unpacked"), folder)
    return folder / FOLDERS[package]


def _unpack(package: str, folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--quiet",
    ]
    wanted = f"{package.replace('_', '-')}=={VERSIONS[package]}"
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), wanted],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"the download of {wanted} takes more than 300 s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise UnavailableError(f"{wanted} cannot be downloaded: {done.stderr.strip()[-300:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder / "unpacked")
