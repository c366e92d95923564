"""Write the dog's meshes: ``python mjcf/dog/make_meshes.py``.

Each part is a low-poly skin over a row of elliptic rings, closed at both ends by a point, in metres
and in the frame of the body that it covers. The files in ``meshes/`` are what this script writes; a
test holds them to it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ring = tuple[float, float, float, float, float]
"""Place along the part, centre sideways and upwards, half-width and half-height."""

SIDES = 12
MESHES = Path(__file__).parent / "meshes"

ALONG_X: dict[str, tuple[Sequence[Ring], int]] = {
    "trunk": (
        [
            (-0.25, 0.0, 0.02, 0.020, 0.020),
            (-0.23, 0.0, 0.01, 0.070, 0.055),
            (-0.16, 0.0, 0.00, 0.095, 0.072),
            (-0.04, 0.0, 0.00, 0.085, 0.062),
            (0.08, 0.0, -0.005, 0.095, 0.080),
            (0.18, 0.0, -0.005, 0.100, 0.090),
            (0.24, 0.0, 0.01, 0.075, 0.065),
            (0.27, 0.0, 0.03, 0.030, 0.030),
        ],
        SIDES,
    ),
    "head": (
        [
            (-0.06, 0.0, 0.00, 0.025, 0.030),
            (-0.04, 0.0, 0.00, 0.055, 0.055),
            (0.02, 0.0, 0.005, 0.062, 0.058),
            (0.065, 0.0, -0.005, 0.045, 0.042),
            (0.085, 0.0, -0.018, 0.032, 0.028),
            (0.15, 0.0, -0.024, 0.026, 0.022),
            (0.165, 0.0, -0.022, 0.014, 0.012),
        ],
        SIDES,
    ),
    "ear": (
        [
            (-0.02, 0.0, 0.0, 0.006, 0.012),
            (0.01, 0.0, 0.0, 0.009, 0.020),
            (0.055, 0.0, 0.0, 0.004, 0.006),
        ],
        6,
    ),
}
"""Rings stand across x; "sideways" is y and "upwards" z."""

ALONG_Z: dict[str, tuple[Sequence[Ring], int]] = {
    "thigh": (
        [
            (0.04, 0.0, 0.0, 0.020, 0.022),
            (0.02, 0.0, 0.0, 0.040, 0.030),
            (-0.04, -0.004, 0.0, 0.046, 0.030),
            (-0.12, 0.0, 0.0, 0.030, 0.022),
            (-0.19, 0.0, 0.0, 0.022, 0.018),
            (-0.215, 0.0, 0.0, 0.012, 0.010),
        ],
        10,
    ),
    "shin": (
        [
            (0.015, 0.0, 0.0, 0.012, 0.010),
            (0.0, 0.0, 0.0, 0.022, 0.018),
            (-0.05, -0.006, 0.0, 0.022, 0.017),
            (-0.14, 0.0, 0.0, 0.014, 0.013),
            (-0.19, 0.0, 0.0, 0.015, 0.014),
        ],
        10,
    ),
}
"""Rings lie across z; "sideways" is x and "upwards" y."""


def skin(rings: Sequence[Ring], sides: int, axes: tuple[int, int, int]) -> NDArray[np.float32]:
    """``(triangles, 3 corners, 3)``, counter-clockwise seen from outside where ``axes`` is a
    right-handed order.

    :param axes: which world axis is along, sideways, upwards.
    """
    angles = np.linspace(0, 2 * np.pi, sides, endpoint=False)
    points = np.empty((len(rings), sides, 3))
    for row, (along, side, up, half_width, half_height) in enumerate(rings):
        points[row, :, axes[0]] = along
        points[row, :, axes[1]] = side + half_width * np.cos(angles)
        points[row, :, axes[2]] = up + half_height * np.sin(angles)
    if rings[0][0] > rings[-1][0]:
        points = points[::-1]
    ends = points[0].mean(axis=0), points[-1].mean(axis=0)
    triangles = []
    for here in range(sides):
        following = (here + 1) % sides
        triangles.append((ends[0], points[0, following], points[0, here]))
        triangles.append((ends[1], points[-1, here], points[-1, following]))
        for low, high in itertools.pairwise(points):
            triangles.append((low[here], low[following], high[following]))
            triangles.append((low[here], high[following], high[here]))
    return np.array(triangles, np.float32)


def binary_stl(triangles: NDArray[np.float32]) -> bytes:
    """The triangles with their normals in binary STL: 80 bytes of header, a count, 50 bytes
    each.
    """
    record = np.zeros(
        len(triangles), [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")]
    )
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    record["normal"] = normals / np.linalg.norm(normals, axis=1, keepdims=True)
    record["corners"] = triangles
    return b"dog".ljust(80) + struct.pack("<I", len(triangles)) + record.tobytes()


def files() -> dict[str, bytes]:
    """File name → content of every mesh."""
    parts = [(name, *part, (0, 1, 2)) for name, part in ALONG_X.items()]
    parts += [(name, *part, (2, 0, 1)) for name, part in ALONG_Z.items()]
    return {
        f"{name}.stl": binary_stl(skin(rings, sides, axes)) for name, rings, sides, axes in parts
    }


if __name__ == "__main__":
    MESHES.mkdir(exist_ok=True)
    for name, content in files().items():
        (MESHES / name).write_bytes(content)
