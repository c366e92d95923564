"""Comparison of two compiled robots, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np

RELATIVE_TOLERANCE = 1e-9
_NOT_THE_ROBOT = re.compile(r"_|n?paths|nbuffer|\w+_pathadr|\w+_matid")
"""Fields that say where files were read from, and materials, for which MuJoCo's MJCF writer cannot
write "none"."""


def differing_fields(first: mujoco.MjModel, second: mujoco.MjModel) -> Iterator[str]:
    """Yield the names of the fields of MjModel that differ by more than rounding; those of ``opt``
    as ``opt.gravity``.
    """
    parts = {"": (first, second), "opt.": (first.opt, second.opt)}
    for prefix, (one, other) in parts.items():
        for name in dir(one):
            if _NOT_THE_ROBOT.match(name):
                continue
            value = getattr(one, name)
            is_data = isinstance(value, np.ndarray | int | float | bytes)
            if is_data and not _are_equal(np.asarray(value), np.asarray(getattr(other, name))):
                yield prefix + name


def _are_equal(value: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if np.array_equal(value, other):  # much faster
        return True
    if value.shape != other.shape or value.dtype.kind != "f":
        return False
    scale = float(np.abs(value).max(initial=0.0))
    return np.allclose(
        value, other, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * scale, equal_nan=True
    )
