"""Fixtures of the tests of `export`."""

from drawing_helpers import opengl

__all__ = ["opengl"]
