"""The table ``urdf`` of a job, and robots of MuJoCo Menagerie: what a job file may say."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobfile_helpers import problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job
from orchestrator.core.urdf_settings import UrdfSettings
from orchestrator.experiment.preflight import requests_of
from orchestrator.experiment.reconcile import changed_keys
from orchestrator.jobfile import load

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pony.urdf").write_text("<robot/>")
    (tmp_path / "pony.xml").write_text("<mujoco/>")
    return tmp_path


def job(place: Path, **settings: Any) -> Job:
    return resolve(place, {"xml": "pony.urdf", "task": "forward", **settings}).jobs[0]


def test_examination_gets_the_table_with_folders_relative_to_the_job_file(place: Path) -> None:
    declared = job(place, urdf={"base": "floating", "asset_paths": ["../robots", "/opt/robots"]})
    request = next(iter(requests_of([declared])[0].values()))[0]
    expected = UrdfSettings(
        base="floating", asset_paths=(str(place.parent / "robots"), "/opt/robots")
    )
    assert {
        **request.urdf,
        "asset_paths": tuple(request.urdf["asset_paths"]),
        "passive": (),
    } == dataclasses.asdict(expected)


def test_only_a_urdf_has_the_table_in_its_spec_and_so_in_its_fingerprint(place: Path) -> None:
    plain = job(place, xml="pony.xml")
    assert plain.spec.urdf == {}
    assert (
        resolve(place, {"xml": "pony.xml"}, defaults={"urdf": {"base": "floating"}})
        .jobs[0]
        .spec.urdf
        == {}
    )
    fixed, floating = job(place), job(place, urdf={"base": "floating"})
    moved = job(place, urdf={"asset_paths": ["elsewhere"]})
    assert fixed.spec.fingerprint() == moved.spec.fingerprint() != floating.spec.fingerprint()
    assert changed_keys(fixed, floating) == ['urdf.base: "fixed" → "floating"']


def test_a_matrix_varies_the_table(place: Path) -> None:
    jobs = resolve(
        place, {"xml": "pony.urdf", "matrix": {"urdf.actuators": ["motor", "position"]}}
    ).jobs
    assert [one.spec.urdf["actuators"] for one in jobs] == ["motor", "position"]


@pytest.mark.parametrize(
    ("settings", "where", "message"),
    [
        ({"urdf": {"bass": "floating"}}, "jobs[0].urdf.bass", 'did you mean "base"?'),
        (
            {"urdf": {"package_dirs": ["a"]}},
            "jobs[0].urdf.package_dirs",
            'did you mean "asset_paths"?',
        ),
        ({"urdf": {"base": "flaoting"}}, "jobs[0].urdf.base", 'did you mean "floating"?'),
        (
            {"urdf": {"actuators": "velocity"}},
            "jobs[0].urdf.actuators",
            'one of "motor", "position"',
        ),
        ({"urdf": {"frequency": 0}}, "jobs[0].urdf.frequency", "from 0.1 to 100"),
        ({"urdf": {"effort": -1.0}}, "jobs[0].urdf.effort", "above 0"),
        ({"urdf": {"asset_paths": "robots"}}, "jobs[0].urdf.asset_paths", "a list of folders"),
        ({"urdf": {"passive": [1]}}, "jobs[0].urdf.passive", "a list of names or patterns"),
        ({"asset_paths": ["robots"]}, "jobs[0].asset_paths", "urdf.asset_paths"),
        (
            {"xml": "pony.xml", "urdf": {"base": "floating"}},
            "jobs[0].urdf",
            "file name ends with .urdf",
        ),
    ],
)
def test_mistakes_are_answered_with_what_would_be_right(
    place: Path, settings: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        job(place, **settings)
    found = problems(refused)
    assert [one for one, _ in found] == [where]
    assert message in found[0][1]


def test_a_urdf_in_the_place_of_a_job_file_is_told_from_one(place: Path) -> None:
    with pytest.raises(SpecError, match="this is a robot, not a job file"):
        load(place / "pony.urdf")


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


def test_without_the_package_one_sentence_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)
    with pytest.raises(SpecError) as refused:
        resolve(tmp_path, {"xml": "menagerie:unitree_go1"})
    ((_, found),) = problems(refused)
    assert "needs the package mujoco-menagerie" in found
    assert "[menagerie]" in found


def test_shipped_job_file_has_five_urdf_robots() -> None:
    jobs = load(ROOT / "jobs" / "urdf.toml").jobs
    assert [one.spec.urdf["base"] for one in jobs] == [
        "fixed",
        "floating",
        "fixed",
        "floating",
        "floating",
    ]
