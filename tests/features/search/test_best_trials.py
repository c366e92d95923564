"""``best``: the best trials of a search, with or without rungs, objectives and parents; and copies
of them."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import HOPPER
from report_helpers import Trained, make_run_dir
from trial_helpers import SPACE, Told, point_of, search_run

from orchestrator import RunDirError, Search, UsageError
from orchestrator.core.job import Job, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import begun_source
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import (
    copied_trials,
    ranking,
    ranking_remarks,
    search_events,
    trials,
)
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import load
from orchestrator.ledger import Ledger, SummaryRow


def best(run_dir: Path, *options: str) -> list[dict[str, Any]]:
    done = commands.succeed("best", run_dir, "--json", *options, cwd=run_dir.parent)
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    return shown


def test_the_best_trials_are_shown_first_without_those_that_wait_or_failed(tmp_path: Path) -> None:
    of_trials = [
        Told(values=[3.0]),
        Told(reached=[9.0]),
        Told(values=[7.0]),
        Told(why="no legs"),
        Told(values=[5.0]),
    ]
    paths = search_run(tmp_path / "run", of_trials, seeds=[0, 1])
    assert [row["trial"] for row in best(paths.root)] == [2, 4, 0]
    (first,) = best(paths.root, "-n", "1")
    assert first["values"] == {"eval_mean": 7.0}
    assert first["point"] == point_of(2)
    assert first["jobs"] == ["hopper-t00002-s0", "hopper-t00002-s1"]
    assert first["env_steps"] == 2000
    shown = commands.invoke("best", paths.root, cwd=tmp_path).stdout
    assert "equal env_steps" not in shown


@pytest.mark.parametrize("is_over", [True, False])
def test_a_search_in_which_no_trial_has_finished_says_so_and_fails_once_it_is_over(
    tmp_path: Path, is_over: bool
) -> None:
    paths = search_run(
        tmp_path / "run", [Told(why="no legs"), Told(reached=[9.0])], is_over=is_over
    )
    shown = commands.invoke("best", paths.root, cwd=tmp_path)
    assert ("None of the 2 trials" in shown.stdout, "yet" in shown.stdout) == (True, not is_over)
    as_json = commands.invoke("best", paths.root, "--json", cwd=tmp_path)
    assert json.loads(as_json.stdout) == []
    assert [shown.returncode, as_json.returncode] == [int(is_over)] * 2


@pytest.mark.parametrize("state", ["FAILED", "PENDING"])
def test_without_a_search_none_has_an_evaluation_once_all_jobs_have_ended(
    tmp_path: Path, state: str
) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained(state=state)])
    shown = commands.invoke("best", paths.root, cwd=tmp_path)
    is_over = state == "FAILED"
    assert ("None of the 1 job" in shown.stdout, "yet" in shown.stdout) == (True, not is_over)
    assert shown.returncode == int(is_over)


def test_to_minimise_the_smallest_is_the_best(tmp_path: Path) -> None:
    paths = search_run(
        tmp_path / "run", [Told(values=[3.0]), Told(values=[1.0])], direction="minimize"
    )
    assert [row["trial"] for row in best(paths.root)] == [1, 0]


def test_of_several_objectives_the_pareto_front_is_shown(tmp_path: Path) -> None:
    values = [(1.0, 9.0), (2.0, 5.0), (3.0, 4.0), (2.5, 6.0), (3.0, 7.0), (0.5, 1.0)]
    paths = search_run(
        tmp_path / "run",
        [Told(values=pair) for pair in values],
        sampler="nsga2",
        objective=["eval_mean", "env_steps"],
        direction=["maximize", "minimize"],
        scheduler={"kind": "none"},
    )
    # More return with fewer env_steps: 3.0 at 4.0 surpasses all but the cheapest.
    assert [row["trial"] for row in best(paths.root)] == [2, 5]
    with run_directory.reading_ledger(paths) as ledger:
        source = begun_source.begun_source(paths, ledger)
        assert source is not None
        objectives = dict(source.objectives)
    assert list(objectives.items()) == [("eval_mean", "maximize"), ("env_steps", "minimize")]


def test_trials_that_were_trained_again_have_a_front_of_their_own(tmp_path: Path) -> None:
    """Of those that were trained again several times, the last training with values counts."""
    told = [
        Told(values=(3.0, 5.0)),
        Told(values=(2.0, 6.0)),
        Told(values=(1.0, 7.0), reevaluates=0, point=point_of(0)),
        Told(why="no legs", reevaluates=0, point=point_of(0)),
    ]
    objectives = ["eval_mean", "env_steps"]
    paths = search_run(tmp_path / "run", told, sampler="nsga2", objective=objectives)
    first, second = best(paths.root)
    assert (first["trial"], first["values"]["eval_mean"]) == (0, 1.0)
    assert (second["trial"], second["again"]) == (1, None)
    shown = " ".join(commands.succeed("best", paths.root, cwd=tmp_path).stdout.split())
    assert "There are two Pareto fronts" in shown


def test_a_value_from_nothing_is_shown_beside_that_of_a_trial_that_inherited(
    tmp_path: Path,
) -> None:
    again = Told(values=[4.0], reevaluates=1, point=point_of(1))
    paths = search_run(
        tmp_path / "run", [Told(values=[3.0]), Told(values=[8.0], parent=0), again], inherit="best"
    )
    let_inherit(paths, "t00001", "t00000")
    first, second = best(paths.root)
    assert (first["trial"], first["parent"], first["again"]) == (1, None, {"eval_mean": 4.0})
    assert second["again"] is None
    assert [row["lineage_env_steps"] for row in (first, second)] == [1000, 1000]
    found = Search(
        xml=HOPPER, space={"ppo.gamma": {"low": 0.9, "high": 0.99}}, trials=3, run_dir=paths.root
    )
    lineages = [trial.lineage_env_steps for trial in found.trials()]
    assert lineages == [1000, 6000, 1000]
    assert "equal env_steps" not in commands.invoke("best", paths.root, cwd=tmp_path).stdout
    shown = commands.invoke("best", run_with_an_heir(tmp_path / "heir").root, cwd=tmp_path).stdout
    assert "equal env_steps" in shown
    assert re.search(r"\blineage\b", shown)


def run_with_an_heir(root: Path) -> RunPaths:
    """The second trial began with the policy of the first one."""
    paths = search_run(root, [Told(values=[3.0]), Told(values=[8.0], parent=0)], inherit="best")
    let_inherit(paths, "t00001", "t00000")
    return paths


def let_inherit(paths: RunPaths, heir: str, parent: str) -> None:
    """The jobs of ``heir`` began with the policies of those of ``parent``, of 5,000 env_steps."""
    ledger = Ledger.open(paths.ledger)
    for row in ledger.jobs():
        if f"-{heir}-" in row.job_id:
            told = {"init": row.job_id.replace(heir, parent), "init_env_steps": 5000}
            ledger.update_spec(row.job.with_spec(**told))
    ledger.close()


def test_trials_that_were_trained_again_have_jobs_and_env_steps_of_that_training(
    tmp_path: Path,
) -> None:
    again = Told(values=[4.0], reevaluates=1, point=point_of(1))
    trials = [Told(values=[3.0]), Told(values=[8.0]), again]
    paths = search_run(tmp_path / "run", trials, seeds=[0, 1])
    longer = {"values": [4.0], "measures": None, "env_steps": 5000, "why": ""}
    ledger = Ledger.open(paths.ledger)
    search_events.add(ledger, [SearchEvent(kind="over", trial=2, content=longer)])
    ledger.close()
    first, second = best(paths.root)
    jobs = ["hopper-t00002-s0", "hopper-t00002-s1"]
    assert (first["trial"], first["point"], first["env_steps"]) == (1, point_of(1), 5000)
    assert (first["jobs"], first["in_search"]) == (jobs, {"eval_mean": 8.0})
    assert (second["trial"], second["env_steps"]) == (0, 2000)
    space = {"ppo.gamma": {"low": 0.9, "high": 0.99}}
    found = Search(xml=HOPPER, space=space, trials=3, run_dir=paths.root).best(1)[0]
    assert (found.value, found.in_search, found.env_steps) == (4.0, (8.0,), 5000)
    assert [result.job_id for result in found.results] == jobs
    with_results(paths)
    commands.succeed("best", paths.root, "-n", "1", "--to", "copy", cwd=tmp_path)
    assert [job.job_id for job in load(tmp_path / "copy/jobs.toml").jobs] == jobs


def test_python_has_what_the_command_shows(tmp_path: Path) -> None:
    """In the same order, with the same figures, but for the unchanged job."""
    values = [3.0, 8.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]
    again = Told(values=[4.0], reevaluates=1, point=point_of(1))
    reference = Told(values=[9.0], role="reference")
    told = [*(Told(values=[value]) for value in values), again, reference]
    paths = search_run(tmp_path / "run", told, seeds=[0, 1])
    search = Search(xml=HOPPER, space=SPACE, trials=8, run_dir=paths.root)
    for options, by in (
        ([], None),
        (["--by", "estimate"], "estimate"),
        (["--by", "env_steps"], "env_steps"),
    ):
        shown = [one for one in best(paths.root, "-n", "20", *options) if one["role"] is None]
        found = search.best(20, by=by)
        assert [one.number for one in found] == [one["trial"] for one in shown]
        assert len(found) == len(values)
        for one, facts in zip(found, shown, strict=True):
            assert list(one.values) == list(facts["values"].values())
            assert list(one.in_search) == list((facts["in_search"] or {}).values())
            means = [None if mean is None else dataclasses.asdict(mean) for mean in one.fresh_means]
            assert means == list((facts["fresh_means"] or {}).values())
            assert one.lineage_env_steps == facts["lineage_env_steps"]
            belief = None if one.estimate is None else dataclasses.asdict(one.estimate)
            assert belief == facts["estimate"]
    assert len(search.best(3)) == 3
    with pytest.raises(UsageError, match=": by speed:"):
        search.best(by="speed")
    with pytest.raises(UsageError, match="smallest is for by"):
        search.best(smallest=True)
    with pytest.raises(UsageError, match='smallest does not go with by="estimate"'):
        search.best(by="estimate", smallest=True)
    assert search.best(0) == []
    for count in (-1, "5"):
        with pytest.raises(UsageError, match=r"best: count is .*; expected a whole number from 0"):
            search.best(count)  # type: ignore[arg-type]
    ledger = Ledger.open(paths.ledger)
    rewards = [(f"hopper-t{number:05d}-s0", 1000, float(number), None, None) for number in range(8)]
    ledger.set_progress(rewards)
    ledger.close()
    for smallest in (False, True):
        found = search.best(20, by="ep_rew_mean", smallest=smallest)
        in_order = [one.value for one in found if not one.in_search]
        assert in_order == sorted(in_order, reverse=not smallest)
        assert len(set(in_order)) > 5


def test_where_the_unchanged_job_alone_is_shown_nothing_is_estimated(tmp_path: Path) -> None:
    told = [Told(values=[float(value)]) for value in range(9)]
    again = Told(values=[4.0], reevaluates=8, point=point_of(8))
    reference = Told(values=[9.0], role="reference")
    paths = search_run(tmp_path / "run", [*told, again, reference])
    (shown,) = best(paths.root, "-n", "1")
    assert (shown["role"], shown["estimate"]) == ("reference", None)
    _, of_trial = best(paths.root, "-n", "2")
    assert of_trial["estimate"]["mean"] > 4.0, "by its value in the search"


@pytest.mark.parametrize("is_raced", [False, True])
def test_trials_in_python_have_the_belief_of_a_race_in_place_of_an_estimate(
    tmp_path: Path, is_raced: bool
) -> None:
    told = [Told(values=[float(value)]) for value in range(9)]
    race: dict[str, Any] = {"race": {"seeds": 5}} if is_raced else {}
    paths = search_run(tmp_path / "run", told, **race)
    known = ranking.read(paths.root, 9)
    assert bool(known.believed) == is_raced
    for one in Search(xml=HOPPER, space=SPACE, trials=9, run_dir=paths.root, **race).best(9):
        assert one.believed == known.believed.get(one.number)
        assert (one.estimate is None) == is_raced


def test_the_unchanged_job_hides_no_trial_from_a_program(tmp_path: Path) -> None:
    """Of several objectives it may be better than all trials in each."""
    objectives = ["eval_mean", "env_steps"]
    told = [
        Told(values=(3.0, 5.0)),
        Told(values=(2.0, 6.0)),
        Told(values=(1.0, 7.0), reevaluates=0, point=point_of(0)),
        Told(values=(9.0, 9.0), role="reference"),
    ]
    paths = search_run(tmp_path / "run", told, sampler="nsga2", objective=objectives)
    search = Search(
        xml=HOPPER,
        space=SPACE,
        trials=2,
        run_dir=paths.root,
        sampler="nsga2",
        objective=objectives,
    )
    first, *_ = best(paths.root)
    assert first["role"] == "reference"
    assert [one.number for one in search.best()] == [0, 1]


def test_rungs_without_a_search_are_none_to_a_program(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[1.0])])
    declaration = SearchPaths(paths.root).declaration
    declared = json.loads(declaration.read_text())
    del declared["data"]["search"]
    declared["data"]["scheduler"] = {"min_env_steps": 100}
    declaration.write_text(json.dumps(declared))
    search = Search(xml=HOPPER, space=SPACE, trials=1, run_dir=paths.root)
    with pytest.raises(RunDirError, match="no search has been run"):
        search.best()


def test_where_a_run_was_killed_before_it_had_a_ledger_there_is_no_search(tmp_path: Path) -> None:
    RunPaths(tmp_path).lock.touch()
    search = Search(xml=HOPPER, space=SPACE, trials=1, run_dir=tmp_path)
    for question in (search.trials, search.to_dataframe):
        with pytest.raises(RunDirError, match="no search has been run"):
            question()


def test_a_search_that_the_job_file_no_longer_declares_is_none(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[1.0]), Told(values=[2.0])])
    search = Search(xml=HOPPER, space=SPACE, trials=2, run_dir=paths.root)
    assert ranking.read(paths.root, 2).is_search
    assert len(search.trials()) == len(search.best()) == 2
    with run_directory.opened_ledger(paths) as ledger:
        search_events.withdraw(ledger)
        ledger.commit()
    assert not ranking.read(paths.root, 2).is_search
    for question in (search.trials, search.best, search.to_dataframe):
        with pytest.raises(RunDirError, match="no search has been run"):
            question()


def test_of_plain_jobs_those_that_started_from_another_one_are_told_apart(tmp_path: Path) -> None:
    jobs = [
        Trained(name="parent", case="parent", evaluated=1.0),
        Trained(name="child", case="child", evaluated=2.0, init="job:parent-s0"),
    ]
    paths = make_run_dir(tmp_path / "run", jobs)
    child, parent = best(paths.root)
    steps = parent["env_steps"]
    assert (parent["lineage_env_steps"], parent["parent_jobs"]) == (steps, [])
    assert (child["lineage_env_steps"], child["parent_jobs"]) == (2 * steps, ["parent-s0"])
    shown = commands.invoke("best", paths.root, cwd=tmp_path).stdout
    assert "cannot be compared at equal env_steps" in " ".join(shown.split())
    assert "parent-s0" in shown


def test_plain_jobs_that_began_with_equally_trained_policies_can_be_compared(
    tmp_path: Path,
) -> None:
    jobs = [
        Trained(name="parent", case="parent", evaluated=1.0),
        Trained(name="one", case="one", evaluated=2.0, init="job:parent-s0"),
        Trained(name="other", case="other", evaluated=3.0, init="job:parent-s0"),
    ]
    paths = make_run_dir(tmp_path / "run", jobs)
    children = commands.succeed("best", paths.root, "-n", "2", cwd=tmp_path).stdout
    assert "lineage" in children
    assert "equal env_steps" not in " ".join(children.split())
    with_parent = commands.succeed("best", paths.root, "-n", "3", cwd=tmp_path).stdout
    assert "cannot be compared at equal env_steps" in " ".join(with_parent.split())


def test_before_a_trial_has_finished_there_is_nothing_to_copy(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(reached=[1.0]), Told()], is_over=False)
    assert best(paths.root) == []
    refused = commands.invoke("best", paths.root, "--to", tmp_path / "copy", cwd=tmp_path)
    assert refused.returncode == 2
    assert not (tmp_path / "copy").exists()


def test_what_waits_at_rungs_counts_as_saved(tmp_path: Path) -> None:
    done, goes_on = Told(values=[3.0], reached=[1.0, 2.0]), Told(reached=[2.0], is_promoted=True)
    of_trials = [done, Told(reached=[1.0, 1.0]), Told(reached=[0.0]), goes_on]
    paths = search_run(tmp_path / "run", of_trials, is_over=False)
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        assert reader.update(ledger)
        assert not reader.update(ledger)
    assert [reader.state(trial) for trial in reader.asked] == [
        "finished",
        "waiting",
        "waiting",
        "training",
    ]
    assert reader.rungs == (100, 300, 900)
    assert reader.saved_share == (700 + 900) / 3000


def test_trials_that_are_trained_again_have_no_rungs_and_save_nothing(tmp_path: Path) -> None:
    trials = [Told(values=[3.0], reached=[1.0, 2.0]), Told(reached=[1.0, 1.0])]
    again = Told(values=[4.0], reevaluates=0, point=point_of(0))
    shares = []
    for name, told in (("before", trials), ("after", [*trials, again])):
        paths = search_run(tmp_path / name, told, is_over=False, reevaluate=1)
        reader = TrialReader.of(paths)
        assert reader is not None
        with run_directory.opened_ledger(paths, read_only=True) as ledger:
            reader.update(ledger)
        if told is not trials:  # as with `reevaluate = { n = 1, total_timesteps = 5000 }`
            reader.totals = {**reader.totals, reader.history.trials[2].jobs[0]: 5000}
        assert reader.rungs == (100, 300, 900)
        shares.append(reader.saved_share)
    assert shares == [700 / 2000] * 2


def with_results(paths: RunPaths) -> dict[str, Job]:
    """Put what a training leaves into the directories of the jobs that have succeeded."""
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        jobs = {row.job.job_id: row.job for row in ledger.jobs() if row.state == Succeeded()}
    for job_id, job in jobs.items():
        directory = paths.job(job_id)
        directory.robot.mkdir(parents=True)
        shutil.copy(HOPPER, directory.robot / "hopper.xml")
        directory.spec.write_text(job.spec.to_json())
        for file in (directory.model, directory.vecnormalize, directory.eval):
            file.write_text(job_id)
    return jobs


def test_copies_have_a_job_file_that_trains_the_same(tmp_path: Path) -> None:
    paths = search_run(
        tmp_path / "run", [Told(values=[3.0]), Told(values=[7.0], parent=0)], seeds=[0, 3]
    )
    jobs = with_results(paths)
    commands.succeed("best", paths.root, "-n", "1", "--to", "copy", cwd=tmp_path)
    again = load(tmp_path / "copy/jobs.toml")
    assert [job.job_id for job in again.jobs] == ["hopper-t00001-s0", "hopper-t00001-s3"]
    for job in again.jobs:
        before = jobs[job.job_id]
        assert job.spec.fingerprint() == before.spec.fingerprint()
        assert job.resources == before.resources
        assert job.xml_source == tmp_path / "copy/hopper-t00001-s0/robot/hopper.xml"
        assert (tmp_path / "copy" / job.job_id / "model.zip").read_text() == job.job_id

    refused = commands.invoke("best", paths.root, "--to", "copy", cwd=tmp_path)
    assert refused.returncode == 2
    paths.job("hopper-t00000-s0").model.unlink()
    refused = commands.invoke("best", paths.root, "--to", "other", cwd=tmp_path)
    assert refused.returncode == 2
    assert "hopper-t00000-s0" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_settings_of_every_kind_are_written_into_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Jump:\n    pass\n")
    text = """
