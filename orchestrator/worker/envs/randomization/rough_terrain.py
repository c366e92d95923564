"""A rough floor, a different part of which is below the robot in every episode.

MuJoCo shares the heights of a field between all environments of a batch, but each has its own
position of the field. So there is one large field, and an episode draws where in it the robot
starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.core.numbers.terrain import TERRAIN, Terrain
from orchestrator.worker.envs.model_loading import for_simulation
from orchestrator.worker.envs.randomization.randomized_fields import TABLE, RandomizeError
from orchestrator.worker.mjmodel.floor import level_floors
from orchestrator.worker.mjmodel.root import Coordinate, NoRootError, Root, find_root
from orchestrator.worker.mjmodel.structure import Floats, is_fixed, posed_data
from orchestrator.worker.tasks import Task

POINTS = 600
"""Of the field in either direction: 1.4 MB, and of cells of 25 cm 150 m."""
STARTS = 0.2
"""Share of the field's width and length, in its middle, where episodes start."""
BASE_M = 1.0
"""Thickness of the field below its lowest point."""
SEED = 20


class RoughTerrain:
    """The floor of a robot as a height field whose lowest point is at the height of the floor in
    its file.

    :param model: of the robot in ``xml``.
    :raises RandomizeError: the robot has no floor that can be replaced, or no base that can be
        lifted onto it.
    """

    def __init__(self, xml: Path, model: mujoco.MjModel, task: Task, terrain: Terrain) -> None:
        self._cell_m = terrain.cell_m
        self._heights_m: Floats = _heights() * terrain.height_m
        data = posed_data(model, task.pose)
        self.floor = _floor(model, data)
        """Number of the geom."""
        self._body_xy: Floats = data.xpos[model.geom_bodyid[self.floor], :2].copy()
        root, self._z = _liftable_base(model, task)
        self._floor_xy: Floats = data.geom_xpos[self.floor, :2].copy()
        self._footprint = _footprint(model, data, root.body)
        self._most_shift_m = STARTS * _half_m(terrain)
        spec = mujoco.MjSpec.from_file(str(xml))
        lay_terrain(spec, terrain)
        self.model: mujoco.MjModel = for_simulation(spec.compile())
        """The robot on the terrain. Its elements have the same numbers."""

    def draw(self, rng: np.random.Generator) -> Floats:
        """``(2,)`` a position of the field's middle in metres."""
        shift_m = rng.uniform(-self._most_shift_m, self._most_shift_m, 2)
        place: Floats = self._floor_xy + shift_m
        return place

    def position_in_body(self, place: Floats) -> Floats:
        """``place``, ``(2,)`` in the world, relative to the fixed body that has the floor."""
        position: Floats = place - self._body_xy
        return position

    def lift(self, qpos: Floats, place: Floats, turned_by: float = 0.0) -> None:
        """Lift the base in ``qpos``, ``(nq,)``, so that nothing of the robot starts below the
        ground.

        :param place: ``(2,)`` the position of the field's middle.
        :param turned_by: radians about the vertical by which the base was turned.
        """
        # In cells, from the field's first point.
        middle = (POINTS - 1) / 2 + (self._footprint.middle_when(turned_by) - place) / self._cell_m
        reach = self._footprint.reach_m / self._cell_m
        first = np.floor(middle - reach).astype(int)
        last = np.ceil(middle + reach).astype(int) + 1
        columns = slice(max(0, first[0]), max(1, last[0]))
        rows = slice(max(0, first[1]), max(1, last[1]))
        qpos[self._z.address] += self._z.sign * float(self._heights_m[rows, columns].max())


