"""The run directory of an experiment: made, locked, listed, how it goes on, and processes for it."""
