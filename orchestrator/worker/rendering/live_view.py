"""Robots shown while they move: in MuJoCo's viewer in real time, or as pictures."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import UsageError
from orchestrator.worker.envs.poses import Pose
from orchestrator.worker.rendering import gl_library, offscreen, scenery
from orchestrator.worker.rendering.offscreen import Picture, PoseRenderer

if TYPE_CHECKING:
    import mujoco

    from orchestrator.core.numbers.terrain import Terrain

RENDER_MODES = ("human", "rgb_array")


def check_render_mode(render_mode: str | None) -> None:
    """Check a mode. :raises UsageError: it is neither None nor one of :data:`RENDER_MODES`."""
    if render_mode not in (None, *RENDER_MODES):
        raise UsageError(
            f'render_mode = "{render_mode}": expected None, {" or ".join(RENDER_MODES)}'
        )


@functools.cache
def display_problem() -> str:
    """Return why no window can be opened here, or an empty text if one can."""
    name = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    if not name:
        return "no display here (DISPLAY and WAYLAND_DISPLAY are not set)"
    import glfw

    with warnings.catch_warnings(record=True) as messages:  # GLFW's errors come as warnings
        warnings.simplefilter("always")
        if glfw.init():  # and not terminated: windows of the same process may be open
            return ""
    why = f" ({messages[-1].message})" if messages else ""
    return f"display {name} cannot be used{why}"


class ViewerWindow(contextlib.AbstractContextManager["ViewerWindow"]):
    """MuJoCo's viewer of one model, until the user closes it or the ``with`` block ends.

    :param period_s: simulated time between poses, which are shown in real time.
    """

    def __init__(self, model: mujoco.MjModel, period_s: float) -> None:
        import mujoco
        import mujoco.viewer

        from orchestrator.worker.rendering import camera

        self._model = model
        self._data = mujoco.MjData(model)
        self._period_s = period_s
        self._viewer = mujoco.viewer.launch_passive(
            model, self._data, show_left_ui=False, show_right_ui=False
        )
        with self._viewer.lock():
            camera.follow(model, self._viewer.cam)
        self._due = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._viewer.close()

    @property
    def is_open(self) -> bool:
        return bool(self._viewer.is_running())

    def show(self, pose: Pose) -> None:
        """Show ``pose`` and wait until the next one is due."""
        with self._viewer.lock():
            offscreen.set_pose(self._model, self._data, pose)
        self._viewer.sync()
        self._due = max(self._due + self._period_s, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))


class LiveView:
    """What ``render`` of a running environment shows, as gymnasium defines it.

    :param xml: the robot.
    :param terrain: in place of its floor.
    :param render_mode: one of :data:`RENDER_MODES`.
    :param period_s: simulated time between control steps.
    """

    def __init__(
        self, xml: Path, render_mode: str, period_s: float, terrain: Terrain | None = None
    ) -> None:
        self._xml = xml
        self._render_mode = render_mode
        self._period_s = period_s
        self._terrain = terrain
        self._opened: ViewerWindow | PoseRenderer | None = None
        self._is_blind = False
        if render_mode == "human" and (problem := display_problem()):
            self._is_blind = True
            warnings.warn(
                f'render_mode="human" shows nothing: {problem}; render_mode="rgb_array" gives pictures '
                "without a display",
                RuntimeWarning,
                stacklevel=4,
            )

    def render(self, pose: Pose) -> Picture | None:
        """Return a picture ``(480, 640, 3)``, or None after showing it in the window, which the user
        may have closed.

        :raises gl_library.CannotRender: there is no OpenGL.
        """
        if self._is_blind:
            return None
        if self._opened is None:
            model = scenery.add_scenery(self._xml, self._terrain)
            if self._render_mode == "rgb_array":
                gl_library.choose_gl()
                self._opened = PoseRenderer(model)
            else:
                self._opened = ViewerWindow(model, self._period_s)
        if isinstance(self._opened, PoseRenderer):
            return self._opened.picture(pose)
        if self._opened.is_open:
            self._opened.show(pose)
        return None

    def close(self) -> None:
        """Close window and renderer; the next :meth:`render` opens another."""
        if self._opened is not None:
            self._opened.__exit__()
        self._opened = None
