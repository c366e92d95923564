"""Comparison of two compiled robots, field by field."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import mujoco
import numpy as np

RELATIVE_TOLERANCE = 1e-9
_MOST_DOTS = 2
"""Levels of objects in objects whose fields are compared: ``vis.global_.fovy``."""
_NOT_THE_ROBOT = re.compile(r"_|n?paths|nbuffer|\w+_pathadr|\w+_matid")
"""Fields that say where files were read from, and materials, for which MuJoCo's MJCF writer cannot
write "none"."""


def differing_fields(first: mujoco.MjModel, second: mujoco.MjModel) -> Iterator[str]:
    """Names of the fields of MjModel (and its ``opt``, ``vis``, ``stat``) that differ by more than
    rounding.
    """
    return (name for name, _, _ in differences(first, second))


def differences(first: mujoco.MjModel, second: mujoco.MjModel) -> Iterator[tuple[str, Any, Any]]:
    """The same fields with their values in both; those of ``opt`` are named ``opt.gravity``."""
    if model_bytes(first) == model_bytes(second):  # usually, and much faster than field by field
        return
    for name, value, other in _fields(first, second, ""):
        if not _equal(value, other):
            yield name, value, other


def model_bytes(model: mujoco.MjModel) -> bytes:
    """Everything that MuJoCo saves of a model."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


@functools.cache
def _names(kind: Any) -> Sequence[str]:
    return [name for name in dir(kind) if not _NOT_THE_ROBOT.match(name)]


def _fields(first: Any, second: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Every field with its values in both. :param prefix: of the names of the fields."""
    if prefix.count(".") > _MOST_DOTS:
        return
    for name in _names(first.__class__):
        value = getattr(first, name)
        if isinstance(value, np.ndarray | int | float | bytes):
            yield prefix + name, value, getattr(second, name)
        elif type(value).__module__.startswith("mujoco") and not callable(value):
            yield from _fields(value, getattr(second, name), f"{prefix}{name}.")


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, bytes):
        return bool(value == other)
    array = np.asarray(value)
    other = np.asarray(other)
    if array.shape != other.shape:
        return False
    if (array == other).all():  # nearly always, and much faster than the comparison below
        return True
    scale = float(np.abs(array).max(initial=0.0)) if array.dtype.kind == "f" else 0.0
    return bool(
        np.allclose(
            array, other, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * scale, equal_nan=True
        )
    )
