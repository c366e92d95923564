"""Fixtures of the tests of searches."""

from drawing_helpers import opengl
from jobfile_helpers import place

__all__ = ["opengl", "place"]
