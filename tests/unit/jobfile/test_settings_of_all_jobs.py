"""``--set`` against what jobs set themselves; whole numbers as floats, limits of numbers, and too
few updates."""

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
    ],
)
def test_the_command_line_wins_over_the_jobs_own_value(
    place: Path, own: dict[str, Any], given: str, found: Any
) -> None:
    experiment = changed(place, {**HOPPER, "total_timesteps": 10**6, **own}, given=given)
    assert list(map(found, experiment.jobs)) == [True]
    assert experiment.warnings == ()


@pytest.mark.parametrize(
    ("own", "given", "kept"),
    [
        (
            {"matrix": {"ppo.gamma": [0.9, 0.99]}},
            "ppo.gamma=0.5",
            "on jobs[1]: its matrix varies it",
        ),
        (
            {"matrix": {"ppo.gamma": [0.9, 0.99]}},
            "ppo={gamma = 0.5}",
            "on jobs[1]: its matrix varies it",
        ),
        ({"env": "Ant-v5"}, "task=forward", "on jobs[1]: it has its own env"),
    ],
)
def test_a_job_that_keeps_its_own_value_is_named(
    place: Path, own: dict[str, Any], given: str, kept: str
) -> None:
    experiment = changed(place, HOPPER, {**HOPPER, "name": "other", **own}, given=given)
    key = parse_override(given)[0]
    assert list(experiment.warnings) == [f"--set {key} has no effect {kept}"]
    varied = [job.spec.hyperparameters.get("gamma") for job in experiment.jobs]
    assert varied == ([0.5, 0.9, 0.99] if "matrix" in own else [None, None])


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


def iterations(total: int, n_envs: int, n_steps: int) -> int:
    return -(-total // (n_envs * n_steps))


@pytest.mark.parametrize(
    ("total", "n_envs", "batch_size", "instead"),
    [
        (10_000, 8, 64, "ppo.n_steps = 256"),
        (10_000, 8, 96, "ppo.n_steps = 312"),
        (100, 8, 64, ""),
    ],
)
def test_too_few_updates_are_warned_of_with_numbers_that_make_five(
    place: Path, total: int, n_envs: int, batch_size: int, instead: str
) -> None:
    n_steps = 2048 if 2048 * n_envs % batch_size == 0 else 2040
    job = {
        **HOPPER,
        "total_timesteps": total,
        "n_envs": n_envs,
        "ppo": {"n_steps": n_steps, "batch_size": batch_size},
    }
    (warning,) = resolve(place, job).warnings
    assert warning.startswith(
        f"hopper: total_timesteps = {total:_} makes {iterations(total, n_envs, n_steps)} "
    )
    more = 5 * n_steps * n_envs
    assert f"set total_timesteps = {more:_}" in warning
    assert warning.endswith(instead or f"{more:_}")
    assert resolve(place, {**job, "total_timesteps": more}).warnings == ()
    if instead:
        shorter = int(instead.rsplit(maxsplit=1)[-1])
        assert iterations(total, n_envs, shorter) >= 5
        assert resolve(place, {**job, "ppo": {**job["ppo"], "n_steps": shorter}}).warnings == ()


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
        resolve(place, {**HOPPER, "init": "job:"}, {**HOPPER, "name": "b", "init": " "})
    found = dict(problems(error))
    assert "names no job" in found["jobs[0].init"]
    assert "model.zip" in found["jobs[1].init"]


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
