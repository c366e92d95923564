"""A fixture of all tests that draw."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def opengl() -> None:
    """Skips where nothing can be drawn."""
    from orchestrator.worker.rendering import offscreen

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", ""))
        try:
            offscreen.choose_gl()
        except offscreen.CannotRender as error:
            pytest.skip(str(error))
