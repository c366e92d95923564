"""A camera that follows the robot from one direction, at a distance by the robot's size."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.structure import driven_dofs, posed_data

AZIMUTH = 105.0
"""Degrees: nearly from the side."""
ELEVATION = -20.0
"""Degrees: slightly from above."""
MARGIN = 1.3
"""Distance of the camera, where 1 would be the nearest from which the robot is seen whole in the pose
of its file."""
EXTENT = 8.0
"""Extent of the drawn model in radii of the robot: what is nearer than a hundredth of it or farther
than 50 times is not seen."""


def follow(model: mujoco.MjModel, camera: mujoco.MjvCamera) -> None:
    """Let ``camera`` follow the robot: what actuators move, or whatever moves if there are none.

    :param model: the one that is drawn. Its extent, which sets clipping planes, is changed.
    """
    data = posed_data(model, model.qpos0)
    driven = driven_dofs(model, data)
    bodies = model.dof_bodyid[driven] if driven.any() else model.dof_bodyid
    roots = np.unique(model.body_rootid[bodies])
    camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    # The centre of mass of the robot, or of everything if the robot is not one tree of bodies.
    camera.trackbodyid = roots[0] if len(roots) == 1 else 0
    geoms = np.isin(model.body_rootid[model.geom_bodyid], roots)
    away = np.linalg.norm(data.geom_xpos - data.subtree_com[camera.trackbodyid], axis=1)
    radius = float((away + model.geom_rbound).max(where=geoms, initial=1e-3))
    camera.distance = MARGIN * radius / math.sin(math.radians(model.vis.global_.fovy / 2))
    camera.azimuth = AZIMUTH
    camera.elevation = ELEVATION
    model.stat.extent = EXTENT * radius
