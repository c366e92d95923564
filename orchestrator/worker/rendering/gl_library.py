"""The choice of an OpenGL library that works here.

MuJoCo chooses its OpenGL library when it is imported: call :func:`choose_gl` before, or
:func:`use_gl`.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.exit_codes import CANNOT_RENDER
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.text import last_line

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
