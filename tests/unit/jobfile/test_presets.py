"""Presets lie between the built-in defaults and what a user sets; each algorithm takes what it has
a use for."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, ROOT, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.core.worker_spec import OFF_POLICY, WorkerSpec
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.hyperparameters import ALGORITHMS
from orchestrator.jobfile.presets import PRESETS


@pytest.fixture
def place() -> Path:
    return ROOT / "jobs"


def spec(experiment: Experiment) -> WorkerSpec:
    (job,) = experiment.jobs
    return job.spec


def test_the_documentation_has_the_values_of_every_preset() -> None:
    table = (ROOT / "docs/presets.md").read_text().split("## Values")[1].strip().split("\n\n")[0]
    (_, *names), _, *rows = (
        [cell.strip(" `") for cell in line[1:-1].split("|")] for line in table.splitlines()
    )
    documented: dict[str, Any] = {name.strip('"'): {} for name in names}
    for key, *cells in rows:
        above, _, last = key.rpartition(".")
        for values, cell in zip(documented.values(), cells, strict=True):
            if cell:
                inner = values.setdefault(above, {}) if above else values
                inner[last] = tomllib.loads(f"value = {cell}")["value"]
    assert documented == PRESETS


def test_without_a_preset_nothing_is_set(place: Path) -> None:
    alone = spec(resolve(place, HOPPER))
    assert (alone.hyperparameters, alone.policy_kwargs) == ({}, {})
    assert (alone.total_timesteps, alone.n_envs, alone.normalize, alone.eval_episodes) == (
        200_000,
        8,
        True,
        10,
    )


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_preset_suits_every_algorithm_and_gives_ppo_alone_its_hyperparameters(
    place: Path, name: Any, algo: str
) -> None:
    values = PRESETS[name]
    experiment = resolve(place, HOPPER, defaults={"preset": name, "algo": algo})
    resolved, plain = spec(experiment), spec(resolve(place, HOPPER, defaults={"algo": algo}))
    assert experiment.warnings == ()
    assert (resolved.total_timesteps, resolved.eval_episodes) == (
        values["total_timesteps"],
        values["eval_episodes"],
    )
    same = resolve(place, HOPPER, defaults=values) if algo == "ppo" else None
    assert (resolved.hyperparameters, resolved.policy_kwargs) == (
        (spec(same).hyperparameters, spec(same).policy_kwargs) if same else ({}, {})
    )
    if algo in OFF_POLICY:
        assert (resolved.n_envs, resolved.normalize) == (plain.n_envs, plain.normalize)


@pytest.mark.parametrize("layer", ["defaults", "job", "--set", "matrix"])
def test_whatever_a_user_sets_wins_over_the_preset(place: Path, layer: str) -> None:
    own: dict[str, Any] = {
        "ppo": {"gamma": 0.5},
        "total_timesteps": 50_000,
        "policy_kwargs": {"net_arch": [32]},
    }
    dotted = {"ppo.gamma": 0.5, "total_timesteps": 50_000, "policy_kwargs.net_arch": [32]}
    job = {**HOPPER, "preset": "quick"}
    match layer:
        case "defaults":
            resolved = spec(resolve(place, job, defaults=own))
        case "job":
            resolved = spec(resolve(place, job | own))
        case "--set":
            resolved = spec(resolve(place, job, **dotted))
        case _:
            resolved = spec(
                resolve(place, job | {"matrix": {key: [value] for key, value in dotted.items()}})
            )
    assert (resolved.hyperparameters["gamma"], resolved.total_timesteps) == (0.5, 50_000)
    assert resolved.policy_kwargs == {"net_arch": [32]}
    assert resolved.hyperparameters["n_steps"] == PRESETS["quick"]["ppo"]["n_steps"]


def test_a_preset_itself_is_set_like_any_key(place: Path) -> None:
    steps = {name: values["total_timesteps"] for name, values in PRESETS.items()}
    defaults = {"preset": "quick"}
    jobs = [{**HOPPER, "name": "a"}, {**HOPPER, "name": "b", "preset": "standard"}]
    of_jobs = {
        job.spec.name: job.spec.total_timesteps
        for job in resolve(place, *jobs, defaults=defaults).jobs
    }
    assert of_jobs == {"a": steps["quick"], "b": steps["standard"]}
    given = resolve(place, *jobs, defaults=defaults, preset="thorough")
    assert {job.spec.total_timesteps for job in given.jobs} == {steps["thorough"]}
    varied = resolve(
        place, {**jobs[1], "matrix": {"preset": list(PRESETS)}}, defaults=defaults, preset="quick"
    )
    assert {job.job_id: job.spec.total_timesteps for job in varied.jobs} == {
        f"b-preset_{name}-s0": number for name, number in steps.items()
    }


@pytest.mark.parametrize(
    "where", ["defaults.preset", "jobs[0].preset", "jobs[0].matrix.preset[1]", "--set preset"]
)
def test_an_unknown_preset_is_one_problem_that_names_the_three(place: Path, where: str) -> None:
    job, defaults, given = {**HOPPER, "ppo": {"batch_size": 100}}, {}, {}
    if where.startswith("jobs[0].matrix"):
        job = {**HOPPER, "matrix": {"preset": ["quick", "through"]}}
    elif where.startswith("jobs"):
        job["preset"] = "through"
    elif where.startswith("defaults"):
        defaults["preset"] = "through"
    else:
        given["preset"] = "through"
    with pytest.raises(SpecError) as error:
        resolve(place, job, defaults=defaults, **given)
    ((found, message),) = problems(error)
    assert found == where
    assert [name for name in PRESETS if name not in message] == []
