"""Edits of a robot: what they change, what is bundled, and what the errors say of those that do not
fit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import pytest
from bundle_helpers import INSTALLED, OWN, ROBOTS, lay_out
from command_helpers import HOPPER, succeed, summary, write_experiment
from model_helpers import differences

import orchestrator
from orchestrator.core.errors import SpecError
from orchestrator.core.files import temporary_folder
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.mjspec.spec_elements import EditError
from orchestrator.worker.robots.bundle import Bundle, collect
from orchestrator.worker.robots.model_edits import check_written, edit_robot

ROBOT = """<mujoco>
<option timestep="0.002"/>
<default><geom density="500"/><default class="leg"><geom size="0.05"/><joint damping="2"/></default></default>
<worldbody>
  <body name="trunk" pos="0 0 1"><freejoint name="root"/><geom name="trunk" type="box" size="0.3 0.2 0.1"/>
    <body name="left.thigh" pos="0.3 0 0" childclass="leg">
      <joint name="left.hip" axis="0 1 0" range="-30 60"/>
      <geom name="left.thigh" type="capsule" fromto="0 0 0 0 0 -0.3"/><site name="tip" pos="0 0 -0.3"/>
    </body>
    <body name="right.thigh" pos="-0.3 0 0" childclass="leg" euler="0 10 0">
      <inertial pos="0 0 0" mass="2" diaginertia="0.1 0.1 0.1"/>
      <joint name="right.hip" axis="0 1 0" range="-30 60"/>
      <geom name="right.thigh" type="sphere"/>
    </body>
  </body>
</worldbody>
<tendon><fixed name="pull"><joint joint="left.hip" coef="1"/></fixed></tendon>
<actuator>
  <position name="servo" joint="left.hip" kp="20" kv="1"/><motor name="motor" joint="right.hip" gear="3"/>
  <velocity name="speed" joint="left.hip" kv="2"/>
  <muscle name="muscle" tendon="pull" lengthrange="0 1" force="30"/>
