"""``orchestrator.Search``."""

from __future__ import annotations

import sys
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import HOPPER

import orchestrator


@pytest.mark.slow
def test_a_search_from_python_makes_its_trials_and_shows_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands.instant_workers(monkeypatch, tmp_path)
    search = orchestrator.Search(
        xml=HOPPER,
        space={"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
        sampler="random",
        objective="ep_rew_mean",
        trials=2,
        run_dir="run",
        max_parallel=2,
        task="forward",
        total_timesteps=256,
        n_envs=2,
        eval_episodes=0,
        ppo={"n_steps": 64, "batch_size": 64, "n_epochs": 1},
        resources={"min_free_disk": 0, "start": "exec"},
    )
    with pytest.raises(orchestrator.RunDirError, match="no such run directory"):
        search.best()
    assert search.run().ok
    best, *_ = search.best(2)
    trials = search.trials()
    assert [trial.number for trial in trials] == [0, 1]
    assert best.value == best.results[0].ep_rew_mean == 1.0
    assert 1e-4 <= best.point["ppo.learning_rate"] <= 1e-2
    table = search.to_dataframe()
    assert list(table.columns) == ["trial", "ppo.learning_rate", "ep_rew_mean", "env_steps", "parent", "error"]
    assert list(table["ep_rew_mean"]) == [trial.value for trial in trials]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(orchestrator.UsageError, match="pip install pandas"):
        search.to_dataframe()


def test_what_is_wrong_with_a_search_is_said_before_it_runs() -> None:
    space = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2}}
    for arguments, fragment in (
        ({"trials": 3, "samplr": "random"}, 'did you mean "sampler"'),
        ({"trials": 3, "space": {"ppo.n_step": {"low": 1, "high": 2}}}, "n_step"),
        ({"trials": 3, "xml": "<mujoco/>"}, "write it to a file"),
        ({"trials": 3, "xml": 3}, "expected a path"),
        ({"trials": 3, "space": 3}, "search.space: expected a table, found 3"),
        ({"trials": 3, "objective": []}, "objective"),
    ):
        with pytest.raises(orchestrator.UsageError, match=fragment):
            orchestrator.Search(**{"xml": HOPPER, "space": space, "sampler": "random", **arguments})
