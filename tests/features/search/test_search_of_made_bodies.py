"""A search over bodies that a function makes: what it refuses is no trial."""

from __future__ import annotations

import json
import re
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import TINY, give

from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import search_events
from orchestrator.features.search.history import History

BODIES = '''
def make(params, folder):
    if params["length"] > 0.7:
        raise ValueError("too long")
    path, joint = folder / "pole.xml", params.get("joint", "slide")
    path.write_text(f"""<mujoco><worldbody><body><joint name="{joint}" type="slide" axis="1 0 0" range="-1 1"/>
        <geom type="capsule" size=".04" fromto="0 0 0 0 0 {params['length']}" mass="1"/></body></worldbody>
        <actuator><motor joint="{joint}" ctrlrange="-1 1"/></actuator></mujoco>""")
    return path
'''
SEARCH = """
[[jobs]]
name = "pole"
xml = "bodies:make"
task = "stand"
params = { height = 1 }
[search]
sampler = "sobol"
objective = "ep_rew_mean"
trials = 8
[search.space]
"ppo.batch_size" = { choices = [33, 64, 128, 129] }
"params.length" = { low = 0.2, high = 1.0 }
"""


@pytest.mark.nightly
def test_a_body_that_its_function_refuses_is_no_trial_and_another_one_is_drawn(
    tmp_path: Path,
) -> None:
    """Nor is a point whose values do not fit together."""
    (tmp_path / "bodies.py").write_text(BODIES)
    (tmp_path / "jobs.toml").write_text(f'name = "made"\nmax_parallel = 2\n{TINY}\n{SEARCH}')
    done = give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    paths, history = RunPaths(tmp_path / "run"), History()
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        events = search_events.events(ledger)
        for event in events:
            history.apply(event)
    rows = commands.summary(paths.root)
    assert (history.is_over, len(history.trials), len(rows)) == (True, 8, 8)
    assert not any((history.training, history.waiting, history.untold, history.failed))
    for trial in history.trials:
        assert trial.point["ppo.batch_size"] in (64, 128)
        assert trial.point["params.length"] <= 0.7
        assert (paths.job(trial.jobs[0]).robot / "pole.xml").exists()
    whys = [event.content.get("rejected_why", "") for event in events]
    assert any("is not divisible by batch_size" in why for why in whys)
    assert any(
        re.search(r"bodies:make\(height=1, length=.*\): ValueError: too long", why) for why in whys
    )
    assert history.rejected > 0
    status = " ".join(commands.invoke("status", "run", cwd=tmp_path).stdout.split())
    assert f"{history.rejected} points were refused (the last: " in status


INHERITING = """
[[jobs]]
name = "pole"
xml = "bodies:make"
task = "stand"
params = { length = 0.5 }
[search]
sampler = "random"
objective = "ep_rew_mean"
trials = 6
start = "best"
order = "fixed"
seed = 270
[search.space]
"params.joint" = { choices = ["one", "other"] }
"ppo.use_sde" = { choices = [true, false] }
"""


@pytest.mark.nightly
def test_a_body_that_the_policy_of_its_parent_does_not_fit_starts_from_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "bodies.py").write_text(BODIES)
    (tmp_path / "jobs.toml").write_text(f'name = "made"\nmax_parallel = 1\n{TINY}\n{INHERITING}')
    done = give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    best = json.loads(commands.invoke("best", "run", "-n", "6", "--json", cwd=tmp_path).stdout)
    trials = sorted(best, key=lambda trial: trial["trial"])
    points = [tuple(trial["point"].values()) for trial in trials]
    same = ("one", False)
    assert points == [same, same, same, ("one", True), same, ("other", False)]
    assert [trial["parent"] for trial in trials] == [None, None, None, None, 0, None]
    specs = [tmp_path / f"run/jobs/pole-t{number:05d}-s0/spec.json" for number in range(6)]
    starts = [WorkerSpec.from_json(path.read_text()).init for path in specs]
    assert starts == [None, None, None, None, str(specs[0].parent), None]


@pytest.mark.nightly
def test_middle_and_corner_of_the_space_are_examined_before_anything_is_launched(
    tmp_path: Path,
) -> None:
    (tmp_path / "bodies.py").write_text(BODIES.replace("> 0.7", "< 0.3"))
    content = f'name = "made"\n{TINY}\n{SEARCH}'.replace("[33, 64, 128, 129]", "[64, 128]")
    (tmp_path / "jobs.toml").write_text(content)
    planned = commands.succeed("run", "jobs.toml", "--run-dir", "run", "--dry-run", cwd=tmp_path)
    assert "8 trials, 8 jobs and 4,096 env_steps" in planned.stdout
    assert "pole-corner: is invalid" in planned.stdout
    assert re.search(
        r"estimated time: about \d+ s; by the speed of the physics of 1 body, measured here",
        planned.stdout,
    )
    assert "bodies:make(height=1, length=0.2): ValueError: too long" in planned.stdout
    checked = commands.succeed("check", "jobs.toml", cwd=tmp_path)
    assert "4 examined: 2 ok, 2 warning" in checked.stdout  # few iterations, and the corner

    (tmp_path / "jobs.toml").write_text(
        content + '"model.geom.leg.size" = { low = 0.5, high = 2.0, multiply = true }\n'
    )
    refused = commands.invoke("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "model.geom.leg.size: no geom of the robot is called 'leg'" in refused.stderr
    assert "jobs[0] (the middle of [search.space])" in refused.stderr
    assert not (tmp_path / "run" / "jobs").exists()
