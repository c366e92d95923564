"""Fixtures of the tests of pictures."""

from drawing_helpers import opengl

__all__ = ["opengl"]
