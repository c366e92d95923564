"""``run`` with every kind of sampler and scheduler, with bodies that are all the same, and without
a value."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import HOPPER, INSTANT, TINY, give, invoke, succeed

from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import search_events, search_time
from orchestrator.features.search.history import History
from orchestrator.features.search.search_events import SearchEvent

RATE = {"low": 1e-4, "high": 1e-2, "log": True}
OF_RATE = INSTANT.replace(
    "1.0}", '-abs(json.loads((job / "spec.json").read_text())["hyperparameters"]["gamma"] - 0.95)}'
)
"""A worker whose return depends on ``ppo.gamma`` alone."""
OWN = """
class Own:
    def __init__(self, space, seed, directions):
        self.space, self.values = space, []

    def ask(self, number):
        return self.space.decode([0.1 + 0.2 * number] * 2)

    def tell(self, number, point, outcome):
        self.values.append(outcome.values)
"""
AXES = {"measures": {"ep_rew_mean": {"low": -0.1, "high": 0, "cells": 4}}}
KINDS: dict[str, dict[str, Any]] = {
    "tpe": {"sampler_options": {"n_startup_trials": 2}},
    "gp": {"sampler_options": {"n_startup_trials": 2}},
    "cmaes": {"sampler_options": {"population_size": 3}},
    "nsga2": {"objective": ["ep_rew_mean", "wall_s"], "direction": ["maximize", "minimize"]},
    "map-elites": {**AXES, "sampler_options": {"initial": 2}},
    "cma-me": {**AXES, "sampler_options": {"population_size": 3}},
    "own:Own": {},
}


def searched(
    folder: Path, job: Mapping[str, Any], search: Mapping[str, Any], defaults: str = TINY
) -> Path:
    tables = [
        ("[[jobs]]", {"name": "one", "task": "forward", "seeds": [0], **job}),
        ("[search]", search),
    ]
    top = 'name = "kinds"\nmax_parallel = 2\n'
    path = folder / "jobs.toml"
    path.write_text(f"{top}{defaults}\n{commands.toml_tables(tables)}\n")
    return path


def history_of(run_dir: Path) -> tuple[History, list[SearchEvent]]:
    paths, history = RunPaths(run_dir), History()
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        events = search_events.events(ledger)
    for event in events:
        history.apply(event)
    return history, events


def values_of(history: History) -> list[Sequence[float] | None]:
    return [trial.values for trial in history.trials]


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", KINDS)
def test_every_sampler_is_asked_and_told_by_a_search(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "instant.py").write_text(OF_RATE)
    (tmp_path / "own.py").write_text(OWN)
    space = {"ppo.gamma": {"low": 0.9, "high": 1.0}, "ppo.learning_rate": RATE}
    search = {
        "sampler": sampler,
        "trials": 6,
        "objective": "ep_rew_mean",
        **KINDS[sampler],
        "space": space,
    }
    jobs = searched(tmp_path, {"xml": HOPPER}, search, f'{TINY}start = "exec"')
    succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    history, events = history_of(tmp_path / "run")
    assert history.is_over
    assert Counter(event.kind for event in events) == {
        "began": 1,
        "asked": 6,
        "over": 6,
        "told": 6,
        "ended": 1,
    }
    points = [trial.point for trial in history.trials]
    assert len({tuple(point.values()) for point in points}) == 6
    firsts = [value[0] for value in values_of(history) if value]
    assert firsts == pytest.approx([-abs(point["ppo.gamma"] - 0.95) for point in points])
    best = json.loads(invoke("best", "run", "--json", cwd=tmp_path).stdout)
    assert max(firsts) in [trial["values"]["ep_rew_mean"] for trial in best]


@pytest.mark.nightly
def test_by_the_median_half_go_on_and_the_best_are_trained_again_from_nothing(
    tmp_path: Path,
) -> None:
    rungs = {"kind": "median", "min_env_steps": 128, "factor": 4}
    search = {
        "sampler": "random",
        "trials": 9,
        "objective": "ep_rew_mean",
        "reevaluate": 2,
        "start": "best",
    }
    search |= {"scheduler": rungs, "space": {"ppo.learning_rate": RATE}}
    jobs = searched(tmp_path, {"xml": HOPPER}, search)
    done = give("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    history, events = history_of(tmp_path / "run")
    promoted = {event.trial for event in events if event.kind == "promoted"}
    before: list[float] = []
    for event in (event for event in events if event.kind == "reached"):
        value = event.content["value"]
        assert (event.trial in promoted) == (len(before) < 5 or value >= statistics.median(before))
        before.append(value)
    assert len(before) == 9
    rows = commands.summary(tmp_path / "run")
    stopped = [trial for trial in history.asked if trial.number not in promoted]
    assert {
        (rows[trial.jobs[0]]["state"], rows[trial.jobs[0]]["env_steps"]) for trial in stopped
    } <= {("PAUSED", 128)}

    ranked = sorted(
        (trial for trial in history.asked if trial.values), key=lambda trial: -trial.values[0]
    )  # type: ignore[index]
    again = history.trials[9:]
    assert [trial.reevaluates for trial in again] == [trial.number for trial in ranked[:2]]
    for trial in again:
        spec = WorkerSpec.from_json((tmp_path / f"run/jobs/{trial.jobs[0]}/spec.json").read_text())
        assert (spec.seed, spec.init, spec.pause_at, rows[trial.jobs[0]]["env_steps"]) == (
            1000,
            None,
            None,
            512,
        )
        assert trial.point == history.trials[trial.reevaluates or 0].point
    best = json.loads(invoke("best", "run", "-n", "2", "--json", cwd=tmp_path).stdout)
    values = sorted((trial.values[0] for trial in again if trial.values), reverse=True)
    assert [trial["again"]["ep_rew_mean"] for trial in best] == values


@pytest.mark.nightly
def test_more_time_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    search = {
        "sampler": "random",
        "max_time": "1s",
        "objective": "ep_rew_mean",
        "space": {"ppo.learning_rate": RATE},
    }
    jobs = searched(tmp_path, {"xml": HOPPER}, search, f'{TINY}start = "exec"')
    points: list[Mapping[str, Any]] = []
    text, limit_s = jobs.read_text(), 1
    for _ in range(2):
        jobs.write_text(text.replace('"1s"', f'"{limit_s}s"'))
        succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
        history, _ = history_of(tmp_path / "run")
        assert history.is_over
        assert history.elapsed_s >= limit_s
        with run_directory.opened_ledger(RunPaths(tmp_path / "run"), read_only=True) as ledger:
            spent = search_time.spent_budget(ledger)
        assert (spent.trials, spent.elapsed_s) == (
            len(history.trials),
            pytest.approx(history.elapsed_s),
        )
        before, points = points, [trial.point for trial in history.trials]
        assert len(points) > len(before)
        assert points[: len(before)] == before
        assert values_of(history) == [[1.0]] * len(points)
        limit_s = math.ceil(history.elapsed_s) + 2  # what one trial takes depends on the machine
    assert invoke("run", jobs, "--run-dir", "run", cwd=tmp_path).returncode == 0
    assert len(history_of(tmp_path / "run")[0].trials) == len(points), "its time is spent"


SAME = f"""
import shutil
def make(params, folder):
    return shutil.copy({str(HOPPER)!r}, folder / "hopper.xml")
