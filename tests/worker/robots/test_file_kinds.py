"""What a file is by its content: MuJoCo compiles each example, so that examples are what it reads."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import mujoco
import pytest

from orchestrator.worker.robots.bundle import collect
from orchestrator.worker.robots.file_kinds import KINDS

CORNERS = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
FACETS = [(0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)]
MESH = (
    '<asset><mesh name="a" file="{}"/></asset><worldbody><geom type="mesh" mesh="a"/></worldbody>'
)
TEXTURE = '<asset><texture name="a" type="2d" file="{}"/></asset>'
FIELD = '<asset><hfield name="a" size="1 1 1 1" file="{}"/></asset>'
SKIN = (
    '<asset><skin file="{}"/></asset><worldbody><body name="b"><geom size="1"/></body></worldbody>'
)
INCLUDE = '<include file="{}"/>'
SUB_MODEL = '<asset><model name="a" file="{}"/></asset>'


def obj() -> bytes:
    vertices = [f"v {x} {y} {z}" for x, y, z in CORNERS]
    faces = [f"f {i + 1} {j + 1} {k + 1}" for i, j, k in FACETS]
    return "\n".join(["# by hand", "o corner", *vertices, "s off", *faces, ""]).encode()


def stl() -> bytes:
    facets = [
        struct.pack("<12fH", 0, 0, 0, *(x for corner in facet for x in CORNERS[corner]), 0)
        for facet in FACETS
    ]
    return b"solid?".ljust(80) + struct.pack("<I", len(facets)) + b"".join(facets)


def msh() -> bytes:
    vertices = struct.pack("<12f", *(x for corner in CORNERS for x in corner))
    faces = struct.pack("<12i", *(corner for facet in FACETS for corner in facet))
    return struct.pack("<4i", 4, 0, 0, 4) + vertices + faces


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + bytes(range(0, 64, 16)) for _ in range(4))
    header = chunk(b"IHDR", struct.pack(">2I5B", 4, 4, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def skin() -> bytes:
    vertices = struct.pack("<12f", *(x for corner in CORNERS for x in corner))
    faces = struct.pack("<12i", *(corner for facet in FACETS for corner in facet))
    pose = struct.pack("<7f", 0, 0, 0, 1, 0, 0, 0)
    weights = struct.pack("<4i", 0, 1, 2, 3) + struct.pack("<4f", 1, 1, 1, 1)
    bone = b"b".ljust(40, b"\0") + pose + struct.pack("<i", 4) + weights
    return struct.pack("<4i", 4, 0, 4, 1) + vertices + faces + bone


EXAMPLES = {
    "a.obj": (MESH, obj()),
    "encoded.obj": (MESH, "# \u00c5sa\r\no \u516c\r\n".encode() + obj()),
    "a.stl": (MESH, stl()),
    "a.msh": (MESH, msh()),
    "a.png": (TEXTURE, png()),
    "field.png": (FIELD, png()),
    "a.field": (FIELD, struct.pack("<2i4f", 2, 2, 0, 1, 2, 3)),
    "a.skn": (SKIN, skin()),
    "part.xml": (INCLUDE, b'<?xml version="1.0"?><!-- a part --><mujoco><statistic extent="1"/></mujoco>'),
    "list.xml": (INCLUDE, b'<mujocoinclude><statistic extent="1"/></mujocoinclude>'),
    "whole.xml": (SUB_MODEL, b'<mujoco><worldbody><geom size="1"/></worldbody></mujoco>'),
}  # fmt: skip
STRANGE = {
    "key": b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE\n-----END-----\n",
    "environment": b"HOME=/home/u\0TOKEN=secret\0",
    "settings": b'{"token": "secret"}',
    "comments alone": b"# token = secret\n",
    "vertices of words": b"v token is secret\n",
    "page": b"<html><body>secret</body></html>",
    "nothing": b"",
    "numbers": struct.pack("<4i", 1, 1, 1, 1) + b"secret",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_element_reads_may_lie_anywhere(name: str, tmp_path: Path) -> None:
    text, content = EXAMPLES[name]
    (tmp_path / name).write_bytes(content)
    main = tmp_path / "robot" / "main.xml"
    main.parent.mkdir()
    main.write_text(f"<mujoco>{text.format(f'../{name}')}</mujoco>")
    robot = collect(main)
    assert robot.outside is None
    mujoco.MjModel.from_xml_path(str(robot.write(tmp_path / "copy")))


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("tag", KINDS)
def test_nothing_else_is_of_any_kind(tag: str, name: str) -> None:
    assert not KINDS[tag].fits(STRANGE[name])


@pytest.mark.parametrize("name", ["a.obj", "a.stl", "a.msh", "a.field", "a.skn"])
def test_a_file_with_something_behind_its_content_is_not_of_its_kind(name: str) -> None:
    text, content = EXAMPLES[name]
    (tag,) = (tag for tag in ("mesh", "hfield", "skin") if f"<{tag}" in text)
    assert KINDS[tag].fits(content)
    assert not KINDS[tag].fits(content + b"TOKEN=secret\n")
