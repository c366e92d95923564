"""A bundle compiles to the same model as the original, from wherever it lies and with the original
gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import mujoco
import pytest
from bundle_helpers import MESH, ROBOTS, lay_out
from model_helpers import differences

from orchestrator.core.robot_hash import hash_of_copy
from orchestrator.worker.robots import bundle
from orchestrator.worker.robots.bundle import collect
from orchestrator.worker.robots.unfit import UnfitError


@pytest.mark.parametrize("files", ROBOTS.values(), ids=ROBOTS.keys())
def test_a_bundle_is_the_same_robot_with_the_original_gone(
    files: dict[str, str], tmp_path: Path
) -> None:
    users = tmp_path / "users"
    lay_out(users, files)
    original = mujoco.MjModel.from_xml_path(str(users / "r/main.xml"))
    robot = collect(users / "r/main.xml")
    copy = robot.write(tmp_path / "robot")
    assert hash_of_copy(tmp_path / "robot", robot.main) == robot.hash
    shutil.rmtree(users)
    assert differences(original, mujoco.MjModel.from_xml_path(str(copy))) == []


@pytest.mark.parametrize("files", ROBOTS.values(), ids=ROBOTS.keys())
def test_the_hash_does_not_depend_on_where_the_robot_lies(
    files: dict[str, str], tmp_path: Path
) -> None:
    for place in ("here", "far/away"):
        lay_out(tmp_path / place, files)
    here, there = (collect(tmp_path / place / "r/main.xml") for place in ("here", "far/away"))
    contents = [file.content for file in here.files.values()]
    if not any(b"elsewhere/" in content for content in contents):
        assert here.hash == there.hash
        assert not any(str(tmp_path).encode() in content for content in contents)


def test_a_robot_that_names_files_by_absolute_paths_is_the_same_in_any_folder(
    tmp_path: Path,
) -> None:
    text = (
        '<mujoco><compiler meshdir="@/far"/><mesh file="a.obj"/><mesh file="@/r/b.obj"/></mujoco>'
    )
    names = ("one/main.xml", "two/three/main.xml")
    lay_out(tmp_path, {**dict.fromkeys(names, text), "far/a.obj": "mesh", "r/b.obj": "mesh"})
    first, second = (collect(tmp_path / name) for name in names)
    assert (first.main, first.hash) == (second.main, second.hash)


def test_the_hash_is_of_all_contents_whatever_the_main_file_is_called(tmp_path: Path) -> None:
    lay_out(tmp_path, {"r/main.xml": f"<mujoco>{MESH.format('a.obj')}</mujoco>", "r/a.obj": "mesh"})
    first = collect(tmp_path / "r/main.xml").hash
    (tmp_path / "r/main.xml").rename(tmp_path / "r/other.xml")
    assert collect(tmp_path / "r/other.xml").hash == first
    (tmp_path / "r/a.obj").write_text("changed")
    assert collect(tmp_path / "r/other.xml").hash != first


def test_a_missing_file_is_told_with_every_folder_where_it_might_be(tmp_path: Path) -> None:
    text = '<mujoco>\n<compiler meshdir="d"/><include file="p/a.xml"/></mujoco>'
    lay_out(tmp_path, {"main.xml": text, "p/a.xml": f"<mujoco>\n\n{MESH.format('a.obj')}</mujoco>"})
    message = problem_of(tmp_path / "main.xml")
    assert message.startswith(f"{tmp_path}/p/a.xml, line 3: <mesh> a.obj: no such file in ")
    assert f"{tmp_path}, {tmp_path}/d, {tmp_path}/p;" in message


@pytest.mark.parametrize(
    ("reference", "make", "message"),
    [
        (
            '<include file="x.xml"/>',
            lambda path: path.symlink_to(path),
            "cannot be read: Too many levels of symbolic",
        ),
        (
            '<model file="x.xml"/>',
            lambda path: path.symlink_to("nowhere"),
            "x.xml: no such file",
        ),
        ('<mesh file="/no/x.stl"/>', lambda path: None, "/no/x.stl: no such file in"),
        ('<mesh file="x.xml"/>', os.mkfifo, "x.xml: cannot be read: is not a regular file"),
        ('<texture file="x.xml"/>', os.mkdir, "x.xml: cannot be read: is not a regular file"),
        (
            '<include file="x.xml"/>',
            lambda path: path.write_bytes(b"\0\1"),
            "x.xml: is empty or no text in UTF-8, expected an MJCF",
        ),
        (
            '<hfield file="x.xml"/>',
            lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 2**40),
            "x.xml: cannot be read: larger than 2047 MiB",
        ),
        (
            '<texture file="x.xml"/>',
            lambda path: path.write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:0"
            ),
            "x.xml: is a Git LFS pointer: run `git lfs pull`",
        ),
        ('<include file="main.xml"/>', lambda path: None, "includes itself"),
        ('<model file="./main.xml"/>', lambda path: None, "includes itself"),
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


def test_files_that_are_too_large_together_are_refused_with_name_and_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a.obj", "b.obj", "c.obj")
    text = "".join(MESH.format(name) for name in names)
    lay_out(tmp_path, {"main.xml": f"<mujoco>{text}</mujoco>", **dict.fromkeys(names, "x" * 1000)})
    monkeypatch.setattr(bundle, "MAX_TOTAL_BYTES", 4000)
    assert len(collect(tmp_path / "main.xml").files) == 4
    monkeypatch.setattr(bundle, "MAX_TOTAL_BYTES", 1500)
    with pytest.raises(UnfitError, match=r"b\.obj: cannot be read: larger than"):
        collect(tmp_path / "main.xml")


def problem_of(xml: Path) -> str:
    with pytest.raises(UnfitError) as raised:
        collect(xml)
    return str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        '<asset><texture name="t" type="2d" builtin="flat" width="8" height="8" file="../a.png"/></asset>',
        '<asset><texture name="t" type="cube" builtin="flat" width="8" height="48" fileup="/no/a.png"/></asset>',
        '<worldbody><flexcomp name="f" count="3 3 1" dim="2" mass="1" rigid="true" file="../a.obj"/></worldbody>',
    ],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_that_mujoco_does_not_read_is_not_taken(
    text: str, is_there: bool, tmp_path: Path
) -> None:
    xml = tmp_path / "r/main.xml"
    others = dict.fromkeys(("a.png", "a.obj"), "secret") if is_there else {}
    lay_out(tmp_path, {"r/main.xml": f"<mujoco>{text}</mujoco>", **others})
    mujoco.MjModel.from_xml_path(str(xml))  # although the file is missing or no picture
    robot = collect(xml)
    assert (list(robot.files), robot.outside()) == (["main.xml"], None)


def test_sides_of_a_texture_beside_its_file_are_not_taken(tmp_path: Path) -> None:
    text = '<mujoco><texture type="cube" file="a.png" fileup="missing.png"/></mujoco>'
    lay_out(tmp_path, {"main.xml": text, "a.png": "picture"})
    assert sorted(collect(tmp_path / "main.xml").files) == ["a.png", "main.xml"]


@pytest.mark.parametrize(
    "text",
    [
        '<mesh file="../a.obj"/>',
        '<mesh file="@/a.obj"/>',
        '<mesh file="link.obj"/>',
        '<compiler meshdir=".."/><mesh file="a.obj"/>',
        '<texture type="cube" fileup="../a.obj"/>',
        '<include file="../part.xml"/>',
        '<model file="../part.xml"/>',
        '<include file="part/inner.xml"/>',
    ],
)
def test_what_leads_out_of_the_robots_folder_is_outside_unless_it_is_in_that_of_the_job_file(
    text: str, tmp_path: Path
) -> None:
    inner = '<mujoco><mesh file="../a.obj"/></mujoco>'
    lay_out(
        tmp_path,
        {"r/main.xml": f"<mujoco>\n{text}</mujoco>", "a.obj": "mesh", "r/part/inner.xml": inner},
    )
    (tmp_path / "part.xml").write_text("<mujoco/>")
    (tmp_path / "r/link.obj").symlink_to("../a.obj")
    (tmp_path / "other").mkdir()
    (tmp_path / "job").symlink_to(tmp_path)
    robot = collect(tmp_path / "r/main.xml")
    for folder in (None, str(tmp_path / "other")):
        assert f"{tmp_path}/r/" in str(robot.outside(folder))
    assert robot.outside(str(tmp_path / "job")) is None


def test_what_lies_below_the_robots_folder_is_not_outside(tmp_path: Path) -> None:
    text = '<mujoco><compiler meshdir="m/../m"/><mesh file="@/r/m/a.obj"/><mesh file="b.obj"/></mujoco>'
    lay_out(tmp_path, {"r/main.xml": text, "r/m/a.obj": "mesh", "r/b.obj": "mesh"})
    (tmp_path / "r/m/b.obj").symlink_to("../b.obj")
    (tmp_path / "link").symlink_to("r")
    assert collect(tmp_path / "r/main.xml").outside() is None
    assert collect(tmp_path / "link/main.xml").outside() is None
