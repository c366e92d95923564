"""Robots in files of a format that a feature adds: what its module writes is examined like a file, and
what it says is told of the user's file."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import mujoco
import pytest

from orchestrator.core import feature, robot_sources
from orchestrator.core.feature import Feature
from orchestrator.core.messages import ExaminationRequest
from orchestrator.core.robot_sources import RobotFormat
from orchestrator.worker.robots.preflight_child import check

MAKES = """
from pathlib import Path

from orchestrator.worker.robots.converted_robot import ConvertedRobot
from orchestrator.worker.robots.unfit import UnfitError

def make_robot(request, folder):
    text = Path(request.xml).read_text()
    if "wrong" in text:
        raise UnfitError(f"{request.xml}: is wrong")
    length = request.robot_settings.get("length", 0.5)
    xml = folder / "pole.xml"
    motor = '<actuator><motor joint="slide" ctrlrange="-1 1"/></actuator>'
    xml.write_text(f'''<mujoco><worldbody><body><joint name="slide" type="slide" axis="1 0 0" range="-1 1"/>
        <geom type="capsule" size=".04" fromto="0 0 0 0 0 {length}" mass="1"/></body></worldbody>
        {motor if "driven" in text else ""}</mujoco>''')
    return ConvertedRobot(xml=xml, added=["a pole"], warnings=["it is thin"])
"""
NUMBERS = itertools.count()


@pytest.fixture
def robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of a format whose module is imported for this test alone."""
    module = f"converts_for_a_test_{next(NUMBERS)}"
    (tmp_path / f"{module}.py").write_text(MAKES)
    monkeypatch.syspath_prepend(str(tmp_path))
    sketch = RobotFormat(
        name="sketch", title="sketch", suffix=".sketch", root="sketch", worker=module
    )
    only = Feature(name="sketches", about="", robot_sources=lambda: [sketch])
    monkeypatch.setattr(feature, "features", lambda: (only,))
    robot_sources.robot_sources.cache_clear()
    (tmp_path / "pole.sketch").write_text("driven")
    yield tmp_path / "pole.sketch"
    robot_sources.robot_sources.cache_clear()
    sys.modules.pop(module, None)


def test_it_is_examined_and_copied_as_the_mjcf_that_is_made_of_it(
    robot: Path, tmp_path: Path
) -> None:
    staged = tmp_path / "staged"
    answer = check(
        ExaminationRequest(
            xml=str(robot), robot_settings={"length": 0.75}, task="stand", stage_to=str(staged)
        )
    )
    assert answer.problem is None, answer.problem
    assert (answer.warnings[0], answer.notes[0]) == ("it is thin", "added: a pole")
    model = mujoco.MjModel.from_xml_path(str(staged / str(answer.xml)))
    assert model.geom_size[0, 1] == pytest.approx(0.375)


def test_what_is_wrong_with_it_is_told_of_the_users_file(robot: Path) -> None:
    for text, problem in (("wrong", f"{robot}: is wrong"), ("idle", f"{robot}: has no actuators")):
        robot.write_text(text)
        answer = check(ExaminationRequest(xml=str(robot), task="stand"))
        assert str(answer.problem).startswith(problem)
