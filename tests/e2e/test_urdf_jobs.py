"""URDFs in a job file: trained, resumed and edited as MJCF is."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import pytest
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


@pytest.mark.slow
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


@pytest.mark.slow
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
