"""Fixtures of the tests of curricula."""

from jobfile_helpers import place

__all__ = ["place"]
