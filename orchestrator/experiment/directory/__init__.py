"""The run directory: made, locked, listed, and how it goes on that no supervisor holds."""
