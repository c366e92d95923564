"""A URDF completed by the table ``urdf`` of a job and written as MJCF, which is then examined and
trained like any.

MuJoCo compiles the URDF. What it does not describe is added: a base, actuators, a start, a floor,
and pairs of links that do not collide. MuJoCo's own extension, ``<mujoco><compiler …/><option
…/></mujoco>`` in the URDF, works as ever.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco

from orchestrator.core.messages import ExaminationRequest, RobotSetting
from orchestrator.core.task_names import AUTO
from orchestrator.core.text import joined
from orchestrator.features.urdf.part import PART
from orchestrator.features.urdf.settings import UrdfSettings
from orchestrator.features.urdf.worker.added_actuators import (
    OF_SERVOS,
    about_actuators,
    add_floor,
    check_settings,
    make_actuators,
    write_spec,
)
from orchestrator.features.urdf.worker.dummy_inertias import drop_dummy_inertias
from orchestrator.features.urdf.worker.joint_values import JointValueError
from orchestrator.features.urdf.worker.legs import Legs, find_legs
from orchestrator.features.urdf.worker.servo_gains import Floats, largest_inertias
from orchestrator.features.urdf.worker.start_pose import (
    CLEARANCE_M,
    lowest_point,
    overlapping_bodies,
    start_pose,
)
from orchestrator.features.urdf.worker.urdf_meshes import UrdfMeshes
from orchestrator.features.urdf.worker.urdf_structure import (
    UrdfJoint,
    UrdfStructure,
    read_structure,
    shown,
)
from orchestrator.features.urdf.worker.urdf_tree import Node, UrdfError, parse, urdf_text
from orchestrator.worker.robots.bundle import most_bytes, read_regular_file
from orchestrator.worker.robots.compiling import guard_compiler
from orchestrator.worker.robots.converted_robot import ConvertedRobot
from orchestrator.worker.robots.unfit import UnfitError

WORLD = "world"
"""A link of this name is MuJoCo's world."""
SOFT_HZ = 2.0
"""Natural frequency of servos with which also light robots with an effort of any size are stable."""
FASTEST = 200.0
"""rad/s, or m/s, after one time step, above which physics will hardly be stable under motors."""
SERVOS = RobotSetting(
    key="actuators", value="position", reason="guessed: with motors, physics diverges"
)
DIRECTORIES = ("meshdir", "texturedir", "assetdir", "strippath")
_LINE = re.compile(r"line (\d+)")
_ELEMENT = re.compile(r"Element name '([^']+)'")


def make_robot(request: ExaminationRequest, folder: Path) -> ConvertedRobot:
    """Write the URDF ``request.xml`` as MJCF.

    :param folder: an empty one, for the MJCF and copies of its meshes.
    :raises UnfitError: naming file, line and element, what was expected, and what to do.
    """
    xml = Path(str(request.xml))
    settings = _settings(request)
    limit_bytes = most_bytes(request.memory_mib)
    try:
        robot = parse(read_regular_file(xml, str(xml), limit_bytes))
        structure = read_structure(robot, settings.effort, settings.passive)
        compiler = _compiler(robot)
        if settings.balance_inertia:
            compiler.attributes["balanceinertia"] = "true"
        meshes = UrdfMeshes(
            xml,
            settings.asset_paths,
            compiler,
            folder,
            limit_bytes,
            user_folders=() if "asset_paths" in request.robot_settings else request.user_folders,
            job_folder=request.job_folder,
        )
        _choose_geometry(robot, compiler, settings, meshes)
        outside = None if request.allow_outside else meshes.outside
        if outside is not None and not request.alone:
            raise outside
        dropped = drop_dummy_inertias(structure, settings.collision)
        with guard_compiler(xml, request.memory_mib):
            target = folder / f"{xml.stem}.xml"
            made = _complete_robot(robot, structure, settings, target, meshes, request)
            return dataclasses.replace(
                made, notes=dropped, outside=None if outside is None else str(outside)
            )
    except JointValueError as error:
        raise UnfitError(f"{xml}: {error}") from None
    except UrdfError as error:
        place = f"{xml}" if error.line is None else f"{xml}, line {error.line}"
        raise UnfitError(f"{place}: {error}") from None


