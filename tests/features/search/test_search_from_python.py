"""``orchestrator.Search``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import HOPPER

import orchestrator

pytestmark = pytest.mark.nightly

SHORT: dict[str, Any] = {
    "task": "forward",
    "total_timesteps": 256,
    "n_envs": 2,
    "eval_episodes": 0,
    "ppo": {"n_steps": 64, "batch_size": 64, "n_epochs": 1},
    "resources": {"min_free_disk": 0, "start": "exec"},
}


def test_a_search_from_python_makes_its_trials_and_shows_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands.examine_nothing(monkeypatch)
    commands.instant_workers(monkeypatch, tmp_path)
    search = orchestrator.Search(
        xml=HOPPER,
        name="found",
        space={"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
        sampler="random",
        objective="ep_rew_mean",
        trials=2,
        run_dir="run",
        max_parallel=2,
        **SHORT,
    )
    with pytest.raises(orchestrator.RunDirError):
        search.best()
    assert search.run().ok
    best, *_ = search.best(2)
    trials = search.trials()
    assert [trial.results[0].job_id for trial in trials] == ["found-t00000-s0", "found-t00001-s0"]
    assert best.value == best.results[0].ep_rew_mean == 1.0
    assert 1e-4 <= best.point["ppo.learning_rate"] <= 1e-2
    table = search.to_dataframe()
    assert list(table.columns) == [
        *(
            "trial",
            "ppo.learning_rate",
            "ep_rew_mean",
            "env_steps",
            "lineage_env_steps",
            "parent",
            "reevaluates",
            "role",
            "error",
        )
    ]
    assert list(table["ep_rew_mean"]) == [trial.value for trial in trials]


def test_code_beside_the_script_is_found_and_a_robot_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script").mkdir()
    (tmp_path / "here").mkdir()
    shutil.copy(HOPPER, tmp_path / "here/robot.xml")
    for module in ("mytask", "mysampler"):
        (tmp_path / f"script/{module}.py").touch()
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", str(tmp_path / "script/script.py"), raising=False
    )
    monkeypatch.chdir(tmp_path / "here")
    space = {"ppo.gamma": {"low": 0.9, "high": 0.99}}
    for code in (
        {"task": "mytask:Task", "sampler": "random"},
        {"task": "forward", "sampler": "mysampler:Own"},
    ):
        search = orchestrator.Search(xml="robot.xml", space=space, trials=3, run_dir="run", **code)
        experiment = search._experiment
        assert experiment.base == tmp_path / "script"
        assert experiment.jobs_to_examine[0].xml_source == tmp_path / "here/robot.xml"


OWN = """
class Own:
    def __init__(self, space, seed, directions):
        self.space = space

    def ask(self, number):
        if number == 1:
            raise ValueError("no idea")
        return self.space.decode([0.5])

    def tell(self, number, point, outcome):
        pass
"""


@pytest.mark.nightly
def test_a_search_whose_sampler_raises_is_an_error_with_the_results_kept_and_goes_on_when_it_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    search = orchestrator.Search(
        xml=HOPPER,
        space={"ppo.learning_rate": {"low": 1e-4, "high": 1e-2}},
        sampler="own:Own",
        objective="ep_rew_mean",
        trials=3,
        run_dir="run",
        **SHORT,
    )
    with pytest.raises(orchestrator.UsageError, match="own:Own"):
        search.run()
    assert [result.ep_rew_mean for trial in search.trials() for result in trial.results] == [1.0]
    (tmp_path / "own.py").write_text(OWN.replace("number == 1", "False"))
    assert search.run().ok
    assert [trial.value for trial in search.trials()] == [1.0] * 3


def test_what_is_wrong_with_a_search_is_said_before_it_runs() -> None:
    space = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2}}
    for arguments in (
        {"samplr": "random"},
        {"space": {"ppo.n_step": {"low": 1, "high": 2}}},
        {"xml": "<mujoco/>"},
    ):
        given = {"xml": HOPPER, "space": space, "sampler": "random", "trials": 3, **arguments}
        with pytest.raises(orchestrator.UsageError):
            orchestrator.Search(**given)
