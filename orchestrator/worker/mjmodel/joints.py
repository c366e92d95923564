"""Joints of a compiled model: their types, names and bodies."""

from __future__ import annotations

import mujoco

FREE = mujoco.mjtJoint.mjJNT_FREE
BALL = mujoco.mjtJoint.mjJNT_BALL
SLIDE = mujoco.mjtJoint.mjJNT_SLIDE
HINGE = mujoco.mjtJoint.mjJNT_HINGE
SCALAR = (int(HINGE), int(SLIDE))
"""Joints with one position, as numbers in ``jnt_type``."""


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


def joint_name(model: mujoco.MjModel, joint: int) -> str:
    """The joint's name in the MJCF, or its number and body where it has no name."""
    body = model.jnt_bodyid[joint]
    name = model.joint(joint).name
    return f"'{name}'" if name else f"{joint} of body '{model.body(body).name or body}'"