def _settings(request: ExaminationRequest) -> UrdfSettings:
    """As they are given; what is to be chosen has its default."""
    given = request.robot_settings
    lists = {name: tuple(given.get(name, ())) for name in ("passive", "asset_paths")}
    return UrdfSettings(**{**given, **lists})


def _compiler(robot: Node) -> Node:
    """``<mujoco><compiler>`` of the URDF, added where there is none."""
    holder = robot.first("mujoco")
    if holder is None:
        holder = Node("mujoco", {}, robot.line)
        robot.children.insert(0, holder)
    compiler = holder.first("compiler")
    if compiler is None:
        compiler = Node("compiler", {}, holder.line)
        holder.children.insert(0, compiler)
    return compiler


def _choose_geometry(
    robot: Node, compiler: Node, settings: UrdfSettings, meshes: UrdfMeshes
) -> None:
    """Leave the geometry that is used, with the names of the copies of its meshes."""
    if settings.collision == "visual":
        compiler.attributes["discardvisual"] = "false"
        for link in robot.all("link"):
            link.children = [child for child in link.children if child.tag != "collision"]
    used = ["collision"]
    if compiler.attributes.get("discardvisual") == "false":
        used.append("visual")
    for link in robot.all("link"):
        for part in link.children:
            geometry = part.first("geometry") if part.tag in used else None
            for mesh in geometry.all("mesh") if geometry is not None else ():
                meshes.take(mesh, f'<{part.tag}> of <link> "{link.attributes["name"]}"')
    for name in DIRECTORIES:
        compiler.attributes.pop(name, None)


def _complete_robot(
    robot: Node,
    structure: UrdfStructure,
    settings: UrdfSettings,
    target: Path,
    meshes: UrdfMeshes,
    request: ExaminationRequest,
) -> ConvertedRobot:
    copy = target.with_suffix(".urdf")
    copy.write_text(urdf_text(robot), encoding="utf-8")
    added = list[str]()
    warnings = list[str]()
    try:
        spec = mujoco.MjSpec.from_file(str(copy))
        chosen = list[RobotSetting]()
        if request.alone:
            chosen = _chosen_settings(spec, structure, meshes, settings, request.robot_settings)
        elif "base" not in request.robot_settings and request.task == AUTO:
            warnings += _about_legs(spec, structure, settings)
        settings = dataclasses.replace(settings, **{one.key: one.value for one in chosen})
        check_settings(settings.actuators, settings, PART.name)
        added += _add_base(spec, structure, settings)
        added += _keep_frames(spec, structure)
        if settings.collision == "visual":
            _let_visuals_collide(spec)
        if settings.base == "fixed":
            _exclude(spec, _beside_the_base(spec, structure))
        added += _add_start(spec, structure, settings)
        if not any(geom.contype or geom.conaffinity for geom in spec.geoms):
            warnings.append(_nothing_collides(settings))
        has_servos = settings.actuators == "position" and bool(structure.driven)
        if has_servos and "integrator" not in _options(robot):
            spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
            added.append("integrator implicitfast, for the damping of the servos")
        if lost := write_spec(spec, target):
            raise UrdfError(lost)
    except ValueError as error:
        raise _explained_error(str(error), structure, meshes) from None
    finally:
        copy.unlink()
    added += _about_not_driven(structure)
    added += meshes.replaced
    return ConvertedRobot(
        xml=target,
        added=added,
        warnings=warnings,
        chosen=chosen,
        if_diverging=_if_diverging(settings) if structure.driven else [],
    )


