"""A search over bodies that a function makes: what it refuses is no trial."""

from __future__ import annotations

import re
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import TINY, give

from orchestrator.core.paths import RunPaths
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
    events = search_events.events(paths)
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