"""


@pytest.mark.nightly
def test_a_function_that_makes_the_same_body_for_every_point_makes_equal_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "bodies.py").write_text(SAME)
    search = {
        "sampler": "cmaes",
        "trials": 6,
        "objective": "ep_rew_mean",
        "sampler_options": {"population_size": 3},
    }
    search |= {"space": {"params.length": {"low": 0.5, "high": 1.5}}}
    jobs = searched(tmp_path, {"xml": "bodies:make"}, search, f'{TINY}start = "exec"')
    succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    history, _ = history_of(tmp_path / "run")
    assert values_of(history) == [[1.0]] * 6
    assert len({trial.point["params.length"] for trial in history.trials}) == 6
    paths = RunPaths(tmp_path / "run")
    assert len({paths.job(trial.jobs[0]).robot_hash.read_text() for trial in history.trials}) == 1
    assert len({trial.jobs[0] for trial in history.trials}) == 6


@pytest.mark.nightly
@pytest.mark.parametrize("trials", [3, 30])
def test_an_objective_without_a_value_in_every_job_is_the_reason_of_every_trial(
    trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "instant.py").write_text(INSTANT.replace("1.0}", "None}"))
    search = {
        "sampler": "random",
        "trials": trials,
        "objective": "ep_rew_mean",
        "space": {"ppo.learning_rate": RATE},
    }
    jobs = searched(tmp_path, {"xml": HOPPER}, search, f'{TINY}start = "exec"')
    done = invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    history, _ = history_of(tmp_path / "run")
    why = "ep_rew_mean has no value"
    assert all(
        trial.why.startswith(why) and trial.values is None for trial in history.failed.values()
    )
    assert not any("started_at" in trial.why for trial in history.failed.values())
    assert len(history.failed) >= min(trials, 20)
    if trials > 20:
        assert re.search(
            r"the last 2\d trials have failed, \d+ of them as this one: ", done.stdout + done.stderr
        )
        assert why in done.stdout + done.stderr
        assert done.returncode == 1
    else:
        assert "3 failed" in done.stdout
    best = invoke("best", "run", cwd=tmp_path)
    end = "." if trials == 3 else " yet."
    assert best.stdout.startswith(
        f"None of the {len(history.trials)} trials of run has finished{end}\n"
    )
    assert why in best.stdout
    assert best.returncode == (1 if trials == 3 else 0), "a search that was given up can go on"


@pytest.mark.nightly
def test_a_sampler_that_has_come_to_propose_nothing_that_trains_does_not_go_on_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    outside = "[0.5] * 2) | ({'ppo.gamma': 0.5} if number >= 3 else {})"
    (tmp_path / "stuck.py").write_text(OWN.replace("[0.1 + 0.2 * number] * 2)", outside))
    search = {"sampler": "stuck:Own", "max_env_steps": 10**9, "objective": "ep_rew_mean"}
    search |= {"space": {"ppo.learning_rate": RATE, "ppo.gamma": {"low": 0.9, "high": 0.99}}}
    jobs = searched(tmp_path, {"xml": HOPPER}, search, f'{TINY}start = "exec"')
    done = invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert re.search(
        r"the last 1000 trials have failed, 1000 of them as this one: ", done.stdout + done.stderr
    )
    history, _ = history_of(tmp_path / "run")
    assert values_of(history)[:4] == [[1.0]] * 3 + [None]
