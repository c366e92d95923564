"""Robots of MuJoCo Menagerie: what ``xml`` of a job may say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobfile_helpers import problems, resolve

from orchestrator.core.errors import SpecError


@pytest.fixture
def menagerie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of MuJoCo Menagerie with one robot."""
    pytest.importorskip("mujoco_menagerie", reason="the extra menagerie is not installed")
    folder = tmp_path / "checkout" / "unitree_go1"
    folder.mkdir(parents=True)
    for name in ("scene", "go1"):
        (folder / f"{name}.xml").write_text("<mujoco/>")
    monkeypatch.setenv("MENAGERIE_ROOT", str(folder.parent))
    return folder


def test_robot_of_menagerie_is_a_file_of_the_checkout(tmp_path: Path, menagerie: Path) -> None:
    declared = resolve(
        tmp_path,
        {"xml": "menagerie:unitree_go1"},
        {"xml": "menagerie:unitree_go1/go1", "name": "bare"},
    )
    assert [(one.spec.name, one.xml_source) for one in declared.jobs] == [
        ("unitree_go1", menagerie / "scene.xml"),
        ("bare", menagerie / "go1.xml"),
    ]


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("menagerie:unitree_go11", 'did you mean "menagerie:unitree_go1"?'),
        ("menagerie:nothing_of_the_kind", "`mujoco-menagerie names` lists them"),
        ("menagerie:unitree_go1/stairs", 'has no file "stairs"; it has '),
        ("menagerie:unitree_go2", "correct MENAGERIE_ROOT = "),
    ],
)
def test_what_menagerie_does_not_have_is_told(
    tmp_path: Path, menagerie: Path, xml: str, message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        resolve(tmp_path, {"xml": xml})
    ((where, found),) = problems(refused)
    assert (where, message in found) == ("jobs[0].xml", True), found


def test_robot_of_menagerie_that_is_not_here_is_not_fetched(
    tmp_path: Path, menagerie: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MENAGERIE_ROOT")
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(SpecError) as refused:
        resolve(tmp_path, {"xml": "menagerie:unitree_go1"})
    ((_, found),) = problems(refused)
    assert "not on this machine" in found
    assert "`mujoco-menagerie prefetch unitree_go1`" in found
    assert "MENAGERIE_ROOT" in found
    assert not (tmp_path / "empty").exists()


def test_robot_of_the_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "unitree_go1-0123"
    folder.mkdir()
    (folder / "scene.xml").write_text("<mujoco/>")
    robot = SimpleNamespace(
        entry_names=("scene",), entry=lambda _: SimpleNamespace(file="scene.xml")
    )
    cache = SimpleNamespace(root=None, is_cached=lambda _: True, model_path=lambda _: folder)
    package = SimpleNamespace(
        names=lambda: ["unitree_go1"], get=lambda _: robot, Cache=lambda: cache
    )
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", package)
    assert (
        resolve(tmp_path, {"xml": "menagerie:unitree_go1"}).jobs[0].xml_source
        == folder / "scene.xml"
    )
    (folder / "scene.xml").unlink()
    with pytest.raises(SpecError, match=r"remove .*, and `mujoco-menagerie prefetch unitree_go1`"):
        resolve(tmp_path, {"xml": "menagerie:unitree_go1"})


def test_without_the_package_one_sentence_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)
    with pytest.raises(SpecError) as refused:
        resolve(tmp_path, {"xml": "menagerie:unitree_go1"})
    ((_, found),) = problems(refused)
    assert "needs the package mujoco-menagerie" in found
    assert "[menagerie]" in found
