"""Measurements of the figures in docs/results.md; each prints one table."""
