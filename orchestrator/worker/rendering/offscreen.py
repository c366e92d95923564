"""Off-screen rendering of a robot in motion: the OpenGL library, the scenery, the renderer.

MuJoCo chooses its OpenGL library when it is imported: call :func:`choose_gl` before, or
:func:`use_gl`. The model and the data of the simulation are not changed: a copy is rendered, with
floor, sky and light where they are missing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.exit_codes import CANNOT_RENDER
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.text import last_line
from orchestrator.worker.envs.poses import Pose

if TYPE_CHECKING:
    import mujoco

    from orchestrator.core.numbers.terrain import Terrain
    from orchestrator.worker.rendering.camera import RobotView

Picture = NDArray[np.uint8]
"""``(height, width, 3)``, red, green, blue."""

WIDTH = 640
HEIGHT = 480
_SHADOW_PIXELS = 2048
GL_LIBRARIES = ("egl", "osmesa")
"""In the order in which they are tried."""
_PROBE_LIMIT_S = 60.0
_PROBE = """
import os, mujoco
context = mujoco.GLContext(16, 16)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 100)
os._exit(0)
"""
_INSTALL = (
    "install a graphics driver with EGL, or Mesa's software renderer "
    "(Debian, Ubuntu: apt-get install libegl1 libgl1-mesa-dri, or libosmesa6)"
)
_SKY = (0.35, 0.50, 0.70)
_HORIZON = (0.85, 0.90, 0.95)
_FLOOR_RGBA = (0.75, 0.78, 0.80, 1.0)
_TILES = ((1.0, 1.0, 1.0), (0.86, 0.86, 0.86))
_SEEN_M = 20.0
"""How far around a robot its terrain is drawn."""
_MARKER_RGBA = (0.10, 0.90, 0.15, 0.65)
_MARKER_SIZE = 0.035
"""Size of the goal marker as a share of the robot's size."""


class CannotRender(OrchestratorError):
    """Pictures cannot be rendered here; the message says what to install."""

    exit_code = CANNOT_RENDER


def choose_gl() -> str:
    """Set ``MUJOCO_GL`` to a library that works here: the user's choice if there is one, else EGL,
    else OSMesa.

    Each is tried in a separate process, because a broken driver may crash and a loaded library
    cannot be unloaded.

    :raises CannotRender: none works.
    """
    asked = os.environ.get("MUJOCO_GL")
    problems = []
    for library in (asked,) if asked else GL_LIBRARIES:
        problem = _try_gl(library)
        if problem is None:
            os.environ["MUJOCO_GL"] = library
            return library
        problems.append(f"{library}: {problem}")
    if asked:
        cause = "the library in MUJOCO_GL does not work here"
        remedy = "unset MUJOCO_GL to try EGL and OSMesa"
    else:
        cause = "neither EGL nor OSMesa works here"
        remedy = _INSTALL
    raise CannotRender(
        f"cannot render pictures: {cause} ({'; '.join(problems)}); {remedy}. Training needs no rendering"
    )


@functools.cache
def use_gl() -> None:
    """:func:`choose_gl`, also where MuJoCo has been imported before: what it has chosen is
    replaced.

    :raises CannotRender: none works.
    """
    library = choose_gl()
    if library in GL_LIBRARIES and "mujoco" in sys.modules:
        from mujoco.rendering.classic import gl_context

        gl_context.GLContext = importlib.import_module(f"mujoco.{library}").GLContext


def _try_gl(library: str) -> str | None:
    """Why the library cannot be used, in one line; None if it can."""
    with TemporaryFolder() as folder:  # on failure MuJoCo writes MUJOCO_LOG.TXT
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
    return last_line(done.stderr, f"ended with exit code {done.returncode}")


