"""``init``, then ``run``: from a folder of robots to policies. For a robot in place of a job file
``run`` names it."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from command_helpers import (
    HOPPER,
    REPOSITORY,
    invoke,
    succeed,
    summary,
)

CART = """<mujoco><option timestep="{timestep}"/><worldbody><body><joint name="x" type="slide" axis="1 0 0"/>
<geom size="0.1"/><body><joint name="pole" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 {length}" size="0.03"/>
</body></body></worldbody><actuator>{actuator}</actuator>{tail}</mujoco>"""
ARM = """<mujoco><worldbody><body name="upper"><joint name="shoulder" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 {length} 0 0" size="0.03"/><body name="lower" pos="{length} 0 0">
<joint name="elbow" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.03"/>
<site name="tip" pos="0.2 0 0"/></body></body></worldbody><actuator><motor joint="shoulder" ctrlrange="-1 1"/>
<motor joint="elbow" ctrlrange="-1 1"/></actuator></mujoco>"""
MOTOR = '<motor joint="x" ctrlrange="-1 1" gear="5"/>'


def cart(
    length: float = 0.5, actuator: str = MOTOR, tail: str = "", timestep: float = 0.005
) -> str:
    """A pole on a cart."""
    return CART.format(length=length, actuator=actuator, tail=tail, timestep=timestep)


def foreign_robots(folder: Path) -> tuple[set[str], set[str]]:
    """Eighteen files as people have them; returns those that can be trained, and the others."""
    hopper = HOPPER.read_text()
    robots = {
        **{f"carts/cart_{number}.xml": cart(0.4 + number / 20) for number in range(1)},
        **{
            f"arms/{side} arm/robot.xml": ARM.format(length=length)
            for side, length in (("left", 0.3), ("right", 0.4))
        },
        "hüpfer.xml": hopper,
        'it\'s "mine" [1].xml': hopper.replace("0.04", "0.045"),
        "scene.xml": cart(tail='<include file="parts/motor.xml"/>', actuator=""),
        "whole.xml": '<mujoco><include file="base.xml"/><worldbody><light pos="0 0 3"/></worldbody></mujoco>',
        "slow#.xml": cart(timestep=0.02),
    }
    others = {
        "base.xml": cart(0.7),
        "parts/motor.xml": f"<mujocoinclude><actuator>{MOTOR}</actuator></mujocoinclude>",
        "parts/limb.xml": "<mujocoinclude><asset/></mujocoinclude>",
        "broken.xml": "<mujoco><worldbody>",
        "unlit/no_mesh.xml": cart(tail="<asset><mesh file='no.stl'/></asset>"),
        "carts/utf-16.xml": "\ufeff<mujoco/>",
        "carts/idle.xml": cart(actuator=""),
        "package.xml": "<package/>",
        "statue.xml": "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>",
        "empty.xml": "",
    }
    robots["scene.xml"] = robots["scene.xml"].replace("<actuator></actuator>", "")
    for name, content in (robots | others).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-16" if "16" in name else "utf-8")
    assert len(robots | others) == 18
    return set(robots), set(others)


def test_a_folder_becomes_a_job_file_that_runs(tmp_path: Path) -> None:
    robots = tmp_path / "my robots"
    robots.mkdir()
    (robots / "cart.xml").write_text(cart())
    (robots / "bad.xml").write_text("<mujoco>")
    done = succeed("init", "my robots", "--timesteps", "64", cwd=tmp_path)
    assert "bad.xml: " in done.stdout
    assert "estimate" in done.stdout
    assert "orchestrator run jobs.toml" in done.stdout
    done = invoke("run", "jobs.toml", "--dry-run", "--json", cwd=tmp_path)
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["name"], job["task"], job["total_timesteps"]) == ("cart", "balance", 64)
    before = (tmp_path / "jobs.toml").read_bytes()
    done = invoke("init", "my robots", cwd=tmp_path)
    assert (done.returncode, "--force" in done.stderr) == (2, True)
    assert (tmp_path / "jobs.toml").read_bytes() == before
    done = invoke("init", "my robots/cart.xml", "--force", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    (robot,) = facts["robots"]
    assert (robot["task"], robot["control_period_s"]) == ("balance", pytest.approx(0.02))
    assert facts["estimate_s"] > 0


@pytest.mark.nightly
def test_what_cannot_become_a_job_file_is_one_message_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "legs.xml").write_text("<mujocoinclude/>")
    (tmp_path / "parts" / "again").symlink_to(tmp_path / "parts")
    os.mkfifo(tmp_path / "pipe.xml")
    (tmp_path / "done.toml").write_text("")
    for arguments, message in (
        (["empty"], "no *.xml"),
        (["nowhere"], "no such file"),
        (["parts"], "only parts of robots"),
        (["pipe.xml"], "is not a regular file"),
        (["done.toml"], "job file already"),
        (["parts", "--timesteps", "some"], "whole number"),
        (["parts", "-o", "nowhere/jobs.toml"], "its folder cannot be written to"),
    ):
        done = invoke("init", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "parts", "pipe.xml", "done.toml"}


def test_run_names_init_for_a_robot_and_for_a_folder_of_robots(tmp_path: Path) -> None:
    folder = tmp_path / "my robots"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "cart.xml").write_text(cart())
    (folder / "cart.mjcf").write_text(cart())
    for path in (folder, folder / "inner" / "cart.xml", folder / "cart.mjcf"):
        done = invoke("run", path, cwd=tmp_path)
        assert done.returncode == 2
        assert f"orchestrator init {shlex.quote(str(path))}" in done.stderr
    done = invoke("run", tmp_path / "nothing.xml", cwd=tmp_path)
    assert "orchestrator init" not in done.stderr
    (tmp_path / "empty").mkdir()
    done = invoke("run", tmp_path / "empty", cwd=tmp_path)
    assert (done.returncode, "orchestrator init" in done.stderr) == (2, False)


@pytest.mark.nightly
def test_eighteen_foreign_robots_are_trained_without_a_word_in_between(tmp_path: Path) -> None:
    good, others = foreign_robots(tmp_path / "theirs")
    done = succeed("init", "theirs", "--timesteps", "64", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert {os.path.relpath(robot["path"], "theirs") for robot in facts["robots"]} == good
    assert {os.path.relpath(entry["path"], "theirs") for entry in facts["left_out"]} == others
    short = ("eval_episodes=0", "resources.memory=1 GiB", "resources.start=fork")
    succeed("run", "jobs.toml", *(f"--set={setting}" for setting in short), cwd=tmp_path)
    rows = summary(tmp_path / "runs/theirs")
    assert len(rows) == len(good)
    assert {row["state"] for row in rows.values()} == {"SUCCEEDED"}


@pytest.mark.nightly
def test_the_robots_of_this_repository_become_a_job_file(tmp_path: Path) -> None:
    done = succeed("init", REPOSITORY / "mjcf", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    found = [robot for robot in facts["robots"] if robot["path"].endswith(".xml")]
    robots = {Path(robot["path"]).stem: robot["task"] for robot in found}
    assert len(robots) == 15
    assert (robots["arm"], robots["balancer"], robots["hopper_long"]) == (
        "reach",
        "balance",
        "forward",
    )
    left_out = {Path(entry["path"]).name for entry in facts["left_out"]}
    assert {name for name in left_out if name.endswith(".xml")} == {
        *("legs.xml", "look.xml", "servos.xml")
    }
    done = invoke("run", "jobs.toml", "--dry-run", "--json", cwd=tmp_path)
    assert len(json.loads(done.stdout)["jobs"]) == len(facts["robots"])
