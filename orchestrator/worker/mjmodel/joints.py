"""Joints of a compiled model: their types, names and bodies."""

from __future__ import annotations

import mujoco

from orchestrator.core.text import listed

MOST_LISTED = 40
"""Joints in a message."""
FREE = mujoco.mjtJoint.mjJNT_FREE
BALL = mujoco.mjtJoint.mjJNT_BALL
SLIDE = mujoco.mjtJoint.mjJNT_SLIDE
HINGE = mujoco.mjtJoint.mjJNT_HINGE


def joints_of(model: mujoco.MjModel, body: int) -> range:
    """Numbers of the joints between ``body`` and its parent."""
    return range(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])


def joint_type(model: mujoco.MjModel, joint: int) -> mujoco.mjtJoint:
    """The joint's type as an enumeration member, which ``in`` compares correctly, unlike NumPy's
    integers.
    """
    return mujoco.mjtJoint(int(model.jnt_type[joint]))


def type_name(kind: mujoco.mjtJoint) -> str:
    """``"free"``, ``"ball"``, ``"slide"`` or ``"hinge"``."""
    return str(kind.name).removeprefix("mjJNT_").lower()


def qpos_layout(model: mujoco.MjModel) -> str:
    """What the numbers of ``qpos`` are, in words: ``0 to 6 'root' (free: x y z, quaternion w x y z),
    7 'knee'``.
    """
    parts = list[str]()
    for joint in range(model.njnt):
        first = int(model.jnt_qposadr[joint])
        kind = joint_type(model, joint)
        last, what = {
            FREE: (first + 6, " (free: x y z, quaternion w x y z)"),
            BALL: (first + 3, " (ball: quaternion w x y z)"),
        }.get(kind, (first, ""))
        numbers = f"{first} to {last}" if last > first else f"{first}"
        parts.append(f"{numbers} {joint_name(model, joint)}{what}")
    return listed(parts, MOST_LISTED)


def joint_name(model: mujoco.MjModel, joint: int) -> str:
    """The joint's name in the MJCF, or its number and body where it has no name."""
    body = model.jnt_bodyid[joint]
    name = model.joint(joint).name
    return f"'{name}'" if name else f"{joint} of body '{model.body(body).name or body}'"
