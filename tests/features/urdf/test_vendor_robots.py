"""Robots of vendors, as they come: which are trained at once, which with which setting, which are refused
and why."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import vendor_robots
from command_helpers import succeed, summary
from vendor_robots import ROBOTS, UnavailableError, VendorRobot

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.worker.robots.preflight_child import check

pytestmark = pytest.mark.nightly

SETTINGS = (
    "total_timesteps=256",
    "n_envs=2",
    "ppo.n_steps=64",
    "ppo.batch_size=64",
    "preview=false",
)


@pytest.fixture(scope="module")
def folder_of() -> Callable[[str], Path]:
    """The folder of the robots of a package."""

    def find(package: str) -> Path:
        try:
            return vendor_robots.robots_folder(package)
        except UnavailableError as error:
            pytest.skip(str(error))

    return find


def examined(robot: VendorRobot, folder: Path) -> ExaminationAnswer:
    """As by ``init`` of the folder."""
    return check(
        ExaminationRequest(
            xml=str(folder / robot.file),
            robot_settings=robot.options,
            user_folders=(str(folder),),
            alone=True,
            simulate_s=0.4,
        )
    )


@pytest.mark.parametrize("robot", ROBOTS, ids=lambda robot: f"{robot.name} of {robot.package}")
def test_what_becomes_of_a_vendors_robot_is_as_the_documents_say(
    robot: VendorRobot, folder_of: Callable[[str], Path]
) -> None:
    answer = examined(robot, folder_of(robot.package))
    if robot.task is None:
        reason = str(answer.problem or answer.task_reason)
        assert [part for part in robot.parts if part not in reason] == [], reason
    else:
        assert answer.problem is None, answer.problem
        assert answer.task == robot.task
        assert {one.key: one.value for one in answer.chosen_settings} == robot.chosen


@pytest.mark.parametrize(
    ("package", "folders", "jobs"),
    [
        ("example_robot_data", ("go2_description", "so_arm_description", "solo_description"), 5),
        ("mjlab", ("unitree_go1", "i2rt_yam"), 2),
    ],
)
def test_robots_of_vendors_are_trained_by_what_init_writes(
    package: str,
    folders: tuple[str, ...],
    jobs: int,
    folder_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    found = [folder_of(package) / folder for folder in folders]
    actuators = ("--set", "mjcf.actuators=position") if package == "mjlab" else ()
    succeed(
        *("init", *found, *actuators),
        *("-o", "vendors.toml", "--time-limit", "300"),
        cwd=tmp_path,
    )
    declared = tomllib.loads((tmp_path / "vendors.toml").read_text())["jobs"]
    assert len(declared) == jobs
    overrides = [argument for setting in SETTINGS for argument in ("--set", setting)]
    succeed("run", "vendors.toml", "--run-dir", "run", *overrides, cwd=tmp_path)
    assert {row["state"] for row in summary(tmp_path / "run").values()} == {"SUCCEEDED"}
