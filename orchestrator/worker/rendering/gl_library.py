"""The choice of an OpenGL library that works here: the user's if there is one, else EGL, else
OSMesa.
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


class CannotRender(OrchestratorError):
    """Pictures cannot be rendered here; the message says what to install."""

    exit_code = CANNOT_RENDER


def choose_gl() -> str:
    """Let MuJoCo use a library that works here, also if MuJoCo has been imported already. Return its
    name.

    :raises CannotRender: none works.
    """
    asked = os.environ.get("MUJOCO_GL")
    problems = []
    for library in (asked,) if asked else GL_LIBRARIES:
        problem = _problem(library)
        if not problem:
            os.environ["MUJOCO_GL"] = library  # which MuJoCo reads when it is imported
            if library in GL_LIBRARIES and "mujoco" in sys.modules:
                from mujoco.rendering.classic import gl_context

                gl_context.GLContext = importlib.import_module(f"mujoco.{library}").GLContext
            return library
        problems.append(f"{library}: {problem}")
    raise CannotRender(
        f"cannot render pictures: no OpenGL library works here ({'; '.join(problems)}); install a graphics driver with "
        "EGL, or Mesa's software renderer (Debian, Ubuntu: apt-get install libegl1 libgl1-mesa-dri, or libosmesa6) "
        "and unset MUJOCO_GL. Training needs no rendering"
    )


@functools.cache
def _problem(library: str) -> str:
    """Return why the library cannot be used, in one line, or an empty text if it can.

    It is tried in a separate process, because a broken driver may crash and a loaded library cannot
    be unloaded.
    """
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
        return ""
    return last_line(done.stderr, f"ended with exit code {done.returncode}")
