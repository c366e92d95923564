"""Whether two compiled models are the same robot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np

PLACES = (
    "paths",
    "npaths",
    "nbuffer",
    "mesh_pathadr",
    "hfield_pathadr",
    "skin_pathadr",
    "tex_pathadr",
)
"""Where the assets were read from: these say where on the disk the robot lies, nothing of the
robot."""


def differences(first: mujoco.MjModel, second: mujoco.MjModel) -> list[str]:
    """Names of all fields that are not equal bit for bit, ``names`` included."""
    return [name for name, one, other in _fields(first, second) if not _equal(one, other)]


def _fields(first: Any, second: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for name in dir(first):
        one = None if name.startswith("_") or name in PLACES else getattr(first, name)
        if isinstance(one, np.ndarray | int | float | str | bytes):
            yield prefix + name, one, getattr(second, name)
        elif (
            type(one).__module__.startswith("mujoco")
            and not callable(one)
            and prefix.count(".") < 2
        ):
            yield from _fields(one, getattr(second, name), f"{prefix}{name}.")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(
            one.shape == other.shape
            and one.dtype == other.dtype
            and one.tobytes() == other.tobytes()
        )
    return bool(one == other)