def add_scenery(
    xml: Path, terrain: Terrain | None = None, poses: Sequence[Pose] = ()
) -> mujoco.MjModel:
    """The robot of ``xml`` with what the file lacks for a picture: a tiled floor, a sky, light
    everywhere.

    Bodies and joints keep their numbers, and the state keeps its layout.

    :param terrain: in place of its floor; where it lies, poses say.
    :param poses: all that will be drawn, so that the terrain need not reach farther; empty: they
        are not known.
    """
    import mujoco

    spec = mujoco.MjSpec.from_file(str(xml.absolute()))
    _add_sky(spec)
    if terrain is None:
        floors = _floors(spec) or [_add_floor(spec)]
    else:
        from orchestrator.worker.envs.randomization.rough_terrain import lay_terrain

        floors = [lay_terrain(spec, terrain, _reach(spec, poses) if poses else math.inf)]
    if not any(floor.material for floor in floors):
        _tile(spec, floors)
    _add_sun(spec)
    return spec.compile()


def _add_sky(spec: mujoco.MjSpec) -> None:
    """Add a sky where there is none."""
    import mujoco

    if any(texture.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX for texture in spec.textures):
        return
    sky = spec.add_texture(
        name="orchestrator sky", rgb1=_HORIZON, rgb2=_SKY, width=256, height=1536
    )
    sky.type = mujoco.mjtTexture.mjTEXTURE_SKYBOX
    sky.builtin = mujoco.mjtBuiltin.mjBUILTIN_GRADIENT


def _floors(spec: mujoco.MjSpec) -> list[mujoco.MjsGeom]:
    """The robot's own floors."""
    import mujoco

    ground = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
    return [geom for geom in spec.worldbody.geoms if geom.type in ground]


def _add_floor(spec: mujoco.MjSpec) -> mujoco.MjsGeom:
    """Add a plane below all geoms, which nothing touches."""
    import mujoco

    bare = spec.compile()
    data = mujoco.MjData(bare)
    mujoco.mj_forward(bare, data)
    lowest = min(
        (data.geom_xpos[geom, 2] - bare.geom_rbound[geom] for geom in range(bare.ngeom)),
        default=0.0,
    )
    floor = spec.worldbody.add_geom(
        name="orchestrator floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1)
    )
    floor.pos = (0, 0, min(lowest, 0.0))
    floor.rgba = _FLOOR_RGBA
    floor.contype = 0
    floor.conaffinity = 0
    return floor


def _tile(spec: mujoco.MjSpec, floors: Sequence[mujoco.MjsGeom]) -> None:
    """Cover ``floors`` with tiles half a metre wide: on one colour motion is invisible."""
    import mujoco

    light, dark = _TILES
    tiles = spec.add_texture(
        name="orchestrator tiles", rgb1=light, rgb2=dark, width=128, height=128
    )
    tiles.type = mujoco.mjtTexture.mjTEXTURE_2D
    tiles.builtin = mujoco.mjtBuiltin.mjBUILTIN_CHECKER
    material = spec.add_material(name="orchestrator tiles", texrepeat=(1, 1), texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = tiles.name
    for floor in floors:
        floor.material = material.name


def _add_sun(spec: mujoco.MjSpec) -> None:
    """Add a light where none is directional: others light one place, from which robots walk
    away.
    """
    import mujoco

    own = [light for light in spec.lights if light.active]
    directional = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    if any(light.type == directional for light in own):
        return
    brightness = 0.35 if own else 0.6
    sun = spec.worldbody.add_light(name="orchestrator sun", type=directional, castshadow=not own)
    sun.mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
    sun.diffuse = (brightness, brightness, brightness)
    sun.pos = (-1, -2, 4)
    sun.dir = (0.25, 0.45, -1)


def _reach(spec: mujoco.MjSpec, poses: Sequence[Pose]) -> float:
    """How far from the middle of the terrain it is seen in ``poses``, in metres along x or y."""
    import mujoco

    model = spec.compile()
    data = mujoco.MjData(model)
    away = [0.0]
    for pose in poses:
        if pose.ground is not None:
            mujoco.mj_setState(model, data, pose.state, mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_kinematics(model, data)
            middle = data.xpos[model.geom_bodyid[pose.ground.geom], :2] + pose.ground.xy
            away.append(float(np.abs(data.xpos[model.jnt_bodyid, :2] - middle).max()))
    return max(away) + _SEEN_M


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
