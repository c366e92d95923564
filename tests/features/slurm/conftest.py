"""Fixtures of the tests of Slurm."""

from slurm_helpers import (
    _lasting_pilot,
    fake_slurm,
    slurm_cluster,
    slurm_pilots,
    slurm_scene,
    slurm_scenes,
)

__all__ = [
    "_lasting_pilot",
    "fake_slurm",
    "slurm_cluster",
    "slurm_pilots",
    "slurm_scene",
    "slurm_scenes",
]
