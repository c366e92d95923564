"""The changes to a robot's physics that are worth a measurement, as keys of a job's ``model``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from orchestrator.core.text import count
from orchestrator.features.advice.worker import collision_census
from orchestrator.features.advice.worker.collision_census import CollisionCensus
from orchestrator.worker.mjmodel import contacts

INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast", "discrete")
SOLVERS = ("PGS", "CG", "Newton")
CONES = ("pyramidal", "elliptic")
"""Names in MJCF, in the order of MuJoCo's enumerations."""
OFFERED_INTEGRATORS = ("implicitfast", "Euler", "discrete")
"""The others cost more than any of these."""
ITERATIONS = (1, 2, 4, 10)
LS_ITERATIONS = (4, 10)
CCD_ITERATIONS = (10,)
TOLERANCES = (1e-6, 1e-4)
PRIMITIVES = ("box", "capsule")
"""Shapes that MuJoCo fits to a mesh, where a geom of that type names one."""
FEWER_SUBSTEPS = (0.75, 0.5, 0.25)
"""Physics steps of a control period, as multiples of what they are."""
LARGEST_TIMESTEP_S = 0.05
SPARSE_FROM = 20
"""Degrees of freedom below which a sparse Jacobian never pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCandidate:
    """A change that is to be measured."""

    name: str
    group: str
    """Of the changes of one group, at most one is made."""
    edits: Mapping[str, Any] = field(default_factory=dict)
    frame_skip: int | None = None
    """Physics steps of a control period, where they change."""
    excluded: tuple[tuple[int, int], ...] = ()
    """Pairs of bodies that are not to collide, which only the MJCF can say."""
    mjcf: str | None = None
    remark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsUse:
    """What a robot uses of the physics in the states of its task."""

    census: CollisionCensus
    most_iterations: int
    """Iterations of the constraint solver in the state that took the most; 0 where there was never
    a constraint."""
    reads_sensors: bool
    frame_skip: int
    disabled: int
    """``disableflags`` as the MJCF has them."""


def candidates(model: mujoco.MjModel, use: PhysicsUse) -> Iterator[ChangeCandidate]:
    """Every change that can apply to the robot."""
    yield from _timesteps(model, use.frame_skip)
    yield from _integrators(model, use.frame_skip)
    if use.most_iterations:
        yield from _solver(model, use.most_iterations)
    if use.census.contacts:
        yield from _contacts(model, use.census)
    yield from _collisions(model, use.census)
    yield from _meshes(model)
    yield from _unused_computations(model, use)


def timestep_edit(model: mujoco.MjModel, frame_skip: int, to: int) -> float:
    """The timestep with which ``to`` steps take as long as ``frame_skip`` do now, in at most six
    digits.
    """
    return float(f"{model.opt.timestep * frame_skip / to:.6g}")


def _timesteps(model: mujoco.MjModel, frame_skip: int) -> Iterator[ChangeCandidate]:
    for steps in sorted(
        {round(frame_skip * share) for share in FEWER_SUBSTEPS} - {0, frame_skip}, reverse=True
    ):
        if (timestep := timestep_edit(model, frame_skip, steps)) <= LARGEST_TIMESTEP_S:
            edits = {"option.timestep": timestep}
            yield ChangeCandidate(
                name=f"timestep {timestep:g}", group="integration", edits=edits, frame_skip=steps
            )


def _integrators(model: mujoco.MjModel, frame_skip: int) -> Iterator[ChangeCandidate]:
    now = INTEGRATORS[int(model.opt.integrator)]
    half = (
        timestep_edit(model, frame_skip, frame_skip // 2)
        if frame_skip > 1
        else LARGEST_TIMESTEP_S + 1
    )
    for name in OFFERED_INTEGRATORS:
        if name != now:
            edits = {"option.integrator": name}
            yield ChangeCandidate(name=f"integrator {name}", group="integration", edits=edits)
            if half <= LARGEST_TIMESTEP_S:
                yield ChangeCandidate(
                    name=f"integrator {name}, timestep {half:g}",
                    group="integration",
                    edits={**edits, "option.timestep": half},
                    frame_skip=frame_skip // 2,
                )


def _solver(model: mujoco.MjModel, most_iterations: int) -> Iterator[ChangeCandidate]:
    option = model.opt
    for number, name in enumerate(SOLVERS):
        if number != option.solver:
            yield ChangeCandidate(
                name=f"solver {name}", group="solver", edits={"option.solver": name}
            )
    for limit in ITERATIONS:
        if limit < min(most_iterations, option.iterations):
            yield ChangeCandidate(
                name=f"iterations {limit}", group="solver", edits={"option.iterations": limit}
            )
    if option.solver != int(mujoco.mjtSolver.mjSOL_PGS):
        for limit in LS_ITERATIONS:
            if limit < option.ls_iterations:
                edits = {"option.ls_iterations": limit}
                yield ChangeCandidate(
                    name=f"ls_iterations {limit}", group="line search", edits=edits
                )
    for tolerance in TOLERANCES:
        if tolerance > option.tolerance:
            yield ChangeCandidate(
                name=f"tolerance {tolerance:g}",
                group="tolerance",
                edits={"option.tolerance": tolerance},
            )
    if option.noslip_iterations:
        yield ChangeCandidate(
            name="noslip_iterations 0", group="noslip", edits={"option.noslip_iterations": 0}
        )
    if mujoco.mj_isSparse(model) or model.nv >= SPARSE_FROM:
        kind = "dense" if mujoco.mj_isSparse(model) else "sparse"
        yield ChangeCandidate(
            name=f"jacobian {kind}", group="jacobian", edits={"option.jacobian": kind}
        )


def _contacts(model: mujoco.MjModel, census: CollisionCensus) -> Iterator[ChangeCandidate]:
    cone = CONES[1 - int(model.opt.cone)]
    yield ChangeCandidate(name=f"cone {cone}", group="cone", edits={"option.cone": cone})
    touching = sorted({geom for pair in census.contacts for geom in pair})
    if (model.geom_condim[touching] > 3).any():
        changed = {model.geom(geom).name for geom in np.flatnonzero(model.geom_condim > 3).tolist()}
        if all(map(collision_census.is_usable, changed)):
            edits = {f"geom.{name}.condim": 3 for name in sorted(changed)}
        else:  # the pattern would give contacts without friction some
            edits = {"geom.*.condim": 3} if (model.geom_condim >= 3).all() else {}
        if edits:
            remark = "no torsional and rolling friction"
            yield ChangeCandidate(name="condim 3", group="condim", edits=edits, remark=remark)
    convex = {int(kind) for kind in (mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_ELLIPSOID)}
    if convex.intersection(model.geom_type[touching].tolist()):
        for limit in CCD_ITERATIONS:
            if limit < model.opt.ccd_iterations:
                edits = {"option.ccd_iterations": limit}
                yield ChangeCandidate(name=f"ccd_iterations {limit}", group="ccd", edits=edits)


def _collisions(model: mujoco.MjModel, census: CollisionCensus) -> Iterator[ChangeCandidate]:
    now = contacts.masks(model)
    touched = census.touching.keys()
    possible = len(contacts.possible_pairs(model, now))
    if possible:
        idle = collision_census.without_idle_geoms(model, now, touched)
        apart = collision_census.without_self_collisions(model, now, touched)
        both = collision_census.without_idle_geoms(model, apart, touched)
        choices = {
            "idle geoms collide with nothing": idle,
            "no self-collisions": apart,
            "no self-collisions, idle geoms collide with nothing": both,
        }
        seen = [now]
        for name, masks in choices.items():
            left = len(contacts.possible_pairs(model, masks))
            if left == possible or any((masks == other).all() for other in seen):
                continue
            seen.append(masks)
            edits = collision_census.mask_edits(model, masks)
            remark = (
                f"{possible - left} of {possible} pairs that may collide, none of which touched"
            )
            yield ChangeCandidate(
                name=name,
                group="collisions",
                edits=edits or {},
                mjcf=None
                if edits
                else "set contype and conaffinity of its geoms, which have no names here",
                remark=remark,
            )
    if always := census.always_touching():
        elements = collision_census.exclusions(model, always)
        pairs = ", ".join(collision_census.labels(model, always[:5]))
        yield ChangeCandidate(
            name="no contact of geoms that always touch",
            group="excluded",
            excluded=tuple(elements),
            mjcf=f"add <contact>{''.join(elements.values())}</contact>",
            remark=f"{pairs}{', …' if len(always) > 5 else ''}",
        )


def _meshes(model: mujoco.MjModel) -> Iterator[ChangeCandidate]:
    is_mesh = model.geom_type == int(mujoco.mjtGeom.mjGEOM_MESH)
    geoms = np.flatnonzero(is_mesh & contacts.masks(model).any(axis=0)).tolist()
    names = [model.geom(geom).name for geom in geoms]
    for shape in PRIMITIVES if names else ():
        is_named = all(map(collision_census.is_usable, names))
        yield ChangeCandidate(
            name=f"{shape} in place of mesh",
            group="meshes",
            edits={f"geom.{name}.type": shape for name in names} if is_named else {},
            mjcf=None
            if is_named
            else f'name the {len(names)} geoms with meshes, then set their type to "{shape}"',
            remark="masses may change: it is fitted to the mesh",
        )


def _unused_computations(model: mujoco.MjModel, use: PhysicsUse) -> Iterator[ChangeCandidate]:
    sensor = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
    if model.nsensor and not use.reads_sensors and not use.disabled & sensor:
        edits = {"option.disableflags": use.disabled | sensor}
        yield ChangeCandidate(
            name="sensors off",
            group="sensors",
            edits=edits,
            remark=f"the task reads none of {model.nsensor}",
        )
    energy = int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    if model.opt.enableflags & energy:
        edits = {"option.enableflags": int(model.opt.enableflags) & ~energy}
        yield ChangeCandidate(name="energy off", group="energy", edits=edits)
    visual = ~contacts.masks(model).any(axis=0)
    if visual.any():
        yield ChangeCandidate(
            name="visual geoms discarded",
            group="visual",
            edits={"compiler.discardvisual": True},
            remark=f"{count(int(visual.sum()), 'geom')}, also from pictures",
        )
    is_static = (model.body_jntnum == 0) & (np.arange(model.nbody) > 0)
    if is_static.any():
        remark = f"of {count(int(is_static.sum()), 'body', 'bodies')} without joints, those that nothing refers to"
        yield ChangeCandidate(
            name="static bodies fused",
            group="static",
            edits={"compiler.fusestatic": True},
            remark=remark,
        )
