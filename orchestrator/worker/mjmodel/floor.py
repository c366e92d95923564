"""The floor of a compiled model.

The rules differ on purpose: a terrain takes the place of one of the :func:`level_floors`, which
robots stand on; a height is measured from the surface that is :func:`ground_below` it, which may be
a table. Pictures find their floors by a rule of their own
(:mod:`orchestrator.worker.rendering.scenery`).
"""

from __future__ import annotations

import mujoco
import numpy as np

from orchestrator.worker.mjmodel.structure import Floats, fixed_geoms, is_fixed

_DOWN = np.array([0.0, 0.0, -1.0])


def level_floors(model: mujoco.MjModel, data: mujoco.MjData) -> list[int]:
    """Numbers of the fixed planes with contacts that are level and not turned, nor is their body."""
    level = []
    is_plane = model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)
    for plane in np.flatnonzero(is_plane & fixed_geoms(model)).tolist():
        frames = [data.geom_xmat[plane], data.xmat[model.geom_bodyid[plane]]]
        is_level = np.allclose(frames, np.eye(3).ravel(), atol=1e-6)
        if _has_contacts(model, plane) and is_level:
            level.append(plane)
    return level


def ground_below(model: mujoco.MjModel, data: mujoco.MjData, point: Floats) -> float:
    """Height of the first fixed surface with contacts below ``point`` (3,); 0 where there is
    none.
    """
    origin = np.array(point)
    hit = np.zeros(1, np.int32)
    for _ in range(2 * model.ngeom):  # the ray enters and leaves each of the robot's geoms
        distance = mujoco.mj_ray(model, data, origin, _DOWN, None, True, -1, hit)
        if distance < 0:
            break
        geom = int(hit[0])
        origin[2] -= distance
        if is_fixed(model, model.geom_bodyid[geom]) and _has_contacts(model, geom):
            return float(origin[2])
        origin[2] -= 1e-6
    return 0.0


def _has_contacts(model: mujoco.MjModel, geom: int) -> bool:
    return bool(model.geom_contype[geom] or model.geom_conaffinity[geom])
