"""Camera placement, computed from the whole motion so that every frame shows the whole robot.

All poses are known before the first one is rendered. So the camera stands as near as the largest
excursion allows, and a camera that follows the robot does so without delay.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.robot import joints_of_robot
from orchestrator.worker.mjmodel.root import NoRootError, find_root
from orchestrator.worker.mjmodel.structure import driven_dofs, posed_data

Floats = NDArray[np.float64]

MARGIN = 0.1
"""Share of the picture that a computed camera leaves free on every side."""
MODEL_CAMERA_MARGIN = 0.02
"""Share of the picture that a camera of the model must leave free on every side."""
LEAST_SIZE = 0.2
"""Least mean share of the picture's height or width that the robot must take in a camera of the
model."""
STILL_RATIO = 1.5
"""The computed camera stands still if that needs at most this many times the distance of one that
follows."""
SMOOTH_S = 0.5
"""Seconds over which the followed path is averaged horizontally."""
SMOOTH_HEIGHT_S = 1.0
"""Seconds over which its height is averaged."""
AZIMUTH = 105.0
"""Degrees: nearly from the side."""
ELEVATION = -18.0
"""Degrees: slightly from above."""
FROM_ABOVE = -50.0
"""Degrees of elevation for flat scenes."""
FLAT_RATIO = 0.15
"""Ratio of height to width of the occupied space below which the camera looks from above."""
WINDOW_DISTANCE = 2.5
"""First distance of a window's camera, in diagonals of the robot."""

_SIGNS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
_FOLLOWING = (
    int(mujoco.mjtCamLight.mjCAMLIGHT_TRACK),
    int(mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM),
)
_UNBOUNDED = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)


@dataclass(frozen=True, slots=True)
class RobotView:
    """Where the robot is in one picture."""

    episode: int
    time_s: float
    """Seconds since the start of its episode."""
    corners: Floats
    """``(n, 3)`` corners of the boxes around everything that must be visible, in world
    coordinates."""
    camera_positions: Floats
    """``(ncam, 3)`` positions of the model's cameras."""
    camera_axes: Floats
    """``(ncam, 3, 3)`` orientations of the model's cameras; columns: right, up, back."""


