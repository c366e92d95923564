"""``[search]`` and ``[scheduler]``: what they declare, the jobs of a trial, and every problem at
its place."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from jobfile_helpers import HOPPER, problems, schema_validator

from orchestrator.core.errors import SpecError
from orchestrator.features.search.declaration.declared_search import declaration_of, trial_jobs
from orchestrator.features.search.declaration.rules import COLUMNS
from orchestrator.features.search.declaration.spec import ArchiveAxis, Dimension, SchedulerSpec
from orchestrator.jobfile import Experiment, from_mapping, json_schema
from orchestrator.ledger import SummaryRow

RATE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}}
GRIDDED = {"sampler": "map-elites", "measures": {"distance_m": {"low": 0, "high": 10}}}
MADE = {"name": "made", "xml": "bodies:make", "task": "forward"}
PARAMS = {"params.legs": {"low": 3, "high": 6}}


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


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    # claim, [search] laid over one that is valid, place, message
    (
        "nothing varies",
        {"space": {}},
        "search.space",
        'nothing varies; add for example "ppo.learning_rate"',
    ),
    (
        "no space",
        {"space": None},
        "search.space",
        'missing; add for example space = { "ppo.learning_rate" = {',
    ),
    (
        "never ends",
        {"trials": None},
        "search",
        "set trials, max_env_steps or max_time, for example trials = 200",
    ),
    ("no trials", {"trials": 0}, "search.trials", "expected a whole number from 1"),
    (
        "no env_steps",
        {"trials": None, "max_env_steps": 0},
        "search.max_env_steps",
        "expected a whole number from 1",
    ),
    (
        "no time",
        {"trials": None, "max_time": "0s"},
        "search.max_time",
        "expected a duration above 0",
    ),
    (
        "equal ends",
        space(low=1e-3, high=1e-3),
        'search.space."ppo.learning_rate"',
        "low = 0.001 is not below high",
    ),
    ("unknown key", {"sampeler": "tpe"}, "search.sampeler", 'unknown key; did you mean "sampler"?'),
    (
        "key of the job",
        {"n_envs": 4},
        "search.n_envs",
        "unknown key here; it belongs to the job itself",
    ),
    (
        "unknown sampler",
        {"sampler": "cma-es", "trials": 0},
        "search.sampler",
        'unknown sampler "cma-es"; did you mean "cmaes"?',
    ),
    (
        "nothing like it",
        {"sampler": "zzz"},
        "search.sampler",
        "expected random, sobol, tpe, gp, cmaes, nsga2",
    ),
    (
        "unknown option",
        {"sampler_options": {"sigma": 1}},
        "search.sampler_options.sigma",
        "random has none",
    ),
    (
        "misspelt option",
        {"sampler": "cmaes", "sampler_options": {"sigmas": 1}},
        "search.sampler_options.sigmas",
        'unknown option; did you mean "sigma"?',
    ),
    (
        "option of another type",
        {"sampler": "cmaes", "sampler_options": {"population_size": 2.5}},
        "search.sampler_options.population_size",
        "expected a whole number from 3 to 1_000_000, found 2.5",
    ),
    (
        "option that is no switch",
        {"sampler": "cmaes", "sampler_options": {"lr_adapt": 1}},
        "search.sampler_options.lr_adapt",
        "expected true or false, found 1",
    ),
    (
        "unknown objective",
        {"objective": "eval_mena"},
        "search.objective",
        'did you mean "eval_mean"?',
    ),
    (
        "measure of another task",
        {"objective": "height_m"},
        "search.objective",
        'no measure of the task "forward"',
    ),
    (
        "number as objective",
        {"objective": 3},
        "search.objective",
        "expected a column, a measure or an expression of them, or a list",
    ),
    (
        "unknown name in an expression",
        {"objective": "distance_m / enery_j"},
        "search.objective",
        '"enery_j" in "distance_m / enery_j" is no column of summary.csv with a result, and no '
        'measure of the task "forward"; did you mean "energy_j"?',
    ),
    (
        "no expression",
        {"objective": "distance_m / (energy_j"},
        "search.objective",
        '"distance_m / (energy_j" is no expression; expected names of measures, numbers',
    ),
    (
        "expression of Python",
        {"objective": "distance_m ** 2"},
        "search.objective",
        '"distance_m ** 2" contains distance_m ** 2, which has no meaning here',
    ),
    (
        "expression of numbers",
        {"objective": "1 + 2"},
        "search.objective",
        '"1 + 2" names no measure',
    ),
    (
        "unknown name in the expression of an axis",
        {**GRIDDED, "measures": {"energy_j / mas_kg": {"low": 0, "high": 1}}},
        'search.measures."energy_j / mas_kg"',
        'did you mean "mass_kg"?',
    ),
    (
        "several objectives",
        {"objective": ["eval_mean", "wall_s"]},
        "search.objective",
        "random optimises one objective",
    ),
    (
        "the same objective twice",
        {"objective": ["wall_s", "wall_s"], "sampler": "nsga2"},
        "search.objective",
        '"wall_s" is there twice',
    ),
    (
        "unknown direction",
        {"direction": "up"},
        "search.direction",
        'expected "maximize" or "minimize"',
    ),
    (
        "too many directions",
        {"direction": ["maximize", "minimize"]},
        "search.direction",
        "there are 2 directions for 1 objectives; expected one, or one for each",
    ),
    (
        "unknown aggregate",
        {"aggregate": "max"},
        "search.aggregate",
        'expected one of "median", "mean", "min"',
    ),
    (
        "unknown order",
        {"order": "strict"},
        "search.order",
        'expected one of "asynchronous", "fixed"',
    ),
    (
        "unknown parent",
        {"inherit": "last"},
        "search.inherit",
        'expected one of "none", "best", "nearest"',
    ),
    (
        "no measures",
        {"sampler": "cma-me"},
        "search.measures",
        "missing: cma-me fills an archive; name its axes",
    ),
    (
        "measures of no archive",
        {"measures": GRIDDED["measures"]},
        "search.measures",
        "are for map-elites and cma-me",
    ),
    (
        "unknown measure",
        {**GRIDDED, "measures": {"distance": {"low": 0, "high": 1}}},
        "search.measures.distance",
        'did you mean "distance_m"?',
    ),
    (
        "empty axis",
        {**GRIDDED, "measures": {"distance_m": {"low": 1, "high": 1}}},
        "search.measures.distance_m",
        "low = 1 is not below high = 1",
    ),
    (
        "axis without end",
        {**GRIDDED, "measures": {"distance_m": {"low": 1}}},
        "search.measures.distance_m.high",
        "missing",
    ),
    ("no dimension", {"space": {"n_envs": 8}}, "search.space.n_envs", "expected a table, found 8"),
    (
        "unknown key",
        {"space": {"ppo.lr": {"low": 1, "high": 2}}},
        'search.space."ppo.lr"',
        'mean "learning_rate"?',
    ),
    (
        "whole table",
        {"space": {"ppo": {"low": 1, "high": 2}}},
        "search.space.ppo",
        "expected a single key of the table",
    ),
    (
        "seeds",
        {"space": {"seeds": {"choices": [[0], [1]]}}},
        "search.space.seeds",
        "every trial has a job for each seed",
    ),
    (
        "robots",
        {"space": {"xml": {"choices": ["a", "b"]}}},
        "search.space.xml",
        'xml = "module:function"',
    ),
    (
        "too deep",
        {"space": {"n_envs.a": {"low": 1, "high": 2}}},
        'search.space."n_envs.a"',
        "no keys below n_envs",
    ),
    (
        "no end",
        space(low=1),
        'search.space."ppo.learning_rate"',
        "high is missing: expected { low = …, high = … }",
    ),
    ("nothing", space(), 'search.space."ppo.learning_rate"', "low and high are missing"),
    (
        "empty range",
        space(low=0.2, high=0.1),
        'search.space."ppo.learning_rate"',
        "low = 0.2 is not below high = 0.1",
    ),
    (
        "log of zero",
        space(low=0.0, high=1, log=True),
        'search.space."ppo.learning_rate".log',
        "needs low above 0",
    ),
    (
        "too low",
        space(low=-1, high=1),
        'search.space."ppo.learning_rate".low',
        "expected a number above 0",
    ),
    (
        "text",
        space(low="a", high=1),
        'search.space."ppo.learning_rate".low',
        "expected a number from",
    ),
    (
        "factor",
        space(low=1, high=2, multiply=True),
        'search.space."ppo.learning_rate".multiply',
        "for keys of model",
    ),
    (
        "unknown",
        space(low=1, high=2, lgo=True),
        'search.space."ppo.learning_rate".lgo',
        'did you mean "log"?',
    ),
    (
        "one choice",
        space(choices=[1]),
        'search.space."ppo.learning_rate".choices',
        "a list of at least two values",
    ),
    (
        "choice twice",
        space(choices=[1, 1]),
        'search.space."ppo.learning_rate".choices[1]',
        "earlier in the list",
    ),
    (
        "too many orders of magnitude",
        space(low=5e-324, high=1, log=True),
        'search.space."ppo.learning_rate"',
        "low = 5e-324 and high = 1 are too far apart to be computed with; raise low",
    ),
    (
        "choice twice, spelt otherwise",
        {"space": {"ppo.ent_coef": {"choices": [0, 0.0]}}},
        'search.space."ppo.ent_coef".choices[1]',
        "earlier in the list",
    ),
    (
        "both",
        space(choices=[1, 2], low=1),
        'search.space."ppo.learning_rate"',
        "choices and low exclude each other",
    ),
    (
        "wrong choice",
        {"space": {"policy_kwargs.net_arch": {"choices": [[64], "wide"]}}},
        'search.space."policy_kwargs.net_arch".choices[1]',
        'found the text "wide"',
    ),
    (
        "choices without numbers",
        {"sampler": "cmaes", "space": {"policy_kwargs.net_arch": {"choices": [[64], [32]]}}},
        'search.space."policy_kwargs.net_arch".choices',
        "cmaes needs numbers in every dimension; use tpe, nsga2, random or sobol",
    ),
    (
        "exclude each other",
        {
            "space": {
                "task": {"choices": ["forward", "stand"]},
                "env": {"choices": ["A-v1", "B-v1"]},
            }
        },
        "search.space.env",
        "env and task exclude each other",
    ),
    (
        "values that do not fit together",
        {
            "space": {
                "ppo.batch_size": {"low": 63, "high": 65},
                "ppo.n_steps": {"low": 1000, "high": 1002},
            }
        },
        'search.space."ppo.batch_size"',
        "is not divisible by batch_size = 64",
    ),
    (
        "parameters of a file",
        {"space": {"params.legs": {"low": 3, "high": 6}}},
        'search.space."params.legs"',
        'is for a function that makes the robot, xml = "module:function"',
    ),
    (
        "no first rung",
        {"scheduler": {}},
        "search.scheduler.min_env_steps",
        "missing; add for example",
    ),
    (
        "factor 1",
        {"scheduler": {"min_env_steps": 9, "factor": 1}},
        "search.scheduler.factor",
        "from 2 to",
    ),
    (
        "kind",
        {"scheduler": {"kind": "hyperband"}},
        "search.scheduler.kind",
        'expected one of "none", "asha", "median"',
    ),
    (
        "rung after the end",
        {"scheduler": {"min_env_steps": 200_000}},
        "search.scheduler.min_env_steps",
        "is not below total_timesteps = 200_000",
    ),
    (
        "trials of different lengths",
        {
            "space": {"total_timesteps": {"low": 10_000, "high": 90_000}},
            "scheduler": {"min_env_steps": 5_000},
        },
        "search.scheduler",
        "trials of different total_timesteps cannot be compared",
    ),
    (
        "presets of different lengths",
        {
            "space": {"preset": {"choices": ["quick", "thorough"]}},
            "scheduler": {"min_env_steps": 5_000},
        },
        "search.scheduler",
        "presets in the space have different total_timesteps, and such trials cannot be compared; set total_timesteps",
    ),
    (
        "fixed order for a time",
        {"order": "fixed", "max_time": "1h"},
        "search.order",
        "set trials alone",
    ),
    (
        "fixed order, env_steps",
        {"order": "fixed", "max_env_steps": 9},
        "search.order",
        "set trials alone",
    ),
]


@pytest.mark.parametrize(
    ("search", "where", "message"), [pytest.param(*case[1:], id=case[0]) for case in BAD]
)
def test_wrong_search_is_a_problem_at_its_place(
    place: Path, search: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, **search)
    assert [one for one in problems(error) if one[0] == where and message in one[1]], problems(
        error
    )
    assert len(problems(error)) <= 2


def test_search_is_over_one_job(place: Path) -> None:
    data = {
        "name": "t",
        "search": {"space": RATE, "trials": 2, "sampler": "random"},
        "jobs": [HOPPER, {**HOPPER, "name": "b"}],
    }
    with pytest.raises(
        SpecError, match=r"search: varies the keys of one job, and there are 2 \[\[jobs\]\] tables"
    ):
        from_mapping(data, source="s.toml", base=place)
    with pytest.raises(
        SpecError,
        match=r"jobs\[0\].matrix: a search has no matrix: its keys belong in search.space",
    ):
        searched(place, {"matrix": {"n_envs": [4, 8]}})
    with pytest.raises(SpecError, match=r"jobs\[0\].xml: a search varies one robot"):
        searched(place, {"xml": "../mjcf/*.xml"})
    with pytest.raises(SpecError, match="eval_episodes is 0"):
        searched(place, {"eval_episodes": 0})
    with pytest.raises(SpecError, match='"energy_j" is known from an evaluation'):
        searched(place, {"eval_episodes": 0}, objective="ep_rew_mean / energy_j")
    assert (
        declaration_of(searched(place, {"eval_episodes": 0}, objective="ep_rew_mean")).search
        is not None
    )


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
    own = {"name": "own", "entry_point": "mine:make"}
    with pytest.raises(SpecError, match=r'"speed / " is no expression'):
        objectives("speed / ", **own)
    assert objectives("mean speed", **own) == ("mean speed",)
    balancer = {"name": "balancer", "xml": "../mjcf/hopper.xml", "task": "balance"}
    with pytest.raises(
        SpecError,
        match='"cost_of_transport" has no value in the task "balance", which does not travel; '
        "there are eval_mean",
    ):
        objectives("cost_of_transport", **balancer)
    assert objectives("eval_mean / energy_j", **balancer) == ("eval_mean / energy_j",)


@pytest.mark.parametrize(
    ("sampler", "package"),
    [("sobol", "scipy"), ("tpe", "optuna"), ("cmaes", "cmaes"), ("cma-me", "ribs")],
)
def test_sampler_without_its_package_names_the_extra(
    place: Path, sampler: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    measures = GRIDDED["measures"] if sampler == "cma-me" else None
    with pytest.raises(
        SpecError, match=rf'"{sampler}" needs the package {package}.*pip install .*\[search\]'
    ):
        searched(place, sampler=sampler, measures=measures)
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


def test_whole_numbers_among_choices_are_so_in_sentences_and_points(place: Path) -> None:
    space = {
        "total_timesteps": {"choices": [5e4, 1e5]},
        "checkpoint_every": {"choices": ["2s", 1000]},
    }
    experiment = searched(place, space=space, scheduler=None)
    source = declaration_of(experiment)
    assert source.search is not None
    total, checkpoints = source.search.space
    assert [(type(choice), choice) for choice in total.choices] == [(int, 50_000), (int, 100_000)]
    assert checkpoints.choices == ("2s", 1000)
    lines = " ".join(source.lines(experiment))
    assert "20 jobs and 2,000,000 env_steps" in lines
    assert "total_timesteps 50000 or 100000" in lines


def test_numbers_of_numpy_are_numbers_in_the_declaration(place: Path) -> None:
    varied = {
        "ppo.n_epochs": {"choices": list(np.array([1, 2]))},
        "ppo.gamma": {"low": np.float32(0.5), "high": np.float64(0.9)},
    }
    experiment = searched(
        place, {"total_timesteps": np.int64(20_480)}, space=varied, trials=np.int64(3)
    )
    data = experiment.declaration["data"]
    assert data["search"]["space"] == {
        "ppo.n_epochs": {"choices": [1, 2]},
        "ppo.gamma": {"low": 0.5, "high": 0.9},
    }
    assert (data["search"]["trials"], data["jobs"][0]["total_timesteps"]) == (3, 20_480)
    assert (
        declaration_of(from_mapping(data, source="again.toml", base=place)).search
        == declaration_of(experiment).search
    )


def test_classes_of_a_python_program_are_no_choices(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, space={"policy_kwargs.activation_fn": {"choices": [int, float]}})
    assert 'choices[0]: expected one of "tanh", "relu"' in str(error.value)


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
    assert any(
        "--set ppo.learning_rate has no effect" in warning for warning in experiment.warnings
    )


def test_robot_of_a_function_has_its_parameters_and_its_own_fingerprint(place: Path) -> None:
    def job(**changes: Any) -> Any:
        data = {"name": "t", "jobs": [{**MADE, "params": {"legs": 4, "thigh_m": 0.5}, **changes}]}
        return from_mapping(data, source="s.toml", base=place).jobs[0]

    made = job()
    assert (made.spec.robot_maker, made.spec.params) == ("bodies:make", {"legs": 4, "thigh_m": 0.5})
    assert (made.xml_source, made.folder, made.spec.search_path) == (None, place, None)
    assert job(params={"legs": 5}).spec.fingerprint() != made.spec.fingerprint()
    variants = from_mapping(
        {"name": "t", "jobs": [{**MADE, "matrix": {"params.legs": [3, 5]}}]},
        source="s.toml",
        base=place,
    ).jobs
    assert [(one.job_id, one.spec.params) for one in variants] == [
        ("made-legs3-s0", {"legs": 3}),
        ("made-legs5-s0", {"legs": 5}),
    ]


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
    with pytest.raises(SpecError, match=r"scheduler: is there twice; keep \[search.scheduler\]"):
        from_mapping({**data, **both}, source="s.toml", base=place)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("distance_m /", '"distance_m /" is no expression'),
        ("eval_mean", '"eval_mean" is not known at a rung; there are ep_rew_mean and measures'),
        ("distance_m / wall_s", '"wall_s" is not known at a rung'),
        ("distance_m / enery_j", '"enery_j" in "distance_m / enery_j" .* mean "energy_j"'),
        ("height_m", '"height_m" is no column .* no measure of the task "forward"'),
    ],
)
def test_what_is_not_known_at_a_rung_cannot_be_compared_there(
    by: str, message: str, place: Path
) -> None:
    rungs = {"min_env_steps": 9000, "by": by}
    with pytest.raises(SpecError, match=rf"search\.scheduler\.by: {message}"):
        searched(place, scheduler=rungs)
    data = {"name": "t", "jobs": [{**HOPPER, "task": "forward"}], "scheduler": rungs}
    with pytest.raises(SpecError, match=rf"scheduler\.by: {message}"):
        from_mapping(data, source="s.toml", base=place)


def test_rungs_compare_by_measures_of_training_and_by_the_return(place: Path) -> None:
    for by, is_measured in (("ep_rew_mean", False), ("-ep_rew_mean / energy_j", True)):
        rungs = {"min_env_steps": 9000, "by": by}
        scheduler = declaration_of(searched(place, scheduler=rungs)).scheduler
        assert scheduler is not None
        assert (scheduler.by, scheduler.measures_training) == (by, is_measured)


@pytest.mark.parametrize("link", [{"after": ["hopper"]}, {"init": "job:hopper"}])
def test_jobs_that_wait_for_others_are_not_compared_at_rungs(
    place: Path, link: dict[str, Any]
) -> None:
    """Until their parents have ended they cannot come to a rung, and a parent at a rung has not
    ended."""
    data = {"name": "t", "jobs": [{**HOPPER, "name": "hopper"}, {**HOPPER, "name": "next", **link}]}
    assert len(from_mapping(data, source="s.toml", base=place).jobs) == 2
    with pytest.raises(
        SpecError, match=r"jobs\[1\]: next-s0 waits for other jobs, .* leave out after and init"
    ):
        from_mapping({**data, "scheduler": {"min_env_steps": 1e4}}, source="s.toml", base=place)


def test_rungs_that_compare_jobs_with_and_without_a_policy_are_a_warning(place: Path) -> None:
    (place / "model.zip").touch()
    rungs = {"min_env_steps": 20_000}

    def warnings(*starts: str, **search: Any) -> Sequence[str]:
        jobs = [
            {**HOPPER, "name": f"hopper{number}", "init": start}
            for number, start in enumerate(starts)
        ]
        table = {"search": search} if search else {"scheduler": rungs}
        data = {"name": "t", "jobs": jobs, **table}
        return from_mapping(data, source="s.toml", base=place).warnings

    (warning,) = warnings("none", "model.zip")
    assert warning.startswith(
        "scheduler: some jobs begin with a policy (init) and others with none"
    )
    assert "leave [scheduler] out" in warning
    assert warnings("none", "none") == warnings("model.zip", "model.zip") == ()
    varied = {
        "sampler": "random",
        "trials": 4,
        "space": {"init": {"choices": ["none", "model.zip"]}},
    }
    (warning,) = warnings("none", **varied, scheduler=rungs)
    assert warning.startswith("search.scheduler: some jobs begin with a policy")
    assert warnings("none", **varied) == ()


def test_what_a_search_does_at_most_is_told_before_it_begins(place: Path) -> None:
    experiment = searched(
        place, {"seeds": [0, 1]}, reevaluate=5, scheduler={"min_env_steps": 50_000, "factor": 2}
    )
    limits = declaration_of(experiment).limits(experiment)
    assert limits is not None
    assert (limits.trials, limits.jobs, limits.env_steps) == (20, 50, 10_000_000)
    text = "\n".join(declaration_of(experiment).lines(experiment))
    assert all(
        fact in text
        for fact in (
            "20 trials",
            "50 jobs",
            "10,000,000 env_steps",
            "50,000 and 100,000",
            "eval_mean",
        )
    )
    until_spent = searched(place, max_env_steps=10**6, trials=None, max_time="1h")
    assert most(until_spent) == (None, None, 10**6)
    assert "at most" not in declaration_of(until_spent).lines(until_spent)[0]
    ends = "no further trial is asked for after 1,000,000 env_steps or 1:00:00, but what is queued or runs then"
    assert ends in declaration_of(until_spent).lines(until_spent)[0]
    repeated = searched(place, trials=3, reevaluate=10)
    assert most(repeated) == (3, 6, 6 * 200_000)
    assert (
        "at most 3 trials, 6 jobs and 1,200,000 env_steps"
        in declaration_of(repeated).lines(repeated)[0]
    )


def most(experiment: Experiment) -> tuple[int | None, ...]:
    """Trials, jobs and env_steps that its search has at most."""
    limits = declaration_of(experiment).limits(experiment)
    return limits.trials, limits.jobs, limits.env_steps


def test_presets_in_the_space_count_as_the_longest_and_are_compared_where_all_have_one_length(
    place: Path,
) -> None:
    presets = {"space": {"preset": {"choices": ["quick", "thorough", "standard"]}}}

    def limits(job: dict[str, Any], **search: Any) -> tuple[int | None, ...]:
        table = {**presets, "trials": 20, "sampler": "random", **search}
        data = {"name": "t", "jobs": [{"name": "a", "env": "Hopper-v5", **job}], "search": table}
        experiment = from_mapping(data, source="s.toml", base=place)
        return most(experiment)

    assert limits({}) == (20, 20, 20 * 1_024_000)
    same = limits({"total_timesteps": 10_240}, scheduler={"min_env_steps": 5_120})
    assert same == (20, 20, 20 * 10_240)


def test_columns_that_can_be_objectives_are_results_in_the_summary() -> None:
    hints = get_type_hints(SummaryRow)
    assert all(
        set(hints[name].__args__ if hasattr(hints[name], "__args__") else [hints[name]])
        & {int, float}
        for name in COLUMNS
    )


def test_rung_within_the_first_iteration_is_a_warning(place: Path) -> None:
    warnings = searched(place, scheduler={"min_env_steps": 10_000}).warnings
    assert any(
        "search.scheduler.min_env_steps = 10_000" in text and "at least 16_384" in text
        for text in warnings
    )
    assert searched(place, scheduler={"min_env_steps": 16_384}).warnings == ()


def test_the_jobs_of_a_search_are_forked_unless_the_job_file_says_otherwise(place: Path) -> None:
    space = {"ppo.gamma": {"low": 0.9, "high": 0.99}}
    search = {"sampler": "random", "trials": 2, "space": space}
    starts = {}
    for given in ({}, {"start": "auto"}, {"start": "exec"}, {"start": "fork"}):
        data = {"name": "test", "search": search, "jobs": [HOPPER | {"resources": given}]}
        experiment = from_mapping(data, source="robots.toml", base=place, overrides={})
        (job,) = trial_jobs(experiment, 0, {"ppo.gamma": 0.95})
        starts[given.get("start")] = job.resources.start
    assert starts == {None: "fork", "auto": "fork", "exec": "exec", "fork": "fork"}


UNTOLD = [
    ({"objective": "distance_m"}, None, 'set by = "distance_m" there'),
    ({"objective": "distance_m"}, "distance_m", ""),
    ({"objective": "distance_m", "sampler": "random"}, None, ""),
    ({"objective": "eval_mean"}, None, ""),
    ({"objective": "eval_mean"}, "distance_m", "leave by out there"),
    ({"objective": "ep_rew_mean"}, "distance_m", "leave by out there"),
    ({"objective": "ep_rew_mean - energy_j"}, None, 'set by = "ep_rew_mean - energy_j" there'),
    ({"objective": "eval_mean - energy_j"}, None, "or leave [search.scheduler] out"),
    ({"objective": ["distance_m", "energy_j"], "sampler": "nsga2", "trials": 200}, None, ""),
]


@pytest.mark.parametrize(("search", "by", "advice"), UNTOLD)
def test_rungs_that_tell_the_sampler_nothing_are_a_warning(
    place: Path, search: dict[str, Any], by: str | None, advice: str
) -> None:
    scheduler = {"min_env_steps": 50_000} | ({} if by is None else {"by": by})
    job = {"total_timesteps": 200_000}
    learns = {"sampler": "tpe", **search}
    warnings = searched(place, job, scheduler=scheduler, **learns).warnings
    assert [advice in warning for warning in warnings] == [True] * bool(advice)
    assert not searched(place, job, **learns).warnings


def test_a_budget_of_less_than_two_populations_is_a_warning(place: Path) -> None:
    two = {"sampler": "nsga2", "objective": ["distance_m", "energy_j"]}
    (warning,) = searched(place, **two, trials=24).warnings
    assert "until 50 trials have come to their end, and there are 24 trials" in warning
    assert "{ population_size = 4 }" in warning
    (of_auto,) = searched(place, **(two | {"sampler": "auto"}), trials=24).warnings
    assert of_auto == warning
    options = {"population_size": 4}
    assert not searched(place, **two, trials=24, sampler_options=options).warnings
    assert not searched(place, **two, trials=100).warnings
    (of_few,) = searched(place, **two, trials=7, sampler_options=options).warnings
    assert of_few.endswith("and there are 7 trials; raise trials")


def test_what_is_wrong_is_a_problem_and_no_error_of_a_warning(place: Path) -> None:
    rungs = {"min_env_steps": 50_000}
    job = {"total_timesteps": 200_000}
    with pytest.raises(SpecError, match=r"search\.objective: .* is no expression"):
        searched(place, job, sampler="tpe", objective="distance_m /", scheduler=rungs)
    options = {"population_size": "a"}
    with pytest.raises(SpecError, match=r"search\.sampler_options\.population_size: expected"):
        searched(place, sampler="nsga2", sampler_options=options)


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        (
            "reevaluate",
            [0, 3, {"n": 3}, {"n": 3, "seeds": 5, "reference": True, "by": "estimate"}],
            [-1, True, "3", 10**13, {}, {"n": -1}, {"n": 3, "by": "luck"}, {"n": 3, "sedes": 5}],
        ),
        (
            "race",
            [2, {"seeds": 2}, {"seeds": 5, "share": 0.3}],
            [1, True, "3", 10**13, {}, {"seeds": 1}, {"seeds": 5, "share": 1}],
        ),
    ],
)
def test_the_schema_has_the_number_and_the_table_that_the_program_takes(
    key: str, right: Sequence[Any], wrong: Sequence[Any], place: Path
) -> None:
    validator = schema_validator()

    def is_valid(value: Any) -> bool:
        search = {"space": RATE, "trials": 20, key: value}
        return validator.is_valid({"name": "test", "jobs": [HOPPER], "search": search})

    for value in right:
        searched(place, **{key: value})
        assert is_valid(value)
    for value in wrong:
        with pytest.raises(SpecError):
            searched(place, **{key: value})
        assert not is_valid(value)
    definitions = json_schema()["$defs"]
    _, table = definitions["SearchTable"]["properties"][key]["anyOf"]
    of_table = definitions[table["$ref"].rpartition("/")[2]]
    assert of_table["description"]
