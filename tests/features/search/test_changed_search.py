"""A search whose job file or robot has changed since it began."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import HOPPER, TINY
from searcher_helpers import examine_here
from trial_helpers import Told, search_run

SEARCH = f"""name = "search"
max_parallel = 2
{TINY}
start = "exec"
[[jobs]]
name = "hopper"
xml = "hopper.xml"
task = "forward"
[search]
sampler = "random"
trials = 2
objective = "ep_rew_mean"
[search.space]
"ppo.learning_rate" = {{ low = 1e-4, high = 1e-2, log = true }}
"""


def declared(run_dir: Path) -> Any:
    return json.loads((run_dir / "search/declared.json").read_text())["data"]["search"]


def test_another_space_is_refused(tmp_path: Path) -> None:
    search_run(tmp_path / "run", [Told(values=[3.0]), Told(reached=[0.5])])
    shutil.copy(HOPPER, tmp_path)
    (tmp_path / "jobs.toml").write_text(SEARCH)
    refused = commands.invoke("run", "jobs.toml", "--run-dir", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--on-change=restart" in refused.stderr


@pytest.mark.nightly
def test_a_changed_search_is_refused_or_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine_here(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    jobs, robot, run_dir = tmp_path / "jobs.toml", tmp_path / "hopper.xml", tmp_path / "run"

    def run(on_change: str = "refuse") -> int:
        options = ("--run-dir", "run", "--on-change", on_change)
        return commands.invoke("run", jobs, *options, cwd=tmp_path).returncode

    jobs.write_text(SEARCH)
    shutil.copy(HOPPER, robot)
    assert run() == 0
    before = commands.summary(run_dir).keys()
    whole = robot.read_text()
    robot.write_text(whole.replace("</mujoco>", "<!-- edited --></mujoco>"))
    jobs.write_text(SEARCH.replace("trials = 2", "trials = 3"))
    assert run() == 2

    robot.write_text(whole)
    jobs.write_text(jobs.read_text().replace("high = 1e-2", "high = 1e-3"))
    assert run() == 2
    assert commands.summary(run_dir).keys() == before
    assert run("restart") == 0
    (aside,) = (path for path in tmp_path.iterdir() if path.name.startswith("run."))
    assert commands.summary(aside).keys() == before
    assert declared(run_dir)["space"]["ppo.learning_rate"]["high"] == 0.001
