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
from orchestrator.core.errors import DiskFullError
from orchestrator.core.job import Job
from orchestrator.experiment.examination import preflight
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


def test_what_text_and_specs_cannot_do_is_said(here: Path) -> None:
    mesh = '<mujoco><asset><mesh file="part.stl"/></asset></mujoco>'
    results = orchestrator.train([mesh, built(), "<mujoco"], run_dir="run", total_timesteps=1000)
    assert [result.index for result in results] == [0, 1, 2]
    assert "orchestrator-temporary" not in (here / "run/summary.csv").read_text()
    assert [row["xml"] for row in json.loads((here / "run/summary.json").read_text())] == [
        "xmls[0]",
        "xmls[2]",
    ]
    assert results[2].job_dir is not None
    assert (results[2].job_dir / "robot.invalid.xml").read_text() == "<mujoco"
    assert str(results[2].job_dir) in str(results[2].error)
    for result, fragment in zip(results, ("part.stl", "cube.obj", "xmls[2]"), strict=True):
        assert fragment in str(result.error)
        assert "orchestrator-temporary" not in str(result.error)
    assert "write it to a file" in str(results[0].error)
    with pytest.raises(orchestrator.UsageError, match="leads out of"):
        orchestrator.train(built(**{"../cube.obj": CUBE}))
    with pytest.raises(orchestrator.UsageError, match=r"xmls\[1\] is of type MjModel"):
        orchestrator.train([HOPPER, mujoco.MjModel.from_xml_path(str(HOPPER))])  # type: ignore[list-item]


def test_robots_of_finished_jobs_are_not_examined_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined, examine = [], preflight.examine

    def recorded(jobs: Sequence[Job], **options: Any) -> dict[str, preflight.JobVerdict]:
        examined.append([job.job_id for job in jobs])
        return examine(jobs, **options)

    monkeypatch.setattr(preflight, "examine", recorded)
    for _ in range(2):
        (result,) = orchestrator.train(HOPPER, task="forward", run_dir="run", total_timesteps=1000)
        assert result.ok, result.error
    assert examined == [["000-hopper-s0"], []]


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
        ("empty", "no \\*.xml in this folder"),
        (["b/*.mjcf"], "no file matches the pattern"),
        (
            [HOPPER, "bodies:make"],
            'train: "bodies:make" names .* a function: .* orchestrator.Search; call',
        ),
    ):
        with pytest.raises(orchestrator.UsageError, match=fragment):
            names(given)
    with pytest.raises(orchestrator.UsageError, match="train: params: functions that make robots"):
        orchestrator.train(HOPPER, params={"legs": 4})
    (here / "bodies:make").touch()
    assert names("bodies:make") == ["bodies:make"], "a file"


def test_a_folder_for_robots_that_is_gone_or_full_is_named(
    tmp_path: Path, small_disk: Path
) -> None:
    with pytest.raises(
        orchestrator.UsageError, match=f"^train: xmls.0.: {tmp_path}/gone/.*: No such file or dir"
    ):
        robot_arguments("<mujoco/>", lambda: tmp_path / "gone")
    with pytest.raises(DiskFullError, match="no space left on the disk"):
        robot_arguments(f"<mujoco>{(4 << 20) * ' '}</mujoco>", lambda: small_disk)


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


def test_another_number_of_start_policies_than_of_robots_is_refused(here: Path) -> None:
    failed = orchestrator.Result(ok=False, error="no legs", xml="a.xml", seed=0, state="FAILED")
    shutil.copy(HOPPER, here / "one.xml")
    shutil.copy(HOPPER, here / "two.xml")
    for xmls, init, fragment in (
        ([HOPPER, HOPPER], ["a"], "init has 1 policy for 2 robots; give one for each robot"),
        (here, ["a"], "init has 1 policy for 2 robots"),
        (HOPPER, [], "init has 0 policies for 1 robot;"),
        ([HOPPER, HOPPER], [None, failed], r"init\[1\]: a.xml has no policy: no legs"),
        (HOPPER, failed, "init: a.xml has no policy: no legs"),
        ([HOPPER, HOPPER], [None, 3], r"train: init\[1\] is of type int; expected a result"),
    ):
        with pytest.raises(orchestrator.UsageError, match=fragment):
            orchestrator.train(xmls, init=init)  # type: ignore[arg-type]
    assert not (here / "runs").exists()
