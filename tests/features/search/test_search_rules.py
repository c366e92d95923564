"""``[search]`` and ``[scheduler]``: what they declare, the jobs of a trial, and every problem at
its place."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, problems

from orchestrator.core.errors import SpecError
from orchestrator.features.search.declaration.declared_search import declaration_of, trial_jobs
from orchestrator.features.search.declaration.spec import ArchiveAxis, Dimension, SchedulerSpec
from orchestrator.jobfile import Experiment, from_mapping

RATE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}}


def searched(
    place: Path, job: dict[str, Any] | None = None, defaults: Any = None, **search: Any
) -> Experiment:
    content = {"space": RATE, "trials": 20, "sampler": "random", **search}
    table = {key: value for key, value in content.items() if value is not None}
    jobs = [{**HOPPER, "task": "forward", **(job or {})}]
    data = {"name": "test", "defaults": defaults or {}, "jobs": jobs, "search": table}
    return from_mapping(data, source="search.toml", base=place)


def space(**dimension: Any) -> dict[str, Any]:
    return {"space": {"ppo.learning_rate": dimension}}


@pytest.mark.parametrize(
    ("search", "where"),
    [
        pytest.param({"trials": None}, "search", id="never ends"),
        pytest.param({"objective": ["eval_mean", "wall_s"]}, "search.objective", id="objectives"),
        pytest.param({"direction": "up"}, "search.direction", id="direction"),
        pytest.param({"sampler": "cma-me"}, "search.measures", id="no measures"),
        pytest.param({"space": {}}, "search.space", id="nothing varies"),
        pytest.param(
            {"space": {"ppo.lr": {"low": 1, "high": 2}}}, 'search.space."ppo.lr"', id="unknown key"
        ),
        pytest.param(space(low=0.2, high=0.1), 'search.space."ppo.learning_rate"', id="range"),
        pytest.param(
            space(low=0.0, high=1, log=True), 'search.space."ppo.learning_rate".log', id="log of 0"
        ),
        pytest.param(
            space(choices=[1, 1]), 'search.space."ppo.learning_rate".choices[1]', id="twice"
        ),
        pytest.param(
            {"scheduler": {"min_env_steps": 200_000}},
            "search.scheduler.min_env_steps",
            id="rung after the end",
        ),
        pytest.param({"order": "fixed", "max_time": "1h"}, "search.order", id="order"),
    ],
)
def test_wrong_search_is_a_problem_at_its_place(
    place: Path, search: dict[str, Any], where: str
) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, **search)
    assert where in [one[0] for one in problems(error)]


def test_search_is_over_one_job(place: Path) -> None:
    data = {
        "name": "t",
        "search": {"space": RATE, "trials": 2, "sampler": "random"},
        "jobs": [HOPPER, {**HOPPER, "name": "b"}],
    }
    with pytest.raises(SpecError):
        from_mapping(data, source="s.toml", base=place)
    for job in ({"matrix": {"n_envs": [4, 8]}}, {"xml": "../mjcf/*.xml"}, {"eval_episodes": 0}):
        with pytest.raises(SpecError):
            searched(place, job)
    of_training = searched(place, {"eval_episodes": 0}, objective="ep_rew_mean")
    assert declaration_of(of_training).search is not None


def test_objectives_are_expressions_of_what_the_task_measures(place: Path) -> None:
    def objectives(text: str, **job: Any) -> tuple[str, ...]:
        table = {"space": RATE, "trials": 20, "sampler": "random", "objective": text}
        jobs = [job or {**HOPPER, "task": "forward"}]
        data = {"name": "test", "jobs": jobs, "search": table}
        declared = declaration_of(from_mapping(data, source="search.toml", base=place)).search
        assert declared is not None
        return declared.objectives

    for text in (
        "distance_m / energy_j",
        "-cost_of_transport",
        "eval_mean - 0.1 * torque_rms",
        "min(distance_m, 3) / (mass_kg + 1)",
        "ep_rew_mean / wall_s",
    ):
        assert objectives(text) == (text,)
    balancer = {"name": "balancer", "xml": "../mjcf/hopper.xml", "task": "balance"}
    with pytest.raises(SpecError):
        objectives("cost_of_transport", **balancer)


def test_sampler_without_its_package_names_the_extra(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"\[search\]"):
        searched(place, sampler="tpe")
    assert declaration_of(searched(place, sampler="random")).search is not None


def test_search_is_resolved_with_all_defaults(place: Path) -> None:
    experiment = searched(
        place,
        {"seeds": [0, 1]},
        sampler="cma-me",
        space={
            "model.geom.thigh.size": {"low": 0.5, "high": 2, "log": True, "multiply": True},
            "ppo.n_epochs": {"low": 2.0, "high": 9.0},
            "ppo.gamma": {"low": 0, "high": 1},
            "task_options.a": {"low": 1, "high": 3},
            "task_options.b": {"low": 1.0, "high": 3.0},
        },
        objective="distance_m",
        max_time="2h",
        measures={
            "ep_rew_mean": {"low": 0, "high": 3, "cells": 4},
            "distance_m": {"low": -1, "high": 1},
        },
        scheduler={"min_env_steps": 20_000},
        trials=None,
    )
    assert experiment.jobs == ()
    search = declaration_of(experiment).search
    assert search is not None
    assert search.space == (
        Dimension(key="model.geom.thigh.size", low=0.5, high=2.0, log=True, multiply=True),
        Dimension(key="ppo.n_epochs", low=2.0, high=9.0, integer=True),
        Dimension(key="ppo.gamma", low=0.0, high=1.0),
        Dimension(key="task_options.a", low=1.0, high=3.0, integer=True),
        Dimension(key="task_options.b", low=1.0, high=3.0),
    )
    assert (search.objectives, search.directions, search.max_time_s) == (
        ("distance_m",),
        ("maximize",),
        7200.0,
    )
    assert search.measures == (
        ArchiveAxis(name="ep_rew_mean", low=0, high=3, cells=4),
        ArchiveAxis(name="distance_m", low=-1, high=1, cells=10),
    )
    assert declaration_of(experiment).scheduler == SchedulerSpec(
        kind="asha", min_env_steps=20_000, factor=3
    )
    assert declaration_of(experiment).scheduler.rungs(200_000) == (20_000, 60_000, 180_000)


def test_jobs_of_a_trial_have_the_values_of_its_point(place: Path) -> None:
    varied = {
        "model.geom.*.size": {"low": 0.5, "high": 2.0, "multiply": True},
        "policy_kwargs.net_arch": {"choices": [[32], [64]]},
    }
    experiment = searched(place, {"seeds": [0, 7]}, space={**RATE, **varied})
    point = {"ppo.learning_rate": 2e-4, "model.geom.*.size": 1.25, "policy_kwargs.net_arch": [64]}
    jobs = trial_jobs(experiment, 12, point)
    assert [job.job_id for job in jobs] == ["hopper-t00012-s0", "hopper-t00012-s7"]
    assert [job.spec.seed for job in trial_jobs(experiment, 12, point, seeds=[3])] == [3]
    spec = jobs[0].spec
    assert (spec.name, jobs[0].point, jobs[0].work == jobs[1].work) == (
        "hopper-t00012",
        point,
        True,
    )
    assert spec.hyperparameters == {"learning_rate": 2e-4}
    assert (spec.model_edits, spec.policy_kwargs) == ({"geom.*.size": "*1.25"}, {"net_arch": [64]})
    assert trial_jobs(experiment, 12, json.loads(json.dumps(point))) == jobs
    assert [job.spec.name for job in experiment.jobs_to_examine] == [
        "hopper-middle",
        "hopper-corner",
    ]
    for wrong in (
        {**point, "ppo.learning_rate": 1.0},
        {**point, "policy_kwargs.net_arch": [16]},
        {"ppo.learning_rate": 2e-4},
    ):
        with pytest.raises(SpecError, match=r"search\.space"):
            trial_jobs(experiment, 12, wrong)


def test_set_does_not_replace_what_the_search_varies(place: Path) -> None:
    data = {
        "name": "t",
        "jobs": [HOPPER],
        "search": {"space": RATE, "trials": 2, "sampler": "random"},
    }
    overrides = {"ppo.learning_rate": 0.5, "n_envs": 4}
    experiment = from_mapping(data, source="s.toml", base=place, overrides=overrides)
    spec = trial_jobs(experiment, 0, {"ppo.learning_rate": 1e-4})[0].spec
    assert (spec.hyperparameters["learning_rate"], spec.n_envs) == (1e-4, 4)


def test_scheduler_without_search_compares_the_declared_jobs(place: Path) -> None:
    data = {"name": "t", "jobs": [HOPPER], "scheduler": {"kind": "median", "min_env_steps": 1e4}}
    experiment = from_mapping(data, source="s.toml", base=place)
    assert (declaration_of(experiment).search, len(experiment.jobs)) == (None, 1)
    assert declaration_of(experiment).scheduler == SchedulerSpec(
        kind="median", min_env_steps=10_000, factor=3
    )
    assert (
        declaration_of(
            from_mapping({**data, "scheduler": {"kind": "none"}}, source="s.toml", base=place)
        ).scheduler
        is None
    )
    both = {
        "search": {
            "space": RATE,
            "trials": 2,
            "sampler": "random",
            "scheduler": {"min_env_steps": 9},
        }
    }
    with pytest.raises(SpecError):
        from_mapping({**data, **both}, source="s.toml", base=place)


@pytest.mark.parametrize("by", ["distance_m /", "eval_mean", "height_m"])
def test_what_is_not_known_at_a_rung_cannot_be_compared_there(by: str, place: Path) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, scheduler={"min_env_steps": 9000, "by": by})
    assert "search.scheduler.by" in [one[0] for one in problems(error)]


def test_what_a_search_does_at_most_is_told_before_it_begins(place: Path) -> None:
    experiment = searched(
        place, {"seeds": [0, 1]}, reevaluate=5, scheduler={"min_env_steps": 50_000, "factor": 2}
    )
    limits = declaration_of(experiment).limits(experiment)
    assert limits is not None
    assert (limits.trials, limits.jobs, limits.env_steps) == (20, 50, 10_000_000)
    until_spent = searched(place, max_env_steps=10**6, trials=None, max_time="1h")
    assert most(until_spent) == (None, None, 10**6)
    assert most(searched(place, trials=3, reevaluate=10)) == (3, 6, 6 * 200_000)


def most(experiment: Experiment) -> tuple[int | None, ...]:
    """Trials, jobs and env_steps that its search has at most."""
    limits = declaration_of(experiment).limits(experiment)
    return limits.trials, limits.jobs, limits.env_steps
