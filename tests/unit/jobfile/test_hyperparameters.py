"""The tables of hyperparameters: a job gets that of its algorithm only, and wrong ones are
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job
from orchestrator.core.worker_spec import LEAST_ITERATION, WorkerSpec
from orchestrator.experiment.resuming.declared_changes import decisive_keys
from orchestrator.jobfile import from_mapping
from orchestrator.jobfile.hyperparameters import ALGORITHMS

JOB = {"name": "one", "env": "Pendulum-v1", "total_timesteps": 1000}


def resolve(
    *jobs: dict[str, Any], defaults: dict[str, Any] | None = None, **overrides: Any
) -> tuple[Job, ...]:
    data = {"name": "test", "defaults": defaults or {}, "jobs": [JOB | job for job in jobs]}
    return from_mapping(data, source="robots.toml", base=Path(), overrides=overrides).jobs


def problem(*jobs: dict[str, Any], **given: Any) -> tuple[str, str]:
    with pytest.raises(SpecError) as error:
        resolve(*jobs, **given)
    (found,) = error.value.problems
    return found.where, found.message


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


SAC_JOB = {"algo": "sac"}
BAD: list[tuple[dict[str, Any], str, str]] = [
    (
        {"sac": {"tau": 0.1}},
        "sac",
        'is for algo = "sac", and algo is ppo here; leave it out, or set algo = "sac"',
    ),
    ({"algo": "td3", "ppo": {}}, "ppo", "and algo is td3 here"),
    ({"ppo": {}, "matrix": {"algo": ["sac", "td3"]}}, "ppo", "and algo is sac or td3 here"),
    (
        {"matrix": {"sac.tau": [0.1]}},
        'matrix."sac.tau"[0]',
        'is for algo = "sac", and algo is ppo here',
    ),
    (
        {"matrix": {"algo": ["sac", "td3"], "td3.tau": [0.1]}},
        'matrix."td3.tau"[0]',
        "and algo is sac here",
    ),
    (
        {**SAC_JOB, "sac": {"n_epochs": 3}},
        "sac.n_epochs",
        "unknown key here; ppo has it, sac has action_noise, batch_size",
    ),
    ({**SAC_JOB, "sac": {"polcy_delay": 3}}, "sac.polcy_delay", "known keys: action_noise"),
    (
        {**SAC_JOB, "sac": {"optimize_memory_usage": True}},
        "sac.optimize_memory_usage",
        "cannot be set",
    ),
    ({**SAC_JOB, "sac": {"replay_buffer_class": "x"}}, "sac.replay_buffer_class", "cannot be set"),
    ({**SAC_JOB, "sac": {"seed": 1}}, "sac.seed", "seeds = [0]"),
    ({**SAC_JOB, "buffer_size": 10}, "buffer_size", "in the table sac: sac.buffer_size (or"),
    (
        {**SAC_JOB, "sac": {"train_freq": 0}},
        "sac.train_freq",
        'from 1 to 1_000_000_000_000, or [1, "episode"], found 0',
    ),
    ({**SAC_JOB, "sac": {"train_freq": [1, "steps"]}}, "sac.train_freq", 'or [1, "episode"]'),
    ({**SAC_JOB, "sac": {"train_freq": [True, "step"]}}, "sac.train_freq", 'or [1, "episode"]'),
    (
        {**SAC_JOB, "sac": {"train_freq": [2, "episode"]}},
        "sac.train_freq",
        "whole episodes need n_envs = 1, and n_envs is 8",
    ),
    (
        {**SAC_JOB, "sac": {"ent_coef": "auto_0"}},
        "sac.ent_coef",
        '"auto_0.1" (learnt, with an initial value)',
    ),
    ({**SAC_JOB, "sac": {"ent_coef": "learn"}}, "sac.ent_coef", "or a number from 0 to"),
    ({**SAC_JOB, "sac": {"ent_coef": -1}}, "sac.ent_coef", "found -1"),
    ({**SAC_JOB, "sac": {"target_entropy": "automatic"}}, "sac.target_entropy", "or a number"),
    ({**SAC_JOB, "sac": {"gradient_steps": -2}}, "sac.gradient_steps", "from -1 to"),
    (
        {**SAC_JOB, "sac": {"learning_starts": 1000}},
        "sac.learning_starts",
        "is not below total_timesteps = 1_000",
    ),
    ({**SAC_JOB, "total_timesteps": 50}, "total_timesteps", "learning_starts = 100 is not below"),
    (
        {"algo": "td3", "td3": {"action_noise": 0}},
        "td3.action_noise",
        "a finite number above 0, found 0",
    ),
    (
        {"algo": "td3", "td3": {"target_policy_noise": -1}},
        "td3.target_policy_noise",
        "a finite number of at least 0, found -1",
    ),
    (
        {**SAC_JOB, "policy": "MultiInputPolicy", "sac": {"n_steps": 3}},
        "sac.n_steps",
        "must be 1: Stable-Baselines3",
    ),
    ({"algo": "a2c", "a2c": {"rms_prop_eps": 0}}, "a2c.rms_prop_eps", "a finite number above 0"),
    (
        {"algo": "a2c", "n_envs": 1, "a2c": {"n_steps": 1, "normalize_advantage": True}},
        "a2c.n_steps",
        "must be greater than 1",
    ),
    (
        {"algo": "td3", "policy_kwargs": {"ortho_init": True}},
        "policy_kwargs.ortho_init",
        "the policies of td3 have no ortho_init; they have activation_fn, n_critics, net_arch",
    ),
    (
        {"policy_kwargs": {"n_critics": 1}},
        "policy_kwargs.n_critics",
        "the policies of ppo have no n_critics",
    ),
    (
        {**SAC_JOB, "policy_kwargs": {"net_arch": {"pi": [8], "vf": [8]}}},
        "policy_kwargs.net_arch",
        "the networks of sac are pi and qf: { pi = […], qf = […] }",
    ),
    (
        {"policy_kwargs": {"net_arch": {"pi": [8], "qf": [8]}}},
        "policy_kwargs.net_arch",
        "of ppo are pi and vf",
    ),
    (
        {"algo": "a2c", "policy_kwargs": {"squash_output": True}},
        "policy_kwargs.squash_output",
        "a2c.use_sde = true",
    ),
    ({"algo": "pppo"}, "algo", 'did you mean "ppo"?'),
    ({"sac": {"gamma": 0.9}}, "sac", 'is for algo = "sac", and algo is ppo here'),
    (
        {**SAC_JOB, "learner": "fast"},
        "learner",
        'learner = "fast" is not possible: algo is sac, and the fast learner',
    ),
]


@pytest.mark.parametrize(
    ("job", "where", "message"),
    BAD,
    ids=[f"{where}-{number}" for number, (_, where, _) in enumerate(BAD)],
)
def test_a_wrong_job_is_refused_at_its_place(job: dict[str, Any], where: str, message: str) -> None:
    found, told = problem({"name": "right"}, {"name": "wrong", **job})
    assert found == f"jobs[1].{where}"
    assert message in told


def test_a_wrong_table_of_another_algorithm_keeps_nobody_from_being_judged() -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            {"algo": "sac", "n_envs": 3, "sac": {"learning_starts": 5000}},
            defaults={"ppo": {"gamma": 2}},
        )
    assert [one.where for one in error.value.problems] == [
        "defaults.ppo.gamma",
        "jobs[0].sac.learning_starts",
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