def _if_diverging(settings: UrdfSettings) -> list[RobotSetting]:
    """What may help where physics diverges."""
    if settings.actuators == "motor":
        return [SERVOS]
    if settings.frequency <= SOFT_HZ or settings.kp is not None:
        return []
    reason = f"guessed: at {settings.frequency:g} Hz, physics diverges"
    return [RobotSetting(key="frequency", value=SOFT_HZ, reason=reason)]


def _about_legs(spec: mujoco.MjSpec, structure: UrdfStructure, settings: UrdfSettings) -> list[str]:
    """A warning where a robot stands on legs and nobody has said that its base is fixed."""
    legs = _legs(spec, structure, settings)
    if legs is None:
        return []
    advice = 'set urdf.base = "floating" for a robot that walks, or "fixed"'
    return [f"{legs}, and its base is fixed to the world, as urdf.base is not set; {advice}"]


def _chosen_settings(
    spec: mujoco.MjSpec,
    structure: UrdfStructure,
    meshes: UrdfMeshes,
    settings: UrdfSettings,
    given: Mapping[str, Any],
) -> list[RobotSetting]:
    """What a robot needs of the settings that are not given.

    :param settings: those that are given, with the defaults of the others.
    """
    chosen = list[RobotSetting]()
    legs = None
    if given.get("base", "floating") == "floating":
        legs = _legs(spec, structure, settings)
    if legs is not None:
        chosen.append(RobotSetting(key="base", value="floating", reason=f"guessed: {legs}"))
        why_servos: str | None = "guessed: servos are usual for legs"
    else:
        why_servos = _why_servos(spec, structure, settings, given)
    if why_servos is not None:
        chosen.append(RobotSetting(key="actuators", value="position", reason=why_servos))
    if meshes.folders_needed:
        reason = "its meshes lie there"
        folders = meshes.folders_needed
        chosen.append(
            RobotSetting(key="asset_paths", value=folders, reason=reason, is_folders=True)
        )
    return [one for one in chosen if one.key not in given]


def _why_servos(
    spec: mujoco.MjSpec, structure: UrdfStructure, settings: UrdfSettings, given: Mapping[str, Any]
) -> str | None:
    """Why a robot without legs needs servos; None: it does not."""
    joint = _joint_of_a_fast_motor(spec, structure, settings)
    if joint is not None:
        return (
            f"guessed: the effort of the joint {joint} is far too much for the mass that it moves"
        )
    of_servos = [key for key in OF_SERVOS if given.get(key) is not None]
    return f"for the given {joined(of_servos)}" if of_servos else None


def _joint_of_a_fast_motor(
    spec: mujoco.MjSpec, structure: UrdfStructure, settings: UrdfSettings
) -> str | None:
    """The joint that a motor with its effort makes fastest in one time step, if that is more than
    :data:`FASTEST`.
    """
    try:
        model = spec.copy().compile()
    except ValueError:  # as in _legs
        return None
    driven = structure.driven
    numbers = [int(model.joint(joint.name).id) for joint in driven]
    pose, _ = start_pose(model, structure.joints, settings.pose)
    inertias = largest_inertias(model, pose, numbers, is_floating=False).tolist()
    step_s = float(model.opt.timestep)
    speeds = {
        joint.name: step_s * (joint.effort or 0.0) / max(inertia, mujoco.mjMINVAL)
        for joint, inertia in zip(driven, inertias, strict=True)
    }
    fastest = max(speeds, key=speeds.__getitem__, default=None)
    return fastest if fastest is not None and speeds[fastest] > FASTEST else None


def _legs(spec: mujoco.MjSpec, structure: UrdfStructure, settings: UrdfSettings) -> Legs | None:
    """The legs of the robot; None where it plainly has none, or cannot move freely."""
    if structure.root == WORLD:
        return None
    free = spec.copy()
    free.body(structure.root).add_freejoint()
    try:
        model = free.compile()
    except ValueError:  # what is wrong is told of the robot as it is asked for
        return None
    pose, _ = start_pose(model, structure.joints, settings.pose)
    driven = {joint.name for joint in structure.driven}
    return find_legs(model, pose, structure.root, driven)


