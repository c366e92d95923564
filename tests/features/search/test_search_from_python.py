"""``orchestrator.Search``."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import HOPPER
from trial_helpers import SPACE, Told, point_of, search_run

import orchestrator
from orchestrator.core.errors import SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.features.search.trials import TrialReader

SHORT: dict[str, Any] = {
    "task": "forward",
    "total_timesteps": 256,
    "n_envs": 2,
    "eval_episodes": 0,
    "ppo": {"n_steps": 64, "batch_size": 64, "n_epochs": 1},
    "resources": {"min_free_disk": 0, "start": "exec"},
}


@pytest.mark.nightly
def test_a_search_from_python_makes_its_trials_and_shows_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
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
    with pytest.raises(orchestrator.RunDirError, match="no such run directory"):
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
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(orchestrator.UsageError, match="pip install pandas"):
        search.to_dataframe()


def test_the_table_has_the_objectives_of_the_search_in_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [
        Told(values=[3.0, 40.0]),
        Told(why="no legs"),
        Told(values=[2.0, 30.0], reevaluates=0, point=point_of(0)),
    ]
    objectives = {
        "objective": ["eval_mean", "env_steps"],
        "sampler": "nsga2",
        "scheduler": {"kind": "none"},
    }
    search_run(tmp_path / "run", told, **objectives)
    search = orchestrator.Search(
        xml=HOPPER, space=SPACE, sampler="random", trials=3, run_dir=tmp_path / "run"
    )
    reader_of = TrialReader.of
    made: list[TrialReader] = []

    def reader(paths: RunPaths) -> TrialReader | None:
        """At first what was declared before this search took its place."""
        found = reader_of(paths)
        assert found is not None
        assert found.search is not None
        if not made:
            found.search = dataclasses.replace(found.search, objectives=("energy_j",))
        made.append(found)
        return found

    monkeypatch.setattr(TrialReader, "of", reader)
    table = search.to_dataframe()
    assert made
    others = ["env_steps", "lineage_env_steps", "parent", "reevaluates", "role", "error"]
    columns = ["trial", *sorted(SPACE), "eval_mean", *others]
    assert list(table.columns) == columns
    assert table["env_steps"].tolist()[::2] == [40.0, 30.0], (
        "the objective, not that of the training"
    )
    assert table["reevaluates"].tolist()[2] == 0


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
    assert (
        orchestrator.Search(
            xml="robot.xml", space=space, trials=3, sampler="random"
        )._experiment.base
        == Path.cwd()
    )


def test_keys_that_are_no_text_are_refused_in_every_table() -> None:
    space = {"ppo.gamma": {"low": 0.9, "high": 0.99}}
    for arguments, where in (
        ({"env_kwargs": {"gains": {1: 2, "knee": 3}}}, "defaults.env_kwargs: gains"),
        ({"sampler_options": {"a": {1: 2}}}, "search.sampler_options: a"),
        ({"space": {1: {"low": 0.9, "high": 0.99}}}, r"search.space\[1\]"),
    ):
        given = {"xml": "robot.xml", "entry_point": "odd:make", "space": space, **arguments}
        with pytest.raises(SpecError, match=f"{where}: a key must be text, found 1"):
            orchestrator.Search(trials=3, **given)


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
    with pytest.raises(orchestrator.UsageError) as stopped:
        search.run()
    why = 'the sampler "own:Own" has failed in its method ask: ValueError: no idea'
    for fact in (
        why,
        "1 of 1 job succeeded",
        "results are kept",
        f"run_dir={str(tmp_path / 'run')!r} resumes",
    ):
        assert fact in str(stopped.value)
    assert [result.ep_rew_mean for trial in search.trials() for result in trial.results] == [1.0]
    assert why in " ".join(commands.invoke("status", "run", cwd=tmp_path).stdout.split())
    (tmp_path / "own.py").write_text(OWN.replace("number == 1", "False"))
    assert search.run().ok
    assert [trial.value for trial in search.trials()] == [1.0] * 3
    assert "stopped" not in commands.invoke("status", "run", cwd=tmp_path).stdout


def test_none_is_as_unset() -> None:
    space = {"ppo.gamma": {"low": 0.5, "high": 0.9}}
    none = {
        "trials": None,
        "scheduler": None,
        "space": {"ppo.gamma": {**space["ppo.gamma"], "choices": None}},
    }
    unset, given = (
        orchestrator.Search(
            xml=HOPPER, **{"space": space, "sampler": "random", "max_time": "1h", **arguments}
        )
        for arguments in ({}, none)
    )
    assert given._experiment.job_source == unset._experiment.job_source
    assert given._experiment.data["search"] == unset._experiment.data["search"], (
        "no change for the next run"
    )


def test_train_which_has_a_result_for_each_robot_takes_no_search(tmp_path: Path) -> None:
    space = {"ppo.gamma": {"low": 0.9, "high": 0.99}}
    table = {"space": space, "trials": 2, "sampler": "random", "objective": "ep_rew_mean"}
    with pytest.raises(
        orchestrator.UsageError, match=r"train: search makes jobs .* use orchestrator\.Search"
    ):
        orchestrator.train([HOPPER], run_dir=tmp_path / "run", search=table, **SHORT)
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_with_a_search_is_said_before_it_runs() -> None:
    space = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2}}
    for arguments, fragment in (
        ({"trials": 3, "space": {"ppo.gamma": {"low": 0.5, "high": None}}}, "high is missing"),
        ({"trials": 3, "samplr": "random"}, 'did you mean "sampler"'),
        ({"trials": 3, "space": {"ppo.n_step": {"low": 1, "high": 2}}}, "n_step"),
        ({"trials": 3, "xml": "<mujoco/>"}, "write it to a file"),
        ({"trials": 3, "xml": 3}, "expected a path"),
        ({"trials": 3, "space": 3}, "search.space: expected a table, found 3"),
        ({"trials": 3, "objective": []}, "objective"),
    ):
        with pytest.raises(orchestrator.UsageError, match=fragment):
            orchestrator.Search(**{"xml": HOPPER, "space": space, "sampler": "random", **arguments})
