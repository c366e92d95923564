"""What a robot's file lacks for a picture: floor, sky and light."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import mujoco

    from orchestrator.core.numbers.terrain import Terrain

_SKY = (0.35, 0.50, 0.70)
_HORIZON = (0.85, 0.90, 0.95)
_FLOOR_RGBA = (0.75, 0.78, 0.80, 1.0)
_TILES = ((1.0, 1.0, 1.0), (0.86, 0.86, 0.86))


def add_scenery(xml: Path, terrain: Terrain | None = None) -> mujoco.MjModel:
    """Compile the robot of ``xml`` with a tiled floor, a sky and light everywhere, where its file has
    none.

    Bodies and joints keep their numbers, and the state keeps its layout.

    :param terrain: in place of its floor; poses say where it lies.
    """
    import mujoco

    spec = mujoco.MjSpec.from_file(str(xml.absolute()))
    _add_sky(spec)
    if terrain is None:
        ground = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
        floors = [geom for geom in spec.worldbody.geoms if geom.type in ground]
        floors = floors or [_add_floor(spec)]
    else:
        from orchestrator.worker.envs.randomization.rough_terrain import lay_terrain

        floors = [lay_terrain(spec, terrain)]
    if not any(floor.material for floor in floors):
        _tile(spec, floors)
    _add_sun(spec)
    return spec.compile()


def _add_sky(spec: mujoco.MjSpec) -> None:
    """Add a sky if there is none."""
    import mujoco

    if any(texture.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX for texture in spec.textures):
        return
    spec.add_texture(
        name="orchestrator sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=_HORIZON,
        rgb2=_SKY,
        width=256,
        height=1536,
    )


def _add_floor(spec: mujoco.MjSpec) -> mujoco.MjsGeom:
    """Add a plane below all geoms, which nothing touches."""
    import mujoco

    bare = spec.compile()
    data = mujoco.MjData(bare)
    mujoco.mj_forward(bare, data)
    lowest = (data.geom_xpos[:, 2] - bare.geom_rbound).min(initial=0.0)
    return spec.worldbody.add_geom(
        name="orchestrator floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=(0, 0, 1),
        pos=(0, 0, lowest),
        rgba=_FLOOR_RGBA,
        contype=0,
        conaffinity=0,
    )


def _tile(spec: mujoco.MjSpec, floors: Sequence[mujoco.MjsGeom]) -> None:
    """Cover ``floors`` with tiles half a metre wide: on one colour motion is invisible."""
    import mujoco

    light, dark = _TILES
    tiles = spec.add_texture(
        name="orchestrator tiles",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=light,
        rgb2=dark,
        width=128,
        height=128,
    )
    material = spec.add_material(name="orchestrator tiles", texrepeat=(1, 1), texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = tiles.name
    for floor in floors:
        floor.material = material.name


def _add_sun(spec: mujoco.MjSpec) -> None:
    """Add a directional light if there is none: others light one place, from which robots walk
    away.
    """
    import mujoco

    own = [light for light in spec.lights if light.active]
    directional = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    if any(light.type == directional for light in own):
        return
    spec.worldbody.add_light(
        name="orchestrator sun",
        type=directional,
        castshadow=not own,
        mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,
        diffuse=np.full(3, 0.35 if own else 0.6),
        pos=(-1, -2, 4),
        dir=(0.25, 0.45, -1),
    )
