"""``demo``: a first experiment of what the program brings, also from a wheel alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_helpers import invoke, succeed

from orchestrator.features.demo.commands import JOB_FILE, PACKAGE

ROOT = Path(__file__).parents[3]


def test_the_robots_are_those_of_the_repository() -> None:
    robots = sorted(PACKAGE.glob("robots/*.xml"))
    assert len(robots) == 3
    for robot in robots:
        assert robot.read_bytes() == (ROOT / "mjcf" / robot.name).read_bytes()


def test_robots_and_job_file_are_something_to_begin_with(tmp_path: Path) -> None:
    for _ in range(2):
        done = succeed("demo", "--to", "first", cwd=tmp_path)
        assert "orchestrator run first/jobs.toml" in done.stdout
    planned = json.loads(
        succeed("run", "first/jobs.toml", "--dry-run", "--json", cwd=tmp_path).stdout
    )
    assert sorted(job["job_id"] for job in planned["jobs"]) == [
        "arm-s0",
        "balancer-s0",
        "hopper-s0",
    ]
    checked = json.loads(succeed("check", "first/jobs.toml", "--json", cwd=tmp_path).stdout)
    assert [row["messages"] for row in checked if row["job"]] == [[]] * 3


def test_what_the_user_has_changed_is_not_replaced(tmp_path: Path) -> None:
    succeed("demo", "--to", "first", cwd=tmp_path)
    jobs = tmp_path / "first" / JOB_FILE
    jobs.write_text("name = 'mine'")
    done = invoke("demo", "--to", "first", cwd=tmp_path)
    assert done.returncode == 2
    assert "first/jobs.toml exists" in done.stderr
    assert jobs.read_text() == "name = 'mine'"


def test_a_folder_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = invoke("demo", "--to", "file", cwd=tmp_path)
    assert done.returncode == 2
    assert "demo: file: " in done.stderr


def shortest(jobs: Path) -> None:
    """Let each job of a file train for one iteration, and be evaluated for one episode."""
    text, count = re.subn(
        r"^total_timesteps = .*$", "total_timesteps = 2048", jobs.read_text(), flags=re.M
    )
    assert count == 3
    jobs.write_text(text.replace("[defaults]", "[defaults]\neval_episodes = 1  #", 1))


@pytest.mark.nightly
def test_a_wheel_is_enough_to_train_the_first_policies(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet"]
    wheels = tmp_path / "wheels"
    source = tmp_path / "source"
    source.mkdir()
    for name in ("orchestrator", "mjcf"):  # without what an earlier build has left behind
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", wheels, source], check=True)
    [wheel] = wheels.glob("*.whl")
    assert wheel.stat().st_size < 3_000_000
    alone = tmp_path / "alone"
    subprocess.run([*pip, "install", "--no-deps", "--target", alone, wheel], check=True)
    environment = {**os.environ, "PYTHONPATH": str(alone)}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert str(alone) in run("-c", "import orchestrator; print(orchestrator.__file__)")
    assert wheel.name.split("-")[1] in run("-m", "orchestrator", "--version")
    shortest(alone / "orchestrator/features/demo" / JOB_FILE)
    said = run("-m", "orchestrator", "demo")
    assert "3 of 3 robots are trained" in said
    assert (tmp_path / "orchestrator-demo/run/report/index.html").is_file()
    assert len(list(tmp_path.glob("orchestrator-demo/run/jobs/*/preview.png"))) == 3
