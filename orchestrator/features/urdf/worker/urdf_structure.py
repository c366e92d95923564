"""Links and joints of a URDF, checked: a tree of links with one root, and joints with limits."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import mujoco

from orchestrator.core.text import listed
from orchestrator.features.urdf.worker.joint_values import JointValues, values_of_joints
from orchestrator.features.urdf.worker.urdf_tree import Node, UrdfError

LIMITED = ("revolute", "prismatic")
DRIVEN = (*LIMITED, "continuous")
"""Types of joint that an actuator moves."""
TYPES = (*DRIVEN, "fixed", "floating", "planar", "spherical")
LIMITS = ("lower", "upper", "effort")
LONGEST_CHAIN = 480
"""Links from the root to an end. MJCF nests them, and MuJoCo's parser takes 500 levels."""
shown = functools.partial(listed, most=5)
_LOOP = (
    "a URDF describes a tree; remove one of these joints, or write "
    "the robot as MJCF and close the loop by <equality>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mimic:
    """A joint's position is ``factor`` times that of another, plus ``offset``."""

    joint: str
    """The one that it follows."""
    factor: float
    offset: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UrdfJoint:
    name: str
    kind: str
    parent: str
    child: str
    line: int
    effort: float | None
    """Force in N or torque in N·m that drives it; None: nothing does."""
    mimic: Mimic | None
    """None: it follows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrdfStructure:
    links: Mapping[str, Node]
    joints: Sequence[UrdfJoint]
    root: str

    @property
    def driven(self) -> list[UrdfJoint]:
        """The joints that get an actuator."""
        return [joint for joint in self.joints if joint.effort is not None]

    @property
    def from_the_root(self) -> list[UrdfJoint]:
        """The joints, each after those between it and the root."""
        below: dict[str, list[UrdfJoint]] = {}
        for joint in self.joints:
            below.setdefault(joint.parent, []).append(joint)
        ordered = list(below.get(self.root, ()))
        for joint in ordered:  # grows during the loop
            ordered += below.get(joint.child, ())
        return ordered

    def line_of(self, name: str) -> int | None:
        """The line of a link or joint."""
        if name in self.links:
            return self.links[name].line
        return next((joint.line for joint in self.joints if joint.name == name), None)


def read_structure(robot: Node, effort: JointValues, passive: Sequence[str]) -> UrdfStructure:
    """:param effort: in N or N·m: of joints that give none, or by joint or pattern.
    :param passive: names or patterns of joints that nothing drives.

    :raises UrdfError: naming element and line, what was expected, and what to do.
    :raises JointValueError: an effort is of no joint.
    """
    links = _by_name(robot.all("link"), "link")
    if not links:
        raise UrdfError("has no <link>; expected one for each part of the robot", robot.line)
    nodes = _by_name(robot.all("joint"), "joint")
    ends = {name: _ends(name, node, links) for name, node in nodes.items()}
    root = _root(links, ends, nodes)
    for name, node in nodes.items():
        if not _drop_infinite_limits(node) and node.attributes["type"] in LIMITED:
            _check_range(name, node)
    driven = _driven_joints(nodes, passive)
    efforts = _efforts(driven, effort)
    _check_effort(driven, efforts)
    joints = [
        UrdfJoint(
            name=name,
            kind=node.attributes["type"],
            parent=ends[name][0],
            child=ends[name][1],
            line=node.line,
            effort=efforts.get(name),
            mimic=_mimic(name, node, nodes),
        )
        for name, node in nodes.items()
    ]
    _check_mimics(joints)
    return UrdfStructure(links=links, joints=joints, root=root)


def _by_name(nodes: Iterable[Node], tag: str) -> dict[str, Node]:
    named: dict[str, Node] = {}
    for node in nodes:
        name = node.attributes.get("name", "")
        if not name:
            raise UrdfError(f"<{tag}> without a name; give each {tag} a name of its own", node.line)
        if name in named:
            before = named[name].line
            raise UrdfError(
                f'<{tag}> "{name}" has the name of the one in line {before}; rename one of them',
                node.line,
            )
        named[name] = node
    return named


def _ends(name: str, node: Node, links: Mapping[str, Node]) -> tuple[str, str]:
    """Parent and child link of a joint."""
    here = f'<joint> "{name}"'
    kind = node.attributes.get("type")
    if kind not in TYPES:
        found = "has no type" if kind is None else f'has type="{kind}"{_suggestion(kind, TYPES)}'
        raise UrdfError(f"{here} {found}; expected one of {', '.join(TYPES)}", node.line)
    found_links: list[str] = []
    for tag in ("parent", "child"):
        end = node.first(tag)
        link = None if end is None else end.attributes.get("link")
        if link is None:
            raise UrdfError(f'{here} has no <{tag} link="…"/>; add it', node.line)
        if link not in links:
            message = f'{here} has <{tag} link="{link}">, and there is no such link'
            raise UrdfError(
                f"{message}{_suggestion(link, links)}; correct the name or add the link", node.line
            )
        found_links.append(link)
    return found_links[0], found_links[1]


def _root(
    links: Mapping[str, Node], ends: Mapping[str, tuple[str, str]], nodes: Mapping[str, Node]
) -> str:
    """The link that is no other's child.

    :raises UrdfError: the joints form a loop, or several trees.
    """
    above: dict[str, str] = {}
    for name, (_, child) in ends.items():
        if child in above:
            message = f'<link> "{child}" is the child of the joints "{above[child]}" and "{name}", so they close a loop'
            raise UrdfError(f"{message}: {_LOOP}", nodes[name].line)
        above[child] = name
    roots = [link for link in links if link not in above]
    below: dict[str, list[str]] = {}
    for parent, child in ends.values():
        below.setdefault(parent, []).append(child)
    reached = list(roots)
    depths = dict.fromkeys(roots, 1)
    for link in reached:  # grows during the loop
        reached += below.get(link, ())
        depths |= dict.fromkeys(below.get(link, ()), depths[link] + 1)
    reached_links = set(reached)
    looping = [link for link in links if link not in reached_links]
    if looping:
        joints = [above[link] for link in looping]
        message = f"the joints {shown([repr(joint) for joint in joints])} form a loop: none of their links is the root"
        raise UrdfError(f"{message}; {_LOOP}", nodes[joints[0]].line)
    if len(roots) > 1:
        message = f"has {len(roots):,} links that are no joint's child ({shown(roots)}), expected one, the root"
        raise UrdfError(
            f"{message}; connect the others by joints, or remove them", links[roots[1]].line
        )
    deepest = max(depths, key=depths.__getitem__)
    if depths[deepest] > LONGEST_CHAIN:
        message = (
            f'<link> "{deepest}" is the last of a chain of {depths[deepest]:,} links from the root'
        )
        advice = f"expected at most {LONGEST_CHAIN}, which MJCF can nest; merge links that do not move, or shorten it"
        raise UrdfError(f"{message}; {advice}", links[deepest].line)
    return roots[0]


def _drop_infinite_limits(node: Node) -> bool:
    """Remove limits of a joint that are infinite, which means that there are none.

    Where one end of the range alone is infinite, it becomes a turn (or 2π m) from the other one.
    Return whether both are.
    """
    for limit in node.all("limit"):
        infinite = {
            name: value
            for name in LIMITS
            if abs(value := limit.number(name) or 0.0) >= mujoco.mjMAXVAL
        }
        for name in infinite:
            del limit.attributes[name]
        ends = [name for name in ("lower", "upper") if name in infinite]
        if len(ends) == 2:
            if node.attributes["type"] == "revolute":
                node.attributes["type"] = "continuous"
            return True
        for name in ends:
            other = limit.number("upper" if name == "lower" else "lower") or 0.0
            end = other + math.copysign(2 * math.pi, infinite[name])
            limit.attributes[name] = repr(end)
    return False


def _check_range(name: str, node: Node) -> None:
    limit = node.first("limit")
    here = f'<joint> "{name}" ({node.attributes["type"]})'
    turning = node.attributes["type"] == "revolute"
    example = '<limit lower="-1.5" upper="1.5" effort="20" velocity="5"/>'
    endless = '; a joint that turns without end has type="continuous"' if turning else ""
    if limit is None:
        raise UrdfError(
            f"{here} has no <limit>; expected for example {example}{endless}", node.line
        )
    lower = limit.number("lower") or 0.0
    upper = limit.number("upper") or 0.0
    if lower >= upper:
        unit = "radians" if turning else "metres"
        message = (
            f"{here} has lower={lower:g} and upper={upper:g}, expected lower below upper, in {unit}"
        )
        raise UrdfError(f"{message}{endless}", limit.line)


def _driven_joints(nodes: Mapping[str, Node], passive: Sequence[str]) -> dict[str, Node]:
    movable = {name: node for name, node in nodes.items() if node.attributes["type"] in DRIVEN}
    for pattern in passive:
        if not fnmatch.filter(movable, pattern):
            message = f'urdf.passive = "{pattern}" matches no joint that turns or slides'
            raise UrdfError(
                f"{message}{_suggestion(pattern, movable)}; there are {shown(list(movable)) or 'none'}"
            )
    return {
        name: node
        for name, node in movable.items()
        if node.first("mimic") is None
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in passive)
    }


def _effort(node: Node) -> float | None:
    limit = node.first("limit")
    effort = None if limit is None else limit.number("effort")
    return abs(effort) if effort else None


def _efforts(driven: Mapping[str, Node], given: JointValues) -> dict[str, float]:
    """Of each joint that has one."""
    own = {name: effort for name, node in driven.items() if (effort := _effort(node))}
    values = values_of_joints(given, list(driven), "urdf.effort")
    return own | values if isinstance(given, Mapping) else values | own


def _check_effort(driven: Mapping[str, Node], efforts: Mapping[str, float]) -> None:
    weak = [name for name in driven if name not in efforts]
    if weak:
        named = shown([f'"{name}"' for name in weak])
        raise UrdfError(
            f"{'joint has' if len(weak) == 1 else 'joints have'} no finite effort ({named}), the force that moves "
            'them: write <limit effort="…"/> above 0, in N·m or for prismatic joints N; or set in the job urdf.effort '
            "for all joints without one, or urdf.passive for joints that nothing drives",
            driven[weak[0]].line,
        )


def _mimic(name: str, node: Node, nodes: Mapping[str, Node]) -> Mimic | None:
    mimic = node.first("mimic")
    if mimic is None or node.attributes["type"] not in DRIVEN:
        return None
    followed = mimic.attributes.get("joint", "")
    is_movable = followed in nodes and nodes[followed].attributes["type"] in DRIVEN
    if not is_movable or followed == name:
        others = [
            other
            for other, one in nodes.items()
            if other != name and one.attributes["type"] in DRIVEN
        ]
        message = f'<joint> "{name}" mimics "{followed}", expected the name of a joint that turns or slides'
        raise UrdfError(f"{message}{_suggestion(followed, others)}", mimic.line)
    factor = mimic.number("multiplier")
    offset = mimic.number("offset")
    return Mimic(
        joint=followed,
        factor=1.0 if factor is None else factor,
        offset=0.0 if offset is None else offset,
    )


def _check_mimics(joints: Sequence[UrdfJoint]) -> None:
    followed = {joint.name: joint.mimic.joint for joint in joints if joint.mimic is not None}
    for joint in joints:
        last = joint.name
        chain = {last: None}  # a dict keeps the order
        while last in followed:
            last = followed[last]
            if last in chain:
                cycle = " → ".join((*chain, last))
                raise UrdfError(
                    f"joints mimic each other ({cycle}); remove one <mimic>", joint.line
                )
            chain[last] = None


def _suggestion(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f', did you mean "{near[0]}"?' if near else ""
