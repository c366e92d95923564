"""Fixtures of the tests of Ray."""

from ray_helpers import ray_cluster, ray_nodes

__all__ = ["ray_cluster", "ray_nodes"]