def lay_terrain(spec: mujoco.MjSpec, terrain: Terrain) -> mujoco.MjsGeom:
    """Make the floor of a robot, which is returned, a height field. Geoms keep their numbers.

    :raises RandomizeError: the robot has no floor that can be replaced.
    """
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    floor = _floor(model, data)
    heights = _heights()
    half = _half_m(terrain)
    # MuJoCo scales between these.
    lowest = heights.min() * terrain.height_m
    highest = heights.max() * terrain.height_m
    name = _unused_name(spec)
    spec.add_hfield(
        name=name,
        nrow=POINTS,
        ncol=POINTS,
        size=[half, half, highest - lowest, BASE_M],
        userdata=heights.ravel().tolist(),
    )
    [geom] = [geom for geom in spec.geoms if geom.id == floor]
    geom.type = mujoco.mjtGeom.mjGEOM_HFIELD
    geom.hfieldname = name
    # MuJoCo ignores the position of a geom that is at its body's.
    geom.pos = np.add(geom.pos, [1.0, 1.0, lowest])
    return geom


def _unused_name(spec: mujoco.MjSpec) -> str:
    """``terrain``, or with a number behind it where the robot has a height field of that name."""
    names = {field.name for field in spec.hfields}
    name = TERRAIN
    number = 0
    while name in names:
        number += 1
        name = f"{TERRAIN}{number}"
    return name


def _heights() -> Floats:
    """``(POINTS, POINTS)`` from 0 to 1, as MuJoCo would scale them."""
    heights = np.random.default_rng(SEED).random((POINTS, POINTS))
    scaled: Floats = (heights - heights.min()) / np.ptp(heights)
    return scaled


def _half_m(terrain: Terrain) -> float:
    """Half of the width of the field."""
    return (POINTS - 1) / 2 * terrain.cell_m


def _floor(model: mujoco.MjModel, data: mujoco.MjData) -> int:
    """The number of the only plane that robots stand on."""
    level = level_floors(model, data)
    if len(level) != 1:
        found = "none" if not level else str(len(level))
        raise RandomizeError(
            f"{TABLE}.{TERRAIN}: needs one floor, a geom of type plane that is fixed, level and not turned, with "
            f"contacts; this robot has {found}"
        )
    return level[0]


def _liftable_base(model: mujoco.MjModel, task: Task) -> tuple[Root, Coordinate]:
    """The base, and its height.

    :raises RandomizeError: the robot has no base that can be lifted, or is not alone.
    """
    try:
        root = find_root(model, task.pose)
    except NoRootError as error:
        raise RandomizeError(f"{TABLE}.{TERRAIN}: {error}") from None
    z = root.z
    if z is None or model.ntree != 1:
        why = (
            "its base cannot move up and down" if z is None else "there are loose objects beside it"
        )
        raise RandomizeError(
            f"{TABLE}.{TERRAIN}: this robot cannot be lifted onto a terrain: {why}"
        )
    return root, z


@dataclass(frozen=True, slots=True, kw_only=True)
class _Footprint:
    """Where the moving geoms of a robot are in its starting pose."""

    middle: Floats
    """``(2,)`` in the world, in metres."""
    reach_m: float
    """How far they reach from it."""
    base: Floats
    """``(2,)`` where the base is, about which it turns."""

    def middle_when(self, turned_by: float) -> Floats:
        """``(2,)`` the middle when the base was turned by so many radians about the vertical."""
        if not turned_by:
            return self.middle
        cosine, sine = math.cos(turned_by), math.sin(turned_by)
        turned: Floats = self.base + np.array([[cosine, -sine], [sine, cosine]]) @ (
            self.middle - self.base
        )
        return turned


def _footprint(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> _Footprint:
    """:param body: that of the base."""
    moving: NDArray[np.intp] = np.array(
        [g for g in range(model.ngeom) if not is_fixed(model, model.geom_bodyid[g])]
    )
    places = data.geom_xpos[moving, :2]
    middle: Floats = places.mean(axis=0)
    reach = np.linalg.norm(places - middle, axis=1) + model.geom_rbound[moving]
    base: Floats = data.xpos[body, :2].copy()
    return _Footprint(middle=middle, reach_m=float(reach.max()), base=base)
