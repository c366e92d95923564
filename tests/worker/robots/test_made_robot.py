"""Robots that a function of the user makes: what it gives is examined like a file, and what it does
wrong is told."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import pytest

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.examination import examination_requests, side_by_side
from orchestrator.jobfile import from_mapping
from orchestrator.worker.robots.preflight_child import check

ENDLESS_S = 30.0
"""After which a function counts as endless; others need a second of it on an idle machine."""
MAKES = """
import os, sys, time
from pathlib import Path

def make(params, folder):
    assert isinstance(folder, Path) and not any(folder.iterdir())
    path = folder / "pole.xml"
    path.write_text(f'''<mujoco><worldbody><body><joint name="slide" type="slide" axis="1 0 0" range="-1 1"/>
        <geom type="capsule" size=".04" fromto="0 0 0 0 0 {params["length"]}" mass="1"/></body></worldbody>
        <actuator><motor joint="slide" ctrlrange="-1 1"/></actuator></mujoco>''')
    return str(path) if params["length"] < 1 else path.name

def raises(params, folder):
    return params["height"]

def nothing(params, folder):
    (folder / "robot.xml").write_text("")

def absent(params, folder):
    return folder / "robot.xml"

def broken(params, folder):
    (folder / "robot.xml").write_text("<mujoco><worldbody><geom type='ball'/></worldbody></mujoco>")
    return folder / "robot.xml"

def huge(params, folder):
    return "x" * (1 << 40)

def endless(params, folder):
    time.sleep(1000)

def dies(params, folder):
    os._exit(7)

def unordered(params, folder):
    raise ValueError(f"order {sys.flags.hash_randomization}")
"""
NUMBERS = itertools.count()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ExaminationAnswer]:
    """Examines what a function of a module that is imported for this test alone makes."""
    module = f"made_for_a_test_{next(NUMBERS)}"
    (tmp_path / f"{module}.py").write_text(MAKES)
    (tmp_path / "raises_at_import.py").write_text("1 / 0")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def ask(function: str, **changes: Any) -> ExaminationAnswer:
        request: dict[str, Any] = {
            "params": {"length": 0.5},
            "task": "stand",
            "search_path": str(tmp_path),
            **changes,
        }
        maker = function if ":" in function else f"{module}:{function}"
        return check(ExaminationRequest(robot_maker=maker, memory_mib=2048, **request))

    return ask


def test_made_robot_is_staged_with_its_name_and_changed_as_a_file(
    asked: Callable[..., Any], tmp_path: Path
) -> None:
    plain = asked("make", stage_to=str(tmp_path / "plain"))
    assert (plain.problem, plain.xml) == (None, "pole.xml")
    edited = asked("make", stage_to=str(tmp_path / "edited"), model_edits={"geom.*.size": "*2"})
    assert edited.problem is None
    sizes = [
        mujoco.MjModel.from_xml_path(str(tmp_path / name / "pole.xml")).geom_size[0, 0]
        for name in ("plain", "edited")
    ]
    assert sizes == pytest.approx([0.04, 0.08])
    assert asked("make", stage_to=str(tmp_path / "again")).hash == plain.hash
    assert asked("make", params={"length": 1.5}).hash not in (None, plain.hash)


@pytest.mark.parametrize(
    ("function", "problem", "cause"),
    [
        ("raises", "raises(length=0.5): KeyError: 'height' (", "robot"),
        ("nothing", "nothing(length=0.5): returns None, expected the path of the MJCF", "robot"),
        ("absent", "absent(length=0.5): returns robot.xml, expected the path of the MJCF", "robot"),
        ("broken", "broken(length=0.5): robot.xml, line 1: MuJoCo cannot compile it", "robot"),
        (
            "huge",
            "huge(length=0.5): making and simulating it takes more than the 2,048 MiB available",
            "robot",
        ),
        ("maek", "has nothing to call named 'maek'", "settings"),
        (
            "raises_at_import:make",
            "raises_at_import:make: importing its module raises ZeroDivisionError",
            "settings",
        ),
        ("nowhere_2:make", "nowhere_2:make: there is no module 'nowhere_2'", "settings"),
    ],
)
def test_what_makes_no_robot_is_a_problem_with_its_reason(
    asked: Callable[..., Any], function: str, problem: str, cause: str
) -> None:
    answer = asked(function)
    assert problem in answer.problem
    assert answer.cause == cause


@pytest.mark.nightly
def test_function_that_hangs_or_ends_the_process_is_the_problem_of_its_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    (tmp_path / "bodies.py").write_text(MAKES)
    tables = [
        {"name": name, "xml": f"bodies:{name}", "params": {"length": 0.5}, "task": "stand"}
        for name in ("make", "unordered", "dies", "endless")
    ]
    jobs = from_mapping({"name": "t", "jobs": tables}, source="t.toml", base=tmp_path).jobs
    requests = [request for request, _ in examination_requests.requests_of(jobs)[0].values()]
    answers = side_by_side.ask(requests, processes=2, time_limit_s=ENDLESS_S)
    made, unordered, *others = (answer.problem for answer in answers)
    assert made is None
    assert "ValueError: order 0" in str(unordered), (
        "sets are iterated over in the order of all runs"
    )
    assert others == [
        "bodies:dies(length=0.5): examining it ended with exit code 7",
        f"bodies:endless(length=0.5): examining it took more than {ENDLESS_S:g} s",
    ]
