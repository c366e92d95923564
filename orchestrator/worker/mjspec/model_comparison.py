"""Comparison of two compiled robots, field by field."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
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
    # Usually they are equal, and this is much faster than field by field.
    if _saved_bytes(first) != _saved_bytes(second):
        yield from _differences(first, second, "")


def _saved_bytes(model: mujoco.MjModel) -> bytes:
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


@functools.cache
def _names(kind: Any) -> Sequence[str]:
    return [name for name in dir(kind) if not _NOT_THE_ROBOT.match(name)]


def _differences(first: Any, second: Any, prefix: str) -> Iterator[str]:
    kind: Any = type(first)
    for name in _names(kind):
        value = getattr(first, name)
        other = getattr(second, name)
        if isinstance(value, np.ndarray | int | float | bytes):
            if not _are_equal(np.asarray(value), np.asarray(other)):
                yield prefix + name
        elif type(value).__module__ == "mujoco._structs":
            yield from _differences(value, other, f"{prefix}{name}.")


def _are_equal(value: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if value.shape != other.shape or value.dtype.kind != "f":
        return np.array_equal(value, other)
    scale = float(np.abs(value).max(initial=0.0))
    return np.allclose(
        value, other, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * scale, equal_nan=True
    )
