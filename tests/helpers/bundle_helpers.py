"""Robots that pull in files of every kind, laid out in a folder."""

from __future__ import annotations

import struct
from pathlib import Path

import gymnasium
import mujoco
from PIL import Image

ROOT = Path(__file__).parents[2]


INSTALLED = [
    *sorted((Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets").glob("*.xml")),
    *sorted((Path(mujoco.__file__).parent / "testdata").glob("*.xml")),
]


OWN = [*sorted((ROOT / "mjcf").glob("*.xml")), *sorted((ROOT / "mjcf/zoo").glob("*.xml"))]


FACES = "f 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


SHAPE = '<worldbody><body name="b"><joint name="j"/><geom type="mesh" mesh="a"/></body></worldbody>'


MESH = '<asset><mesh file="{}"/></asset>'


SUB = '<asset><model name="s" file="{}"/></asset><worldbody><attach model="s" body="b" prefix="x"/></worldbody>'


SOFT = '<flexcomp name="f" type="mesh" dim="2" file="{}" mass="1" rigid="true"/>'


FLEX = f'<worldbody><body name="b">{SOFT}</body></worldbody>'


ODD_NAME = "q&amp;\\a.obj"


def tetrahedron(size: float) -> str:
    """Distinct ones for distinct files, so that a wrong choice among them is seen."""
    return f"v 0 0 0\nv {size} 0 0\nv 0 {size} 0\nv 0 0 {size}\n{FACES}"


def lay_out(root: Path, files: dict[str, str]) -> None:
    """``@`` in a text is the folder; an image where the name says so, a mesh of its own size where
    it says "mesh"."""
    for number, (name, text) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            Image.effect_mandelbrot((8, 8), (-3, -2.5, 2, 2.5), 10 + number).save(path)
        elif path.suffix == ".skn":
            path.write_bytes(skin())
        else:
            path.write_text(
                tetrahedron(1 + number) if text == "mesh" else text.replace("@", str(root))
            )


def skin() -> bytes:
    """One triangle that hangs on one body, in MuJoCo's binary format."""
    vertices = struct.pack("9f", 0, 0, 0, 1, 0, 0, 0, 1, 0)
    bone = b"b".ljust(40, b"\0") + struct.pack("7f", 0, 0, 0, 1, 0, 0, 0)
    weights = struct.pack("i3i3f", 3, 0, 1, 2, 1, 1, 1)
    return struct.pack("4i", 3, 0, 1, 1) + vertices + struct.pack("3i", 0, 1, 2) + bone + weights


ROBOTS: dict[str, dict[str, str]] = {
    "included beside the main file, not beside the including one": {
        "r/main.xml": '<mujoco><include file="p/a.xml"/></mujoco>',
        "r/p/a.xml": '<mujoco><include file="b.xml"/></mujoco>',
        "r/b.xml": '<mujoco><worldbody><light name="main"/></worldbody></mujoco>',
        "r/p/b.xml": '<mujoco><worldbody><light name="part"/></worldbody></mujoco>',
    },
    "included beside the including file": {
        "r/main.xml": '<mujoco><include file="p/a.xml"/></mujoco>',
        "r/p/a.xml": '<mujoco><include file="b.xml"/></mujoco>',
        "r/p/b.xml": '<mujoco><worldbody><light name="part"/></worldbody></mujoco>',
    },
    "mesh directory in the main file, mesh named in an include": {
        "r/main.xml": f'<mujoco><compiler meshdir="../m"/><include file="p/a.xml"/>{SHAPE}</mujoco>',
        "r/p/a.xml": f"<mujoco>{MESH.format('a.obj')}</mujoco>",
        "m/a.obj": "mesh",
        "r/p/a.obj": "mesh",
    },
    "mesh beside the include that names it": {
        "r/main.xml": f'<mujoco><compiler meshdir="../m"/><include file="p/a.xml"/>{SHAPE}</mujoco>',
        "r/p/a.xml": f"<mujoco>{MESH.format('a.obj')}</mujoco>",
        "r/p/a.obj": "mesh",
    },
    "several compilers, in an include too": {
        "r/main.xml": f'<mujoco><compiler meshdir="d"/><include file="p/a.xml"/>{MESH.format("a.obj")}{SHAPE}</mujoco>',
        "r/p/a.xml": '<mujoco><compiler assetdir="e"/></mujoco>',
        "r/d/a.obj": "mesh",
        "r/e/a.obj": "mesh",
    },
    "paths stripped": {
        "r/main.xml": f'<mujoco><compiler strippath="true" meshdir="d"/>{MESH.format("q/a.obj")}{SHAPE}</mujoco>',
        "r/d/a.obj": "mesh",
        "r/d/q/a.obj": "mesh",
    },
    "absolute path stripped": {
        "r/main.xml": f'<mujoco><compiler strippath="true" meshdir="d"/>{MESH.format("@/far/a.obj")}{SHAPE}</mujoco>',
        "r/d/a.obj": "mesh",
        "far/a.obj": "mesh",
    },
    "absolute path of another computer, stripped": {
        "r/main.xml": f'<mujoco><compiler strippath="true" meshdir="d"/>{MESH.format("/no/a.obj")}{SHAPE}</mujoco>',
        "r/d/a.obj": "mesh",
    },
    "backslashes and entities": {
        "r/main.xml": f"<mujoco><compiler meshdir='d'/>{MESH.format(ODD_NAME)}{SHAPE}</mujoco>",
        "r/d/q&/a.obj": "mesh",
    },
    "absolute mesh, with a mesh directory": {
        "r/main.xml": f'<mujoco><compiler meshdir="../d"/>{MESH.format("@/far/a.obj")}{SHAPE}</mujoco>',
        "far/a.obj": "mesh",
    },
    "absolute mesh named in an absolute include": {
        "r/main.xml": f'<mujoco><include file="@/far/parts/p.xml"/>{SHAPE}</mujoco>',
        "far/parts/p.xml": f"<mujoco>{MESH.format('@/far/meshes/a.obj')}</mujoco>",
        "far/meshes/a.obj": "mesh",
    },
    "absolute include with what lies beside and above it": {
        "r/main.xml": f'<mujoco><include file="@/far/parts/p.xml"/>{SHAPE}</mujoco>',
        "far/parts/p.xml": f'<mujoco><include file="../q.xml"/>{MESH.format("../m/a.obj")}</mujoco>',
        "far/q.xml": '<mujoco><worldbody><light name="far"/></worldbody></mujoco>',
        "far/m/a.obj": "mesh",
    },
    "absolute directories": {
        "r/main.xml": '<mujoco><compiler assetdir="@/far" texturedir="@/far/t"/>'
        '<asset><mesh name="a" file="../far/a.obj"/><hfield name="h" file="h.png" size="1 1 1 1"/>'
        f'<texture name="t" type="cube" fileright="t.png"/></asset>{SHAPE}</mujoco>',
        "far/a.obj": "mesh",
        "far/h.png": "",
        "far/t/t.png": "",
    },
    "absolute height field, skin and texture in an include with directories": {
        "r/main.xml": f'<mujoco><compiler meshdir="d" texturedir="e"/><include file="p/i.xml"/>'
        f"{MESH.format('a.obj')}{SHAPE}</mujoco>",
        "r/d/a.obj": "mesh",
        "r/p/i.xml": '<mujoco><asset><hfield name="h" file="@/far/h.png" size="1 1 1 1"/><skin file="@/far/s.skn"/>'
        '<texture name="t" type="2d" file="@/far/t.png"/></asset></mujoco>',
        "far/h.png": "",
        "far/t.png": "",
        "far/s.skn": "",
    },
    "six faces, and a grid": {
        "r/main.xml": '<mujoco><compiler texturedir="t"/><asset><texture name="c" type="cube" '
        + " ".join(f'file{side}="{side}.png"' for side in ("right", "left", "up", "down", "front"))
        + ' fileback="@/r/t/back.png"/><texture name="g" type="cube" file="up.png" gridsize="1 1" gridlayout="U"/>'
        "</asset></mujoco>",
        **{f"r/t/{side}.png": "" for side in ("right", "left", "up", "down", "front", "back")},
    },
    "a soft body": {
        "r/main.xml": f'<mujoco><compiler meshdir="d"/>{FLEX.format("a.obj")}</mujoco>',
        "r/d/a.obj": "mesh",
        "r/a.obj": "mesh",
    },
    "a soft body from an absolute path": {
        "r/main.xml": '<mujoco><compiler meshdir="d"/><include file="p/i.xml"/></mujoco>',
        "r/p/i.xml": f"<mujoco>{FLEX.format('@/far/a.obj')}</mujoco>",
        "far/a.obj": "mesh",
    },
    "sub-model with its own directory, an include and a sub-model": {
        "r/main.xml": '<mujoco><compiler meshdir="d"/><include file="p/i.xml"/></mujoco>',
        "r/p/i.xml": f"<mujoco>{SUB.format('s/s.xml')}</mujoco>",
        "r/p/s/s.xml": f'<mujoco model="s"><compiler meshdir="../d"/><include file="i/a.xml"/>{SHAPE}</mujoco>',
        "r/p/s/i/a.xml": f"<mujoco>{MESH.format('a.obj')}</mujoco>",
        "r/p/d/a.obj": "mesh",
        "r/d/a.obj": "mesh",
    },
    "absolute sub-model with a directory above it and one that is absolute": {
        "r/main.xml": f"<mujoco>{SUB.format('@/far/s/s.xml')}</mujoco>",
        "far/s/s.xml": '<mujoco model="s"><compiler meshdir="../m" texturedir="@/r/t"/>'
        f'<asset><texture name="t" type="2d" file="t.png"/></asset>{MESH.format("a.obj")}{SHAPE}</mujoco>',
        "far/m/a.obj": "mesh",
        "r/t/t.png": "",
    },
    "named by the same name in three folders": {
        "r/main.xml": '<mujoco><asset><mesh name="a" file="@/x/a.obj"/><mesh name="b" file="@/y/a.obj"/>'
        f'<mesh name="c" file="../z/a.obj"/></asset>{SHAPE}</mujoco>',
        "x/a.obj": "mesh",
        "y/a.obj": "mesh",
        "z/a.obj": "mesh",
    },
    "a folder that has the name we would give": {
        "r/main.xml": '<mujoco><asset><mesh name="a" file="@/x/a.obj"/><mesh name="b" file="elsewhere/0/a.obj"/>'
        f"</asset>{SHAPE}</mujoco>",
        "x/a.obj": "mesh",
        "r/elsewhere/0/a.obj": "mesh",
    },
    "odd text": {
        "r/main.xml": '<?xml version="1.0"?>\n<!DOCTYPE mujoco>\n<mujoco><!-- <mesh file="no.obj"/> -- > -->\n'
        f'<asset>\n<mesh\n  file = \'@/far/a.obj\' name="a"\n/></asset><custom><text name="t" data="a > b"/></custom>'
        f"{SHAPE}</mujoco>",
        "far/a.obj": "mesh",
    },
}
