"""Off-screen rendering of a robot in motion: the OpenGL library, the scenery, the renderer.

MuJoCo chooses its OpenGL library when it is imported: call :func:`choose_gl` before. The model and the data of the
simulation are not changed: a copy is rendered, with floor, sky and light where they are missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import mujoco

    from orchestrator.worker.rendering.camera import Moment

Picture = NDArray[np.uint8]
"""``(height, width, 3)``, red, green, blue."""

WIDTH, HEIGHT = 640, 480
_SHADOW_PIXELS = 2048
_GL_LIBRARIES = ("egl", "osmesa")
_PROBE_LIMIT_S = 60.0
_PROBE = """
import os, mujoco
context = mujoco.GLContext(16, 16)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 100)
os._exit(0)
"""
_SKY, _HORIZON = (0.35, 0.50, 0.70), (0.85, 0.90, 0.95)
_FLOOR_RGBA = (0.75, 0.78, 0.80, 1.0)
_TILES = ((1.0, 1.0, 1.0), (0.86, 0.86, 0.86))
_MARKER_RGBA, _MARKER_SIZE = (0.10, 0.90, 0.15, 0.65), 0.035
"""Size of the goal marker as a share of the robot's size."""


class CannotRender(Exception):
    """Pictures cannot be rendered here; the message says what to install."""


def choose_gl() -> str:
    """Set ``MUJOCO_GL`` to a library that works here: the user's choice if there is one, else EGL, else OSMesa.

    Each is tried in a separate process, because a broken driver may crash and a loaded library cannot be unloaded.

    :raises CannotRender: none works.
    """
    asked = os.environ.get("MUJOCO_GL")
    problems = []
    for library in (asked,) if asked else _GL_LIBRARIES:
        problem = _try_gl(library)
        if problem is None:
            os.environ["MUJOCO_GL"] = library
            return library
        problems.append(f"{library}: {problem}")
    remedy = (
        "unset MUJOCO_GL to try EGL and OSMesa"
        if asked
        else "install a graphics driver with EGL, or Mesa's software renderer "
        "(Debian, Ubuntu: apt-get install libegl1 libgl1-mesa-dri, or libosmesa6)"
    )
    cause = "the library in MUJOCO_GL does not work here" if asked else "neither EGL nor OSMesa works here"
    raise CannotRender(
        f"cannot render pictures: {cause} ({'; '.join(problems)}); {remedy}. Training needs no rendering"
    )


def _try_gl(library: str) -> str | None:
    """Why the library cannot be used, in one line; None if it can."""
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:  # on failure MuJoCo writes MUJOCO_LOG.TXT
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _PROBE],
                env={**os.environ, "MUJOCO_GL": library},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {_PROBE_LIMIT_S:.0f} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"])[-1]


def add_scenery(xml: Path) -> mujoco.MjModel:
    """The robot of ``xml`` with what the file lacks for a picture: a tiled floor, a sky, light everywhere.

    Bodies, joints and geoms keep their numbers, and the state keeps its layout.
    """
    import mujoco

    spec = mujoco.MjSpec.from_file(str(xml.absolute()))
    if all(texture.type != mujoco.mjtTexture.mjTEXTURE_SKYBOX for texture in spec.textures):
        spec.add_texture(
            name="orchestrator sky",
            type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
            rgb1=_HORIZON,
            rgb2=_SKY,
            width=256,
            height=1536,
        )
    ground = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
    floors = [geom for geom in spec.worldbody.geoms if geom.type in ground]
    if not floors:
        bare = spec.compile()
        data = mujoco.MjData(bare)
        mujoco.mj_forward(bare, data)
        lowest = min((data.geom_xpos[geom, 2] - bare.geom_rbound[geom] for geom in range(bare.ngeom)), default=0.0)
        floor = spec.worldbody.add_geom(
            name="orchestrator floor",
            type=mujoco.mjtGeom.mjGEOM_PLANE,
            pos=(0, 0, min(lowest, 0.0)),
            size=(0, 0, 1),
            rgba=_FLOOR_RGBA,
            contype=0,
            conaffinity=0,
        )
        floors = [floor]
    if not any(floor.material for floor in floors):
        _tile(spec, floors)
    own = [light for light in spec.lights if light.active]
    everywhere = any(light.type == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL for light in own)
    if not everywhere:  # spot and point lights light one place, from which robots walk away
        strength = 0.35 if own else 0.6
        spec.worldbody.add_light(
            name="orchestrator sun",
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
            mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,
            pos=(-1, -2, 4),
            dir=(0.25, 0.45, -1),
            diffuse=(strength,) * 3,
            castshadow=not own,
        )
    return spec.compile()


