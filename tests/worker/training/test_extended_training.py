"""A training that is extended ends with the bits of one that had the larger number of env_steps
from the start."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec

slow = pytest.mark.nightly


def trained(directory: Path, spec: WorkerSpec, *earlier: int) -> tuple[JobPaths, ExitRecord, str]:
    """The job after trainings for each of ``earlier`` env_steps, each extended to the next, and
    then for its own."""
    totals = (*earlier, spec.total_timesteps)
    for number, total in enumerate(totals):
        of_attempt = dataclasses.replace(spec, total_timesteps=total, extended_from=totals[:number])
        paths = helpers.job(directory, of_attempt)
        record, log = helpers.train_here(paths, number)
    return paths, record, log


@pytest.mark.parametrize(
    ("algo", "learner", "earlier", "total"),
    [
        ("ppo", "fast", [200], 500),
        pytest.param("ppo", "sb3", [128, 129], 512, marks=slow),
        pytest.param("a2c", "sb3", [100], 700, marks=slow),
        pytest.param("sac", "sb3", [600], 800, marks=slow),
        pytest.param("td3", "sb3", [300, 600], 900, marks=slow),
    ],
)
def test_weights_statistics_and_evaluation_are_those_of_one_longer_training(
    algo: str, learner: str, earlier: list[int], total: int, tmp_path: Path
) -> None:
    """The earlier numbers are not multiples of an iteration's env_steps."""
    given: dict[str, Any] = {
        "learner": learner,
        "normalize": True,
        "eval_episodes": 1,
        "keep_replay_buffer": True,
    }
    spec = helpers.algorithm(algo, total_timesteps=total, **given)
    at_once, whole, log = trained(tmp_path / "at once", spec)
    assert (whole.code, whole.learner) == (ExitCode.SUCCEEDED, learner), log
    extended, record, log = trained(tmp_path / "extended", spec, *earlier)
    before = ExitRecord.from_json(extended.attempt(len(earlier) - 1).exit.read_text())
    assert (record.code, record.resumed_from, record.env_steps) == (
        0,
        before.env_steps,
        whole.env_steps,
    ), log
    assert earlier[-1] <= before.env_steps < whole.env_steps
    assert record.weights_sha256 == whole.weights_sha256 != before.weights_sha256
    assert helpers.same_bits(helpers.parameters(extended.model), helpers.parameters(at_once.model))
    assert helpers.normalization(extended.vecnormalize) == helpers.normalization(
        at_once.vecnormalize
    )
    assert extended.eval.read_bytes() == at_once.eval.read_bytes()
    steps = [int(row["env_steps"]) for row in helpers.rows(extended.timings_csv)]
    assert steps == sorted(set(steps)), "the tables go on where they were"
    assert [
        int(row["time/total_timesteps"]) for row in helpers.rows(extended.progress_csv)
    ] == steps
    assert [*map(int, (row["iteration"] for row in helpers.rows(extended.timings_csv)))] == [
        *range(1, len(steps) + 1)
    ]


@slow
def test_a_schedule_goes_on_over_the_new_total(tmp_path: Path) -> None:
    hyperparameters = {**helpers.SMALL["ppo"], "learning_rate": "linear(1e-3, 0)"}
    spec = helpers.algorithm("ppo", total_timesteps=512, hyperparameters=hyperparameters)
    paths, record, log = trained(tmp_path, spec, 256)
    assert record.code == ExitCode.SUCCEEDED, log
    rates = [float(row["train/learning_rate"]) for row in helpers.rows(paths.progress_csv)]
    assert rates == pytest.approx([5e-4, 0.0, 2.5e-4, 0.0])
