"""A training that pauses at rungs and is promoted ends with the bits of one that was never
paused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job_reader import outcome_sentence
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec

slow = pytest.mark.nightly


def attempt(
    directory: Path, spec: WorkerSpec, number: int, pause_at: int | None
) -> tuple[JobPaths, ExitRecord, str]:
    paths = helpers.job(directory, dataclasses.replace(spec, pause_at=pause_at))
    return paths, *helpers.train_here(paths, number)


@pytest.mark.parametrize(
    ("algo", "learner", "rungs", "paused_at", "total"),
    [
        ("ppo", "fast", [100, 512], [128, 512], 700),
        pytest.param("ppo", "sb3", [100, 512], [128, 512], 700, marks=slow),
        pytest.param("sac", "sb3", [300, 900], [512, 1024], 1100, marks=slow),
    ],
)
def test_after_pauses_at_two_rungs_weights_tables_and_evaluation_are_the_same(
    algo: str, learner: str, rungs: list[int], paused_at: list[int], total: int, tmp_path: Path
) -> None:
    """Rungs are numbers of env_steps within an iteration and at its end, and no checkpoint is due
    there."""
    given: dict[str, Any] = {
        "learner": learner,
        "normalize": True,
        "eval_episodes": 1,
        "checkpoint_every": 10_000,
    }
    spec = helpers.algorithm(algo, total_timesteps=total, **given)
    at_once, whole, log = attempt(tmp_path / "at once", spec, 0, None)
    assert (whole.code, whole.learner) == (ExitCode.SUCCEEDED, learner), log
    for number, (rung, steps) in enumerate(zip(rungs, paused_at, strict=True)):
        paths, record, log = attempt(tmp_path / "paused", spec, number, rung)
        resumed_from = paused_at[number - 1] if number else None
        assert (record.code, record.env_steps, record.resumed_from) == (
            ExitCode.PAUSED,
            steps,
            resumed_from,
        ), log
        assert (paths.model.exists(), paths.eval.exists(), record.eval_mean) == (False, False, None)
        assert f"{steps:,} env_steps" in record.message
        assert record.message in outcome_sentence(paths)
        row = helpers.rows(paths.progress_csv)[-1]
        assert int(row["time/total_timesteps"]) == steps
        assert record.ep_rew_mean == (
            pytest.approx(float(mean)) if (mean := row["rollout/ep_rew_mean"]) else None
        )
        assert bool(mean) == (steps > 400), "an episode of both environments has ended"
    paths, record, log = attempt(tmp_path / "paused", spec, len(rungs), None)
    assert (record.code, record.resumed_from) == (ExitCode.SUCCEEDED, paused_at[-1]), log
    assert record.weights_sha256 == whole.weights_sha256
    assert helpers.same_bits(helpers.parameters(paths.model), helpers.parameters(at_once.model))
    assert helpers.normalization(paths.vecnormalize) == helpers.normalization(at_once.vecnormalize)
    assert paths.eval.read_bytes() == at_once.eval.read_bytes()
    tables = [helpers.rows(job.progress_csv) for job in (paths, at_once)]
    assert len({tuple(row["time/total_timesteps"] for row in table) for table in tables}) == 1


def test_an_attempt_that_resumes_at_its_rung_trains_no_further_and_a_rung_at_the_end_is_none(
    tmp_path: Path,
) -> None:
    spec = helpers.algorithm("ppo", total_timesteps=200)
    paths, first, log = attempt(tmp_path, spec, 0, 128)
    assert (first.code, first.env_steps) == (ExitCode.PAUSED, 128), log
    checkpoints = {path: path.stat().st_mtime_ns for path in paths.checkpoints.iterdir()}
    _, again, log = attempt(tmp_path, spec, 1, 128)
    assert (again.code, again.env_steps, again.ep_rew_mean) == (
        ExitCode.PAUSED,
        128,
        first.ep_rew_mean,
    ), log
    assert {path: path.stat().st_mtime_ns for path in paths.checkpoints.iterdir()} == checkpoints
    _, last, log = attempt(tmp_path, spec, 2, 190)  # within the last iteration
    assert (last.code, paths.model.exists()) == (ExitCode.SUCCEEDED, True), log
