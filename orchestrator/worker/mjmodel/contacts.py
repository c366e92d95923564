"""Which geoms of a robot may touch, and what decides of the friction there."""

from __future__ import annotations

from typing import TypeAlias

import mujoco
import numpy as np

GeomPair: TypeAlias = tuple[int, int]
"""Numbers of two geoms, the smaller first."""


def possible_pairs(model: mujoco.MjModel) -> list[GeomPair]:
    """The pairs that MuJoCo tests if they are near, without those of ``<pair>``.

    (Documentation of MuJoCo, chapter Computation, section Collision detection, selection.)
    """
    first, second = np.triu_indices(model.ngeom, 1)
    contype = model.geom_contype
    conaffinity = model.geom_conaffinity
    may = ((contype[first] & conaffinity[second]) | (contype[second] & conaffinity[first])) != 0
    first = first[may]
    second = second[may]
    weld = model.body_weldid[model.geom_bodyid]
    parent = model.body_weldid[model.body_parentid[weld]]
    one = weld[first]
    other = weld[second]
    is_apart = one != other
    if not model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_FILTERPARENT):
        is_child = (one == parent[second]) | (other == parent[first])
        is_apart &= ~(is_child & (one != 0) & (other != 0))
    bodies = np.sort(model.geom_bodyid[np.stack((first, second))], axis=0)
    is_apart &= ~np.isin((bodies[0] << 16) + bodies[1], model.exclude_signature)
    return list(zip(first[is_apart].tolist(), second[is_apart].tolist(), strict=True))


def overridden_pairs(model: mujoco.MjModel) -> set[GeomPair]:
    """The pairs that have a ``<pair>``, which decides of their contacts in place of the geoms."""
    numbers = np.sort(np.stack((model.pair_geom1, model.pair_geom2)), axis=0)
    return set(zip(*numbers.tolist(), strict=True))
