"""What ``train`` takes as robots: files, patterns, folders, MJCF text and ``mujoco.MjSpec``."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import mujoco
import pytest
from command_helpers import BALANCER, HOPPER, REPOSITORY

import orchestrator
from orchestrator.jobfile.robot_arguments import robot_arguments

CUBE = "\n".join(f"v {x} {y} {z}" for x in (-0.1, 0.1) for y in (-0.1, 0.1) for z in (-0.1, 0.1))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which workers succeed at once."""
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def temporary_folders() -> set[Path]:
    """Folders that hold robots."""
    return {
        path.parent
        for path in Path(tempfile.gettempdir()).glob("orchestrator-temporary-*/[0-9]/robot.xml")
    }


def built(**assets: str) -> mujoco.MjSpec:
    """A cart on a rail; its body is a mesh in memory."""
    spec = mujoco.MjSpec()
    spec.modelname = "cart"
    spec.add_mesh(name="cube", file="cube.obj")
    body = spec.worldbody.add_body(name="cart", pos=[0, 0, 1])
    body.add_joint(name="rail", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[1, 0, 0], damping=[1, 0, 0])
    body.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="cube")
    motor = spec.add_actuator(name="motor", target="rail", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    motor.ctrlrange, motor.ctrllimited = [-1, 1], True
    spec.assets = assets
    return spec


@pytest.mark.nightly
def test_text_and_specs_are_trained_and_leave_no_temporary_files(here: Path) -> None:
    dog = mujoco.MjSpec.from_file(str(REPOSITORY / "mjcf/dog.xml"))
    before = temporary_folders()
    no_actuators = (
        "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
    )
    given = [HOPPER.read_text(), dog, built(**{"cube.obj": CUBE}), no_actuators, HOPPER]
    results = orchestrator.train(given, run_dir="run", total_timesteps=1000)
    *trained, still, file = results
    assert [result.job_id for result in results] == [
        *("000-hopper-s0", "001-dog-s0", "002-cart-s0", "003-robot-s0", "004-hopper-s0")
    ]
    for result in (*trained, file):
        assert result.ok, result.error
        assert result.job_dir is not None
        assert list((result.job_dir / "robot").rglob("*.xml"))
    assert [result.xml for result in results] == [None] * 4 + [str(HOPPER)]
    assert str(still.error).startswith("xmls[3]: ")
    assert "no actuators" in str(still.error)
    assert temporary_folders() == before
    assert results.run_dir == here / "run"
    again = orchestrator.train(given, run_dir="run", total_timesteps=1000)
    assert [result.ok for result in again] == [result.ok for result in results]


def names(given: Any) -> list[str]:
    def no_folder() -> Path:
        raise AssertionError("all of them are files")

    return [robot.file.name for robot in robot_arguments(given, no_folder)]


def test_patterns_and_folders_are_their_files(here: Path) -> None:
    for place in ("b/x.xml", "b/a.XML", "b/below/y.xml", "[1].xml"):
        (here / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HOPPER, here / place)
    (here / "b/notes.txt").touch()
    assert names("b") == names(["b"]) == names(Path("b")) == ["a.XML", "x.xml"]
    assert names(["b/*.xml", BALANCER]) == ["x.xml", "balancer.xml"]
    assert names("b/**/*.xml") == ["y.xml", "x.xml"]
    assert names("[1].xml") == ["[1].xml"]
    assert names(["gone.xml", Path("*.xml")]) == ["gone.xml", "*.xml"]
    assert names(HOPPER) == names(str(HOPPER)) == ["hopper.xml"]
    assert names(path for path in [HOPPER]) == ["hopper.xml"]
    (here / "empty").mkdir()
    for given, fragment in (
        ("empty", "no robot in"),
        (["b/*.mjcf"], "no robot in"),
        ([HOPPER, "bodies:make"], '"bodies:make" names .* a function'),
    ):
        with pytest.raises(orchestrator.UsageError, match=fragment):
            names(given)
    with pytest.raises(orchestrator.UsageError, match="train: params: functions that make robots"):
        orchestrator.train(HOPPER, params={"legs": 4})
    (here / "bodies:make").touch()
    assert names("bodies:make") == ["bodies:make"], "a file"


def starts_of(results: Sequence[orchestrator.Result]) -> list[str | None]:
    """``init`` of each job."""
    assert all(result.ok for result in results), [result.error for result in results]
    return [
        json.loads((Path(str(result.job_dir)) / "spec.json").read_text())["init"]
        for result in results
    ]


@pytest.mark.nightly
def test_every_robot_starts_from_the_policy_that_is_given_for_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.examine_nothing(monkeypatch)
    parents = orchestrator.train([HOPPER, BALANCER], run_dir="parents", total_timesteps=1000)
    of_hopper, of_balancer = (str(parent.job_dir) for parent in parents)
    given: dict[str, Any] = {"total_timesteps": 1000, "seeds": [0, 1]}
    children = orchestrator.train([HOPPER, BALANCER], init=parents, run_dir="run", **given)
    assert starts_of(children) == [of_hopper, of_hopper, of_balancer, of_balancer]
    of_one = orchestrator.train(
        [BALANCER, HOPPER, BALANCER],
        init=[Path(of_balancer), None, "none"],
        run_dir="of-one",
        total_timesteps=1000,
    )
    assert starts_of(of_one) == [of_balancer, None, None]
    of_all = orchestrator.train([HOPPER] * 2, init=parents[0], run_dir="of-all", **given)
    assert starts_of(of_all) == [of_hopper] * 4