def _options(robot: Node) -> dict[str, str]:
    holder = robot.first("mujoco")
    option = None if holder is None else holder.first("option")
    return {} if option is None else option.attributes


def _add_base(spec: mujoco.MjSpec, structure: UrdfStructure, settings: UrdfSettings) -> list[str]:
    """Let the root move freely if it is to. Returns what it is, in words."""
    if settings.base == "fixed":
        return [
            f'base: link "{structure.root}" is fixed to the world (urdf.base = "floating" frees it)'
        ]
    if structure.root == WORLD:
        advice = 'remove this link and its joint, or set urdf.base = "fixed"'
        line = structure.links[WORLD].line
        raise UrdfError(
            f'the root is the link "{WORLD}", which cannot have a floating base; {advice}', line
        )
    spec.body(structure.root).add_freejoint()
    return [f'base: link "{structure.root}" moves freely']


def _keep_frames(spec: mujoco.MjSpec, structure: UrdfStructure) -> list[str]:
    """Make sites of links that are mere frames, because MuJoCo fuses links that do not move with
    their parents. Returns what was added.
    """
    fixed = {joint.child for joint in structure.joints if joint.kind == "fixed"}
    parts = ("inertial", "visual", "collision")
    frames = [
        name
        for name in structure.links
        if name in fixed and not any(map(structure.links[name].first, parts))
    ]
    for name in frames:
        spec.body(name).add_site(name=name)
    return [f"sites for links without mass and geometry: {shown(frames)}"] if frames else []


def _let_visuals_collide(spec: mujoco.MjSpec) -> None:
    """Give what is a ``<visual>`` the properties that MuJoCo's reader gives to a
    ``<collision>``.
    """
    usual = mujoco.MjSpec().default.geom
    for geom in spec.geoms:
        geom.contype = usual.contype
        geom.conaffinity = usual.conaffinity
        geom.group = usual.group
        geom.density = usual.density


def _beside_the_base(spec: mujoco.MjSpec, structure: UrdfStructure) -> Iterator[tuple[str, str]]:
    """A fixed base and each link that it moves: MuJoCo lets them collide, as it does not with a
    base that moves.
    """
    body_of = {structure.root: structure.root}
    for joint in structure.from_the_root:
        if joint.parent not in body_of:
            continue
        if joint.kind == "fixed":
            is_fused = spec.compiler.fusestatic and joint.parent != WORLD
            body_of[joint.child] = body_of[joint.parent] if is_fused else joint.child
        elif joint.parent != WORLD:
            yield body_of[joint.parent], joint.child


def _exclude(spec: mujoco.MjSpec, pairs: Iterable[tuple[str, str]]) -> None:
    for first, second in pairs:
        spec.add_exclude(bodyname1=first, bodyname2=second)


def _add_start(spec: mujoco.MjSpec, structure: UrdfStructure, settings: UrdfSettings) -> list[str]:
    """Add actuators, floor, height above it, links that do not collide, and the keyframe ``home``.
    Returns what was added.
    """
    model = spec.copy().compile()
    data = mujoco.MjData(model)
    pose, moved = start_pose(model, structure.joints, settings.pose)
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    in_the_middle = f", in the middle of limits without 0: {shown(moved)}" if moved else ""
    posed = " but for those of urdf.pose" if settings.pose else ""
    added = [f"keyframe home: joints at 0{posed}{in_the_middle}"]
    added += _about_fused_links(spec, model, structure)
    added += _exclude_overlaps(spec, model, data)
    lowest = lowest_point(model, data)
    below = ""
    if settings.base == "floating" and lowest is not None:
        pose[2] = round(float(pose[2]) + CLEARANCE_M - lowest, 6)
        spec.body(structure.root).pos[2] = pose[2]
        below = f", {CLEARANCE_M * 1000:g} mm below the robot"
    if settings.has_floor:
        add_floor(spec)
        added.append(f"floor at z = 0{below}")
    return added + _add_actuators(spec, model, pose, structure.driven, settings)


