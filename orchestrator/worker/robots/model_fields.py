"""Whether two compiled models are the same robot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np

RELATIVE = 1e-9
_NOT_THE_ROBOT = re.compile(r"_|n?paths|nbuffer|\w+_pathadr|\w+_matid")
"""Fields that say where files were read from, and materials, for which MuJoCo's MJCF writer cannot write "none"."""


def differing_fields(first: mujoco.MjModel, second: mujoco.MjModel) -> list[str]:
    """Names of the fields of MjModel (and its ``opt``, ``vis``, ``stat``) that differ by more than :data:`RELATIVE`."""
    return [name for name, one, other in _fields(first, second, "") if not _equal(one, other)]


def _fields(first: Any, second: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name in dir(first):
        if prefix.count(".") > 2 or _NOT_THE_ROBOT.match(name):
            continue
        one = getattr(first, name)
        if isinstance(one, np.ndarray | int | float | bytes):
            yield prefix + name, one, getattr(second, name)
        elif type(one).__module__.startswith("mujoco") and not callable(one):
            yield from _fields(one, getattr(second, name), f"{prefix}{name}.")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bytes):
        return bool(one == other)
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return False
    scale = float(np.abs(one).max(initial=0.0)) if one.dtype.kind == "f" else 0.0
    return bool(np.allclose(one, other, rtol=RELATIVE, atol=RELATIVE * scale, equal_nan=True))
