"""A search whose body function, task and sampler hang while it runs: each has its one message, and
the rest goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import TINY, give

from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import search_events

MEASURE_HANGS, BODY_HANGS = 0.4, 0.7
OWN = f"""
import pathlib, time
import numpy as np
from orchestrator.worker.tasks import Measure
from orchestrator.worker.tasks.stand import Stand

def make(params, folder):
    if params["length"] == {BODY_HANGS}:
        time.sleep(600)
    path = folder / "pole.xml"
    path.write_text(f'''<mujoco><worldbody><body><joint name="slide" type="slide" axis="1 0 0" range="-1 1"/>
        <geom type="capsule" size=".04" fromto="0 0 0 0 0 {{params['length']}}" mass="1"/></body></worldbody>
        <actuator><motor joint="slide" ctrlrange="-1 1"/></actuator></mujoco>''')
    return path

class Judged(Stand):
    measures = (Measure(name="beauty", over_episode="mean"),)
    calls = 0

    def measure(self, before, action, after):
        self.calls += 1
        if abs(2 * self.model.geom_size[0, 1] - {MEASURE_HANGS}) < 1e-6 and self.calls > 50:  # beyond the examination
            time.sleep(600)
        return np.ones((len(after.qpos), 1))
"""
SAMPLER = f"""
import pathlib, time
from orchestrator.experiment.examination import side_by_side
from orchestrator.features.search.searcher import watchdog

watchdog.LIMIT_S = 1.0
side_by_side.ask.__kwdefaults__["time_limit_s"] = 30.0

class Sampler:
    def __init__(self, **_):
        pass

    def ask(self, number):
        if number == 5 and pathlib.Path(__file__).with_name("hangs").exists():
            time.sleep(600)
        return {{"params.length": [0.3, {MEASURE_HANGS}, {BODY_HANGS}, 0.5, 0.8, 0.9][number]}}

    def tell(self, number, point, outcome):
        pass
"""
SEARCH = """
stall_timeout = "30s"
[defaults.retry]
max_retries = 0
[[jobs]]
name = "pole"
xml = "own:make"
task = "own:Judged"
task_options = { max_episode_steps = 100 }
[search]
sampler = "proposing:Sampler"
objective = "beauty"
trials = 5
[search.space]
"params.length" = { low = 0.2, high = 1.0 }
"""


def outcomes(run_dir: Path) -> dict[int | None, Any]:
    """What has become of each trial: its values, or why it has failed."""
    with run_directory.opened_ledger(RunPaths(run_dir), read_only=True) as ledger:
        found = [event for event in search_events.events(ledger) if event.kind == "over"]
    return {event.trial: event.content["values"] or event.content["why"] for event in found}


@pytest.mark.nightly
def test_what_hangs_is_named_and_the_other_trials_are_trained(tmp_path: Path) -> None:
    settings = TINY.replace("eval_episodes = 0", "eval_episodes = 1")
    (tmp_path / "jobs.toml").write_text(f'name = "hanging"\nmax_parallel = 2\n{settings}{SEARCH}')
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "proposing.py").write_text(SAMPLER)
    (tmp_path / "hangs").touch()
    stopped = give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert stopped.returncode == 1, stopped.stdout + stopped.stderr
    shown = " ".join((stopped.stdout + stopped.stderr).split())
    message = 'the sampler "proposing:Sampler" has not returned within 1 s from its method ask'
    assert shown.count(f"warning: the search has stopped: {message}") == 1, shown
    assert "run the same command again: the search resumes" in shown
    states = {job_id: row["state"] for job_id, row in commands.summary(tmp_path / "run").items()}
    names = [f"pole-t{number:05d}-s0" for number in range(4)]
    ends = ("SUCCEEDED", "FAILED", "SUCCEEDED", "SUCCEEDED")
    assert states == dict(zip(names, ends, strict=True)), "the body that hangs is no trial"

    (tmp_path / "hangs").unlink()
    resumed = give("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    found = outcomes(tmp_path / "run")
    assert [found[number] for number in (0, 2, 3, 4)] == [[1.0]] * 4
    assert "no progress" in found[1]
    with run_directory.opened_ledger(RunPaths(tmp_path / "run"), read_only=True) as ledger:
        asked = [event.content for event in search_events.events(ledger) if event.kind == "asked"]
    why = f"own:make(length={BODY_HANGS}): examining it took more than 30 s"
    assert [why in content.get("rejected_why", "") for content in asked].count(True) == 1
