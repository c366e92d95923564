"""The elements of a URDF with their lines, and the same text again for MuJoCo's own parser."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

DEEPEST = 64
"""Levels of elements; a URDF has seven."""
_MOST_SHOWN = 60
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
    "limit": dict.fromkeys(("lower", "upper", "effort", "velocity"), 1),
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
    """The root element ``<robot>``; its numbers are finite.

    :raises UrdfError: it is no URDF.
    """
    parser = expat.ParserCreate()
    above: list[Node] = []
    roots: list[Node] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        node = Node(tag, attributes, parser.CurrentLineNumber)
        (above[-1].children if above else roots).append(node)
        above.append(node)
        if len(above) > DEEPEST:
            raise UrdfError(
                f"elements are nested more than {DEEPEST} deep, which no URDF needs", node.line
            )

    def refuse(*_: object) -> None:
        raise UrdfError(
            "has a <!DOCTYPE>, which a URDF does not need; remove it", parser.CurrentLineNumber
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: above.pop()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UrdfError(
            f"is not well-formed XML: {expat.ErrorString(error.code)}", error.lineno
        ) from None
    except (LookupError, ValueError) as error:  # an unknown encoding
        raise UrdfError(f"cannot be read as text: {error}") from None
    root = roots[0]
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
    for child in root.children:
        if child.tag in ("material", "link", "joint"):
            _check_numbers(child)
    return root


def _check_numbers(top: Node) -> None:
    for node in top.walk():
        for name, count in _NUMBERS.get(node.tag, {}).items():
            if name in node.attributes and not _are_numbers(node.attributes[name], count):
                found = node.attributes[name][:_MOST_SHOWN]
                what = "a finite number" if count == 1 else f"{count} finite numbers"
                named = top.attributes.get("name", "")[:_MOST_SHOWN]
                message = f'<{node.tag} {name}="{found}"> of <{top.tag}> "{named}": expected {what}'
                raise UrdfError(message, node.line)


def _are_numbers(text: str, count: int) -> bool:
    try:
        values = [float(part) for part in text.split()]
    except ValueError:
        return False
    return len(values) == count and all(map(math.isfinite, values)) and "_" not in text


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
