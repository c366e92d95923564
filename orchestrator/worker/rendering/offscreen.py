"""Off-screen rendering of a robot in motion.

It needs an OpenGL library (:mod:`.gl_library`). The model and the data of the simulation are not
changed: a copy is rendered, with what :mod:`.scenery` adds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.envs.poses import Pose

if TYPE_CHECKING:
    import mujoco

    from orchestrator.worker.rendering.camera import RobotView

Picture = NDArray[np.uint8]
"""``(height, width, 3)``, red, green, blue."""

WIDTH = 640
HEIGHT = 480
_SHADOW_PIXELS = 2048
_MARKER_RGBA = (0.10, 0.90, 0.15, 0.65)
_MARKER_SIZE = 0.035
"""Size of the goal marker as a share of the robot's size."""


def set_pose(model: mujoco.MjModel, data: mujoco.MjData, pose: Pose) -> None:
    """Bring ``data`` into ``pose``, and the terrain of ``model`` to where it lies."""
    import mujoco

    if pose.ground is not None:
        model.geom_pos[pose.ground.geom, :2] = pose.ground.xy
    mujoco.mj_setState(model, data, pose.state, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)


@dataclass(frozen=True, slots=True)
class Frame:
    """A pose to be rendered, or a picture already rendered."""

    episode: int
    time_s: float
    """Seconds since the start of its episode."""
    content: Pose | Picture


class PoseRenderer(contextlib.AbstractContextManager["PoseRenderer"]):
    """Renders poses of one model. A context manager, because it holds an OpenGL context.

    :param model: never stepped; its visual settings are changed.
    :param size: width and height in pixels; None: those of a video.
    """

    def __init__(self, model: mujoco.MjModel, size: tuple[int, int] | None = None) -> None:
        import mujoco

        from orchestrator.worker.rendering import camera

        self._model = model
        self._data = mujoco.MjData(model)
        self._geoms = camera.robot_geoms(model)
        width, height = size or (WIDTH, HEIGHT)
        self._aspect = width / height
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        # Shadows reach no further than the robot (see render), so they need few pixels; they take
        # half of the time.
        model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, _SHADOW_PIXELS)
        self.renderer = mujoco.Renderer(model, height, width)
        self._option = mujoco.MjvOption()
        self._follower: mujoco.MjvCamera | None = None
        if not self._option.geomgroup[np.minimum(model.geom_group[self._geoms], 5)].any():
            self._option.geomgroup[:] = 1  # all geoms of the robot are in hidden groups

    def __exit__(self, *_: object) -> None:
        self.renderer.close()

    def cameras(self, frames: Sequence[Frame]) -> list[mujoco.MjvCamera]:
        """The camera for each frame; the contents must be :class:`Pose`."""
        from orchestrator.worker.rendering import camera

        return camera.choose(
            self._model, [self._robot_view(frame) for frame in frames], self._aspect
        )

    def render(self, frames: Sequence[Frame]) -> Iterator[Picture]:
        """A picture for each frame; the contents must be :class:`Pose`."""
        from orchestrator.worker.rendering import camera

        cameras = self.cameras(frames)
        # The size in metres of what is in view sets the clipping planes and the reach of shadows.
        corners = camera.corners(self._model, self._data, self._geoms)
        spread = float(np.linalg.norm(np.ptp(corners, axis=0)))
        is_free = cameras[0].fixedcamid < 0
        in_view = cameras[0].distance / 2 if is_free else 0.0
        self._model.stat.extent = max(spread, in_view, 1e-3)
        for frame, view in zip(frames, cameras, strict=True):
            yield self._draw(_pose(frame), view)

    def picture(self, pose: Pose) -> Picture:
        """A picture of a robot whose further motion is not known: by a camera that follows it at
        one distance.
        """
        import mujoco

        from orchestrator.worker.rendering import camera

        if self._follower is None:
            self._follower = mujoco.MjvCamera()
            camera.follow(self._model, self._follower)
        return self._draw(pose, self._follower)

    def _draw(self, pose: Pose, view: mujoco.MjvCamera) -> Picture:
        import mujoco

        set_pose(self._model, self._data, pose)
        self.renderer.update_scene(self._data, view, self._option)
        if pose.marker is not None:
            scene = self.renderer.scene
            mujoco.mjv_initGeom(
                scene.geoms[scene.ngeom],
                type=mujoco.mjtGeom.mjGEOM_SPHERE,
                size=np.full(3, _MARKER_SIZE * self._model.stat.extent),
                pos=np.array(pose.marker, float),
                mat=np.eye(3).ravel(),
                rgba=np.array(_MARKER_RGBA, np.float32),
            )
            scene.ngeom += 1
        picture: Picture = self.renderer.render()
        return picture

    def _robot_view(self, frame: Frame) -> RobotView:
        from orchestrator.worker.rendering import camera

        pose = _pose(frame)
        set_pose(self._model, self._data, pose)
        points = camera.corners(self._model, self._data, self._geoms)
        if pose.marker is not None:
            away = np.linalg.norm(points.mean(axis=0) - pose.marker)
            size = np.linalg.norm(np.ptp(points, axis=0))
            if away < 2 * size:  # a goal farther away need not be in the picture
                points = np.concatenate([points, np.array([pose.marker])])
        return camera.RobotView(
            episode=frame.episode,
            time_s=frame.time_s,
            corners=points,
            camera_positions=self._data.cam_xpos.copy(),
            camera_axes=self._data.cam_xmat.reshape(-1, 3, 3).copy(),
        )


def _pose(frame: Frame) -> Pose:
    assert isinstance(frame.content, Pose)
    return frame.content
