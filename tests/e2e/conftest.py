"""Fixtures of end-to-end tests."""

from drawing_helpers import opengl

__all__ = ["opengl"]
