"""Robots and environments are examined before anything is launched, and the time is estimated."""
