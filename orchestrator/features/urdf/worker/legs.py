"""Whether a robot plainly stands on legs, by which its base is guessed to move freely.

A leg is a chain of driven hinges from the base, whose end is where the robot is lowest. Arms end
higher, fingers point away from the palm, and a pedestal reaches the ground itself. What is less
plain is not guessed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.features.urdf.worker.servo_gains import Floats
from orchestrator.features.urdf.worker.start_pose import lowest_points
from orchestrator.features.urdf.worker.urdf_structure import shown

LEAST_JOINTS = {2: 3, 4: 2, 6: 2, 8: 2}
"""Number of legs → the joints that each has at least: two chains of two joints may be a gripper."""
SAME_HEIGHT = 0.1
"""Part of the robot's height by which ends of legs may differ from its lowest point."""
LEAST_CLEARANCE = 0.25
"""Part of the robot's height that the base is above the ends of the legs, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    ends: tuple[str, ...]
    """The last link of each that a joint moves."""
    joints: int
    """Of each."""

    def __str__(self) -> str:
        return f"{len(self.ends)} legs of {self.joints} joints end in {shown(self.ends)}"


def find_legs(
    model: mujoco.MjModel, pose: Floats, root: str, driven: Collection[str]
) -> Legs | None:
    """The legs of a robot; None where it plainly has none.

    :param model: of the robot with a free joint at ``root``, the name of its body.
    :param pose: ``(nq,)`` positions at the start.
    :param driven: names of the joints that get actuators.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    base = int(model.body(root).id)
    lowest = lowest_points(model, data)
    height = float(data.xpos[1:, 2].max()) - float(lowest[1:].min())
    chains = _chains(model, base, driven)
    ground = float(lowest[1:].min())
    legs = [
        chain
        for first, chain in chains.items()
        if _lowest_below(model, lowest, first) <= ground + SAME_HEIGHT * height
    ]
    counts = {len(chain) for chain in legs}
    if len(counts) != 1:
        return None
    joints = counts.pop()
    is_enough = joints >= LEAST_JOINTS.get(len(legs), joints + 1)
    if not is_enough or float(lowest[base]) < ground + LEAST_CLEARANCE * height:
        return None
    ends = tuple(model.body(chain[-1]).name for chain in legs)
    return Legs(ends=ends, joints=joints)


def _chains(model: mujoco.MjModel, base: int, driven: Collection[str]) -> dict[int, list[int]]:
    """First body of each chain of driven hinges from the base → its bodies with joints, outwards."""
    chains: dict[int, list[int]] = {}
    branched = set[int]()
    chain_of: dict[int, int] = {}
    for body in range(base + 1, model.nbody):
        above = int(model.body_parentid[body])
        first = body if above == base else chain_of.get(above)
        if first is None:
            continue
        chain_of[body] = first
        if not model.body_jntnum[body]:
            continue
        chain = chains.setdefault(first, [])
        is_next = not chain or _moved_above(model, body) == chain[-1]
        joint = int(model.body_jntadr[body])
        is_hinge = int(model.jnt_type[joint]) == int(mujoco.mjtJoint.mjJNT_HINGE)
        if not is_next or not is_hinge or model.joint(joint).name not in driven:
            branched.add(first)
        chain.append(body)
    return {first: chain for first, chain in chains.items() if first not in branched}


def _moved_above(model: mujoco.MjModel, body: int) -> int:
    """The nearest body above that has a joint."""
    above = int(model.body_parentid[body])
    while above and not model.body_jntnum[above]:
        above = int(model.body_parentid[above])
    return above


def _lowest_below(model: mujoco.MjModel, lowest: Floats, body: int) -> float:
    """Of ``body`` and all that hangs on it."""
    inside = {body}
    for other in range(body + 1, model.nbody):
        if int(model.body_parentid[other]) in inside:
            inside.add(other)
    return float(np.min(lowest[list(inside)]))
