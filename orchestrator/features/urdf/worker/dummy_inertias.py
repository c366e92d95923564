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
    structure: UrdfStructure, colliding: Literal["collision", "visual"]
) -> list[str]:
    """Remove the ``<inertial>`` of links that weigh next to nothing, have an inertia that no body can
    have, and are fixed to another link, with which they move.

    A link with geometry keeps it, without moments of inertia, where another that moves with it has
    mass: MuJoCo would add the mass of its geometry. Otherwise they have the mass of their geometry.

    :param colliding: which geometry has mass.
    :returns: what was removed, in words.
    """
    removed = list[str]()
    without_moments = list[str]()
    for links in _moving_together(structure):
        if len(links) == 1:
            continue
        dummies = [link for link in links if _is_dummy(link)]
        others_have_mass = any(_has_mass(link, colliding) and not _is_dummy(link) for link in links)
        for link in dummies:
            name = link.attributes["name"]
            if others_have_mass and link.first(colliding) is not None:
                _remove_moments(link)
                without_moments.append(name)
            else:
                link.children = [child for child in link.children if child.tag != "inertial"]
                removed.append(name)
    parts = {"<inertial>": removed, "moments of inertia": without_moments}
    return [
        f"{what} removed, next to nothing and that of no body: {shown(names)}"
        for what, names in parts.items()
        if names
    ]


def _moving_together(structure: UrdfStructure) -> list[list[Node]]:
    """The links, those together that fixed joints connect."""
    root = [structure.links[structure.root]]
    groups = [root]
    group_of = {structure.root: root}
    for joint in structure.from_the_root:
        if joint.kind == "fixed":
            group = group_of[joint.parent]
        else:
            group = []
            groups.append(group)
        group.append(structure.links[joint.child])
        group_of[joint.child] = group
    return groups


def _has_mass(link: Node, colliding: str) -> bool:
    inertial = link.first("inertial")
    if inertial is None:
        return link.first(colliding) is not None
    mass = inertial.first("mass")
    return mass is not None and bool(mass.number("value"))


def _remove_moments(link: Node) -> None:
    for inertial in link.all("inertial"):
        for inertia in inertial.all("inertia"):
            inertia.attributes.update(dict.fromkeys(MOMENTS, "0"))


def _is_dummy(link: Node) -> bool:
    inertial = link.first("inertial")
    if inertial is None:
        return False
    mass = inertial.first("mass")
    inertia = inertial.first("inertia")
    if mass is None or inertia is None or (mass.number("value") or 0.0) > NEGLIGIBLE_KG:
        return False
    xx, xy, xz, yy, yz, zz = (inertia.number(name) or 0.0 for name in MOMENTS)
    moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    return bool(moments[0] <= 0 or moments[0] + moments[1] < moments[2])
