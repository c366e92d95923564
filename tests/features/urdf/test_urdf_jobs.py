"""URDFs in a job file, and with ``check`` and ``init``: trained, resumed, edited and examined as MJCF is."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import mujoco
import pytest
import urdf_helpers as urdf
from command_helpers import REPOSITORY, TINY, invoke, succeed, summary, write_experiment

URDF_JOBS = REPOSITORY / "jobs" / "urdf.toml"
SMALL = {
    "total_timesteps": 512,
    "n_envs": 2,
    "eval_episodes": 1,
    "preview": "false",
    "ppo.n_steps": 64,
}
SMALL |= {"ppo.batch_size": 64, "ppo.n_epochs": 1, "resources.min_free_disk": 0}
SETTINGS = [argument for key, value in SMALL.items() for argument in ("--set", f"{key}={value}")]
URDFS = {
    "limitless": urdf.GOOD.replace(urdf.LIMIT, ""),
    "ring": urdf.robot(
        *map(urdf.link, "abc"),
        urdf.joint("1", "a", "b"),
        urdf.joint("2", "b", "c"),
        urdf.joint("3", "c", "a"),
    ),
    "meshless": urdf.GOOD.replace(urdf.BOX, '<geometry><mesh filename="hand.stl"/></geometry>', 1),
    "thousand": urdf.robot(
        *(urdf.link(f"l{number}") for number in range(1000)),
        *(urdf.joint(f"j{number}", f"l{number}", f"l{number + 1}") for number in range(999)),
    ),
}
UNUSABLE: dict[str, Sequence[str]] = {
    "limitless": ["limitless.urdf, line 4: ", '"shoulder" (revolute) has no <limit>; expected for'],
    "ring": ["ring.urdf, line ", "form a loop", "remove one of these joints"],
    "meshless": ["meshless.urdf, line 2: ", "'hand.stl': no such file", "add the file"],
    "thousand": ["thousand.urdf, line 1001: ", "a chain of 1,000 links", "at most 480"],
}
"""What is said of them."""
BARE = """<robot name="u"><link name="a"/><link name="b"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="j" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="3" velocity="1"/></joint></robot>"""


@pytest.mark.nightly
def test_all_unusable_urdfs_are_shown_at_once_and_nothing_is_launched(tmp_path: Path) -> None:
    for name, text in URDFS.items():
        (tmp_path / f"{name}.urdf").write_text(text)
    write_experiment(tmp_path, *({"xml": f"{name}.urdf"} for name in UNUSABLE))
    done = invoke("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "run").exists()
    *problems, count = done.stderr.splitlines()
    assert count.endswith("nothing was launched")
    said = dict(line.removeprefix("jobs.toml: ").split(": ", 1) for line in problems)
    for number, fragments in enumerate(UNUSABLE.values()):
        for fragment in fragments:
            assert fragment in said[f"jobs[{number}]"]


def test_check_finds_urdfs_in_folders(tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text(BARE)
    (tmp_path / "robot.urdf").write_text(BARE)
    done = invoke("check", ".", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {Path(row["path"]).name: row for row in json.loads(done.stdout)}
    said = {name: (row["verdict"], row["messages"][0]) for name, row in rows.items()}
    assert said["robot.xml"][0] == "fragment"
    assert said["robot.urdf"][0] == "warning"
    assert "no link has a <collision>" in said["robot.urdf"][1]


@pytest.mark.nightly
def test_init_writes_what_urdfs_lack_and_leaves_out_what_it_cannot_guess(tmp_path: Path) -> None:
    folder = REPOSITORY / "mjcf" / "urdf"
    done = succeed("init", folder, "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert [Path(robot["path"]).name for robot in facts["robots"]] == [
        *("pony.urdf", "bench_arm.urdf")
    ]
    assert {Path(entry["path"]).name for entry in facts["left_out"]} == {
        *("courier.urdf", "inchworm.urdf", "trolley.urdf")
    }
    jobs = tomllib.loads((tmp_path / "jobs.toml").read_text())["jobs"]
    assert [set(job.get("urdf", {})) for job in jobs] == [{"base", "actuators"}, set()]
    assert invoke("check", "jobs.toml", cwd=tmp_path).returncode == 0
    succeed("init", folder, "--force", "--set", "urdf.effort=1.5", "--json", cwd=tmp_path)
    declared = tomllib.loads((tmp_path / "jobs.toml").read_text())
    assert declared["defaults"]["urdf"] == {"effort": 1.5}
    assert {job["name"] for job in declared["jobs"]} >= {"pony", "trolley"}
    assert invoke("check", "jobs.toml", cwd=tmp_path).returncode == 0


@pytest.mark.nightly
def test_five_urdf_robots_of_different_shapes_and_faults_are_trained(tmp_path: Path) -> None:
    succeed("run", URDF_JOBS, "--run-dir", "run", *SETTINGS, cwd=tmp_path)
    rows = summary(tmp_path / "run")
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED"}
    assert len({row["robot_hash"] for row in rows.values()}) == 5
    for job_id in rows:
        folder = tmp_path / "run" / "jobs" / job_id
        spec = json.loads((folder / "spec.json").read_text())
        model = mujoco.MjModel.from_xml_path(str(folder / spec["xml"]))
        assert (model.key(0).name, model.nu > 0) == ("home", True)


@pytest.mark.nightly
def test_urdf_is_trained_once_and_a_changed_table_is_told(tmp_path: Path) -> None:
    table = {"base": "floating", "actuators": "position"}
    pony = {
        "xml": REPOSITORY / "mjcf/urdf/pony.urdf",
        "task": "stand",
        "preview": False,
        "urdf": table,
    }
    write_experiment(tmp_path, pony | {"model": {"body.base_link.mass": "*1.1"}}, defaults=TINY)
    succeed("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    weights = summary(tmp_path / "run")["pony-s0"]["weights_sha256"]
    succeed("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    row = summary(tmp_path / "run")["pony-s0"]
    assert (row["attempts"], row["weights_sha256"]) == (1, weights)
    write_experiment(tmp_path, pony | {"urdf": {**table, "frequency": 8.0}}, defaults=TINY)
    changed = invoke("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert changed.returncode == 2
    assert "urdf.frequency: 5.0 → 8.0" in changed.stderr


def test_check_shows_what_is_added_and_what_is_wrong(tmp_path: Path) -> None:
    done = invoke(
        "check", URDF_JOBS, REPOSITORY / "mjcf" / "urdf" / "inchworm.urdf", "--json", cwd=tmp_path
    )
    rows = {row["job"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "urdf.effort" in rows[None]["messages"][0]
    assert all(rows[job]["verdict"] == "ok" for job in rows if job is not None), rows
    for shown in (
        "floor at z = 0",
        "8 position actuators",
        "critically damped at 5 Hz",
        'link "base_link" moves',
    ):
        assert any(shown in message for message in rows["pony-s0"]["messages"])


@pytest.mark.nightly
def test_a_xacro_is_told_how_it_becomes_a_urdf(tmp_path: Path) -> None:
    for name in ("arm.urdf.xacro", "leg.xacro"):
        (tmp_path / name).write_text(BARE)
    write_experiment(tmp_path, {"xml": "arm.urdf.xacro", "task": "reach"}, defaults=TINY)
    for arguments, command in (
        (("check", "arm.urdf.xacro"), "xacro arm.urdf.xacro > arm.urdf, then take arm.urdf"),
        (("init", "leg.xacro", "-o", "leg.toml"), "xacro leg.xacro > leg.urdf, then take leg.urdf"),
        (("run", "jobs.toml"), "xacro arm.urdf.xacro > arm.urdf, then take arm.urdf"),
    ):
        done = invoke(*arguments, cwd=tmp_path)
        assert done.returncode != 0
        assert command in done.stdout + done.stderr
