"""The table ``urdf`` of a job: what a job file may say, and what specs have of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import resolve

from orchestrator.core import robot_sources
from orchestrator.core.job import Job
from orchestrator.core.robot_sources import NamedRobot, RobotCollection
from orchestrator.examination.examination_requests import requests_of
from orchestrator.features.urdf.settings import UrdfSettings
from orchestrator.jobfile import load
from orchestrator.server.differences import changed_values

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pony.urdf").write_text("<robot/>")
    (tmp_path / "pony.xml").write_text("<mujoco/>")
    return tmp_path


def job(place: Path, **settings: Any) -> Job:
    return resolve(place, {"xml": "pony.urdf", "task": "forward", **settings}).jobs[0]


def table_of(declared: Job) -> Any:
    """What ``spec.json`` has of it."""
    return json.loads(declared.spec.to_json())["parts"].get("urdf", {}).get("urdf", {})


def test_examination_gets_the_table_with_folders_relative_to_the_job_file(place: Path) -> None:
    declared = job(place, urdf={"base": "floating", "asset_paths": ["../robots", "/opt/robots"]})
    request = next(iter(requests_of([declared])[0].values()))[0]
    expected = UrdfSettings(
        base="floating", asset_paths=(str(place.parent / "robots"), "/opt/robots")
    )
    assert {
        **request.robot_settings,
        "asset_paths": tuple(request.robot_settings["asset_paths"]),
        "passive": (),
    } == dataclasses.asdict(expected)


def test_only_a_urdf_has_the_table_in_its_spec_and_so_in_its_fingerprint(place: Path) -> None:
    plain = job(place, xml="pony.xml")
    assert table_of(plain) == {}
    defaults = {"urdf": {"base": "floating"}}
    assert table_of(resolve(place, {"xml": "pony.xml"}, defaults=defaults).jobs[0]) == {}
    fixed, floating = job(place), job(place, urdf={"base": "floating"})
    moved = job(place, urdf={"asset_paths": ["elsewhere"]})
    assert fixed.spec.fingerprint() == moved.spec.fingerprint() != floating.spec.fingerprint()
    (difference,) = changed_values(fixed, floating)
    assert str(difference) == 'urdf.base: "fixed" → "floating"'


def test_a_matrix_varies_the_table(place: Path) -> None:
    jobs = resolve(
        place, {"xml": "pony.urdf", "matrix": {"urdf.actuators": ["motor", "position"]}}
    ).jobs
    assert [table_of(one)["actuators"] for one in jobs] == ["motor", "position"]


@pytest.fixture
def zoo(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection with one robot, ``zoo:spot``, whose file is a URDF."""
    collection = RobotCollection(
        name="zoo",
        title="a robot of our zoo",
        prefix="zoo:",
        find=lambda name: NamedRobot(name, place / "pony.urdf"),
    )
    sources = {**robot_sources.robot_sources(), "zoo": collection}
    monkeypatch.setattr(robot_sources, "robot_sources", lambda: sources)


@pytest.mark.parametrize("xml", ["zoo:spot", "pony.ur*", "pon*"])
def test_a_robot_that_a_name_or_a_pattern_finds_takes_the_table(
    place: Path, zoo: None, xml: str
) -> None:
    (place / "ponytail.xml").write_text("<mujoco/>")
    (place / "pony.xml").unlink()
    floating = {"urdf": {"base": "floating"}}
    found = resolve(place, {"xml": xml, "task": "forward", **floating}).jobs
    set_there = resolve(place, {"xml": xml, "task": "forward"}, **{"urdf.base": "floating"})
    for jobs in (found, set_there.jobs):
        of_urdf = [one for one in jobs if one.xml_source == place / "pony.urdf"]
        assert [table_of(one)["base"] for one in of_urdf] == ["floating"]


def test_shipped_job_file_has_five_urdf_robots() -> None:
    jobs = load(ROOT / "jobs" / "urdf.toml").jobs
    assert [table_of(one)["base"] for one in jobs] == [
        "fixed",
        "floating",
        "fixed",
        "floating",
        "floating",
    ]
