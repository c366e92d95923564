"""Inertias that stand for nothing: vendors give links that are mere frames a tiny ``<inertial>``,
which MuJoCo refuses where no body can have it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from orchestrator.features.urdf.worker.urdf_structure import UrdfStructure, shown
from orchestrator.features.urdf.worker.urdf_tree import Node

MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
NEGLIGIBLE_KG = 1e-4
"""The robot does not move otherwise without it."""


def drop_dummy_inertias(
    robot: Node, structure: UrdfStructure, colliding: Literal["collision", "visual"]
) -> list[str]:
    """Remove the ``<inertial>`` of links that weigh next to nothing, have an inertia that no body can
    have, and are fixed to another link, with which they move.

    A link with geometry keeps it, without moments of inertia: MuJoCo would give it the mass of its
    geometry in its place.

    :param colliding: which geometry has mass.
    :returns: what was removed, in words.
    """
    fixed = {
        end for one in structure.joints if one.kind == "fixed" for end in (one.parent, one.child)
    }
    removed = list[str]()
    without_moments = list[str]()
    for link in robot.all("link"):
        inertial = link.first("inertial")
        name = link.attributes["name"]
        if inertial is None or name not in fixed or not _is_dummy(inertial):
            continue
        if link.first(colliding) is None:
            link.children.remove(inertial)
            removed.append(name)
        else:
            _remove_moments(inertial)
            without_moments.append(name)
    parts = {"<inertial>": removed, "moments of inertia": without_moments}
    return [
        f"{what} removed, next to nothing and that of no body: {shown(names)}"
        for what, names in parts.items()
        if names
    ]


def _remove_moments(inertial: Node) -> None:
    inertia = inertial.first("inertia")
    if inertia is not None:
        inertia.attributes.update(dict.fromkeys(MOMENTS, "0"))


def _is_dummy(inertial: Node) -> bool:
    mass = inertial.first("mass")
    inertia = inertial.first("inertia")
    if mass is None or inertia is None or (mass.number("value") or 0.0) > NEGLIGIBLE_KG:
        return False
    xx, xy, xz, yy, yz, zz = (inertia.number(name) or 0.0 for name in MOMENTS)
    moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    return bool(moments[0] <= 0 or moments[0] + moments[1] < moments[2])
