"""Fixtures of the tests of comparisons."""

from report_helpers import undrawn

__all__ = ["undrawn"]
