"""The tables of hyperparameters: a job gets that of its algorithm only, and wrong ones are
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job
from orchestrator.core.worker_spec import LEAST_ITERATION, WorkerSpec
from orchestrator.jobfile import from_mapping
from orchestrator.jobfile.hyperparameters import ALGORITHMS
from orchestrator.server.differences import decisive_keys

JOB = {"name": "one", "env": "Pendulum-v1", "total_timesteps": 1000}


def resolve(
    *jobs: dict[str, Any], defaults: dict[str, Any] | None = None, **overrides: Any
) -> tuple[Job, ...]:
    data = {"name": "test", "defaults": defaults or {}, "jobs": [JOB | job for job in jobs]}
    return from_mapping(data, source="robots.toml", base=Path(), overrides=overrides).jobs


def test_a_job_gets_the_table_of_its_algorithm_and_the_others_in_defaults_are_for_others() -> None:
    tables = {
        "ppo": {"n_steps": 256},
        "sac": {"gamma": 0.9, "ent_coef": "auto_0.1"},
        "td3": {"action_noise": 0.1},
    }
    jobs = resolve(
        *({"name": algo, "algo": algo} for algo in ALGORITHMS),
        {"name": "own", "algo": "sac", "sac": {"gamma": 0.5}},
        defaults=tables,
        **{"a2c.n_steps": 7},
    )
    assert [job.spec.hyperparameters for job in jobs] == [
        {"n_steps": 256},
        {"gamma": 0.9, "ent_coef": "auto_0.1"},
        {"action_noise": 0.1},
        {"n_steps": 7},
        {"gamma": 0.5, "ent_coef": "auto_0.1"},
    ]
    assert all(WorkerSpec.from_json(job.spec.to_json()) == job.spec for job in jobs)
    assert "sac.ent_coef" in decisive_keys(jobs[1]), (
        "differences are told under the job file's own keys"
    )


def test_a_matrix_may_hold_algorithms_and_hyperparameters() -> None:
    (one, two) = resolve(
        {"algo": "sac", "matrix": {"sac.learning_rate": [1e-3, "linear(1e-3, 0)"]}}
    )
    assert [one.spec.hyperparameters, two.spec.hyperparameters] == [
        {"learning_rate": 1e-3},
        {"learning_rate": "linear(1e-3, 0)"},
    ]
    assert one.job_id == "one-lr1e-3-s0"
    given = {"sac": {"tau": 0.1}, "td3": {"tau": 0.2}, "matrix": {"algo": ["sac", "td3"]}}
    assert [job.spec.hyperparameters for job in resolve(given)] == [{"tau": 0.1}, {"tau": 0.2}]
    (episodes, _) = resolve(
        {"algo": "td3", "n_envs": 1, "matrix": {"td3.train_freq": [[1, "episode"], 4]}}
    )
    assert episodes.spec.hyperparameters == {"train_freq": [1, "episode"]}


def test_a_wrong_table_of_another_algorithm_keeps_nobody_from_being_judged() -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            {"algo": "sac", "policy_kwargs": {"ortho_init": False}},
            defaults={"ppo": {"gamma": 2}},
        )
    assert [one.where for one in error.value.problems] == [
        "defaults.ppo.gamma",
        "jobs[0].policy_kwargs.ortho_init",
    ]


@pytest.mark.parametrize(
    ("job", "rollout", "iteration"),
    [
        ({}, 2048 * 8, 2048 * 8),
        ({"ppo": {"n_steps": 8}}, 64, 64),
        ({"algo": "a2c"}, 40, 520),
        ({"algo": "sb3_contrib:TQC"}, None, LEAST_ITERATION),
        ({"algo": "a2c", "a2c": {"n_steps": 100}}, 800, 800),
        ({"algo": "sac"}, 8, 512),
        ({"algo": "sac", "n_envs": 3, "sac": {"train_freq": [4, "step"]}}, 12, 516),
        (
            {"algo": "td3", "n_envs": 1, "td3": {"train_freq": [1, "episode"]}},
            None,
            LEAST_ITERATION,
        ),
    ],
)
def test_an_iteration_is_a_rollout_of_ppo_and_of_the_others_many(
    job: dict[str, Any], rollout: int | None, iteration: int
) -> None:
    (found,) = resolve(job)
    assert (found.spec.steps_a_rollout, found.spec.steps_an_iteration) == (rollout, iteration)
