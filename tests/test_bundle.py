"""A bundle compiles to the same model as the original, from wherever it lies and with the original gone."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gymnasium
import mujoco
import pytest
from model_helpers import differences
from PIL import Image

from orchestrator.worker.robots import bundle
from orchestrator.worker.robots.bundle import BundleError, collect

ROOT = Path(__file__).parents[1]
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
    """``@`` in a text is the folder; an image where the name says so, a mesh of its own size where it says "mesh"."""
    for number, (name, text) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            Image.effect_mandelbrot((8, 8), (-3, -2.5, 2, 2.5), 10 + number).save(path)
        elif path.suffix == ".skn":
            path.write_bytes(skin())
        else:
            path.write_text(tetrahedron(1 + number) if text == "mesh" else text.replace("@", str(root)))


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


@pytest.mark.parametrize("files", ROBOTS.values(), ids=ROBOTS.keys())
def test_a_bundle_is_the_same_robot_with_the_original_gone(files: dict[str, str], tmp_path: Path) -> None:
    users = tmp_path / "users"
    lay_out(users, files)
    original = mujoco.MjModel.from_xml_path(str(users / "r/main.xml"))
    copy = collect(users / "r/main.xml").write(tmp_path / "robot")
    shutil.rmtree(users)
    assert differences(original, mujoco.MjModel.from_xml_path(str(copy))) == []


@pytest.mark.parametrize("files", ROBOTS.values(), ids=ROBOTS.keys())
def test_the_hash_does_not_depend_on_where_the_robot_lies(files: dict[str, str], tmp_path: Path) -> None:
    for place in ("here", "far/away"):
        lay_out(tmp_path / place, files)
    here, there = (collect(tmp_path / place / "r/main.xml") for place in ("here", "far/away"))
    absolute_and_stripped = b"strippath" in here.contents[here.main] and b"far/a.obj" in here.contents[here.main]
    assert absolute_and_stripped or here.hash == there.hash
    assert not any(str(tmp_path).encode() in content for content in here.contents.values())


@pytest.mark.parametrize("xml", [*INSTALLED, *OWN], ids=lambda path: path.stem)
def test_installed_and_own_robots_are_kept_byte_for_byte(xml: Path, tmp_path: Path) -> None:
    robot = collect(xml)
    assert robot.contents[robot.main] == xml.read_bytes()
    assert robot.moved == {}
    original, copy = (mujoco.MjModel.from_xml_path(str(path)) for path in (xml, robot.write(tmp_path)))
    assert differences(original, copy) == []


def test_only_the_absolute_names_are_rewritten(tmp_path: Path) -> None:
    lay_out(tmp_path, {"r/main.xml": ROBOTS["odd text"]["r/main.xml"], "far/a.obj": "mesh"})
    robot = collect(tmp_path / "r/main.xml")
    before = (tmp_path / "r/main.xml").read_bytes()
    assert robot.contents["main.xml"] == before.replace(f"{tmp_path}/far".encode(), b"elsewhere/0")
    assert robot.moved == {"elsewhere/0/a.obj": tmp_path / "far/a.obj"}


def test_a_bundle_of_a_bundle_is_the_same_bundle(tmp_path: Path) -> None:
    lay_out(tmp_path / "users", ROBOTS["absolute directories"])
    first = collect(tmp_path / "users/r/main.xml")
    again = collect(first.write(tmp_path / "robot"))
    assert (again.contents, again.main, again.hash) == (first.contents, first.main, first.hash)


def test_a_missing_file_is_told_with_every_folder_where_it_might_be(tmp_path: Path) -> None:
    text = '<mujoco>\n<compiler meshdir="d"/><include file="p/a.xml"/></mujoco>'
    lay_out(tmp_path, {"main.xml": text, "p/a.xml": f"<mujoco>\n\n{MESH.format('a.obj')}</mujoco>"})
    message = problem_of(tmp_path / "main.xml")
    assert message.startswith(f"{tmp_path}/p/a.xml, line 3: <mesh> names 'a.obj': no such file in ")
    assert message.endswith(f"{tmp_path}/d, {tmp_path}, {tmp_path}/p")


@pytest.mark.parametrize(
    ("reference", "make", "message"),
    [
        ('<include file="x.xml"/>', lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic"),
        ('<model file="x.xml"/>', lambda path: path.symlink_to("nowhere"), "names 'x.xml': no such file in"),
        ('<mesh file="/no/x.stl"/>', lambda path: None, "names '/no/x.stl': no such file in"),
        ('<include file="/no/x.xml"/>', lambda path: None, "/no/x.xml: no such file"),
        ('<mesh file="x.xml"/>', os.mkfifo, "x.xml: is not a regular file"),
        ('<texture file="x.xml"/>', os.mkdir, "x.xml: is a folder, expected a file"),
        (
            '<include file="x.xml"/>',
            lambda path: path.write_bytes(b"\0\1"),
            "x.xml: is a binary file, expected an MJCF",
        ),
        (
            '<hfield file="x.xml"/>',
            lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 2**40),
            "bytes, and",
        ),
        ('<include file="main.xml"/>', lambda path: None, "includes itself: main.xml → main.xml"),
        ('<model file="./main.xml"/>', lambda path: None, "includes itself: main.xml → main.xml"),
    ],
)
def test_what_cannot_be_taken_along_is_one_message_with_its_line(
    reference: str, make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    (tmp_path / "main.xml").write_text(f"<mujoco>\n{reference}</mujoco>")
    make(tmp_path / "x.xml")
    problem = problem_of(tmp_path / "main.xml")
    assert problem.startswith(f"{tmp_path}/main.xml, line 2: <")
    assert message in problem
    assert "\n" not in problem


def test_two_files_that_would_share_a_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "ELSEWHERE", "d")
    text = '<mujoco><compiler meshdir="m"/><asset><mesh file="@/x/a.obj"/><mesh file="d/0/a.obj"/></asset></mujoco>'
    lay_out(tmp_path, {"r/main.xml": text, "x/a.obj": "mesh", "r/m/d/0/a.obj": "mesh"})
    assert re.search(r"a\.obj: would lie where .*a\.obj lies in a copy", problem_of(tmp_path / "r/main.xml"))


@pytest.mark.parametrize("junk", [b"<a", b"<!--", b'<a b="', b"<?", b"<mujoco>", b"<a x='y'>", bytes(range(1, 256))])
def test_ten_megabytes_of_junk_end_soon(junk: bytes, tmp_path: Path) -> None:
    """Would take hours if anything were tried again from every byte."""
    (tmp_path / "main.xml").write_bytes(b"<mujoco>" + junk * (10_000_000 // len(junk)))
    assert list(collect(tmp_path / "main.xml").contents) == ["main.xml"]


def problem_of(xml: Path) -> str:
    with pytest.raises(BundleError) as raised:
        collect(xml)
    return str(raised.value)
