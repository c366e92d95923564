"""Off-screen rendering of a robot in motion. It needs an OpenGL library (:mod:`.gl_library`)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.envs.poses import Pose

if TYPE_CHECKING:
    import mujoco

Picture = NDArray[np.uint8]
"""``(height, width, 3)``, red, green, blue."""

WIDTH = 640
HEIGHT = 480
_SHADOW_PIXELS = 2048
_MARKER_RGBA = (0.10, 0.90, 0.15, 0.65)
_MARKER_SIZE = 0.01
"""Radius of the goal marker as a share of the model's extent."""


def set_pose(model: mujoco.MjModel, data: mujoco.MjData, pose: Pose) -> None:
    """Bring ``data`` into ``pose``, and the terrain of ``model`` to where it lies."""
    import mujoco

    if pose.ground is not None:
        model.geom_pos[pose.ground.geom, :2] = (pose.ground.x_m, pose.ground.y_m)
    mujoco.mj_setState(model, data, pose.state, mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)


class PoseRenderer(contextlib.AbstractContextManager["PoseRenderer"]):
    """Draws poses of one robot. A context manager, because it holds an OpenGL context.

    :param model: never stepped; its visual settings are changed.
    """

    def __init__(self, model: mujoco.MjModel, width: int = WIDTH, height: int = HEIGHT) -> None:
        import mujoco

        from orchestrator.worker.rendering import camera

        self._model = model
        self._data = mujoco.MjData(model)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        # Shadows take half of the time, and few pixels are enough.
        model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, _SHADOW_PIXELS)
        self.renderer = mujoco.Renderer(model, height, width)
        self._camera = mujoco.MjvCamera()
        # After the renderer, or shadows would end at the new extent of the model.
        camera.follow(model, self._camera)

    def __exit__(self, *_: object) -> None:
        self.renderer.close()

    def picture(self, pose: Pose) -> Picture:
        """Draw the robot in ``pose``, and its goal if it has a place."""
        import mujoco

        set_pose(self._model, self._data, pose)
        self.renderer.update_scene(self._data, self._camera)
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