name = "all"
[defaults]
task = "mine:Jump"
algo = "sac"
n_envs = 1
checkpoint_every = "90s"
total_timesteps = 5_000
[defaults.sac]
train_freq = [1, "episode"]
action_noise = 0.1
[defaults.policy_kwargs]
net_arch = { pi = [8], qf = [16] }
[defaults.resources]
cores = 2
threads = 1
memory = "3 GiB"
timeout = "1h30min"
min_free_disk = 0
start = "exec"
move = false
[defaults.retry]
max_retries = 5
[[jobs]]
name = "one"
xml = "hopper.xml"
[jobs.model]
"geom.thigh*.size" = "*1.1"
[jobs.randomize]
"body.*.mass" = "scale(0.8, 1.2)"
"""
    shutil.copy(HOPPER, tmp_path / "hopper.xml")
    (tmp_path / "jobs.toml").write_text(text)
    (job,) = load(tmp_path / "jobs.toml").jobs
    paths = RunPaths(tmp_path / "run")
    paths.job("one-s0").robot.mkdir(parents=True)
    shutil.copy(HOPPER, paths.job("one-s0").robot)
    paths.job("one-s0").model.touch()
    paths.job("one-s0").vecnormalize.touch()
    trial = Trial(number=0, point={}, jobs=["one-s0"])
    file = copied_trials.copy(
        paths, [trial], {"one-s0": job}, ["the best"], tmp_path / "copy", "again"
    )
    (again,) = load(file).jobs
    assert again.resources == job.resources
    assert again.max_retries == 5
    assert again.spec.search_path == str(tmp_path / "copy")
    assert (tmp_path / "copy/mine.py").exists()
    kept = (
        "job_id",
        "algo",
        "task",
        "hyperparameters",
        "policy_kwargs",
        "checkpoint_every_s",
        "total_timesteps",
    )
    kept = (*kept, "randomize")
    assert [getattr(again.spec, name) for name in kept] == [
        getattr(job.spec, name) for name in kept
    ]
    assert again.spec.model_edits == {}


def test_without_a_search_jobs_are_compared_by_their_evaluation(tmp_path: Path) -> None:
    rows: list[Any] = []
    jobs = (
        ("a", 1, 0, 5.0),
        ("a", 1, 1, 7.0),
        ("a", 2, 0, 9.0),
        ("a", 2, 1, None),
        ("b", 1, 0, 4.0),
    )
    for name, lr, seed, mean in jobs:
        state = "RUNNING" if mean is None else "SUCCEEDED"
        own = {
            "job_id": f"{name}{lr}-s{seed}",
            "name": name,
            "eval_mean": mean,
            "state": state,
            "env_steps": 10,
        }
        said = {"meta.of": "me", "meta.generation": seed}
        rows.append({**dict.fromkeys(SummaryRow.__annotations__), **own, "ppo.lr": lr, **said})
    found = trials.best(trials.of_plain_jobs(rows), ["maximize"])
    assert [(trial.values, trial.jobs, trial.point) for trial in found] == [
        ([6.0], ["a1-s0", "a1-s1"], {"ppo.lr": 1, "meta.of": "me"}),
        ([4.0], ["b1-s0"], {"ppo.lr": 1, "meta.of": "me", "meta.generation": 0}),
    ]


def measured_bodies(root: Path) -> RunPaths:
    """The body that stands still has the highest return, the other two go far."""
    figures = {
        "still": [(90.0, 0.1, 2.0), (92.0, 0.3, 2.0)],
        "far": [(50.0, 9.0, 90.0), (54.0, 11.0, 110.0)],
        "cheap": [(40.0, 6.0, 30.0), (40.0, 6.0, 30.0)],
    }
    trained = [
        Trained(
            case=name,
            name=name,
            seed=seed,
            evaluated=value,
            measures={"energy_j": energy, "distance_m": distance},
        )
        for name, of_seeds in figures.items()
        for seed, (value, distance, energy) in enumerate(of_seeds)
    ]
    return make_run_dir(root, trained)


def names(found: list[dict[str, Any]]) -> list[str]:
    return [trial["jobs"][0].removesuffix("-s0") for trial in found]


def test_jobs_are_ranked_by_a_measure_or_an_expression_and_shown_with_spread_and_measures(
    tmp_path: Path,
) -> None:
    paths = measured_bodies(tmp_path / "run")
    assert names(best(paths.root)) == ["still", "far", "cheap"]
    far, cheap, still = best(paths.root, "--by", "distance_m")
    assert names([far, cheap, still]) == ["far", "cheap", "still"]
    assert far["values"] == {"distance_m": 10.0}
    assert far["spread"]["distance_m"] == pytest.approx(2**0.5)
    assert list(far["measures"]) == ["distance_m", "energy_j"], "the task's own first"
    by_cost = best(paths.root, "--by", "distance_m / energy_j")
    assert names(by_cost)[0] == "cheap"
    assert names(best(paths.root, "--by", "energy_j", "--smallest"))[0] == "still"
    shown = commands.invoke("best", paths.root, cwd=tmp_path).stdout
    assert "--by distance_m" in shown, "eval_mean is a return"
    shown = commands.invoke("best", paths.root, "--by", "distance_m", cwd=tmp_path).stdout
    assert "by distance_m (largest first)" in shown
    assert "± seeds" in shown
    assert "is a return" not in shown


def test_where_all_have_one_seed_it_is_said_that_luck_has_a_part(tmp_path: Path) -> None:
    for seeds in ([0], [0, 1]):
        paths = search_run(
            tmp_path / str(seeds), [Told(values=[3.0]), Told(values=[5.0])], seeds=seeds
        )
        shown = commands.succeed("best", paths.root, cwd=tmp_path).stdout
        assert (ranking_remarks.ONE_SEED in " ".join(shown.split())) is (len(seeds) == 1)
        alone = commands.succeed("best", paths.root, "-n", 1, cwd=tmp_path).stdout
        assert (ranking_remarks.ONE_SEED in " ".join(alone.split())) is (len(seeds) == 1)
    only = search_run(tmp_path / "only", [Told(values=[3.0])])
    assert "With one seed" not in commands.succeed("best", only.root, cwd=tmp_path).stdout


def test_bodies_without_the_figure_are_counted_and_left_out(tmp_path: Path) -> None:
    jobs = [
        Trained(name="goes", case="goes", evaluated=1.0, measures={"cost_of_transport": 0.4}),
        Trained(name="stands", case="stands", evaluated=9.0),
    ]
    paths = make_run_dir(tmp_path / "run", jobs)
    by = ("--by", "cost_of_transport", "--smallest")
    assert names(best(paths.root, *by)) == ["goes"]
    shown = " ".join(commands.succeed("best", paths.root, *by, cwd=tmp_path).stdout.split())
    assert "2 finished; the best 1 by cost_of_transport" in shown
    assert "1 finished job has no cost_of_transport, and is left out." in shown
    assert "left out" not in commands.succeed("best", paths.root, cwd=tmp_path).stdout


def test_trials_without_jobs_have_no_figure(tmp_path: Path) -> None:
    """Their values did not fit together."""
    outside = {"ppo.learning_rate": -1.0, "policy_kwargs.net_arch": [32, 32]}
    told = [Told(values=[3.0]), Told(why="no legs", point=outside), Told(values=[1.0])]
    paths = search_run(tmp_path / "run", told)
    assert [row["trial"] for row in best(paths.root, "--by", "total_timesteps")] == [0, 2]


def test_where_the_unchanged_job_is_the_best_there_is_no_trial_to_copy(tmp_path: Path) -> None:
    told = [
        Told(values=[3.0]),
        Told(values=[2.0], reevaluates=0, point=point_of(0)),
        Told(values=[9.0], role="reference"),
    ]
    paths = search_run(tmp_path / "run", told)
    copying = ("--to", tmp_path / "copy", "-n", "1")
    refused = commands.invoke("best", paths.root, *copying, cwd=tmp_path)
    assert refused.returncode == 2
    assert "the unchanged job is the best" in refused.stderr


def test_trials_of_a_search_are_ranked_by_another_figure_than_its_objective(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0]), Told(values=[1.0])])
    shown = best(paths.root, "--by", "-total_timesteps")
    assert [row["trial"] for row in shown] == [0, 1], "equal ones in their order"
    assert shown[0]["values"] == {"-total_timesteps": -1000.0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--by", "distanc_m"], "did you mean distance_m?"),
        (["--by", "torque_rms"], "distance_m, "),
        (["--by", "distance_m / (seed - seed)"], "divided by it"),
        (["--by", "distance_m / 0"], "divides by 0, which is always 0"),
        (["--by", "distance_m +"], "is no expression"),
        (["--smallest"], "--by"),
        (["--by", "estimate", "--smallest"], "direction of the objective"),
    ],
)
def test_a_figure_that_no_job_has_is_refused_with_those_that_there_are(
    tmp_path: Path, options: list[str], expected: str
) -> None:
    paths = measured_bodies(tmp_path / "run")
    refused = commands.invoke("best", paths.root, *options, cwd=tmp_path)
    assert refused.returncode == 2
    assert expected in refused.stderr


def test_what_a_program_says_of_its_robots_is_among_the_figures_that_are_suggested(
    tmp_path: Path,
) -> None:
    robots = [
        Trained(case=name, name=name, point={"meta.mass": mass, "meta.family": name})
        for name, mass in (("light", 2.0), ("heavy", 3.0))
    ]
    paths = make_run_dir(tmp_path / "run", robots)
    refused = commands.invoke("best", paths.root, "--by", "meta.mas", cwd=tmp_path)
    assert refused.returncode == 2
    assert "none of the finished jobs has it" in refused.stderr
    assert "did you mean meta.mass?" in refused.stderr
    refused = commands.invoke("best", paths.root, "--by", "meta.family", cwd=tmp_path)
    assert "it is text, and only numbers can be compared" in refused.stderr


@pytest.mark.parametrize("what", ["missing", "no run directory"])
def test_what_is_no_run_directory_is_refused(tmp_path: Path, what: str) -> None:
    if what != "missing":
        (tmp_path / "run").mkdir()
    done = commands.invoke("best", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "run" in done.stderr
