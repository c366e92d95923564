"""Gains of position servos by the inertia that they move.

A servo of stiffness kp and damping kv on an inertia J is a second-order system of natural frequency
ω = √(kp / J) and damping ratio ζ = kv / (2 √(kp J)) (Åström and Murray, Feedback Systems,
second-order systems). Critical damping, ζ = 1, at a given ω has kp = J ω² and kv = 2 J ω.

J changes with the pose: the largest of some poses is taken, so that the servo is critically damped
where it moves most, and overdamped, hence without overshoot, elsewhere. On a fixed base it is the
joint's entry on the diagonal of the mass matrix. On a floating one, a foot on the ground holds the
limb and moves everything else: the larger of both sides is taken, as a knee that carries the robot
needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

POSES = 32
DIGITS = 4
"""Significant digits of gains: the same robot on every machine."""
Floats = NDArray[np.float64]


def servo_gains(
    model: mujoco.MjModel,
    start: Floats,
    joints: Sequence[int],
    frequency_hz: float,
    *,
    is_floating: bool,
    given_kp: Mapping[int, float],
    given_kd: Mapping[int, float],
) -> list[tuple[float, float]]:
    """``(kp, kd)`` of each joint, in N·m/rad and N·m·s/rad, or N/m and N·s/m.

    :param start: ``(nq,)`` positions at the start.
    :param given_kp: joint → its kp, in the place of that of the frequency.
    :param given_kd: joint → its kd, in the place of critical damping.
    """
    omega = 2 * math.pi * frequency_hz
    inertias = largest_inertias(model, start, joints, is_floating=is_floating).tolist()
    gains = list[tuple[float, float]]()
    for joint, inertia in zip(joints, inertias, strict=True):
        kp = _round(inertia * omega**2)
        kd = _round(2 * inertia * omega)
        if joint in given_kp:
            kp = given_kp[joint]
            kd = _round(2 * math.sqrt(kp * inertia))
        gains.append((kp, given_kd.get(joint, kd)))
    return gains


def largest_inertias(
    model: mujoco.MjModel, start: Floats, joints: Sequence[int], *, is_floating: bool
) -> Floats:
    """``(len(joints),)`` the largest inertia (kg·m², slides kg) that each joint moves, of
    :data:`POSES` poses.

    The first is the start; in the others, joints are uniformly distributed within their limits, or
    a turn.
    """
    random = np.random.default_rng(0)
    data = mujoco.MjData(model)
    slide = int(mujoco.mjtJoint.mjJNT_SLIDE)
    simple = [joint for joint in range(model.njnt) if int(model.jnt_type[joint]) >= slide]
    limited = model.jnt_limited.astype(bool)
    dofs = model.jnt_dofadr[list(joints)]
    largest = np.zeros(len(joints))
    for number in range(POSES):
        data.qpos[:] = start
        if number > 0:
            for joint in simple:
                share = random.random()
                low, high = model.jnt_range[joint]
                if limited[joint]:
                    data.qpos[model.jnt_qposadr[joint]] = low + share * (high - low)
                elif int(model.jnt_type[joint]) != slide:
                    data.qpos[model.jnt_qposadr[joint]] = math.pi * (2 * share - 1)
        mujoco.mj_fwdPosition(model, data)
        matrix = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, matrix)
        below = np.diag(matrix)[dofs]
        largest = np.maximum(largest, below)
        if is_floating:
            whole = np.array([_inertia_of_all(model, data, joint) for joint in joints])
            above = whole - (below - model.dof_armature[dofs])
            largest = np.maximum(largest, above)
    return largest


def _inertia_of_all(model: mujoco.MjModel, data: mujoco.MjData, joint: int) -> float:
    """Inertia of the whole robot, rigid, about a hinge in kg·m²; for a slide its mass in kg."""
    if int(model.jnt_type[joint]) == int(mujoco.mjtJoint.mjJNT_SLIDE):
        return float(model.body_mass.sum())
    axis = data.xaxis[joint]
    arm = data.xipos - data.xanchor[joint]
    squares = (arm**2).sum(axis=1) - (arm @ axis) ** 2
    turned = np.einsum("bij,i->bj", data.ximat.reshape(-1, 3, 3), axis) ** 2
    return float((model.body_mass * squares).sum() + (turned * model.body_inertia).sum())


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
