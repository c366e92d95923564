"""Every command and script of the tutorials, in order, with small budgets."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_helpers import REPOSITORY
from tutorial_helpers import Reader


@pytest.mark.nightly
def test_own_robot_in_ten_minutes(tmp_path: Path) -> None:
    reader = Reader(
        tmp_path, {"200_000": "2_048", "my_robots hopper\n": "my_robots hopper --seconds 0.1\n"}
    )
    outputs = reader.follow("tutorial-own-robot.md")
    assert "return of 200 steps: " in outputs["python use_policy.py"]
    assert (tmp_path / "runs/my_robots/jobs/hopper-s0/video.mp4").is_file()
    assert (tmp_path / "runs/my_robots/report/index.html").is_file()


@pytest.mark.nightly
def test_a_shared_machine(tmp_path: Path) -> None:
    robots = tmp_path / "my_robots"
    robots.mkdir()
    (robots / "hopper.xml").symlink_to(REPOSITORY / "mjcf/hopper.xml")
    reader = Reader(
        tmp_path, {"--until 07:00": "--until 15s --grace 10 --max-parallel 1", '"2 GiB"': "0"}
    )
    outputs = reader.follow("tutorial-shared-machine.md")
    assert "robots" in outputs["orchestrator list"]
    assert (tmp_path / "robots-report/index.html").is_file()
    assert (tmp_path / "ended.txt").read_text().splitlines()[-1] == "0 succeeded, 0 failed"
