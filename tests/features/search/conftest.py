"""Fixtures of the tests of searches."""

from jobfile_helpers import place
from report_helpers import undrawn

__all__ = ["place", "undrawn"]
