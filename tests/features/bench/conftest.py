"""Fixtures of the tests of `bench`."""

from report_helpers import undrawn

__all__ = ["undrawn"]
