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


def test_the_name_of_a_job_in_a_setting_of_all_jobs_is_refused_with_the_place_for_it(
    place: Path,
) -> None:
    with pytest.raises(SpecError) as refused:
        changed(place, HOPPER, {**HOPPER, "name": "walker4"}, given="walker4.total_timesteps=5")
    assert "--set is for all jobs" in str(refused.value)
    assert "set total_timesteps in the [[jobs]] table of that job, jobs[1]" in str(refused.value)


def test_a_value_that_no_job_takes_has_no_effect_at_all(place: Path) -> None:
    job = {**HOPPER, "matrix": {"ppo.gamma": [0.9, 0.99]}}
    (warning,) = changed(place, job, given="ppo.gamma=0.5").warnings
    assert warning == "--set ppo.gamma has no effect on jobs[0]: its matrix varies it"


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
        ({"checkpoint_every": 1e6}, lambda job: job.spec.checkpoint_every),
        (
            {"algo": "sac", "sac": {"buffer_size": 1e6}},
            lambda job: job.spec.hyperparameters["buffer_size"],
        ),
        ({"resources": {"threads": 2.0}}, lambda job: job.resources.threads * 500_000),
        (
            {"algo": "sac", "sac": {"train_freq": 4.0}},
            lambda job: job.spec.hyperparameters["train_freq"] * 250_000,
        ),
        ({"matrix": {"total_timesteps": [1e6]}}, lambda job: job.spec.total_timesteps),
    ],
)
def test_a_float_without_a_fraction_is_a_whole_number(
    place: Path, job: dict[str, Any], value: Any
) -> None:
    (found,) = resolve(place, {**HOPPER, **job}).jobs
    assert (value(found), type(value(found))) == (1_000_000, int)


@pytest.mark.parametrize(
    ("job", "limits"),
    [
        ({"ppo": {"learning_rate": 1e20}}, ["above 0", "up to 1_000_000_000_000"]),
        (
            {"ppo": {"learning_rate": "linear(1e20, 0)"}},
            ["above 0", "not exceed 1_000_000_000_000"],
        ),
        ({"total_timesteps": 1e15}, ["from 1 to 1_000_000_000_000", "found 1_000_000_000_000_000"]),
        ({"total_timesteps": -2.0}, ["from 1 to 1_000_000_000_000", "found -2"]),
        ({"ppo": {"gae_lambda": 2}}, ["from 0 to 1"]),
        ({"ppo": {"max_grad_norm": float("inf")}}, ["a finite number above 0"]),
        ({"ppo": {"vf_coef": float("inf")}}, ["a finite number"]),
        ({"resources": {"timeout": 1e13}}, ["above 0", "up to 1_000_000_000_000"]),
        ({"resources": {"timeout": "999999999d"}}, ["above 0", "up to 1_000_000_000_000"]),
        ({"resources": {"memory": "2000000 TiB"}}, ["above 0 and below 1 EiB"]),
        ({"checkpoint_every": 1e13}, ["from 1 to 1_000_000_000_000"]),
        ({"policy_kwargs": {"net_arch": [0]}}, ["from 1 to 1_000_000_000_000"]),
        (
            {"algo": "sac", "sac": {"target_entropy": 1e13}},
            ["from -1_000_000_000_000 to 1_000_000_000_000"],
        ),
    ],
)
def test_an_error_of_a_number_names_both_limits(
    place: Path, job: dict[str, Any], limits: list[str]
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, {**HOPPER, **job})
    ((_, message),) = problems(error)
    assert [limit for limit in limits if limit not in message] == [], message


def iterations(total: int, n_envs: int, n_steps: int) -> int:
    return -(-total // (n_envs * n_steps))


@pytest.mark.parametrize(
    ("total", "n_envs", "batch_size", "instead"),
    [
        (10_000, 8, 64, "ppo.n_steps = 256"),
        (10_000, 8, 96, "ppo.n_steps = 312"),  # no power of two makes whole minibatches
        (16_384, 8, 64, "ppo.n_steps = 256"),
        (65_536, 8, 64, "ppo.n_steps = 1024"),
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


def test_jobs_with_the_same_few_updates_share_a_warning_and_others_have_none(place: Path) -> None:
    few = {"total_timesteps": 10_000, "seeds": [0, 1]}
    jobs = [{**HOPPER, **few, "name": name} for name in "abcd"] + [{**HOPPER, "name": "long"}]
    sac = {**HOPPER, "name": "sac", "algo": "sac", "total_timesteps": 1000}
    (warning,) = resolve(place, *jobs, sac).warnings
    assert warning.startswith("a, b, c and 1 more: total_timesteps = 10_000 makes 1 iteration of ")
    assert "16_384 env_steps, so 16_384 env_steps are trained" in warning


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
