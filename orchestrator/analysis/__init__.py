"""Run directories read again: tables, statistics, contention."""
