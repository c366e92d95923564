"""Private names of MuJoCo's Python package."""

from __future__ import annotations

import functools

import mujoco


@functools.cache
def set_const_inputs() -> frozenset[str]:
    """Fields of MjModel from which ``Batch.set_const`` computes others: its documentation refers to
    this list.
    """
    return frozenset(mujoco.MjModel._setconst_inputs)
