"""Fixtures of tests that draw."""

from drawing_helpers import opengl

__all__ = ["opengl"]
