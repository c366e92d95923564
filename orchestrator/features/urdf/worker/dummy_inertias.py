"""Inertias that stand for nothing: vendors give links that are mere frames a tiny ``<inertial>``,
which MuJoCo refuses where no body can have it.
"""

from __future__ import annotations

import numpy as np

from orchestrator.features.urdf.worker.urdf_structure import UrdfStructure, shown
from orchestrator.features.urdf.worker.urdf_tree import Node

NEGLIGIBLE_KG = 1e-4
"""The robot does not move otherwise without it."""


def drop_dummy_inertias(robot: Node, structure: UrdfStructure) -> list[str]:
    """Remove the ``<inertial>`` of links that weigh next to nothing, have an inertia that no body can
    have, and are fixed to another link, with which they move. Returns what was removed, in words.
    """
    fixed = {
        end for one in structure.joints if one.kind == "fixed" for end in (one.parent, one.child)
    }
    dropped = list[str]()
    for link in robot.all("link"):
        inertial = link.first("inertial")
        name = link.attributes["name"]
        if inertial is not None and name in fixed and _is_dummy(inertial):
            link.children.remove(inertial)
            dropped.append(name)
    if not dropped:
        return []
    return [f"<inertial> removed, which is next to nothing and that of no body: {shown(dropped)}"]


def _is_dummy(inertial: Node) -> bool:
    mass = inertial.first("mass")
    inertia = inertial.first("inertia")
    if mass is None or inertia is None or (mass.number("value") or 0.0) > NEGLIGIBLE_KG:
        return False
    xx, xy, xz, yy, yz, zz = (
        inertia.number(name) or 0.0 for name in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
    )
    moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    return bool(moments[0] <= 0 or moments[0] + moments[1] < moments[2])
