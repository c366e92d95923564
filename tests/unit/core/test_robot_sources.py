"""Where robots come from that are no MJCF files: formats and collections that features add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import resolve

from orchestrator.core import feature, job_parts, robot_sources
from orchestrator.core.errors import SpecError, UsageError
from orchestrator.core.feature import Feature
from orchestrator.core.job_parts import JobPart
from orchestrator.core.robot_sources import (
    NamedRobot,
    RobotCollection,
    RobotFormat,
    RobotSource,
    collection_of,
    format_of,
    robot_suffixes,
)
from orchestrator.examination.robot_check import robot_files
from orchestrator.jobfile import load
from orchestrator.keys.value_types import is_maker

SKETCH = RobotFormat(
    name="sketch", title="sketch", suffix=".sketch", root="sketch", worker="nowhere"
)


ROBOT = Path("/robots/crab.xml")


def find(name: str) -> NamedRobot:
    if name == "crab":
        return NamedRobot(name, ROBOT)
    raise UsageError(f"the zoo has no {name}")


ZOO = RobotCollection(name="zoo", title="a robot of the zoo", prefix="zoo:", find=find)


@dataclass(frozen=True, kw_only=True)
class SketchPart:
    sketch: dict[str, Any] = field(default_factory=dict)


PART = JobPart(name="sketch", settings=SketchPart, loop=None)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RobotSource]]:
    """The sources that the only feature gives; to be changed before they are asked for."""
    sources: list[RobotSource] = [SKETCH, ZOO]
    only = Feature(name="robots", about="", robot_sources=lambda: sources, job_parts=lambda: [PART])
    known = feature.features()
    monkeypatch.setattr(feature, "features", lambda: (*known, only))
    caches: list[Callable[[], object]] = [robot_sources.robot_sources, job_parts.job_parts]
    for cached in caches:
        cached.cache_clear()  # type: ignore[attr-defined]
    yield sources
    for cached in caches:
        cached.cache_clear()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("given")
def test_a_file_is_of_a_format_by_the_end_of_its_name() -> None:
    assert format_of("crab.sketch") is format_of("../zoo/*.SKETCH") is SKETCH
    assert format_of("crab.xml") is format_of("crab.sketch.xml") is format_of("sketch") is None
    assert {".xml", ".sketch"} <= set(robot_suffixes())


@pytest.mark.usefixtures("given")
def test_a_name_of_a_collection_is_no_function() -> None:
    assert collection_of("zoo:crab") is ZOO
    assert collection_of("zoology:crab") is None
    assert is_maker("zoology:crab")
    assert not is_maker("zoo:crab")


@pytest.mark.usefixtures("given")
def test_robots_of_a_collection_are_files_with_the_names_that_it_gives(tmp_path: Path) -> None:
    jobs = resolve(tmp_path, {"xml": "zoo:crab"}, {"xml": "zoo:crab", "name": "mine"}).jobs
    assert [(job.spec.name, job.xml_source) for job in jobs] == [("crab", ROBOT), ("mine", ROBOT)]


@pytest.mark.usefixtures("given")
def test_files_of_a_format_are_found_in_folders_and_are_no_job_files(tmp_path: Path) -> None:
    for name in ("a.sketch", "b.xml", "c.txt"):
        (tmp_path / name).write_text("<sketch/>")
    assert list(robot_files(tmp_path)) == [str(tmp_path / "a.sketch"), str(tmp_path / "b.xml")]
    for name in ("a.sketch", "c.txt"):
        with pytest.raises(SpecError):
            load(tmp_path / name)


@pytest.mark.usefixtures("given")
def test_a_part_that_makes_the_robot_is_one_table_and_none_of_the_training() -> None:
    parts = {"sketch": SketchPart(sketch={"legs": 4, "arms": 0})}
    assert job_parts.under_keys(parts) == {"sketch.legs": 4, "sketch.arms": 0}
    assert job_parts.in_training(parts) == {}
