"""Which geoms of a robot may collide, which do, and how ``contype`` and ``conaffinity`` could spare
the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.features.advice.physics_advice import ContactPair
from orchestrator.worker.mjmodel.contacts import GeomPair, Masks, masks, possible_pairs
from orchestrator.worker.mjmodel.structure import fixed_geoms

ALWAYS = 0.95
"""Share of the states above which two geoms count as always touching."""
_PATTERN = "*?["


@dataclass(slots=True)
class CollisionCensus:
    """Counts contacts over states of one robot."""

    model: mujoco.MjModel
    states: int = 0
    contacts: Counter[GeomPair] = field(default_factory=Counter)
    rows: Counter[GeomPair] = field(default_factory=Counter)
    """Rows that the contacts of a pair gave the constraint solver."""
    touching: Counter[GeomPair] = field(default_factory=Counter)
    """States in which a pair touched."""
    tested: set[GeomPair] = field(default_factory=set)
    """Pairs that were near enough to be tested: their bounding spheres overlapped."""
    _possible: NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._possible = np.array(possible_pairs(self.model, masks(self.model)), int).reshape(-1, 2)

    def add(self, data: mujoco.MjData) -> None:
        """Count the contacts of a state, of which everything that depends on positions was
        computed.
        """
        model = self.model
        contact = data.contact
        self.states += 1
        is_pyramidal = model.opt.cone == int(mujoco.mjtCone.mjCONE_PYRAMIDAL)
        here = set()
        for (first, second), dim in zip(contact.geom.tolist(), contact.dim.tolist(), strict=True):
            if min(first, second) >= 0:  # a flex has no geom
                pair = min(first, second), max(first, second)
                here.add(pair)
                self.contacts[pair] += 1
                self.rows[pair] += 2 * (dim - 1) if is_pyramidal and dim > 1 else dim
        self.touching.update(here)
        self.tested.update(map(tuple, self._possible[_near(model, data, self._possible)].tolist()))

    def contact_pairs(self, most: int) -> list[ContactPair]:
        """The ``most`` pairs with the most rows."""
        total = max(1, sum(self.rows.values()))
        return [
            ContactPair(
                geoms=(geom_label(self.model, pair[0]), geom_label(self.model, pair[1])),
                contacts=self.contacts[pair] / self.states,
                rows_share=rows / total,
                touching=self.touching[pair] / self.states,
            )
            for pair, rows in self.rows.most_common(most)
        ]

    def always_touching(self) -> list[GeomPair]:
        """Pairs of geoms of the robot itself that nearly always touch, so that their contact is
        hardly intended.

        Not what stands on a floor: at least one body is fixed there, and the other is no neighbour
        of it.
        """
        model = self.model
        is_fixed = fixed_geoms(model)
        return sorted(
            pair
            for pair, states in self.touching.items()
            if states >= ALWAYS * self.states
            and (
                not is_fixed[list(pair)].any()
                or _are_neighbours(model, *model.geom_bodyid[list(pair)].tolist())
            )
        )


def without_idle_geoms(
    model: mujoco.MjModel, of_geoms: Masks, touched: Collection[GeomPair]
) -> Masks:
    """Masks with which geoms that are in no pair of ``touched`` collide with nothing; fixed geoms
    stay.
    """
    kept = {geom for pair in touched for geom in pair}
    idle = [geom for geom in _moving_geoms(model) if geom not in kept]
    result = of_geoms.copy()
    result[:, idle] = 0
    return result


def without_self_collisions(
    model: mujoco.MjModel, of_geoms: Masks, touched: Collection[GeomPair]
) -> Masks:
    """Masks with which moving geoms that never touched a moving one do not collide with each other.

    They are ``of_geoms`` where that would lose a pair of ``touched``.
    """
    moving = set(_moving_geoms(model))
    in_contact = {geom for pair in touched if moving.issuperset(pair) for geom in pair}
    apart = sorted(moving - in_contact)
    for attribute in (1, 0):
        result = of_geoms.copy()
        result[attribute, apart] = 0
        if set(touched) & set(possible_pairs(model, of_geoms)) <= set(
            possible_pairs(model, result)
        ):
            return result
    return of_geoms


def mask_edits(model: mujoco.MjModel, wanted: Masks) -> dict[str, Any] | None:
    """Keys of ``model`` that give the geoms these masks; None where a geom that must be named has
    no usable name.
    """
    edits: dict[str, Any] = {}
    for attribute, now, then in zip(("contype", "conaffinity"), masks(model), wanted, strict=True):
        changed = np.flatnonzero(now != then)
        if not len(changed):
            continue
        most = Counter(then.tolist()).most_common(1)[0][0]
        by_name = _edits_by_name(model, attribute, changed, then)
        others = _edits_by_name(model, attribute, np.flatnonzero(then != most), then)
        by_pattern = None if others is None else {f"geom.*.{attribute}": most, **others}
        choices: list[dict[str, Any]] = [
            choice for choice in (by_name, by_pattern) if choice is not None
        ]
        if not choices:
            return None
        edits |= sorted(choices, key=len)[0]
    return edits


def _edits_by_name(
    model: mujoco.MjModel, attribute: str, geoms: NDArray[np.intp], then: NDArray[Any]
) -> dict[str, Any] | None:
    names = [model.geom(geom).name for geom in geoms.tolist()]
    if not all(map(is_usable, names)):
        return None
    return {
        f"geom.{name}.{attribute}": int(then[geom])
        for name, geom in zip(names, geoms.tolist(), strict=True)
    }


def is_usable(name: str) -> bool:
    """Whether a key of ``model`` can name an element that is called ``name``."""
    return "" not in name.split(".") and not any(character in name for character in _PATTERN)


def geom_label(model: mujoco.MjModel, geom: int) -> str:
    """Its name, or its number among the geoms of its body."""
    body = int(model.geom_bodyid[geom])
    number = geom - int(model.body_geomadr[body])
    return model.geom(geom).name or f"geom {number} of body {model.body(body).name or body}"


def labels(model: mujoco.MjModel, pairs: Collection[GeomPair]) -> list[str]:
    return [f"{geom_label(model, first)}–{geom_label(model, second)}" for first, second in pairs]


def exclusions(model: mujoco.MjModel, pairs: Collection[GeomPair]) -> Mapping[tuple[int, int], str]:
    """The bodies of the geoms of ``pairs``, and for each two the MJCF that excludes contacts
    between them.
    """
    bodies = {tuple(sorted(model.geom_bodyid[list(pair)].tolist())) for pair in pairs}

    def name(body: int) -> str:
        return model.body(body).name or f"(body {body}, to be named)"

    return {
        (first, second): f'<exclude body1="{name(first)}" body2="{name(second)}"/>'
        for first, second in sorted(bodies)
    }


def _moving_geoms(model: mujoco.MjModel) -> list[int]:
    return [int(geom) for geom in np.flatnonzero(~fixed_geoms(model) & masks(model).any(axis=0))]


def _are_neighbours(model: mujoco.MjModel, first: int, second: int) -> bool:
    """Whether one is the parent of the other, and neither is the world."""
    parents = int(model.body_parentid[first]), int(model.body_parentid[second])
    return min(first, second) > 0 and (parents[0] == second or parents[1] == first)


def _near(model: mujoco.MjModel, data: mujoco.MjData, pairs: NDArray[Any]) -> NDArray[np.bool_]:
    """``(len(pairs),)`` whether the bounding spheres overlap; a plane has none and is tested with
    its own distance.
    """
    first, second = pairs.T
    radius = model.geom_rbound
    centre = data.geom_xpos
    offset = centre[second] - centre[first]
    distance = np.linalg.norm(offset, axis=1)
    normals = data.geom_xmat.reshape(-1, 3, 3)[:, :, 2]
    plane = int(mujoco.mjtGeom.mjGEOM_PLANE)
    distance = np.where(
        model.geom_type[first] == plane, np.einsum("ij,ij->i", normals[first], offset), distance
    )
    distance = np.where(
        model.geom_type[second] == plane, -np.einsum("ij,ij->i", normals[second], offset), distance
    )
    margin = np.maximum(model.geom_margin[first], model.geom_margin[second])
    return np.asarray(distance <= radius[first] + radius[second] + margin)
