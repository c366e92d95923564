"""``--set`` against what jobs set themselves; whole numbers as floats, and too few updates."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.jobfile import Experiment, parse_override


@pytest.fixture
def place() -> Path:
    return Path(__file__).parents[3] / "jobs"


def changed(place: Path, *jobs: dict[str, Any], given: str) -> Experiment:
    """The jobs, with this value of ``--set``."""
    return resolve(place, *jobs, **dict([parse_override(given)]))


@pytest.mark.parametrize(
    ("own", "given", "found"),
    [
        (
            {"resources": {"memory": "2 GiB"}},
            "resources.memory=4 GiB",
            lambda job: job.resources.memory_mib == 4096,
        ),
        (
            {"ppo": {"n_steps": 512}},
            "ppo.n_steps=256",
            lambda job: job.spec.hyperparameters["n_steps"] == 256,
        ),
        (
            {"total_timesteps": 9},
            "total_timesteps=2e5",
            lambda job: job.spec.total_timesteps == 200_000,
        ),
        ({"seeds": [5]}, "seeds=[7]", lambda job: job.spec.seed == 7),
        ({"task": "stand"}, "task=forward", lambda job: job.spec.task == "forward"),
        ({"env": "Ant-v5"}, "task=forward", lambda job: job.spec.task == "forward"),
    ],
)
def test_the_command_line_wins_over_the_jobs_own_value(
    place: Path, own: dict[str, Any], given: str, found: Any
) -> None:
    experiment = changed(place, {**HOPPER, "total_timesteps": 10**6, **own}, given=given)
    assert list(map(found, experiment.jobs)) == [True]


def test_a_matrix_wins_over_the_command_line(place: Path) -> None:
    varied = {**HOPPER, "name": "other", "matrix": {"ppo.gamma": [0.9, 0.99]}}
    jobs = changed(place, HOPPER, varied, given="ppo.gamma=0.5").jobs
    assert [job.spec.hyperparameters["gamma"] for job in jobs] == [0.5, 0.9, 0.99]


def test_a_wrong_value_is_refused_at_the_option_whatever_the_job_sets(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        changed(place, {**HOPPER, "ppo": {"n_steps": 256, "batch_size": 64}}, given="ppo.n_steps=3")
    ((where, message),) = problems(error)
    assert where == "--set ppo.n_steps"
    assert "not divisible" in message


@pytest.mark.parametrize(
    ("job", "value"),
    [
        ({"total_timesteps": 1e6}, lambda job: job.spec.total_timesteps),
        (
            {"algo": "sac", "sac": {"buffer_size": 1e6}},
            lambda job: job.spec.hyperparameters["buffer_size"],
        ),
        ({"resources": {"threads": 2.0}}, lambda job: job.resources.threads * 500_000),
        ({"matrix": {"total_timesteps": [1e6]}}, lambda job: job.spec.total_timesteps),
    ],
)
def test_a_float_without_a_fraction_is_a_whole_number(
    place: Path, job: dict[str, Any], value: Any
) -> None:
    (found,) = resolve(place, {**HOPPER, **job}).jobs
    assert (value(found), type(value(found))) == (1_000_000, int)


def test_a_policy_to_start_from_is_named_relative_to_the_job_file(place: Path) -> None:
    def starts(job: dict[str, Any], **settings: Any) -> list[str | None]:
        return [job.spec.init for job in resolve(place, {**HOPPER, **job}, **settings).jobs]

    there, other = str(place / "runs/a/jobs/b-s0"), str(place / "model.zip")
    assert starts({}) == [None]
    assert starts({}, defaults={"init": "runs/a/jobs/b-s0"}) == [there]
    assert starts({"init": "none"}, defaults={"init": "runs/a/jobs/b-s0"}) == [None]
    assert starts({"init": "model.zip"}, init="/elsewhere/model.zip") == ["/elsewhere/model.zip"]
    assert starts({"matrix": {"init": ["none", "model.zip"]}}) == [None, other]
    with pytest.raises(SpecError) as error:
        resolve(place, {**HOPPER, "init": " "})
    found = dict(problems(error))
    assert "job:NAME" in found["jobs[0].init"]


def test_only_what_is_copied_decides_the_weights_of_a_job_that_starts_from_a_policy(
    place: Path,
) -> None:
    [plain], [named] = (
        resolve(place, {**HOPPER, "init": init}).jobs for init in ("none", "model.zip")
    )
    assert plain.spec.fingerprint() == named.spec.fingerprint()
    one, other = (dataclasses.replace(named.spec, init_sha256=sha256) for sha256 in ("a", "b"))
    assert len({spec.fingerprint() for spec in (plain.spec, one, other)}) == 3
    assert dataclasses.replace(one, init="/moved/model.zip").fingerprint() == one.fingerprint()
