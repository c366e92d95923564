"""Fixtures of the tests of `verify`."""

from report_helpers import undrawn

__all__ = ["undrawn"]
