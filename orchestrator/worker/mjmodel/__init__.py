"""Queries of compiled models (``mujoco.MjModel``): joints, actuators, structure, and the root."""
