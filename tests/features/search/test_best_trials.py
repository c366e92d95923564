"""``best``: the best trials of a search, with or without rungs, objectives and parents; and copies
of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import HOPPER
from report_helpers import Trained, make_run_dir
from trial_helpers import SPACE, Told, point_of, search_run

from orchestrator import Search, UsageError
from orchestrator.core.job import Job, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.features.search import (
    search_events,
    trials,
)
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import load
from orchestrator.ledger import SummaryRow


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


@pytest.mark.parametrize("is_over", [True, False])
def test_a_search_in_which_no_trial_has_finished_fails_once_it_is_over(
    tmp_path: Path, is_over: bool
) -> None:
    paths = search_run(
        tmp_path / "run", [Told(why="no legs"), Told(reached=[9.0])], is_over=is_over
    )
    shown = commands.invoke("best", paths.root, cwd=tmp_path)
    as_json = commands.invoke("best", paths.root, "--json", cwd=tmp_path)
    assert json.loads(as_json.stdout) == []
    assert [shown.returncode, as_json.returncode] == [int(is_over)] * 2


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


def test_trials_that_were_trained_again_have_jobs_and_env_steps_of_that_training(
    tmp_path: Path,
) -> None:
    again = Told(values=[4.0], reevaluates=1, point=point_of(1))
    trials = [Told(values=[3.0]), Told(values=[8.0]), again]
    paths = search_run(tmp_path / "run", trials, seeds=[0, 1])
    longer = {"values": [4.0], "measures": None, "env_steps": 5000, "why": ""}
    with search_events.writing(paths) as database:
        database.add([SearchEvent(kind="over", trial=2, content=longer)])
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
    paths = search_run(tmp_path / "run", told)
    search = Search(xml=HOPPER, space=SPACE, trials=8, run_dir=paths.root)
    for options, by in (([], None), (["--by", "estimate"], "estimate")):
        shown = [one for one in best(paths.root, "-n", "20", *options) if one["role"] is None]
        found = search.best(20, by=by)
        assert [one.number for one in found] == [one["trial"] for one in shown]
        assert len(found) == len(values)
        for one, facts in zip(found, shown, strict=True):
            assert list(one.values) == list(facts["values"].values())
            assert list(one.in_search) == list((facts["in_search"] or {}).values())
            assert one.lineage_env_steps == facts["lineage_env_steps"]
    with pytest.raises(UsageError):
        search.best(by="speed")


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


@pytest.mark.parametrize(
    "options", [["--by", "distanc_m"], ["--by", "distance_m / (seed - seed)"], ["--smallest"]]
)
def test_a_figure_that_no_job_has_is_refused(tmp_path: Path, options: list[str]) -> None:
    paths = measured_bodies(tmp_path / "run")
    assert commands.invoke("best", paths.root, *options, cwd=tmp_path).returncode == 2
