"""The structure of a compiled model in its starting pose: what actuators move, and what is
fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import mujoco
import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[Any]
"""Of any type."""

_LEAST_LEVER = 1e-9


def posed_data(model: mujoco.MjModel, pose: Floats) -> mujoco.MjData:
    """A new ``MjData`` in ``pose`` (nq,), with everything that is computed from positions."""
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_fwdPosition(model, data)
    return data


def driven_dofs(model: mujoco.MjModel, data: mujoco.MjData) -> NDArray[np.bool_]:
    """``(nv,)`` which degrees of freedom an actuator acts on, directly or through a tendon or
    site.
    """
    driven = np.zeros(model.nv, bool)
    for first, count in zip(data.moment_rowadr, data.moment_rownnz, strict=True):
        entries = slice(first, first + count)
        dofs = data.moment_colind[entries]
        levers = np.abs(data.actuator_moment[entries])
        driven[dofs[levers > _LEAST_LEVER]] = True
    return driven


def addresses(
    model: mujoco.MjModel, joints: Sequence[int]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Addresses of ``joints`` in ``qpos`` and in ``qvel``, in ascending order."""
    owner = np.repeat(np.arange(model.njnt), np.diff(model.jnt_qposadr, append=model.nq))
    return np.flatnonzero(np.isin(owner, joints)), np.flatnonzero(np.isin(model.dof_jntid, joints))


def as_index(numbers: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """An index of the same entries: a slice, which copies nothing, if ascending ``numbers`` have no
    gap.
    """
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def ancestors(model: mujoco.MjModel, body: int) -> Iterator[int]:
    """``body`` and its ancestors, without the world."""
    while body > 0:
        yield body
        body = int(model.body_parentid[body])


def is_fixed(model: mujoco.MjModel, body: int) -> bool:
    """Whether ``body`` is the world or welded to it."""
    return bool(model.body_weldid[body] == 0)


def fixed_geoms(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """``(ngeom,)`` which geoms belong to the world or to bodies that are welded to it."""
    fixed: NDArray[np.bool_] = model.body_weldid[model.geom_bodyid] == 0
    return fixed
