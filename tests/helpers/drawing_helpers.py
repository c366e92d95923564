"""What all tests that draw have in common."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from orchestrator.core.paths import JobPaths


@pytest.fixture(scope="session")
def opengl() -> None:
    """Skips where nothing can be drawn; lets MuJoCo draw in this process."""
    import mujoco  # noqa: F401 - before the choice, which is undone in the environment

    from orchestrator.worker.rendering import gl_library

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", ""))
        try:
            gl_library.choose_gl()
        except gl_library.CannotRender as error:
            pytest.skip(str(error))


def assert_still(paths: JobPaths) -> None:
    """The preview of a job has been drawn."""
    from orchestrator.worker.rendering import stills

    with Image.open(paths.preview) as image:
        assert image.size == stills.SIZE
        assert np.ptp(np.asarray(image)) > 100  # something is to be seen
    assert paths.preview.stat().st_size < 200_000
    assert not paths.moment.exists()
    assert not list(paths.root.glob(".*"))
