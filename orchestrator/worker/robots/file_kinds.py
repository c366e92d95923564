"""What a file of a robot is, judged by its content: whether an element of an MJCF can use it.

A robot may come from strangers, and whatever it names is copied into a run directory that is shared
later. A mesh or an image that lies anywhere may be copied, since it is what its element asks for; a
private key or an environment is none of these, whatever its name.

Formats: MuJoCo's XML reference, "asset" (binary STL, OBJ, MSH, SKN, PNG, KTX, MuJoCo's own height
fields), and Gmsh's for flexible bodies.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.worker.robots.mjcf_elements import elements

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
KTX_SIGNATURE = b"\xabKTX 11\xbb\r\n\x1a\n"
GMSH_SIGNATURE = b"$MeshFormat"
MJCF_ROOTS = frozenset({"mujoco", "mujocoinclude"})
STL_HEADER_BYTES = 80
STL_FACET_BYTES = 50
BONE_NAME_BYTES = 40
OBJ_KEYWORDS = frozenset(
    {"v", "vt", "vn", "vp"}
    | {"f", "l", "p", "g", "o", "s", "mg", "mtllib", "usemtl"}
    | {"deg", "bmat", "step", "cstype", "curv", "curv2", "surf", "parm", "trim", "hole", "scrv"}
    | {"sp", "end", "con", "bevel", "c_interp", "d_interp", "lod"}
    | {"shadow_obj", "trace_obj", "ctech", "stech"}
)
OBJ_VERTEX_NUMBERS = (3, 4, 6, 7)
"""Coordinates of a vertex, perhaps with a weight or a colour."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What one element of an MJCF reads.

    :ivar expected: what the file may be, for messages.
    :ivar tests: a file of which one holds is of this kind.
    """

    expected: str
    tests: tuple[Callable[[bytes], bool], ...]

    def fits(self, content: bytes) -> bool:
        return any(is_one(content) for is_one in self.tests)


def _is_mjcf(content: bytes) -> bool:
    root = next(elements(content, ()), None)
    return root is not None and root.tag in MJCF_ROOTS


def _counts(content: bytes, number: int, at: int = 0) -> list[int] | None:
    """``number`` integers of four bytes from ``at``; None: there are fewer, or one is negative."""
    encoded = content[at : at + 4 * number]
    if len(encoded) < 4 * number:
        return None
    counts = list(struct.unpack(f"<{number}i", encoded))
    return None if min(counts) < 0 else counts


def _is_binary_stl(content: bytes) -> bool:
    counted = _counts(content, 1, at=STL_HEADER_BYTES)
    if counted is None:
        return False
    return len(content) == STL_HEADER_BYTES + 4 + STL_FACET_BYTES * counted[0]


def _is_obj(content: bytes) -> bool:
    """Every statement is one of OBJ's, and one is a vertex."""
    has_vertex = False
    for keyword, *values in _obj_statements(content):
        if keyword not in OBJ_KEYWORDS:
            return False
        if keyword == "v":
            if len(values) not in OBJ_VERTEX_NUMBERS or not all(map(_is_number, values)):
                return False
            has_vertex = True
    return has_vertex


def _obj_statements(content: bytes) -> Iterator[list[str]]:
    """The words of each line that has any; names and comments may be in any encoding."""
    content = content.removeprefix(codecs.BOM_UTF8)
    content = content.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")
    for line in content.replace(b"\r", b"\n").split(b"\n"):
        words = line.partition(b"#")[0].split()
        if words:
            yield [word.decode("latin-1") for word in words]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_msh(content: bytes) -> bool:
    """MuJoCo's own format: four counts, then vertices, normals, texture coordinates, faces."""
    counted = _counts(content, 4)
    if counted is None:
        return False
    n_vertices, n_normals, n_coordinates, n_faces = counted
    numbers = 3 * n_vertices + 3 * n_normals + 2 * n_coordinates + 3 * n_faces
    return n_vertices > 0 and len(content) == 16 + 4 * numbers


def _is_gmsh(content: bytes) -> bool:
    return content.startswith(GMSH_SIGNATURE)


def _is_image(content: bytes) -> bool:
    return content.startswith((PNG_SIGNATURE, KTX_SIGNATURE))


def _is_height_field(content: bytes) -> bool:
    """MuJoCo's own format: numbers of rows and columns, then a float for each cell."""
    counted = _counts(content, 2)
    if counted is None:
        return False
    n_cells = counted[0] * counted[1]
    return n_cells > 0 and len(content) == 8 + 4 * n_cells


def _is_skin(content: bytes) -> bool:
    """SKN: four counts; vertices, texture coordinates, faces; then bones with their vertices."""
    counted = _counts(content, 4)
    if counted is None or counted[0] == 0:
        return False
    n_vertices, n_coordinates, n_faces, n_bones = counted
    at = 16 + 4 * (3 * n_vertices + 2 * n_coordinates + 3 * n_faces)
    for _ in range(n_bones):
        at += BONE_NAME_BYTES + 4 * (3 + 4)  # its name, position and orientation
        counted = _counts(content, 1, at)
        if counted is None:
            return False
        at += 4 + (4 + 4) * counted[0]  # for each vertex its number and weight
    return at == len(content)


MESH = FileKind("a mesh (binary STL, OBJ, MSH)", (_is_binary_stl, _is_obj, _is_msh))
MJCF = FileKind("an MJCF", (_is_mjcf,))
KINDS = {
    "mesh": MESH,
    "texture": FileKind("an image (PNG, KTX)", (_is_image,)),
    "hfield": FileKind("a height field (PNG, MuJoCo's own)", (_is_image, _is_height_field)),
    "skin": FileKind("a skin (SKN)", (_is_skin,)),
    "flexcomp": FileKind(
        "a mesh (binary STL, OBJ, MSH, Gmsh)", (_is_binary_stl, _is_obj, _is_msh, _is_gmsh)
    ),
    "include": MJCF,
    "model": MJCF,
}
"""Element of an MJCF → what it reads."""