def _about_fused_links(
    spec: mujoco.MjSpec, model: mujoco.MjModel, structure: UrdfStructure
) -> list[str]:
    """Names links that MuJoCo has fused with their parents, and that are no sites either."""
    kept = {model.body(number).name for number in range(model.nbody)}
    kept |= {site.name for site in spec.sites}
    fused = [name for name in structure.links if name not in kept]
    if not fused:
        return []
    advice = '<mujoco><compiler fusestatic="false"/></mujoco> in the URDF keeps them'
    return [f"links that do not move are parts of their parents: {shown(fused)} ({advice})"]


def _exclude_overlaps(spec: mujoco.MjSpec, model: mujoco.MjModel, data: mujoco.MjData) -> list[str]:
    """Let links that touch at the start not collide."""
    pairs = overlapping_bodies(model, data)
    _exclude(spec, pairs)
    if not pairs:
        return []
    named = shown([f"{first} and {second}" for first, second in pairs])
    return [f"no contact between links that overlap at the start: {named}"]


def _add_actuators(
    spec: mujoco.MjSpec,
    model: mujoco.MjModel,
    pose: Floats,
    driven: Sequence[UrdfJoint],
    settings: UrdfSettings,
) -> list[str]:
    """Add an actuator for each driven joint, and the keyframe with their controls."""
    efforts = {joint.name: joint.effort for joint in driven}
    is_floating = settings.base == "floating"
    made = make_actuators(
        settings.actuators, model, pose, efforts, settings, PART.name, is_floating
    )
    for actuator in made:
        actuator.add_to(spec)
    spec.add_key(name="home", qpos=pose.tolist(), ctrl=[one.home for one in made])
    return about_actuators(made, settings, PART.name, "<limit effort>")


def _nothing_collides(settings: UrdfSettings) -> str:
    missing = settings.collision
    advice = "correct it"
    if missing == "collision":
        advice = 'urdf.collision = "visual" lets <visual> geometry collide'
    return f"no link has a <{missing}>, so nothing touches anything; {advice}"


def _about_not_driven(structure: UrdfStructure) -> list[str]:
    driven = {joint.name for joint in structure.driven}
    free = [
        one.name
        for one in structure.joints
        if one.name not in driven and one.kind != "fixed" and not one.mimic
    ]
    return [f"joints that no actuator moves: {shown(free)}"] if free else []


def _explained_error(message: str, structure: UrdfStructure, meshes: UrdfMeshes) -> UrdfError:
    """MuJoCo's message with the line of its element, and what to do."""
    text = " ".join(
        line for line in message.splitlines() if not line.startswith("The static bodies")
    )
    line = _LINE.search(message)
    element = _ELEMENT.search(message)
    at = None
    if line:
        at = int(line[1])
    elif element:
        at = structure.line_of(element[1])
    for copy, (source, of_mesh) in meshes.copied.items():
        if str(copy) in text or (at is None and element is not None and element[1] == copy.stem):
            text = text.replace(str(copy), str(source))
            at = of_mesh
    advice = ""
    if "positive eigenvalues" in message:
        advice = (
            "; correct <inertia>, which no body can have, or remove the <inertial>: "
            "mass and inertia are then those of the <collision>"
        )
    elif "mesh volume is too small" in message:
        advice = "; take a simple shape, such as a <box>, in the <collision> of this link"
    elif "stl_decoder" in message:
        advice = "; save it as a binary STL of at most 200,000 faces"
    elif "mass and inertia of moving bodies" in message:
        advice = "; give the link an <inertial> with mass and inertia above 0, or a <collision>"
    elif "balanceinertia" in message:
        advice = "; correct <inertia>, or set urdf.balance_inertia = true in the job, which makes it round"
    return UrdfError(f"MuJoCo cannot compile it: {text}{advice}", at)
