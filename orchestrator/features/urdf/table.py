"""The tables ``urdf`` and ``mjcf`` of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from orchestrator.features.urdf.part import MJCF_PART, PART
from orchestrator.features.urdf.settings import MjcfSettings, UrdfSettings
from orchestrator.features.urdf.value_types import (
    AboveZeroByJoint,
    Actuators,
    Folders,
    Frequency,
    FromZeroByJoint,
    Patterns,
    Pose,
)
from orchestrator.keys.feature_tables import JobTable
from orchestrator.keys.value_types import TomlTable, key

if TYPE_CHECKING:
    from orchestrator.jobfile.job_table_rules import JobTableRules

DEFAULTS = UrdfSettings()
MJCF_DEFAULTS = MjcfSettings()


class UrdfTable(TomlTable):
    """What a URDF does not describe and a robot needs; check shows what was added."""

    base: Literal["fixed", "floating"] | None = key(
        None,
        "Whether the root link is fixed to the world, or floating: free to move.",
        "floating",
        shown=DEFAULTS.base,
    )
    actuators: Actuators = key(
        DEFAULTS.actuators,
        "What moves the joints, with at most the effort of their <limit>: motor (a force or torque) or position (a "
        "servo, critically damped, with gains by the mass matrix).",
        "position",
    )
    frequency: Frequency = key(
        DEFAULTS.frequency, "Natural frequency of position servos in Hz: the higher, the stiffer."
    )
    kp: AboveZeroByJoint = key(
        DEFAULTS.kp,
        "Stiffness of position servos in N·m/rad or N/m, of all or by joint or pattern; unset: by the frequency.",
        40.0,
    )
    kd: FromZeroByJoint = key(
        DEFAULTS.kd,
        "Damping of position servos in N·m·s/rad or N·s/m, of all or by joint or pattern; unset: critical.",
        1.0,
    )
    pose: Pose = key(
        {},
        "Positions of joints at the start in rad or m, by joint or pattern; of others 0, or the middle of limits "
        "without 0.",
        {"*_calf_joint": -1.5},
    )
    effort: AboveZeroByJoint = key(
        DEFAULTS.effort,
        "Force in N or torque in N·m: a number for joints whose <limit> gives none, or a table for the joints that it "
        "names; unset: a URDF with joints without any is refused.",
        20.0,
    )
    passive: Patterns = key(
        [],
        "Joints that nothing drives, such as casters: names, or patterns with * ? and [ ].",
        ["pole"],
    )
    floor: bool | None = key(
        DEFAULTS.floor, "Whether there is a floor at z = 0; unset: with a floating base.", True
    )
    collision: Literal["collision", "visual"] = key(
        DEFAULTS.collision, "Which geometry of the links collides.", "visual"
    )
    balance_inertia: bool = key(
        DEFAULTS.balance_inertia,
        "Whether a link whose moments of inertia no body can have (A + B < C) gets their mean about each axis; false: "
        "such a URDF is refused.",
        True,
    )
    asset_paths: Folders = key(
        [],
        "Folders, relative to the job file, of packages that package:// names, and of other meshes.",
        ["../robots"],
    )


class MjcfTable(TomlTable):
    """What an MJCF lacks and a robot needs; check shows what was added."""

    actuators: Actuators | None = key(
        MJCF_DEFAULTS.actuators,
        "What is added to hinges and slides of a robot without actuators: motor (a force or torque) or position (a "
        "servo, critically damped, with gains by the mass matrix); unset: nothing.",
        "position",
    )
    frequency: Frequency = key(
        MJCF_DEFAULTS.frequency,
        "Natural frequency of added servos in Hz: the higher, the stiffer.",
    )
    kp: AboveZeroByJoint = key(
        MJCF_DEFAULTS.kp,
        "Stiffness of added servos in N·m/rad or N/m, of all or by joint or pattern; unset: by the frequency.",
        40.0,
    )
    kd: FromZeroByJoint = key(
        MJCF_DEFAULTS.kd,
        "Damping of added servos in N·m·s/rad or N·s/m, of all or by joint or pattern; unset: critical.",
        1.0,
    )
    pose: Pose = key(
        {},
        "Positions of joints in the keyframe home in rad or m, by joint or pattern; others are as in the file.",
        {"*_calf_joint": -1.5},
    )
    effort: AboveZeroByJoint = key(
        MJCF_DEFAULTS.effort,
        "Force in N or torque in N·m: a number for joints without actuatorfrcrange, or a table for the joints that it "
        "names; unset: motors of such joints are refused, and servos push as hard as their gains ask for.",
        20.0,
    )
    passive: Patterns = key(
        [],
        "Joints that nothing drives: names, or patterns with * ? and [ ].",
        ["pole"],
    )
    floor: bool | None = key(
        MJCF_DEFAULTS.floor,
        "Whether a floor at z = 0 is added; unset: with actuators, for a robot that moves freely in a world without "
        "geometry.",
        True,
    )


def _mjcf_rules() -> JobTableRules:
    from orchestrator.features.urdf.rules import MJCF_RULES

    return MJCF_RULES


def _rules() -> JobTableRules:
    from orchestrator.features.urdf.rules import RULES

    return RULES


TABLE = JobTable(
    name=PART.name,
    about="What a URDF lacks: base, actuators, floor.",
    model=UrdfTable,
    rules=_rules,
)
MJCF_TABLE = JobTable(
    name=MJCF_PART.name,
    about="What an MJCF lacks: actuators, floor, pose.",
    model=MjcfTable,
    rules=_mjcf_rules,
)
