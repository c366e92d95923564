"""An invalid robot among valid ones: nothing is launched, or the others are trained, as the user
chooses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command_helpers import HOPPER, instant_workers, invoke, succeed, summary, write_experiment

from orchestrator.core.job import Cause

STILL = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A glob over a good robot, one without actuators and a broken link; workers that do
    nothing."""
    instant_workers(monkeypatch, tmp_path)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/hopper.xml").write_text(HOPPER.read_text())
    (tmp_path / "zoo/still.xml").write_text(STILL)
    return write_experiment(tmp_path, {"xml": "zoo/*.xml"})


def states(done: subprocess.CompletedProcess[str], run_dir: Path) -> dict[str, str]:
    assert "Traceback" not in done.stdout + done.stderr
    return {job_id: row["state"] for job_id, row in summary(run_dir).items()}


def test_an_invalid_robot_refuses_the_run_which_names_the_option(
    jobs: Path, tmp_path: Path
) -> None:
    done = invoke("run", jobs, cwd=tmp_path)
    assert done.returncode == 2
    assert "has no actuators" in done.stderr
    assert "--skip-invalid" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_skipped_robots_are_failed_with_their_reason_and_examined_again(
    jobs: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs/tiny"
    (tmp_path / "zoo/gone.xml").symlink_to("nowhere.xml")
    done = invoke("run", jobs, "--skip-invalid", cwd=tmp_path)
    assert states(done, run_dir) == {
        "gone-s0": "FAILED",
        "hopper-s0": "SUCCEEDED",
        "still-s0": "FAILED",
    }
    assert done.returncode == 1
    assert "has no actuators" in done.stdout + done.stderr
    row = summary(run_dir)["still-s0"]
    assert row["cause"] == Cause.INVALID
    assert "has no actuators" in row["message"]
    assert "no such file" in summary(run_dir)["gone-s0"]["message"]

    for jobs_named in ([], ["still"]):
        refused = invoke("retry", run_dir, *jobs_named, cwd=tmp_path)
        assert (refused.returncode, "still-s0" in refused.stderr) == (2, True)

    (tmp_path / "zoo/still.xml").write_text(HOPPER.read_text())
    jobs.write_text('on_invalid = "skip"\n' + jobs.read_text())
    done = invoke("run", jobs, cwd=tmp_path)
    assert states(done, run_dir) == {
        "gone-s0": "FAILED",
        "hopper-s0": "SUCCEEDED",
        "still-s0": "SUCCEEDED",
    }
    assert done.returncode == 1


def test_a_dry_run_shows_what_would_be_skipped(jobs: Path, tmp_path: Path) -> None:
    done = succeed(
        "run",
        jobs,
        "--skip-invalid",
        "--dry-run",
        "--json",
        cwd=tmp_path,
    )
    warnings = json.loads(done.stdout)["warnings"]
    assert any(text.startswith("still: is invalid") for text in warnings)
