"""Fixtures of the tests of searches."""

from drawing_helpers import opengl
from jobfile_helpers import place
from report_helpers import undrawn

__all__ = ["opengl", "place", "undrawn"]
