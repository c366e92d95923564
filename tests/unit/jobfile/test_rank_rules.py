"""Jobs of several ranks in the job file: what they become, and what does not come out even."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobfile_helpers import schema_validator

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job
from orchestrator.jobfile import from_mapping
from orchestrator.jobfile.rank_rules import uneven

PENDULUM: dict[str, Any] = {"name": "pendulum", "env": "Pendulum-v1"}


def resolve(*jobs: dict[str, Any], defaults: dict[str, Any] | None = None) -> tuple[Job, ...]:
    data = {"name": "test", "defaults": defaults or {}, "jobs": [PENDULUM | job for job in jobs]}
    return from_mapping(data, source="robots.toml", base=Path()).jobs


def test_a_job_has_one_rank_unless_it_asks_for_more() -> None:
    (job,) = resolve({})
    assert (job.resources.ranks, job.spec.ranks, job.spec.backend, job.spec.mode) == (
        1,
        1,
        "auto",
        "allreduce",
    )


def test_the_time_that_ranks_wait_for_each_other_can_be_set_and_changed_later() -> None:
    usual, longer = resolve({"seeds": [0]}, {"seeds": [1], "distributed": {"timeout": "2min"}})
    assert (usual.spec.collective_timeout_s, longer.spec.collective_timeout_s) == (30.0, 120.0)
    assert (
        replace(longer.spec, collective_timeout_s=30.0).fingerprint() == longer.spec.fingerprint()
    )


def test_ranks_multiply_what_a_job_takes_and_divide_nothing_else() -> None:
    table = {"ranks": 4, "cores": 2, "memory": "1 GiB", "gpus": 1}
    distributed = {"backend": "nccl", "mode": "parameter-server"}
    (job,) = resolve({"n_envs": 8, "resources": table, "distributed": distributed})
    wanted = job.resources
    assert (wanted.cores, wanted.threads, wanted.memory_mib, wanted.gpus) == (2, 2, 1024, 1)
    assert (wanted.all_cores, wanted.all_memory_mib, wanted.all_gpus) == (8, 4096, 4)
    assert (job.spec.ranks, job.spec.backend, job.spec.mode) == (4, "nccl", "parameter-server")
    assert (job.spec.n_envs, job.spec.total_timesteps) == (8, 200_000)


def test_a_matrix_varies_ranks_and_the_way_they_work_together() -> None:
    matrix = {"resources.ranks": [1, 2, 4], "distributed.mode": ["allreduce", "parameter-server"]}
    jobs = resolve({"matrix": matrix})
    assert [job.job_id for job in jobs[:3]] == [
        "pendulum-ranks1-mode_allreduce-s0",
        "pendulum-ranks1-mode_parameter-server-s0",
        "pendulum-ranks2-mode_allreduce-s0",
    ]
    assert [job.resources.ranks for job in jobs] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("job", "where", "message"),
    [
        (
            {"n_envs": 10, "resources": {"ranks": 4}},
            "jobs[0].n_envs",
            "n_envs = 10 is not divisible by resources.ranks = 4; 8 or 12 are",
        ),
        (
            {"n_envs": 3, "resources": {"ranks": 4}},
            "jobs[0].n_envs",
            "n_envs = 3 is not divisible by .*; 4 is",
        ),
        (
            {"resources": {"ranks": 16}},
            "jobs[0].resources.ranks",
            "n_envs = 8 is not divisible by .*; 16 is",
        ),
        (
            {"n_envs": 9, "resources": {"ranks": 3}, "ppo": {"n_steps": 256}},
            "jobs[0].resources.ranks",
            r"batch_size = 64 \(Stable-Baselines3's default\) is not divisible by .* = 3; 48 or 72 are",
        ),
        (
            {"n_envs": 9, "resources": {"ranks": 3}, "ppo": {"n_steps": 256, "batch_size": 100}},
            "jobs[0].ppo.batch_size",
            "batch_size = 100 is not divisible by .* = 3; 96 or 144 are",
        ),
        (
            {"n_envs": 8, "resources": {"ranks": 2}, "ppo": {"n_steps": 225, "batch_size": 70}},
            "jobs[0].ppo.batch_size",
            "is not divisible by batch_size = 70: .* use batch_size = 60 or 72,",
        ),
        (
            {"resources": {"ranks": 4}, "ppo": {"batch_size": 4}},
            "jobs[0].ppo.batch_size",
            "batch_size = 4 leaves each of 4 ranks one sample per minibatch, .* 8 or more, or ppo.normalize_advantage",
        ),
        (
            {"algo": "sac", "resources": {"ranks": 4}, "sac": {"batch_size": 250}},
            "jobs[0].sac.batch_size",
            "batch_size = 250 is not divisible by .*; 248 or 252 are",
        ),
        (
            {"algo": "sac", "resources": {"ranks": 4}, "sac": {"buffer_size": 999_999}},
            "jobs[0].sac.buffer_size",
            "buffer_size = 999999 is not divisible by .*; 999996 or 1000000 are",
        ),
        (
            {"algo": "td3", "resources": {"ranks": 2}},
            "jobs[0].resources.ranks",
            "resources.ranks = 2, but only ppo and sac .* algo is td3",
        ),
        ({"algo": "a2c", "resources": {"ranks": 2}}, "jobs[0].resources.ranks", "algo is a2c"),
        (
            {"resources": {"ranks": 2}, "distributed": {"backend": "nccl"}},
            "jobs[0].distributed.backend",
            r"nccl is for GPUs, and resources\.gpus is 0; set resources\.gpus = 1",
        ),
        (
            {"resources": {"ranks": 2, "gpus": 0.5}},
            "jobs[0].resources.gpus",
            "is a share of one GPU, and each of 2 ranks needs a GPU of its own; set resources.gpus = 1, or",
        ),
        (
            {"resources": {"ranks": 0}},
            "jobs[0].resources.ranks",
            "from 1 to 1_000_000_000_000, found 0",
        ),
        (
            {"distributed": {"backend": "mpi"}},
            "jobs[0].distributed.backend",
            'one of "auto", "gloo", "nccl"',
        ),
        (
            {"distributed": {"mode": "paramter-server"}},
            "jobs[0].distributed.mode",
            'did you mean "parameter-server"?',
        ),
        (
            {"distributed": {"timeout": "soon"}},
            "jobs[0].distributed.timeout",
            "expected a duration above 0",
        ),
        ({"ranks": 2}, "jobs[0].ranks", "in the table resources: resources.ranks"),
        (
            {"resources": {"mode": "allreduce"}},
            "jobs[0].resources.mode",
            "in the table distributed: distributed.mode",
        ),
        (
            {"matrix": {"resources.ranks": [1, 2]}, "n_envs": 9, "ppo": {"n_steps": 64}},
            'jobs[0].matrix."resources.ranks"[1]',
            "n_envs = 9 is not divisible by .* = 2; 8 or 10 are",
        ),
    ],
)
def test_what_does_not_come_out_even_is_refused_with_what_would(
    job: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message) as error:
        resolve(job)
    assert [problem.where for problem in error.value.problems] == [where]


def test_numbers_that_suit_every_number_of_ranks_of_a_matrix_are_accepted() -> None:
    matrix = {"resources.ranks": [1, 2, 3, 6]}
    assert (
        len(resolve({"n_envs": 6, "ppo": {"batch_size": 66, "n_steps": 11}, "matrix": matrix})) == 4
    )


def test_a_wrong_default_is_one_problem_where_it_stands() -> None:
    with pytest.raises(SpecError) as error:
        resolve(
            {},
            {"name": "other"},
            defaults={"resources": {"ranks": 3}, "n_envs": 10, "ppo": {"n_steps": 96}},
        )
    assert [problem.where for problem in error.value.problems] == [
        "defaults.n_envs",
        "defaults.resources.ranks",
    ]


def test_what_is_wrong_already_is_not_found_wrong_again() -> None:
    with pytest.raises(SpecError) as error:
        resolve({"n_envs": 0, "resources": {"ranks": 4}, "ppo": {"batch_size": "x"}})
    assert [problem.where for problem in error.value.problems] == [
        "jobs[0].n_envs",
        "jobs[0].ppo.batch_size",
    ]


def test_how_ranks_work_together_may_stand_where_there_is_but_one() -> None:
    assert resolve({}, defaults={"distributed": {"backend": "nccl", "mode": "parameter-server"}})


@given(st.integers(1, 10**12), st.integers(2, 64), st.sampled_from([0, 2304, 2048 * 8, 10**12]))
def test_what_is_offered_is_divisible_and_soon_found(value: int, ranks: int, whole: int) -> None:
    offered = uneven("", value, ranks, whole).partition("; ")[2].split()
    numbers = [int(word) for word in offered if word.isdecimal()]
    assert 1 <= len(numbers) <= 2
    assert all(number > 0 and number % ranks == 0 for number in numbers)


def test_the_schema_knows_ranks() -> None:
    validator = schema_validator()
    job = PENDULUM | {
        "resources": {"ranks": 2},
        "distributed": {"backend": "gloo", "mode": "parameter-server"},
    }
    assert validator.is_valid({"name": "x", "jobs": [job]})
    assert not validator.is_valid(
        {"name": "x", "jobs": [PENDULUM | {"distributed": {"mode": "ring"}}]}
    )
    assert not validator.is_valid({"name": "x", "jobs": [PENDULUM | {"resources": {"ranks": 0}}]})