def robot_geoms(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Numbers of the geoms that belong to the robot.

    For one that moves about, those of trees with actuators. For one on a fixed base, those of trees
    with joints other than a free one, as what it moves belongs into the picture. Free objects are
    left out, as they may fly anywhere, unless nothing else moves. The base of a robot that is bolted
    to the world is included where it is no larger than the robot.
    """
    roots = _roots(model)
    mine = np.isin(model.body_rootid[model.geom_bodyid], roots) & (model.geom_bodyid > 0)
    bounded = ~np.isin(model.geom_type, [int(kind) for kind in _UNBOUNDED])
    visible = model.geom_rgba[:, 3] > 0
    for geoms in (mine & bounded & visible, mine & bounded, bounded):
        if geoms.any():
            return np.flatnonzero(geoms | (_pedestal(model, geoms) & bounded & visible))
    return np.arange(model.ngeom)


def _roots(model: mujoco.MjModel) -> NDArray[np.int32]:
    """The bodies below the world that have the robot in them."""
    roots_of_joints: NDArray[np.int32] = model.body_rootid[model.jnt_bodyid]
    data = posed_data(model, model.qpos0)
    if driven_dofs(model, data).any():
        with contextlib.suppress(NoRootError):  # several robots: all of them are shown
            root = find_root(model, model.qpos0)
            return roots_of_joints[joints_of_robot(model, data, root.body)]
    articulated = roots_of_joints[model.jnt_type != int(mujoco.mjtJoint.mjJNT_FREE)]
    return articulated if len(articulated) else roots_of_joints


def _pedestal(model: mujoco.MjModel, robot: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """``(ngeom,)`` which geoms of the world itself are the base of a robot that is bolted to it."""
    roots = np.unique(model.body_rootid[model.geom_bodyid[robot]])
    travels = np.isin(model.jnt_bodyid, roots) & (
        model.jnt_type != int(mujoco.mjtJoint.mjJNT_HINGE)
    )
    if travels.any():
        return np.zeros(model.ngeom, bool)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    own = corners(model, data, np.flatnonzero(robot))
    size = np.linalg.norm(np.ptp(own, axis=0))
    near = np.linalg.norm(data.geom_xpos - own.mean(axis=0), axis=1) < size
    return np.asarray((model.geom_bodyid == 0) & (2 * model.geom_rbound < size) & near)


def corners(model: mujoco.MjModel, data: mujoco.MjData, geoms: NDArray[np.intp]) -> Floats:
    """``(8 len(geoms), 3)`` corners of the boxes around ``geoms``, in world coordinates."""
    boxes = model.geom_aabb[geoms]
    local = boxes[:, None, :3] + _SIGNS * boxes[:, None, 3:]
    turned = np.einsum("gij,gkj->gki", data.geom_xmat[geoms].reshape(-1, 3, 3), local)
    return np.asarray((data.geom_xpos[geoms, None, :] + turned).reshape(-1, 3))


def choose(
    model: mujoco.MjModel, views: Sequence[RobotView], aspect: float
) -> list[mujoco.MjvCamera]:
    """A camera for each of ``views``: one of the model's if it shows the whole motion, otherwise a
    computed one.

    :param aspect: width of the picture divided by its height.
    """
    fixed_in_world = [cam for cam in range(model.ncam) if model.cam_bodyid[cam] == 0]
    following = [cam for cam in range(model.ncam) if int(model.cam_mode[cam]) in _FOLLOWING]
    for cam in dict.fromkeys(following + fixed_in_world):
        if _shows_all(model, cam, views, aspect):
            camera = mujoco.MjvCamera()
            camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            camera.fixedcamid = cam
            return [camera] * len(views)
    return _computed_cameras(views, math.tan(math.radians(model.vis.global_.fovy) / 2), aspect)


def follow(model: mujoco.MjModel, camera: mujoco.MjvCamera) -> None:
    """Let a window's camera follow the robot at a near distance, which the user may change.

    :param model: the rendered one; the reach of its shadows is changed.
    """
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    geoms = robot_geoms(model)
    camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    camera.trackbodyid = model.body_rootid[model.geom_bodyid[geoms[0]]]
    # The reach of shadows.
    model.stat.extent = float(np.linalg.norm(np.ptp(corners(model, data, geoms), axis=0)))
    camera.distance = WINDOW_DISTANCE * model.stat.extent
    camera.azimuth = AZIMUTH
    camera.elevation = ELEVATION


def _shows_all(model: mujoco.MjModel, cam: int, views: Sequence[RobotView], aspect: float) -> bool:
    """Whether a camera of the model has the whole robot in every picture, upright and large
    enough.
    """
    perspective = int(model.cam_projection[cam]) == int(mujoco.mjtProjection.mjPROJ_PERSPECTIVE)
    if model.cam_sensorsize[cam].any() or not perspective:  # special optics
        return False
    half = math.tan(math.radians(model.cam_fovy[cam]) / 2)
    sizes = []
    for view in views:
        axes = view.camera_axes[cam]
        if axes[2, 1] < abs(axes[2, 0]):  # the picture is not upright
            return False
        seen = (view.corners - view.camera_positions[cam]) @ axes
        depth = -seen[:, 2]
        if depth.min() <= 0:
            return False
        across = seen[:, :2] / (depth[:, None] * half * np.array([aspect, 1.0]))
        if np.abs(across).max() > 1 - 2 * MODEL_CAMERA_MARGIN:
            return False
        sizes.append(float(np.ptp(across, axis=0).max()) / 2)
    return float(np.mean(sizes)) >= LEAST_SIZE


def _computed_cameras(
    views: Sequence[RobotView], half: float, aspect: float
) -> list[mujoco.MjvCamera]:
    """Computed cameras: standing still where that is near enough, else following the robot.

    :param half: tangent of half the vertical angle of view.
    """
    everything = np.concatenate([view.corners for view in views])
    space = np.ptp(everything, axis=0)
    elevation = FROM_ABOVE if space[2] < FLAT_RATIO * max(space[:2]) else ELEVATION
    middle = (everything.min(axis=0) + everything.max(axis=0)) / 2
    path = _smooth_path(views)
    still = _distance([everything - middle], elevation, half, aspect)
    clouds = [view.corners - centre for view, centre in zip(views, path, strict=True)]
    following = _distance(clouds, elevation, half, aspect)
    if still <= STILL_RATIO * following:
        return [_free_camera(middle, still, elevation)] * len(views)
    return [_free_camera(centre, following, elevation) for centre in path]


def _free_camera(lookat: Floats, distance: float, elevation: float) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = lookat
    camera.distance = distance
    camera.azimuth = AZIMUTH
    camera.elevation = elevation
    return camera


def _smooth_path(views: Sequence[RobotView]) -> Floats:
    """``(len(views), 3)`` the robot's centre, averaged symmetrically in time within its episode, so
    without delay.
    """
    middles = np.array(
        [(view.corners.min(axis=0) + view.corners.max(axis=0)) / 2 for view in views]
    )
    times = np.array([view.time_s for view in views], float)
    episodes = np.array([view.episode for view in views])
    path = np.empty_like(middles)
    for index, time_s in enumerate(times):
        is_same = episodes == episodes[index]
        begin = times[is_same].min()
        end = times[is_same].max()
        for axes, window_s in ((slice(0, 2), SMOOTH_S), (slice(2, 3), SMOOTH_HEIGHT_S)):
            # A symmetric window, or the ends of the path would be pulled inwards.
            reach = min(window_s / 2, time_s - begin, end - time_s)
            is_near = is_same & (np.abs(times - time_s) <= reach + 1e-9)
            path[index, axes] = middles[is_near][:, axes].mean(axis=0)
    return path


def _distance(points: Sequence[Floats], elevation: float, half: float, aspect: float) -> float:
    """The smallest distance from which all points are in the picture; they are relative to the
    point looked at.
    """
    azimuth = math.radians(AZIMUTH)
    tilt = math.radians(elevation)
    forward = np.array(
        [math.cos(tilt) * math.cos(azimuth), math.cos(tilt) * math.sin(azimuth), math.sin(tilt)]
    )
    right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
    up = np.cross(right, forward)
    reach = half * (1 - 2 * MARGIN)
    needed = 1e-3
    for cloud in points:
        across = np.abs(cloud @ right) / (reach * aspect)
        upwards = np.abs(cloud @ up) / reach
        needed = max(needed, float((np.maximum(across, upwards) - cloud @ forward).max()))
    return needed
