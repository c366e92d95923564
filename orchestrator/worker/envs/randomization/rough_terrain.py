"""A rough floor, a different part of which is below the robot in every episode.

MuJoCo shares the heights of a field between all environments of a batch, but each has its own
position of the field. So there is one large field, and an episode draws where in it the robot
starts.
"""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import numpy as np

from orchestrator.core.numbers.terrain import TERRAIN, Terrain
from orchestrator.worker.envs.model_loading import for_simulation
from orchestrator.worker.envs.randomization.randomized_fields import TABLE, RandomizeError
from orchestrator.worker.mjmodel.floor import level_floors
from orchestrator.worker.mjmodel.root import Coordinate, NoRootError, Root, find_root
from orchestrator.worker.mjmodel.structure import Floats, fixed_geoms, posed_data
from orchestrator.worker.tasks import Task

POINTS = 600
"""Of the field in either direction: 1.4 MB, and of cells of 25 cm 150 m."""
STARTS = 0.2
"""Share of the field's width and length, in its middle, where episodes start."""
BASE_M = 1.0
"""Thickness of the field below its lowest point."""
SEED = 20
NAME = "orchestrator terrain"


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
        root, self._z = _liftable_base(model, task)
        moving = np.flatnonzero(~fixed_geoms(model))
        places = data.geom_xpos[moving, :2]
        self._middle: Floats = places.mean(axis=0)
        """``(2,)`` of the moving geoms of the robot in its starting pose, in the world."""
        reach = np.linalg.norm(places - self._middle, axis=1) + model.geom_rbound[moving]
        self._reach_m = float(reach.max())
        """How far they reach from it."""
        self._base: Floats = data.xpos[root.body, :2].copy()
        """``(2,)`` where the base is, about which the robot turns."""
        self._most_shift_m = STARTS * _half_m(terrain)
        spec = mujoco.MjSpec.from_file(str(xml))
        geom = lay_terrain(spec, terrain)
        self.model: mujoco.MjModel = for_simulation(spec.compile())
        """The robot on the terrain. Its elements have the same numbers."""
        self.floor: int = geom.id
        """Number of the geom."""
        self._body_xy: Floats = data.xpos[model.geom_bodyid[self.floor], :2].copy()
        self._floor_xy: Floats = data.geom_xpos[self.floor, :2].copy()

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
        middle_m = self._middle
        if turned_by:
            cosine, sine = math.cos(turned_by), math.sin(turned_by)
            turn = np.array([[cosine, -sine], [sine, cosine]])
            middle_m = self._base + turn @ (self._middle - self._base)
        # In cells, from the field's first point.
        middle = (POINTS - 1) / 2 + (middle_m - place) / self._cell_m
        reach = self._reach_m / self._cell_m
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
    level = level_floors(model, data)
    if len(level) != 1:
        raise RandomizeError(
            f"{TABLE}.{TERRAIN}: needs one floor, a geom of type plane that is fixed, level and not turned, with "
            f"contacts; this robot has {len(level) or 'none'}"
        )
    heights = _heights()
    half = _half_m(terrain)
    # MuJoCo scales between these.
    lowest = heights.min() * terrain.height_m
    highest = heights.max() * terrain.height_m
    spec.add_hfield(
        name=NAME,
        nrow=POINTS,
        ncol=POINTS,
        size=[half, half, highest - lowest, BASE_M],
        userdata=heights.ravel().tolist(),
    )
    [geom] = [geom for geom in spec.geoms if geom.id == level[0]]
    geom.type = mujoco.mjtGeom.mjGEOM_HFIELD
    geom.hfieldname = NAME
    # MuJoCo ignores the position of a geom that is at its body's.
    geom.pos = np.add(geom.pos, [1.0, 1.0, lowest])
    return geom


def _heights() -> Floats:
    """``(POINTS, POINTS)`` from 0 to 1, as MuJoCo would scale them."""
    heights = np.random.default_rng(SEED).random((POINTS, POINTS))
    scaled: Floats = (heights - heights.min()) / np.ptp(heights)
    return scaled


def _half_m(terrain: Terrain) -> float:
    """Half of the width of the field."""
    return (POINTS - 1) / 2 * terrain.cell_m


def _liftable_base(model: mujoco.MjModel, task: Task) -> tuple[Root, Coordinate]:
    """The base, and its height.

    :raises RandomizeError: the robot has no base that can be lifted, or is not alone.
    """
    try:
        root = find_root(model, task.pose)
    except NoRootError as error:
        raise RandomizeError(f"{TABLE}.{TERRAIN}: {error}") from None
    if root.z is None or model.ntree != 1:
        raise RandomizeError(
            f"{TABLE}.{TERRAIN}: needs a robot whose base can move up and down, without loose objects beside it"
        )
    return root, root.z