def _tile(spec: Any, floors: Sequence[Any]) -> None:
    """Tiles half a metre wide: on a floor of one colour motion is invisible."""
    import mujoco

    spec.add_texture(
        name="orchestrator tiles",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=_TILES[0],
        rgb2=_TILES[1],
        width=128,
        height=128,
    )
    material = spec.add_material(name="orchestrator tiles", texrepeat=(1, 1), texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "orchestrator tiles"
    for floor in floors:
        floor.material = "orchestrator tiles"


@dataclass(frozen=True, slots=True)
class Pose:
    """The state of a robot at one moment."""

    state: NDArray[np.float64]
    """MuJoCo's ``mjSTATE_INTEGRATION``."""
    marker: tuple[float, float, float] | None = None
    """Position of its goal in world coordinates."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A pose to be rendered, or a picture already rendered."""

    episode: int
    time_s: float
    """Since the start of its episode."""
    content: Pose | Picture


class PoseRenderer:
    """Renders poses of one model. A context manager, because it holds an OpenGL context.

    :param model: never stepped; its visual settings are changed.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        import mujoco

        from orchestrator.worker.rendering import camera

        self._model = model
        self._data = mujoco.MjData(model)
        self._geoms = camera.robot_geoms(model)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, WIDTH)
        model.vis.global_.offheight = max(model.vis.global_.offheight, HEIGHT)
        # Shadows reach no further than the robot (see render), so they need few pixels; they take half of the time.
        model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, _SHADOW_PIXELS)
        self.renderer = mujoco.Renderer(model, HEIGHT, WIDTH)
        self._option = mujoco.MjvOption()
        if not self._option.geomgroup[np.minimum(model.geom_group[self._geoms], 5)].any():
            self._option.geomgroup[:] = 1  # all geoms of the robot are in hidden groups

    def __enter__(self) -> PoseRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.renderer.close()

    def cameras(self, frames: Sequence[Frame]) -> list[mujoco.MjvCamera]:
        """The camera for each frame; the contents must be :class:`Pose`."""
        from orchestrator.worker.rendering import camera

        return camera.choose(self._model, [self._moment(frame) for frame in frames], WIDTH / HEIGHT)

    def render(self, frames: Sequence[Frame]) -> Iterator[Picture]:
        """A picture for each frame; the contents must be :class:`Pose`."""
        import mujoco

        cameras = self.cameras(frames)
        extent = self._model.stat.extent = self._visible_extent(cameras[0])
        for frame, view in zip(frames, cameras, strict=True):
            pose = self._set_pose(frame)
            self.renderer.update_scene(self._data, view, self._option)
            if pose.marker is not None:
                scene = self.renderer.scene
                size = np.full(3, _MARKER_SIZE * extent)
                rgba = np.array(_MARKER_RGBA, np.float32)
                sphere = mujoco.mjtGeom.mjGEOM_SPHERE
                place = np.array(pose.marker, float)
                mujoco.mjv_initGeom(scene.geoms[scene.ngeom], sphere, size, place, np.eye(3).ravel(), rgba)
                scene.ngeom += 1
            yield self.renderer.render()

    def _visible_extent(self, view: mujoco.MjvCamera) -> float:
        """Size in metres of what is in view, which sets the clipping planes and the reach of shadows."""
        from orchestrator.worker.rendering import camera

        spread = np.ptp(camera.corners(self._model, self._data, self._geoms), axis=0)
        return max(float(np.linalg.norm(spread)), view.distance / 2 if view.fixedcamid < 0 else 0.0, 1e-3)

    def _set_pose(self, frame: Frame) -> Pose:
        import mujoco

        assert isinstance(frame.content, Pose)
        mujoco.mj_setState(self._model, self._data, frame.content.state, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(self._model, self._data)
        return frame.content

    def _moment(self, frame: Frame) -> Moment:
        from orchestrator.worker.rendering import camera

        pose = self._set_pose(frame)
        points = camera.corners(self._model, self._data, self._geoms)
        if pose.marker is not None:
            size = np.linalg.norm(np.ptp(points, axis=0))
            if (
                np.linalg.norm(points.mean(axis=0) - pose.marker) < 2 * size
            ):  # a goal farther away need not be in the picture
                points = np.concatenate([points, np.array([pose.marker])])
        return camera.Moment(
            episode=frame.episode,
            time_s=frame.time_s,
            corners=points,
            camera_positions=self._data.cam_xpos.copy(),
            camera_axes=self._data.cam_xmat.reshape(-1, 3, 3).copy(),
        )
