"""Measurements whose figures docs/results.md and docs/measurements/ give; each prints one table."""
