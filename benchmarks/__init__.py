"""Measurements whose figures docs/performance.md gives; each prints one table."""