</actuator>
<keyframe><key name="home" qpos="0 0 1 1 0 0 0 0.1 0.1"/></keyframe>
</mujoco>"""


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    (tmp_path / "robot.xml").write_text(ROBOT)
    return tmp_path / "robot.xml"


def edited(bundle: Bundle, edits: Mapping[str, Any], folder: Path) -> Bundle:
    """The edited robot, which was compiled in ``folder`` and compared with what was edited."""
    robot, model = edit_robot(bundle, edits)
    check_written(model, load_model(robot.write(folder)))
    return robot


def compiled(xml: Path, edits: Mapping[str, Any], folder: Path) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(folder / edited(collect(xml), edits, folder).main))


@pytest.mark.parametrize(
    ("edits", "old", "new"),
    [
        ({"option.timestep": 0.004}, 'timestep="0.002"', 'timestep="0.004"'),
        ({"option.timestep": "*0.123456789"}, 'timestep="0.002"', 'timestep="0.000246913578"'),
        (
            {"option.integrator": "implicitfast"},
            'timestep="0.002"',
            'timestep="0.002" integrator="implicitfast"',
        ),
        ({"geom.trunk.size": "*1.0"}, "0.3 0.2 0.1", "0.3 0.2 0.1"),
        ({"geom.trunk.size": "*2"}, "0.3 0.2 0.1", "0.6 0.4 0.2"),
        ({"geom.trunk.size": [0.4]}, "0.3 0.2 0.1", "0.4 0.2 0.1"),
        ({"geom.trunk.size": ["*2", 0.5, "*1"]}, "0.3 0.2 0.1", "0.6 0.5 0.1"),
        ({"geom.trunk.type": "ellipsoid"}, 'type="box"', 'type="ellipsoid"'),
        ({"geom.*.density": "*2"}, 'density="500"', 'density="1000"'),
        ({"geom.*.thigh.size": 0.06}, '<geom size="0.05"/>', '<geom size="0.06"/>'),
        ({"geom.left.thigh.fromto": "*2"}, "0 0 0 0 0 -0.3", "0 0 0 0 0 -0.6"),
        ({"joint.*.hip.damping": "*1.5"}, 'damping="2"', 'damping="3"'),
        ({"joint.*hip.range": [-45, 45]}, 'range="-30 60"', 'range="-45 45"'),
        ({"body.right.thigh.euler": "*2"}, 'euler="0 10 0"', 'euler="0 20 0"'),
        ({"body.right.thigh.quat": [0, 1, 0, 0]}, 'euler="0 10 0"', 'quat="0 1 0 0"'),
        ({"body.right.thigh.mass": "*2"}, 'mass="2"', 'mass="4"'),
        ({"body.right.thigh.diaginertia": "*2"}, "0.1 0.1 0.1", "0.2 0.2 0.2"),
        ({"site.tip.pos": [0, 0, -0.2]}, 'pos="0 0 -0.3"', 'pos="0 0 -0.2"'),
        ({"actuator.servo.kp": "*2", "actuator.servo.kv": 3}, 'kp="20" kv="1"', 'kp="40" kv="3"'),
        ({"actuator.servo.dampratio": 1}, 'kv="1"', 'dampratio="1"'),
        ({"actuator.motor.gear": [5]}, 'gear="3"', 'gear="5"'),
        ({"actuator.speed.kv": 7}, 'kv="2"', 'kv="7"'),
        (
            {
                "actuator.muscle.gainprm": [0.75, 1.05, 60],
                "actuator.muscle.biasprm": [0.75, 1.05, 60],
            },
            'force="30"',
            'force="60"',
        ),
        ({"tendon.pull.stiffness": 4.0}, '<fixed name="pull"', '<fixed name="pull" stiffness="4"'),
        (
            {"key.home.qpos": [0, 0, 2, 1, 0, 0, 0, 0, 0]},
            "0 0 1 1 0 0 0 0.1 0.1",
            "0 0 2 1 0 0 0 0 0",
        ),
    ],
)
def test_an_edit_is_what_writing_it_into_the_file_would_be(
    edits: dict[str, Any], old: str, new: str, robot: Path, tmp_path: Path
) -> None:
    assert old in ROBOT
    (tmp_path / "by_hand.xml").write_text(ROBOT.replace(old, new))
    by_hand = mujoco.MjModel.from_xml_path(str(tmp_path / "by_hand.xml"))
    assert differences(compiled(robot, edits, tmp_path / "edited"), by_hand) == []


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (
            {"geom.trnk.size": 1},
            "model.geom.trnk.size: no geom of the robot is called 'trnk'; did you mean 'trunk'?",
        ),
        (
            {"geom.*foot.size": 1},
            "no geom of the robot matches '*foot'; there are trunk, left.thigh, right.thigh",
        ),
        ({"sensor.x.noise": 1}, "no sensor of the robot is called 'x'; there is none"),
        ({"geom.trunk.sise": 1}, "geom has no attribute 'sise' to edit; did you mean 'size'"),
        ({"actuator.motor.kp": 1}, "actuator has no attribute 'kp' to edit"),
        ({"option.x.timestep": 1}, "no option of the robot is called 'x'"),
        ({"geom.trunk.size": [1, 2, 3, 4]}, "size takes 1 to 3 values, found 4"),
        ({"body.trunk.pos": [1]}, "pos takes 3 values, found 1"),
        ({"actuator.servo.kp": [1, 2]}, "kp takes 1 values, found 2"),
        (
            {"geom.trunk.size": True},
            'size takes numbers, or "*1.2" to multiply what it has; found True',
        ),
        ({"geom.trunk.size": "wide"}, "size takes numbers"),
        ({"geom.trunk.condim": 2.5}, "condim takes a whole number, found 2.5"),
        (
            {"geom.trunk.contype": 2**31},
            "model.geom.trunk.contype: the attribute does not take 2147483648",
        ),
        ({"body.trunk.geoms": 1}, "model.body.trunk.geoms: the attribute does not take 1"),
        ({"body.trunk.sites": "x"}, "model.body.trunk.sites: the attribute does not take 'x'"),
        ({"option.integrator": "RK5"}, "integrator is one of euler, rk4, implicit, implicitfast"),
        ({"joint.left.hip.actuatorgravcomp": 1}, "expected true or false, found 1"),
        ({"geom.trunk.mass": "*2"}, "mass is not given in the robot"),
        (
            {"actuator.motor.ctrlrange": "*2"},
            "changes nothing in the compiled robot: it is 0 there",
        ),
        ({"body.trunk.mass": 3}, "changes nothing in the compiled robot"),
        ({"geom.right.thigh.density": 900}, "changes nothing in the compiled robot"),
        ({"geom.trunk.size": -1}, "MuJoCo refuses it: Error: size 0 must be positive in geom"),
        (
            {"key.home.qpos": [1, 2]},
            "qpos takes 9 values, found 2",
        ),
    ],
)
def test_an_edit_that_does_not_fit_is_one_message(
    edits: dict[str, Any], message: str, robot: Path
) -> None:
    with pytest.raises(EditError) as raised:
        edited(collect(robot), edits, robot.parent / "edited")
    assert message in str(raised.value)
    assert str(raised.value).startswith("model.")
    assert "\n" not in str(raised.value)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "files", [files for name, files in ROBOTS.items() if "sub-model" not in name]
)
def test_the_edited_bundle_stands_alone_whatever_the_robot_is_made_of(
    files: dict[str, str], tmp_path: Path
) -> None:
    users = tmp_path / "users"
    lay_out(users, files)
    original = mujoco.MjModel.from_xml_path(str(users / "r/main.xml"))
    bundle = collect(users / "r/main.xml")
    shutil.rmtree(users)
    first, again = (
        edited(bundle, {"option.timestep": 0.001}, tmp_path / name) for name in ("first", "again")
    )
    assert first.hash == again.hash
    assert first.xml == users / "r/main.xml"
    assert not any(
        os.fsencode(temporary_folder.PREFIX) in file.content for file in first.files.values()
    )
    model = mujoco.MjModel.from_xml_path(str(first.write(tmp_path / "robot")))
    assert differences(original, model) == ["opt.timestep"]


@pytest.mark.nightly
@pytest.mark.parametrize("xml", [*INSTALLED, *OWN], ids=lambda path: path.stem)
def test_an_edit_leaves_all_else_of_a_robot_as_it_was(xml: Path, tmp_path: Path) -> None:
    original = mujoco.MjModel.from_xml_path(str(xml))
    changed = differences(original, compiled(xml, {"option.timestep": 0.00137}, tmp_path))
    assert [name for name in changed if not name.endswith("_matid")] == ["opt.timestep"]


def test_a_name_is_stronger_than_a_pattern_whatever_their_order(robot: Path) -> None:
    edits = {"geom.trunk.density": 100, "geom.*.density": 700}
    first, again = (
        edit_robot(collect(robot), dict(order))
        for order in (edits.items(), reversed(edits.items()))
    )
    mass = first[1].body("trunk").mass[0]
    assert mass == pytest.approx(100 * 8 * 0.3 * 0.2 * 0.1)
    assert first[0].hash == again[0].hash


@pytest.mark.nightly
def test_a_run_trains_every_body_of_a_matrix_and_tells_them_apart(tmp_path: Path) -> None:
    jobs = write_experiment(
        tmp_path,
        {
            "name": "hopper",
            "xml": HOPPER,
            "task": "forward",
            "model": {"option.timestep": "*0.5"},
            "matrix": {"model.geom.foot.friction": ["*1", [0.5]]},
        },
    )
    succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows = summary(tmp_path / "run")
    assert {job_id: row["model.geom.foot.friction"] for job_id, row in rows.items()} == {
        "hopper-foot.friction1x-s0": "*1",
        "hopper-foot.friction0.5-s0": [0.5],
    }
    original = mujoco.MjModel.from_xml_path(str(HOPPER))
    for job_id, friction in zip(rows, (original.geom("foot").friction[0], 0.5), strict=True):
        model = mujoco.MjModel.from_xml_path(str(tmp_path / f"run/jobs/{job_id}/robot/hopper.xml"))
        assert (model.opt.timestep, model.geom("foot").friction[0]) == (
            original.opt.timestep / 2,
            friction,
        )
    assert len({row["robot_hash"] for row in rows.values()}) == 2


def test_edits_that_do_not_fit_are_told_before_anything_is_launched(tmp_path: Path) -> None:
    jobs = write_experiment(
        tmp_path, {"name": "hopper", "xml": HOPPER, "matrix": {"model.geom.fot.size": [0.1, 0.2]}}
    )
    with pytest.raises(SpecError, match=r"jobs\[0\]") as caught:
        orchestrator.run(jobs, run_dir=tmp_path / "run")
    assert "model.geom.fot.size: no geom of the robot is called 'fot'; did you mean 'foot'" in str(
        caught.value
    )
    assert not (tmp_path / "run/jobs").exists()
