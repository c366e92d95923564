"""The elements of a URDF with their lines, and the same text again for MuJoCo's own parser."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.worker.robots.xml_elements import MalformedXmlError, tags

DEEPEST = 64
"""Levels of elements; a URDF has seven."""
_MOST_SHOWN = 60
_MOST_NAMED = 5
_NUMBERS = {
    "origin": {"xyz": 3, "rpy": 3},
    "mass": {"value": 1},
    "inertia": dict.fromkeys(("ixx", "ixy", "ixz", "iyy", "iyz", "izz"), 1),
    "box": {"size": 3},
    "cylinder": {"radius": 1, "length": 1},
    "capsule": {"radius": 1, "length": 1},
    "sphere": {"radius": 1},
    "mesh": {"scale": 3},
    "axis": {"xyz": 3},
    "limit": dict.fromkeys(("lower", "upper", "effort"), 1),
    "dynamics": {"damping": 1, "friction": 1},
    "mimic": {"multiplier": 1, "offset": 1},
    "color": {"rgba": 4},
}
"""Element → attribute → how many numbers it holds."""
_READ_BY_MUJOCO = ("material", "link", "joint", "mujoco")


class UrdfError(Exception):
    """The URDF cannot become a robot. :param line: of the element that the message is about."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class Node:
    """An element."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Node] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Node]:
        return (child for child in self.children if child.tag == tag)

    def first(self, tag: str) -> Node | None:
        return next(self.all(tag), None)

    def walk(self) -> Iterator[Node]:
        """The element and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def number(self, name: str) -> float | None:
        """The value of an attribute of one number; None where it is not given."""
        return float(self.attributes[name]) if name in self.attributes else None


def parse(content: bytes) -> Node:
    """The root element ``<robot>``. Its numbers are finite, or limits of joints without a limit.

    :raises UrdfError: it is no URDF.
    """
    root = _tree(_as_utf8(content))
    if root.tag != "robot":
        raise UrdfError(
            f"the root element is <{root.tag[:_MOST_SHOWN]}>, expected <robot>", root.line
        )
    for node in root.walk():
        if node.tag.startswith("xacro:"):
            advice = "expand it first: xacro FILE.xacro > FILE.urdf"
            raise UrdfError(
                f"<{node.tag[:_MOST_SHOWN]}> is xacro, from which a URDF is made; {advice}",
                node.line,
            )
    _check_numbers(root)
    return root


def _as_utf8(content: bytes) -> bytes:
    """``content`` as it is where it is UTF-8, otherwise converted from Latin-1."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1").encode()
    return content


def _tree(content: bytes) -> Node:
    """The first element with all below it, as MuJoCo reads them."""
    above: list[Node] = []
    try:
        for tag in tags(content):
            tag.check()
            if tag.opens:
                attributes = {one.name: one.value for one in tag.attributes}
                node = Node(tag.name, attributes, tag.line)
                if above:
                    above[-1].children.append(node)
                above.append(node)
                if len(above) > DEEPEST:
                    raise UrdfError(
                        f"elements are nested more than {DEEPEST} deep, which no URDF needs",
                        tag.line,
                    )
            if tag.closes:
                if not above or above[-1].tag != tag.name:
                    raise UrdfError(
                        f"is not well-formed XML: </{tag.name[:_MOST_SHOWN]}> closes another element",
                        tag.line,
                    )
                node = above.pop()
                if not above:
                    return node
    except MalformedXmlError as error:
        raise UrdfError(
            "is not well-formed XML; check quotes and brackets in this line", error.line
        ) from None
    if not above:
        raise UrdfError("is not well-formed XML: it has no elements")
    raise UrdfError(
        f"is not well-formed XML: <{above[-1].tag[:_MOST_SHOWN]}> is not closed", above[-1].line
    )


def _check_numbers(root: Node) -> None:
    """:raises UrdfError: with every attribute that is no number."""
    wrong: list[tuple[int, str]] = []
    for top in root.children:
        if top.tag not in ("material", "link", "joint"):
            continue
        named = f'<{top.tag}> "{top.attributes.get("name", "")[:_MOST_SHOWN]}"'
        for node in top.walk():
            for name, count in _NUMBERS.get(node.tag, {}).items():
                text = node.attributes.get(name)
                if text is None or _are_numbers(text, count, may_be_infinite=node.tag == "limit"):
                    continue
                expected = "a finite number" if count == 1 else f"{count} finite numbers"
                found = f'<{node.tag} {name}="{text[:_MOST_SHOWN]}">'
                wrong.append((node.line, f"{found} of {named}: expected {expected}"))
    if wrong:
        first = wrong[0][0]
        others = "".join(f"; line {line}: {text}" for line, text in wrong[1:_MOST_NAMED])
        more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise UrdfError(f"{wrong[0][1]}{others}{more}", first)


def _are_numbers(text: str, count: int, *, may_be_infinite: bool) -> bool:
    try:
        values = [float(part) for part in text.split()]
    except ValueError:
        return False
    is_valid = (
        not any(map(math.isnan, values)) if may_be_infinite else all(map(math.isfinite, values))
    )
    return len(values) == count and is_valid and "_" not in text


def urdf_text(robot: Node) -> str:
    """The URDF with what MuJoCo reads of it; every element is in its own line, so that MuJoCo's
    messages are right.
    """
    parts: list[str] = []
    line = 1

    def write(node: Node) -> None:
        nonlocal line
        parts.append("\n" * (node.line - line))
        line = max(line, node.line)
        attributes = "".join(
            f' {name}="{_value(value)}"' for name, value in node.attributes.items()
        )
        parts.append(f"<{node.tag}{attributes}>")
        for child in node.children:
            if node is not robot or child.tag in _READ_BY_MUJOCO:
                write(child)
        parts.append(f"</{node.tag}>")

    write(robot)
    return "".join(parts)


def _value(text: str) -> str:
    return html.escape(" ".join(text.split()))
