"""Jobs of several ranks in the job file: what they become, and what does not come out even."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job
from orchestrator.jobfile import from_mapping

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
