"""``advise``: a real robot measured, its advice taken by a job file, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_helpers import HOPPER, invoke, succeed, write_experiment

from orchestrator.features.advice.advice_view import job_file_lines
from orchestrator.features.advice.physics_advice import PhysicsChange

MEASURING = ("--time", "1", "--time-limit", "300", "--json")
"""Briefly, and completely beside a load, too."""


@pytest.mark.nightly
def test_every_piece_of_advice_can_be_pasted_into_a_job_file(tmp_path: Path) -> None:
    xml = f'xml = "{HOPPER}"'
    done = succeed("advise", HOPPER, *MEASURING, cwd=tmp_path)
    (row,) = json.loads(done.stdout)
    found = [
        PhysicsChange(
            name=change["name"], edits=change["edits"], task_options=change["task_options"]
        )
        for change in row["advice"]["changes"]
        if change["edits"]
    ]
    assert {"timestep 0.01", "integrator Euler", "solver CG", "cone elliptic"} <= {
        change.name for change in found
    }
    tables = [
        "\n".join(
            ["[[jobs]]", f'name = "j{number}"', xml, 'task = "forward"', *job_file_lines(change)]
        )
        for number, change in enumerate(found)
    ]
    (tmp_path / "jobs.toml").write_text("\n".join(['name = "followed"', *tables]))
    checked = invoke("check", "jobs.toml", "--json", cwd=tmp_path)
    rows = [row for row in json.loads(checked.stdout) if row["job"]]
    assert [(row["verdict"], row["messages"]) for row in rows] == [("ok", [])] * len(found)
    assert {row["timestep_s"] for row in rows} > {0.005, 0.01}
    assert {row["integrator"] for row in rows} > {"implicitfast", "euler"}


@pytest.mark.nightly
def test_programs_get_every_change_and_jobs_without_a_task_say_why_not(tmp_path: Path) -> None:
    (tmp_path / "broken.xml").write_text("<mujoco>")
    jobs = write_experiment(
        tmp_path,
        {"name": "hopper", "task": "gymnasium:Hopper-v5"},
        {"name": "other", "env": "CartPole-v1"},
    )
    done = invoke("advise", jobs, "broken.xml", *MEASURING, cwd=tmp_path)
    assert done.returncode == 1
    rows = {row["job"] or Path(row["path"]).name: row for row in json.loads(done.stdout)}
    advice = rows["hopper-s0"]["advice"]
    changes = {change["name"]: change for change in advice["changes"]}
    assert {"integrator implicitfast", "timestep 0.004"} <= changes.keys()
    slower = changes["timestep 0.004"]
    assert (slower["edits"], slower["task_options"]) == (
        {"option.timestep": 0.004},
        {"frame_skip": 2},
    )
    assert advice["env_steps_per_s"] > 0
    euler = {
        "name": "own",
        "task": "gymnasium:Hopper-v5",
        "xml": advice["own_xml"],
        "model": changes["integrator Euler"]["edits"],
    }
    followed = write_experiment(tmp_path, euler)
    row = next(
        row
        for row in json.loads(invoke("check", followed, "--json", cwd=tmp_path).stdout)
        if row["job"]
    )
    assert (row["verdict"], row["integrator"]) == ("ok", "euler")
    assert "environment of its own" in rows["other-s0"]["advice"]["problem"]
    assert rows["broken.xml"]["advice"] is None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("check", HOPPER, "--advise"), f"`advise {HOPPER}`"),
        (("advise", HOPPER, "--time", "0.1"), "or equal to 0.5"),
        (("advise", HOPPER, "--time", "nan"), "or equal to 3600"),
        (("advise", "nowhere.xml"), "no such file or folder"),
    ],
)
def test_wrong_usage_measures_nothing(
    command: tuple[str | Path, ...], message: str, tmp_path: Path
) -> None:
    done = invoke(*command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.replace("│", "").split())
