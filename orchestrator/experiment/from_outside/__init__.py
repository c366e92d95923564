"""What processes other than its supervisor do with a run directory: look at it, ask, add, clean."""
